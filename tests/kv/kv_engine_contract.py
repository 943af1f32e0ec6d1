"""The contract of key-value engines. Subclass `KvEngineContract` and provide `open_engine`."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.base.errors import UnsupportedOperation
from forebay.codec.kv.value_batch import parse_value_batch, stored_value
from forebay.kv.engine import EngineState, GroupWrites, KvEngine, KvRows, KvSnapshot
from forebay.kv.value_pages import just_longer_than

Operation = tuple[bytes, bytes | None]
_operations = st.lists(
    st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.none() | st.binary(max_size=20)), max_size=12),
    max_size=6,
)


def just_reaching(bytes_max: int, values: Sequence[bytes]) -> list[bytes]:
    """The first values, one at least, that together are `bytes_max` bytes or more; all if they are less."""
    found: list[bytes] = []
    for value in values:
        if found and sum(map(len, found)) >= bytes_max:
            break
        found.append(value)
    return found


class KvEngineContract:
    """Behaviour shared by all engines; the model is a dict."""

    reopens = True
    """Whether a closed engine still has its rows when it is opened again."""

    is_ordered = True
    """Whether values come in the order of their keys, and can be looked up by a prefix."""

    def in_order(self, values: Iterable[bytes]) -> list[bytes]:
        """The values as they are from an engine that has an order; otherwise in an order of their own."""
        return list(values) if self.is_ordered else sorted(values)

    def open_engine(self, directory: Path) -> KvEngine:
        raise NotImplementedError("a contract test provides the engine")

    @pytest.fixture
    def engine(self, tmp_path: Path) -> KvEngine:
        return self.open_engine(tmp_path / "db")

    def test_a_new_engine_is_empty_and_at_offset_zero(self, engine: KvEngine) -> None:
        assert engine.state == EngineState()
        assert engine.multi_get([b"a"]) == [None]
        assert engine.first(10) == []

    # Every subclass is a separate executor, which is the purpose of a contract.
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(batches=_operations)
    def test_reads_agree_with_a_dict(
        self, tmp_path_factory: pytest.TempPathFactory, batches: list[list[Operation]]
    ) -> None:
        engine = self.open_engine(tmp_path_factory.mktemp("engine") / "db")
        model: dict[bytes, bytes] = {}
        for offset, batch in enumerate(batches, start=1):
            writes = dict(batch)
            engine.apply(writes, EngineState(offset, len(model)))
            for key, value in writes.items():
                if value is None:
                    model.pop(key, None)
                else:
                    model[key] = value
            assert engine.state.applied_offset == offset
        keys = [*sorted({key for batch in batches for key, _ in batch}), b"\xff\xff\xff\xff"]
        assert engine.multi_get(keys) == [model.get(key) for key in keys]
        assert engine.multi_get(keys + keys[::-1]) == [model.get(key) for key in keys + keys[::-1]]
        ordered = self.in_order(model[key] for key in sorted(model))
        everything = engine.first(len(model))
        assert self.in_order(everything) == ordered
        for limit in (0, 1, len(model), len(model) + 5):
            assert engine.first(limit) == everything[:limit]
            assert engine.first(limit, 4) == just_longer_than(4, everything[:limit])
        for prefix in [key[:1] for key in keys] + [b"\0"]:
            if not self.is_ordered:
                with pytest.raises(UnsupportedOperation, match="prefix"):
                    engine.prefix(prefix)
                continue
            found = [model[key] for key in sorted(model) if key.startswith(prefix)]
            assert engine.prefix(prefix) == found
            for bytes_max in (0, 4, sum(map(len, found))):
                assert engine.prefix(prefix, bytes_max) == just_longer_than(bytes_max, found)
        assert dict(engine.items()) == model
        snapshot = engine.snapshot()
        assert list(snapshot.values()) == everything
        for bytes_max, rows_max in ((0, 100), (30, 100), (1 << 20, 2), (1 << 20, 1 << 40)):
            self.read_pages(snapshot, everything, bytes_max, rows_max)
        snapshot.close()
        engine.close()

    def read_pages(self, snapshot: KvSnapshot, values: list[bytes], bytes_max: int, rows_max: int) -> None:
        """Read all pages; each says rightly how many rows it has and whether more follow, and is as large as it may."""
        place, after = 0, None
        while True:
            page = snapshot.page(after, bytes_max, rows_max)
            assert page == snapshot.page(after, bytes_max, rows_max)
            expected = just_reaching(bytes_max, values[place : place + rows_max])
            assert page.records[9:] == b"".join(expected)
            assert page.records[:9] == struct.pack("<ibi", len(page.records) - 4, 0, len(expected))
            place += page.rows
            assert (page.rows, page.has_more) == (len(expected), place < len(values))
            assert (page.position is None) is (page.rows == 0)
            if not page.has_more:
                assert not page.rows or not snapshot.page(page.position, bytes_max, rows_max).rows
                return
            after = page.position

    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(
        rows=st.lists(st.tuples(st.integers(-(1 << 15), (1 << 15) - 1), st.binary(max_size=20)), max_size=40),
        bytes_max=st.integers(0, 200),
        rows_max=st.integers(1, 50),
    )
    def test_rows_to_decode_are_those_of_pages_and_stay_when_the_engine_goes_on(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        rows: list[tuple[int, bytes]],
        bytes_max: int,
        rows_max: int,
    ) -> None:
        engine = self.open_engine(tmp_path_factory.mktemp("engine") / "db")
        engine.apply({b"%d" % i: stored_value(*row) for i, row in enumerate(rows)}, EngineState(1, len(rows)))
        snapshot = engine.snapshot()
        found: list[KvRows] = []
        expected: list[tuple[int, bytes | None]] = []
        while not found or found[-1].has_more:
            after = found[-1].position if found else None
            page = snapshot.page(after, bytes_max, rows_max)
            found.append(snapshot.rows(after, bytes_max, rows_max))
            schema_ids, of_page = parse_value_batch(page.records)
            expected += [(int(schema_ids[i]), of_page[i]) for i in range(len(of_page))]
            assert len(found[-1].rows) == page.rows
            assert (found[-1].position, found[-1].has_more) == (page.position, page.has_more)
        snapshot.close()
        for turn in range(2, 6):  # until the log has been compacted
            engine.apply({b"%d" % i: stored_value(0, b"x" * (1 << 15)) for i in range(60)}, EngineState(turn, 60))
        read = [(int(part.schema_ids[i]), part.rows[i]) for part in found for i in range(len(part.rows))]
        assert read == expected
        assert sorted(read, key=repr) == sorted(rows, key=repr)
        engine.close()
        assert [part.rows[i] for part in found for i in range(len(part.rows))] == [row for _, row in read]

    def test_a_snapshot_does_not_see_later_writes_and_knows_its_offset(self, engine: KvEngine) -> None:
        engine.apply({b"a": b"1", b"b": b"2"}, EngineState(10, 2))
        snapshot = engine.snapshot()
        values = snapshot.values()
        first = next(values)
        engine.apply({b"a": b"x", b"b": None, b"c": b"3"}, EngineState(20, 2))
        assert self.in_order([first, *values]) == [b"1", b"2"]
        assert snapshot.state == EngineState(10, 2)
        snapshot.close()
        snapshot.close()
        untouched = engine.snapshot()
        engine.apply({b"a": b"y", b"0": b"z"}, EngineState(30, 3))
        assert self.in_order(untouched.values()) == self.in_order([b"x", b"3"])
        assert untouched.state.applied_offset == 20
        untouched.close()
        engine.apply({b"a": b"x", b"0": None}, EngineState(20, 2))
        later = engine.snapshot()
        assert self.in_order(later.values()) == self.in_order([b"x", b"3"])
        assert later.state.applied_offset == 20
        later.close()

    def test_snapshots_may_be_read_in_another_thread_than_the_one_that_took_them(self, engine: KvEngine) -> None:
        engine.apply({b"a": b"1"}, EngineState(1, 1))
        snapshot = engine.snapshot()
        seen: list[bytes] = []

        def read() -> None:
            seen.extend(snapshot.values())
            snapshot.close()

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        assert seen == [b"1"]

    def test_keys_of_any_length_are_found_and_ordered(self, engine: KvEngine) -> None:
        keys = [b"k" * n for n in (1, 477, 478, 479, 511, 512, 2000)] + [
            b"k" * 600 + b"x",
            b"k" * 600 + b"y",
            b"j" * 900,
        ]
        engine.apply({key: str(i).encode() for i, key in enumerate(keys)}, EngineState(1, len(keys)))
        assert engine.multi_get(keys) == [str(i).encode() for i in range(len(keys))]
        if self.is_ordered:
            assert engine.first(1) == [b"9"]  # the j's come before all k's
            assert engine.prefix(b"j") == [b"9"]
            assert sorted(engine.prefix(b"k" * 600)) == [b"6", b"7", b"8"]
            assert engine.prefix(b"k" * 600 + b"x") == [b"7"]
        assert [key for key, _ in sorted(engine.items(), key=lambda item: int(item[1]))] == keys
        engine.apply({keys[7]: None}, EngineState(2, len(keys) - 1))
        assert engine.multi_get([keys[7], keys[8]]) == [None, b"8"]
        if self.is_ordered:
            assert engine.prefix(b"k" * 600 + b"x") == []

    def test_a_group_sees_its_own_writes_and_nobody_else_does_until_it_is_applied(self, engine: KvEngine) -> None:
        engine.apply({b"a": b"1", b"b": b"2", b"c": b"3"}, EngineState(1, 3))
        keys = [b"a", b"b", b"c", b"d"]

        def seen(group: GroupWrites) -> list[bytes | None]:
            found = group.get(keys)
            return [found[key] for key in keys]

        group = engine.begin(False)
        assert seen(group) == [b"1", b"2", b"3", None]
        group.put({b"a": b"x", b"b": None, b"d": b"4"})
        assert seen(group) == [b"x", None, b"3", b"4"]
        group.put({b"a": None, b"b": b"again", b"c": b"y", b"d": b"5"})
        assert engine.multi_get(keys) == [b"1", b"2", b"3", None]
        snapshot = engine.snapshot()
        assert sorted(snapshot.values()) == [b"1", b"2", b"3"]
        snapshot.close()
        group.take_back()
        assert seen(group) == [b"x", None, b"3", b"4"]
        group.put({b"c": b"z", b"b": b"back"})
        group.apply(EngineState(2, 4))
        assert engine.multi_get(keys) == [b"x", b"back", b"z", b"4"]
        assert sorted(engine.first(9)) == [b"4", b"back", b"x", b"z"]
        abandoned = engine.begin(False)
        abandoned.put({b"a": b"never", b"b": None, b"e": b"never"})
        abandoned.put({b"e": None, b"b": b"never"})
        abandoned.abandon()
        assert engine.multi_get([*keys, b"e"]) == [b"x", b"back", b"z", b"4", None]
        assert engine.state == EngineState(2, 4)
        engine.apply({b"a": None, b"e": b"5"}, EngineState(3, 4))
        assert sorted(engine.first(9)) == [b"4", b"5", b"back", b"z"]

    def test_rows_and_state_are_there_after_reopening(self, tmp_path: Path) -> None:
        if not self.reopens:
            pytest.skip("this engine keeps nothing")
        engine = self.open_engine(tmp_path / "db")
        state = EngineState(7, 1, 5, 9)
        engine.apply({b"a": b"1"}, state)
        engine.sync()
        engine.close()
        again = self.open_engine(tmp_path / "db")
        assert (again.state, again.multi_get([b"a"])) == (state, [b"1"])
        again.close()

    def test_a_checkpoint_is_a_complete_engine_of_its_own(self, tmp_path: Path) -> None:
        if not self.reopens:
            pytest.skip("this engine keeps nothing")
        engine = self.open_engine(tmp_path / "db")
        engine.apply({b"a": b"1", b"k" * 600: b"long"}, EngineState(3, 2))
        engine.checkpoint(tmp_path / "copies" / "one")
        engine.apply({b"a": b"2"}, EngineState(4, 2))
        copy = self.open_engine(tmp_path / "copies" / "one")
        assert (copy.state, copy.multi_get([b"a", b"k" * 600])) == (EngineState(3, 2), [b"1", b"long"])
        copy.close()
        engine.close()
