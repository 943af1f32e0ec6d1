"""Tables with many snapshots and many files: the cost of committing to them and of planning scans.

Files are real, and so are their statistics in the manifests: some are written by the writer, and the rest are links to
these under other names, with the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.paimon_turns import Cost, Turns, cost_of
from benchmarks.paimon_work import Lake
from forebay.paimon.format.commit_message import CommitMessage, DataIncrement
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.table import Table

FILES_PER_COMMIT = 10
DEFINITION: dict[str, Any] = {
    "options": {"bucket": str(FILES_PER_COMMIT), "bucket-key": data.KEY, "write-only": "true"},
}
ROWS_PER_COMMIT = 200
"""Enough for each bucket to get some."""

WINDOW = 100
"""The number of last commits that are measured: among them are some that merge manifests."""

_WRITTEN_COMMITS = 10


class Work:
    """An endless supply of commit messages, each with a new file in each bucket."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._names = FILES_PER_COMMIT  # a writer numbers its files from 0 in the order in which threads finish them
        self._commits = 0
        self._written = [self._write(number) for number in range(_WRITTEN_COMMITS)]

    def _write(self, number: int) -> list[CommitMessage]:
        ids = np.arange(number * ROWS_PER_COMMIT, (number + 1) * ROWS_PER_COMMIT)
        with self._table.new_write() as writer:
            writer.write(data.batch_of(ids, number))
            messages: list[CommitMessage] = writer.prepare_commit()
        if len(messages) != FILES_PER_COMMIT:
            raise AssertionError(f"{len(messages)} of {FILES_PER_COMMIT} buckets got rows")
        return messages

    def messages(self, commits: int = 1) -> list[CommitMessage]:
        """The messages of that many commits, in one list."""
        first, self._commits = self._commits, self._commits + commits
        return [
            self._linked(message)
            for number in range(first, self._commits)
            for message in self._written[number % _WRITTEN_COMMITS]
        ]

    def _linked(self, message: CommitMessage) -> CommitMessage:
        (file,) = message.data.new_files
        return replace(message, data=DataIncrement(new_files=(self._link(message, file),)))

    def _link(self, message: CommitMessage, file: DataFileMeta) -> DataFileMeta:
        self._names += 1
        prefix, _, rest = file.file_name.rpartition("-")
        copy = replace(file, file_name=f"{prefix}-{self._names}{rest[rest.index('.') :]}")
        directory = self._table.context.paths.bucket_directory(message.partition, message.bucket)
        os.link(f"{directory}/{file.file_name}", f"{directory}/{copy.file_name}")
        return copy


@dataclass
class Measured:
    """The costs of a table of so many snapshots and files: just opened (cold), and in use (warm)."""

    snapshots: int
    files: int
    commit_cold: Turns
    commit_warm: Turns
    plan_cold: Turns
    plan_warm: Turns
    last_commits: Turns = field(default_factory=lambda: Turns([]))
    """The last commits that created the table, one after the other."""


def measure(lake: Lake, name: str, work: Work, repeat: int) -> Measured:
    """Plan and commit, `repeat` times each; the commits stay in the table, and change its size very little."""
    table = lake.open(name)
    latest = table.context.snapshots.latest()
    assert latest is not None
    files = len(table.context.manifests.live_files(latest))
    found: dict[str, list[Cost]] = {"commit_cold": [], "commit_warm": [], "plan_cold": [], "plan_warm": []}
    for _ in range(repeat):
        found["plan_cold"].append(cost_of(lambda: _planned(lake.open(name), files)))
    table.scan().plan()
    for _ in range(repeat):
        found["plan_warm"].append(cost_of(lambda: _planned(table, files)))
    for _ in range(repeat):
        messages = work.messages()
        found["commit_cold"].append(cost_of(lambda m=messages: lake.open(name).new_commit().commit(m)))  # type: ignore[misc]
        messages = work.messages()
        found["commit_warm"].append(cost_of(lambda m=messages: table.new_commit().commit(m)))  # type: ignore[misc]
    return Measured(latest.id, files, **{kind: Turns(costs) for kind, costs in found.items()})


def _planned(table: Table, files: int) -> None:
    found = sum(len(split.files) for split in table.scan().plan())
    if found != files:
        raise AssertionError(f"{found} files were planned where there are {files}")


def many_commits(lake: Lake, name: str, commits: int, repeat: int) -> Measured:
    """A table created by so many commits, and its costs."""
    table = lake.create(name, DEFINITION)
    work = Work(table)
    costs = []
    for _ in range(commits):
        messages = work.messages()
        costs.append(cost_of(lambda m=messages: table.new_commit().commit(m)))  # type: ignore[misc]
    measured = measure(lake, name, work, repeat)
    measured.last_commits = Turns(costs[-WINDOW:])
    return measured


def by_files(lake: Lake, name: str, files: int, repeat: int) -> Measured:
    """A table whose files all came with one commit."""
    table = lake.create(name, DEFINITION)
    work = Work(table)
    table.new_commit().commit(work.messages(max(1, files // FILES_PER_COMMIT)))
    return measure(lake, name, work, repeat)


def by_snapshots(lake: Lake, name: str, snapshots: int, repeat: int) -> Measured:
    """A table with so many snapshots, of which all but the first are without changes."""
    table = lake.create(name, DEFINITION)
    work = Work(table)
    commit = table.new_commit(ignore_empty=False)
    commit.commit(work.messages())
    for _ in range(snapshots - 1):
        commit.commit([])
    return measure(lake, name, work, repeat)


GROWTH: dict[str, Callable[[Lake, str, int, int], Measured]] = {"files": by_files, "snapshots": by_snapshots}
