"""Power loss, crashes and disk faults, thousands of times: `SIM_SEEDS=5000 make simulate` runs more seeds."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import pytest

from forebay.kv.engine import EngineState
from tests.simulation.disk import MapEngine, RandomFile, SimFileSystem
from tests.simulation.scheduler import Scheduler, Stop
from tests.simulation.tablet_simulation import simulate

SEEDS = int(os.environ.get("SIM_SEEDS", "150"))
FIRST_SEED = int(os.environ.get("SIM_FIRST_SEED", "0"))


@pytest.mark.parametrize("block", range(10))
@pytest.mark.one_in(2)
def test_acknowledged_writes_survive_power_loss_kills_and_disk_faults(block):
    for seed in range(FIRST_SEED + block, FIRST_SEED + SEEDS, 10):
        simulate(seed)


def test_a_seed_repeats_exactly():
    first, second = simulate(4), simulate(4)
    assert first.trace == second.trace
    assert first.rng.random() == second.rng.random()


def test_the_checker_notices_a_lost_batch():
    simulation = simulate(1)
    simulation.sent[-1].acked = True
    simulation.sent[-1].sequence = 10_000
    with pytest.raises(AssertionError, match="lost batch"):
        simulation.check()


class _KilledAt:
    """A file of an engine whose process is killed at the write with this number."""

    def __init__(self, file: RandomFile, number: int) -> None:
        self._file, self._left = file, number

    def write(self, offset: int, data: bytes) -> None:
        if self._left == 0:
            raise Stop
        self._left -= 1
        self._file.write(offset, data)

    def size(self) -> int:
        return self._file.size()


@pytest.mark.parametrize("number", range(5))
def test_an_engine_of_the_simulation_that_is_killed_in_a_change_has_rows_and_state_of_one_instant(number):
    """LMDB copies the pages that it changes and names them in one write: the double promises no less and no more."""
    fs = SimFileSystem(Scheduler(1), random.Random(1), on_call=lambda: None)
    engine = MapEngine(fs, Path("/kv"))
    engine.apply({b"a": b"1", b"b": b"1"}, EngineState(1, 2))
    engine._file = _KilledAt(engine._file, number)
    with suppress(Stop):
        engine.apply({b"a": b"2", b"b": None, b"c": b"2"}, EngineState(2, 2))
    reopened = MapEngine(fs.kill(), Path("/kv"))
    rows = {1: {b"a": b"1", b"b": b"1"}, 2: {b"a": b"2", b"c": b"2"}}
    assert dict(reopened.items()) == rows[reopened.state.applied_offset]
    assert reopened.state.applied_offset == (1 if number < 4 else 2)
