"""Random histories of tables under a stream: each change is returned once, however often the query dies.

`STREAM_SEEDS=1000 pytest tests/spark/paimon/test_stream_read_random.py` runs more.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from forebay.metadata import types
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.store.schema_changes import AddColumn
from forebay.paimon.table import Table
from tests.every_run import every_run
from tests.paimon.lake import altered, new_catalog, put
from tests.paimon.stream.model import COLUMNS
from tests.spark.paimon.streams import PaimonStream

pytest.importorskip("pyspark.sql.streaming.datasource", reason="comes with Spark 4.2")

SEEDS = every_run(
    range(int(os.environ.get("STREAM_SEEDS", "6"))), lambda seed: seed < 2 or "STREAM_SEEDS" in os.environ
)

LIMITS: list[dict[str, str]] = [
    {},
    {"maxFilesPerTrigger": "1"},
    {"maxFilesPerTrigger": "3"},
    {"maxRowsPerTrigger": "4"},
    {"maxBytesPerTrigger": "3000"},
]

ADDED = frozenset(f"c{step}" for step in range(40))
"""Columns that a table may get in its life."""

Row = dict[str, Any]


class Query:
    """A query with a consumer that is killed at any moment, and goes on from what Spark's checkpoint has by then.

    A checkpoint has the ends of batches that were planned (`planned`), and which of these are done.
    """

    def __init__(self, table: Table, dice: random.Random, **options: str) -> None:
        self.table, self.dice = table, dice
        self.stream = PaimonStream(table, consumer__id="q", **options, **dice.choice(LIMITS))
        self.planned: dict[str, Any] | None = None
        self.has_begun = False

    def step(self) -> list[Row] | None:
        """The rows of one micro-batch; None if there is nothing new; no rows if the query died before its end."""
        if self.planned is None:
            start, end = self.stream.plan()
            if start == end:
                return None
            self.planned, self.has_begun = end, True
        if self.dice.random() < 0.3:
            if self.dice.random() < 0.5:
                self._rows(self.planned)
            self.stream.restart()
            return []
        rows = self._rows(self.planned)
        assert self._rows(self.planned) == rows, "a batch that is read again has the same rows"
        self.stream.offset, self.planned = self.planned, None
        if self.dice.random() < 0.5:
            self.stream.reader.commit(self.stream.offset)
        if self.dice.random() < 0.3:
            self.stream.restart()
        return rows

    def catch_up(self) -> list[Row]:
        found: list[Row] = []
        while (rows := self.step()) is not None:
            found += rows
        return found

    def _rows(self, end: dict[str, Any]) -> list[Row]:
        """The rows of a batch, without columns that were added: a restart may have one more of these."""
        batches = self.stream.read(self.stream.start, end)
        return [{k: v for k, v in row.items() if k not in ADDED} for batch in batches for row in batch.to_pylist()]

    @property
    def is_recorded(self) -> bool:
        """Whether the consumer keeps what is not read: the snapshot in full is the query's own business."""
        return bool(ConsumerManager(self.table.context.io, self.table.context.paths).all())


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_an_append_table_arrive_once(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    buckets = dice.choice([{}, {"bucket": "2", "bucket-key": "v"}])
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, options=buckets)
    numbers = iter(range(10_000))
    expected: Counter[int] = Counter()
    last_of_v: dict[int, int] = {}
    found: Counter[int] = Counter()
    query: Query | None = None

    def take(rows: list[Row]) -> None:
        found.update(row["id"] for row in rows)
        for row in rows if buckets else ():  # rows of one `v` are in one bucket, and so in order
            assert last_of_v.get(row["v"], -1) < row["id"]
            last_of_v[row["v"]] = row["id"]

    for step in range(40):
        match dice.choice(["write", "write", "write", "compact", "overwrite", "expire", "alter", "read", "read"]):
            case "write":
                rows = [{"id": next(numbers), "v": dice.randrange(4)} for _ in range(dice.randint(1, 6))]
                put(table, rows)
                expected.update(row["id"] for row in rows)
            case "compact":
                table.compact(full=dice.random() < 0.5)
            case "overwrite":
                table.overwrite([{"id": next(numbers), "v": dice.randrange(4)}])
            case "expire":
                if query is not None and query.is_recorded:
                    table.expire_snapshots(retain_max=1, retain_min=1)
            case "alter":
                table = altered(table, [AddColumn((f"c{step}",), types.int_())])
            case "read" if query is not None:
                had_begun = query.has_begun
                rows = query.step() or []
                if query.has_begun and not had_begun:
                    expected = Counter(row["id"] for row in table.scan().to_arrow().to_pylist())
                take(rows)
        if query is None and step == dice.choice([0, 6]):
            query = Query(table, dice)
    query = query or Query(table, dice)
    if not query.has_begun:
        expected = Counter(row["id"] for row in table.scan().to_arrow().to_pylist())
    take(query.catch_up())
    assert found == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("producer", ["lookup", "input", "full-compaction"])
def test_changes_of_a_keyed_table_come_to_its_state(tmp_path: Path, seed: int, producer: str) -> None:
    dice = random.Random(f"{producer} {seed}")
    options = {"bucket": dice.choice(["1", "3"]), "changelog-producer": producer}
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    state: dict[int, Row] = {}
    query: Query | None = None

    def take(rows: list[Row]) -> None:
        for row in rows:
            kind = row.pop("_change_type")
            before = state.get(row["id"])
            if kind in ("update_before", "delete") and producer != "input":
                assert before == row, "an old image is what was there"
            if kind == "insert" and producer != "input":
                assert before is None
            if kind in ("insert", "update_after"):
                state[row["id"]] = row
            elif kind == "delete":
                state.pop(row["id"], None)

    for step in range(30):
        match dice.choice(["write", "write", "delete", "compact", "expire", "read", "read"]):
            case "write":
                keys = dice.sample(range(12), dice.randint(1, 6))
                put(table, [{"id": key, "name": f"n{dice.randrange(5)}", "v": step} for key in keys])
            case "delete":
                table.delete([{"id": dice.randrange(12)}])
            case "compact":
                table.compact(full=dice.random() < 0.5)
            case "expire":
                if query is not None and query.is_recorded:
                    table.expire_snapshots(retain_max=1, retain_min=1)
            case "read" if query is not None:
                take(query.step() or [])
        if query is None and step == dice.choice([3, 5]):
            query = Query(table, dice, read_changelog="true")
    if query is None:
        query = Query(table, dice, read_changelog="true")
    table.compact(full=True)  # from then on all changes are in the changelog
    take(query.catch_up())
    assert state == {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
