"""Merge engines on our server and on a real Apache Fluss cluster: the same writes, the same rows and changelog."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("fluss", reason="pyfluss has no wheel for this Python")

from fluss_cluster import RealFluss

import forebay
from forebay.base.errors import ErrorCode, ForebayError, OutcomeUnknown, Unavailable
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.client.writing.encode import MergeMode
from forebay.metadata import types
from forebay.metadata.table import AggregateFunction, Column
from forebay.testing.server import EmbeddedServer
from tests.kv.aggregated_rows import COLUMNS, NAMES, NOON, random_row
from tests.kv.engine_model import plain
from tests.kv.tables import Row
from tests.kv.version_columns import VERSIONS
from tests.patience import PATIENCE

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS = int(os.environ.get("MERGE_EXAM_ROUNDS", "5"))
_numbers = itertools.count()


def served_table(connection: Connection, columns: list[Column], options: Mapping[str, str]) -> Table:
    """A new table. One in two hundred of Fluss's never gets a leader; another one is made in its place."""
    connection.create_database("merging", ignore_if_exists=True)
    for _attempt in range(3):
        name = f"merging.t{os.getpid()}_{next(_numbers)}"
        table = connection.create_table(name, columns, primary_key="id", buckets=1, options=options)
        try:
            table.lookup(0)
        except (Unavailable, OutcomeUnknown) as e:
            error = e
        else:
            return table
    raise error


class Pair:
    """The same table on both sides. `do` is what is done to both, and both must answer alike."""

    def __init__(self, ours: Connection, theirs: Connection, columns: list[Column], options: Mapping[str, str]) -> None:
        self.tables = [served_table(connection, columns, options) for connection in (ours, theirs)]

    def do(self, operation: str, *arguments: Any, **how: Any) -> int | None:
        """Call a method of both tables; return the code of the error that both raise, or None.

        Our server has codes of its own for some errors that Java answers as unknown ones.
        """
        codes: list[ErrorCode | int | None] = []
        for table in self.tables:
            try:
                getattr(table, operation)(*arguments, **how)
                codes.append(None)
            except ForebayError as e:
                codes.append(e.code)
        ours, theirs = codes
        assert ours == theirs or (ours and theirs == ErrorCode.UNKNOWN_SERVER_ERROR), (codes, operation, arguments, how)
        return ours

    def compare(self) -> list[Row]:
        """Rows and changelogs of both are the same; returns the rows."""
        ours, theirs = (
            table.changes(stop="latest", include=("change_type", "offset")).to_arrow().to_pylist()
            for table in self.tables
        )
        assert plain(ours) == plain([_unpadded(row) for row in theirs])
        keys = [{"id": key} for key in range(4)]
        rows = [table.lookup(keys, missing="drop").to_pylist() for table in self.tables]
        assert plain(rows[0]) == plain([_unpadded(row) for row in rows[1]])
        return rows[0]


def _unpadded(row: Row) -> Row:
    """Without the zero bytes that Java at times leaves behind CHARs of indexed rows, with and without merge engines."""
    return {name: value.rstrip("\0") if isinstance(value, str) else value for name, value in row.items()}


@pytest.fixture(scope="module")
def both(real_fluss: RealFluss, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Connection, Connection]]:
    with (
        EmbeddedServer(tmp_path_factory.mktemp("merging") / "data") as server,
        forebay.connect(server.bootstrap_servers) as ours,
        forebay.connect(real_fluss.bootstrap_servers, request_timeout=f"{PATIENCE:g} s") as theirs,
    ):
        yield ours, theirs


def random_history(pair: Pair, rng: random.Random, row: Callable[[random.Random], Row], names: Sequence[str]) -> None:
    engine = pair.tables[0].info.descriptor.merge_engine
    for _ in range(rng.randint(3, 8)):
        overwrite: MergeMode = "overwrite" if rng.random() < 0.15 else "default"
        columns = None
        if rng.random() < 0.4 and (engine == "aggregation" or overwrite == "overwrite"):
            columns = ["id", *rng.sample(names[1:], rng.randrange(len(names) - 1))]
        if rng.random() < 0.2:
            pair.do("delete", [{"id": rng.randrange(4)}], columns, merge_mode=overwrite)
            continue
        rows = [row(rng) for _ in range(rng.randint(1, 5))]
        if columns is not None:
            rows = [{name: each[name] for name in columns} for each in rows]
        pair.do("upsert", rows, columns, merge_mode=overwrite)
    pair.compare()


