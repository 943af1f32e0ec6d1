"""Union reads of a lake table that others have rolled back: every acknowledged row, or an error that says why not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.base.errors import ErrorCode, NotFound
from forebay.client.table import Table
from forebay.unionread import open_lakes, planning, streaming
from forebay.unionread.streaming import FullRead, StreamOffset, lake_pieces, lake_snapshot_to_begin_with
from tests.lake.rolling_back import disturb, undo
from tests.unionread.world import ICEBERG, MEMORY, PAIMON, World, bag, replayed, world

COLUMNS = {"id": "INT", "name": "STRING"}
KINDS = pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
REUSED = [MEMORY, PAIMON]
"""The lakes whose ids come again after a rollback."""


@pytest.fixture(scope="module", params=[MEMORY, PAIMON, ICEBERG])
def every(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp(request.param), request.param) as running:
        yield running


@pytest.fixture
def lake(every: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose tables name its lake as theirs."""
    monkeypatch.setattr(open_lakes, "create_lake_storage", lambda _format, _options: every.storage)
    return every


def write(table: Table, *ids: int, name: str = "n") -> None:
    rows = [{"id": i, "name": f"{name}{i}"} for i in ids]
    (table.upsert if table.has_primary_key else table.append)(rows)


def undone(world: World, keyed: bool = False, commits: int = 0) -> tuple[Table, int, int]:
    """A table of two rounds, the second of which was rolled back, and rows behind it: their snapshots."""
    table = world.create(COLUMNS, primary_key=["id"] if keyed else [])
    write(table, 1, 2)
    first = world.tier(table)
    write(table, 2, 3, name="second ")
    second = world.tier(table)
    write(table, 4, 1, name="in the log ")
    undo(world.storage, table.path, first)
    for _ in range(commits):
        disturb(world.storage, table.path)
    return table, first, second


@KINDS
@pytest.mark.parametrize("commits", [0, 1, 2])
def test_no_row_is_lost_and_none_comes_twice(lake: World, keyed: bool, commits: int) -> None:
    table, first, second = undone(lake, keyed, commits)
    assert lake.rows(table) == replayed(table)
    scan = table.scan(source="union")
    assert bag(scan.to_arrow()) == replayed(table)
    if lake.lake in REUSED:  # Iceberg still has what was undone
        said = f"snapshot {second} was undone by a rollback of the lake table, so snapshot {first} is read"
        assert said in scan.explain()
    stop = table.changes("earliest", "latest").stop_offsets or {}
    write(table, 9)
    assert lake.rows(table, stop=stop) == replayed(table, stop=stop)


@KINDS
def test_what_was_undone_and_made_again_is_read_as_it_is_now(lake: World, keyed: bool) -> None:
    table, first, _ = undone(lake, keyed)
    known = lake.admin.lake_snapshot(table.path)
    path = lake.worker.prepare(table.info, lake.admin.lake_snapshot(table.path, first).log_offsets, merge=False)
    before = lake.admin.lake_snapshot(table.path, first)
    lake.worker.commit(table.info, first, path, replaces=known.offsets_name)  # the lake has another file: unknown
    assert lake.admin.lake_snapshot(table.path).log_offsets == before.log_offsets
    assert lake.rows(table) == replayed(table)


