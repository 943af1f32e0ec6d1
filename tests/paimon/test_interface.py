"""The user interface: error messages for mistakes, notebook displays, progress of long operations."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.predicate import col
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.snapshot_planner import SnapshotPlanner
from forebay.paimon.table import Table
from tests.paimon.lake import at_ms, live_files, new_catalog, put, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("size", pa.struct([("wide", pa.int32())]))])


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


@pytest.fixture
def table(catalog: FileSystemCatalog) -> Table:
    """A keyed table of three commits, not compacted."""
    made = catalog.create_table(
        "db.t", COLUMNS, primary_key=["id"], options={"bucket": 2, "write-only": True}, comment="<b>"
    )
    for i in range(3):
        put(made, [{"id": n, "name": f"n{i}"} for n in range(10 * i, 10 * i + 20)])
    return made


def test_the_names_for_users_are_there_without_loading_more() -> None:
    import forebay.paimon

    assert (forebay.paimon.Catalog, forebay.paimon.Table) == (Catalog, Table)
    with pytest.raises(AttributeError, match="no attribute 'Tabel'"):
        _ = forebay.paimon.Tabel


def test_options_may_be_numbers_and_truth_values(table: Table) -> None:
    assert table.schema.options == {"bucket": "2", "write-only": "true"}
    assert table.with_options({"manifest.merge-min-count": 7}).context.options.manifest_merge_min_count == 7


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda t: t.scan("id"), r"columns is a list of names, got the text 'id': write \['id'\]"),
        (lambda t: t.scan(["nmae"]), "no column 'nmae'; columns are id, name, size; did you mean 'name'"),
        (lambda t: t.scan(["size.wid"]), "'size' has no field 'wid'; its fields are wide; did you mean 'wide'"),
        (lambda t: t.scan(filter=5), r"filter=5 is not a filter: write forebay\.col"),
        (lambda t: t.scan(filter="id >"), "filter 'id >' is not SQL"),
        (lambda t: t.scan(filter=pc.field("id") + 1 > 5), "cannot be pushed down"),
        (lambda t: t.scan(filter=col("id") > 5 and col("id") < 9), "filters are joined by & and |"),
        (lambda t: t.scan(filter=~(col("id") > 5)), "cannot be turned around by ~"),
        (lambda t: t.scan(limit=-1), "limit=-1 is not a number of rows; give a whole number, 0 or more"),
        (lambda t: t.scan(limit="3"), "limit='3' is not a number of rows"),
        (lambda t: t.with_options({"scan.mode": "latest"}).scan(limit=1.5), "limit=1.5 is not a number of rows"),
        (lambda t: t.scan(as_of="one"), "as_of='one' is neither a tag of .*; a snapshot's number is an int"),
        (lambda t: t.scan(as_of=1.5), "as_of=1.5 means no snapshot: give a snapshot's number, a tag's name"),
        (lambda t: t.scan(as_of=True), "as_of=True means no snapshot"),
        (lambda t: t.scan(source="log"), "has no source but the lake"),
        (lambda t: t.scan(buckets="0"), "buckets='0': buckets are whole numbers, 0 or more"),
        (lambda t: t.scan(partitions="x").plan(), "is not partitioned"),
        (lambda t: t.partitions(), "is not partitioned"),
        (lambda t: t.create_partition({"id": 1}), "has the partitions that rows were written to; write rows"),
        (lambda t: t.rescale("4"), "buckets is a whole number, got '4'"),
        (lambda t: t.changes(buckets="0"), "buckets are whole numbers, 0 or more; got '0'"),
        (lambda t: t.changes(buckets=[-1]), "buckets are whole numbers, 0 or more; got -1"),
        (lambda t: t.system("files").read(["file_pth"]), "no column 'file_pth'; .*; did you mean 'file_path'"),
        (lambda t: t.scan(as_of=9), "snapshot 9 of .* does not exist; there are 1 to 3$"),
        (lambda t: t.with_options({"scan.snapshotid": "1"}), "no option 'scan.snapshotid'; .* 'scan.snapshot-id'"),
        (lambda t: t.with_options({"write_only": "true"}), "did you mean 'write-only'"),
        (lambda t: t.with_options({"bucket": None}), "option 'bucket' is None: give a text, a number, True or False"),
        (lambda t: t.upsert([{"id": 1, "nane": "x"}]), "column 'nane', which is none of id, name, size; did you mean"),
        (lambda t: t.lookup([{"name": "x"}]), "column 'name', which is none of id"),
        (lambda t: t.changes({"x": 1}), "this is no state of a stream"),
        (lambda t: t.changes("x"), "start='x' is none of 'earliest', 'latest', 'full', nor a time"),
        (lambda t: t.changes(1.5), "start=1.5 is no place to begin"),
        (lambda t: t.changes(stop=7), "stop=7 is no place to end"),
        (lambda t: t.changes(stop="earliest"), "stop='earliest' is none of 'latest', nor a time"),
        (lambda t: t.changes(partitions="x"), "the table is not partitioned"),
        (lambda t: t.changes(include=["offset"]), "a lake has no offsets"),
        (lambda t: t.changes().to_arrow(), "have no end: give stop='latest'"),
        (lambda t: t.analyze("id"), "columns is a list of names"),
        (lambda t: t.compact(order_by="id"), "order_by is a list of names"),
        (lambda t: t.expire_snapshots(retain_max=0), "retain_max must be at least 1"),
        (lambda t: t.on_branch("b"), "or it has no branch 'b'"),
        (lambda t: t.create_tag("x", snapshot=9), "snapshot 9 of"),
    ],
)
def test_mistakes_are_answered_with_what_to_write(table: Table, act: Callable[[Table], Any], says: str) -> None:
    with pytest.raises((InvalidRequest, NotFound, UnsupportedOperation), match=says):
        act(table)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"primary_key": 7}, "primary_key=7: 7 is not a name"),
        ({"partition_keys": ["name", 7]}, "partition_keys=.*: 7 is not a name"),
        ({"primary_key": "nope"}, "'nope' of the primary key is no column"),
        ({"buckets": "two"}, "buckets is a whole number, got 'two'"),
        ({"buckets": 2, "options": {"bucket": 3}}, "option 'bucket' is '3', and the argument for it says '2'"),
        ({"options": {"bukket": 2}}, "there is no option 'bukket'; did you mean 'bucket'"),
        ({"options": {"merge-engin": "aggregation"}}, "did you mean 'merge-engine'"),
    ],
)
def test_definitions_are_checked_for_slips(catalog: FileSystemCatalog, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        catalog.create_table("db.x", COLUMNS, **given)
    assert catalog.list_tables("db") == []


def test_options_of_others_are_kept(catalog: FileSystemCatalog) -> None:
    given = {"owner": "me", "fields.name.stats-mode": "none", "parquet.page.size": "4096", "scan.parallelism": "4"}
    assert catalog.create_table("db.x", COLUMNS, options=given).schema.options == given


def test_a_system_table_asked_of_the_catalog_is_shown_the_way(catalog: FileSystemCatalog) -> None:
    with pytest.raises(InvalidRequest, match=r"table\('db.t'\)\.system\('files'\)"):
        catalog.table("db.t$files")


def test_messages_about_tables_of_files_carry_no_codes_of_a_protocol(table: Table) -> None:
    for act in (lambda: table.scan(["x"]), lambda: table.scan(as_of="x"), lambda: table.scan(as_of=9)):
        with pytest.raises((InvalidRequest, NotFound)) as told:
            act()
        assert "[" not in str(told.value)
        assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)


def test_a_table_shows_itself_in_a_notebook_without_reading(table: Table) -> None:
    shown = table._repr_html_()
    for part in ("db.t", "primary-key table", "BIGINT NOT NULL", "write-only", "&lt;b&gt;", table.context.paths.root):
        assert part in shown
    assert "<b>&lt;" not in shown.replace("<b>db.t", "")


def test_a_catalog_says_what_it_is_and_where(catalog: FileSystemCatalog) -> None:
    assert repr(catalog) == f"FileSystemCatalog({catalog.warehouse!r})"
    assert catalog.warehouse in catalog._repr_html_()


def test_a_table_pickles_for_workers(table: Table) -> None:
    sent = pickle.dumps(table.with_options({"manifest.merge-min-count": "5"}))
    received = pickle.loads(sent)
    assert len(sent) < 1000
    assert (received.context.options.manifest_merge_min_count, rows_of(received)) == (5, rows_of(table))
    (task, *_) = received.plan_compaction(full=True)
    table.new_commit().commit([pickle.loads(pickle.dumps(received.run_compaction(task)))])


def test_a_tag_keeps_a_snapshot_under_a_name(table: Table) -> None:
    table.create_tag("second", 2)
    table.create_tag("now")
    assert [(t.name, t.snapshot.id) for t in table.context.tags.tags()] == [("second", 2), ("now", 3)]
    table.expire_snapshots(retain_min=1, retain_max=1, older_than=at_ms(0))
    assert len(rows_of(table, as_of="second")) == 30
    table.delete_tag("second")
    with pytest.raises(NotFound, match=r"as_of='second' is neither a tag of .* \(tags: now\)"):
        table.scan(as_of="second")


def test_a_table_without_snapshots_has_nothing_to_tag(catalog: FileSystemCatalog) -> None:
    with pytest.raises(NotFound, match="nothing was written yet"):
        catalog.create_table("db.x", COLUMNS).create_tag("x")


def test_a_plan_says_which_parts_of_a_filter_are_settled(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.x", COLUMNS, partition_keys=["name"])
    where = (col("name") == "a") & (col("id") > 1)
    for rows in ([], [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]):
        put(table, rows)
        plan = SnapshotPlanner(table.context).plan(table.context.snapshots.latest(), ScanFilter.of(table.schema, where))
        assert (plan.accepted, plan.remaining) == ((col("name") == "a",), (col("id") > 1,))
        said = table.scan(filter=where).explain()
        assert "settled by the choice of partitions: name = 'a'" in said
        assert "tested row by row: id > 1" in said


# ---- progress -------------------------------------------------------------------------------------------------------


class Heard:
    """Remembers what work told, and checks that it only went forward."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        assert total == 0 or 0 <= done <= total
        self.told.append((done, total))

    @property
    def last(self) -> tuple[int, int]:
        known = [pair for pair in self.told if pair[1]]
        assert known == sorted(known)
        return known[-1]


