"""`forebay compact`: its arguments, and its effect on tables."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.cli.compact import _Reporter
from forebay.cli.main import main
from forebay.paimon.compaction_service import CompactionRun
from forebay.paimon.table import Table
from tests.paimon.lake import live_files, new_catalog, put, rows_of
from tests.patience import PATIENCE

COLUMNS = pa.schema([("id", pa.int64()), ("day", pa.string())])
OPTIONS = {"write-only": "true", "compaction.min.file-num": "3"}


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Table]:
    """db.a and db.b, with three files in each of two partitions."""
    catalog = new_catalog(tmp_path)
    made = {}
    for name in ("a", "b"):
        made[name] = catalog.create_table(
            f"db.{name}",
            COLUMNS,
            partition_keys=["day"],
            options={"write-only": "true", "compaction.min.file-num": "3"},
        )
        for i in range(3):
            put(made[name], [{"id": i, "day": "mon"}, {"id": i, "day": "tue"}])
    return made


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Runs a command line on the warehouse; its exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["compact", "-w", str(tmp_path / "lake"), *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_tables_are_compacted_and_each_says_how(tables: dict[str, Table], typed) -> None:
    code, out, _ = typed("--table", "db.a", "--threads", "1")
    assert code == 0
    assert out.startswith("compacted 6 files of db.a into 2: snapshot 4, ")
    assert len(live_files(tables["b"])) == 6
    code, out, _ = typed("--database", "db", "--table", "db.b")
    assert code == 0
    assert "nothing to compact in db.a" in out
    assert out.count("db.b") == 1
    assert len(rows_of(tables["b"])) == 6


def test_what_is_due_is_compacted_where_that_is_requested_and_everything_else(tables: dict[str, Table], typed) -> None:
    tables["b"].compact()
    put(tables["b"], [{"id": 9, "day": "mon"}])
    assert typed("--table", "db.b", "--strategy", "minor")[:2] == (0, "nothing to compact in db.b\n")
    assert typed("--table", "db.b", "--strategy", "full")[1].startswith("compacted 2 files of db.b into 1")
    assert typed("--table", "db.a", "--strategy", "minor")[1].startswith("compacted 6 files of db.a into 2")


def test_rows_are_sorted_by_the_columns_that_are_named(tables: dict[str, Table], typed) -> None:
    put(tables["b"], [{"id": i, "day": "wed"} for i in (7, 3, 9)])
    assert typed("--table", "db.b", "--order", "order", "--order-by", "id")[0] == 0
    assert [row["id"] for row in tables["b"].scan().to_arrow().to_pylist() if row["day"] == "wed"] == [3, 7, 9]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_job_shows_what_it_is_at_on_a_terminal_and_only_what_it_has_done_elsewhere(
    tables: dict[str, Table], typed, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    def stop_when_done() -> None:
        while len(live_files(tables["a"])) > 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    stopper = threading.Thread(target=stop_when_done)
    stopper.start()
    code, out, _ = typed("--table", "db.a", "--watch", "--threads", "1")
    stopper.join()
    assert code == 0
    assert "compacting; stop it with Ctrl-C or SIGTERM\n" in out
    assert ("┏━━" in out) == terminal
    assert out.splitlines()[-1].split()[0] == "db.a"


def test_a_job_says_what_failed_and_not_that_nothing_was_due(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = _Reporter(as_json=False)
    reporter.watched(CompactionRun("db.idle"))
    reporter.watched(CompactionRun("db.broken", error="a file is missing"))
    reporter.watched(CompactionRun("db.done", 7, 5, 1))
    printed = capsys.readouterr()
    assert printed.err == "forebay: db.broken: a file is missing\n"
    assert printed.out.startswith("compacted 5 files of db.done into 1: snapshot 7")
    assert "idle" not in printed.out


def test_a_warehouse_without_tables_has_nothing_to_compact(tmp_path: Path, typed) -> None:
    new_catalog(tmp_path)
    assert typed("--database", "db") == (0, "there are no tables to compact\n", "")


def test_partitions_order_and_json(tables: dict[str, Table], typed) -> None:
    code, out, _ = typed("--table", "db.a", "-p", "day=mon", "--json")
    turn = json.loads(out)
    assert (code, turn["table"], turn["snapshot_id"], turn["files_before"], turn["files_after"]) == (0, "db.a", 4, 3, 1)
    code, _, _ = typed("--table", "db.a", "--order", "zorder", "--order-by", "id")
    assert code == 0
    assert len(live_files(tables["a"])) == 2


def test_one_table_that_fails_is_told_and_the_others_are_compacted(tables: dict[str, Table], typed) -> None:
    next(Path(tables["a"].context.paths.root).rglob("data-*")).unlink()
    code, out, err = typed("--database", "db", "--table", "db.missing")
    assert code == 1
    assert "forebay: db.a: " in err
    assert "forebay: db.missing: there is no table 'db.missing'" in err
    assert out.startswith("compacted 6 files of db.b into 2")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "which tables?"),
        (["--table", "db.a", "--order", "order"], "--order and --order-by belong together"),
        (["--table", "db.a", "--order", "order", "--order-by", "id", "--watch"], "neither with --watch"),
        (["--table", "db.a", "--threads", "0"], "--threads is 0"),
        (["--table", "db.a", "--spark-conf", "a=b"], "--spark-conf is for --spark-master"),
        (["--table", "db.a", "--interval", "soon"], "'soon' is not a duration"),
    ],
)
def test_what_cannot_be_is_explained(tables: dict[str, Table], typed, words: list[str], says: str) -> None:
    code, _, err = typed(*words)
    assert code == 1
    assert says in err


def test_the_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compact", "--help"])
    assert "forebay compact -w /lake --database sales --watch" in capsys.readouterr().out


def test_a_job_beside_writers_runs_until_it_is_told_to_stop(tables: dict[str, Table], tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "forebay", "compact", "-w", str(tmp_path / "lake"), "--database", "db", "--watch",
        "--interval", "50 ms", "--json", "--metrics-port", "0",
    ]  # fmt: skip
    pipe, environment = subprocess.PIPE, {**os.environ, "TERM": "dumb"}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as job:
        assert job.stdout is not None
        assert job.stderr is not None
        served = re.match(r"metrics on (http://127.0.0.1:\d+)/metrics", job.stderr.readline())
        assert served is not None
        seen = {json.loads(job.stdout.readline())["table"] for _ in range(2)}
        assert seen == {"db.a", "db.b"}
        for i in range(3):
            put(tables["a"], [{"id": 100 + i, "day": "mon"}])
        assert json.loads(job.stdout.readline())["table"] == "db.a"
        with urllib.request.urlopen(served[1] + "/metrics", timeout=PATIENCE) as answer:
            assert 'forebay_lake_compactions_total{database="db",table="a"} 2.0' in answer.read().decode()
        with urllib.request.urlopen(served[1] + "/readyz", timeout=PATIENCE) as answer:
            assert answer.status == 200
        job.send_signal(signal.SIGTERM)
        job.stdout.read()
        assert job.wait(PATIENCE) == 0
    assert len(rows_of(tables["a"])) == 9
    assert len(live_files(tables["b"])) == 2


@pytest.mark.spark
@pytest.mark.slow
def test_tables_are_compacted_by_spark(tables: dict[str, Table], tmp_path: Path) -> None:
    words = ["compact", "-w", str(tmp_path / "lake"), "--database", "db", "--spark-master", "local[2]", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "forebay", *words], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert {json.loads(line)["table"]: json.loads(line)["files_after"] for line in done.stdout.splitlines()} == {
        "db.a": 2,
        "db.b": 2,
    }
    assert len(rows_of(tables["a"])) == 6