@KINDS
def test_rows_that_neither_lake_nor_stream_have_are_an_error_that_names_the_remedy(
    lake: World, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lake.lake not in REUSED:
        pytest.skip("the snapshot that was undone is still there")
    table, _, second = undone(lake, keyed)
    asked = planning.list_offsets

    def trimmed(cluster: Any, info: Any, buckets: Any, which: Any) -> Any:
        return {b: 3 if which == planning.EARLIEST else o for b, o in asked(cluster, info, buckets, which).items()}

    stop = table.changes("earliest", "latest").stop_offsets or {}
    monkeypatch.setattr(planning, "list_offsets", trimmed)
    with pytest.raises(NotFound, match=rf"{second} of table .* was rolled back .*tiering repair {table.path}`") as lost:
        lake.plan(table, stop=stop)
    assert lost.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    if keyed:  # up to now, the server has all rows
        monkeypatch.undo()
        assert lake.rows(table) == replayed(table)


def test_a_partition_that_only_the_undone_snapshot_had_is_an_error(lake: World) -> None:
    if lake.lake not in REUSED:
        pytest.skip("the snapshot that was undone is still there")
    table = lake.create({"p": "STRING", "v": "INT"}, partition_keys=["p"])
    table.append([{"p": "a", "v": 1}])
    first = lake.tier(table)
    table.append([{"p": "b", "v": 2}])
    lake.tier(table)
    table.drop_partition({"p": "b"})
    assert lake.rows(table) == bag([{"p": "a", "v": 1}, {"p": "b", "v": 2}])
    undo(lake.storage, table.path, first)
    with pytest.raises(NotFound, match=r"rolled back by another process.*1 partitions that only the lake had"):
        lake.plan(table)


def test_the_lake_alone_is_read_as_it_is_now(lake: World) -> None:
    if lake.lake not in REUSED:
        pytest.skip("the snapshot that was undone is still there")
    table, first, _ = undone(lake, commits=1)
    plan = lake.plan(table, lake_only=True)
    assert (plan.facts.snapshot_id, plan.facts.rolled_back) == (first, True)
    assert lake.rows(table, lake_only=True) == bag([{"id": i, "name": f"n{i}"} for i in (1, 2)])


# ---- positions that were saved before the rollback ------------------------------------------------------------------


def test_a_pinned_scan_of_what_was_undone_says_so_and_reads_nothing_else(lake: World) -> None:
    if lake.lake not in REUSED:
        pytest.skip("the snapshot that was undone is still there")
    table = lake.create(COLUMNS)
    write(table, 1)
    first = lake.tier(table)
    write(table, 2)
    second = lake.tier(table)
    numbered = table.scan(source="union", as_of=second).pinned()
    assert numbered.count() == 2
    undo(lake.storage, table.path, first)
    disturb(lake.storage, table.path)
    with pytest.raises(NotFound, match=r"pinned state of table .* no longer exists, pin it again.*rolled back"):
        numbered.count()
    assert table.scan(source="union", as_of=second).count() == 1  # what has this number now


def test_an_instant_is_not_read_from_a_snapshot_that_has_the_number_of_an_undone_one(lake: World) -> None:
    if lake.lake == MEMORY:
        pytest.skip("it does not record the times of snapshots")
    table, _, _ = undone(lake, commits=1)
    now = lake.connection.clock.now_ms()
    assert bag(table.scan(source="union", as_of=_iso(now)).to_arrow()) == replayed(table)


def _iso(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat()


def test_a_stream_that_begins_after_a_rollback_begins_with_what_the_lake_has(lake: World) -> None:
    table, first, second = undone(lake, commits=1)

    def where(buckets: Any) -> Any:
        return dict.fromkeys(buckets, 0)

    found = lake_snapshot_to_begin_with(table, table.buckets(), where)
    assert found is not None
    begun, identity = found
    assert begun.snapshot_id == (first if lake.lake in REUSED else second)
    _, pieces = lake_pieces(table, begun.snapshot_id, identity=identity)
    assert pieces


def test_a_stream_that_has_not_read_all_of_an_undone_snapshot_is_refused(lake: World) -> None:
    if lake.lake not in REUSED:
        pytest.skip("the snapshot that was undone is still there")
    table = lake.create(COLUMNS)
    write(table, 1)
    first = lake.tier(table)
    write(table, 2)
    second = lake.tier(table)
    found = lake_snapshot_to_begin_with(table, table.buckets(), lambda buckets: dict.fromkeys(buckets, 0))
    assert found is not None
    begun, identity = found
    assert begun.snapshot_id == second
    undo(lake.storage, table.path, first)
    disturb(lake.storage, table.path)
    with pytest.raises(NotFound, match=rf"lake snapshot {second}, which was rolled back, and whose number"):
        lake_pieces(table, second, identity=identity)
    assert lake_pieces(table, second)[1]  # an offset of an earlier release does not say which one it was


def test_an_offset_carries_the_identity_of_its_lake_snapshot(lake: World) -> None:
    full = FullRead(7, None, (), 1, "manifest-list-x")
    offset = StreamOffset(3, {}, full)
    assert StreamOffset.from_json(offset.to_json()) == offset
    old = StreamOffset(3, {}, FullRead(7, None, (), 1)).to_json()
    assert "lake_identity" not in old["full"]
    assert StreamOffset.from_json(old).full == FullRead(7, None, (), 1)
    assert streaming.VERSION == 1
