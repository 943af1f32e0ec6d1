"""Pruning many files by columns: the same result as one file at a time, from objects and from manifests."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from forebay import col
from forebay.codec.filters import BoundPredicate
from forebay.metadata import types
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Column
from forebay.paimon.files.pruning import bind_filter, filter_columns, may_match
from forebay.paimon.format.file_meta import EMPTY_ROW, EMPTY_STATS, DataFileMeta, FileKind, ManifestEntry, SimpleStats
from forebay.paimon.format.manifest_codec import Arities, write_manifest
from forebay.paimon.format.manifest_rows import read_manifest_rows
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.format.stats import ColumnStats, pack_stats, unpack_stats
from forebay.paimon.read.file_statistics import FileStatistics
from tests.every_run import every_run

COLUMNS: dict[str, tuple[types.DataType, list[Any]]] = {
    "i": (types.int_(), [-5, 0, 3, 7, 1000]),
    "l": (types.bigint(), [-(1 << 63), 0, 5, (1 << 63) - 1]),
    "s": (types.string(), ["", "a", "aé", "b", "ﬀ", "𝄞"]),
    "y": (types.bytes_(), [b"", b"\x00", b"\x7f", b"\xff"]),
    "d": (types.decimal(10, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("12345678.90")]),
    "t": (types.timestamp(6), [-1, 0, 1_700_000_000_000_000]),
    "a": (types.date(), [-1, 0, 20_000]),
    "f": (types.double(), [-1.5, -0.0, 0.0, 2.5, float("nan")]),
    "b": (types.boolean(), [False, True]),
}
LITERALS = {
    ("t", -1): dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    ("t", 0): dt.datetime(1970, 1, 1),
    ("t", 1_700_000_000_000_000): dt.datetime(2023, 11, 14, 22, 13, 20),
    ("a", -1): dt.date(1969, 12, 31),
    ("a", 0): dt.date(1970, 1, 1),
    ("a", 20_000): dt.date(2024, 10, 4),
}
"""Temporal column values as filters take them."""
FIELDS = tuple(DataField(i, name, t) for i, (name, (t, _)) in enumerate(COLUMNS.items()))
ADDED = DataField(50, "added", types.int_())
OLD = TableSchema(0, FIELDS, 50, (), (), {})
NEW = TableSchema(1, (*FIELDS, ADDED), 51, (), (), {})
SCHEMAS = {0: OLD, 1: NEW}.__getitem__


def some_stats(rng: random.Random, f: DataField) -> ColumnStats:
    values = COLUMNS.get(f.name, (None, [1, 2]))[1]
    low, high = sorted(rng.choice([v for v in values if v == v]) for _ in range(2))
    nulls = rng.choice([None, 0, 2, 10])
    if nulls == 10 or rng.random() < 0.1:
        low = high = None
    return ColumnStats(low, high, nulls)


def some_file(rng: random.Random, i: int) -> DataFileMeta:
    schema = rng.choice([OLD, NEW])
    names = rng.choice([None, None, tuple(f.name for f in rng.sample(schema.fields, 3)), ()])
    fields = schema.fields if names is None else schema.fields_named(names)
    stats = pack_stats(fields, [some_stats(rng, f) for f in fields])
    if rng.random() < 0.1:
        stats = EMPTY_STATS
    elif rng.random() < 0.1:
        stats = SimpleStats(stats.min_values, stats.max_values, stats.null_counts[:1])
    return DataFileMeta(
        f"f{i}", 1, 10, EMPTY_ROW, EMPTY_ROW, EMPTY_STATS, stats, 0, 0, schema.id, 0, value_stats_cols=names
    )


def some_leaf(rng: random.Random) -> Predicate:
    name = rng.choice([*COLUMNS, "added"])
    values = COLUMNS.get(name, (None, [1, 2]))[1]
    values = [LITERALS.get((name, v), v) for v in values]
    c, v = col(name), rng.choice(values)
    made = [
        c == v, c != v, c < v, c <= v, c > v, c >= v, c.is_null(), c.is_not_null(), c.is_in(rng.choices(values, k=2)),
        c.not_in(rng.choices(values, k=2)),
    ]  # fmt: skip
    return rng.choice(made)


def some_filter(rng: random.Random) -> Predicate:
    first, second, third = (some_leaf(rng) for _ in range(3))
    return rng.choice([first, first & second, first | second, (first | second) & third])


def one_by_one(file: DataFileMeta, bound: BoundPredicate) -> bool:
    """The answer of `may_match` for one file."""
    schema = SCHEMAS(file.schema_id)
    width = len(schema.fields if file.value_stats_cols is None else file.value_stats_cols)
    stats = file.value_stats
    missing = width - len(stats.null_counts) if stats != EMPTY_STATS else 0
    stats = SimpleStats(stats.min_values, stats.max_values, (*stats.null_counts, *[None] * missing))
    known = unpack_stats(stats, schema.fields, file.value_stats_cols)

    def range_of(column: Column) -> ColumnStats | None:
        if column.name == "added" and schema is OLD:
            return ColumnStats(null_count=file.row_count)
        return known.get(column.name)

    return may_match(bound, range_of, file.row_count)


@pytest.mark.parametrize("seed", every_run(range(60), lambda seed: seed < 15))
def test_files_are_left_out_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    files = [some_file(rng, i) for i in range(30)]
    rows, others = (
        read_manifest_rows(
            write_manifest([ManifestEntry(FileKind.ADD, EMPTY_ROW, 0, 1, f) for f in part], Arities(0, 0))
        )
        for part in (files, files[::-1])
    )
    for _ in range(10):
        bound = bind_filter(some_filter(rng), NEW.fields)
        expected = [one_by_one(f, bound) for f in files]
        statistics = FileStatistics(SCHEMAS, filter_columns(NEW.fields), use_keys=False)
        assert statistics.matching(files, bound).tolist() == expected, bound
        chosen = np.array(sorted(rng.sample(range(len(files)), 20)))
        first, second = statistics.matching_rows([(rows, chosen), (others, chosen)], bound)
        assert first.tolist() == [i for i in chosen.tolist() if expected[i]]
        assert second.tolist() == [i for i in chosen.tolist() if expected[::-1][i]]


def test_no_file_has_one_of_no_values() -> None:
    files = [some_file(random.Random(seed), seed) for seed in range(5)]
    bound = bind_filter(col("i").is_in([]), NEW.fields)
    statistics = FileStatistics(SCHEMAS, filter_columns(NEW.fields), use_keys=False)
    known = [f for f in files if f.value_stats_cols is None]
    assert known
    assert not statistics.matching(known, bound).any()


def test_no_files_are_no_work() -> None:
    bound = bind_filter(col("i") == 1, NEW.fields)
    statistics = FileStatistics(SCHEMAS, filter_columns(NEW.fields), use_keys=False)
    rows = read_manifest_rows(write_manifest([], Arities(0, 0)))
    assert statistics.matching([], bound).tolist() == []
    assert [found.tolist() for found in statistics.matching_rows([(rows, rows.all)], bound)] == [[]]
