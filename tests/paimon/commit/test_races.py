"""Concurrent committers: none loses a commit, none commits twice.

`PAIMON_COMMITS` sets the number of commits of all processes together (80 by default; 10000 in long runs).
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from forebay.base.errors import Conflict
from forebay.metadata import types
from forebay.paimon.format.snapshot import CommitKind
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.schema_changes import AddColumn
from forebay.paimon.store.schemas import SchemaManager
from tests.paimon.commit.tables import FAST, Table, append, compact, data_file

PROCESSES = 8
COMMITS = int(os.environ.get("PAIMON_COMMITS", "80"))
RETRIES = {"commit.max-retries": "1000", "commit.max-retry-wait": "100 ms"}


def _commit_many(root: str, worker: int, commits: int, failures: Any) -> None:
    """What a process does: commits one file after the other, each once."""
    try:
        commit = Table(root, LocalFileIO(sync=False), RETRIES).commit(f"user{worker}")
        for i in range(commits):
            commit.commit([append(f"w{worker}-{i}", bucket=i % 2)], identifier=i)
    except BaseException as e:
        failures.put(f"{worker}: {type(e).__name__} {e}")
        raise


@pytest.mark.timeout(3600)
def test_processes_that_commit_at_once_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    Table.create(tmp_path / "t", options=RETRIES)
    context = multiprocessing.get_context("spawn")
    failures = context.Queue()
    each = max(1, COMMITS // PROCESSES)
    workers = [
        context.Process(target=_commit_many, args=(str(tmp_path / "t"), i, each, failures)) for i in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures.empty(), failures.get()
    table = Table(tmp_path / "t")
    expected = [f"w{worker}-{i}" for worker in range(PROCESSES) for i in range(each)]
    assert table.files() == sorted(expected)
    made = [(s.commit_user, s.commit_identifier) for s in table.snapshots.snapshots()]
    assert sorted(made) == sorted((f"user{worker}", i) for worker in range(PROCESSES) for i in range(each))
    assert table.manifest_files() == table.referenced_manifests(), "lost races leave no manifests behind"


def test_threads_that_compact_the_same_file_win_once(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", options=RETRIES)
    table.commit().commit([append(*(f"f{i}" for i in range(10)))])
    wins: list[tuple[int, int]] = []

    def work(worker: int) -> None:
        commit = table.commit(f"user{worker}")
        for i in range(10):
            after = data_file(f"c{worker}-{i}", 100 * i, 100 * i + 9, level=5)
            try:
                commit.commit([compact([data_file(f"f{i}")], [after])])
            except Conflict:
                continue
            wins.append((worker, i))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(i for _, i in wins) == list(range(10))
    assert table.files() == sorted(f"c{worker}-{i}" for worker, i in wins)
    table.check()


def test_an_overwrite_replaces_what_was_appended_while_it_was_under_way(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t")
    table.commit().commit([append("f1")])
    slow = table.commit("slow")
    seen = slow._replacement

    def provider(*args: Any) -> Any:
        changes = seen(*args)
        calls = iter([True])

        def racing(latest: Any) -> Any:
            result = changes(latest)
            if next(calls, False):
                table.commit("fast").commit([append("f2")])
            return result

        return racing

    slow._replacement = provider  # type: ignore[method-assign]
    (made,) = slow.overwrite([append("f3")])
    assert (made.id, made.commit_kind, made.delta_record_count) == (3, CommitKind.OVERWRITE, -10)
    assert table.files() == ["f3"]
    assert table.manifest_files() == table.referenced_manifests()


def test_schema_changes_at_once_are_all_applied(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t")

    def work(worker: int) -> None:
        manager = SchemaManager(FAST, table.paths)
        for i in range(3):
            manager.change([AddColumn((f"c{worker}_{i}",), types.int_())])

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    latest = SchemaManager(FAST, table.paths).latest()
    assert latest.id == 12
    assert len({f.id for f in latest.fields}) == len(latest.fields) == 15
