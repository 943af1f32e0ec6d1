"""Operations that keep or drop parts of a history, by either side: tags with a time, consumers, watermarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.base.ambient import SYSTEM_CLOCK, ManualClock
from forebay.base.errors import NotFound
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.table import Table
from tests.paimon.foreign.both_sides import COLUMNS, KEYED, WRITE_ONLY, agree, numbered, write_in_turn
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaError, sorted_rows
from tests.paimon.lake import at_ms, new_catalog, put, stream_of

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]


def _ids(table: Table) -> list[int]:
    return [
        int(path.name.removeprefix("snapshot-")) for path in Path(table.context.paths.root).glob("snapshot/snapshot-*")
    ]


# ---- tags -----------------------------------------------------------------------------------------------------------


def test_tags_with_a_time_are_told_and_expired_by_both(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    past, future = (
        FileSystemCatalog(LocalFileIO(sync=False), catalog.warehouse, clock=ManualClock(now))
        for now in (1_700_000_000_000, 1 << 42)
    )
    table = past.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 4)
    table.context.tags.create("our years", table.context.snapshots.snapshot(1), retained_ms=1 << 42)
    table.context.tags.create("our instant", table.context.snapshots.snapshot(2), retained_ms=1)
    java.ask("tag", tag="their hour", snapshot=3, retained_ms=3_600_000)
    java.ask("tag", tag="their plain", snapshot=4)
    told = {tag["tag_name"]: tag["time_retained"] for tag in java.system("tags")}
    ours = table.system("tags").read(["tag_name", "time_retained"]).read_all().to_pylist()
    assert told == {tag["tag_name"]: tag["time_retained"] for tag in ours}
    assert told["their hour"] == "PT1H"
    assert java.ask("tag", what="expire", tag="") == ["our instant"]
    assert table.maintenance().expire_tags() == []
    assert future.table("db.t").maintenance().expire_tags() == ["their hour"]
    assert table.context.tags.names() == ["our years", "their plain"]
    agree(table, java)


@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_a_tag_of_an_expired_snapshot_is_deleted_with_its_files_by_both(
    tmp_path: Path, java_table: JavaTableOf, by: str
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 3)
    table.context.tags.create("kept", table.context.snapshots.snapshot(2))
    java.ask("tag", what="rename", tag="kept", to="two")
    java.ask("compact", full=True)
    before = agree(table, java)
    table.maintenance().expire_snapshots(1, 1, at_ms(1 << 60))
    assert sorted_rows(table.schema, table.scan(as_of="two").to_arrow()) == java.rows(options={"scan.tag-name": "two"})
    files = set(Path(table.context.paths.root).glob("bucket-*/*"))
    if by == "ours":
        table.delete_tag("two")
    else:
        java.ask("tag", what="delete", tag="two")
    assert len(set(Path(table.context.paths.root).glob("bucket-*/*"))) < len(files)
    assert len(list(Path(table.context.paths.root).glob("manifest/*"))) < 8
    assert agree(table, java) == before
    assert not table.remove_orphan_files(older_than=at_ms(SYSTEM_CLOCK.now_ms()), dry_run=True).files


@pytest.mark.parametrize("by", ["ours", "theirs"])
@pytest.mark.parametrize("expired", [False, True])
def test_both_roll_back_to_a_tag(tmp_path: Path, java_table: JavaTableOf, by: str, expired: bool) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 3)
    wanted = agree(table, java)
    table.context.tags.create("three", table.context.snapshots.snapshot(3))
    write_in_turn(table, java, 4)
    java.ask("tag", tag="six", snapshot=6)
    if expired:
        table.maintenance().expire_snapshots(1, 1, at_ms(1 << 60))
    if by == "ours":
        table.rollback_to("three")
    else:
        java.ask("rollback", tag="three")
    assert agree(table, java) == wanted
    assert [tag["tag_name"] for tag in java.system("tags")] == table.context.tags.names() == ["three"]
    assert _ids(table) == [3] if expired else sorted(_ids(table)) == [1, 2, 3]
    java.write(table.schema, numbered(table, range(70, 72)), options=WRITE_ONLY)
    put(table.refresh(), numbered(table, range(80, 82)))
    assert len(agree(table, java)) == len(wanted) + 4


# ---- consumers ------------------------------------------------------------------------------------------------------


def test_consumers_of_either_side_hold_expiry_of_both_back(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 8)
    consumers = ConsumerManager(LocalFileIO(sync=False), table.context.paths)
    consumers.record("ours", 4)
    java.ask("consumer", consumer="theirs", next=6)
    assert java.ask("consumer") == consumers.all() == {"ours": 4, "theirs": 6}
    assert {c["consumer_id"]: c["next_snapshot_id"] for c in java.system("consumers")} == consumers.all()
    assert java.ask("expire", retain=1) == 3
    assert min(_ids(table)) == 4
    consumers.record("ours", 7)
    table.maintenance().expire_snapshots(1, 1, at_ms(1 << 60))
    assert min(_ids(table)) == 6
    java.ask("consumer", consumer="theirs", next=9)
    table.maintenance().expire_snapshots(1, 1, at_ms(1 << 60))
    assert min(_ids(table)) == 7
    agree(table, java)


def test_a_consumer_that_one_side_began_is_taken_over_by_the_other(
    tmp_path: Path, java_table: JavaTableOf, request: pytest.FixtureRequest
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, options={"bucket": "1", "bucket-key": "id"})
    java = java_table(catalog, "db.t")
    named = {"consumer-id": "shared", "consumer.expiration-time": "1 d"}
    for number in range(3):
        put(table, numbered(table, range(number * 10, number * 10 + 2)))
    stream = stream_of(table.with_options(named), follow=False)
    assert len([row for batch in stream for row in batch.to_pylist()]) == 6
    put(table, numbered(table, range(30, 32)))
    told = java.stream(request.node.name, options=named)
    assert [row[1] for plan in told for row in plan] == [30, 31]
    java.ask("consumer", consumer="shared", next=5)  # Java's sources write this when a checkpoint is complete
    put(table, numbered(table, range(40, 42)))
    again = stream_of(table.with_options(named), follow=False)
    assert [row["id"] for batch in again for row in batch.to_pylist()] == [40, 41]
    assert java.ask("consumer") == {"shared": (table.context.snapshots.latest_id() or 0) + 1}


# ---- watermarks -----------------------------------------------------------------------------------------------------


def test_watermarks_of_both_are_kept_and_travelled_to_by_both(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    marks: list[int | None] = [None, 100, 50, None, 300, 300]
    for number, mark in enumerate(marks):
        data = numbered(table, range(number, number + 3), f"c{number} ")
        if number % 2:
            more = {} if mark is None else {"watermark": mark}
            java.write(table.schema, data, options=WRITE_ONLY, **more)
            continue
        with table.with_options(WRITE_ONLY).new_write() as writer:
            writer.write(data)
            table.new_commit().commit(writer.prepare_commit(), watermark=mark)
    kept = [table.context.snapshots.snapshot(i).watermark for i in range(1, 7)]
    assert kept[1:] == [100, 100, 100, 300, 300], "a watermark never goes back"
    assert [s["watermark"] for s in java.system("snapshots")] == kept
    for mark in (1, 50, 100, 101, 300):
        theirs = java.rows(options={"scan.watermark": str(mark)})
        by_option = table.with_options({"scan.watermark": str(mark)})
        assert sorted_rows(table.schema, by_option.scan().to_arrow()) == theirs
    with pytest.raises(JavaError, match="watermark"):
        java.rows(options={"scan.watermark": "301"})
    with pytest.raises(NotFound, match="watermark"):
        table.with_options({"scan.watermark": "301"}).scan()


# ---- branches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_an_empty_branch_is_written_renamed_and_dropped_by_both(
    tmp_path: Path, java_table: JavaTableOf, by: str
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 2)
    before = agree(table, java)
    branches = BranchManager(LocalFileIO(sync=False), table.context.paths)
    for name in ("a", "b"):
        if by == "ours":
            branches.create(name)
        else:
            java.ask("branch", what="create", branch=name)
    assert agree(table.on_branch("a"), java_table(catalog, "db.t$branch_a")) == []
    put(table.on_branch("a"), numbered(table, range(500, 503)))
    java_table(catalog, "db.t$branch_b").write(table.schema, numbered(table, range(600, 604)))
    if by == "ours":
        branches.rename("a", "c")
    else:
        java.ask("branch", what="rename", branch="a", to="c")
    assert len(agree(table.on_branch("c"), java_table(catalog, "db.t$branch_c"))) == 3
    assert len(agree(table.on_branch("b"), java_table(catalog, "db.t$branch_b"))) == 4
    ours = table.system("branches").read(["branch_name"]).read_all()["branch_name"].to_pylist()
    assert sorted(b["branch_name"] for b in java.system("branches")) == sorted(ours) == ["b", "c"]
    if by == "ours":
        java.ask("branch", what="delete", branch="b")
    else:
        branches.drop("b")
    assert branches.names() == ["c"]
    assert agree(table, java) == before


def test_branches_of_both_live_through_expiry_and_orphan_removal_of_main(
    tmp_path: Path, java_table: JavaTableOf
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **KEYED)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 3)
    java.ask("tag", tag="two", snapshot=2)
    java.ask("branch", what="create from tag", branch="b", tag="two")
    java_branch = java_table(catalog, "db.t$branch_b")
    java_branch.write(table.schema, numbered(table, range(600, 604)), options=WRITE_ONLY)
    wanted = agree(table.on_branch("b"), java_branch)
    table.compact(full=True)
    table.delete_tag("two")
    table.maintenance().expire_snapshots(1, 1, at_ms(1 << 60))
    table.remove_orphan_files(older_than=at_ms(SYSTEM_CLOCK.now_ms()))
    assert agree(table.on_branch("b"), java_branch) == wanted
    agree(table, java)
