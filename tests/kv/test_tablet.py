"""The key-value state of one bucket: changelogs, partial updates, idempotence, failures, recovery."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import Conflict, CorruptData, ErrorCode, InvalidRequest, NotFound, StorageFailure
from forebay.codec.kv.kv_batch import encode_kv_batch
from forebay.codec.rows.row_codec import row_codec
from forebay.fs.interface import DiskFull
from forebay.kv import _digest, tablet
from forebay.kv.engine import EngineState
from forebay.kv.tablet import ChangelogCodec, KvTablet, PutRequest
from forebay.log.config import LogConfig
from forebay.log.tablet import LogTablet
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from tests.fs.faulty_fs import FaultyFileSystem
from tests.kv.memory_engine import MemoryEngine
from tests.kv.tables import FakeTable, Row

FORMATS = [
    {},
    {"table.log.format": "COMPACTED"},
    {"table.kv.format": "INDEXED"},
    {"table.kv.format": "INDEXED", "table.log.format": "INDEXED"},
    {"table.kv.format": "INDEXED", "table.log.format": "COMPACTED"},
    {"table.log.arrow.compression.type": "NONE"},
]


class Bench:
    """A tablet over an in-memory file system and engine."""

    def __init__(self, table: FakeTable | None = None) -> None:
        self.table = table or FakeTable()
        self.fs = FaultyFileSystem(random.Random(1))
        self.clock = ManualClock()
        self.engine = MemoryEngine()
        self.next_segment = 1
        self.log = LogTablet.open(self.fs, "/log", clock=self.clock)
        self.tablet = KvTablet(self.table, self.log, self.engine, self.take_ids)

    def take_ids(self, count: int) -> int:
        first, self.next_segment = self.next_segment, self.next_segment + count
        return first

    def put(self, *rows: Row, **options: Any) -> int:
        (result,) = self.tablet.put_group([self.table.request(rows, **options)])
        if result.error is not None:
            raise result.error
        return result.log_end_offset

    def delete(self, *ids: int, **options: Any) -> int:
        return self.put(*({"id": i} for i in ids), deletes=[True] * len(ids), **options)

    def rows(self) -> list[Row]:
        keys = list(self.engine._rows)
        if self.engine.state.digest is not None:
            assert self.engine.state.digest == _digest.of_pairs(keys, self.engine.multi_get(keys))
        values = [value[4:] for value in self.tablet.first_values(1000)]
        return sorted(self.table.rows_of_values(values), key=lambda r: r["id"])

    def reopen(self, engine: MemoryEngine | None = None) -> None:
        """As after a kill: what was written is there, in memory nothing."""
        self.fs = self.fs.kill()
        self.engine = engine or self.engine
        self.log = LogTablet.open(self.fs, "/log", clock=self.clock)
        self.tablet = KvTablet(self.table, self.log, self.engine, self.take_ids)
        self.tablet.recover()


def row(key: int, name: str | None = None, score: int | None = None) -> Row:
    return {"id": key, "name": name, "score": score}


@pytest.mark.parametrize("properties", FORMATS)
def test_changelog_has_insert_update_pairs_and_deletes_in_order(properties):
    bench = Bench(FakeTable(properties))
    assert bench.put(row(1, "a"), row(2, "b")) == 2
    assert bench.put(row(1, "c")) == 4
    assert bench.delete(2, 9) == 5
    assert bench.table.changelog(bench.log) == [
        (0, "+I", row(1, "a")),
        (1, "+I", row(2, "b")),
        (2, "-U", row(1, "a")),
        (3, "+U", row(1, "c")),
        (4, "-D", row(2, "b")),
    ]
    assert bench.rows() == [row(1, "c")]
    assert bench.engine.state.digest is not None
    assert (bench.tablet.row_count, bench.tablet.applied_offset, bench.log.high_watermark) == (1, 5, 5)


def test_a_key_that_repeats_in_a_batch_sees_its_own_changes():
    bench = Bench()
    bench.put(row(1, "a"), row(1, "b"), row(1), row(1, "c"), deletes=[False, False, True, False])
    kinds = [(kind, r["name"]) for _, kind, r in bench.table.changelog(bench.log)]
    assert kinds == [("+I", "a"), ("-U", "a"), ("+U", "b"), ("-D", "b"), ("+I", "c")]
    assert bench.rows() == [row(1, "c")]


def test_requests_of_one_group_see_each_other_and_share_one_sync():
    bench = Bench()
    syncs = bench.fs.inject("sync", "/log", on_call=10_000)
    results = bench.tablet.put_group([bench.table.request([row(1, name)]) for name in "abc"])
    assert [r.log_end_offset for r in results] == [1, 3, 5]
    assert bench.rows() == [row(1, "c")]
    assert syncs.calls == 1


def test_a_batch_without_changes_takes_one_offset():
    bench = Bench()
    assert bench.delete(1) == 1
    assert bench.put(row(1, "a")) == 2
    assert bench.table.changelog(bench.log) == [(1, "+I", row(1, "a"))]


def test_overwriting_with_the_same_values_still_writes_both_images():
    bench = Bench()
    bench.put(row(1, "a"))
    bench.put(row(1, "a"))
    assert [kind for _, kind, _ in bench.table.changelog(bench.log)] == ["+I", "-U", "+U"]


# ---- partial updates ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("properties", [{}, {"table.kv.format": "INDEXED"}])
def test_partial_update_keeps_the_other_columns_and_nulls_them_in_new_rows(properties):
    bench = Bench(FakeTable(properties))
    bench.put(row(1, "a", 10))
    bench.put(row(1, None, 11), row(2, "must be ignored", 20), targets=["id", "score"])
    assert bench.rows() == [row(1, "a", 11), row(2, None, 20)]


def test_partial_delete_nulls_its_columns_and_removes_the_row_when_nothing_is_left():
    bench = Bench()
    bench.put(row(1, "a", 10))
    bench.delete(1, targets=["id", "score"])
    assert bench.rows() == [row(1, "a", None)]
    bench.delete(1, targets=["id", "name"])
    assert bench.rows() == []
    assert [kind for _, kind, _ in bench.table.changelog(bench.log)] == ["+I", "-U", "+U", "-D"]


def test_partial_update_of_the_key_alone_inserts_missing_rows_and_leaves_others_alone():
    bench = Bench()
    bench.put(row(1, "a", 10))
    bench.put(row(1), row(2), targets=["id"])
    assert bench.rows() == [row(1, "a", 10), row(2)]
    assert [kind for _, kind, _ in bench.table.changelog(bench.log)] == ["+I", "+I"]


def test_target_columns_named_in_many_ways_do_not_take_memory_for_ever(monkeypatch):
    bench = Bench()
    for targets in [(0, 1), (1, 0), (0, 1, 0), *((0, 1) * times for times in range(1, 1000))]:
        result = bench.tablet.put_group([PutRequest(bench.table.request([row(1)]).records, targets)])[0]
        assert result.error is None
    assert len(bench.tablet._plans) == 1
    monkeypatch.setattr(tablet, "_PLANS_MAX", 2)
    for targets in [["id", "score"], ["id"], ["id", "name"], ["id", "score"], []]:
        bench.put(row(1, "a", 1), targets=targets)
        assert len(bench.tablet._plans) <= 2


@pytest.mark.parametrize(
    ("targets", "message"),
    [((1,), "whole primary key"), ((0, 9), "target column 9 does not exist"), ((0, -1), "target column -1")],
)
def test_bad_target_columns_are_refused(targets, message):
    bench = Bench()
    request = PutRequest(bench.table.request([row(1)]).records, targets)
    (result,) = bench.tablet.put_group([request])
    assert isinstance(result.error, InvalidRequest)
    assert result.error.code == ErrorCode.INVALID_TARGET_COLUMN
    assert message in result.error.message
    assert bench.log.log_end_offset == 0


def test_a_partial_update_cannot_leave_out_a_column_that_must_have_a_value():
    columns = [Column("id", types.int_()), Column("must", types.int_().not_null()), Column("may", types.int_())]
    bench = Bench(FakeTable(columns=columns))
    with pytest.raises(InvalidRequest, match="'must' is NOT NULL"):
        bench.put({"id": 1, "must": 1, "may": 2}, targets=["id", "may"])


def test_a_null_in_a_not_null_column_is_refused_and_changes_nothing():
    columns = [Column("id", types.int_()), Column("must", types.int_().not_null())]
    bench = Bench(FakeTable(columns=columns))
    bench.put({"id": 1, "must": 1})
    # Build the bad row under a schema that allows the null, as a careless client might.
    lax = FakeTable(columns=[Column("id", types.int_()), Column("must", types.int_())])
    (result,) = bench.tablet.put_group([lax.request([{"id": 2, "must": None}])])
    assert isinstance(result.error, InvalidRequest)
    assert "'must'" in result.error.message
    assert bench.rows() == [{"id": 1, "must": 1}]


# ---- options --------------------------------------------------------------------------------------------------------


def test_wal_image_writes_only_new_values_and_counts_no_rows():
    bench = Bench(FakeTable({"table.changelog.image": "WAL"}))
    bench.put(row(1, "a"))
    bench.put(row(1, "b"))
    bench.put(row(1, "c"), row(1), row(1, "d"), deletes=[False, True, False])
    bench.delete(1)
    assert [(kind, r["name"]) for _, kind, r in bench.table.changelog(bench.log)] == [
        ("+U", "a"), ("+U", "b"), ("+U", "c"), ("-D", "c"), ("+U", "d"), ("-D", "d"),
    ]  # fmt: skip
    assert (bench.rows(), bench.tablet.row_count) == ([], None)


def test_deletes_may_be_ignored_or_forbidden():
    ignoring = Bench(FakeTable({"table.delete.behavior": "IGNORE"}))
    ignoring.put(row(1, "a"))
    ignoring.delete(1)
    assert ignoring.rows() == [row(1, "a")]
    forbidding = Bench(FakeTable({"table.delete.behavior": "DISABLE"}))
    forbidding.put(row(1, "a"))
    with pytest.raises(InvalidRequest, match="forbids deletes") as caught:
        forbidding.put(row(2, "b"), row(1), deletes=[False, True])
    assert caught.value.code == ErrorCode.DELETION_DISABLED_EXCEPTION
    assert forbidding.rows() == [row(1, "a")]


def test_overwriting_puts_delete_whatever_the_table_makes_of_deletes():
    for behavior in ("IGNORE", "DISABLE"):
        bench = Bench(FakeTable({"table.delete.behavior": behavior}))
        bench.put(row(1, "a"), row(2, "b"))
        undo = replace(bench.table.request([row(1), row(2, "before")], [True, False]), overwrite=True)
        plain = bench.table.request([row(3, "c")])
        assert [result.error for result in bench.tablet.put_group([plain, undo])] == [None, None]
        assert bench.rows() == [row(2, "before"), row(3, "c")]
        assert [kind for _, kind, _ in bench.table.changelog(bench.log)][-4:] == ["+I", "-D", "-U", "+U"]


@pytest.mark.parametrize("properties", [{}, {"table.kv.format": "INDEXED"}])
@pytest.mark.parametrize("id_type", [types.int_(), types.bigint()])
def test_auto_increment_gives_ids_to_new_rows_only(properties, id_type):
    columns = [Column("id", types.int_()), Column("seq", id_type), Column("name", types.string())]
    bench = Bench(FakeTable(properties, columns, "seq"))
    bench.put({"id": 10, "name": "a"}, {"id": 11, "name": "b"}, targets=["id", "name"])
    bench.put({"id": 10, "name": "c"}, {"id": 12, "name": "d"}, targets=["id", "name"])
    assert [(r["id"], r["seq"], r["name"]) for r in bench.rows()] == [(10, 1, "c"), (11, 2, "b"), (12, 3, "d")]
    with pytest.raises(InvalidRequest, match="auto-increment"):
        bench.put({"id": 1, "seq": 5, "name": "x"})


def test_no_auto_increment_id_of_a_segment_is_left_out():
    columns = [Column("id", types.int_()), Column("seq", types.int_()), Column("name", types.string())]
    bench = Bench(FakeTable({"table.auto-increment.cache-size": "3"}, columns, "seq"))
    for i in range(7):
        bench.put({"id": i}, targets=["id", "name"])
    assert [r["seq"] for r in bench.rows()] == [1, 2, 3, 4, 5, 6, 7]
    assert bench.next_segment == 10


def test_auto_increment_ids_end_with_the_greatest_of_their_type():
    columns = [Column("id", types.int_()), Column("seq", types.int_()), Column("name", types.string())]
    bench = Bench(FakeTable({}, columns, "seq"))
    bench.next_segment = 2**31 - 2
    bench.put({"id": 1}, {"id": 2}, targets=["id", "name"])
    with pytest.raises(InvalidRequest, match="'seq' has reached its greatest value 2147483647"):
        bench.put({"id": 3}, targets=["id", "name"])
    assert [r["seq"] for r in bench.rows()] == [2**31 - 2, 2**31 - 1]


def test_auto_increment_ids_are_never_given_twice_after_a_crash():
    columns = [Column("id", types.int_()), Column("seq", types.bigint()), Column("name", types.string())]
    bench = Bench(FakeTable({"table.auto-increment.cache-size": "10"}, columns, "seq"))
    bench.put(*({"id": i} for i in range(3)), targets=["id", "name"])
    bench.reopen()
    bench.put({"id": 3}, targets=["id", "name"])
    assert [r["seq"] for r in bench.rows()] == [1, 2, 3, 4]
    bench.reopen(MemoryEngine())
    bench.put({"id": 4}, targets=["id", "name"])
    assert [r["seq"] for r in bench.rows()] == [1, 2, 3, 4, 11]


# ---- writers --------------------------------------------------------------------------------------------------------


def test_a_repeated_batch_is_answered_with_its_original_offsets_and_written_once():
    bench = Bench()
    first = bench.put(row(1, "a"), writer_id=7, sequence=0)
    second = bench.put(row(1, "b"), writer_id=7, sequence=1)
    assert bench.put(row(1, "a"), writer_id=7, sequence=0) == first == 1
    assert bench.put(row(1, "b"), writer_id=7, sequence=1) == second == 3
    assert (bench.rows(), bench.log.log_end_offset) == ([row(1, "b")], 3)


def test_a_batch_out_of_sequence_changes_nothing():
    bench = Bench()
    bench.put(row(1, "a"), writer_id=7, sequence=0)
    with pytest.raises(Conflict) as caught:
        bench.put(row(1, "c"), writer_id=7, sequence=2)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
    assert bench.rows() == [row(1, "a")]


def test_writer_sequences_survive_a_restart():
    bench = Bench()
    bench.put(row(1, "a"), writer_id=7, sequence=0)
    bench.reopen()
    assert bench.put(row(1, "a"), writer_id=7, sequence=0) == 1
    bench.put(row(1, "b"), writer_id=7, sequence=1)
    assert bench.rows() == [row(1, "b")]


# ---- schema evolution ------------------------------------------------------------------------------------------------


def test_rows_of_older_schemas_are_updated_deleted_and_merged_under_the_newest():
    bench = Bench()
    bench.put(row(1, "a", 1), row(2, "b", 2), row(3, "c", 3))
    bench.table.add_column(Column("extra", types.string()))
    bench.put({"id": 1, "extra": "x"}, targets=["id", "extra"])
    bench.delete(2)
    assert bench.rows() == [row(1, "a", 1) | {"extra": "x"}, row(3, "c", 3) | {"extra": None}]
    changes = bench.table.changelog(bench.log, 3)
    assert changes == [
        (3, "-U", row(1, "a", 1) | {"extra": None}),
        (4, "+U", row(1, "a", 1) | {"extra": "x"}),
        (5, "-D", row(2, "b", 2) | {"extra": None}),
    ]


def test_a_client_with_an_older_schema_may_still_write():
    bench = Bench()
    bench.table.add_column(Column("extra", types.string()))
    bench.put(row(1, "a", 1), row(2), schema_id=1, deletes=[False, True])
    assert bench.rows() == [row(1, "a", 1) | {"extra": None}]


def test_a_batch_of_an_unknown_schema_is_refused():
    bench = Bench()
    records = encode_kv_batch(pa.array([b"\1"], pa.binary()), pa.array([b"\0\1"], pa.binary()), 9)
    (result,) = bench.tablet.put_group([PutRequest(records)])
    assert isinstance(result.error, NotFound)
    assert result.error.code == ErrorCode.SCHEMA_NOT_EXIST


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_a_malformed_row_fails_its_request_and_no_other():
    bench = Bench()
    bad = PutRequest(encode_kv_batch(pa.array([b"\1"], pa.binary()), pa.array([b"\0\xff\xff"], pa.binary()), 1))
    results = bench.tablet.put_group([bench.table.request([row(1, "a")]), bad, bench.table.request([row(2, "b")])])
    assert [type(r.error) for r in results] == [type(None), CorruptData, type(None)]
    assert bench.rows() == [row(1, "a"), row(2, "b")]
    assert bench.log.log_end_offset == 2


def test_a_text_that_is_no_utf8_is_refused():
    bench = Bench()
    good = bench.table.request([row(1, "a text")]).records
    bad = bytes(good)[34:].replace(b"text", b"te\xfft")
    records = encode_kv_batch(pa.array([b"\1"], pa.binary()), pa.array([bad], pa.binary()), 1)
    (result,) = bench.tablet.put_group([PutRequest(records)])
    assert isinstance(result.error, CorruptData)
    assert "invalid UTF8" in result.error.message.replace("Invalid", "invalid")
    assert (bench.rows(), bench.log.log_end_offset) == ([], 0)


def test_a_key_that_is_not_the_key_of_its_row_is_refused():
    bench = Bench()
    good = bench.table.request([row(1, "a")]).records
    swapped = encode_kv_batch(pa.array([b"\2"], pa.binary()), pa.array([bytes(good)[34:]], pa.binary()), 1)
    (result,) = bench.tablet.put_group([PutRequest(swapped)])
    assert isinstance(result.error, CorruptData)
    assert "not the key of its row" in result.error.message
    assert (bench.rows(), bench.log.log_end_offset) == ([], 0)


# ---- failures and recovery -------------------------------------------------------------------------------------------


def test_state_is_rebuilt_from_the_log_alone():
    bench = Bench()
    bench.put(row(1, "a"), row(2, "b"))
    bench.put(row(1, "c"))
    bench.delete(2)
    expected = bench.rows(), bench.tablet.row_count, bench.tablet.applied_offset
    bench.reopen(MemoryEngine())
    assert (bench.rows(), bench.tablet.row_count, bench.tablet.applied_offset) == expected
    assert bench.engine.state.digest is not None


@pytest.mark.parametrize("properties", FORMATS)
def test_recovery_continues_from_the_applied_offset_across_schema_versions(properties):
    bench = Bench(FakeTable(properties))
    bench.put(row(1, "a"))
    older = MemoryEngine()
    older.apply({bench.table.key(1): bench.engine.first(1)[0]}, EngineState(1, 1))
    bench.table.add_column(Column("extra", types.int_()))
    bench.put({"id": 2, "extra": 5}, {"id": 1, "name": "z"})
    bench.delete(1)
    bench.reopen(older)
    assert bench.rows() == [row(2) | {"extra": 5}]
    assert bench.tablet.row_count == 1


@pytest.mark.parametrize("knows_digest", [True, False])
def test_recovery_keeps_the_digest_of_a_state_that_has_one_and_makes_none_up(knows_digest):
    bench = Bench()
    bench.put(row(1, "a"), row(2, "b"))
    older = MemoryEngine()
    state = bench.engine.state if knows_digest else EngineState(bench.engine.state.applied_offset, 2)
    older.apply({bench.table.key(key): bench.engine.multi_get([bench.table.key(key)])[0] for key in (1, 2)}, state)
    bench.put(row(1, "c"), row(3, "d"))
    bench.delete(2)
    bench.reopen(older)
    assert bench.rows() == [row(1, "c"), row(3, "d")]
    assert (bench.engine.state.digest is not None) == knows_digest
    bench.put(row(4, "e"))
    assert len(bench.rows()) == 3
    assert (bench.engine.state.digest is not None) == knows_digest


def test_changelog_visible_only_after_kv_is_durable():
    """1b: the high watermark must not pass what the state holds (F#134)."""
    bench = Bench()
    bench.put(row(1, "a"))
    failing = bench.engine.apply
    bench.engine.apply = _raise_full  # type: ignore[method-assign]
    with pytest.raises(StorageFailure):
        bench.put(row(1, "b"))
    assert (bench.log.log_end_offset, bench.log.high_watermark) == (3, 1)
    assert bench.rows() == [row(1, "a")]
    bench.engine.apply = failing  # type: ignore[method-assign]
    bench.put(row(2, "c"))
    assert bench.rows() == [row(1, "b"), row(2, "c")]
    assert bench.log.high_watermark == bench.log.log_end_offset


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            DiskFull("no room", ErrorCode.DISK_WRITE_LOCKED),
            ErrorCode.KV_STORAGE_EXCEPTION,
            "no room. The changelog has this write already, and the state follows it with the next one",
        ),
        (StorageFailure("broken", ErrorCode.LOG_STORAGE_EXCEPTION), ErrorCode.LOG_STORAGE_EXCEPTION, "broken"),
    ],
)
def test_a_full_disk_behind_the_append_is_not_told_as_if_nothing_was_written(error, code, message):
    bench = Bench()

    def fail(*_: object) -> None:
        raise error

    bench.engine.apply = fail  # type: ignore[method-assign]
    with pytest.raises(StorageFailure) as told:
        bench.put(row(1, "a"))
    assert (told.value.message, told.value.code, isinstance(told.value, DiskFull)) == (message, code, False)


