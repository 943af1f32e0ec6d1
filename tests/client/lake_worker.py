"""A minimal tiering worker: rounds by hand, for tests of the server's side."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from forebay.client.admin.lake import LakeTieringClient, TieringDone, TieringTable
from forebay.client.connection import Connection
from forebay.codec.log.log_batch import ChangeType
from forebay.lake.formats import create_lake_storage
from forebay.lake.records import ChangeRows
from forebay.lake.tiering import OFFSETS_PROPERTY, CommitterContext, LakeCommitResult, LakeCommitter, WriterContext
from forebay.metadata.table import TableBucket, TableInfo, TablePath

PATH = TablePath("fluss", "orders")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


class Worker:
    """One worker with one table."""

    def __init__(self, connection: Connection) -> None:
        self.calls = LakeTieringClient(connection)
        self.admin = connection.admin
        table = self.calls.heartbeat(request=True).table
        assert table is not None
        self.table: TieringTable = table
        self.info: TableInfo = connection.admin.table_info(table.path)
        self.storage = create_lake_storage("paimon", self.info.lake_options())

    def committer(self, base: int | None) -> LakeCommitter:
        context = CommitterContext(self.info, self.table.fence, base)
        return self.storage.create_tiering_factory().create_committer(context)

    def write(self, rows: pa.RecordBatch, first_offset: int) -> Any:
        writer = self.storage.create_tiering_factory().create_writer(WriterContext(self.info, 0))
        count = rows.num_rows
        offsets, times = pa.array(range(first_offset, first_offset + count)), pa.array([0] * count)
        writer.write(ChangeRows(rows, offsets, times, pa.array([int(ChangeType.INSERT)] * count, pa.uint8())))
        return writer.complete()

    def commit_in_lake(self, results: list[Any], end: int, base: int | None) -> tuple[LakeCommitResult, str]:
        path = self.calls.prepare(self.info, {TableBucket(self.info.table_id, 0): end})
        return self.committer(base).commit(results, {OFFSETS_PROPERTY: path}), path

    def tell(self, result: LakeCommitResult, path: str) -> None:
        self.calls.commit(
            self.info,
            result.snapshot_id,
            path,
            readable_path=path if result.is_readable else None,
            earliest_to_keep=result.earliest_snapshot_to_keep,
        )

    def done(self) -> None:
        assert not self.calls.heartbeat(finished=[TieringDone(self.table)]).errors


def rows(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids), "name": [f"row {i}" for i in ids]}, schema=SCHEMA)


def lake_rows(worker: Worker, snapshot_id: int) -> list[dict[str, Any]]:
    source = worker.storage.create_source(PATH)
    found: list[dict[str, Any]] = []
    for split in source.create_planner(snapshot_id).plan():
        with source.create_record_reader(split) as reader:
            found += [row for batch in reader.read() for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["id"])
