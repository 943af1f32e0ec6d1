"""Backups of a server that works: each has what was acknowledged before, and whole transactions, once."""

from __future__ import annotations

import concurrent.futures
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.ambient import ManualClock
from forebay.base.errors import Unavailable
from forebay.cli.main import main
from forebay.testing.server import ServerProcess
from forebay.verify import online_copy, verify_directory
from forebay.verify.online_copy import OnlineCopy
from tests.patience import PATIENCE

BUSY = {
    "log.segment.file-size": "64kb", "kv.snapshot.interval": "500 ms", "kv.checkpoint.records": "300",
    "log.replica.high-watermark.checkpoint-interval": "300 ms",
}  # fmt: skip


class Writers:
    """Threads that write to a server, each in its own way; `acknowledged` is what each has surely written."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._ending = threading.Event()
        self.acknowledged = {"keyed": 0, "log": 0, "both": 0, "dropped": 0}
        with forebay.connect(servers) as connection:
            for name, engine in (("keyed", "hlog"), ("ordered", "lmdb")):
                connection.create_table(
                    f"fluss.{name}", {"id": "BIGINT", "n": "BIGINT", "v": "STRING"}, primary_key="id", buckets=2,
                    options={"forebay.kv.engine": engine, "table.log.ttl": "1 s"},
                )  # fmt: skip
            connection.create_table("fluss.log", {"n": "BIGINT", "v": "STRING"}, buckets=2)
            connection.create_table("fluss.first", {"n": "BIGINT"}, buckets=2)
            connection.create_table("fluss.second", {"n": "BIGINT"}, primary_key="n", buckets=2)
        self._pool = concurrent.futures.ThreadPoolExecutor(4)
        works = (self._keyed, self._log, self._both, self._dropped)
        self._futures = [self._pool.submit(self._run, work) for work in works]

    def _run(self, work: Any) -> None:
        with forebay.connect(self._servers) as connection:
            number = 0
            while not self._ending.is_set():
                work(connection, number)
                number += 1
                self.acknowledged[work.__name__.removeprefix("_")] = number

    def _keyed(self, connection: Any, number: int) -> None:
        """Each write replaces all rows; the first row's `n` says which write it was."""
        rows = [{"id": i, "n": number, "v": f"{number}" * 20} for i in range(40)]
        connection.table("fluss.keyed").upsert(rows)
        connection.table("fluss.ordered").upsert(rows)

    def _log(self, connection: Any, number: int) -> None:
        connection.table("fluss.log").append([{"n": number * 20 + i, "v": "x" * 50} for i in range(20)])

    def _both(self, connection: Any, number: int) -> None:
        with connection.transaction("both", number + 1) as tx:
            tx.append("fluss.first", [{"n": number * 10 + i} for i in range(10)])
            tx.upsert("fluss.second", [{"n": number * 10 + i} for i in range(10)])

    def _dropped(self, connection: Any, number: int) -> None:
        table = connection.create_table(f"fluss.dropped_{number}", {"n": "BIGINT"}, buckets=1)
        table.append([{"n": 1}])
        if number >= 2:
            connection.drop_table(f"fluss.dropped_{number - 2}")

    def end(self) -> None:
        self._ending.set()
        self._pool.shutdown()
        for future in self._futures:
            future.result()


@pytest.mark.slow
def test_each_backup_under_load_has_what_was_acknowledged_before_and_whole_transactions(tmp_path: Path) -> None:
    """Segments are small, checkpoints frequent, and tables come and go."""
    chance = random.Random(1)
    server = ServerProcess(tmp_path / "data", settings=BUSY).start()
    try:
        writers = Writers(server.bootstrap_servers)
    except BaseException:
        server.kill()
        raise
    try:
        for number in range(12):
            time.sleep(chance.uniform(0.2, 1.5))
            before = dict(writers.acknowledged)
            copy = tmp_path / f"backup-{number}"
            assert main(["backup", "--data-dir", str(tmp_path / "data"), str(copy)]) == 0
            _check(copy, before)
        assert all(count > 30 for count in writers.acknowledged.values()), writers.acknowledged
    finally:
        writers.end()
        server.kill()


def _check(copy: Path, before: dict[str, int]) -> None:
    with forebay.embedded(copy) as restored:
        for name in ("keyed", "ordered"):
            rows = restored.table(f"fluss.{name}").scan().to_arrow().to_pylist()
            assert len(rows) == (40 if before["keyed"] else len(rows))
            assert min((row["n"] for row in rows), default=-1) >= before["keyed"] - 1
            assert all(row["v"] == f"{row['n']}" * 20 for row in rows)
        log = restored.table("fluss.log").scan().to_arrow().column("n").to_pylist()
        assert len(set(log)) == len(log)
        assert set(range(before["log"] * 20)) <= set(log)
        first = restored.table("fluss.first").scan().to_arrow().column("n").to_pylist()
        second = restored.table("fluss.second").scan().to_arrow().column("n").to_pylist()
        version = restored.admin.committed_version("both") or 0
        assert version >= before["both"]
        assert sorted(first) == sorted(second) == list(range(version * 10))
        restored.table("fluss.log").append([{"n": -1, "v": ""}])  # it goes on


@pytest.mark.slow
def test_a_backup_that_is_killed_leaves_no_copy_and_the_server_goes_on(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", settings=BUSY).start()
    try:
        writers = Writers(server.bootstrap_servers)
    except BaseException:
        server.kill()
        raise
    chance = random.Random(2)
    command = [sys.executable, "-m", "forebay", "backup", "--data-dir", str(tmp_path / "data"), str(tmp_path / "copy")]
    try:
        for _ in range(6):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.3, 0.9))
            process.kill()
            if process.wait() == 0:  # it was faster
                break
            assert not (tmp_path / "copy").exists()
        else:
            subprocess.run(command, check=True, timeout=PATIENCE)
        before = dict(writers.acknowledged)
        time.sleep(1)
        assert all(writers.acknowledged[name] > count for name, count in before.items())
    finally:
        writers.end()
        server.kill()
    _check(tmp_path / "copy", dict.fromkeys(before, 0))