@pytest.mark.parametrize(("image", "count"), [("FULL", -1), ("WAL", 7)])
def test_rows_are_counted_only_where_the_state_and_the_changelog_allow_it(image, count):
    bench = Bench(FakeTable({"table.changelog.image": image}))
    bench.engine.apply({}, EngineState(0, count))
    assert bench.tablet.row_count is None


def _raise_full(*_: object) -> None:
    raise StorageFailure("disk full", ErrorCode.KV_STORAGE_EXCEPTION)


def test_a_retry_after_a_failed_apply_is_recognised():
    bench = Bench()
    failing = bench.engine.apply
    bench.engine.apply = _raise_full  # type: ignore[method-assign]
    with pytest.raises(StorageFailure):
        bench.put(row(1, "a"), writer_id=3, sequence=0)
    bench.engine.apply = failing  # type: ignore[method-assign]
    assert bench.put(row(1, "a"), writer_id=3, sequence=0) == 1
    assert (bench.rows(), bench.log.log_end_offset) == ([row(1, "a")], 1)
    # Acknowledged is visible, though the acknowledged attempt has appended nothing: seed 4542 of the simulation.
    assert bench.log.high_watermark == 1


def test_a_retry_for_all_is_durable_though_the_first_attempt_requested_less():
    bench = Bench()
    assert bench.put(row(1, "a"), writer_id=3, sequence=0, acks=1) == 1
    assert bench.log.synced_offset == 0
    assert bench.put(row(1, "a"), writer_id=3, sequence=0, acks=-1) == 1
    assert bench.log.synced_offset == 1