def test_long_work_tells_how_far_it_is(table: Table) -> None:
    compacting, rescaling, analyzing, expiring, removing = (Heard() for _ in range(5))
    table.compact(full=True, progress=compacting)
    assert compacting.last == (60, 60), "rows before merging"
    rescaled = table.rescale(3, progress=rescaling)
    assert rescaling.last == (40, 40), "rows"
    rescaled.analyze(["id"], progress=analyzing)
    assert analyzing.last == (40, 40), "rows"
    rescaled.expire_snapshots(retain_min=1, retain_max=1, older_than=at_ms(0), progress=expiring)
    assert expiring.last == (5, 5), "snapshots"
    rescaled.remove_orphan_files(dry_run=True, progress=removing)
    assert removing.told, "snapshots and files"


def test_a_callback_that_fails_stops_the_work_and_leaves_no_files(table: Table) -> None:
    def failing(done: int, _total: int) -> None:
        if done:
            raise RuntimeError("enough")

    before = sorted(f.file_name for f in live_files(table))
    with pytest.raises(RuntimeError, match="enough"):
        table.compact(full=True, progress=failing)
    on_disk = sorted(p.name for p in Path(table.context.paths.root).glob("bucket-*/*"))
    assert on_disk == sorted(f.file_name for f in live_files(table)) == before
    with pytest.raises(RuntimeError, match="enough"):
        table.rescale(3, progress=failing)
    assert len(rows_of(table)) == 40
    assert sorted(p.name for p in Path(table.context.paths.root).glob("bucket-*/*")) == before
