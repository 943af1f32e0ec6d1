"""The lake snapshot that a stream of a whole table begins with, and the order of its splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import forebay.unionread.open_lakes as open_lakes
import forebay.unionread.streaming as streaming_lake
from forebay import col
from forebay.base.errors import ErrorCode, NotFound
from forebay.client.results import LakeSnapshot
from forebay.client.table import Table
from forebay.metadata.table import TableBucket
from forebay.testing.memory_lake import MemoryLakeStorage, expire_all_but_the_newest
from forebay.testing.memory_lake_source import MemorySource
from forebay.unionread.streaming import lake_pieces, lake_snapshot_to_begin_with
from tests.unionread.world import World, bag, compact

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.fixture
def lake(memory: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose tables name the lake in memory as theirs."""
    monkeypatch.setattr(open_lakes, "create_lake_storage", lambda _format, options: MemoryLakeStorage(options))
    return memory


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"n{i}"} for i in ids]


def tiered(world: World, *, keyed: bool = False, **options: Any) -> Table:
    table = world.create(COLUMNS, primary_key=["id"] if keyed else [], **options)
    (table.upsert if keyed else table.append)(rows(*range(10)))
    world.tier(table)
    return table


def begun(table: Table, earliest: int = 0) -> LakeSnapshot | None:
    """The snapshot that a stream begins with, where the logs begin at `earliest`."""

    def where(buckets: Sequence[TableBucket]) -> Mapping[TableBucket, int]:
        return dict.fromkeys(buckets, earliest)

    found = lake_snapshot_to_begin_with(table, table.buckets(), where)
    return None if found is None else found[0]


def expire(world: World, table: Table) -> None:
    """Remove the snapshot that the server knows; the one behind it is of another round."""
    world.commit_to_lake(table)
    assert isinstance(world.storage, MemoryLakeStorage)
    expire_all_but_the_newest(world.storage, table.path)


def test_a_stream_begins_with_the_newest_snapshot_that_the_server_knows(lake: World) -> None:
    assert begun(lake.create(COLUMNS)) is None
    table = tiered(lake)
    assert begun(table) == lake.admin.lake_snapshot(table.path)


def test_a_snapshot_that_was_compacted_and_expired_is_replaced_by_the_compacted_one(lake: World) -> None:
    table = tiered(lake)
    known = lake.admin.lake_snapshot(table.path)
    compact(lake, table, expire=True)
    found = begun(table, earliest=5)
    assert found is not None
    assert found.snapshot_id != known.snapshot_id
    assert found == replace(known, snapshot_id=found.snapshot_id)
    lake_pieces(table, found.snapshot_id)


@pytest.mark.parametrize("keyed", [True, False])
def test_the_stream_stands_in_for_an_expired_snapshot_where_it_has_all_rows(lake: World, keyed: bool) -> None:
    table = tiered(lake, keyed=keyed)
    expire(lake, table)
    assert begun(table) is None
    if keyed:
        assert begun(table, earliest=5) is None  # the servers have its rows, whatever the log has
        return
    with pytest.raises(NotFound, match="no longer begins at 0") as gone:
        begun(table, earliest=5)
    assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


def test_partitions_of_an_expired_snapshot_that_the_stream_has_too_are_read_from_it(lake: World) -> None:
    table = lake.create(pa.schema([("p", pa.string()), ("v", pa.int64())]), partition_keys=["p"])
    table.append([{"p": "a", "v": 1}, {"p": "b", "v": 1}])
    lake.tier(table)
    expire(lake, table)
    assert begun(table) is None
    table.drop_partition({"p": "a"})
    with pytest.raises(NotFound, match="1 partitions that only the lake had"):
        begun(table)


def test_a_snapshot_that_a_newer_round_has_replaced_meanwhile_is_not_requested_again(
    lake: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tiered(lake)
    old = lake.admin.lake_snapshot(table.path)
    table.append(rows(10))
    newest = lake.tier(table)
    assert isinstance(lake.storage, MemoryLakeStorage)
    expire_all_but_the_newest(lake.storage, table.path)
    answers = [old]
    ask = streaming_lake.readable_snapshot
    monkeypatch.setattr(streaming_lake, "readable_snapshot", lambda t: answers.pop() if answers else ask(t))
    found = begun(table)
    assert found is not None
    assert found.snapshot_id == newest


def test_a_snapshot_of_which_neither_lake_nor_server_know_any_more_is_an_error(
    lake: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tiered(lake)
    answers = [None, lake.admin.lake_snapshot(table.path)]
    expire(lake, table)
    monkeypatch.setattr(streaming_lake, "readable_snapshot", lambda _: answers.pop())
    with pytest.raises(NotFound) as gone:
        begun(table)
    assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


def test_pieces_come_in_one_order_and_filters_leave_out_rows_and_no_pieces(lake: World) -> None:
    table = tiered(lake, buckets=3)
    snapshot_id = lake.admin.lake_snapshot(table.path).snapshot_id
    _, whole = lake_pieces(table, snapshot_id)
    _, again = lake_pieces(table, snapshot_id, storage=lake.storage)
    reader, found = lake_pieces(table, snapshot_id, ["name"], col("id") > 7)
    serializer = lake.storage.create_source(table.path).split_serializer()
    named = [serializer.serialize(piece.lake) for piece in whole]
    assert named == sorted(named)
    assert whole == again == found
    read = [row for piece in found for batch in reader.read(piece) for row in batch.to_pylist()]
    assert bag(read) == bag([{"name": "n8"}, {"name": "n9"}])


def test_pieces_of_an_expired_snapshot_say_what_to_do(lake: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tiered(lake)
    snapshot_id = lake.admin.lake_snapshot(table.path).snapshot_id
    expire(lake, table)
    with pytest.raises(
        NotFound, match=rf"lake snapshot {snapshot_id}, which has expired: start it with another"
    ) as gone:
        lake_pieces(table, snapshot_id)
    assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST

    def missing(*_: object) -> None:
        raise NotFound("there is no such table", ErrorCode.TABLE_NOT_EXIST)

    monkeypatch.setattr(MemorySource, "create_planner", missing)
    with pytest.raises(NotFound, match="there is no such table"):
        lake_pieces(table, snapshot_id)
    with pytest.raises(NotFound, match="there is no such table"):
        begun(table)
