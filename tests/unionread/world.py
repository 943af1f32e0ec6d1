"""A minimal server with a lake: tables, rounds of tiering that a test performs, and the expected rows of a read.

`World.tier` does what a tiering worker does: it reads a range of each bucket's log, writes it through the lake's
writers, commits one lake snapshot, and reports it to the server. Objects that cross process boundaries are pickled
here, too.
"""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import forebay
from forebay.base.errors import NotFound
from forebay.client.admin.lake import LakeTieringClient
from forebay.client.connection import Connection
from forebay.client.row_view import RowView
from forebay.client.table import Table
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.casting.conform import conform_array
from forebay.codec.filters import bind, filter_rows
from forebay.lake.formats import create_lake_storage
from forebay.lake.records import ChangeRows
from forebay.lake.storage import LakeStorage
from forebay.lake.tiering import CommitterContext, WriterContext
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket
from forebay.paimon.catalog.catalog import Catalog
from forebay.server.embedded import EmbeddedServer
from forebay.server.server import Injected
from forebay.testing.memory_lake import (
    MemoryLakeStorage,
    commit_as_somebody_else,
    expire_all_but_the_newest,
    forget_lake,
)
from forebay.unionread.plan import UnionPlan
from forebay.unionread.planning import plan_union
from tests.paimon.lake import at_ms

MEMORY, PAIMON, ICEBERG = "memory", "paimon", "iceberg"

SAME_IN_EACH_LAKE = pytest.mark.parametrize(
    "lake", [PAIMON, pytest.param(ICEBERG, marks=pytest.mark.slow)], indirect=True
)
"""For tests of what happens beside the lake, whichever it is: the second one is for `make nightly`."""
TIERED = {"table.datalake.enabled": "true"}
KINDS = {"insert": 1, "update_before": 2, "update_after": 3, "delete": 4}
_names = itertools.count()


class World:
    """A running server, a connection, and the lake behind both."""

    def __init__(self, connection: Connection, storage: LakeStorage, lake: str) -> None:
        self.connection = connection
        self.lake = lake
        self.admin = connection.admin
        self.storage = storage
        self.worker = LakeTieringClient(connection)

    def create(self, schema: Any, **options: Any) -> Table:
        """A tiered table with a name of its own; arguments are those of `create_table`."""
        path = f"fluss.t{next(_names)}"
        given = {**TIERED, **options.pop("options", {})}
        options.setdefault("buckets", 1)
        return self.connection.create_table(path, schema, options=given, **options)

    # ---- tiering ----------------------------------------------------------------------------------------------------

    def tier(self, table: Table, buckets: Iterable[TableBucket] | None = None, *, records: int | None = None) -> int:
        """A round over `buckets` (all), of at most `records` records each; the lake snapshot's id."""
        snapshot_id, path = self.commit_to_lake(table, buckets, records=records)
        self.worker.commit(table.info, snapshot_id, path, readable_path=path, earliest_to_keep=-1)
        return snapshot_id

    def commit_to_lake(
        self, table: Table, buckets: Iterable[TableBucket] | None = None, *, records: int | None = None
    ) -> tuple[int, str]:
        """A round that dies before the server is told: the lake snapshot's id, and the path of its offsets."""
        info = table.info
        try:
            known = self.admin.lake_snapshot(info.path)
            base, held = known.snapshot_id, dict(known.log_offsets)
        except NotFound:
            base, held = None, {}
        wanted = table.buckets() if buckets is None else list(buckets)
        partitions = self.partition_specs(table)
        results, reached = [], dict[TableBucket, int]()
        factory = _travelled(self.storage.create_tiering_factory())
        ends = table.changes("earliest", "latest", buckets=wanted).stop_offsets or {}
        for bucket in wanted:
            start = held.get(bucket, 0)
            stop = ends[bucket] if records is None else min(ends[bucket], start + records)
            reached[bucket] = max(start, stop)
            if start >= stop:
                continue
            partition = None if bucket.partition_id is None else partitions[bucket.partition_id]
            writer = factory.create_writer(_travelled(WriterContext(info, bucket.bucket, partition)))
            for changes in self.changes(table, bucket, start, stop):
                writer.write(changes)
            results.append(_travelled(writer.complete()))
        path = self.worker.prepare(info, reached)
        committer = factory.create_committer(CommitterContext(info, 1, base))
        return committer.commit(results, {"fluss-offsets": path}).snapshot_id, path

    def changes(self, table: Table, bucket: TableBucket, start: int, stop: int) -> Iterator[ChangeRows]:
        """A range of the log as lake writers take it."""
        target = storage_schema(table.schema.columns)
        for batch in table.changes({bucket: start}, {bucket: stop}, include=("change_type", "offset", "timestamp")):
            kinds, offsets, timestamps, *columns = batch.columns
            rows = [conform_array(c, f.type, f.name, truncate=False) for c, f in zip(columns, target, strict=True)]
            codes = [KINDS[kind] if table.has_primary_key else 0 for kind in kinds.to_pylist()]
            yield ChangeRows(
                pa.RecordBatch.from_arrays(rows, schema=target),
                offsets,
                pc.cast(timestamps, pa.int64()),
                pa.array(codes, pa.uint8()),
            )

    def partition_specs(self, table: Table) -> dict[int, dict[str, str]]:
        if not table.info.is_partitioned:
            return {}
        return {p.partition_id: dict(p.spec) for p in table.partitions()}

    # ---- reading ----------------------------------------------------------------------------------------------------

    def plan(self, table: Table, **options: Any) -> UnionPlan:
        return plan_union(table, storage=self.storage, **options)

    def read(self, table: Table, **options: Any) -> pa.Table:
        """A union read whose reader and splits travel to other processes, in both of their forms."""
        plan = self.plan(table, **options)
        reader = _travelled(plan.reader)
        batches = []
        for split in plan.splits:
            moved = reader.codec.decode(plan.reader.codec.encode(_travelled(split)))
            for batch in reader.read(moved, self.connection):
                assert batch.schema.equals(reader.schema)
                batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)

    def rows(self, table: Table, **options: Any) -> Counter[str]:
        """The same as a bag of rows."""
        return bag(self.read(table, **options))


