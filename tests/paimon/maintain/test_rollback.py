"""Rollback to a snapshot, a tag or a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import InvalidRequest, NotFound
from forebay.paimon.table import Table
from tests.paimon.lake import at_ms, put
from tests.paimon.maintain.lakes import NOW, files_of, make_table, open_table, rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    clock = ManualClock(NOW)
    made = make_table(tmp_path / "t", clock=clock)
    for i in range(5):
        put(made, [{"id": i}])
        clock.advance(10)
    return made


def test_what_came_behind_a_snapshot_is_gone_tags_too(table: Table) -> None:
    table.context.tags.create("early", table.context.snapshots.snapshot(2))
    table.context.tags.create("here", table.context.snapshots.snapshot(3))
    table.context.tags.create("late", table.context.snapshots.snapshot(4))
    assert table.rollback_to(3).id == 3
    fresh = open_table(table.context.paths.root)
    assert rows(fresh) == [(0, None), (1, None), (2, None)]
    assert fresh.context.tags.names() == ["early", "here"]
    assert Path(table.context.paths.snapshot_directory, "LATEST").read_text() == "3"
    put(fresh, [{"id": 9}])
    assert fresh.context.snapshots.latest_id() == 4
    assert rows(fresh, as_of=4)[-1] == (9, None)


def test_a_moment_means_the_snapshot_of_then(table: Table) -> None:
    assert table.rollback_to(at_ms(NOW + 25_000)).id == 3
    with pytest.raises(NotFound, match="no snapshot as old"):
        table.rollback_to(at_ms(NOW - 1))


def test_a_tag_brings_its_expired_snapshot_back(table: Table) -> None:
    table.context.tags.create("old", table.context.snapshots.snapshot(2))
    table.expire_snapshots(1, 1)
    assert table.rollback_to("old").id == 2
    assert Path(table.context.paths.snapshot_directory, "EARLIEST").read_text() == "2"
    fresh = open_table(table.context.paths.root)
    assert (fresh.context.snapshots.ids(), rows(fresh)) == ([2], [(0, None), (1, None)])
    put(fresh, [{"id": 7}])
    assert fresh.context.snapshots.ids() == [2, 3]


def test_a_dry_run_brings_no_snapshot_back(table: Table) -> None:
    table.context.tags.create("old", table.context.snapshots.snapshot(2))
    table.expire_snapshots(1, 1)
    before = files_of(table.context.paths.root)
    assert table.rollback_to("old", dry_run=True).id == 2
    assert table.rollback_to(5, dry_run=True).id == 5
    assert files_of(table.context.paths.root) == before
    assert table.context.tags.names() == ["old"]


@pytest.mark.parametrize(("expired", "outlives"), [(False, False), (True, False), (True, True)])
def test_a_snapshot_that_comes_back_has_its_changelog_if_that_is_there(
    tmp_path: Path, expired: bool, outlives: bool
) -> None:
    kept = "9" if outlives else "1"
    options = {"changelog-producer": "input", "snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"}
    options |= {"changelog.num-retained.min": kept, "changelog.num-retained.max": kept}
    made = make_table(tmp_path / "t", options)
    for i in range(3):
        put(made, [{"id": i}])
    made.context.tags.create("two", made.context.snapshots.snapshot(2))
    if expired:
        made.expire_snapshots()
    assert made.context.snapshots.exists(2) is not expired
    made.rollback_to("two")
    found = made.context.snapshots.snapshot(2)
    assert (found.changelog_manifest_list is not None) == (outlives or not expired)
    assert rows(open_table(made.context.paths.root)) == [(0, None), (1, None)]


def test_long_lived_changelogs_behind_go_too(tmp_path: Path) -> None:
    options = {"changelog.num-retained.min": "9", "changelog.num-retained.max": "9", "changelog-producer": "input"}
    made = make_table(tmp_path / "u", {**options, "snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"})
    for i in range(5):
        put(made, [{"id": i}])
        if i == 1:
            made.context.tags.create("two", made.context.snapshots.snapshot(2))
    made.expire_snapshots()
    assert made.context.snapshots.changelogs.ids() == [1, 2, 3, 4]
    made.rollback_to("two")
    assert made.context.snapshots.changelogs.ids() == [1, 2]
    assert Path(made.context.paths.changelog_directory, "LATEST").read_text() == "2"


def test_no_hint_is_left_of_changelogs_that_all_went(tmp_path: Path) -> None:
    options = {"changelog.num-retained.min": "3", "changelog.num-retained.max": "3", "changelog-producer": "input"}
    made = make_table(tmp_path / "u", {**options, "snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1"})
    for i in range(5):
        put(made, [{"id": i}])
        if i == 0:
            made.context.tags.create("one", made.context.snapshots.snapshot(1))
    made.expire_snapshots()
    made.maintenance().expire_changelogs()
    assert made.context.snapshots.changelogs.ids() == [3, 4]
    made.rollback_to("one")
    assert made.context.snapshots.changelogs.latest() is None
    assert list(Path(made.context.paths.changelog_directory).iterdir()) == []


def test_one_goal_must_be_named(table: Table) -> None:
    with pytest.raises(InvalidRequest, match="say one of"):
        table.maintenance().rollback_to()
    with pytest.raises(NotFound, match="there are 1 to 5"):
        table.rollback_to(9)
    assert table.context.snapshots.ids() == [1, 2, 3, 4, 5]
