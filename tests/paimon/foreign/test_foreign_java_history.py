"""A table's history, written by both sides in turn: schema changes, compaction, conflicts, tags, branches, expiry."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import Conflict, ForebayError, NotFound
from forebay.metadata import types
from forebay.metadata.types import DataType, RowField
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.commit.committer import Committable
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.types_json import format_type
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.schema_changes import AddColumn, DropColumn, RenameColumn, SchemaChange, UpdateColumnType
from forebay.paimon.table import Table
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaError, JavaTable, Plain, sorted_rows
from tests.paimon.lake import new_catalog

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

_COLUMNS = {"id": types.int_(), "v": types.string()}
_KEYED: dict[str, Any] = {"primary_keys": ["id"], "options": {"bucket": "2"}}
_WRITE_ONLY = {"write-only": "true"}


def _data(table: Table, *rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(table.schema.names, row, strict=True)) for row in rows], schema=arrow_schema(table.schema.fields)
    )


def _numbered(table: Table, numbers: range, text: str = "v") -> pa.Table:
    return _data(table, *((i, f"{text}{i}") for i in numbers))


def _agree(table: Table, java: JavaTable) -> list[list[Plain]]:
    """The rows that both sides read."""
    table = table.refreshed()
    ours = sorted_rows(table.schema, table.read().read_all())
    assert ours == java.rows()
    return ours


def _write_in_turn(table: Table, java: JavaTable, commits: int) -> None:
    for i in range(commits):
        data = _numbered(table, range(i, i + 10), f"c{i} ")
        if i % 2:
            java.write(table.schema, data, options=_WRITE_ONLY)
        else:
            table.with_options(_WRITE_ONLY).write(data)


# ---- schemas --------------------------------------------------------------------------------------------------------

_WIDENED: list[tuple[DataType, DataType, list[Any]]] = [
    (types.tinyint(), types.bigint(), [-128, 127, None]),
    (types.int_(), types.double(), [-(2**31), 7, None]),
    (types.int_(), types.decimal(20, 3), [-5, 2**31 - 1]),
    (types.int_(), types.string(), [-5, 0]),
    (types.bigint(), types.float_(), [2**40, -1]),
    (types.float_(), types.double(), [0.1, -2.5, float("inf")]),
    (types.float_(), types.string(), [0.1, 1e10, 1.5e-7, float("nan")]),
    (types.double(), types.string(), [0.1, 1e21, 1e-5, 100.0, float("-inf")]),
    (types.double(), types.decimal(12, 2), [1.005, -2.675, 3.0]),
    (types.decimal(10, 2), types.decimal(20, 4), [Decimal("1.25"), Decimal("-99999999.99")]),
    (types.decimal(10, 2), types.string(), [Decimal("1.20"), Decimal("-0.05")]),
    (types.decimal(10, 2), types.double(), [Decimal("1.20"), Decimal("-0.05")]),
    (types.string(), types.int_(), ["12", "-7", "+3", "12.9", "-1.5", ".5", None]),
    (types.string(), types.bigint(), ["9223372036854775807", "-9223372036854775808.99", None]),
    (types.string(), types.decimal(10, 2), ["1.5", "-2.345", "1e3", None]),
    (types.string(), types.double(), ["1.5", "-1e3", " 2 "]),
    (types.string(), types.time(3), ["01:02:03", "23:59:59.5"]),
    (types.string(), types.timestamp_ltz(3), ["2024-02-29 12:34:56"]),
    (types.bigint(), types.int_(), [2**40 + 5, -1]),
    (types.double(), types.int_(), [1e20, -2.9, float("nan")]),
    (types.bigint(), types.boolean(), [0, 5]),
    (types.bigint(), types.timestamp(3), [0, 86400]),
    (types.decimal(20, 4), types.decimal(6, 1), [Decimal("1.25"), Decimal("12345.67"), Decimal("-0.05")]),
    (types.decimal(20, 4), types.int_(), [Decimal("1.99"), Decimal("-1.99")]),
    (types.bytes_(), types.string(), [b"abc", "é".encode()]),
    (types.array(types.int_()), types.string(), [[1, None, 3], []]),
    (types.map_(types.string().not_null(), types.int_()), types.string(), [[("a", 1)], []]),
    (types.timestamp_ltz(6), types.string(), [datetime.datetime(2024, 1, 2, 3, 4, 5, 60, datetime.UTC)]),
    (types.timestamp(6), types.timestamp_ltz(3), [datetime.datetime(2024, 1, 2, 3, 4, 5, 60)]),
    (types.timestamp(6), types.timestamp(9), [datetime.datetime(2024, 1, 2, 3, 4, 5, 60)]),
    (types.timestamp(9), types.timestamp(3), [datetime.datetime(2024, 1, 2, 3, 4, 5, 60)]),
    (types.string(), types.char(3), ["abcdef", "x"]),
    (types.bytes_(), types.binary(3), [b"abcdef", b"x"]),
    (types.string(), types.date(), ["2024-02-29", None]),
    (types.string(), types.timestamp(3), ["2024-02-29 12:34:56.789", "2024-02-29"]),
    (types.string(), types.boolean(), ["true", "n", "1"]),
    (types.string(), types.bytes_(), ["é", ""]),
    (types.boolean(), types.string(), [True, False]),
    (types.boolean(), types.int_(), [True, False]),
    (types.date(), types.timestamp(6), [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
    (types.date(), types.string(), [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
    (types.time(3), types.string(), [datetime.time(1, 2, 3), datetime.time(1, 2, 3, 40_000)]),
    (types.timestamp(3), types.timestamp(6), [datetime.datetime(1969, 1, 1, 0, 0, 0, 1000)]),
    (types.timestamp(6), types.string(), [datetime.datetime(2024, 1, 2, 3, 4, 5, 60), datetime.datetime(2024, 1, 2)]),
    # Java 1.4 rounds timestamps before 1970 up to the next day; later releases take the day, and so do we.
    (types.timestamp(3), types.date(), [datetime.datetime(1970, 1, 1, 23, 59), datetime.datetime(2024, 1, 2, 3)]),
    (types.timestamp(3), types.string(), [datetime.datetime(1969, 12, 31, 23, 59), datetime.datetime(2024, 1, 2, 3)]),
]


@pytest.mark.parametrize("pair", _WIDENED, ids=lambda p: f"{p[0]} to {p[1]}")
@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_old_files_are_read_under_a_new_type_as_java_does(
    tmp_path: Path, java_table: JavaTableOf, pair: tuple[DataType, DataType, list[Any]], by: str
) -> None:
    old, new, values = pair
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", {"id": types.int_(), "v": old})
    java = java_table(catalog, "db.t")
    _by(by, table, java, _data(table, *enumerate(values)))
    options = {"disable-explicit-type-casting": "false"}
    try:
        java.ask("alter", changes=[["type", "v", format_type(new)]], options=options)
    except JavaError as refused:
        with pytest.raises(ForebayError):
            table.alter([UpdateColumnType(("v",), new)])
        pytest.skip(f"Java refuses this change, and so do we: {refused.message}")
    assert len(_agree(table, java)) == len(values)


def _by(who: str, table: Table, java: JavaTable, data: pa.Table, kinds: list[str] | None = None) -> None:
    if who == "ours":
        table.write(data, kinds)
    else:
        java.write(table.schema, data, kinds)


_NESTED = {
    "id": types.int_(),
    "a": types.int_(),
    "b": types.string(),
    "n": types.row(RowField("x", types.int_(), None, 0), RowField("y", types.string(), None, 0)),
    "list": types.array(types.row(RowField("p", types.int_(), None, 0), RowField("q", types.string(), None, 0))),
    "map": types.map_(types.string().not_null(), types.row(RowField("s", types.int_(), None, 0))),
}


def _nested_row(i: int) -> tuple[Any, ...]:
    return (i, i, f"b{i}", {"x": i, "y": f"y{i}"}, [{"p": i, "q": "q"}, None], [("k", {"s": i}), ("none", None)])


@pytest.mark.parametrize("changed_by", ["ours", "theirs"])
@pytest.mark.parametrize("written_by", ["ours", "theirs"])
@pytest.mark.parametrize("definition", [{}, _KEYED], ids=["append", "keyed"])
def test_columns_come_go_and_are_renamed_at_all_depths(
    tmp_path: Path, java_table: JavaTableOf, changed_by: str, written_by: str, definition: dict[str, Any]
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _NESTED, **definition)
    java = java_table(catalog, "db.t")
    _by(written_by, table, java, _data(table, *(_nested_row(i) for i in range(5))))
    steps: list[list[tuple[list[Any], SchemaChange]]] = [
        [
            (["add", "c", "DOUBLE"], AddColumn(("c",), types.double())),
            (["rename", "a", "aa"], RenameColumn(("a",), "aa")),
            (["drop", "b"], DropColumn(("b",))),
        ],
        [
            (["add", "n/z", "BIGINT"], AddColumn(("n", "z"), types.bigint())),
            (["rename", "n/x", "xx"], RenameColumn(("n", "x"), "xx")),
            (["drop", "n/y"], DropColumn(("n", "y"))),
            (["add", "list/element/r", "INT"], AddColumn(("list", "element", "r"), types.int_())),
            (["drop", "map/value/s"], DropColumn(("map", "value", "s"))),
        ][:4],
        [
            (["add", "a", "STRING"], AddColumn(("a",), types.string())),  # an old name for a new column
            (["type", "aa", "BIGINT"], UpdateColumnType(("aa",), types.bigint())),
        ],
    ]
    for number, step in enumerate(steps, 1):
        if changed_by == "ours":
            table = table.alter([change for _, change in step])
        else:
            java.ask("alter", changes=[change for change, _ in step])
            table = table.refreshed()
        _agree(table, java)
        first = pa.Table.from_pylist([{"id": 10 * number}], schema=arrow_schema(table.schema.fields))
        _by(written_by, table, java, first)
        assert len(_agree(table, java)) == 5 + number
    if definition:
        java.ask("compact", full=True)
        assert len(_agree(table, java)) == 8


# ---- compaction and conflicts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("definition", [{}, _KEYED, {"options": {"bucket": "2", "bucket-key": "id"}}])
def test_compaction_by_either_side_is_read_and_built_upon_by_both(
    tmp_path: Path, java_table: JavaTableOf, definition: dict[str, Any]
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, **definition)
    java = java_table(catalog, "db.t")
    _write_in_turn(table, java, 6)
    before = _agree(table, java)
    java.ask("compact", full=True)
    assert _agree(table, java) == before
    latest = table.snapshots.latest()
    assert latest is not None
    assert latest.commit_kind.name == "COMPACT"
    _write_in_turn(table, java, 3)
    before = _agree(table, java)
    table.compact(full=True)
    assert _agree(table, java) == before
    _write_in_turn(table, java, 4)
    before = _agree(table, java)
    java.ask("compact", full=False)
    assert _agree(table, java) == before
    if definition == _KEYED:
        java.write(table.schema, _numbered(table, range(3)), ["-D"] * 3, options=_WRITE_ONLY)
        assert sorted(row[0] for row in _agree(table, java))[:3] == [3, 4, 5]
        table.compact(full=True)
        assert sorted(row[0] for row in _agree(table, java))[:3] == [3, 4, 5]


def test_a_compaction_of_ours_loses_against_one_of_java(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, **_KEYED)
    java = java_table(catalog, "db.t")
    _write_in_turn(table, java, 4)
    before = _agree(table, java)
    from forebay.paimon.compact.tasks import CompactPlanner, run_task

    planner = CompactPlanner(table.context, table.snapshots, table.manifests)
    messages = [run_task(table.context, task) for task in planner.plan(full=True)]
    java.ask("compact", full=True)
    with pytest.raises(Conflict):
        table.new_commit().commit(messages)
    assert _agree(table, java) == before


@pytest.mark.parametrize("definition", [{}, _KEYED], ids=["append", "keyed"])
def test_a_compaction_of_java_loses_against_one_of_ours(
    tmp_path: Path, java_table: JavaTableOf, definition: dict[str, Any]
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, **definition)
    java = java_table(catalog, "db.t")
    _write_in_turn(table, java, 6)
    before = _agree(table, java)
    java.ask("prepare", name="late", full=True)
    table.compact(full=True)
    with pytest.raises(JavaError, match="conflict"):
        java.ask("commit", name="late")
    assert _agree(table, java) == before


@pytest.mark.parametrize("definition", [{}, _KEYED], ids=["append", "keyed"])
def test_work_prepared_by_one_side_follows_what_the_other_committed_meanwhile(
    tmp_path: Path, java_table: JavaTableOf, definition: dict[str, Any]
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, **definition).with_options(_WRITE_ONLY)
    java = java_table(catalog, "db.t")
    _write_in_turn(table, java, 6)
    java.write(table.schema, _numbered(table, range(100, 103)), op="prepare", name="rows", options=_WRITE_ONLY)
    table.write(_numbered(table, range(200, 203)))
    java.ask("commit", name="rows")
    java.ask("prepare", name="compaction", full=True)
    table.write(_numbered(table, range(300, 303)))
    before = _agree(table, java)
    java.ask("commit", name="compaction")
    assert _agree(table, java) == before
    with table.new_write() as writer:
        writer.write(_numbered(table, range(400, 403)))
        messages = writer.prepare_commit()
    java.ask("compact", full=True)
    table.new_commit().commit(messages)
    assert len(_agree(table, java)) == len(before) + 3


def test_a_rescale_is_respected_by_both(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, **_KEYED)
    java = java_table(catalog, "db.t")
    table.write(_numbered(table, range(10)))
    java.ask("alter", changes=[["option", "bucket", "4"]])
    with pytest.raises(ForebayError, match="bucket"):
        table.refreshed().write(_numbered(table, range(10)))
    with pytest.raises(JavaError, match="bucket"):
        java.write(table.schema, _numbered(table, range(10)))
    table.refreshed().overwrite(_numbered(table, range(10), "four "))
    java.write(table.schema, _numbered(table, range(5, 15), "more "))
    assert len(_agree(table, java)) == 15


def test_both_overwrite_partitions_and_truncate(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", {"id": types.int_(), "v": types.string()}, partition_keys=["v"])
    java = java_table(catalog, "db.t")
    rows = [(i, f"p{i % 3}") for i in range(9)]
    table.write(_data(table, *rows))
    java.write(table.schema, _data(table, (100, "p1")), op="overwrite", partition={"v": "p1"})
    assert [r for r in _agree(table, java) if r[1] == "p1"] == [[100, "p1"]]
    table.overwrite(_data(table, (200, "p2")))
    assert _agree(table, java) == [[0, "p0"], [100, "p1"], [200, "p2"], [3, "p0"], [6, "p0"]]
    table.overwrite(_data(table, (300, "p0")), {"v": "p0"})
    assert _agree(table, java) == [[100, "p1"], [200, "p2"], [300, "p0"]]
    java.ask("truncate")
    assert _agree(table, java) == []
    java.write(table.schema, _data(table, *rows))
    table.new_commit().truncate()
    assert _agree(table, java) == []


def test_commits_of_a_stream_are_not_repeated_by_either_side(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, **_KEYED)
    java = java_table(catalog, "db.t")
    with table.new_write() as writer:
        writer.write(_numbered(table, range(5)))
        messages = tuple(writer.prepare_commit())
    committer = table.new_commit("stream")
    assert len(committer.filter_and_commit([Committable(7, messages)])) == 1
    assert committer.filter_and_commit([Committable(7, messages)]) == []
    again = {"op": "commit_again", "user": "stream", "options": _WRITE_ONLY}
    assert java.write(table.schema, _numbered(table, range(5)), identifier=7, **again) == 0
    assert java.write(table.schema, _numbered(table, range(5, 9)), identifier=8, **again) == 1
    assert table.new_commit("stream").filter_committed([Committable(8, ())]) == []
    assert len(_agree(table, java)) == 9


# ---- manifests, tags, branches, expiry ------------------------------------------------------------------------------


def _manifest_count(table: Table) -> int:
    latest = table.snapshots.latest()
    assert latest is not None
    return len(table.manifests.data_manifests(latest))


def test_manifests_of_both_are_merged_by_both(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    options = {"manifest.merge-min-count": "6", "bucket": "2", "num-sorted-run.compaction-trigger": "100"}
    table = catalog.create_table("db.t", _COLUMNS, primary_keys=["id"], options=options)
    java = java_table(catalog, "db.t")
    _write_in_turn(table, java, 20)
    assert _manifest_count(table) < 12
    before = _agree(table, java)
    java.ask("compact", full=True)
    java.ask("compact_manifests")
    assert _agree(table, java) == before
    _write_in_turn(table, java, 4)
    before = _agree(table, java)
    table.new_commit().compact_manifests()
    assert _manifest_count(table) == 1
    assert _agree(table, java) == before


def test_tags_travel_and_rollback_mean_the_same(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, **_KEYED)
    java = java_table(catalog, "db.t")
    histories = {}
    for number in range(1, 7):
        (table.with_options(_WRITE_ONLY).write)(_numbered(table, range(number), f"at {number} "))
        histories[number] = _agree(table, java)
    table.tags.create("ours", table.snapshots.snapshot(2))
    java.ask("tag", tag="theirs", snapshot=4)
    assert java.rows(options={"scan.tag-name": "ours"}) == histories[2]
    assert sorted_rows(table.schema, table.read(tag="theirs").read_all()) == histories[4]
    assert java.rows(options={"scan.snapshot-id": "5"}) == histories[5]
    millis = table.snapshots.snapshot(3).time_millis
    theirs = java.rows(options={"scan.timestamp-millis": str(millis)})
    assert sorted_rows(table.schema, table.read(timestamp_ms=millis).read_all()) == theirs
    java.ask("rollback", snapshot=5)
    assert _agree(table, java) == histories[5]
    table.rollback_to(snapshot=3)
    assert _agree(table, java) == histories[3]
    assert [tag["tag_name"] for tag in java.system("tags")] == ["ours"]
    table.write(_numbered(table, range(50, 52)))
    assert len(_agree(table, java)) == len(histories[3]) + 2


def _branches(catalog: FileSystemCatalog, table: Table) -> BranchManager:
    return BranchManager(LocalFileIO(sync=False), table.paths)


@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_branches_are_made_written_and_taken_over_by_both(tmp_path: Path, java_table: JavaTableOf, by: str) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, **_KEYED)
    java = java_table(catalog, "db.t")
    for number in range(1, 4):
        table.write(_numbered(table, range(number)))
    table.tags.create("two", table.snapshots.snapshot(2))
    if by == "ours":
        _branches(catalog, table).create("b", "two")
    else:
        java.ask("branch", what="create from tag", branch="b", tag="two")
    branch, java_branch = table.on_branch("b"), java_table(catalog, "db.t$branch_b")
    assert len(_agree(branch, java_branch)) == 2
    branch.write(_numbered(branch, range(100, 103)))
    java_branch.write(branch.schema, _numbered(branch, range(200, 203)))
    wanted = _agree(branch, java_branch)
    assert len(wanted) == 8
    assert len(_agree(table, java)) == 3
    if by == "ours":
        _branches(catalog, table).fast_forward("b")
    else:
        java.ask("branch", what="fast forward", branch="b")
    assert _agree(table, java) == wanted
    java.write(table.schema, _numbered(table, range(300, 301)))
    table.refreshed().write(_numbered(table, range(400, 401)))
    assert len(_agree(table, java)) == 10


@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_expiry_by_one_side_leaves_what_the_other_reads(tmp_path: Path, java_table: JavaTableOf, by: str) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, **_KEYED)
    java = java_table(catalog, "db.t")
    _write_in_turn(table, java, 4)
    table.tags.create("kept", table.snapshots.snapshot(3))
    tagged = sorted_rows(table.schema, table.read(snapshot=3).read_all())
    java.ask("compact", full=True)
    _write_in_turn(table, java, 3)
    table.compact(full=True)
    before = _agree(table, java)
    files = set((tmp_path / "lake/db.db/t").glob("bucket-*/*"))
    if by == "ours":
        table.expire_snapshots(retain_min=1, retain_max=1, older_than_ms=1 << 60)
    else:
        assert java.ask("expire", retain=1) > 0
    assert len(list((tmp_path / "lake/db.db/t/snapshot").glob("snapshot-*"))) == 1
    assert len(set((tmp_path / "lake/db.db/t").glob("bucket-*/*"))) < len(files)
    assert _agree(table, java) == before
    assert java.rows(options={"scan.tag-name": "kept"}) == tagged
    assert sorted_rows(table.schema, table.read(tag="kept").read_all()) == tagged
    with pytest.raises(NotFound):
        table.read(snapshot=2).read_all()


def test_java_shows_our_history_in_its_system_tables(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, primary_keys=["id"], options={"bucket": "1"})
    java = java_table(catalog, "db.t")
    table.with_options(_WRITE_ONLY).write(_numbered(table, range(5)))
    table.with_options(_WRITE_ONLY).delete(_numbered(table, range(2)))
    table = table.alter([AddColumn(("extra",), types.int_())])
    snapshots = java.system("snapshots")
    assert [(s["snapshot_id"], s["commit_kind"], s["total_record_count"]) for s in snapshots] == [
        (1, "APPEND", 5),
        (2, "APPEND", 7),
    ]
    files = sorted(java.system("files"), key=lambda f: f["min_sequence_number"])
    assert [(f["level"], f["record_count"], f["min_key"], f["max_key"]) for f in files] == [
        (0, 5, "[0]", "[4]"),
        (0, 2, "[0]", "[1]"),
    ]
    assert "v=v4" in files[0]["max_value_stats"]
    assert sorted(s["schema_id"] for s in java.system("schemas")) == [0, 1]
    assert {o["key"]: o["value"] for o in java.system("options")}["bucket"] == "1"
    assert len(java.system("manifests")) == 2
    assert [p["record_count"] for p in java.system("partitions")] == [7]
    log = java.java.ask("read", java.warehouse, "db.t$audit_log")["rows"]
    assert sorted((r[1], r[2]) for r in log) == [("+I", 2), ("+I", 3), ("+I", 4), ("-D", 0), ("-D", 1)]


# ---- deletion vectors and dynamic buckets ---------------------------------------------------------------------------


@pytest.mark.parametrize("wide", ["true", "false"])
def test_rows_that_java_marked_as_deleted_are_gone(tmp_path: Path, java_table: JavaTableOf, wide: str) -> None:
    catalog = new_catalog(tmp_path)
    options = {"deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": wide}
    table = catalog.create_table("db.t", _COLUMNS, options=options)
    java = java_table(catalog, "db.t")
    table.write(_numbered(table, range(10)))
    java.write(table.schema, _numbered(table, range(100, 110)))
    java.ask("delete_rows", positions=[0, 3, 4, 9])
    assert sorted(row[0] for row in _agree(table, java)) == [1, 2, 5, 6, 7, 8, 101, 102, 105, 106, 107, 108]
    table.write(_numbered(table, range(200, 203)))
    java.ask("delete_rows", positions=[1])
    assert sorted(row[0] for row in _agree(table, java))[-3:] == [108, 200, 202]


@pytest.mark.parametrize("wide", ["true", "false"])
def test_deletion_vectors_of_primary_key_tables_that_java_compacted_are_read(
    tmp_path: Path, java_table: JavaTableOf, wide: str
) -> None:
    catalog = new_catalog(tmp_path)
    options = {"bucket": "2", "deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": wide}
    table = catalog.create_table("db.t", _COLUMNS, primary_keys=["id"], options=options)
    java = java_table(catalog, "db.t")
    java.write(table.schema, _numbered(table, range(20)), wait_compaction=True)
    java.write(table.schema, _numbered(table, range(5, 10), "new "), wait_compaction=True)
    java.write(table.schema, _numbered(table, range(3)), ["-D"] * 3, wait_compaction=True)
    rows = _agree(table, java)
    assert len(rows) == 17
    assert any((tmp_path / "lake/db.db/t/index").iterdir())
    table.with_options(_WRITE_ONLY).write(_numbered(table, range(8, 12), "ours "))
    java.ask("compact", full=False)
    assert len([row for row in _agree(table, java) if row[1].startswith("ours ")]) == 4


def test_dynamic_buckets_stay_where_the_other_side_put_them(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": "7"}
    table = catalog.create_table("db.t", _COLUMNS, primary_keys=["id"], options=options)
    java = java_table(catalog, "db.t")
    table.write(_numbered(table, range(20), "ours "))
    java.write(table.schema, _numbered(table, range(10, 40), "theirs "), options=_WRITE_ONLY)
    table.write(_numbered(table, range(30, 60), "ours again "))
    java.write(table.schema, _numbered(table, range(0, 60, 5), "last "), options=_WRITE_ONLY)
    rows = _agree(table, java)
    assert sorted(row[0] for row in rows) == list(range(60))
    assert sum(row[1].startswith("last ") for row in rows) == 12
    java.ask("compact", full=True)
    assert _agree(table, java) == rows
