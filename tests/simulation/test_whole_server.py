"""The whole server under one seed, a few seeds of it: `make simulate` runs thousands. See docs/simulation.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.every_run import every_run
from tests.simulation.histories import NEVER, Op, is_linearizable
from tests.simulation.run import added

SEEDS_FOUND = {
    13: "a bucket that was not opened between an unclean end and a clean one was refused for ever",
    68: "state files were trusted by the boot id alone, after the page cache was lost with the file system",
    207: "bytes changed behind the recovery point of a log, which look like a torn write: the simulation's fault",
    210: "the answer to one client was held against a later one to another: the simulation's fault",
    350: "the machine was ended while the checks read its log: the simulation's fault",
    579: "a flipped bit in the write-ahead log of the metadata took tables away in silence (601, too)",
    1157: "a full disk while metadata is written ended in an internal error: the simulation's database lacked a method",
    4542: "a batch sent again, whose first attempt had failed behind the log, was acknowledged and not visible",
    6180: "a metadata file whose schema was damaged was told as one that cannot be opened just now",
    5477: "a server that stopped was told off for waiting for its threads: the simulation's fault",
    12138: "a connection that was refused had a transport that could not say how it ends: the simulation's fault",
    1677: "a parked state was trusted after an apply that failed and could not be put back: the simulation's fault",
    10336: "a connection that came in while the server stopped was served, and met closed parts",
}
"""Seeds that have found a fault when they were run first, and what it was. What a seed does depends on all the code, so
it may not come to that place again: each fault of the product has a plain test beside it."""

MUTANT_SEEDS = 60
"""Each change of the server makes other histories of the seeds. One in seven finds the mutants that are hardest to
find, so that a few are enough as a rule, and that none of these does is a chance of one in ten thousand."""


def run(seeds: list[int], *options: str, **environment: str) -> dict[str, Any]:
    """Run seeds in a process of their own, in which sets of texts have one order."""
    command = [sys.executable, "-m", "tests.simulation.run", "--workers", "1", "--json", *options, "--list"]
    done = subprocess.run(
        [*command, ",".join(map(str, seeds))],
        env={**os.environ, "PYTHONHASHSEED": "0", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_no_promise_is_broken_whatever_fails():
    result = run(list(range(4)))
    assert result["failures"] == {}
    (again,) = run([3])["outcomes"]  # in another process, and without the others before it
    assert again == result["outcomes"][3]


@pytest.mark.slow
def test_seeds_that_found_a_fault_find_none():
    result = run(sorted(SEEDS_FOUND))
    assert result["failures"] == {}


@pytest.mark.parametrize(
    "mutant",
    every_run(
        ["sync", "duplicates", "trust", "stages", "parts", "conditions"],
        lambda mutant: mutant == "sync",
    ),
)
def test_a_server_that_breaks_its_promises_is_found_out(mutant):
    seeds = MUTANT_SEEDS * (8 if mutant in ("stages", "parts", "conditions") else 1)  # the moments that count are short
    result = run(list(range(seeds)), "--until-failure", SIM_MUTANT=mutant)
    assert result["failures"] != {}


def one_run(first: int, last: int, **failures: str) -> dict[str, Any]:
    return {
        "seeds": last - first + 1,
        "first_seed": first,
        "last_seed": last,
        "failures": failures,
        "seeds_per_minute": 100.0,
        "workers": 1,
        "virtual_hours": 0.5,
        "counts": {"kill": 2},
    }


def test_figures_of_runs_add_up_and_keep_what_each_has_found():
    figures = added(added({}, one_run(0, 9, s3="lost"), "aaa"), one_run(10, 29), "bbb")
    assert (figures["seeds"], figures["first_seed"], figures["last_seed"]) == (30, 0, 29)
    assert (figures["failures"], figures["virtual_hours"], figures["counts"]) == ({}, 1.0, {"kill": 4})
    assert [(run["commit"], run["failures"]) for run in figures["runs"]] == [("aaa", {"s3": "lost"}), ("bbb", {})]


def write(value: Any, asked: float, answered: float) -> Op:
    return Op(True, value, asked, answered)


def read(value: Any, asked: float, answered: float) -> Op:
    return Op(False, value, asked, answered)


def test_a_register_that_is_read_in_order_has_an_order():
    assert is_linearizable(
        [write("a", 0, 1), read("a", 1.5, 2), write("b", 3, 5), read("a", 3.5, 4), read("b", 4.5, 6)]
    )


def test_an_old_value_after_a_new_one_has_no_order():
    assert not is_linearizable([write("a", 0, 1), write("b", 2, 3), read("b", 4, 5), read("a", 6, 7)])
    assert not is_linearizable([write("a", 0, 1), read(None, 2, 3)])


def test_a_write_that_was_never_answered_may_have_happened_at_any_time_or_never():
    lost = write("b", 2, NEVER)
    assert is_linearizable([write("a", 0, 1), lost, read("a", 3, 4)])
    assert is_linearizable([write("a", 0, 1), lost, read("a", 3, 4), read("b", 5, 6)])
    assert not is_linearizable([write("a", 0, 1), lost, read("b", 3, 4), read("a", 5, 6)])
    assert not is_linearizable([write("a", 0, 1), read("b", 1.2, 1.5), lost])
