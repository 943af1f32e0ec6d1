"""The number of files that reads and commits open, and what of them is cached."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay import col
from forebay.paimon.format.file_meta import FileKind, ManifestEntry
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.snapshot_planner import SnapshotPlanner
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import ManifestCache, ManifestStore
from forebay.paimon.store.schemas import SchemaManager
from tests.paimon.commit.tables import FAST, Table, append, data_file, partition
from tests.paimon.failing import FailingFileIO
from tests.paimon.lake import new_catalog, put


class CountingIO(FailingFileIO):
    """Counts operations, by the kind of file: the word that its name begins with."""

    def __init__(self) -> None:
        super().__init__(FAST)
        self.counts: Counter[str] = Counter()

    def _plan(self, operation: str, path: str) -> Any:
        kind = path.rpartition("/")[2].rstrip("0123456789").rstrip("-")
        kind = "list" if "manifest-list" in kind else kind.partition("-")[0]
        self.counts[f"{operation} {kind}"] += 1
        return super()._plan(operation, path)


def a_history(tmp_path: Path, commits: int) -> Table:
    """A table with as many snapshots and manifests, each of a partition of its own."""
    table = Table.create(tmp_path, options={"manifest.merge-min-count": "1000"})
    committer = table.commit()
    for i in range(commits):
        committer.commit([append(f"f{i}", dt=f"p{i:03}")], i + 1)
    return table


def entries(count: int) -> list[ManifestEntry]:
    return [ManifestEntry(FileKind.ADD, partition(), 0, 2, data_file(f"f{i}")) for i in range(count)]


@pytest.mark.parametrize(
    ("wanted", "read"), [(["a"], 1), (["c"], 2), ([None], 2), (["a", None], 3), (["d"], 1), (["z"], 0), ([], 0)]
)
def test_manifests_without_the_wanted_partitions_are_not_read(
    tmp_path: Path, wanted: list[str | None], read: int
) -> None:
    """There is no partition d, but the third manifest has others on both sides of it."""
    columns = pa.schema([("id", pa.int64()), ("p", pa.string())])
    table = new_catalog(tmp_path).create_table(
        "db.t", columns, partition_keys=["p"], options={"manifest.merge-min-count": "99"}
    )
    for partitions in (["a"], ["c"], [None, "c", "e"], [None]):
        put(table, [{"id": 1, "p": p} for p in partitions])
    snapshot = table.context.snapshots.latest()
    assert snapshot is not None
    layout = table.context.manifests.partitions
    chosen = {layout.encode_one([p]) for p in wanted}
    io = CountingIO()
    store = ManifestStore(io, table.context.paths, table.schema)
    manifests = store.data_manifests(snapshot)
    found = list(store.entries(manifests, chosen))
    expected = {"a": 1, "c": 2, None: 2}
    assert sorted(layout.decode(e.partition)[0] or "" for e in found) == sorted(
        (p or "") for p in wanted for _ in range(expected.get(p, 0))
    )
    assert io.counts["read manifest"] == read
    live = ManifestStore(CountingIO(), table.context.paths, table.schema).live_files(snapshot, chosen)
    assert {e.file.file_name for e in live} == {e.file.file_name for e in found}


@pytest.mark.parametrize("commits", [5, 40])
def test_a_commit_does_not_read_more_the_longer_the_history_is(tmp_path: Path, commits: int) -> None:
    table = a_history(tmp_path, commits)
    io = CountingIO()
    table.commit(io=io).commit([append("new", dt="p000", bucket=1)])
    kinds = ("read LATEST", "read snapshot", "list snapshot", "read list", "read manifest")
    assert [io.counts[kind] for kind in kinds] == [1, 1, 0, 2, 1]


def test_a_second_commit_reads_no_list_that_the_first_one_wrote(tmp_path: Path) -> None:
    table = a_history(tmp_path, 3)
    io = CountingIO()
    committer = table.commit(io=io)
    committer.commit([append("new", dt="p000")], 100)
    io.counts.clear()
    committer.commit([append("newer", dt="p000")], 101)
    assert io.counts["read list"] == 0
    assert table.files() == ["f0", "f1", "f2", "new", "newer"]


def test_a_plan_opens_only_manifests_of_partitions_that_may_match(tmp_path: Path) -> None:
    table = a_history(tmp_path, 12)
    io = CountingIO()
    context = TableContext(io, table.paths, table.schema, SchemaManager(io, table.paths))
    planner = SnapshotPlanner(context)
    some = ScanFilter.of(table.schema, col("dt").is_in(["p003", "p007"]))
    names = [f.file_name for s in planner.plan(context.snapshots.latest(), some).splits for f in s.files]
    assert names == ["f3", "f7"]
    assert io.counts["read manifest"] == 2
    planner.plan(context.snapshots.latest(), some)
    assert io.counts["read manifest"] == 2, "what was read stays in memory"


def test_what_was_written_is_read_back_from_files_and_from_memory(tmp_path: Path) -> None:
    table = Table.create(tmp_path)
    store = ManifestStore(FAST, table.paths, table.schema)
    manifests = store.write(entries(3))
    name, _ = store.write_list(manifests)
    assert store.read_list(name) == ManifestStore(FAST, table.paths, table.schema).read_list(name) == manifests
    assert store.read(manifests[0].file_name) == entries(3)


def test_memory_for_manifests_is_bounded(tmp_path: Path) -> None:
    table = Table.create(tmp_path)
    io = CountingIO()
    writer = ManifestStore(io, table.paths, table.schema)
    names = [m.file_name for _ in range(10) for m in writer.write(entries(50))]
    small = ManifestStore(io, table.paths, table.schema, ManifestCache(100_000))
    for name in names:
        small.rows(name)
    io.counts.clear()
    small.rows(names[-1])
    assert io.counts["read manifest"] == 0
    small.rows(names[0])
    assert io.counts["read manifest"] == 1, "the oldest made room for newer ones"
    nothing = ManifestStore(io, table.paths, table.schema, ManifestCache(0))
    assert [e.file.file_name for e in nothing.read(names[0])] == [f"f{i}" for i in range(50)]
