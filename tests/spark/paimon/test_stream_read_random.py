"""Random histories of tables under a stream: each change is returned once, however often the query dies.

`STREAM_SEEDS=1000 pytest tests/spark/paimon/test_stream_read_random.py` runs more.
"""

from __future__ import annotations

import os
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from forebay.metadata import types
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.store.schema_changes import AddColumn
from forebay.paimon.table import Table
from forebay.spark.lake_options import lake_read_options
from forebay.spark.reading.lake_changes import LakeChangesScan
from forebay.spark.reading.plan import ChangesRange, Pushdown
from forebay.spark.streaming.lake_planner import LakeChangesPlanner
from forebay.spark.streaming.reader import StreamReader
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


# ---- CHANGES --------------------------------------------------------------------------------------------------------


def read_changes(table: Table, start: int, stop: int | None, is_net: bool = False) -> list[Row]:
    """What CHANGES shows of the snapshots from `start` to before `stop`."""
    scan = LakeChangesScan(table.context, "t", range=ChangesRange(start, stop), is_net=is_net)
    wanted = Pushdown(tuple(scan.schema.names))
    read = pickle.loads(pickle.dumps(scan.read_function(wanted, scan.schema)))
    tasks = [pickle.loads(pickle.dumps(task)) for task in scan.partitions(2, wanted, scan.schema)]
    return [row for task in tasks for batch in read.read(task) for row in batch.to_pylist()]


class ChangesStream(PaimonStream):
    """A stream of CHANGES from version 2 on."""

    def __init__(self, table: Table, **options: str) -> None:
        self._scan = LakeChangesScan(table.context, "t", range=ChangesRange(2))
        super().__init__(table, **options)

    def _new_reader(self) -> StreamReader:
        limits = lake_read_options({name: value for name, value in self._options.items() if name != "path"}).limits
        pushdown, schema = Pushdown(tuple(self._scan.schema.names)), self._scan.schema
        return StreamReader(LakeChangesPlanner(self._scan, pushdown, schema, limits, 2))


def applied(state: Counter[Any], changes: list[Row]) -> Counter[Any]:
    """A table's rows after the changes; no change takes a row away that is not there."""
    found = Counter(state)
    for row in sorted(changes, key=lambda row: row["_commit_version"]):
        added = row["_change_type"] in ("insert", "update_postimage")
        key = tuple(value for name, value in row.items() if not name.startswith("_"))
        found[key] += 1 if added else -1
    assert min(found.values(), default=0) >= 0
    return +found


def rows_at(table: Table, snapshot: int) -> Counter[Any]:
    return Counter(tuple(row.values()) for row in table.scan(as_of=snapshot).to_arrow().to_pylist())


def write_history(table: Table, dice: random.Random) -> None:
    """Some commits: rows that come, change and go, and compactions."""
    for step in range(8):
        act = dice.choice(["add", "add", "change", "compact"])
        ids = dice.sample(range(8), 3)
        if act == "compact":
            table.compact()
        elif act == "add" or table.context.snapshots.latest_id() is None:
            put(table, [{"id": i, "name": f"n{step}", "v": step} for i in ids])
        elif table.has_primary_key:
            table.delete([{"id": i} for i in ids])
        else:  # copy on write: some rows go, some change, most are rewritten as they are
            rows = [row for row in table.scan().to_arrow().to_pylist() if row["id"] != ids[0]]
            table.overwrite([{**row, "v": -step} if row["id"] == ids[1] else row for row in rows])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keyed", [False, True], ids=["append table", "primary key"])
def test_changes_lead_from_the_rows_of_one_snapshot_to_those_of_another(tmp_path: Path, keyed: bool, seed: int) -> None:
    dice = random.Random(seed)
    options = {"bucket": "2", "changelog-producer": "lookup"} if keyed else {}
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key="id" if keyed else [], options=options)
    write_history(table, dice)
    latest = table.context.snapshots.latest_id() or 0
    # A lookup finds the changes of a commit in the compaction behind it.
    told = [
        i for i in range(1, latest + 1) if not keyed or table.context.snapshots.snapshot(i).commit_kind == "COMPACT"
    ]
    for first, last in [(0, latest), *(sorted(dice.choices(told, k=2)) for _ in range(4))]:
        before = rows_at(table, first) if first else Counter[Any]()
        changes = read_changes(table, first + 1, last + 1)
        assert applied(before, changes) == rows_at(table, last)
        net = read_changes(table, first + 1, last + 1, is_net=True)
        assert applied(before, net) == rows_at(table, last)
        # A row that was rewritten as it is, is no change.
        seen = {(row["id"], row["name"], row["v"], row["_commit_version"], row["_change_type"]) for row in changes}
        assert not {row[:4] for row in seen if row[4] == "insert"} & {row[:4] for row in seen if row[4] == "delete"}


def test_the_changes_of_a_key_in_one_commit_come_to_no_more_than_two(tmp_path: Path) -> None:
    options = {"bucket": "1", "changelog-producer": "input"}
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key="id", options=options)
    put(table, [{"id": i, "name": "a"} for i in (1, 2, 3)], ["+I"] * 3)
    ids = [1, 1, 1, 1, 2, 2, 2, 4, 4, 5, 5, 5, 3]
    kinds = ["-U", "+U", "-U", "+U", "-U", "+U", "-D", "+I", "-D", "+I", "-U", "+U", "-D"]
    put(table, [{"id": i, "name": f"{n}"} for n, i in enumerate(ids)], kinds)
    net = [(row["id"], row["name"], row["_change_type"]) for row in read_changes(table, 2, 3, is_net=True)]
    assert sorted(net) == [
        (1, "0", "update_preimage"), (1, "3", "update_postimage"), (2, "4", "delete"), (3, "12", "delete"),
        (5, "11", "insert"),
    ]  # fmt: skip
    assert len(read_changes(table, 2, 3)) == len(ids)


@pytest.mark.parametrize("limits", LIMITS)
def test_a_stream_of_changes_has_each_change_once(tmp_path: Path, limits: dict[str, str]) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS)
    write_history(table, random.Random(3))
    stream = ChangesStream(table, **limits)
    found = stream.rest()
    stream.restart()
    write_history(table, random.Random(4))
    assert found
    in_order = read_changes(table, 2, None)
    assert sorted(map(str, found + stream.rest())) == sorted(map(str, in_order))
