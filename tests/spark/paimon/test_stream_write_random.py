"""Random histories of tables that streaming queries write, against a model: repeats, restarts, other writers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import Conflict
from forebay.paimon.table import Table
from forebay.spark.lake_options import write_options
from forebay.spark.writing.stream_commits import Epoch, StreamCommits
from tests.every_run import every_run
from tests.paimon.lake import at_ms
from tests.patience import PATIENCE
from tests.spark.paimon.write_lanes import Rows, make, rows_of, threads, write_in_lanes

LIVES = {
    "append": {},
    "partitioned": {"parts": "name"},
    "precommit": {"precommit_compact": "true"},
    "ordered": {"bucket": "2", "bucket_key": "id"},
    "key": {"key": "id", "bucket": "2", "num_sorted_run__compaction_trigger": "3"},
    "key at once": {"key": "id", "bucket": "1", "commit__force-compact": "true"},
    "key together": {"key": "id", "bucket": "2", "precommit_compact": "true"},
    "dynamic": {"key": "id", "dynamic_bucket__target_row_num": "5"},
}


class Query:
    """A streaming query as Spark runs it: epochs in order, and the last one again after a restart."""

    def __init__(self, name: str, table: Table, rng: random.Random, tasks_max: int) -> None:
        self.name, self._rng, self._tasks_max = name, rng, tasks_max
        self._number, self._last = -1, Epoch(0, [])
        self._rows: Rows = []
        self.restart(table)

    def restart(self, table: Table) -> None:
        self._table = table.refresh()
        chosen = write_options("t", self._table, {})
        self.commits = StreamCommits("t", self._table, self.name, chosen, threads, lambda: False, 2, self._table)

    def advance(self) -> Rows:
        """One more epoch; its rows."""
        self._number += 1
        count = self._rng.randrange(12)
        self._rows = [{"id": self._rng.randrange(30), "name": self._rng.choice("abc")} for _ in range(count)]
        self._write()
        return self._rows

    def repeat(self) -> None:
        """What Spark does when it does not know that its last epoch is committed: all tasks again.

        A query without a snapshot left cannot know it either, which docs/limits.md says.
        """
        if self._table.context.snapshots.latest_of_user(self.commits.user) is not None:
            self._write()

    def _write(self) -> None:
        tasks = self._rng.randint(1, self._tasks_max)
        # Rows of one key go to one task, as behind the catalog.
        dealt = [[[r for r in self._rows if hash(r["id"]) % tasks == i]] for i in range(tasks)]
        self.commits.commit(Epoch(self._number, write_in_lanes(self._table, dealt), len(self._rows)))

    def settle(self) -> None:
        if self.commits.background is not None:
            assert self.commits.background.wait_idle(PATIENCE)


@pytest.mark.parametrize("seed", every_run(range(2), lambda seed: seed < 1))
@pytest.mark.parametrize("options", LIVES.values(), ids=LIVES)
def test_every_micro_batch_is_in_the_table_once_whatever_happens_beside(
    tmp_path: Path, options: dict[str, str], seed: int
) -> None:
    rng = random.Random(seed)
    table = make(tmp_path, **options)
    has_key = "key" in options
    tasks_max = 1 if "dynamic_bucket__target_row_num" in options else 4
    queries = [Query(f"q{i}", table, rng, tasks_max) for i in range(1 if has_key else 2)]
    model: Rows = []
    for _ in range(25):
        query = rng.choice(queries)
        act = rng.choice(["advance"] * 6 + ["repeat", "restart", "compact", "expire", "settle"])
        if act == "advance":
            model += query.advance()
        elif act == "repeat":
            query.restart(table)
            query.repeat()
        elif act == "restart":
            query.restart(table)
        elif act == "compact":
            try:
                table.refresh().compact(full=rng.random() < 0.5)
            except Conflict:
                query.settle()  # the query's own compaction was faster, several times
        elif act == "expire":
            table.expire_snapshots(retain_min=4, retain_max=4)
        else:
            query.settle()
        if rng.random() < 0.3:
            assert rows_of(table) == expected(model, has_key)
    for query in queries:
        query.settle()
    assert rows_of(table) == expected(model, has_key)
    SYSTEM_CLOCK.sleep(0.01)
    orphans = table.remove_orphan_files(older_than=at_ms(SYSTEM_CLOCK.now_ms() - 1), dry_run=True)
    assert not [path for path in orphans.files if "/data-" in path], "what was written in vain is deleted"


def expected(model: Rows, has_key: bool) -> Rows:
    rows = list({r["id"]: r for r in model}.values()) if has_key else model
    return sorted(rows, key=str)
