"""`table.changes()`: start and end, contents, and continuing."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay import col
from forebay.api.changes import CHANGE_TYPE_COLUMN
from forebay.base.ambient import ManualClock
from forebay.base.errors import InvalidRequest, NotFound
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.table import Table
from tests.paimon.lake import at_ms

COLUMNS = {"id": "BIGINT", "v": "STRING"}
SECOND = 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def catalog(tmp_path: Path, clock: ManualClock) -> FileSystemCatalog:
    made = FileSystemCatalog(LocalFileIO(sync=False), str(tmp_path / "lake"), clock=clock)
    made.create_database("db")
    return made


@pytest.fixture
def table(catalog: FileSystemCatalog, clock: ManualClock) -> Table:
    """Snapshot 1: rows 1 and 2; 2: row 1 changes; 3: row 2 is deleted. A second lies between each."""
    options = {"changelog-producer": "input"}
    made = catalog.create_table("db.t", COLUMNS, primary_key="id", buckets=1, options=options)
    for changes in (
        [("insert", 1, "a"), ("insert", 2, "b")],
        [("update_before", 1, "a"), ("update_after", 1, "A")],
        [("delete", 2, "b")],
    ):
        made.write_changes([{CHANGE_TYPE_COLUMN: kind, "id": i, "v": v} for kind, i, v in changes])
        clock.sleep(1)
    return made


def seen(found: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


FULL = [("insert", 1, "A")]
FIRST = [("insert", 1, "a"), ("insert", 2, "b")]
SECOND_CHANGES = [("update_before", 1, "a"), ("update_after", 1, "A")]
THIRD = [("delete", 2, "b")]


# ---- beginning ------------------------------------------------------------------------------------------------------


def test_changes_begin_with_the_rows_of_the_earliest_snapshot_as_inserts(table: Table) -> None:
    assert seen(table.changes(stop="latest")) == FIRST + SECOND_CHANGES + THIRD
    table.expire_snapshots(retain_min=1, retain_max=2)
    assert table.context.snapshots.ids() == [2, 3]
    assert seen(table.changes("earliest", stop="latest")) == [("insert", 1, "A"), ("insert", 2, "b"), *THIRD]


def test_changes_may_begin_with_the_rows_of_now_or_with_what_comes(table: Table) -> None:
    assert seen(table.changes("full", stop="latest")) == FULL
    later = table.changes("latest")
    assert later.poll() is None
    table.upsert([{"id": 3, "v": "c"}])
    assert seen([later.poll()]) == [("insert", 3, "c")]
    assert later.snapshot_id == 4


def test_changes_may_begin_at_a_snapshot_or_a_time(table: Table) -> None:
    assert seen(table.changes(2, stop="latest")) == SECOND_CHANGES + THIRD
    moment = at_ms(table.context.snapshots.snapshot(3).time_millis)
    for start in (moment, moment.isoformat(), moment - dt.timedelta(milliseconds=500)):
        assert seen(table.changes(start, stop="latest")) == THIRD, start
    table.expire_snapshots(retain_min=1, retain_max=1)
    with pytest.raises(NotFound, match=r"snapshot 2 of .* has expired"):
        table.changes(2, stop="latest").to_arrow()


def test_scan_options_of_the_table_say_where_changes_begin_unless_start_does(table: Table) -> None:
    chosen = table.with_options({"scan.mode": "from-snapshot", "scan.snapshot-id": 3})
    assert seen(chosen.changes(stop="latest")) == THIRD
    assert seen(chosen.changes(2, stop="latest")) == SECOND_CHANGES + THIRD
    assert seen(chosen.changes("full", stop="latest")) == FULL


def test_changes_continue_from_a_position_exactly(table: Table) -> None:
    changes = table.changes(stop="latest")
    found = [changes.poll()]
    position = json.loads(json.dumps(changes.position))
    rest = seen(table.changes(position, stop="latest"))
    assert seen(found) + rest == FIRST + SECOND_CHANGES + THIRD
    end = table.changes(position, stop="latest")
    end.to_arrow()
    table.upsert([{"id": 9, "v": "z"}])
    assert seen(table.changes(end.position, stop="latest")) == [("insert", 9, "z")]


# ---- end ------------------------------------------------------------------------------------------------------------


def test_changes_up_to_now_leave_out_what_comes_while_they_are_read(table: Table) -> None:
    changes = table.changes(2, stop="latest")
    first = changes.poll()
    table.upsert([{"id": 3, "v": "c"}])
    assert seen([first, *changes]) == SECOND_CHANGES + THIRD
    assert changes.finished
    assert seen(table.changes(changes.position, stop="latest")) == [("insert", 3, "c")]


def test_changes_may_end_at_a_time(table: Table, clock: ManualClock) -> None:
    third = at_ms(table.context.snapshots.snapshot(3).time_millis)
    assert seen(table.changes(2, stop=third)) == SECOND_CHANGES
    assert seen(table.changes(2, stop=third.isoformat())) == SECOND_CHANGES
    to_come = table.changes(2, stop=at_ms(clock.now_ms() + 30 * SECOND))
    assert seen(to_come) == SECOND_CHANGES + THIRD  # it has waited until then
    assert clock.now_ms() >= table.context.snapshots.snapshot(3).time_millis + 30 * SECOND


def test_without_an_end_one_waits_as_long_as_one_wants(table: Table, clock: ManualClock) -> None:
    before = clock.monotonic()
    assert seen(table.changes("full", timeout="25 s")) == FULL
    assert 25 <= clock.monotonic() - before < 40
    waiting = table.changes("latest")
    before = clock.monotonic()
    assert waiting.poll(dt.timedelta(seconds=12)) is None
    assert 12 <= clock.monotonic() - before < 25
    forms: list[Callable[[], Any]] = [lambda: pa.table(waiting), waiting.to_arrow, waiting.to_pandas, waiting.reader]
    for form in forms:
        with pytest.raises(InvalidRequest, match="have no end: give stop='latest'"):
            form()


def test_changes_that_are_closed_bring_nothing_more(table: Table) -> None:
    with table.changes(stop="latest") as changes:
        assert changes.poll() is not None
    assert (changes.poll(), list(changes), changes.finished) == (None, [], True)


# ---- what comes -----------------------------------------------------------------------------------------------------


def test_changes_with_an_end_come_in_every_form(table: Table) -> None:
    expected = FIRST + SECOND_CHANGES + THIRD
    found = table.changes(stop="latest").to_arrow()
    assert found.schema == pa.schema(
        [
            pa.field("_change_type", pa.dictionary(pa.int8(), pa.string()), nullable=False),
            pa.field("id", pa.int64(), nullable=False),
            pa.field("v", pa.string()),
        ]
    )
    assert [tuple(row.values()) for row in found.to_pylist()] == expected
    assert list(table.changes(stop="latest").to_pandas()["_change_type"]) == [kind for kind, *_ in expected]
    assert pa.table(table.changes(stop="latest")).equals(found)
    assert table.changes(stop="latest").reader().read_all().equals(found)


def test_columns_and_rows_are_chosen(table: Table) -> None:
    assert seen(table.changes(stop="latest", columns=["v"], filter="id = 2")) == [("insert", "b"), ("delete", "b")]
    assert seen(table.changes(2, "latest", filter=col("v") == "A")) == [("update_after", 1, "A")]
    bare = table.changes(3, stop="latest", include=())
    assert (bare.schema.names, seen(bare)) == (["id", "v"], [(2, "b")])


def test_partitions_and_buckets_share_the_changes(catalog: FileSystemCatalog) -> None:
    columns = {"id": "BIGINT", "day": "DATE", "city": "STRING"}
    table = catalog.create_table("db.p", columns, partition_keys=["day", "city"])
    days = [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]
    table.append(
        [{"id": 2 * i + j, "day": day, "city": c} for i, day in enumerate(days) for j, c in enumerate(("a", "b'"))]
    )
    table.append([{"id": 9, "day": None, "city": "a"}])

    def ids(partitions: Any) -> list[int]:
        return sorted(row[1] for row in seen(table.changes(stop="latest", partitions=partitions)))

    assert ids("2024-01-01$a") == [0]
    assert ids({"day": days[1]}) == [2, 3]
    assert ids([{"day": "2024-01-02"}, {"city": "b'"}]) == [1, 2, 3]
    assert ids({"day": None}) == [9]
    wrongs: list[Any] = ["2024-01-01", {"id": 1}, 5, [{}]]
    for wrong in wrongs:
        with pytest.raises(InvalidRequest, match="partition"):
            table.changes(partitions=wrong)
    keyed = catalog.create_table("db.b", COLUMNS, primary_key="id", buckets=3)
    keyed.upsert([{"id": i} for i in range(20)], missing="null")
    parts = [[row[1] for row in seen(keyed.changes(stop="latest", buckets=[b]))] for b in range(3)]
    assert sorted(i for part in parts for i in part) == list(range(20))
    assert all(parts)


def test_changes_of_a_table_that_is_empty_begin_when_rows_come(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.e", COLUMNS)
    changes = table.changes()
    assert (changes.poll(), seen(table.changes(stop="latest"))) == (None, [])
    table.append([{"id": 1, "v": "a"}])
    assert seen([changes.poll()]) == [("insert", 1, "a")]


def test_a_table_with_such_a_column_of_its_own_is_read_without_ours(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.c", {"_change_type": "STRING"})
    table.append([{"_change_type": "mine"}])
    with pytest.raises(InvalidRequest, match=r"has a column '_change_type' of its own; read with include=\(\)"):
        table.changes()
    assert seen(table.changes(stop="latest", include=())) == [("mine",)]