def test_a_failed_append_changes_nothing_and_the_retry_succeeds():
    bench = Bench()
    bench.put(row(1, "a"))
    bench.fs.inject("append", "/log", on_call=1)
    with pytest.raises(StorageFailure):
        bench.put(row(1, "b"))
    assert bench.rows() == [row(1, "a")]
    assert bench.put(row(1, "b")) == 3


def test_after_a_failed_sync_nothing_is_acknowledged_again():
    bench = Bench()
    bench.put(row(1, "a"))
    bench.fs.inject("sync", "/log", on_call=1)
    for _ in range(2):
        with pytest.raises(StorageFailure):
            bench.put(row(1, "b"))
    assert bench.rows() == [row(1, "a")]
    assert bench.log.is_offline


def test_writes_with_acks_1_are_not_synced_but_visible():
    bench = Bench()
    bench.put(row(1, "a"), acks=1)
    assert bench.rows() == [row(1, "a")]
    assert (bench.log.synced_offset, bench.log.high_watermark) == (0, 1)


def test_long_recoveries_report_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("forebay.kv.tablet._REPLAY_ROWS", 2)
    bench = Bench()
    for i in range(6):
        bench.put(row(i, "x"))
    bench.engine = MemoryEngine()
    tablet = KvTablet(bench.table, bench.log, bench.engine, bench.take_ids)
    seen: list[tuple[int, int]] = []
    assert tablet.recover(lambda reached, end: seen.append((reached, end))) == 6
    assert seen == [(2, 6), (4, 6), (6, 6)]
    assert tablet.row_count == 6


