"""The start of a stream, or of a batch read: every scan mode with its options."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.predicate import col
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.format.snapshot import BATCH_COMMIT_IDENTIFIER
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.table import Table
from tests.every_run import every_run
from tests.paimon.lake import altered, put, rows_of, stream_of
from tests.paimon.stream.model import COLUMNS, changes_of, compact_fully, drain, random_rows, state_of
from tests.paimon.stream.scan_modes import AT_3, START, STREAMS, filled


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def catalog(tmp_path: Path, clock: ManualClock) -> FileSystemCatalog:
    catalog = FileSystemCatalog(LocalFileIO(sync=False), str(tmp_path / "lake"), clock=clock)
    catalog.create_database("db")
    return catalog


def streamed(table: Table, options: dict[str, str], more: int = 2) -> list[int]:
    """The ids that a stream with `options` gives now and after `more` commits."""
    stream = stream_of(table.with_options(options), ["id"], follow=False)
    found = [row[0] for _, row in drain(stream)]
    for i in range(more):
        put(table, [{"id": 100 + i}])
        found += [row[0] for _, row in drain(stream)]
    return found


@pytest.mark.parametrize("mode", STREAMS)
def test_a_stream_begins_where_its_mode_says(catalog: FileSystemCatalog, clock: ManualClock, mode: str) -> None:
    options, first = STREAMS[mode]
    table = filled(catalog, clock)
    assert streamed(table, options) == [*first, 100, 101]


@pytest.mark.parametrize("mode", ["latest-full", "latest", "compacted-full", "from-timestamp", "from-snapshot"])
def test_a_stream_of_an_empty_table_waits_and_misses_nothing(
    catalog: FileSystemCatalog, clock: ManualClock, mode: str
) -> None:
    needed = {"from-timestamp": {"scan.timestamp-millis": "1"}, "from-snapshot": {"scan.snapshot-id": "1"}}
    options = {"scan.mode": mode, **needed.get(mode, {})}
    table = catalog.create_table("db.t", COLUMNS)
    assert streamed(table, options) == [100, 101]


def test_a_local_time_serves_as_timestamp(
    catalog: FileSystemCatalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datetime

    local = datetime.datetime.fromtimestamp(AT_3 / 1000).isoformat(" ")
    assert streamed(filled(catalog, clock), {"scan.timestamp": local}, 0) == [3, 4]


def test_rows_of_the_full_snapshot_and_of_appends_are_inserts(catalog: FileSystemCatalog, clock: ManualClock) -> None:
    table = filled(catalog, clock, 1)
    stream = stream_of(table, follow=False)
    assert drain(stream) == [("+I", (1, None, None))]
    put(table, [{"id": 2, "name": "b", "v": 3}])
    assert drain(stream) == [("+I", (2, "b", 3))]


def test_compacted_full_begins_at_the_last_compaction(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    for i in range(3):
        put(table, [{"id": i}])
    compact_fully(table)
    put(table, [{"id": 9}])
    stream = stream_of(table, ["id"], scan_mode="compacted-full", follow=False)
    assert [stream.poll().column("id").to_pylist() for _ in range(2)] == [[0, 1, 2], [9]]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "identifiers", "wanted"),
    [
        ({}, [], 5),
        ({}, [1, 2], 2),
        ({"full-compaction.delta-commits": "3"}, [], 5),
        ({"full-compaction.delta-commits": "3"}, [1, 2, 3, 4], 3),
        ({"full-compaction.delta-commits": "3"}, [1, 2], 5),
        ({"full-compaction.delta-commits": "3"}, [1, 3, BATCH_COMMIT_IDENTIFIER, 7], 3),
        ({"changelog-producer": "full-compaction"}, [1, 2, 3, 4], 4),
    ],
)
def test_where_full_compactions_come_regularly_compacted_full_waits_for_one_of_these(
    catalog: FileSystemCatalog, options: dict[str, str], identifiers: list[int], wanted: int
) -> None:
    """Each of the first commits of one row is compacted, under its identifier."""
    options = {"bucket": "1", "write-only": "true", **options}
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    begins = table.with_options({"scan.mode": "compacted-full"})
    assert rows_of(begins) == []
    for i in range(5):
        put(table, [{"id": i}])
        if i < len(identifiers):
            tasks = table.plan_compaction(full=True)
            table.new_commit().commit([table.run_compaction(task) for task in tasks], identifiers[i])
    assert [row[0] for row in rows_of(begins)] == list(range(wanted))


def test_a_difference_from_before_what_expired_begins_at_what_is_left(
    catalog: FileSystemCatalog, clock: ManualClock
) -> None:
    table = filled(catalog, clock)
    table.expire_snapshots(retain_max=3, retain_min=1)
    options = {"incremental-between-timestamp": f"5,{AT_3}", "incremental-between-scan-mode": "diff"}
    with pytest.raises(InvalidRequest, match=f"{START - 1} is before {START}"):
        table.with_options({"incremental-between-timestamp": f"{START},{START - 1}"}).scan().plan()
    assert table.context.snapshots.earliest_id() == 2
    assert rows_of(table.with_options(options), ["id"]) == [(3,)]


def test_a_watermark_chooses_the_first_snapshot_that_reached_it(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    for i, watermark in enumerate([10, 20]):
        with table.new_write() as writer:
            writer.write([{"id": i}])
            table.new_commit().commit(writer.prepare_commit(), watermark=watermark)
    assert rows_of(table.with_options({"scan.watermark": "10"}), ["id"]) == [(0,)]
    assert rows_of(table.with_options({"scan.watermark": "11"}), ["id"]) == [(0,), (1,)]
    assert [len(rows_of(table.with_options({"scan.watermark": w}))) for w in (0, 10, 11, 20)] == [1, 1, 2, 2]
    with pytest.raises(NotFound, match="a watermark of 21 or later"):
        table.with_options({"scan.watermark": "21"}).scan()


def test_a_stream_cannot_begin_at_what_is_for_batch_reads(catalog: FileSystemCatalog, clock: ManualClock) -> None:
    table = filled(catalog, clock, 1)
    for options in ({"incremental-between": "0,1"}, {"scan.tag-name": "t"}, {"scan.watermark": "1"}):
        with pytest.raises(InvalidRequest, match="batch reads"):
            stream_of(table.with_options(options)).poll()
    with pytest.raises(InvalidRequest, match=r"needs option 'scan\.snapshot-id'"):
        stream_of(table, scan_mode="from-snapshot").poll()


def test_a_watermark_bounds_a_stream(catalog: FileSystemCatalog, clock: ManualClock) -> None:
    table = catalog.create_table("db.t", COLUMNS, options={"scan.bounded.watermark": "20"})
    for i, watermark in enumerate([10, 20, 30]):
        with table.new_write() as writer:
            writer.write([{"id": i}])
            table.new_commit().commit(writer.prepare_commit(), watermark=watermark)
    bounded = stream_of(table, ["id"], scan_mode="from-snapshot-full", follow=True)
    with pytest.raises(InvalidRequest, match="snapshot-id"):
        next(bounded)
    from_first = stream_of(table.with_options({"scan.snapshot-id": "1"}), ["id"], follow=True)
    assert [row[0] for _, row in changes_of(from_first)] == [0, 1]
    assert [row[0] for _, row in changes_of(stream_of(table, ["id"]))] == [0, 1, 2]


def test_a_delay_holds_young_snapshots_back(catalog: FileSystemCatalog, clock: ManualClock) -> None:
    table = filled(catalog, clock, 3, **{"streaming.read.snapshot.delay": "15 s", "scan.snapshot-id": "1"})
    stream = stream_of(table, ["id"], follow=False)
    assert [row[0] for _, row in drain(stream)] == [1, 2]
    clock.advance(5)
    assert [row[0] for _, row in drain(stream)] == [3]


def test_changes_that_are_not_recorded_cannot_be_streamed(catalog: FileSystemCatalog) -> None:
    merged = {"bucket": "1", "merge-engine": "partial-update"}
    table = catalog.create_table("db.m", COLUMNS, primary_key=["id"], options=merged)
    with pytest.raises(UnsupportedOperation, match="changelog-producer"):
        stream_of(table)
    plain = catalog.create_table("db.p", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    with pytest.raises(UnsupportedOperation, match="without a changelog producer"):
        stream_of(plain, filter=col("v") == 1)
    put(plain, [{"id": 1}, {"id": 2}])
    assert drain(stream_of(plain, ["id"], filter=col("id") == 2)) == [("+I", (2,))]


# -- batch reads by options -------------------------------------------------------------------------------------------

BATCHES: dict[str, tuple[dict[str, str], list[int]]] = {
    "latest": ({"scan.mode": "latest"}, [1, 2, 3, 4]),
    "latest-delta": ({"scan.mode": "latest-delta"}, [4]),
    "a snapshot": ({"scan.snapshot-id": "2"}, [1, 2]),
    "a snapshot in full": ({"scan.mode": "from-snapshot-full", "scan.snapshot-id": "2"}, [1, 2]),
    "a tag": ({"scan.tag-name": "two"}, [1, 2]),
    "a tag as version": ({"scan.version": "two"}, [1, 2]),
    "an id as version": ({"scan.version": "3"}, [1, 2, 3]),
    "a timestamp": ({"scan.timestamp-millis": str(AT_3)}, [1, 2, 3]),
    "a file's creation": ({"scan.file-creation-time-millis": str(AT_3)}, [3, 4]),
    "between ids": ({"incremental-between": "1,3"}, [2, 3]),
    "between ids, from the first": ({"incremental-between": "0,2"}, [1, 2]),
    "between the same ids": ({"incremental-between": "2,2"}, []),
    "between tags": ({"incremental-between": "two,four"}, [3, 4]),
    "between tags of one snapshot": ({"incremental-between": "two,two"}, []),
    "between tags as snapshots": (
        {"incremental-between": "two,four", "incremental-between-tag-to-snapshot": "true"}, [3, 4]
    ),
    "between, as difference": ({"incremental-between": "1,3", "incremental-between-scan-mode": "diff"}, [2, 3]),
    "between times": ({"incremental-between-timestamp": f"{START + 10_000},{AT_3}"}, [3]),
    "between times, up to the first": ({"incremental-between-timestamp": f"5,{START}"}, [1]),
    "between one time": ({"incremental-between-timestamp": f"{AT_3},{AT_3}"}, []),
    "between times, from before": ({"incremental-between-timestamp": f"5,{START + 10_000}"}, [1, 2]),
    "between times long ago": ({"incremental-between-timestamp": "5,6"}, []),
    "between times, as difference": (
        {"incremental-between-timestamp": f"{START + 10_000},{AT_3}", "incremental-between-scan-mode": "diff"}, [3]
    ),
    "between times, from before, as difference": (
        {"incremental-between-timestamp": f"5,{START + 10_000}", "incremental-between-scan-mode": "diff"}, [1, 2]
    ),
    "a creation": ({"scan.creation-time-millis": str(AT_3)}, [1, 2, 3]),
    "a creation before all": ({"scan.creation-time-millis": "5"}, [1, 2, 3, 4]),
    "a creation after all": ({"scan.creation-time-millis": str(AT_3 * 2)}, []),
}  # fmt: skip


@pytest.mark.parametrize("mode", BATCHES)
def test_options_choose_what_a_batch_read_reads(catalog: FileSystemCatalog, clock: ManualClock, mode: str) -> None:
    options, wanted = BATCHES[mode]
    table = filled(catalog, clock)
    table.context.tags.create("two", table.context.snapshots.snapshot(2))
    table.context.tags.create("four", table.context.snapshots.snapshot(4))
    assert rows_of(table.with_options(options), ["id"]) == [(i,) for i in wanted]
    assert rows_of(table.with_options(options), ["id"], col("id") > 2) == [(i,) for i in wanted if i > 2]


def test_the_latest_delta_of_a_compaction_is_empty(upserted: Table) -> None:
    assert upserted.context.snapshots.latest().commit_kind.value == "COMPACT"  # type: ignore[union-attr]
    assert rows_of(upserted.with_options({"scan.mode": "latest-delta"})) == []
    put(upserted, [{"id": 77}])
    assert rows_of(upserted.with_options({"scan.mode": "latest-delta"}), ["id"]) == [(77,)]
    with pytest.raises(InvalidRequest, match="a stream cannot begin so"):
        stream_of(upserted, scan_mode="latest-delta").poll()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"scan.mode": "latest-full", "scan.snapshot-id": "1"},
            "'scan.snapshot-id' contradicts scan.mode latest-full, which takes no such option; leave",
        ),
        ({"scan.mode": "from-timestamp", "scan.snapshot-id": "1"}, "which takes scan.timestamp-millis or scan.time"),
        ({"scan.snapshot-id": "1", "incremental-between": "1,2"}, "'incremental-between' contradicts scan.mode from-s"),
        ({"scan.snapshot-id": "1", "scan.tag-name": "x"}, "scan.snapshot-id and scan.tag-name each say where to begin"),
        ({"incremental-between": "1,2", "incremental-between-timestamp": "1,2"}, "each say where to begin"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    catalog: FileSystemCatalog, clock: ManualClock, options: dict[str, str], says: str
) -> None:
    table = filled(catalog, clock, 2).with_options(options)
    for begin in (table.scan, table.changes):
        with pytest.raises(InvalidRequest, match=says):
            begin()


def test_a_tag_or_range_that_is_not_there_is_not_called_expired(catalog: FileSystemCatalog, clock: ManualClock) -> None:
    table = filled(catalog, clock, 2)
    for options in ({"scan.tag-name": "x"}, {"incremental-between": "1,9"}, {"scan.snapshot-id": "9"}):
        with pytest.raises(NotFound) as told:
            table.with_options(options).scan().plan()
        assert "expired" not in str(told.value)


def test_ranges_that_are_not_there_are_errors(catalog: FileSystemCatalog, clock: ManualClock) -> None:
    table = filled(catalog, clock)
    table.context.tags.create("two", table.context.snapshots.snapshot(2))
    for between, error, text in (
        ("1,9", NotFound, "there are 1 to 4"),
        ("3,1", InvalidRequest, "1 is before 3"),
        ("a,b", NotFound, "not two tags"),
        ("1,b", NotFound, "not two tags"),
        ("two,4", NotFound, "not two tags"),
        ("4,two", NotFound, "not two tags"),
        ("1", InvalidRequest, "start"),
    ):
        with pytest.raises(error, match=text):
            table.with_options({"incremental-between": between}).scan().plan()


@pytest.mark.parametrize("option", ["incremental-between", "incremental-between-timestamp"])
def test_nothing_lies_between_two_points_of_an_empty_table(catalog: FileSystemCatalog, option: str) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    assert rows_of(table.with_options({option: "0,1"})) == []


@pytest.fixture
def upserted(catalog: FileSystemCatalog) -> Table:
    table = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options={"bucket": "2"})
    put(table, [{"id": i, "v": 0} for i in range(6)])
    table.context.tags.create("before", table.context.snapshots.snapshot(1))
    put(table, [{"id": 1, "v": 1}, {"id": 2, "v": 0}, {"id": 9, "v": 9}])
    table.delete([{"id": 3}])
    compact_fully(table)
    table.context.tags.create("after", table.context.snapshots.snapshot(4))
    return table


def test_the_difference_of_tags_is_exact_across_a_compaction(upserted: Table) -> None:
    between = upserted.with_options({"incremental-between": "before,after"})
    assert rows_of(between, ["id", "v"]) == [(1, 1), (9, 9)]
    assert rows_of(between, ["id", "v"], col("v") > 5) == [(9, 9)]
    assert rows_of(upserted.with_options({"incremental-between": "1,4"}), ["id", "v"]) == [(1, 1), (2, 0), (9, 9)]


def test_the_difference_of_a_rewritten_append_table_repeats_no_row(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.a", COLUMNS)
    put(table, [{"id": 1}, {"id": 1}, {"id": 2}])
    table.context.tags.create("a", table.context.snapshots.snapshot(1))
    table.overwrite([{"id": 1}, {"id": 1}, {"id": 1}, {"id": 3}])
    table.context.tags.create("b", table.context.snapshots.snapshot(2))
    assert rows_of(table.with_options({"incremental-between": "a,b"}), ["id"]) == [(1,), (3,)]
    table.overwrite([{"id": i} for i in (4, 1, 3, 3, 5, 5)])
    table.context.tags.create("c", table.context.snapshots.snapshot(3))

    def told(between: str) -> list[tuple[str, int]]:
        log = table.with_options({"incremental-between": between}).system("audit_log").read().read_all()
        return sorted((row["rowkind"], row["id"]) for row in log.to_pylist())

    assert told("a,b") == [("+I", 1), ("+I", 3), ("-D", 2)]
    assert told("b,c") == [("+I", 3), ("+I", 4), ("+I", 5), ("+I", 5), ("-D", 1), ("-D", 1)]


def test_snapshots_on_both_sides_of_a_rescale_cannot_be_compared(catalog: FileSystemCatalog) -> None:
    from forebay.paimon.store.schema_changes import SetOption

    table = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    put(table, [{"id": 1}])
    table = altered(table, [SetOption("bucket", "2")])
    table.overwrite([{"id": 1}])
    options = {"incremental-between": "1,2", "incremental-between-scan-mode": "diff"}
    with pytest.raises(InvalidRequest, match=r"^the table has 1 buckets in snapshot 1 and 2"):
        table.with_options(options).scan().to_arrow()


def test_arrow_schemas_hold_before_any_row_is_read(catalog: FileSystemCatalog, clock: ManualClock) -> None:
    table = filled(catalog, clock, 1)
    assert stream_of(table, ["v"]).schema == pa.schema([("v", pa.int32()), pa.field("_row_kind", pa.string(), False)])
    assert table.with_options({"scan.snapshot-id": "1"}).scan(["v"]).schema == table.scan(["v"]).schema


@pytest.mark.parametrize("engine", ["deduplicate", "aggregation"])
@pytest.mark.parametrize("seed", every_run(range(5), lambda seed: seed < 2))
def test_the_difference_of_any_two_snapshots_is_that_of_their_states(
    catalog: FileSystemCatalog, engine: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    options = {"bucket": "2", "merge-engine": engine, "write-only": "true", "fields.v.aggregate-function": "sum"}
    table = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options=options)
    while (latest := table.context.snapshots.latest_id() or 0) < 10:
        if latest > 2 and rng.random() < 0.3:
            compact_fully(table)
        elif latest > 2 and rng.random() < 0.2:
            table.overwrite(random_rows(rng, 20, 5))
        else:
            put(table, random_rows(rng, 20, 5))
    states = {i: state_of(table, as_of=i) for i in table.context.snapshots.ids()}
    for start, end in ((1, 10), (3, 7), (2, 3), (9, 10)):
        between = {"incremental-between": f"{start},{end}", "incremental-between-scan-mode": "diff"}
        changed = {k: row for k, row in states[end].items() if states[start].get(k) != row}
        assert state_of(table.with_options(between)) == changed
        log = table.with_options(between).system("audit_log").read().read_all().to_pylist()
        gone = {r["id"] for r in log if r["rowkind"] == "-D"}
        assert gone == states[start].keys() - states[end].keys()


def test_a_scan_is_of_the_snapshot_that_options_name(catalog: FileSystemCatalog, clock: ManualClock) -> None:
    table = filled(catalog, clock)
    splits = table.with_options({"scan.snapshot-id": "2"}).scan().plan()
    assert ({s.snapshot_id for s in splits}, sum(s.row_count for s in splits)) == ({2}, 2)


def test_the_difference_shows_what_readers_see(catalog: FileSystemCatalog) -> None:
    options = {"bucket": "1", "merge-engine": "first-row", "write-only": "true"}
    table = catalog.create_table("db.f", COLUMNS, primary_key=["id"], options=options)
    put(table, [{"id": 1, "v": 1}])
    compact_fully(table)
    put(table, [{"id": 1, "v": 2}, {"id": 2, "v": 2}])  # of level 0: not to be seen before a compaction
    between = {"incremental-between": "2,3", "incremental-between-scan-mode": "diff"}
    assert rows_of(table.with_options(between)) == []
    compact_fully(table)
    between["incremental-between"] = "2,4"
    assert rows_of(table.with_options(between), ["id", "v"]) == [(2, 2)]


@pytest.mark.parametrize("options", [{"merge-engine": "first-row"}, {"deletion-vectors.enabled": "true"}], ids=str)
@pytest.mark.parametrize("mode", ["auto", "delta", "changelog"])
def test_changes_between_snapshots_have_no_rows_that_compaction_is_still_to_decide_on(
    catalog: FileSystemCatalog, options: dict[str, str], mode: str
) -> None:
    table = catalog.create_table(
        "db.f", COLUMNS, primary_key=["id"], options={"bucket": "1", "write-only": "true", **options}
    )
    put(table, [{"id": 1, "v": 1}])
    put(table, [{"id": 1, "v": 2}, {"id": 2, "v": 2}])
    between = table.with_options({"incremental-between": "1,2", "incremental-between-scan-mode": mode})
    assert rows_of(between) == []
    assert between.system("audit_log").read().read_all().num_rows == 0
    assert between.system("binlog").read().read_all().num_rows == 0


def test_a_stream_begins_with_the_kinds_that_merged_rows_were_last_written_with(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table(
        "db.u",
        COLUMNS,
        primary_key=["id"],
        options={"bucket": "1", "write-only": "true", "merge-engine": "deduplicate"},
    )
    put(table, [{"id": 1, "v": 1}, {"id": 2, "v": 1}], ["+I", "+I"])
    put(table, [{"id": 1, "v": 2}, {"id": 3, "v": 2}, {"id": 2, "v": 1}], ["+U", "+U", "-D"])
    assert sorted(drain(stream_of(table, ["id", "v"], follow=False))) == [("+U", (1, 2)), ("+U", (3, 2))]
    compact_fully(table)  # and of a file that is read as it is, rows are +I
    assert sorted(drain(stream_of(table, ["id", "v"], follow=False))) == [("+I", (1, 2)), ("+I", (3, 2))]


def _told(stream: Iterable[pa.RecordBatch]) -> list[tuple[object, ...]]:
    batches = pa.Table.from_batches(list(stream))
    kind = next(name for name in ("_row_kind", "rowkind") if name in batches.column_names)
    return sorted((row[kind], row["id"]) for row in batches.to_pylist())


@pytest.mark.parametrize("options", [{}, {"deletion-vectors.merge-on-read": "true"}], ids=["plain", "merge-on-read"])
def test_a_stream_begins_with_rows_of_level_0_of_tables_with_deletion_vectors(
    catalog: FileSystemCatalog, options: dict[str, str]
) -> None:
    options = {"bucket": "1", "deletion-vectors.enabled": "true", "write-only": "true", **options}
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    put(table, [{"id": 1}, {"id": 2}], ["+U", "+U"])
    put(table, [{"id": 2}, {"id": 3}], ["+I", "-D"])
    # No later snapshot brings these rows again, so a stream that begins without them misses them for ever.
    assert _told(stream_of(table, follow=False, scan_mode="latest-full")) == [("+I", 2), ("+U", 1)]
    batch = [] if len(options) == 3 else [1, 2]
    assert table.scan(columns=["id"]).to_arrow().column("id").to_pylist() == batch


def test_a_stream_of_the_audit_log_begins_with_the_kinds_that_were_written(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "1", "write-only": "true"})
    put(table, [{"id": 1}, {"id": 2}, {"id": 3}], ["+U", "+I", "-D"])
    assert _told(table.system("audit_log").stream(follow=False)) == [("+I", 2), ("+U", 1), ("-D", 3)]
