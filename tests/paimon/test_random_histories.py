"""Random histories of tables of every merge engine equal their models. `PAIMON_SEEDS` runs more histories,
and longer ones (`make lake-trials`: 10 of each kind)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.paimon.histories import ENGINES, AppendLife, Life
from tests.paimon.lake import new_catalog

_SEEDS = int(os.environ.get("PAIMON_SEEDS", "1"))
_STEPS = 25 if "PAIMON_SEEDS" in os.environ else 12
PRODUCERS = ("none", "lookup", "full-compaction", "input")
CASES = [
    (engine, producer)
    for engine in ENGINES
    for producer in PRODUCERS
    if producer in ("none", "lookup") or (engine == "deduplicate" and producer == "input") or engine == "aggregation"
    if not (engine == "first-row" and producer == "full-compaction")
]


@pytest.mark.parametrize("seed", range(_SEEDS))
@pytest.mark.parametrize(("engine", "producer"), CASES)
@pytest.mark.one_in(2)
def test_a_table_equals_its_model_whatever_happens_to_it(tmp_path: Path, engine: str, producer: str, seed: int) -> None:
    dice = random.Random(f"{engine} {producer} {seed}")
    options = {"changelog-producer": producer, "bucket": dice.choice(["1", "2", "-1"])}
    if producer == "full-compaction":
        options["full-compaction.delta-commits"] = "2"
    life = Life(new_catalog(tmp_path), engine, options, dice)
    for _ in range(_STEPS):
        life.step()
        life.check()


@pytest.mark.parametrize("seed", range(_SEEDS))
@pytest.mark.parametrize("kind", ["unaware", "bucketed", "precommit"])
def test_an_append_table_equals_its_model_whatever_happens_to_it(tmp_path: Path, kind: str, seed: int) -> None:
    dice = random.Random(f"{kind} {seed}")
    bucketed = {"bucket": "2", "bucket-key": "k"}
    options = bucketed if kind == "bucketed" else {"bucket": "-1", "compaction.min.file-num": "3"}
    if kind == "precommit":
        options["precommit-compact"] = "true"
    life = AppendLife(new_catalog(tmp_path), options, dice)
    for _ in range(_STEPS):
        life.step()
        life.check()
