"""Streams against replay: whatever happens to the table meanwhile, each change is returned once and in order."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.predicate import col
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.consumers import ConsumerManager, ConsumerPosition
from forebay.paimon.store.schema_changes import AddColumn, DropColumn, RenameColumn
from forebay.paimon.table import Table
from tests.every_run import every_run
from tests.paimon.compact.trees import TINY_FILES
from tests.paimon.lake import altered, new_catalog, put, stream_of
from tests.paimon.stream.model import (
    COLUMNS,
    Change,
    State,
    apply,
    changes_of,
    compact_fully,
    drain,
    json_round_trip,
    random_rows,
    state_of,
)


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


def keyed(catalog: FileSystemCatalog, name: str = "db.t", **options: str) -> Table:
    return catalog.create_table(name, COLUMNS, primary_key=["id"], options={"bucket": "3", **options})


def random_step(table: Table, rng: np.random.Generator, keys: int = 12) -> None:
    """One commit: an upsert, a delete, a compaction, or nothing but statistics."""
    changelog = table.context.options.changelog_producer == "full-compaction"
    match int(rng.integers(0, 8)):
        case 0 if table.context.snapshots.latest_id() is not None:
            table.delete([{"id": int(i)} for i in rng.choice(keys, 2, replace=False)])
        case 1 | 2 if table.context.snapshots.latest_id() is not None:
            compact_fully(table, changelog=changelog)
        case 3 if table.context.snapshots.latest_id() is not None:
            table.analyze()
        case _:
            put(table, random_rows(rng, keys, 4))


def visible(table: Table) -> State:
    """What the changes up to now add up to: with full compactions as producer, the state as of the last of them."""
    if table.context.options.changelog_producer != "full-compaction":
        return state_of(table)
    compacted = [s.id for s in table.context.snapshots.snapshots() if s.commit_kind == "COMPACT"]
    return state_of(table, as_of=compacted[-1]) if compacted else {}


@pytest.mark.parametrize("producer", ["none", "input", "full-compaction"])
@pytest.mark.parametrize("seed", every_run(range(6), lambda seed: seed < 2))
@pytest.mark.one_in(3)
def test_replaying_a_stream_with_restarts_anywhere_gives_the_table(
    catalog: FileSystemCatalog, producer: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    table = keyed(catalog, **{"changelog-producer": producer})
    replayed: State = {}
    stream = stream_of(table, follow=False)
    for _ in range(25):
        random_step(table, rng)
        for _ in range(int(rng.integers(0, 4))):
            batch = stream.poll()
            if batch is None:
                break
            apply(replayed, changes_of([batch]))
            if rng.random() < 0.4:
                saved = json_round_trip(stream.state())
                stream = stream_of(catalog.table("db.t"), state=saved, follow=False)
    apply(replayed, drain(stream))
    assert replayed == visible(table)
    # A stream that starts at the first snapshot, and one that reads a state in full first, come to the same.
    first = stream_of(table.with_options({"scan.snapshot-id": "1"}), follow=False)
    assert apply({}, drain(first)) == visible(table)
    assert apply({}, drain(stream_of(table, follow=False))) == visible(table)


@pytest.mark.parametrize("start", [1, 4, 8])
def test_a_stream_from_any_snapshot_completes_the_state_of_then(catalog: FileSystemCatalog, start: int) -> None:
    rng = np.random.default_rng(start)
    table = keyed(catalog, **{"changelog-producer": "input"})
    for _ in range(12):
        put(table, random_rows(rng, 12, 4))
    options = {"scan.mode": "from-snapshot-full", "scan.snapshot-id": str(start)}
    assert apply({}, drain(stream_of(table.with_options(options), follow=False))) == state_of(table)
    state = state_of(table, as_of=start)
    options = {"scan.mode": "from-snapshot", "scan.snapshot-id": str(start + 1)}
    assert apply(state, drain(stream_of(table.with_options(options), follow=False))) == state_of(table)


def test_a_reader_far_behind_sees_compacted_rows_once(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    put(table, [{"id": i} for i in range(3)])
    stream = stream_of(table, ["id"], follow=False)
    assert [row[0] for _, row in drain(stream)] == [0, 1, 2]
    for i in range(100, 111):
        put(table, [{"id": i}])
        if i == 104:
            compact_fully(table)
    assert [row[0] for _, row in drain(stream)] == list(range(100, 111))


def test_buckets_divide_the_work_in_all_phases(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog, **{"changelog-producer": "input"})
    put(table, [{"id": i} for i in range(40)])
    streams = [stream_of(table, ["id"], buckets={b}, follow=False) for b in range(3)]
    streams.append(stream_of(table.with_options({"scan.bucket": "1"}), ["id"], follow=False))
    full = [sorted(row[0] for _, row in drain(s)) for s in streams]
    assert sorted(full[0] + full[1] + full[2]) == list(range(40))
    assert full[3] == full[1]
    for i in range(40, 60):  # a long way to catch up
        put(table, [{"id": i}])
    later = [sorted(row[0] for _, row in drain(s)) for s in streams]
    assert sorted(later[0] + later[1] + later[2]) == list(range(40, 60))


def test_a_state_says_which_split_is_next_within_a_snapshot(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    put(table, [{"id": i} for i in range(30)])
    stream = stream_of(table, ["id"], follow=False)
    stream.poll()
    stream.poll()
    state = json_round_trip(stream.state())
    assert (state["scan"]["full"], state["scan"]["split"]) == (1, 1)
    put(table, [{"id": 100}])
    rest = [row[0] for _, row in drain(stream)]
    again = [row[0] for _, row in drain(stream_of(table, ["id"], state=state, follow=False))]
    assert again == rest
    assert rest[-1] == 100
    with pytest.raises(InvalidRequest, match="the options, filter and buckets that it had"):
        stream_of(table, ["id"], state=state, buckets={0}, follow=False).poll()
    with pytest.raises(InvalidRequest, match="no state"):
        stream_of(table, state={"scan": {"version": 1}, "rows": 0})


def test_a_state_within_a_split_is_exact_to_the_row(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS, options={"file.block-size": "64 kb"})
    count = 300_000
    put(table, pa.table({"id": np.arange(count), "v": pa.array(np.arange(count), pa.int32())}))
    stream = stream_of(table, ["id"], follow=False)
    seen: list[Any] = []
    while (batch := stream.poll()) is not None:
        seen += batch.column("id").to_pylist()
        stream = stream_of(table, ["id"], state=json_round_trip(stream.state()), follow=False)
    assert seen == list(range(count))


def test_a_state_of_another_plan_is_refused_also_where_the_plan_is_in_hand(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    put(table, [{"id": i} for i in range(9)])
    stream = stream_of(table, ["id"], follow=False)
    stream.poll()
    state = stream.state()
    stream.restore(state)
    state["scan"]["plan"] = "0123456789abcdef"
    with pytest.raises(InvalidRequest, match="planned in another way"):
        stream.restore(state)
    elsewhere = stream_of(table, ["id"], follow=False)
    elsewhere.restore(state)
    with pytest.raises(InvalidRequest, match="planned in another way"):
        elsewhere.poll()


def test_a_stream_that_follows_waits_between_its_looks(tmp_path: Path) -> None:
    class Clock(ManualClock):
        """With each wait there comes a row."""

        def sleep(self, seconds: float) -> None:
            waits.append(seconds)
            if len(waits) % 2 == 0:
                put(table, [{"id": len(waits)}])

    waits: list[float] = []
    made = FileSystemCatalog(LocalFileIO(sync=False), str(tmp_path / "lake"), clock=Clock())
    made.create_database("db")
    table = keyed(made, **{"continuous.discovery-interval": "3 s"})
    stream = stream_of(table, ["id"])
    assert [next(stream)["id"].to_pylist() for _ in range(2)] == [[2], [4]]
    assert waits == [3.0] * 4


def test_a_stream_of_new_files_begins_with_those_that_compaction_took_up(tmp_path: Path) -> None:
    """Of files made since a time, and of levels that are no more to bring a changelog."""
    clock = ManualClock()
    made = FileSystemCatalog(LocalFileIO(sync=False), str(tmp_path / "lake"), clock=clock)
    made.create_database("db")
    table = keyed(made, **{"bucket": "1", "changelog-producer": "lookup", "write-only": "true", **TINY_FILES})
    put(table, [{"id": 1}])
    table.compact(full=True)
    clock.advance(100)
    since = {"scan.file-creation-time-millis": str(clock.now_ms())}
    put(table, [{"id": 2}])
    assert drain(stream_of(table.with_options(since), ["id"], follow=False)) == []
    table.compact(full=True)
    assert [row for _, row in drain(stream_of(table.with_options(since), ["id"], follow=False))] == [(2,)]


def test_a_plan_takes_as_many_splits_as_rows_are_wanted(catalog: FileSystemCatalog) -> None:
    from forebay.paimon.read.stream import StreamScan

    table = keyed(catalog)
    put(table, [{"id": i} for i in range(30)])
    scan = StreamScan(table.context)
    plans = [scan.plan(max_rows=n) for n in (1, 1000)]
    assert [len(p.splits) for p in plans if p] == [1, 2]
    assert [p.is_last for p in plans if p] == [False, True]
    assert [p.is_full for p in plans if p] == [True, True]
    assert scan.plan() is None
    sizes = [s.row_count for s in table.scan().plan()]
    scan = StreamScan(table.context)
    plans = [scan.plan(max_rows=n) for n in (sizes[0] + sizes[1], 1000)]
    assert [len(p.splits) for p in plans if p] == [2, 1]
    put(table, [{"id": 1}])
    follow = scan.plan()
    assert follow is not None
    assert (follow.snapshot_id, follow.is_full, len(follow.splits)) == (2, False, 1)


def test_an_expired_snapshot_is_an_error_that_names_it(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    stream = stream_of(table, follow=False)
    for i in range(6):
        put(table, [{"id": i}])
        if i == 0:
            drain(stream)
    table.expire_snapshots(2, 2)
    with pytest.raises(NotFound, match=r"snapshot 2 .* has expired \(there are 5 to 6\)"):
        stream.poll()


@pytest.mark.parametrize("start", [1, 4])
@pytest.mark.parametrize("mode", ["from-snapshot", "from-snapshot-full"])
def test_a_start_that_has_expired_is_an_error_unless_it_is_wherever_there_is(
    catalog: FileSystemCatalog, mode: str, start: int
) -> None:
    table = keyed(catalog)
    for i in range(6):
        put(table, [{"id": i}])
    table.expire_snapshots(2, 2)
    begin = {"scan.mode": mode, "scan.snapshot-id": str(start)}
    with pytest.raises(NotFound, match=rf"snapshot {start} of .* has expired; the earliest is 5"):
        stream_of(table.with_options(begin), follow=False).poll()
    changes = drain(stream_of(table.with_options({**begin, "scan.snapshot-id": "0"}), ["id"], follow=False))
    assert len(changes) == (2 if mode == "from-snapshot" else 6)


def test_a_consumer_whose_place_has_expired_is_told(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    for i in range(6):
        put(table, [{"id": i}])
    reader = table.with_options({"consumer-id": "job"})
    reader.context.io.write(f"{table.context.paths.root}/consumer/consumer-job", b'{"nextSnapshot": 2}')
    for snapshot in (1, 2, 3):
        table.context.io.delete(table.context.paths.snapshot(snapshot))
    with pytest.raises(NotFound, match=r"snapshot 2 of .* has expired; the earliest is 4"):
        stream_of(reader, ["id"], follow=False).poll()


def test_a_rolled_back_table_is_an_error_not_a_wait(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    for i in range(4):
        put(table, [{"id": i}])
    stream = stream_of(table, follow=False)
    drain(stream)
    table.rollback_to(2)
    with pytest.raises(NotFound, match="rolled back"):
        stream.poll()


@pytest.mark.parametrize("restored", [False, True])
def test_the_commit_that_got_the_number_of_the_last_one_read_is_not_skipped(
    catalog: FileSystemCatalog, restored: bool
) -> None:
    table = keyed(catalog)
    for i in range(2):
        put(table, [{"id": i}])
    stream = stream_of(table, follow=False)
    drain(stream)
    table.rollback_to(1)
    put(table, [{"id": 8}])  # snapshot 2; the next one of the stream is 3, which is not there yet
    if restored:
        stream = stream_of(table, follow=False, state=json_round_trip(stream.state()))
    with pytest.raises(NotFound, match=r"snapshot 2 is another one than the stream has read.*rolled back"):
        stream.poll()


def test_a_full_read_of_a_snapshot_that_was_rolled_back_says_so(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    for i in range(3):
        put(table, [{"id": i}])
    stream = stream_of(table, follow=False)
    assert stream.poll() is not None
    state = json_round_trip(stream.state())
    table.rollback_to(1)
    with pytest.raises(NotFound, match=r"the snapshot to begin with is 3, but the latest is 1.*was rolled back"):
        stream_of(table, follow=False, state=state).poll()


@pytest.mark.parametrize("restored", [False, True])
def test_a_table_that_was_rolled_back_and_written_again_is_an_error_not_a_gap(
    catalog: FileSystemCatalog, restored: bool
) -> None:
    table = keyed(catalog)
    for i in range(4):
        put(table, [{"id": i}])
    stream = stream_of(table, follow=False)
    drain(stream)
    table.rollback_to(2)
    for i in range(10, 13):
        put(table, [{"id": i}])  # snapshots 3 to 5; the stream has read another 3 and 4
    if restored:
        stream = stream_of(table, follow=False, state=json_round_trip(stream.state()))
    with pytest.raises(NotFound, match=r"snapshot 4 is another one than the stream has read.*rolled back"):
        stream.poll()


def test_a_stream_continues_after_a_rollback_to_where_it_is(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    for i in range(2):
        put(table, [{"id": i}])
    stream = stream_of(table, ["id"], follow=False)
    drain(stream)
    put(table, [{"id": 7}])
    table.rollback_to(2)
    put(table, [{"id": 8}])
    assert drain(stream) == [("+I", (8,))]


def test_a_snapshot_that_is_far_ahead_is_no_place_to_begin(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    put(table, [{"id": 1}])
    with pytest.raises(NotFound, match=r"'scan.snapshot-id' is 9, but the latest snapshot of .* is 1; 2 is the next"):
        stream_of(table.with_options({"scan.snapshot-id": "9"}), follow=False).poll()


def test_a_consumer_continues_where_it_was_and_keeps_its_snapshots(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    table = table.with_options({"consumer-id": "job"})
    for i in range(3):
        put(table, [{"id": i}])
    consumers = ConsumerManager(table.context.io, table.context.paths)
    stream = stream_of(table, ["id"], follow=False)
    assert stream.poll() is not None
    assert consumers.all() == {}  # the full snapshot is not done
    drain(stream)
    assert consumers.all() == {"job": 4}
    put(table, [{"id": 3}])
    put(table, [{"id": 4}])
    assert stream.poll() is not None
    assert consumers.all() == {"job": 4}  # snapshot 4 was handed out, and may not be processed
    table.expire_snapshots(1, 1)
    assert table.context.snapshots.ids() == [4, 5]
    fresh = catalog.table("db.t").with_options({"consumer-id": "job"})
    assert [row[0] for _, row in drain(stream_of(fresh, ["id"], follow=False))] == [3, 4]
    anew = stream_of(fresh.with_options({"consumer.ignore-progress": "true"}), ["id"], follow=False)
    assert sorted(row[0] for _, row in drain(anew)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_consumer_whose_last_snapshot_was_rolled_back_is_refused_and_not_continued_with_a_gap(
    catalog: FileSystemCatalog, commits: int
) -> None:
    table = keyed(catalog).with_options({"consumer-id": "job"})
    for i in range(2):
        put(table, [{"id": i}])
    drain(stream_of(table, ["id"], follow=False))
    consumers = ConsumerManager(table.context.io, table.context.paths)
    assert consumers.all() == {"job": 3}
    table.rollback_to(1)
    for i in range(commits):
        put(table, [{"id": 8 + i}])
    fresh = catalog.table("db.t").with_options({"consumer-id": "job"})
    for _ in range(2):
        with pytest.raises(NotFound, match=r"snapshot 2 is another.*'consumer.ignore-progress' = 'true', or move"):
            stream_of(fresh, ["id"], follow=False).poll()
    anew = stream_of(fresh.with_options({"consumer.ignore-progress": "true"}), ["id"], follow=False)
    assert sorted(row[0] for _, row in drain(anew)) == [0, *range(8, 8 + commits)]
    assert consumers.all() == {"job": commits + 2}
    assert drain(stream_of(fresh, ["id"], follow=False)) == []


def test_a_consumer_continues_after_a_rollback_to_where_it_is(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog).with_options({"consumer-id": "job"})
    for i in range(2):
        put(table, [{"id": i}])
    drain(stream_of(table, ["id"], follow=False))
    put(table, [{"id": 7}])
    table.rollback_to(2)
    put(table, [{"id": 8}])
    assert drain(stream_of(table, ["id"], follow=False)) == [("+I", (8,))]


def test_a_consumer_of_other_software_is_taken_at_its_number(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog).with_options({"consumer-id": "job"})
    for i in range(3):
        put(table, [{"id": i}])
    consumers = ConsumerManager(table.context.io, table.context.paths)
    path = f"{table.context.paths.root}/consumer/consumer-job"
    table.context.io.write(path, b'{"nextSnapshot": 3, "more": [1]}')
    assert consumers.position("job") == ConsumerPosition(3)
    assert [row[0] for _, row in drain(stream_of(table, ["id"], follow=False))] == [2]
    latest = table.context.snapshots.latest()
    assert latest is not None
    assert consumers.position("job") == ConsumerPosition(4, latest.delta_manifest_list)


# -- overwrites -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [False, True])
def test_overwrites_of_a_keyed_table_are_changes_if_wanted(catalog: FileSystemCatalog, wanted: bool) -> None:
    table = keyed(catalog, **{"streaming-read-overwrite": str(wanted).lower(), "changelog-producer": "input"})
    put(table, [{"id": 1, "v": 1}, {"id": 2, "v": 2}])
    stream = stream_of(table, ["id", "v"], follow=False)
    state = apply({}, drain(stream))
    table.overwrite([{"id": 2, "v": 3}, {"id": 4, "v": 4}])
    changes = drain(stream)
    if wanted:
        assert apply(state, changes) == {2: (2, 3), 4: (4, 4)}
        assert sorted(changes) == [("+I", (2, 3)), ("+I", (4, 4)), ("-D", (1, 1)), ("-D", (2, 2))]
    else:
        assert changes == []


def test_an_overwrite_that_took_away_rows_which_expired_is_an_error_that_names_both(catalog: FileSystemCatalog) -> None:
    table = keyed(
        catalog,
        **{"streaming-read-overwrite": "true", "changelog-producer": "input", "deletion-vectors.enabled": "true"},
    )
    put(table, [{"id": 1}])
    compact_fully(table)
    table.overwrite([{"id": 1, "v": 2}])
    last = table.context.snapshots.latest_id()
    assert last is not None
    start = table.with_options({"scan.mode": "from-snapshot", "scan.snapshot-id": str(last)})
    changes = drain(stream_of(start, ["id", "v"], follow=False))
    assert changes == [("-D", (1, None)), ("+I", (1, 2))]
    table.expire_snapshots(1, 1)
    with pytest.raises(
        NotFound, match=rf"snapshot {last - 1} of .* has expired, so the rows that overwrite {last} removed"
    ):
        stream_of(start, ["id"], follow=False).poll()


def test_overwrites_that_the_changelog_tells_anyway_are_not_told_twice(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog, **{"changelog-producer": "lookup"})
    with pytest.raises(UnsupportedOperation, match="would come twice"):
        stream_of(table.with_options({"streaming-read-overwrite": "true"}), follow=False)


@pytest.mark.parametrize("wanted", [False, True])
def test_overwrites_of_an_append_table_bring_their_rows_if_wanted(catalog: FileSystemCatalog, wanted: bool) -> None:
    table = catalog.create_table("db.t", COLUMNS, options={"streaming-read-append-overwrite": str(wanted).lower()})
    put(table, [{"id": 1}])
    stream = stream_of(table, ["id"], follow=False)
    drain(stream)
    table.overwrite([{"id": 2}])
    assert drain(stream) == ([("+I", (2,))] if wanted else [])
    put(table, [{"id": 3}])
    assert drain(stream) == [("+I", (3,))]


# -- columns ----------------------------------------------------------------------------------------------------------


def test_a_stream_keeps_its_columns_through_a_schema_change(catalog: FileSystemCatalog) -> None:
    from forebay.metadata import types

    table = catalog.create_table("db.t", COLUMNS)
    put(table, [{"id": 1, "name": "a", "v": 1}])
    stream = stream_of(table, follow=False)
    assert drain(stream) == [("+I", (1, "a", 1))]
    changed = altered(table, [RenameColumn(("name",), "label"), AddColumn(("more",), types.int_()), DropColumn(("v",))])
    put(changed, [{"id": 2, "label": "b", "more": 7}])
    assert drain(stream) == [("+I", (2, "b", None))]
    assert drain(stream_of(catalog.table("db.t"), follow=False)) == [
        ("+I", (1, "a", None)),
        ("+I", (2, "b", 7)),
    ]


def test_filters_and_columns_apply_to_every_phase(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog, **{"changelog-producer": "input"})
    put(table, [{"id": i, "v": i} for i in range(10)])
    stream = stream_of(table, ["name"], filter=(col("v") > 6) & (col("id") < 9), follow=False)
    assert len(drain(stream)) == 2
    put(table, pa.table({"id": [1, 2], "name": ["x", "y"], "v": pa.array([8, 1], pa.int32())}))
    put(table, pa.table({"id": [1], "name": ["x"], "v": pa.array([8], pa.int32())}), kinds=["-U"])
    assert drain(stream) == [("+I", ("x",)), ("-U", ("x",))]


def test_partitions_come_in_order_if_wanted(catalog: FileSystemCatalog) -> None:
    columns = pa.schema([("p", pa.int32()), ("id", pa.int64())])
    options = {"scan.plan-sort-partition": "true"}
    table = catalog.create_table("db.t", columns, partition_keys=["p"], options=options)
    stream = stream_of(table, ["p"], follow=False)
    for order in ([10, 9, 2, None], [3, 1, 20]):
        put(table, [{"p": p, "id": 1} for p in order])
        expected: list[Change] = [("+I", (p,)) for p in sorted(order, key=lambda p: -1 if p is None else p)]
        assert drain(stream) == expected


def test_the_order_of_a_bucket_is_the_order_of_writing(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS, options={"bucket": "2", "bucket-key": "v"})
    stream = stream_of(table, ["id", "v"], follow=False)
    written: dict[int, list[int]] = {}
    for i in range(60):
        put(table, [{"id": i, "v": i % 3}])
        written.setdefault(i % 3, []).append(i)
    read: dict[int, list[int]] = {}
    for _, row in drain(stream):
        read.setdefault(row[1], []).append(row[0])
    assert read == written


@pytest.mark.parametrize("producer", ["lookup", "full-compaction"])
@pytest.mark.parametrize("engine", ["deduplicate", "aggregation", "partial-update"])
@pytest.mark.one_in(3)
def test_changelogs_of_our_own_compactions_replay_to_the_table(
    catalog: FileSystemCatalog, producer: str, engine: str
) -> None:
    rng = np.random.default_rng(3)
    options = {"changelog-producer": producer, "merge-engine": engine, "fields.v.aggregate-function": "sum"}
    if engine == "partial-update":
        del options["fields.v.aggregate-function"]
    table = keyed(catalog, **options)
    stream = stream_of(table, follow=False)
    replayed: State = {}
    for i in range(16):
        put(table, random_rows(rng, 12, 4))
        if i % 5 == 4:
            table.compact(full=True)
        apply(replayed, drain(stream))
        stream = stream_of(catalog.table("db.t"), state=json_round_trip(stream.state()), follow=False)
    table.compact(full=True)
    apply(replayed, drain(stream))
    assert replayed == state_of(table)
    assert apply({}, drain(stream_of(table, follow=False))) == state_of(table)


def test_a_consumer_misses_nothing_while_others_write_compact_and_expire(catalog: FileSystemCatalog) -> None:
    options = {"changelog-producer": "input", "snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2"}
    table = keyed(catalog, **options)
    put(table, [{"id": 0, "v": 0}])
    with_id = {"consumer-id": "reader", "scan.snapshot-id": "1", "continuous.discovery-interval": "1 ms"}
    ConsumerManager(table.context.io, table.context.paths).record("reader", 1)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            rng = np.random.default_rng(1)
            for _ in range(40):
                put(catalog.table("db.t"), random_rows(rng, 30, 6))  # compacts and expires as it goes
        except BaseException as e:  # noqa: BLE001 - told to the test's thread
            failures.append(e)

    writer = threading.Thread(target=write)
    writer.start()
    replayed: State = {}
    stream = stream_of(catalog.table("db.t").with_options(with_id), follow=False)
    while writer.is_alive():
        apply(replayed, drain(stream))
    writer.join()
    apply(replayed, drain(stream))
    assert failures == []
    assert replayed == state_of(table)
    assert table.expire_snapshots().count >= 0
    assert len(table.context.snapshots.ids()) <= 2


@pytest.mark.parametrize("mode", ["from-snapshot", "from-snapshot-full"])
def test_a_start_that_no_next_commit_makes_is_refused_and_the_next_snapshot_is_waited_for(
    catalog: FileSystemCatalog, mode: str
) -> None:
    table = keyed(catalog)
    put(table, [{"id": 1}])
    begin = {"scan.mode": mode, "scan.snapshot-id": "3"}
    with pytest.raises(NotFound, match=r"'scan.snapshot-id' is 3, but the latest snapshot of .* is 1; 2 is the next"):
        stream_of(table.with_options(begin), follow=False).poll()
    stream = stream_of(table.with_options({**begin, "scan.snapshot-id": "2"}), ["id"], follow=False)
    assert drain(stream) == []
    put(table, [{"id": 2}])
    assert len(drain(stream)) == (1 if mode == "from-snapshot" else 2)