@pytest.mark.parametrize("deletes", ["ignore", "allow", "disable"])
@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
def test_every_function_with_every_type(both: tuple[Connection, Connection], kv_format: str, deletes: str) -> None:
    options = {"table.merge-engine": "aggregation", "table.delete.behavior": deletes, "table.kv.format": kv_format}
    for seed in range(ROUNDS):
        random_history(Pair(*both, COLUMNS, options), random.Random(f"{deletes} {seed}"), random_row, NAMES)


@pytest.mark.parametrize("image", ["full", "wal"])
@pytest.mark.parametrize(
    "engine", ["first_row", "versioned by int", "versioned by bigint", "versioned by timestamp(6)"]
)
def test_first_row_and_versioned(both: tuple[Connection, Connection], engine: str, image: str) -> None:
    name, _, kind = engine.partition(" by ")
    data_type, *_ = VERSIONS[kind or "int"]
    moments = [NOON, NOON.replace(microsecond=1000), NOON.replace(year=1960), None]
    pool = moments if kind.startswith("timestamp") else [None, -(2**31), -1, 0, 1, 2**31 - 1]
    columns = [Column("id", types.int_()), Column("v", data_type), Column("name", types.string())]
    options = {"table.merge-engine": name, "table.changelog.image": image}
    if kind:
        options["table.merge-engine.versioned.ver-column"] = "v"

    def row(rng: random.Random) -> Row:
        return {"id": rng.randrange(4), "v": rng.choice(pool), "name": rng.choice(["a", "b", None])}

    for seed in range(ROUNDS):
        rng = random.Random(f"{engine} {seed}")
        behavior = rng.choice(["ignore", "disable"])
        random_history(
            Pair(*both, columns, {**options, "table.delete.behavior": behavior}), rng, row, ["id", "v", "name"]
        )


@pytest.mark.parametrize(
    ("data_type", "function", "values"),
    [
        (types.decimal(4, 2), "sum", ["60.00", "39.99", "0.01", "-99.99", "-0.01"]),
        (types.decimal(18, 0), "sum", ["9" * 18, "1", "-" + "9" * 18, "-2"]),
        (types.decimal(19, 0), "sum", ["9" * 19, "1", "5", "-5"]),
        (types.decimal(4, 2), "product", ["20.00", "5.00", "0.50", "0.05", "0.5", "99.99"]),
        (types.decimal(38, 19), "product", ["0.5", "-0.0000000000000000001", "3", "9999999999999999999"]),
    ],
)
def test_decimals_that_do_not_fit(
    both: tuple[Connection, Connection], data_type: types.DataType, function: str, values: list[str]
) -> None:
    columns = [Column("id", types.int_()), Column("v", data_type, aggregate=AggregateFunction(function))]
    pair = Pair(*both, columns, {"table.merge-engine": "aggregation"})
    for value in values:
        pair.do("upsert", [{"id": 1, "v": Decimal(value)}])
        pair.compare()


def test_columns_that_are_added_to_rows_that_exist(both: tuple[Connection, Connection]) -> None:
    columns = [Column("id", types.int_()), Column("v", types.int_(), aggregate=AggregateFunction("sum"))]
    pair = Pair(*both, columns, {"table.merge-engine": "aggregation"})
    pair.do("upsert", [{"id": 1, "v": 5}])
    pair.tables = [table.alter(add_columns=[Column("w", types.double())]) for table in pair.tables]
    pair.do("upsert", [{"id": 1, "v": 1, "w": math.pi}, {"id": 1, "v": 1, "w": None}])
    assert pair.compare() == [{"id": 1, "v": 7, "w": math.pi}]
