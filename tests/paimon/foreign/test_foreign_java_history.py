"""A table's history, written by both sides in turn: compaction, conflicts, tags, branches, expiry, deletes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.base.errors import Conflict, ForebayError, NotFound
from forebay.metadata import types
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.commit.committer import Committable
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.schema_changes import AddColumn
from forebay.paimon.table import Table
from tests.paimon.foreign.both_sides import (
    COLUMNS,
    KEYED,
    WRITE_ONLY,
    agree,
    data_of,
    numbered,
    write_in_turn,
)
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaError, sorted_rows
from tests.paimon.lake import altered, at_ms, new_catalog, put

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

# ---- compaction and conflicts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("definition", [{}, KEYED, {"options": {"bucket": "2", "bucket-key": "id"}}])
def test_compaction_by_either_side_is_read_and_built_upon_by_both(
    tmp_path: Path, java_table: JavaTableOf, definition: dict[str, Any]
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **definition)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 6)
    before = agree(table, java)
    java.ask("compact", full=True)
    assert agree(table, java) == before
    latest = table.context.snapshots.latest()
    assert latest is not None
    assert latest.commit_kind.name == "COMPACT"
    write_in_turn(table, java, 3)
    before = agree(table, java)
    table.compact(full=True)
    assert agree(table, java) == before
    write_in_turn(table, java, 4)
    before = agree(table, java)
    java.ask("compact", full=False)
    assert agree(table, java) == before
    if definition == KEYED:
        java.write(table.schema, numbered(table, range(3)), ["-D"] * 3, options=WRITE_ONLY)
        assert sorted(row[0] for row in agree(table, java))[:3] == [3, 4, 5]
        table.compact(full=True)
        assert sorted(row[0] for row in agree(table, java))[:3] == [3, 4, 5]


def test_a_compaction_of_ours_loses_against_one_of_java(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 4)
    before = agree(table, java)
    from forebay.paimon.compact.tasks import CompactPlanner, run_task

    planner = CompactPlanner(table.context)
    messages = [run_task(table.context, task) for task in planner.plan(full=True)]
    java.ask("compact", full=True)
    with pytest.raises(Conflict):
        table.new_commit().commit(messages)
    assert agree(table, java) == before


@pytest.mark.parametrize("definition", [{}, KEYED], ids=["append", "keyed"])
def test_a_compaction_of_java_loses_against_one_of_ours(
    tmp_path: Path, java_table: JavaTableOf, definition: dict[str, Any]
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **definition)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 6)
    before = agree(table, java)
    java.ask("prepare", name="late", full=True)
    table.compact(full=True)
    with pytest.raises(JavaError, match="conflict"):
        java.ask("commit", name="late")
    assert agree(table, java) == before


@pytest.mark.parametrize("definition", [{}, KEYED], ids=["append", "keyed"])
def test_work_prepared_by_one_side_follows_what_the_other_committed_meanwhile(
    tmp_path: Path, java_table: JavaTableOf, definition: dict[str, Any]
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **definition).with_options(WRITE_ONLY)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 6)
    java.write(table.schema, numbered(table, range(100, 103)), op="prepare", name="rows", options=WRITE_ONLY)
    put(table, numbered(table, range(200, 203)))
    java.ask("commit", name="rows")
    java.ask("prepare", name="compaction", full=True)
    put(table, numbered(table, range(300, 303)))
    before = agree(table, java)
    java.ask("commit", name="compaction")
    assert agree(table, java) == before
    with table.new_write() as writer:
        writer.write(numbered(table, range(400, 403)))
        messages = writer.prepare_commit()
    java.ask("compact", full=True)
    table.new_commit().commit(messages)
    assert len(agree(table, java)) == len(before) + 3


def test_a_rescale_is_respected_by_both(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    put(table, numbered(table, range(10)))
    java.ask("alter", changes=[["option", "bucket", "4"]])
    with pytest.raises(ForebayError, match="bucket"):
        put(table.refresh(), numbered(table, range(10)))
    with pytest.raises(JavaError, match="bucket"):
        java.write(table.schema, numbered(table, range(10)))
    table.refresh().overwrite(numbered(table, range(10), "four "))
    java.write(table.schema, numbered(table, range(5, 15), "more "))
    assert len(agree(table, java)) == 15


def test_both_overwrite_partitions_and_truncate(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", {"id": types.int_(), "v": types.string()}, partition_keys=["v"])
    java = java_table(catalog, "db.t")
    rows = [(i, f"p{i % 3}") for i in range(9)]
    put(table, data_of(table, *rows))
    java.write(table.schema, data_of(table, (100, "p1")), op="overwrite", partition={"v": "p1"})
    assert [r for r in agree(table, java) if r[1] == "p1"] == [[100, "p1"]]
    table.overwrite(data_of(table, (200, "p2")))
    assert agree(table, java) == [[0, "p0"], [100, "p1"], [200, "p2"], [3, "p0"], [6, "p0"]]
    table.overwrite(data_of(table, (300, "p0")), {"v": "p0"})
    assert agree(table, java) == [[100, "p1"], [200, "p2"], [300, "p0"]]
    java.ask("truncate")
    assert agree(table, java) == []
    java.write(table.schema, data_of(table, *rows))
    table.new_commit().truncate()
    assert agree(table, java) == []


def test_commits_of_a_stream_are_not_repeated_by_either_side(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    with table.new_write() as writer:
        writer.write(numbered(table, range(5)))
        messages = tuple(writer.prepare_commit())
    committer = table.new_commit("stream")
    assert len(committer.filter_and_commit([Committable(7, messages)])) == 1
    assert committer.filter_and_commit([Committable(7, messages)]) == []
    again = {"op": "commit_again", "user": "stream", "options": WRITE_ONLY}
    assert java.write(table.schema, numbered(table, range(5)), identifier=7, **again) == 0
    assert java.write(table.schema, numbered(table, range(5, 9)), identifier=8, **again) == 1
    assert table.new_commit("stream").filter_committed([Committable(8, ())]) == []
    assert len(agree(table, java)) == 9


# ---- manifests, tags, branches, expiry ------------------------------------------------------------------------------


def _manifest_count(table: Table) -> int:
    latest = table.context.snapshots.latest()
    assert latest is not None
    return len(table.context.manifests.data_manifests(latest))


def test_manifests_of_both_are_merged_by_both(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    options = {"manifest.merge-min-count": "6", "bucket": "2", "num-sorted-run.compaction-trigger": "100"}
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 20)
    assert _manifest_count(table) < 12
    before = agree(table, java)
    java.ask("compact", full=True)
    java.ask("compact_manifests")
    assert agree(table, java) == before
    write_in_turn(table, java, 4)
    before = agree(table, java)
    table.new_commit().compact_manifests()
    assert _manifest_count(table) == 1
    assert agree(table, java) == before


def test_tags_travel_and_rollback_mean_the_same(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    histories = {}
    for number in range(1, 7):
        put(table.with_options(WRITE_ONLY), numbered(table, range(number), f"at {number} "))
        histories[number] = agree(table, java)
    table.context.tags.create("ours", table.context.snapshots.snapshot(2))
    java.ask("tag", tag="theirs", snapshot=4)
    assert java.rows(options={"scan.tag-name": "ours"}) == histories[2]
    assert sorted_rows(table.schema, table.scan(as_of="theirs").to_arrow()) == histories[4]
    assert java.rows(options={"scan.snapshot-id": "5"}) == histories[5]
    millis = table.context.snapshots.snapshot(3).time_millis
    theirs = java.rows(options={"scan.timestamp-millis": str(millis)})
    assert sorted_rows(table.schema, table.scan(as_of=at_ms(millis)).to_arrow()) == theirs
    java.ask("rollback", snapshot=5)
    assert agree(table, java) == histories[5]
    table.rollback_to(3)
    assert agree(table, java) == histories[3]
    assert [tag["tag_name"] for tag in java.system("tags")] == ["ours"]
    put(table, numbered(table, range(50, 52)))
    assert len(agree(table, java)) == len(histories[3]) + 2


def _branches(catalog: FileSystemCatalog, table: Table) -> BranchManager:
    return BranchManager(LocalFileIO(sync=False), table.context.paths)


@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_branches_are_made_written_and_taken_over_by_both(tmp_path: Path, java_table: JavaTableOf, by: str) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    for number in range(1, 4):
        put(table, numbered(table, range(number)))
    table.context.tags.create("two", table.context.snapshots.snapshot(2))
    if by == "ours":
        _branches(catalog, table).create("b", "two")
    else:
        java.ask("branch", what="create from tag", branch="b", tag="two")
    branch, java_branch = table.on_branch("b"), java_table(catalog, "db.t$branch_b")
    assert len(agree(branch, java_branch)) == 2
    put(branch, numbered(branch, range(100, 103)))
    java_branch.write(branch.schema, numbered(branch, range(200, 203)))
    wanted = agree(branch, java_branch)
    assert len(wanted) == 8
    assert len(agree(table, java)) == 3
    if by == "ours":
        _branches(catalog, table).fast_forward("b")
    else:
        java.ask("branch", what="fast forward", branch="b")
    assert agree(table, java) == wanted
    java.write(table.schema, numbered(table, range(300, 301)))
    put(table.refresh(), numbered(table, range(400, 401)))
    assert len(agree(table, java)) == 10


@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_expiry_by_one_side_leaves_what_the_other_reads(tmp_path: Path, java_table: JavaTableOf, by: str) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 4)
    table.context.tags.create("kept", table.context.snapshots.snapshot(3))
    tagged = sorted_rows(table.schema, table.scan(as_of=3).to_arrow())
    java.ask("compact", full=True)
    write_in_turn(table, java, 3)
    table.compact(full=True)
    before = agree(table, java)
    files = set((tmp_path / "lake/db.db/t").glob("bucket-*/*"))
    if by == "ours":
        table.expire_snapshots(retain_min=1, retain_max=1, older_than=at_ms(1 << 60))
    else:
        assert java.ask("expire", retain=1) > 0
    assert len(list((tmp_path / "lake/db.db/t/snapshot").glob("snapshot-*"))) == 1
    assert len(set((tmp_path / "lake/db.db/t").glob("bucket-*/*"))) < len(files)
    assert agree(table, java) == before
    assert java.rows(options={"scan.tag-name": "kept"}) == tagged
    assert sorted_rows(table.schema, table.scan(as_of="kept").to_arrow()) == tagged
    with pytest.raises(NotFound):
        table.scan(as_of=2).to_arrow()


def test_java_shows_our_history_in_its_system_tables(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    java = java_table(catalog, "db.t")
    put(table.with_options(WRITE_ONLY), numbered(table, range(5)))
    table.with_options(WRITE_ONLY).delete(numbered(table, range(2)))
    table = altered(table, [AddColumn(("extra",), types.int_())])
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


# ---- row kinds in a column ------------------------------------------------------------------------------------------


def test_a_column_may_hold_the_kinds_of_rows(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    options = {"bucket": "1", "rowkind.field": "kind"}
    columns = {"id": types.int_(), "kind": types.string()}
    table = catalog.create_table("db.t", columns, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    put(table, data_of(table, (1, "+I"), (2, "+I"), (3, "+I")))
    java.write(table.schema, data_of(table, (1, "-D"), (4, "+U")))
    assert agree(table, java) == [[2, "+I"], [3, "+I"], [4, "+U"]]
    put(table, data_of(table, (2, "-D"), (3, "-U"), (3, "+U")))
    assert agree(table, java) == [[3, "+U"], [4, "+U"]]


# ---- deletion vectors and dynamic buckets ---------------------------------------------------------------------------


@pytest.mark.parametrize("wide", ["true", "false"])
def test_rows_that_java_marked_as_deleted_are_gone(tmp_path: Path, java_table: JavaTableOf, wide: str) -> None:
    catalog = new_catalog(tmp_path)
    options = {"deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": wide}
    table = catalog.create_table("db.t", COLUMNS, options=options)
    java = java_table(catalog, "db.t")
    put(table, numbered(table, range(10)))
    java.write(table.schema, numbered(table, range(100, 110)))
    java.ask("delete_rows", positions=[0, 3, 4, 9])
    assert sorted(row[0] for row in agree(table, java)) == [1, 2, 5, 6, 7, 8, 101, 102, 105, 106, 107, 108]
    put(table, numbered(table, range(200, 203)))
    java.ask("delete_rows", positions=[1])
    assert sorted(row[0] for row in agree(table, java))[-3:] == [108, 200, 202]


@pytest.mark.parametrize("wide", ["true", "false"])
def test_deletion_vectors_of_primary_key_tables_that_java_compacted_are_read(
    tmp_path: Path, java_table: JavaTableOf, wide: str
) -> None:
    catalog = new_catalog(tmp_path)
    options = {"bucket": "2", "deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": wide}
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    java.write(table.schema, numbered(table, range(20)), wait_compaction=True)
    java.write(table.schema, numbered(table, range(5, 10), "new "), wait_compaction=True)
    java.write(table.schema, numbered(table, range(3)), ["-D"] * 3, wait_compaction=True)
    rows = agree(table, java)
    assert len(rows) == 17
    assert any((tmp_path / "lake/db.db/t/index").iterdir())
    put(table.with_options(WRITE_ONLY), numbered(table, range(8, 12), "ours "))
    java.ask("compact", full=False)
    assert len([row for row in agree(table, java) if row[1].startswith("ours ")]) == 4


def test_dynamic_buckets_stay_where_the_other_side_put_them(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    options = {"bucket": "-1", "dynamic-bucket.target-row-num": "7"}
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    put(table, numbered(table, range(20), "ours "))
    java.write(table.schema, numbered(table, range(10, 40), "theirs "), options=WRITE_ONLY)
    put(table, numbered(table, range(30, 60), "ours again "))
    java.write(table.schema, numbered(table, range(0, 60, 5), "last "), options=WRITE_ONLY)
    rows = agree(table, java)
    assert sorted(row[0] for row in rows) == list(range(60))
    assert sum(row[1].startswith("last ") for row in rows) == 12
    java.ask("compact", full=True)
    assert agree(table, java) == rows
