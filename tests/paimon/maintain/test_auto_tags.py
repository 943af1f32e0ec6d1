"""Automatic tags: the names of snapshots, and when old tags are deleted."""

from __future__ import annotations

import datetime
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import InvalidRequest
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.store.snapshots import SnapshotManager
from tests.paimon.lake import put
from tests.paimon.maintain.lakes import make_table, rows

ZONE = {"sink.process-time-zone": "UTC", "tag.automatic-creation": "process-time", "write-only": "false"}
START = round(datetime.datetime(2024, 3, 10, 22, 30, tzinfo=datetime.UTC).timestamp() * 1000)


def tagged(root: Path, commits: int, **options: str) -> dict[str, int]:
    """Tags and their snapshots after commits half an hour apart, of a table of its own."""
    clock = ManualClock(START)
    dotted = {"num-sorted-run.compaction-trigger": "100", **ZONE, **options}
    table = make_table(root, dotted, clock=clock)
    for i in range(commits):
        put(table, [{"id": i}])
        clock.advance(1800)
    return {tag.name: tag.snapshot.id for tag in table.context.tags.tags()}


def test_the_first_snapshot_behind_an_hour_is_tagged_with_it(tmp_path: Path) -> None:
    # 22:30, 23:00, 23:30, 0:00, 0:30, 1:00
    assert tagged(tmp_path / "t", 6, **{"tag.creation-period": "hourly"}) == {
        "2024-03-10 21": 1,
        "2024-03-10 22": 2,
        "2024-03-10 23": 4,
        "2024-03-11 00": 6,
    }


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["2024-03-09", "2024-03-10"]),
        ({"tag.period-formatter": "without-dashes"}, ["20240309", "20240310"]),
        ({"tag.creation-period": "two-hours"}, ["2024-03-10 20", "2024-03-10 22"]),
        ({"tag.creation-period-duration": "45 min"}, ["2024-03-10 2145", "2024-03-10 2230", "2024-03-10 2315"]),
        ({"tag.creation-period": "hourly", "tag.creation-delay": "10 min"}, ["2024-03-10 21", "2024-03-10 22"]),
        ({"tag.automatic-creation": "watermark"}, []),
        ({"tag.automatic-creation": "none"}, []),
    ],
)
def test_periods_and_names_are_as_options_say(tmp_path: Path, options: dict[str, str], names: list[str]) -> None:
    assert list(tagged(tmp_path / "t", 4, **options)) == names


@pytest.mark.parametrize(
    ("zone", "names"),
    [
        ("Asia/Tokyo", ["2024-03-10"]),
        ("UTC", ["2024-03-09", "2024-03-10"]),
        (None, ["2024-03-09"]),
    ],
)
def test_a_day_ends_where_the_table_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str | None, names: list[str]
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        options = {"tag.automatic-creation": "process-time", "write-only": "false"}
        clock = ManualClock(START)
        table = make_table(
            tmp_path / "t", options | ({} if zone is None else {"sink.process-time-zone": zone}), clock=clock
        )
        for i in range(4):
            put(table, [{"id": i}])
            clock.advance(1800)
        assert table.context.tags.names() == names
    finally:
        monkeypatch.undo()
        time.tzset()


def test_only_so_many_automatic_tags_are_kept(tmp_path: Path) -> None:
    found = tagged(tmp_path / "t", 9, **{"tag.creation-period": "hourly", "tag.num-retained-max": "2"})
    assert list(found) == ["2024-03-11 00", "2024-03-11 01"]


def test_watermarks_decide_if_wanted_and_gaps_are_filled_if_wanted(tmp_path: Path) -> None:
    options = {"tag.automatic-creation": "watermark", "tag.creation-period": "hourly"}
    for completion, names in (("false", ["00", "01", "06"]), ("true", ["00", "01", "02"])):
        table = make_table(tmp_path / completion, {**ZONE, **options, "tag.automatic-completion": completion})
        for hour in (1, 2, 7):
            with table.new_write() as writer:
                writer.write([{"id": hour}])
                table.new_commit().commit(writer.prepare_commit(), watermark=hour * 3_600_000)
        table.maintenance().create_auto_tags()
        assert table.context.tags.names() == [f"1970-01-01 {name}" for name in names]
        assert len(rows(table, as_of="1970-01-01 00")) == 1


