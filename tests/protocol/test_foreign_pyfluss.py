"""The real pyfluss 1.0.0 against the toy server: frames, errors and authentication in a third-party client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import ErrorCode
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerRole
from forebay.protocol.sasl import SaslAuthenticator
from tests.protocol.toy_server import ToyServer

fluss = pytest.importorskip("fluss")

pytestmark = pytest.mark.foreign

SASL = {
    "security.protocol.map": "CLIENT:SASL",
    "security.sasl.enabled.mechanisms": "PLAIN",
    "security.sasl.plain.credentials": "admin:secret,alice:'s:x'",
}


async def connect(toy: ToyServer, **settings: str) -> Any:
    properties = {key.replace("_", "."): value for key, value in settings.items()}
    return await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": toy.bootstrap, **properties}))


async def error_code_of(call: Awaitable[Any]) -> int:
    try:
        await call
    except fluss.FlussError as error:
        return int(error.error_code)
    return 0


def sasl_settings(user: str, password: str) -> dict[str, str]:
    return {"security_protocol": "sasl", "security_sasl_username": user, "security_sasl_password": password}


def test_pyfluss_creates_and_finds_databases_and_tables() -> None:
    async def run() -> None:
        async with ToyServer() as toy:
            connection = await connect(toy)
            admin = connection.get_admin()
            await admin.create_database("shop")
            assert await admin.list_databases() == ["fluss", "shop"]
            path = fluss.TablePath("shop", "orders")
            schema = fluss.Schema(pa.schema([("id", pa.int32()), ("s", pa.string())]))
            await admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=2))
            assert await admin.list_tables("shop") == ["orders"]
            assert (await admin.get_table_info(path)).get_column_names() == ["id", "s"]
            nodes = {(node.server_type, node.port) for node in await admin.get_server_nodes()}
            assert {port for _, port in nodes} == {port for _, port in toy.cluster.addresses.values()}
            await connection.close()

    asyncio.run(run())


def test_pyfluss_sees_the_codes_and_texts_of_our_error_frames() -> None:
    async def run() -> None:
        async with ToyServer() as toy:
            connection = await connect(toy)
            admin = connection.get_admin()
            path = fluss.TablePath("fluss", "nix")
            assert await error_code_of(admin.create_database("fluss")) == ErrorCode.DATABASE_ALREADY_EXIST
            assert await error_code_of(admin.get_database_info("nix")) == ErrorCode.DATABASE_NOT_EXIST
            assert await error_code_of(connection.get_table(path)) == ErrorCode.TABLE_NOT_EXIST
            with pytest.raises(fluss.FlussError, match=r"table fluss\.nix does not exist"):
                await admin.get_table_info(path)
            assert await admin.table_exists(path) is False
            await connection.close()

    asyncio.run(run())


def test_pyfluss_writes_and_reads_batches_small_and_large() -> None:
    rows = 60_000

    async def run() -> None:
        async with ToyServer() as toy:
            connection = await connect(toy)
            path = fluss.TablePath("fluss", "log")
            schema = pa.schema([("id", pa.int32()), ("s", pa.string())])
            await connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(schema), bucket_count=2))
            table = await connection.get_table(path)
            writer = table.new_append().create_writer()
            writer.append({"id": -1, "s": None})
            await writer.flush()
            texts = [f"{number:040d}" for number in range(rows)]
            writer.write_arrow(pa.table({"id": pa.array(range(rows), pa.int32()), "s": texts}))
            await writer.flush()
            assert max(toy.cluster.seen_payload_sizes) > 200_000
            scanner = await table.new_scan().create_record_batch_log_scanner()
            scanner.subscribe_buckets({0: 0, 1: 0})
            found = await scanner.to_arrow()
            assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
                {"id": number, "s": text} for number, text in zip(range(-1, rows), [None, *texts])
            ]
            await connection.close()

    asyncio.run(run())


def test_pyfluss_is_told_at_once_what_a_server_does_not_offer() -> None:
    async def run() -> None:
        async with ToyServer(implemented={ApiKey.API_VERSIONS, ApiKey.GET_METADATA}) as toy:
            connection = await connect(toy)
            with pytest.raises(fluss.FlussError, match="does not support"):
                await connection.get_admin().list_databases()
            await connection.close()

    asyncio.run(run())


@pytest.mark.parametrize("challenge", [False, True])
@pytest.mark.parametrize(("user", "password"), [("admin", "secret"), ("alice", "s:x")])
def test_pyfluss_authenticates_with_and_without_the_empty_challenge_of_java_servers(
    user: str, password: str, challenge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = SaslAuthenticator.receive
    rounds = []

    def receive(self: SaslAuthenticator, request: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
        was_done = self.principal is not None
        response = ours(self, request)
        rounds.append(was_done)
        if challenge and not was_done:
            response.challenge = b""
        return response

    monkeypatch.setattr(SaslAuthenticator, "receive", receive)

    async def run() -> None:
        async with ToyServer(SASL) as toy:
            connection = await connect(toy, **sasl_settings(user, password))
            assert await connection.get_admin().list_databases() == ["fluss"]
            await connection.close()

    asyncio.run(run())
    assert any(rounds) is challenge


@pytest.mark.parametrize(("user", "password"), [("admin", "wrong"), ("nobody", "secret"), ("admin", "secret ")])
def test_pyfluss_gets_error_46_for_a_wrong_user_or_password(user: str, password: str) -> None:
    async def run() -> None:
        async with ToyServer(SASL) as toy:
            code = await error_code_of(connect(toy, **sasl_settings(user, password)))
            assert code == ErrorCode.AUTHENTICATE_EXCEPTION

    asyncio.run(run())


def test_pyfluss_gets_error_46_where_only_one_side_wants_sasl() -> None:
    async def run() -> None:
        async with ToyServer(SASL) as toy:
            assert await error_code_of(connect(toy)) == ErrorCode.AUTHENTICATE_EXCEPTION
        async with ToyServer() as toy:
            code = await error_code_of(connect(toy, **sasl_settings("admin", "secret")))
            assert code == ErrorCode.AUTHENTICATE_EXCEPTION

    asyncio.run(run())


def test_pyfluss_refuses_a_port_that_answers_in_the_wrong_role() -> None:
    async def run() -> None:
        async with ToyServer() as toy:
            coordinator = toy.cluster.addresses[ServerRole.COORDINATOR]
            connection = await connect(toy)
            toy.cluster.addresses[ServerRole.TABLET] = coordinator
            other = await connect(toy)
            await connection.get_admin().create_table(
                fluss.TablePath("fluss", "t"), fluss.TableDescriptor(fluss.Schema(pa.schema([("a", pa.int32())])))
            )
            assert await error_code_of(other.get_table(fluss.TablePath("fluss", "t"))) != 0
            await connection.close()
            await other.close()

    asyncio.run(run())