def test_a_key_of_no_bytes_is_refused_and_nothing_of_its_batch_is_written():
    columns = [Column("id", types.string()), Column("name", types.string())]
    bench = Bench(FakeTable({"table.datalake.format": "iceberg"}, columns))
    bench.put({"id": "a", "name": "x"})
    for write in (lambda: bench.put({"id": "b", "name": "y"}, {"id": "", "name": "z"}), lambda: bench.delete("")):
        with pytest.raises(InvalidRequest, match="no bytes at all"):
            write()
    assert bench.rows() == [{"id": "a", "name": "x"}]
    assert bench.put({"id": "b", "name": "y"}) == 2


# ---- keys of floating-point numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lake", [None, "paimon", "iceberg"])
def test_keys_of_clients_that_encode_the_bits_of_zeros_and_nans_are_brought_to_one_form(lake: str | None) -> None:
    """Java's client writes -0.0 and NaNs as they are; for SQL and for the lake they are one key each."""
    columns = [Column("id", types.double()), Column("v", types.bigint())]
    bench = Bench(FakeTable({} if lake is None else {"table.datalake.format": lake}, columns))
    raw = np.array([0x7FF8 << 48, 0xFFF8000000000001, 1 << 63, 0, 0x3FF0 << 48], np.uint64).view(np.float64)
    codec = row_codec(bench.table.info.schema.columns, bench.table.row_format)
    batch = pa.RecordBatch.from_arrays([pa.array(raw), pa.array(range(5))], schema=codec.schema)
    encoded = key_bytes(raw, lake)
    records = encode_kv_batch(pa.array(encoded, pa.binary()), codec.encode(batch), 1)
    (result,) = bench.tablet.put_group([PutRequest(records)])
    assert result.error is None

    def stored() -> list[tuple[bytes, int]]:
        return sorted((np.float64(r["id"]).tobytes(), r["v"]) for r in bench.rows())

    expected = sorted((raw[p].tobytes(), v) for p, v in ((0, 1), (3, 3), (4, 4)))
    assert stored() == expected
    values = bench.tablet.lookup(encoded)
    assert [r["v"] for r in bench.table.rows_of_values([v for v in values if v is not None])] == [1, 1, 3, 3, 4]
    bench.reopen(MemoryEngine())
    assert stored() == expected, "the log says the same as the state"

    gone = encode_kv_batch(pa.array([encoded[0], encoded[2]], pa.binary()), pa.nulls(2, pa.binary()), 1)
    (result,) = bench.tablet.put_group([PutRequest(gone)])
    assert result.error is None
    assert stored() == [(raw[4].tobytes(), 4)]


