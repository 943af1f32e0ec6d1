"""Earlier states of tables with a lake: lake snapshots by number and tag, and the rows as of an instant."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from forebay import col
from forebay.base.errors import InvalidRequest, NotFound
from forebay.client.table import Table
from forebay.paimon.catalog.catalog import Catalog
from forebay.unionread import time_travel
from forebay.unionread.time_travel import AsOf, plan_as_of
from tests.unionread.world import MEMORY, PAIMON, World, bag, compact

ID = pa.field("id", pa.int64(), nullable=False)
SCHEMA = pa.schema([ID, ("v", pa.int64())])


def moment() -> dt.datetime:
    """A time between what was written before and what is written after."""
    time.sleep(0.003)
    now = dt.datetime.now(dt.UTC)
    time.sleep(0.003)
    return now


def rows(world: World, table: Table, as_of: AsOf, **options: Any) -> Counter[str]:
    plan = plan_as_of(table, as_of, storage=world.storage, **options)
    batches = (batch for split in plan.splits for batch in plan.reader.read(split, world.connection))
    return bag([row for batch in batches for row in batch.to_pylist()])


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
def test_an_instant_is_a_lake_snapshot_and_the_log_up_to_it(both: World, keyed: bool) -> None:
    table = both.create(SCHEMA, buckets=3, **({"primary_key": ["id"]} if keyed else {"bucket_keys": ["id"]}))
    states: list[tuple[dt.datetime, Counter[str], Counter[str]]] = []
    current: list[dict[str, int]] = []
    for step in range(6):
        written = [{"id": (step * 5 + i) % 12, "v": step} for i in range(8)]
        (table.upsert if keyed else table.append)(written)
        if keyed:
            current = list({row["id"]: row for row in [*current, *written]}.values())
            if step % 2:
                table.delete([step])
                current = [row for row in current if row["id"] != step]
        else:
            current = [*current, *written]
        some = [row for row in current if row["id"] in (1, 5)]
        states.append((moment(), bag(current), bag(some)))
        if step in (1, 3):
            both.tier(table)
        if step == 3 and both.lake != MEMORY:
            compact(both, table)
    for when, everything, some in states:
        assert rows(both, table, when) == everything, when
        assert rows(both, table, when.isoformat()) == everything
        assert rows(both, table, when, filter=col("id").is_in([1, 5])) == some
    if both.lake != MEMORY:  # which records no times
        used = [plan_as_of(table, when, storage=both.storage).facts.snapshot_id for when, _, _ in states]
        assert used[:2] == [None, None]
        assert None not in used[2:]
        assert (used[2], used[4]) == (used[3], used[5])
        assert used[2] != used[4]
    with pytest.raises(NotFound, match="did not exist as of 1970-01-01"):
        rows(both, table, dt.datetime.fromtimestamp(0, dt.UTC))
    with pytest.raises(InvalidRequest, match=r"it is .* now .*UTC"):
        rows(both, table, dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))


def test_a_version_is_a_snapshot_of_the_lake(both: World) -> None:
    table = both.create(SCHEMA, buckets=2, primary_key=["id"])
    table.upsert([{"id": 1, "v": 1}])
    first = both.tier(table)
    table.upsert([{"id": 1, "v": 2}, {"id": 2, "v": 2}])
    second = both.tier(table)
    table.upsert([{"id": 1, "v": 3}])
    assert rows(both, table, first) == bag([{"id": 1, "v": 1}])
    assert rows(both, table, second) == bag([{"id": 1, "v": 2}, {"id": 2, "v": 2}])
    with pytest.raises(NotFound, match="12345678"):
        rows(both, table, 12345678)
    with pytest.raises(NotFound, match="neither a tag of the lake of table"):
        rows(both, table, "no such tag")
    with pytest.raises(InvalidRequest, match="is no earlier state"):
        rows(both, table, True)
    if both.lake == PAIMON:
        Catalog.open(both.storage.options).table(str(table.path)).create_tag("then", first)  # type: ignore[attr-defined]
        assert rows(both, table, "then") == bag([{"id": 1, "v": 1}])


def test_scans_take_as_of(memory: World) -> None:
    table = memory.connection.create_table("fluss.travelled", SCHEMA, primary_key="id", buckets=2)
    table.upsert([{"id": 1, "v": 1}])
    then = moment()
    table.upsert([{"id": 1, "v": 2}, {"id": 2, "v": 2}])
    scan = table.scan(as_of=then, filter="id = 1")
    assert scan.to_arrow().to_pylist() == [{"id": 1, "v": 1}]
    assert (scan.count(), table.scan(as_of=then.isoformat(), source="union").count()) == (1, 1)
    parts = [scan.read_split(split).read_all() for split in scan.plan()]
    assert pa.concat_tables(parts).to_pylist() == [{"id": 1, "v": 1}]
    with pytest.raises(NotFound, match="has no commit 3: its history has none"):
        table.scan(as_of=3).count()
    with pytest.raises(InvalidRequest, match="has no earlier states"):
        table.scan(as_of=then, source="log")
    memory.connection.drop_table(table.path)


def test_an_instant_whose_log_is_gone_is_refused(memory: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = memory.create(SCHEMA, buckets=1, primary_key=["id"])
    table.upsert([{"id": 1, "v": 1}])
    then = moment()
    table.upsert([{"id": 1, "v": 2}])
    ask = time_travel.list_offsets

    def expired(cluster: Any, info: Any, buckets: Any, place: Any) -> Any:
        return dict.fromkeys(buckets, 1) if place == "earliest" else ask(cluster, info, buckets, place)

    monkeypatch.setattr(time_travel, "list_offsets", expired)
    with pytest.raises(NotFound, match="begins at offset 1, and no known lake snapshot"):
        rows(memory, table, then)


PARTITIONED = pa.schema([ID, pa.field("p", pa.string(), nullable=False)])


def meanwhile(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Have something happen once, right after a read as of then has found out what it begins with."""
    found, happened = time_travel.resolve, list[object]()

    def resolve(*given: Any) -> time_travel.ReadPoint:
        resolved = found(*given)
        if not happened:
            happened.append(change())
        return resolved

    monkeypatch.setattr(time_travel, "resolve", resolve)


