"""A running server, a table in it, and shorthand for the requests that tests send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.codec.log.log_batch import build_arrow_batch
from forebay.metadata import json_serde
from forebay.metadata.table import TablePath
from forebay.metadata.types import DataType
from forebay.protocol.messages import table_path_to_pb
from forebay.server.embedded import EmbeddedServer
from forebay.server.server import Injected
from tests.kv.tables import FakeTable
from tests.server.raw_client import ApiKey, RawClient, pb


class Bench:
    """Connections to both roles of one server, which may run in this process (`server`) or in another."""

    def __init__(self, coordinator: str, tablet: str, server: EmbeddedServer | None = None) -> None:
        self._server = server
        self.coordinator = RawClient(coordinator)
        self.tablet = RawClient(tablet)

    @property
    def server(self) -> EmbeddedServer:
        assert self._server is not None
        return self._server

    def close(self) -> None:
        self.coordinator.close()
        self.tablet.close()

    # ---- tables -----------------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        columns: Mapping[str, DataType],
        primary_key: Sequence[str] = (),
        *,
        buckets: int = 1,
        partition_keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        engine: str = "auto",
    ) -> int:
        """Create table `fluss.<name>`; return its id. `engine`: the key-value engine."""
        document = {
            "version": 1,
            "schema": {
                "version": 1,
                "columns": [
                    {"name": column, "data_type": json_serde.data_type_to_json(t)} for column, t in columns.items()
                ],
                **({"primary_key": list(primary_key)} if primary_key else {}),
            },
            "partition_key": list(partition_keys),
            "bucket_key": [],
            "bucket_count": buckets,
            "properties": dict(properties or {}),
            "custom_properties": {"forebay.kv.engine": engine} if engine != "auto" else {},
        }
        self.create_from_json(name, document)
        return self.info(name).table_id

    def create_from_json(self, name: str, document: dict[str, Any]) -> None:
        self.coordinator.call(
            ApiKey.CREATE_TABLE,
            pb.CreateTableRequest(
                table_path=self.path(name), table_json=json_serde.dumps(document), ignore_if_exists=False
            ),
        )

    def path(self, name: str) -> pb.PbTablePath:
        return table_path_to_pb(TablePath("fluss", name))

    def info(self, name: str) -> Any:
        return self.tablet.call(ApiKey.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=self.path(name)))

    # ---- writing ----------------------------------------------------------------------------------------------------

    def put(
        self,
        table_id: int,
        records: bytes,
        *,
        bucket: int = 0,
        partition: int | None = None,
        acks: int = -1,
        targets: Sequence[int] = (),
    ) -> Any:
        """The answer for the one bucket of a PutKv."""
        request = pb.PutKvRequest(acks=acks, table_id=table_id, timeout_ms=10_000, target_columns=targets)
        request.buckets_req.add(bucket_id=bucket, partition_id=partition, records=records)
        return self.tablet.call(ApiKey.PUT_KV, request).buckets_resp[0]

    def append(
        self, table_id: int, records: bytes, *, bucket: int = 0, partition: int | None = None, acks: int = -1
    ) -> Any:
        """The answer for the one bucket of a ProduceLog."""
        request = pb.ProduceLogRequest(acks=acks, table_id=table_id, timeout_ms=10_000)
        request.buckets_req.add(bucket_id=bucket, partition_id=partition, records=records)
        return self.tablet.call(ApiKey.PRODUCE_LOG, request).buckets_resp[0]

    # ---- reading ----------------------------------------------------------------------------------------------------

    def fetch_request(
        self, table_id: int, offset: int, *, bucket: int = 0, wait_ms: int = 0, bytes_max: int = 1 << 20, **table: Any
    ) -> pb.FetchLogRequest:
        request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=16 << 20, max_wait_ms=wait_ms, min_bytes=1)
        per_table = request.tables_req.add(
            table_id=table_id, projection_pushdown_enabled="projected_fields" in table, **table
        )
        per_table.buckets_req.add(bucket_id=bucket, fetch_offset=offset, max_fetch_bytes=bytes_max)
        return request

    def fetch(self, table_id: int, offset: int = 0, **options: Any) -> Any:
        """The answer for the one bucket of a FetchLog."""
        answer = self.tablet.call(ApiKey.FETCH_LOG, self.fetch_request(table_id, offset, **options))
        return answer.tables_resp[0].buckets_resp[0]

    def log_end(self, table_id: int, bucket: int = 0) -> int:
        request = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=table_id, bucket_id=[bucket])
        answer = self.tablet.call(ApiKey.LIST_OFFSETS, request).buckets_resp[0]
        assert not answer.error_code, answer
        return int(answer.offset)

    def lookup(self, table_id: int, keys: Sequence[bytes], *, bucket: int = 0, version: int | None = None) -> Any:
        request = pb.LookupRequest(table_id=table_id)
        request.buckets_req.add(bucket_id=bucket, keys=keys)
        return self.tablet.call(ApiKey.LOOKUP, request, version).buckets_resp[0]


KV_COLUMNS = {column.name: column.data_type for column in FakeTable().info.schema.columns}
LOG_COLUMNS = {"a": KV_COLUMNS["id"].as_nullable(), "s": KV_COLUMNS["name"]}


def kv_records(rows: Sequence[dict[str, Any]], deletes: Sequence[bool] | None = None, **options: Any) -> bytes:
    """A KV batch for a table with the columns of `FakeTable`."""
    return bytes(FakeTable().request(rows, deletes, **options).records)


def kv_key(key_id: int) -> bytes:
    return FakeTable().key(key_id)


LOG_SCHEMA = pa.schema([("a", pa.int32()), ("s", pa.string())])


def log_records(numbers: Sequence[int], schema_id: int = 1, **options: Any) -> bytes:
    """A log batch for a table with columns a INT, s STRING."""
    batch = pa.RecordBatch.from_pydict({"a": list(numbers), "s": [f"s{n}" for n in numbers]}, schema=LOG_SCHEMA)
    return bytes(build_arrow_batch(batch, schema_id=schema_id, **options))


@contextmanager
def running(directory: Path, injected: Injected | None = None, **settings: str) -> Iterator[Bench]:
    """A bench on a server in this process; settings with '_' for '.' and '__' for '-'."""
    named = {key.replace("__", "-").replace("_", "."): value for key, value in settings.items()}
    with EmbeddedServer(directory, settings=named, injected=injected) as server:
        bench = Bench(server.bootstrap_servers, server.addresses.tablet_servers, server)
        try:
            yield bench
        finally:
            bench.close()
