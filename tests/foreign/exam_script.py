"""One run of the differential script against one cluster, and the outcomes of its steps.

Terms: a *step* is one question to a server with a name that never changes; its *outcome* is a small JSON value: a
result, an error code, or silence. Outcomes contain no ids, times or sentences, so those of two servers can be compared
and one server's can be stored as a golden file.

Flow: a scenario (`steps_*.py`) calls `Exam.step(name, action)` for each of its questions, through pyfluss if pyfluss
supports the question and by raw frames otherwise. A step never ends a scenario: the error it raises is its outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import fluss
import raw_wire as wire

STEP_SECONDS = 15.0
SLOW_SECONDS = 2.0
READY_SECONDS = 120.0
SILENCE_SECONDS = 1.0

Outcome = dict[str, Any]
Action = Callable[[], Any | Awaitable[Any]]


def column(name: str, kind: str | dict[str, Any] = "INTEGER", **more: Any) -> dict[str, Any]:
    """A column of a schema JSON; `kind` is a type name or a whole type object."""
    return {"name": name, "data_type": {"type": kind} if isinstance(kind, str) else kind, **more}


def table_json(
    columns: Iterable[dict[str, Any]] = (),
    *,
    primary_key: Sequence[str] | None = None,
    bucket_key: Sequence[str] = (),
    bucket_count: int | None = 1,
    partition_key: Sequence[str] = (),
    properties: dict[str, str] | None = None,
    custom_properties: dict[str, str] | None = None,
    **schema: Any,
) -> bytes:
    """The JSON of a table descriptor, with column ids filled in by position where no column has one."""
    fields = list(columns) or [column("id"), column("name", "STRING")]
    if not any("id" in field for field in fields):
        fields = [{**field, "id": position} for position, field in enumerate(fields)]
    described: dict[str, Any] = {"version": 1, "columns": fields, "highest_field_id": len(fields) - 1, **schema}
    if primary_key is not None:
        described["primary_key"] = list(primary_key)
    document: dict[str, Any] = {
        "version": 1,
        "schema": described,
        "partition_key": list(partition_key),
        "bucket_key": list(bucket_key),
        "properties": properties or {},
        "custom_properties": custom_properties or {},
    }
    if bucket_count is not None:
        document["bucket_count"] = bucket_count
    return json.dumps(document).encode()


class FrameError(Exception):
    """An error frame, where a step wanted an answer."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error frame {code}")
        self.code = code


