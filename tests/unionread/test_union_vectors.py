"""Lake tables with deletion vectors, tiered by other software: their newest rows are readable only after compaction.

Fluss reports two kinds of snapshots of such a table to the cluster. One that was appended holds the log up to its
offsets, and its newest files (level 0) are not read. One that was compacted is readable, with separate offsets, which
may differ between buckets: rows that a compaction has left at level 0 are not in it. `VectorsWorld` plays that part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from forebay import col
from forebay.base.errors import InvalidRequest
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.metadata.table import TableBucket
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.store.schema_changes import SetOption
from forebay.paimon.table import Table as PaimonTable
from forebay.unionread.splits import KvBucketSplit, LakeSnapshotAndLogSplit, LakeSnapshotSplit
from tests.paimon.foreign.conftest import JavaTableOf, java, java_table
from tests.paimon.lake import altered, put
from tests.unionread.world import PAIMON, World, bag, replayed, world

__all__ = ["java", "java_table"]
SCHEMA = pa.schema(
    [pa.field("p", pa.string(), nullable=False), pa.field("id", pa.int64(), nullable=False), ("v", pa.string())]
)
WRITE_ONLY = {"write-only": "true"}
PLAIN = {"paimon.forebay.system-columns": "false"}
Offsets = Mapping[TableBucket, int]


class VectorsWorld:
    """A stream table, its lake table with deletion vectors, and a writer that tiers it as Fluss does."""

    def __init__(self, running: World) -> None:
        self.running = running
        keys = {"primary_key": ["p", "id"], "partition_keys": ["p"]}
        self.table = running.create(SCHEMA, **keys, buckets=2, options=PLAIN)
        assert isinstance(running.storage, PaimonLakeStorage)
        self.catalog = Catalog.open(running.storage.options)
        self.name = str(self.table.path)
        altered(self.lake, [SetOption("deletion-vectors.enabled", "true")])

    @property
    def lake(self) -> PaimonTable:
        return self.catalog.table(self.name)

    def ends(self) -> Offsets:
        return dict(self.table.changes("earliest", "latest").stop_offsets or {})

    def tell(self, snapshot_id: int, tiered: Offsets, readable: Offsets | None = None) -> None:
        worker, info = self.running.worker, self.table.info
        path = worker.prepare(info, tiered)
        readable_path = None if readable is None else worker.prepare(info, readable)
        worker.commit(info, snapshot_id, path, readable_path=readable_path, earliest_to_keep=-1)

    def upsert(self, *rows: tuple[str, int, str]) -> pa.Table:
        data = pa.Table.from_pylist([dict(zip(["p", "id", "v"], r, strict=True)) for r in rows], SCHEMA)
        self.table.upsert(data)
        return data

    def check(self) -> None:
        table, running = self.table, self.running
        assert running.rows(table) == replayed(table)
        assert running.rows(table, ordered=True) == replayed(table)
        for predicate in (col("v") == "old", col("v") != "old", col("p") == "a", col("id") > 7):
            assert running.rows(table, filter=predicate) == replayed(table, None, predicate)


@pytest.fixture
def vectors(tmp_path: Path) -> Iterator[VectorsWorld]:
    with world(tmp_path, PAIMON) as running:
        yield VectorsWorld(running)


def old(partition: str, ids: range) -> list[tuple[str, int, str]]:
    return [(partition, i, "old") for i in ids]


Write = Callable[[pa.Table, Sequence[str] | None], int]


def tier_and_check(vectors: VectorsWorld, write: Write, compact: Callable[[str], int]) -> None:
    """Rounds with compactions that lag behind them, and union reads in between. `compact` takes a partition."""
    table, running = vectors.table, vectors.running
    first = vectors.upsert(*old("a", range(10)), *old("b", range(10)))
    before = vectors.ends()
    vectors.tell(write(first, None), before)
    vectors.check()
    assert {type(s) for s in running.plan(table).splits} == {KvBucketSplit}
    compact("a")
    readable = compact("b")
    vectors.tell(readable, before, before)
    vectors.check()
    assert {type(s) for s in running.plan(table).splits} == {LakeSnapshotSplit}

    second = vectors.upsert(*(("a", i, "new") for i in range(5, 14)), *(("b", i, "new") for i in range(5, 14)))
    table.delete([{"p": "a", "id": 0}, {"p": "b", "id": 0}])
    gone = pa.Table.from_pylist([{"p": p, "id": 0, "v": "old"} for p in "ab"], SCHEMA)
    appended = write(pa.concat_tables([second, gone]), ["+I"] * len(second) + ["-D"] * 2)
    after = vectors.ends()
    vectors.tell(appended, after)
    plan = running.plan(table)
    assert plan.facts.snapshot_id == readable != appended
    assert {s.start for s in plan.splits if isinstance(s, LakeSnapshotAndLogSplit)} == set(before.values())
    vectors.check()

    half = compact("a")
    names = {p.partition_id: p.name for p in table.partitions()}
    own = {b: after[b] if names[b.partition_id or 0] == "a" else before[b] for b in after}
    vectors.tell(half, after, own)
    assert running.plan(table).facts.snapshot_id == half
    vectors.check()
    vectors.upsert(("a", 3, "newest"), ("b", 3, "newest"), ("b", 0, "back"))
    table.delete([{"p": "a", "id": 7}])
    vectors.check()


def test_the_readable_snapshot_of_a_table_with_vectors_is_read_with_its_own_offsets(vectors: VectorsWorld) -> None:
    def write(data: pa.Table, kinds: Sequence[str] | None) -> int:
        lake = vectors.lake.with_options(WRITE_ONLY)
        made = put(lake, data.cast(arrow_schema(lake.schema.fields)), kinds)
        assert made is not None
        return made.id

    def compact(partition: str) -> int:
        made = vectors.lake.compact(full=True, partitions=[{"p": partition}])
        assert made is not None
        return made.id

    tier_and_check(vectors, write, compact)
    with pytest.raises(InvalidRequest, match="deletion vectors"):
        vectors.running.storage.create_tiering_factory().validate(vectors.table.info)


@pytest.mark.foreign
@pytest.mark.slow
def test_vectors_that_java_writes_are_applied(vectors: VectorsWorld, java_table: JavaTableOf) -> None:
    assert isinstance(vectors.catalog, FileSystemCatalog)
    paimon = java_table(vectors.catalog, vectors.name)
    table, running = vectors.table, vectors.running
    for number in range(5):
        # The first files are much larger than the later ones, so they are not rewritten with them.
        ids = range(4 * number, 4 * number + (10 if number else 500))
        data = vectors.upsert(*((p, i, f"v{number} of {i}") for p in "ab" for i in ids))
        ends = vectors.ends()
        if number % 2:
            vectors.tell(paimon.write(vectors.lake.schema, data, options=WRITE_ONLY), ends)
            assert running.plan(table).facts.snapshot_id != vectors.lake.context.snapshots.latest_id()
        else:
            # Java's compaction for lookups leaves vectors on the files whose rows it overrides.
            paimon.write(vectors.lake.schema, data, wait_compaction=True)
            newest = vectors.lake.context.snapshots.latest()
            assert newest is not None
            assert newest.commit_kind == "COMPACT"
            vectors.tell(newest.id - 1, ends)
            vectors.tell(newest.id, ends, ends)
            assert running.plan(table).facts.snapshot_id == newest.id
        vectors.check()
    assert has_vectors(vectors.lake)


def has_vectors(lake: PaimonTable) -> bool:
    latest = lake.context.snapshots.latest()
    return latest is not None and latest.index_manifest is not None


def test_a_table_with_vectors_can_be_read_from_the_lake_alone(vectors: VectorsWorld) -> None:
    data = vectors.upsert(*old("a", range(10)))
    put(vectors.lake.with_options(WRITE_ONLY), data.cast(arrow_schema(vectors.lake.schema.fields)))
    compacted = vectors.lake.compact(full=True)
    assert compacted is not None
    vectors.tell(compacted.id, vectors.ends(), vectors.ends())
    vectors.upsert(("a", 1, "later"))
    assert vectors.running.rows(vectors.table, lake_only=True) == bag(data)
