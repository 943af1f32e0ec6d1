"""Damage to the files of a stopped or killed server: it starts, repairs or refuses; it never serves wrong rows.

A data directory with every kind of file is created once. Each trial copies it, damages one file (one bit flipped, the
end cut off, bytes added, a sector or page lost, two pages swapped), starts a server on the copy and reads everything:
tables, rows by key and by full scan, changelogs and logs, whole, projected and filtered. Every result must be right, or
an error that names the file: after a graceful shutdown, after `kill -9` long after the last recovery point, and if
nothing proves that the page cache is the same, as after a power failure. All writes were acknowledged.

`verify_directory` checks every copy before the server does, and must have found whatever the server then refuses.

CORRUPTION_ROUNDS sets how often each kind of file is damaged in each way (`make damage-trials`: once; 0, for CI: a
quarter of the kinds, once, in one of the ways).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base import host
from forebay.base.errors import CorruptData, ForebayError
from forebay.testing.server import EmbeddedServer, ServerProcess
from forebay.tiering.now import tier_table
from forebay.tiering.runner import ThreadRunner
from forebay.verify import verify_directory
from tests import results

ROUNDS = int(os.environ.get("CORRUPTION_ROUNDS", "0"))
SEED = int(os.environ.get("CORRUPTION_SEED", random.SystemRandom().randrange(1 << 32)))
SETTINGS = {"log.segment.file-size": "6kb", "log.index.interval-size": "1kb", "kv.checkpoint.records": "500"}
KEYS = 400
TABLES = {"fluss.hashed": "hlog", "fluss.lmdb": "lmdb"}
LAKED = "fluss.laked"

Damage = Callable[[bytearray, random.Random], bytearray]


def flip(data: bytearray, rng: random.Random) -> bytearray:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def cut(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randrange(len(data))] if data else data


def zero(data: bytearray, rng: random.Random) -> bytearray:
    start = rng.randrange(len(data)) if data else 0
    end = min(start + rng.choice([8, 512, 4096]), len(data))
    return data[:start] + bytes(end - start) + data[end:]


def extend(data: bytearray, rng: random.Random) -> bytearray:
    return data + rng.choice([bytes(40), rng.randbytes(100), bytes(data[-60:])])


def lose(unit: int) -> Damage:
    """A write of so many bytes that the disk acknowledged and never made."""

    def damage(data: bytearray, rng: random.Random) -> bytearray:
        start = rng.randrange(len(data)) // unit * unit if data else 0
        end = min(start + unit, len(data))
        return data[:start] + bytes(end - start) + data[end:]

    return damage


def swap(data: bytearray, rng: random.Random) -> bytearray:
    """Two pages, each in the other's place; those of a small file are its halves."""
    unit = min(4096, len(data) // 2)
    pages = [data[at : at + unit] for at in range(0, len(data), unit)] if unit else []
    if len(pages) > 1:
        one, other = sorted(rng.sample(range(len(data) // unit), 2))
        pages[one], pages[other] = pages[other], pages[one]
    return bytearray().join(pages)


DAMAGES: dict[str, Damage] = {
    "flip": flip, "cut": cut, "zero": zero, "extend": extend, "sector": lose(512), "page": lose(4096), "swap": swap
}  # fmt: skip


def version(number: int) -> list[dict[str, Any]]:
    return [{"k": k, "a": number, "b": f"value {number} of {k}"} for k in range(KEYS) if k % 7 != number % 7]


def log_rows() -> list[dict[str, Any]]:
    return [{"n": n, "s": f"row {n}", "d": n / 3} for n in range(3000)]


def create_tables(connection: forebay.Connection) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.string())])
    for path, engine in TABLES.items():
        connection.create_table(path, schema, primary_key=["k"], buckets=1, options={"forebay.kv.engine": engine})
    connection.create_table(
        "fluss.log", pa.schema([("n", pa.int64()), ("s", pa.string()), ("d", pa.float64())]), buckets=1
    )
    connection.create_table(
        LAKED, pa.schema([("n", pa.int64())]), buckets=1, options={"table.datalake.enabled": "true"}
    )


def fill(connection: forebay.Connection, half: int) -> None:
    """The first or the second half of everything that is written."""
    for path in TABLES:
        for number in (2 * half, 2 * half + 1):
            connection.table(path).upsert(version(number))
        connection.table(path).delete([{"k": k} for k in range(0, KEYS, 10)])
    rows = log_rows()[1500 * half : 1500 * (half + 1)]
    for first in range(0, len(rows), 100):
        connection.table("fluss.log").append(rows[first : first + 100])
    connection.table(LAKED).append([{"n": n} for n in range(100 * half, 100 * half + 100)])
    if not half:
        tier_table(connection, LAKED, ThreadRunner(1))


def expected_rows() -> dict[int, tuple[int, str]]:
    rows: dict[int, tuple[int, str]] = {}
    for number in range(4):
        rows.update({row["k"]: (row["a"], row["b"]) for row in version(number)})
    return {k: v for k, v in rows.items() if k % 10}


def changes(table: Any, columns: list[str] | None = None) -> list[dict[str, Any]]:
    found = table.changes("earliest", "latest", **({"columns": columns} if columns else {})).to_arrow()
    return [{k: v for k, v in row.items() if k != "_commit_timestamp"} for row in found.to_pylist()]


def by_key(rows: pa.Table) -> dict[int, tuple[int, str]]:
    return {row["k"]: (row["a"], row["b"]) for row in rows.to_pylist()}


def questions() -> dict[str, Callable[[forebay.Connection], Any]]:
    """Everything that can be asked, by name; the answers are values that can be compared."""

    def asked(path: str) -> dict[str, Callable[[forebay.Connection], Any]]:
        return {
            f"scan of {path}": lambda c: {
                r["k"]: (r["a"], r["b"]) for r in c.table(path).scan().to_arrow().to_pylist()
            },
            f"lookups in {path}": lambda c: c.table(path).lookup(pa.table({"k": range(KEYS)})).to_pylist(),
            f"changelog of {path}": lambda c: changes(c.table(path)),
            f"projected changelog of {path}": lambda c: changes(c.table(path), ["a"]),
        }

    everything: dict[str, Callable[[forebay.Connection], Any]] = {
        "tables": lambda c: (c.list_databases(), sorted(map(str, c.list_tables("fluss")))),
        "log": lambda c: changes(c.table("fluss.log")),
        "union read": lambda c: sorted(r["n"] for r in c.table(LAKED).scan(source="union").to_arrow().to_pylist()),
        "projected log": lambda c: changes(c.table("fluss.log"), ["s"]),
        "filtered log": lambda c: sorted(
            r["n"] for r in c.table("fluss.log").scan(filter=forebay.col("n") >= 2900).to_arrow().to_pylist()
        ),
    }
    for path in TABLES:
        everything.update(asked(path))
    return everything


QUESTIONS = questions()


class Directory:
    """A data directory without a server, and the right answers to all requests."""

    def __init__(self, folder: Path, answers: dict[str, Any]) -> None:
        self.folder = folder
        self.answers = answers

    def files(self) -> list[str]:
        return sorted(
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.is_file() and path.name not in ("lock", "LOCK") and not path.name.startswith("LOG")
        )


def settings_of(folder: Path) -> dict[str, str]:
    """The lake of a directory lies beside it, and is not damaged; copies share it."""
    return {**SETTINGS, "datalake.format": "paimon", "datalake.paimon.warehouse": str(folder.parent / "lake")}


def make_directory(folder: Path, *, kill: bool) -> Directory:
    """Written by two servers, one after the other; the second is shut down cleanly or by `kill -9`."""
    settings = settings_of(folder)
    with EmbeddedServer(folder, settings=settings) as server, forebay.connect(server.bootstrap_servers) as connection:
        create_tables(connection)
        fill(connection, 0)
        server.server.context.replicas.checkpoint_grown(500)
    # No recovery point but those of the first server: what the second one writes counts as not yet synced.
    settings = {**settings, "log.replica.high-watermark.checkpoint-interval": "1 h"}
    server = ServerProcess(folder, settings=settings).start()
    try:
        with forebay.connect(server.bootstrap_servers) as connection:
            fill(connection, 1)
            answers = {name: ask(connection) for name, ask in QUESTIONS.items()}
    finally:
        _ = server.kill() if kill else server.stop()
    assert answers["scan of fluss.lmdb"] == answers["scan of fluss.hashed"] == expected_rows()
    assert [row["n"] for row in answers["log"]] == list(range(3000))
    return Directory(folder, answers)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    return make_directory(tmp_path_factory.mktemp("stopped") / "data", kill=False)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    return make_directory(tmp_path_factory.mktemp("killed") / "data", kill=True)


def answers_after(folder: Path, name: str, settings: dict[str, str]) -> dict[str, Any] | None:
    """What a server on the damaged folder answers, without what it refused; None where it refuses to start.

    Fails where an error does not name a file of the folder.
    """
    try:
        server = EmbeddedServer(folder, settings=settings).start()
    except ForebayError as e:
        require_name(folder, name, e)
        return None
    answers = {}
    try:
        with forebay.connect(server.bootstrap_servers, retry_timeout="300 ms", request_timeout="20 s") as connection:
            for question, ask in QUESTIONS.items():
                try:
                    answers[question] = ask(connection)
                except ForebayError as e:
                    require_name(folder, name, e)
    finally:
        server.stop()
    return answers


def require_name(folder: Path, damaged: str, error: ForebayError) -> None:
    assert str(folder) in error.message, f"with a damaged {damaged} an error does not name a file: {error.message}"


def copy(source: Path, target: Path) -> None:
    """A copy with the holes of the files: LMDB's file reserves 4 GiB while it is in use."""
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def one_of_each_kind(files: list[str]) -> list[str]:
    """The first and the last file of every suffix, in every kind of folder."""
    chosen: dict[tuple[str, ...], str] = {}
    for name in files:
        path = Path(name)
        table = next((part for part in ("lmdb-", "hashed-", "log-", "laked-") if part in name), "")
        place = next((part for part in ("checkpoint", "db") if part in str(path.parent)), "")
        kind = (table, place, path.suffix or path.name.partition("-")[0])
        chosen.setdefault((*kind, "first"), name)
        chosen[(*kind, "last")] = name
    return sorted(set(chosen.values()))


def trials(files: list[str], rng: random.Random) -> list[tuple[str, str]]:
    """(file, kind of damage)."""
    names = one_of_each_kind(files)
    if ROUNDS == 0:
        return [(name, rng.choice(list(DAMAGES))) for name in rng.sample(names, len(names) // 4)]
    return [(name, kind) for _ in range(ROUNDS) for name in names for kind in DAMAGES]


def run_trials(kind_of_end: str, made: Directory, folder: Path) -> None:
    rng = random.Random(SEED)
    counts: Counter[str] = Counter()
    for name, kind in trials(made.files(), rng):
        copy(made.folder, folder)
        path = folder / name
        content = bytearray(path.read_bytes())
        if name.endswith("db/data.mdb"):  # without the space that it has reserved
            content = content[: len(content.rstrip(b"\0")) // 4096 * 4096 + 8192]
        path.write_bytes(DAMAGES[kind](content, rng))
        told = f"seed {SEED}: {kind} {name}"
        report = verify_directory(folder)
        answers = answers_after(folder, name, settings_of(made.folder))
        if answers is None or len(answers) < len(QUESTIONS):
            assert report.faults, f"{told}: verify found nothing"
        elif answers != made.answers:
            assert report.findings, f"{told}: verify found nothing"
        assert all(str(folder) in finding.place for finding in report.findings), told
        if answers is None:
            print(f"{told}: refused to start")
            counts["refused to start"] += 1
        else:
            refused = sorted(set(QUESTIONS) - set(answers))
            counts["refused in part" if refused else "served the whole"] += 1
            print(f"{told}: refused {', '.join(refused) or 'nothing'}")
            check_right(answers, made.answers, told)
        counts["found by verify"] += bool(report.faults)
        shutil.rmtree(folder)
    figures = {"damages": sum(counts.values()) - counts["found by verify"], **dict(sorted(counts.items()))}
    results.write_if_wanted(f"damage-trials.{kind_of_end}", {**figures, "wrong_answers": 0, "seed": SEED})


def check_right(answers: dict[str, Any], right: dict[str, Any], told: str) -> None:
    for question, answer in answers.items():
        assert answer == right[question], f"{told}: {question}"


@pytest.mark.timeout(300 + 900 * ROUNDS)
def test_damage_to_a_file_of_a_stopped_server_is_repaired_or_refused_and_never_served(
    stopped: Directory, tmp_path: Path
) -> None:
    run_trials("stopped", stopped, tmp_path / "data")


@pytest.mark.slow
@pytest.mark.timeout(300 + 900 * ROUNDS)
def test_damage_after_a_kill_costs_nothing_in_silence(killed: Directory, tmp_path: Path) -> None:
    run_trials("killed", killed, tmp_path / "data")


@pytest.mark.slow
@pytest.mark.timeout(300 + 900 * ROUNDS)
def test_damage_beside_an_unknown_page_cache_costs_nothing_in_silence(
    killed: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "boot_id", lambda: None)
    run_trials("power", killed, tmp_path / "data")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_verify_finds_no_fault_in_what_a_server_leaves_behind_and_changes_nothing(
    end: str, request: pytest.FixtureRequest
) -> None:
    made: Directory = request.getfixturevalue(end)
    before = contents(made.folder)
    report = verify_directory(made.folder)
    assert report.findings == [] if end == "stopped" else report.faults == []
    assert report.counts["changes folded"] > 3000
    assert report.counts["rows of state"] == len(TABLES) * len(expected_rows())
    assert contents(made.folder) == before


def test_a_metadata_file_that_is_missing_or_emptied_does_not_make_a_new_empty_server(
    stopped: Directory, tmp_path: Path
) -> None:
    for number, spoil in enumerate((Path.unlink, lambda path: path.write_bytes(b""))):
        folder = tmp_path / f"{number}"
        copy(stopped.folder, folder)
        spoil(folder / "metadata.sqlite")
        with pytest.raises(CorruptData, match=r"metadata\.sqlite is damaged: it is missing or empty"):
            EmbeddedServer(folder).start()


def test_an_engine_file_cut_short_under_a_trusted_state_is_noticed_and_rebuilt(
    killed: Directory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    copy(killed.folder, folder)
    data = next(folder.glob("fluss/lmdb-*/kv-0/db/data.mdb"))
    os.truncate(data, 40_000)
    answers = answers_after(folder, data.name, settings_of(killed.folder))
    assert answers is not None
    assert answers["scan of fluss.lmdb"] == expected_rows()
    assert f"the key-value state in {data} is damaged" in caplog.text