def test_a_server_waits_while_its_metadata_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forebay.embedded(tmp_path / "50%25?#data") as connection:
        log = connection.create_table("fluss.log", {"n": "BIGINT"})
        log.append([{"n": 0}])  # the writer has its id, which is metadata
        held, go_on = threading.Event(), threading.Event()
        note_all = OnlineCopy._note_all

        def slowly(copy: OnlineCopy) -> None:
            held.set()
            assert go_on.wait(PATIENCE)
            note_all(copy)

        monkeypatch.setattr(OnlineCopy, "_note_all", slowly)
        monkeypatch.setattr(online_copy, "HOLD_SECONDS_MAX", 60.0)
        copy = OnlineCopy(tmp_path / "50%25?#data", tmp_path / "copy", lambda _done, _total: None)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            copying = pool.submit(copy.copy)
            assert held.wait(PATIENCE)
            log.append([{"n": 1}])  # is not held up
            creating = pool.submit(connection.create_table, "fluss.later", {"n": "BIGINT"})
            time.sleep(0.3)
            assert not creating.done()
            go_on.set()
            copying.result()
            creating.result()
    with forebay.embedded(tmp_path / "copy") as restored:
        assert restored.list_tables("fluss") == ["log"]
        assert restored.table("fluss.log").scan().count() == 2


def test_what_takes_longer_than_the_server_can_wait_is_given_up(tmp_path: Path) -> None:
    class Slow(ManualClock):
        def monotonic(self) -> float:
            self.advance(online_copy.HOLD_SECONDS_MAX / 2)
            return super().monotonic()

    with forebay.embedded(tmp_path / "data") as connection:
        connection.create_table("fluss.log", {"n": "BIGINT"}).append([{"n": 1}])
        copy = OnlineCopy(tmp_path / "data", tmp_path / "copy", lambda _done, _total: None, Slow())
        with pytest.raises(Unavailable, match="could not be listed within 2 s"):
            copy.copy()
        connection.create_table("fluss.other", {"n": "BIGINT"})  # nothing is held any more


def test_a_log_whose_expired_segments_are_removed_meanwhile_is_copied_without_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments that are copied first are gone at the moment; the copy begins where the log does then."""
    with forebay.embedded(tmp_path / "data", settings={"log.segment.file-size": "4kb"}) as connection:
        log = connection.create_table("fluss.log", {"v": "STRING"}, buckets=1)
        for number in range(120):
            log.append([{"v": f"{number:03}" * 100}])
        segments = sorted((tmp_path / "data").rglob("*.log"))
        assert len(segments) > 4
        copy_beside = OnlineCopy._copy_beside

        def with_expiry(copy: OnlineCopy) -> None:
            copy_beside(copy)
            for segment in segments[:2]:
                for file in segment.parent.glob(f"{segment.stem}.*"):
                    file.unlink()

        monkeypatch.setattr(OnlineCopy, "_copy_beside", with_expiry)
        OnlineCopy(tmp_path / "data", tmp_path / "copy", lambda _done, _total: None).copy()
    with closing(sqlite3.connect(tmp_path / "copy" / "metadata.sqlite")) as metadata:
        assert metadata.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    copied = sorted(file.name for file in (tmp_path / "copy").rglob("*.log"))
    assert copied == [segment.name for segment in segments[2:]]
    with forebay.embedded(tmp_path / "copy") as restored:
        assert restored.table("fluss.log").scan().count() < 120


def test_offsets_of_lake_snapshots_are_noted_before_the_logs_of_partitions_which_may_grow_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forebay.embedded(tmp_path / "data") as connection:
        log = connection.create_table("fluss.log", {"p": "STRING"}, partition_keys=["p"], buckets=1)
        log.create_partition({"p": "a"})
        log.append([{"p": "a"}])
        (partition,) = (tmp_path / "data").rglob("a-p*")
        lake = partition.parent / "lake"
        assert partition.name < lake.name
        lake.mkdir()
        (lake / f"{7:032x}.offsets").write_text("{}")
        noted: list[set[str]] = []
        note_bucket = OnlineCopy._note_bucket

        def note(copy: OnlineCopy, folder: str) -> None:
            noted.append({Path(path).name for path in copy._moment})
            note_bucket(copy, folder)

        monkeypatch.setattr(OnlineCopy, "_note_bucket", note)
        OnlineCopy(tmp_path / "data", tmp_path / "copy", lambda _done, _total: None).copy()
    assert all(f"{7:032x}.offsets" in before for before in noted)
    assert noted


def test_a_log_that_is_begun_while_logs_are_listed_has_no_end_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forebay.embedded(tmp_path / "data") as connection:
        unwritten = [connection.create_table(f"fluss.log_{number}", {"n": "BIGINT"}) for number in range(6)]
        listed = OnlineCopy._folders

        def folders(copy: OnlineCopy, relative: str) -> Iterator[Any]:
            found = list(listed(copy, relative))
            if not relative:
                unwritten.pop().append([{"n": 1}])
            return iter(found)

        monkeypatch.setattr(OnlineCopy, "_folders", folders)
        OnlineCopy(tmp_path / "data", tmp_path / "copy", lambda _done, _total: None).copy()
    assert len(unwritten) < 6
    assert not verify_directory(tmp_path / "copy").faults
