"""Expiry of partitions by the time in their values, or of their last change; maintenance after commits."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import InvalidRequest
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.maintain.partition_expiry import PartitionExpiry, idle_partitions
from forebay.paimon.maintain.partition_time import PartitionTime
from tests.paimon.lake import put
from tests.paimon.maintain.lakes import FAST, make_table, open_table, rows

LOCAL_NOON = datetime.datetime(2024, 3, 10, 12)


def clock_at(moment: datetime.datetime) -> ManualClock:
    return ManualClock(round(moment.timestamp() * 1000))


@pytest.mark.parametrize(
    ("pattern", "formatter", "values", "wanted"),
    [
        (None, None, {"dt": "2024-03-01"}, datetime.datetime(2024, 3, 1)),
        (None, None, {"dt": "2024-3-1 4:05:06.25"}, datetime.datetime(2024, 3, 1, 4, 5, 6, 250_000)),
        (None, "yyyyMMdd", {"dt": "20240301", "h": "x"}, datetime.datetime(2024, 3, 1)),
        ("$dt $h:00:00", None, {"dt": "2024-03-01", "h": "7"}, datetime.datetime(2024, 3, 1, 7)),
        ("$dt1$dt", "yyyyMMddHH", {"dt": "07", "dt1": "20240301"}, datetime.datetime(2024, 3, 1, 7)),
        ("$y-$m", "yyyy-MM", {"y": "2024", "m": "03"}, datetime.datetime(2024, 3, 1)),
        (None, "'day' dd.MM.yyyy", {"dt": "day 01.03.2024"}, datetime.datetime(2024, 3, 1)),
        (None, None, {"dt": "yesterday"}, None),
        (None, None, {"dt": None}, None),
        ("$dt $h:00:00", None, {"dt": "2024-03-01", "h": None}, None),
        (None, "yyyyMMdd", {"dt": "20241399"}, None),
    ],
)
def test_a_partitions_time_is_read_by_pattern_and_format(
    pattern: str | None, formatter: str | None, values: dict[str, str | None], wanted: datetime.datetime | None
) -> None:
    assert PartitionTime(pattern, formatter).of(values) == wanted


def test_letters_of_other_formats_are_named() -> None:
    with pytest.raises(InvalidRequest, match="'E' is not supported"):
        PartitionTime(None, "EEE yyyy")


def test_partitions_are_idle_by_the_time_of_their_newest_file(tmp_path: Path) -> None:
    clock = clock_at(LOCAL_NOON)
    table = daily(tmp_path / "t", clock)
    old, young = datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)
    put(table, [{"dt": old, "id": 1}, {"dt": young, "id": 1}])
    clock.advance(10)
    put(table, [{"dt": young, "id": 2}])
    entries = table.context.manifests.live_files(table.context.snapshots.latest())
    of = {e.file.creation_time: e.partition for e in entries if e.file.row_count}
    made = clock.now_ms() - 10_000
    by_time = [idle_partitions(entries, made + late) for late in (0, 1, 10_000, 10_001)]
    assert [len(idle) for idle in by_time] == [0, 1, 1, 2]
    assert of[max(of)] not in by_time[1]
    unknown = [replace(e, file=replace(e.file, creation_time=None)) for e in entries]
    assert idle_partitions(unknown, made + 20_000) == frozenset()


COLUMNS = pa.schema([("dt", pa.date32()), ("id", pa.int64())])


def daily(root: Path, clock: ManualClock | None = None, **options: str) -> Any:
    return make_table(root, options, COLUMNS, ("dt", "id"), ("dt",), clock)


def test_partitions_older_than_their_time_are_dropped(tmp_path: Path) -> None:
    clock = clock_at(LOCAL_NOON)
    table = daily(tmp_path / "t", clock, **{"partition.expiration-time": "7 d"})
    put(table, [{"dt": datetime.date(2024, 3, d), "id": 1} for d in (1, 2, 3, 4, 10)])
    # Seven days before noon of the 10th is noon of the 3rd.
    assert table.expire_partitions() == [{"dt": d} for d in (19783, 19784, 19785)]
    assert [r[0].day for r in rows(table)] == [4, 10]
    assert table.expire_partitions() == []
    assert len(table.expire_partitions(datetime.timedelta(milliseconds=1))) == 2


def test_no_more_partitions_go_at_once_than_allowed_the_oldest_first(tmp_path: Path) -> None:
    options = {"partition.expiration-time": "1 d", "partition.expiration-max-num": "2"}
    table = daily(tmp_path / "t", clock_at(LOCAL_NOON), **options)
    put(table, [{"dt": datetime.date(2024, 3, d), "id": 1} for d in (3, 1, 2)])
    assert [len(table.expire_partitions()) for _ in range(3)] == [2, 1, 0]


def test_by_update_time_any_partition_expires(tmp_path: Path) -> None:
    clock = clock_at(LOCAL_NOON)
    columns = pa.schema([("p", pa.string()), ("id", pa.int64())])
    options = {"partition.expiration-time": "1 h", "partition.expiration-strategy": "update-time"}
    table = make_table(tmp_path / "t", options, columns, ("p", "id"), ("p",), clock)
    put(table, [{"p": "a", "id": 1}, {"p": "b", "id": 1}])
    clock.advance(2000)
    put(table, [{"p": "b", "id": 2}])
    clock.advance(2000)
    assert table.expire_partitions() == [{"p": "a"}]
    assert rows(table) == [("b", 1), ("b", 2)]


def test_a_partition_that_is_written_to_while_old_ones_expire_stays(tmp_path: Path) -> None:
    clock = clock_at(LOCAL_NOON)
    columns = pa.schema([("p", pa.string()), ("id", pa.int64())])
    options = {"partition.expiration-time": "1 h", "partition.expiration-strategy": "update-time"}
    table = make_table(tmp_path / "t", options, columns, ("p", "id"), ("p",), clock)
    put(table, [{"p": p, "id": 1} for p in "abc"])
    clock.advance(4000)
    written = iter("ab")

    def commit() -> FileStoreCommit:
        put(table, [{"p": next(written), "id": 2}])  # by another process, in the meantime
        return table.new_commit()

    assert PartitionExpiry(table.context, commit).expire() == [{"p": "b"}, {"p": "c"}]
    assert rows(table) == [("a", 1), ("a", 2)]
    clock.advance(4000)
    assert PartitionExpiry(table.context, lambda: table.new_commit()).expire(dry_run=True) == [{"p": "a"}]
    put(table, [{"p": "b", "id": 1}])
    clock.advance(4000)
    put(table, [{"p": "a", "id": 3}])
    assert PartitionExpiry(table.context, commit).expire() == []
    assert rows(table) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]


def test_null_partitions_stay_by_values_time(tmp_path: Path) -> None:
    options = {"partition.expiration-time": "1 d"}
    table = make_table(tmp_path / "t", options, COLUMNS, (), ("dt",), clock_at(LOCAL_NOON))
    put(table, [{"dt": None, "id": 1}, {"dt": datetime.date(2024, 1, 1), "id": 2}])
    assert table.expire_partitions() == [{"dt": 19723}]
    assert rows(table) == [(None, 1)]


def test_what_cannot_expire_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no partitions"):
        make_table(tmp_path / "a").expire_partitions(datetime.timedelta(days=1))
    with pytest.raises(InvalidRequest, match=r"partition\.expiration-time"):
        daily(tmp_path / "b").expire_partitions()
    table = daily(tmp_path / "c", **{"partition.expiration-strategy": "magic", "partition.expiration-time": "1 d"})
    put(table, [{"dt": LOCAL_NOON.date(), "id": 1}])
    with pytest.raises(InvalidRequest, match="values-time or update-time"):
        table.expire_partitions()


def test_writers_expire_after_commits_unless_write_only(tmp_path: Path) -> None:
    for write_only, wanted in (("false", 2), ("true", 5)):
        options = {"snapshot.num-retained.min": "2", "snapshot.num-retained.max": "2", "write-only": write_only}
        table = make_table(tmp_path / write_only, options)
        for i in range(5):
            put(table, [{"id": i}])
        assert len(table.context.snapshots.ids()) == wanted
        table.compact(full=True)  # the job that does for writers what they must not do
        assert len(table.context.snapshots.ids()) == 2
        assert len(rows(table)) == 5


def test_a_commit_stands_though_the_upkeep_behind_it_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tests.paimon.failing import FailingFileIO

    io = FailingFileIO(FAST)
    options = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "1", "write-only": "false"}
    put(make_table(tmp_path / "t", options), [{"id": 1}])
    table = open_table(tmp_path / "t", io)
    io.fail_at("list", "/tag", times=3)
    assert put(table, [{"id": 2}]) is not None
    assert "upkeep" in caplog.text
    assert rows(open_table(tmp_path / "t")) == [(1, None), (2, None)]


def test_writers_look_for_old_partitions_once_in_an_interval(tmp_path: Path) -> None:
    clock = clock_at(LOCAL_NOON)
    old, new = LOCAL_NOON.date() - datetime.timedelta(days=30), LOCAL_NOON.date()
    options = {"partition.expiration-time": "7 d", "write-only": "false"}
    table = daily(tmp_path / "t", clock, **options)

    def days_after_write() -> set[Any]:
        put(table, [{"dt": old, "id": 1}, {"dt": new, "id": 2}])
        return {row[0] for row in rows(table)}

    assert days_after_write() == {old, new}, "the interval of an hour has only begun"
    clock.advance(3600)
    assert days_after_write() == {new}
    assert days_after_write() == {old, new}
    each_time = open_table(tmp_path / "t", clock=clock, **{"partition.expiration-check-interval": "0 s"})
    put(each_time, [{"dt": old, "id": 1}])
    assert {row[0] for row in rows(table)} == {new}
    at_the_end = open_table(tmp_path / "t", clock=clock, **{"end-input.check-partition-expire": "true"})
    put(at_the_end, [{"dt": old, "id": 1}])
    assert {row[0] for row in rows(table)} == {new}