def key_bytes(values: np.ndarray[Any, np.dtype[np.float64]], lake: str | None) -> list[bytes]:
    """Keys of one DOUBLE as Java's clients encode them, by the bits."""
    head = bytes(8) if lake == "paimon" else b""  # of a Paimon row: header and null bits
    return [head + value.tobytes() for value in values]


def test_a_prefix_with_a_zero_of_either_sign_finds_the_same_rows() -> None:
    columns = [Column("id", types.double()), Column("n", types.int_())]
    table = FakeTable(columns=columns)
    schema = Schema.of(columns, ("id", "n"))
    table.info = replace(table.info, descriptor=replace(table.info.descriptor, schema=schema))
    table.schemas = {1: schema}
    bench = Bench(table)
    bench.put({"id": 0.0, "n": 1}, {"id": -0.0, "n": 2}, {"id": 1.0, "n": 3})
    for zero in (0.0, -0.0):
        found = bench.tablet.prefix_lookup(np.float64(zero).tobytes())
        assert [r["n"] for r in table.rows_of_values(found)] == [1, 2]


def small_batches(bench: Bench) -> None:
    """Log batches of more than 2,000 bytes are refused."""
    config = LogConfig(batch_bytes_max=2000)
    bench.log = LogTablet.open(bench.fs, "/log", config=config, clock=bench.clock)
    bench.tablet = KvTablet(bench.table, bench.log, bench.engine, bench.take_ids)