def test_an_instant_has_no_partition_that_is_created_while_it_is_planned(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = memory.create(PARTITIONED, primary_key=["id", "p"], partition_keys=["p"])
    table.create_partition({"p": "a"})
    table.upsert([{"id": 1, "p": "a"}])
    then = moment()

    def write() -> None:
        table.create_partition({"p": "later"})
        table.upsert([{"id": 2, "p": "later"}])

    meanwhile(monkeypatch, write)
    assert rows(memory, table, then) == bag([{"id": 1, "p": "a"}])


def test_an_instant_is_planned_again_if_a_partition_is_dropped_meanwhile(
    memory: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = memory.create(PARTITIONED, partition_keys=["p"])
    for p in "ab":
        table.create_partition({"p": p})
    table.append([{"id": 1, "p": "a"}, {"id": 2, "p": "b"}])
    then = moment()
    meanwhile(monkeypatch, lambda: table.drop_partition({"p": "b"}))
    assert rows(memory, table, then) == bag([{"id": 1, "p": "a"}])


def test_a_time_before_the_table_is_refused(memory: World) -> None:
    table = memory.connection.create_table("fluss.created_now", SCHEMA, primary_key="id", buckets=1)
    table.upsert([{"id": 1, "v": 1}])
    message = r"table fluss.created_now did not exist as of 2001-01-01 00:00:00\+00:00: it was created"
    for at in ("2001-01-01T00:00Z", "2001-01-01"):
        with pytest.raises(NotFound, match=message):
            table.scan(as_of=at).count()
    memory.connection.drop_table(table.path)


def test_a_union_without_a_lake_says_once_that_it_reads_the_stream_only(
    memory: World, caplog: pytest.LogCaptureFixture
) -> None:
    without = memory.connection.create_table("fluss.without_lake", SCHEMA, buckets=1)
    tiered = memory.create(SCHEMA, buckets=1)
    for table in (without, without, tiered):
        assert table.scan(source="union").count() == 0
    assert [record.getMessage() for record in caplog.records if "no lake" in record.getMessage()] == [
        "forebay: table fluss.without_lake has no lake ('table.datalake.enabled' is not true), so the source 'union' "
        "reads the stream only"
    ]
    memory.connection.drop_table(without.path)