def compact(world: World, table: Table, *, expire: bool = False) -> None:
    """What a job of another engine does; with `expire` it keeps no snapshot but its own."""
    storage = world.storage
    if isinstance(storage, MemoryLakeStorage):
        commit_as_somebody_else(storage, table.path)
        if expire:
            expire_all_but_the_newest(storage, table.path)
    elif isinstance(storage, PaimonLakeStorage):
        lake_table = Catalog.open(storage.options).table(str(table.path))
        lake_table.compact(full=True)
        if expire:
            lake_table.expire_snapshots(retain_min=1, retain_max=1, older_than=at_ms(0))
    else:
        assert isinstance(storage, IcebergLakeStorage)
        with storage.upkeep(table.path) as upkeep:
            upkeep.compact(files_min=1)
            if expire:
                upkeep.expire(older_than="9999-01-01T00:00:00Z", keep=1)


def _travelled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def bag(rows: pa.Table | Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Rows without an order. Rows without columns are counted."""
    if isinstance(rows, pa.Table):
        rows = rows.to_pylist() if rows.num_columns else [{}] * rows.num_rows
    return Counter(map(repr, rows))


def replayed(
    table: Table,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    stop: Mapping[TableBucket, int] | str = "latest",
) -> Counter[str]:
    """What a table holds by its changelog alone, folded row by row."""
    schema = table.schema
    keys = schema.primary_key
    state: dict[Any, Any] = {}
    log = table.changes("earliest", stop, include=("change_type", "bucket", "offset"))
    for batch in log:
        for row in batch.to_pylist():
            kind, bucket, offset = row.pop("_change_type"), row.pop("__bucket"), row.pop("_log_offset")
            parts = tuple(row[k] for k in table.info.descriptor.partition_keys)
            key = tuple(row[k] for k in keys) if keys else (parts, bucket, offset)
            if kind == "delete":
                state.pop(key, None)
            elif kind != "update_before":
                state[key] = row
    rows = pa.Table.from_pylist(list(state.values()), schema=table.arrow_schema)
    if predicate is not None:
        rows = filter_rows(rows, bind(predicate, schema))
    view = RowView(table.info, columns)
    return bag(rows.select(view.schema.names)) if view.schema.names else Counter({"{}": rows.num_rows} if rows else {})


@contextmanager
def world(directory: Path, lake: str) -> Iterator[World]:
    """A server whose tables are tiered into a lake in memory, or into files of Paimon or Iceberg."""
    if lake == MEMORY:
        name = f"union read {next(_names)}"
        settings = {"datalake.format": "paimon", "datalake.paimon.name": name}
        injected = Injected(create_lake_storage=lambda _format, options: MemoryLakeStorage(options))
        storage: LakeStorage = MemoryLakeStorage({"name": name})
    else:
        warehouse = {"warehouse": str(directory / "lake")}
        settings = {"datalake.format": lake, **{f"datalake.{lake}.{k}": v for k, v in warehouse.items()}}
        injected, storage, name = Injected(), create_lake_storage(lake, warehouse), ""
    with (
        EmbeddedServer(directory / "data", settings=settings, injected=injected) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        yield World(connection, storage, lake)
    forget_lake(name)
