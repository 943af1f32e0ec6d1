"""The contract of key-value engines. Subclass `KvEngineContract` and provide `open_engine`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.kv.engine import EngineState, KvEngine, just_longer_than

Operation = tuple[bytes, bytes | None]
_operations = st.lists(
    st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.none() | st.binary(max_size=20)), max_size=12),
    max_size=6,
)


class KvEngineContract:
    """Behaviour shared by all engines; the model is a dict."""

    reopens = True
    """Whether a closed engine still has its rows when it is opened again."""

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
        ordered = [model[key] for key in sorted(model)]
        for limit in (0, 1, len(model), len(model) + 5):
            assert engine.first(limit) == ordered[:limit]
            assert engine.first(limit, 4) == just_longer_than(4, ordered[:limit])
        for prefix in [key[:1] for key in keys] + [b"\0"]:
            found = [model[key] for key in sorted(model) if key.startswith(prefix)]
            assert engine.prefix(prefix) == found
            for bytes_max in (0, 4, sum(map(len, found))):
                assert engine.prefix(prefix, bytes_max) == just_longer_than(bytes_max, found)
        snapshot = engine.snapshot()
        assert list(snapshot.values()) == ordered
        snapshot.close()
        engine.close()

    def test_a_snapshot_does_not_see_later_writes_and_knows_its_offset(self, engine: KvEngine) -> None:
        engine.apply({b"a": b"1", b"b": b"2"}, EngineState(10, 2))
        snapshot = engine.snapshot()
        values = snapshot.values()
        assert next(values) == b"1"
        engine.apply({b"a": b"x", b"b": None, b"c": b"3"}, EngineState(20, 2))
        assert list(values) == [b"2"]
        assert snapshot.state == EngineState(10, 2)
        snapshot.close()
        snapshot.close()
        untouched = engine.snapshot()
        engine.apply({b"a": b"y", b"0": b"z"}, EngineState(30, 3))
        assert (list(untouched.values()), untouched.state.applied_offset) == ([b"x", b"3"], 20)
        untouched.close()
        engine.apply({b"a": b"x", b"0": None}, EngineState(20, 2))
        later = engine.snapshot()
        assert (list(later.values()), later.state.applied_offset) == ([b"x", b"3"], 20)
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
        assert engine.first(1) == [b"9"]  # the j's come before all k's
        assert engine.prefix(b"j") == [b"9"]
        assert sorted(engine.prefix(b"k" * 600)) == [b"6", b"7", b"8"]
        assert engine.prefix(b"k" * 600 + b"x") == [b"7"]
        engine.apply({keys[7]: None}, EngineState(2, len(keys) - 1))
        assert engine.multi_get([keys[7], keys[8]]) == [None, b"8"]
        assert engine.prefix(b"k" * 600 + b"x") == []

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