def named(name: str) -> list[Row]:
    return [row(key, random.Random(f"{name} of {key}").randbytes(60).hex(), key) for key in range(20)]


@pytest.mark.parametrize("properties", FORMATS)
def test_rows_of_a_transaction_are_written_even_if_their_changelog_is_larger_than_a_batch(properties):
    bench = Bench(FakeTable(properties))
    small_batches(bench)
    for key in range(20):
        bench.put(*named("old")[key : key + 1])
    with pytest.raises(InvalidRequest, match="is larger than the limit of 2000"):
        bench.put(*named("refused"))
    assert bench.rows() == named("old")
    decided = replace(bench.table.request(named("new"), writer_id=7, sequence=0), decided_ms=5)
    other = bench.table.request([row(99, "other")])
    first, second = bench.tablet.put_group([decided, other])
    assert (first.error, first.log_end_offset, second.error, second.log_end_offset) == (None, 60, None, 61)
    assert bench.rows() == [*named("new"), row(99, "other")]
    assert bench.tablet.row_count == 21
    sizes = [header.size_bytes for header, _ in bench.log.iterate_batches(20, 60)]
    assert len(sizes) > 1
    assert max(sizes) <= 2000
    changes = bench.table.changelog(bench.log)[20:60]
    assert [kind for _, kind, _ in changes] == ["-U", "+U"] * 20
    assert [r for _, _, r in changes] == [r for pair in zip(named("old"), named("new"), strict=True) for r in pair]
    (repeated,) = bench.tablet.put_group([decided])
    assert repeated.log_end_offset == 60
    bench.reopen(MemoryEngine())
    assert bench.rows() == [*named("new"), row(99, "other")]
    (repeated,) = bench.tablet.put_group([decided])
    assert (repeated.error, bench.log.log_end_offset) == (None, 61)