class Exam:
    """A run against one cluster: its connections, a database for each scenario, and the outcomes so far."""

    def __init__(self, address: str, sasl_address: str, users: dict[str, str], token: str) -> None:
        self.address = address
        self.sasl_address = sasl_address
        self.users = users
        self.token = token
        self.database = ""
        self.outcomes: dict[str, Outcome] = {}
        self.scenario = ""
        self._connection: fluss.FlussConnection | None = None
        self._raw: dict[str, wire.RawConnection] = {}
        with wire.RawConnection(address) as connection:
            wire.api_versions(connection)
            nodes = wire.server_nodes(connection)
        if nodes.coordinator is None or not nodes.tablet_servers:
            raise wire.Unanswered(f"{address} knows no coordinator or no tablet server")
        self.coordinator_address = nodes.coordinator
        self.tablet_addresses = nodes.tablet_servers

    # -- scenarios and steps -------------------------------------------------------------------------------------

    async def run(self, name: str, scenario: Callable[[Exam], Awaitable[None]]) -> None:
        """Run one scenario in a database of its own; one that breaks off has an outcome that says so."""
        self.scenario = name
        self.database = f"exam_{self.token}_{name.replace(' ', '_')}"
        admin = await self.admin()
        await admin.create_database(self.database)
        try:
            await scenario(self)
        except Exception as broken:  # noqa: BLE001 - one scenario must not cost the others
            print(f"{name} broke off at {self.address}: {broken!r}", file=sys.stderr)
            self.outcomes[f"{name}: (broke off)"] = outcome_of(broken)
        await self.step("(drop its database)", self._leave)

    async def _leave(self) -> None:
        # Apache Fluss 0.9.1 elects leaders one event after another, and its coordinator never elects again once a
        # table is gone before the events of its partitions came up. A last table is elected after all the others.
        admin = await self.admin()
        with contextlib.suppress(Exception):
            await self.ready_table("zz_last", table_json())
        await asyncio.wait_for(admin.drop_database(self.database, ignore_if_not_exists=True), STEP_SECONDS)

    async def step(self, name: str, action: Action) -> Any:
        """Ask one question, keep its outcome, and return its result (None if it had none)."""
        key = f"{self.scenario}: {name}"
        if key in self.outcomes:
            raise ValueError(f"two steps are named {key!r}")
        began = time.monotonic()
        result = None
        try:
            result = action()
            if inspect.isawaitable(result):
                result = await asyncio.wait_for(result, STEP_SECONDS)
        except Exception as error:  # noqa: BLE001 - the error is what was asked for
            self.outcomes[key] = outcome_of(error)
        else:
            self.outcomes[key] = {"value": result}
        if (seconds := time.monotonic() - began) > SLOW_SECONDS:
            print(f"{seconds:5.1f} s  {key}: {self.outcomes[key]}", file=sys.stderr, flush=True)
        return result

    # -- pyfluss -------------------------------------------------------------------------------------------------

    async def connection(self, **settings: str) -> fluss.FlussConnection:
        """The run's pyfluss connection; with settings, a new one that is the caller's to close."""
        if settings:
            return await fluss.FlussConnection.create(
                fluss.Config(
                    {"bootstrap.servers": self.address, **{k.replace("_", "."): v for k, v in settings.items()}}
                )
            )
        if self._connection is None:
            self._connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": self.address}))
        return self._connection

    async def admin(self) -> fluss.FlussAdmin:
        return (await self.connection()).get_admin()

    def path(self, table: str) -> fluss.TablePath:
        return fluss.TablePath(self.database, table)

    async def ready_table(self, name: str, json_bytes: bytes, *, buckets: int = 1) -> fluss.FlussTable:
        """Create a table (raw, so that its JSON is ours) and wait until every bucket has a leader.

        A table that gets none is made again: the coordinator of Apache Fluss 0.9.1 misses about one new table in two
        hundred, because its watcher can come upon the table's node before there is anything in it.
        """
        admin, path = await self.admin(), self.path(name)
        latest = fluss.OffsetSpec.latest()
        for attempts_left in [2, 1, 0]:
            self.create_table(name, json_bytes)
            try:
                await self.until_ready(lambda: admin.list_offsets(path, list(range(buckets)), latest))
                break
            except fluss.FlussError:
                if not attempts_left:
                    raise
                await admin.drop_table(path)
        return await (await self.connection()).get_table(path)

    async def until_ready(self, probe: Callable[[], Awaitable[Any]]) -> Any:
        """Call until it succeeds: leaders are elected after the request that makes them needed has been answered."""
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while True:
            try:
                return await probe()
            except Exception:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.1)

    # -- raw frames ----------------------------------------------------------------------------------------------

    def raw(self, role: str) -> wire.RawConnection:
        """The run's raw connection to the `coordinator` or to the (first) `tablet` server, opened when needed."""
        if role not in self._raw:
            self._raw[role] = self.new_raw(role)
            wire.api_versions(self._raw[role])
        return self._raw[role]

    def new_raw(self, role: str, timeout: float = STEP_SECONDS) -> wire.RawConnection:
        """A fresh raw connection on which nothing has been said."""
        first_tablet_server = self.tablet_addresses[min(self.tablet_addresses)]
        address = self.coordinator_address if role == "coordinator" else first_tablet_server
        return wire.RawConnection(address, timeout)

    def call(self, role: str, api_key: int, fields: wire.Fields | bytes, version: int = 0) -> wire.Message:
        """The success body of a raw request; an error frame raises `FrameError`, silence `Unanswered`."""
        try:
            answer = self.raw(role).call(api_key, fields, version)
        except (wire.Unanswered, OSError):
            self._raw.pop(role).close()
            raise
        if answer.error is not None:
            raise FrameError(answer.error)
        return answer.message

    def create_table(self, name: str, json_bytes: bytes, *, ignore: bool = False, database: str | None = None) -> None:
        """CreateTable with a JSON of ours."""
        path = [(1, self.database if database is None else database), (2, name)]
        self.call("coordinator", wire.CREATE_TABLE, [(1, path), (2, json_bytes), (3, ignore)])

    def table_path(self, name: str) -> wire.Fields:
        """A PbTablePath."""
        return [(1, self.database), (2, name)]

    def table_id(self, name: str) -> int:
        """The id of a table."""
        info = self.call("coordinator", wire.GET_TABLE_INFO, [(1, self.table_path(name))])
        return int(wire.one(info, 1))

    async def close(self) -> None:
        for raw in self._raw.values():
            raw.close()
        self._raw.clear()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            # Closing waits for unsent rows, which a step may have left where they are never taken.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(connection.close(), STEP_SECONDS)


def outcome_of(error: Exception) -> Outcome:
    """How a failed step is written down."""
    if isinstance(error, fluss.FlussError):
        return {"error": error.error_code}
    if isinstance(error, FrameError):
        return {"error_frame": error.code}
    if isinstance(error, wire.Unanswered):
        return {"unanswered": "silent" if "no answer" in str(error) else "closed"}
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return {"unanswered": "timeout"}
    if isinstance(error, (BrokenPipeError, ConnectionError)):
        return {"unanswered": "closed"}
    return {"raised": type(error).__name__}