def test_a_batch_moves_the_tag_of_its_day_and_old_days_go(tmp_path: Path) -> None:
    clock = ManualClock(START)
    options = {**ZONE, "tag.automatic-creation": "batch", "tag.num-retained-max": "2"}
    table = make_table(tmp_path / "t", {**options, "num-sorted-run.compaction-trigger": "100"}, clock=clock)
    for i in range(6):
        put(table, [{"id": i}])
        clock.advance(12 * 3600)
    assert {tag.name: tag.snapshot.id for tag in table.context.tags.tags()} == {
        "batch-write-2024-03-12": 5,
        "batch-write-2024-03-13": 6,
    }
    assert len(rows(table, as_of="batch-write-2024-03-12")) == 5


def test_a_batch_tag_is_not_moved_back_by_a_batch_that_was_faster_to_commit_than_to_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**ZONE, "tag.automatic-creation": "batch", "num-sorted-run.compaction-trigger": "100"}
    table = make_table(tmp_path / "t", options, clock=ManualClock(START))
    put(table, [{"id": 1}])
    latest, others = SnapshotManager.latest, iter([True])

    def slowly(self: SnapshotManager) -> Snapshot | None:
        found = latest(self)
        if next(others, False):
            put(table, [{"id": 2}])
        return found

    monkeypatch.setattr(SnapshotManager, "latest", slowly)
    table.maintenance().create_auto_tags(batch=True)
    assert [tag.snapshot.id for tag in table.context.tags.tags()] == [2]


def test_a_batch_tag_may_have_a_name_of_its_own_and_streams_make_none(tmp_path: Path) -> None:
    options = {**ZONE, "tag.automatic-creation": "batch", "tag.batch.customized-name": "newest"}
    table = make_table(tmp_path / "t", {**options, "num-sorted-run.compaction-trigger": "100"})
    with table.new_write() as writer:
        writer.write([{"id": 1}])
        table.new_commit("stream").commit(writer.prepare_commit())
    table.maintenance().after_commit()
    assert table.context.tags.names() == []
    for i in range(2):
        put(table, [{"id": i}])
    assert [(t.name, t.snapshot.id) for t in table.context.tags.tags()] == [("newest", 3)]


def test_changes_up_to_an_automatic_tag_are_those_since_the_one_before(tmp_path: Path) -> None:
    clock = ManualClock(START)
    options = {**ZONE, "tag.creation-period": "hourly", "num-sorted-run.compaction-trigger": "100"}
    table = make_table(tmp_path / "t", options, clock=clock)
    for i in range(6):
        put(table, [{"id": i}])
        clock.advance(1800)
    table.create_tag("mine")

    def changed(name: str) -> list[int]:
        return [r[0] for r in rows(table.with_options({"incremental-to-auto-tag": name}))]

    # Tags are of snapshots 1 (21 h), 2 (22 h), 4 (23 h) and 6 (0 h); a snapshot's row has the number before its own.
    assert changed("2024-03-10 22") == [1]
    assert changed("2024-03-10 23") == [2, 3]
    assert changed("2024-03-10 21") == [], "there is none before the first"
    assert changed("2024-03-11 07") == [], "this tag is to come"
    with pytest.raises(InvalidRequest, match=r"'mine', which is not a valid automatic tag name.*'2024-01-31 11'"):
        changed("mine")


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    for i, delay in enumerate(("2 d", "1 d", "1 ms")):
        options = {"tag.automatic-creation": "process-time", "tag.creation-delay": delay}
        with pytest.raises(InvalidRequest, match="shorter than a period") if i < 2 else nullcontext():
            make_table(tmp_path / f"b{i}", options).maintenance().create_auto_tags()