def test_rows_of_a_transaction_that_were_written_in_part_are_written_again():
    bench = Bench()
    small_batches(bench)
    for key in range(20):
        bench.put(*named("old")[key : key + 1])
    decided = replace(bench.table.request(named("new"), writer_id=7, sequence=0), decided_ms=5)
    bench.fs.inject("append", "/log", on_call=2)
    (failed,) = bench.tablet.put_group([decided])
    assert failed.error is not None
    bench.reopen()
    small_batches(bench)
    bench.tablet.recover()
    assert 20 < bench.log.log_end_offset < 60
    (written,) = bench.tablet.put_group([decided])
    assert written.error is None
    assert bench.rows() == named("new")
    assert bench.tablet.row_count == 20
    bench.reopen(MemoryEngine())
    assert bench.rows() == named("new")


def test_a_row_that_no_answer_could_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tablet, "ROW_BYTES_MAX", 400)
    monkeypatch.setattr(tablet, "STAGED_ROW_BYTES_MAX", 200)
    bench = Bench()
    bench.put(row(1, "x" * 350), row(2, "y"))
    for rows in ([row(1, "x" * 400)], [row(3, "a"), row(2, "x" * 400)]):
        with pytest.raises(InvalidRequest, match=r"would have .* with its key, more than the limit of 400 B"):
            bench.put(*rows)
    assert bench.rows() == [row(1, "x" * 350), row(2, "y")]
    codec = ChangelogCodec(bench.table.info, bench.table.schema_by_id)
    codec.check(bench.table.request([row(1, "x" * 150)]))
    with pytest.raises(InvalidRequest, match="more than the limit of 200 B in a transaction"):
        codec.check(bench.table.request([row(1, "x" * 250)]))
    bench.delete(1)
    assert bench.rows() == [row(2, "y")]
