"""The trial of `make mutated-frames` with a few hundred frames, and that it detects what it is for."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from tests.reliability.mutated_frames import FRAMES_PER_CONNECTION, Tally, _judge, _new_bugs, run
from tests.reliability.mutations import Mutant, Mutator, Recorded, frame, writes_to
from tests.server.running import log_records


def test_mutated_frames_affect_no_other_client(tmp_path: Path) -> None:
    seed = int(os.environ.get("MUTATED_SEED", "1"))  # new ones are for `make mutated-frames`
    tally, figures = run(tmp_path, 300, seed)
    assert tally.finds == [], f"seed {seed}"
    assert 300 <= figures["frames"] < 300 + FRAMES_PER_CONNECTION
    assert figures["refused"] > 50
    assert figures["honest_rounds"] > 0
    assert figures["verified_buckets"] > 4


def recorded() -> list[Recorded]:
    write = pb.ProduceLogRequest(acks=-1, table_id=7, timeout_ms=1000)
    write.buckets_req.add(bucket_id=0, records=log_records([1, 2, 3]))
    database = pb.CreateDatabaseRequest(database_name="d", ignore_if_exists=False, database_json=b'{"comment": "x"}')
    return [
        Recorded(ApiKey.PRODUCE_LOG, 1, write.SerializeToString()),
        Recorded(ApiKey.CREATE_DATABASE, 0, database.SerializeToString()),
        Recorded(ApiKey.LIST_DATABASES, 0, b""),
    ]


def test_a_seed_makes_the_same_mutants_again_and_another_one_others() -> None:
    def made(seed: int) -> list[Mutant]:
        mutator = Mutator(random.Random(seed), recorded())
        return [mutator.mutant(number) for number in range(500)]

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert any(mutant.breaks for mutant in made(1))
    assert any("right checksum" in mutant.story for mutant in made(1))


def test_a_write_into_an_honest_table_is_distinguished_from_other_requests() -> None:
    write, create, _ = (frame(each.key, each.version, 5, each.body) for each in recorded())
    assert writes_to(write) == 7
    assert writes_to(write[:-20]) is None
    assert writes_to(create) is None


@pytest.mark.parametrize(("text", "finds"), [("KeyError: 'x'", 1), ("columns can only be added", 0)])
def test_an_answer_that_tells_of_a_bug_is_a_find(text: str, finds: int) -> None:
    tally, mutant = Tally(), Mutant(frame(1016, 0, 5, b"body"), "PUT_KV of some kind")
    error = pb.ErrorResponse(error_code=-1, error_message=text).SerializeToString()
    _judge(struct.pack(">bi", 1, 5) + error, [mutant], tally)
    assert len(tally.finds) == finds
    assert all("PUT_KV of some kind" in find for find in tally.finds)


def test_an_internal_error_in_the_log_of_the_server_is_found_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "2026-01-01 INFO started\n2026-01-01 ERROR internal error\nTraceback (most recent call last):\n  x\n"
    )
    [bug], position = _new_bugs(log, 0)
    assert bug.startswith("2026-01-01 ERROR internal error")
    assert "started" not in bug
    assert _new_bugs(log, position) == ([], position)
