"""Power loss, crashes and disk faults, thousands of times: `SIM_SEEDS=5000 make simulate` runs more seeds."""

from __future__ import annotations

import os

import pytest

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
