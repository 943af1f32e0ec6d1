"""`forebay tiering`: its arguments and output."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from forebay.base.errors import NotFound, Unavailable
from forebay.cli import tiering
from forebay.cli.main import main
from forebay.cli.tiering import _screen
from forebay.client.cluster.cluster import ClusterClient
from forebay.metadata.table import TablePath
from forebay.tiering import base
from forebay.tiering.report import RoundReport
from forebay.tiering.service import TieringService
from forebay.tiering.status import ServiceStatus, TableStatus
from tests.lake.rolling_back import undo
from tests.patience import PATIENCE
from tests.tiering.dying_worker import ROOT
from tests.tiering.running import LakeCluster, lake_cluster, paimon_storage

SCHEMA = {"k": pa.int32(), "v": pa.string()}
ROWS = [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]


def run(capsys: pytest.CaptureFixture[str], cluster: LakeCluster, *words: str) -> tuple[int, str, str]:
    code = main(["tiering", "-b", cluster.server.bootstrap_servers, "--without-spark", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_all_tables_are_brought_up_to_date_once(paimon_lake: LakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, paimon_lake, "--once")
    assert (code, out) == (0, "no table is tiered: 'table.datalake.enabled' is not true for any\n")
    tables = [paimon_lake.create(name, SCHEMA) for name in ("a", "b")]
    for table in tables:
        table.append(ROWS)
    code, out, _ = run(capsys, paimon_lake, "--once", "--table", "fluss.a")
    assert code == 0
    assert "fluss.a: 2 rows in lake snapshot 1" in out
    assert "fluss.b" not in out
    code, out, _ = run(capsys, paimon_lake, "--once")
    assert "fluss.a: nothing new" in out
    assert "fluss.b: 2 rows" in out
    for table in tables:
        assert len(paimon_lake.check_complete(table)) == 2


def test_the_lag_of_tables_is_shown(paimon_lake: LakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    tiered, behind = (paimon_lake.create(name, SCHEMA) for name in ("tiered", "behind"))
    tiered.append(ROWS)
    paimon_lake.tier(tiered)
    behind.append(ROWS)
    code, out, _ = main(["tiering", "-b", paimon_lake.server.bootstrap_servers, "--lag"]), *capsys.readouterr()
    header, _line, *lines = out.splitlines()
    assert (code, header.split()) == (0, ["table", "lake", "snapshot", "records", "behind", "seconds", "behind"])
    assert [line.split()[:3] for line in lines] == [
        ["fluss.behind", "2", lines[0].split()[2]],
        ["fluss.tiered", "1", "0"],
    ]


def test_a_table_that_fails_is_told_of_and_ends_the_command_with_1(
    paimon_lake: LakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    good = paimon_lake.create("good", SCHEMA)
    good.append(ROWS)
    code, out, err = run(capsys, paimon_lake, "--once", "--table", "fluss.missing", "--table", "fluss.good")
    assert code == 1
    assert "fluss.good: 2 rows" in out
    assert "fluss.missing" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--table", "a.b"], "--once"), (["--lake-option", "secret"], "key=value"), (["--tables-max", "0"], "positive")],
)
def test_what_cannot_be_is_refused(
    paimon_lake: LakeCluster, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, _, err = run(capsys, paimon_lake, *words)
    assert code == 1
    assert message in err


def test_the_service_runs_until_it_is_told_to_stop(paimon_lake: LakeCluster) -> None:
    table = paimon_lake.create("t", SCHEMA, options={"table.datalake.freshness": "50 ms"})
    table.append(ROWS)
    command = [
        sys.executable, "-m", "forebay", "tiering", "-b", paimon_lake.server.bootstrap_servers, "--without-spark",
        "--poll-seconds", "0.05", "--metrics-port", "0",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        _wait_until_tiered(paimon_lake, process)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, out
    assert "metrics on http://127.0.0.1:" in out
    assert "fluss.t: 2 rows in lake snapshot 1" in out
    assert "stopped, " in out
    assert len(paimon_lake.check_complete(table)) == 2


def test_the_service_commits_what_it_has_read_before_it_ends(
    paimon_lake: LakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    class Service:
        def __init__(self, *_: object, **options: object) -> None:
            calls.append((options["tables_max"], options["poll_seconds"]))

        def start(self) -> None:
            calls.append("start")
            os.kill(os.getpid(), signal.SIGTERM)

        def stop(self, now: bool = False) -> None:
            calls.append("stop now" if now else "stop")

        def status(self) -> ServiceStatus:
            return ServiceStatus(False, ())

    monkeypatch.setattr(tiering, "TieringService", Service)
    code, out, _ = run(capsys, paimon_lake, "--tables-max", "3", "--poll-seconds", "0.5")
    assert calls == [(3, 0.5), "start", "stop", "stop now"]
    assert (code, out.splitlines()[-1].split(",")[0]) == (0, "stopped")


def test_the_service_waits_for_a_server_that_is_not_there_yet(tmp_path: Path) -> None:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    command = [sys.executable, "-m", "forebay", "tiering", "-b", f"127.0.0.1:{ports[0]}", "--without-spark"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "waiting for the server, and asking again" in process.stderr.readline()
        with lake_cluster(tmp_path, paimon_storage, ports=ports) as cluster:
            table = cluster.create("t", SCHEMA, options={"table.datalake.freshness": "50 ms"})
            table.append(ROWS)
            _wait_until_tiered(cluster, process)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, err
            assert "fluss.t: 2 rows in lake snapshot 1" in out
    finally:
        process.kill()
        process.wait()


def test_the_service_can_be_stopped_while_it_waits_for_the_server(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        command = [
            sys.executable, "-m", "forebay", "tiering", "-b", f"127.0.0.1:{free.getsockname()[1]}", "--without-spark",
        ]  # fmt: skip
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            assert "waiting for the server" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0


def test_the_service_says_once_that_it_waits_and_asks_until_the_server_is_there(
    paimon_lake: LakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["away", "away", "refused", "away"])

    bootstrap = ClusterClient.bootstrap

    def hesitant(cluster: ClusterClient) -> None:
        answer = next(answers, None)
        if answer is not None:
            raise Unavailable(answer)
        os.kill(os.getpid(), signal.SIGTERM)
        bootstrap(cluster)

    monkeypatch.setattr(ClusterClient, "bootstrap", hesitant)
    monkeypatch.setattr(tiering, "_CONNECT_PAUSE_SECONDS", 0.001)
    code, out, err = run(capsys, paimon_lake)
    assert code == 0
    assert [line.rpartition(" ")[2] for line in err.splitlines()] == ["away", "refused", "away"]
    assert out.splitlines()[-1].startswith("stopped")


def test_the_service_pauses_before_it_asks_again(
    paimon_lake: LakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def away(_: ClusterClient) -> None:
        asked.append(1)
        if len(asked) == 1:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        raise Unavailable("away")

    monkeypatch.setattr(ClusterClient, "bootstrap", away)
    monkeypatch.setattr(tiering, "_CONNECT_PAUSE_SECONDS", PATIENCE)
    assert run(capsys, paimon_lake)[0] == 0
    assert len(asked) == 1


def test_on_a_terminal_the_service_is_watched(
    paimon_lake: LakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    class Service(TieringService):
        def status(self) -> ServiceStatus:
            looks.append(1)
            if len(looks) == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            return ServiceStatus(True, (TableStatus(TablePath("s", f"t{len(looks)}"), "writing"),))

    monkeypatch.setattr(tiering, "TieringService", Service)
    monkeypatch.setattr(tiering, "_REDRAW_SECONDS", 0.001)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    code, out, _ = run(capsys, paimon_lake)
    assert code == 0
    assert "s.t2" in out


def _wait_until_tiered(cluster: LakeCluster, service: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not _is_tiered(cluster):
        assert time.monotonic() < deadline
        assert service.poll() is None
        time.sleep(0.05)


def _is_tiered(cluster: LakeCluster) -> bool:
    try:
        cluster.connection.admin.lake_snapshot("fluss.t")
    except NotFound:
        return False
    return True


def test_the_screen_shows_each_table_with_its_state_and_how_far_the_lake_is_behind() -> None:
    path = TablePath("sales", "orders")
    report = RoundReport(path, 1, 7, newest_ms=1_000, finished_ms=3_500, lag_records=12)
    tables = (
        TableStatus(path, "writing", 3, 8, rounds=4, rows=1_000, read_bytes=2_500_000, last_report=report),
        TableStatus(TablePath("sales", "lines"), "pausing", failures=2, last_error="the lake is full"),
    )
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(_screen(ServiceStatus(True, tables)))
        text = console.export_text()
    for part in ("running, 4 rounds, 1,000 rows", "sales.orders", "3/8", "12", "2.5", "pausing", "the lake is full"):
        assert part in text


def test_a_lake_table_that_was_rolled_back_is_shown_and_repaired(
    paimon_lake: LakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = paimon_lake.create("t", SCHEMA, buckets=1, primary_key=["k"])
    for row in ROWS:
        table.upsert([row])
        paimon_lake.tier(table)
    undo(paimon_lake.storage, table.path, 1)
    code, out, _ = run(capsys, paimon_lake, "status")
    assert (code, "rolled back" in out, "nothing has to be done" in out) == (0, True, True)
    monkeypatch.setattr(base, "list_offsets", lambda _c, _i, buckets, _at: dict.fromkeys(buckets, 2))
    code, out, _ = run(capsys, paimon_lake, "status", "fluss.t")
    assert (code, "forebay tiering repair fluss.t" in out) == (1, True)
    code, _, err = run(capsys, paimon_lake, "--once")
    assert (code, "`forebay tiering repair fluss.t`" in err) == (1, True)
    code, _, err = run(capsys, paimon_lake, "repair", "fluss.t")
    assert (code, "lost: records 1 to 1 of bucket" in err, "--rebuild" in err) == (1, True, True)
    code, out, _ = run(capsys, paimon_lake, "repair", "fluss.t", "--rebuild")
    assert (code, "2 rows in lake snapshot 2" in out) == (0, True)
    monkeypatch.undo()
    paimon_lake.check_complete(table)
    code, out, _ = run(capsys, paimon_lake, "status")
    assert (code, "agreed" in out) == (0, True)
    assert run(capsys, paimon_lake, "repair")[0] != 0
    assert run(capsys, paimon_lake, "--once", "--rebuild")[0] != 0
