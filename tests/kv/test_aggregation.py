"""The merge engine `aggregation` of one bucket against a model in plain Python: every function with every type."""

from __future__ import annotations

import datetime as dt
import math
import operator
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.metadata import types
from forebay.metadata.table import AggregateFunction, Column
from tests.every_run import every_run
from tests.kv.engine_model import (
    GREATEST,
    LEAST,
    Bucket,
    Function,
    Model,
    aggregation,
    first_not_null,
    last,
    last_not_null,
    of_two,
    rounded,
    single,
    wrapped,
)
from tests.kv.tables import FakeTable, Row

ENGINE = {"table.merge-engine": "aggregation"}
FORMATS = {"COMPACTED": {}, "INDEXED": {"table.kv.format": "INDEXED", "table.log.format": "INDEXED"}}
NOON = dt.datetime(2026, 1, 31, 12)

VALUES: dict[str, tuple[types.DataType, Sequence[Any]]] = {
    "tinyint": (types.tinyint(), [0, 1, 3, -7, 127, -128]),
    "smallint": (types.smallint(), [0, 1, 3, -7, 2**15 - 1, -(2**15)]),
    "int": (types.int_(), [0, 1, 3, -7, 2**31 - 1, -(2**31)]),
    "bigint": (types.bigint(), [0, 1, 3, -7, 2**63 - 1, -(2**63)]),
    "float": (types.float_(), [0.0, -0.0, 1.5, -2.25, 2.0**127, math.inf, -math.inf, math.nan]),
    "double": (types.double(), [0.0, -0.0, 1.1, -2.2, 1.7e308, math.inf, -math.inf, math.nan]),
    "small": (types.decimal(18, 3), [Decimal(text) for text in ("0.000", "1.500", "-2.345", "999999.999", "-0.001")]),
    "five": (types.decimal(5, 2), [Decimal(text) for text in ("0.00", "1.50", "-2.34", "0.05")]),
    "large": (types.decimal(38, 10), [Decimal(text) for text in ("0", "1.5", "-2.0000000005", f"{10**28 - 1}", "-7")]),
    "whole": (types.decimal(38, 0), [Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(3), Decimal(-1), Decimal(0)]),
    "text": (types.string(), ["", "a", "b", "aa", "ä", "\U0001f600", "x" * 130]),
    "char": (types.char(4), ["a", "b", "aa", "zzzz"]),
    "date": (types.date(), [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 1, 31)]),
    "time": (types.time(3), [dt.time(0), dt.time(12, 0, 0, 5000), dt.time(23, 59)]),
    "instant": (types.timestamp(3), [NOON, NOON.replace(year=1960), NOON.replace(microsecond=1000)]),
    "exact": (types.timestamp(6), [NOON, NOON.replace(year=1960, microsecond=1), NOON.replace(microsecond=1)]),
    "utc": (types.timestamp_ltz(6), [NOON, NOON.replace(year=1960, microsecond=1), NOON.replace(microsecond=1)]),
    "flag": (types.boolean(), [True, False]),
    "raw": (types.bytes_(), [b"", b"a", b"\x00"]),
    "list": (types.array(types.int_()), [[], [1, None], [2]]),
    "bitmap": (
        types.bytes_(),
        [
            BitMap(values).serialize()
            for values in ((), (1, 2, 70_000), (2**32 - 1,), range(5000), range(1, 9000, 2), range(60_000, 140_000))
        ],
    ),
}
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "small", "five", "large", "whole")
BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
DIGITS = {"small": (18, 3), "five": (5, 2), "large": (38, 10), "whole": (38, 0)}
UNORDERED = ("flag", "raw", "list", "bitmap")


def united(old: bytes, new: bytes) -> bytes:
    both = BitMap.deserialize(old) | BitMap.deserialize(new)
    both.run_optimize()
    return both.serialize()


def arithmetic(kind: str, function: Function) -> Function:
    if kind in BITS:
        return wrapped(BITS[kind], function)
    if kind in DIGITS:
        return rounded(*DIGITS[kind], function)
    return single(function) if kind == "float" else of_two(function)


def cases() -> dict[str, tuple[str, AggregateFunction, Function]]:
    """(kind, function, the model's function) for each column; a column is named by both."""
    found: dict[str, tuple[str, AggregateFunction, Function]] = {}
    for kind in VALUES:
        functions: dict[str, Function] = {
            "last_value": last,
            "last_value_ignore_nulls": last_not_null,
            "first_value": first_not_null,
            "first_value_ignore_nulls": first_not_null,
        }
        if kind in NUMBERS:
            functions |= {"sum": arithmetic(kind, operator.add), "product": arithmetic(kind, operator.mul)}
        if kind not in UNORDERED:
            functions |= {"max": GREATEST, "min": LEAST}
        if kind == "text":
            functions |= {"listagg": of_two(lambda old, new: f"{old},{new}")}
        if kind == "flag":
            functions |= {"bool_and": of_two(lambda a, b: a and b), "bool_or": of_two(lambda a, b: a or b)}
        if kind == "bitmap":
            functions |= {"rbm32": of_two(united)}
        found |= {f"{kind}_{name}": (kind, AggregateFunction(name), function) for name, function in functions.items()}
    joined = AggregateFunction("string_agg", (("delimiter", "; "),))
    return found | {"text_string_agg": ("text", joined, of_two(lambda old, new: f"{old}; {new}"))}


CASES = cases()
COLUMNS = [Column("id", types.int_())] + [
    Column(name, VALUES[kind][0], aggregate=function) for name, (kind, function, _) in CASES.items()
]
NAMES = [column.name for column in COLUMNS]


def random_row(rng: random.Random) -> Row:
    row: Row = {"id": rng.randrange(3)}
    for name, (kind, _, _) in CASES.items():
        row[name] = None if rng.random() < 0.2 else rng.choice(VALUES[kind][1])
    return row


@pytest.mark.parametrize(
    ("row_format", "deletes"),
    every_run(
        [(row_format, deletes) for row_format in FORMATS for deletes in ("ignore", "allow")],
        lambda case: (case[0] == "INDEXED") == (case[1] == "allow"),
    ),
)
@given(seed=st.integers(0, 2**32))
def test_rows_and_changelog_are_those_of_the_model(row_format: str, deletes: str, seed: int) -> None:
    rng = random.Random(seed)
    table = FakeTable({**ENGINE, **FORMATS[row_format], "table.delete.behavior": deletes}, COLUMNS)
    model = Model(aggregation({name: function for name, (*_, function) in CASES.items()}), deletes=deletes)
    with tempfile.TemporaryDirectory() as folder:
        bucket = Bucket(table, Path(folder))
        for _ in range(4):
            rows = [random_row(rng) for _ in range(rng.randint(1, 5))]
            deleted = [rng.random() < 0.1 for _ in rows]
            columns = () if rng.random() < 0.5 else ("id", *rng.sample(NAMES[1:], rng.randrange(len(NAMES) - 1)))
            overwrite = rng.random() < 0.15
            bucket.put(rows, deleted, targets=columns, overwrite=overwrite)
            model.put(rows, deleted, columns, overwrite)
        bucket.check(model)
        bucket.close()


@pytest.fixture
def bucket_of(tmp_path: Path, request: pytest.FixtureRequest):
    """Makes a bucket of columns k and v."""

    def make(data_type: types.DataType, function: str, **properties: str) -> Bucket:
        columns = [Column("id", types.int_()), Column("v", data_type, aggregate=AggregateFunction(function))]
        bucket = Bucket(FakeTable({**ENGINE, **properties}, columns), tmp_path)
        request.addfinalizer(bucket.close)
        return bucket

    return make


def test_a_sum_of_up_to_18_digits_that_does_not_fit_is_refused_and_changes_nothing(bucket_of) -> None:
    bucket = bucket_of(types.decimal(4, 2), "sum")
    bucket.put([{"id": 1, "v": Decimal("60.00")}], [False])
    with pytest.raises(InvalidRequest, match=r"column 'v': a sum does not fit into DECIMAL\(4, 2\)") as refused:
        bucket.put([{"id": 2, "v": Decimal(1)}, {"id": 1, "v": Decimal("40.00")}], [False, False])
    assert refused.value.code == ErrorCode.INVALID_TABLE_EXCEPTION
    assert bucket.rows == {1: {"id": 1, "v": Decimal("60.00")}}


@pytest.mark.parametrize(
    ("data_type", "left"), [(types.decimal(4, 2), None), (types.decimal(4, 2).not_null(), Decimal("60.00"))]
)
def test_a_decided_write_never_fails(bucket_of, data_type: types.DataType, left: Decimal | None) -> None:
    bucket = bucket_of(data_type, "sum")
    bucket.put([{"id": 1, "v": Decimal("60.00")}], [False])
    decided = replace(bucket.table.request([{"id": 1, "v": Decimal("40.00")}]), is_decided=True)
    (result,) = bucket.tablet.put_group([decided])
    assert result.error is None
    assert bucket.rows == {1: {"id": 1, "v": left}}


@pytest.mark.parametrize("function", ["sum", "product"])
def test_a_result_that_does_not_fit_into_a_column_that_is_not_null_is_refused(bucket_of, function: str) -> None:
    bucket = bucket_of(types.decimal(20, 0).not_null(), function)
    bucket.put([{"id": 1, "v": Decimal(10**20 - 1)}], [False])
    with pytest.raises(InvalidRequest, match=rf"column 'v': a {function} does not fit .* and the column is NOT NULL"):
        bucket.put([{"id": 1, "v": Decimal(10**19)}], [False])


NO_BITMAP = b"\x3a\x30\0\0\x01"


@pytest.mark.parametrize(
    ("first", "second", "which"),
    [(BitMap([1]).serialize(), NO_BITMAP, "the written value"), (NO_BITMAP, BitMap([1]).serialize(), "in the table")],
)
def test_bytes_that_are_no_bitmap_are_refused_and_lose_in_a_decided_write(
    bucket_of, first: bytes, second: bytes, which: str
) -> None:
    bucket = bucket_of(types.bytes_(), "rbm32")
    bucket.put([{"id": 1, "v": first}], [False])
    with pytest.raises(InvalidRequest, match=f"column 'v': .*{which} is not a bitmap of the portable Roaring format"):
        bucket.put([{"id": 2, "v": second}, {"id": 1, "v": second}], [False, False])
    assert bucket.rows == {1: {"id": 1, "v": first}}
    decided = replace(bucket.table.request([{"id": 1, "v": second}]), is_decided=True)
    (result,) = bucket.tablet.put_group([decided])
    assert result.error is None
    assert bucket.rows == {1: {"id": 1, "v": BitMap([1]).serialize()}}


def test_damaged_bitmaps_never_do_more_than_fail(bucket_of) -> None:
    rng = random.Random(7)
    bucket = bucket_of(types.bytes_(), "rbm32")
    whole = VALUES["bitmap"][1]
    bucket.put([{"id": 1, "v": whole[1]}], [False])
    refused = 0
    for _ in range(200):
        damaged = bytearray(rng.choice(whole)[: rng.choice([8, 40, 9000])])
        for _ in range(rng.randrange(4)):
            damaged[rng.randrange(min(40, len(damaged)))] = rng.randrange(256)
        try:
            bucket.put([{"id": 1, "v": bytes(damaged)}], [False])
        except InvalidRequest:
            refused += 1
    assert 20 < refused < 200
    assert {1, 2, 70_000} <= set(BitMap.deserialize(bucket.rows[1]["v"]))


def test_an_update_of_the_key_alone_is_in_the_changelog_as_on_a_fluss_cluster(bucket_of) -> None:
    bucket = bucket_of(types.bigint(), "sum")
    bucket.put([{"id": 1, "v": 5}], [False])
    bucket.put([{"id": 1}], [False], targets=("id",))
    assert [kind for _, kind, _ in bucket.table.changelog(bucket.log)] == ["+I", "-U", "+U"]
    assert bucket.rows == {1: {"id": 1, "v": 5}}


def test_rows_of_an_older_schema_are_combined_with_newer_ones(bucket_of) -> None:
    bucket = bucket_of(types.bigint(), "sum")
    bucket.put([{"id": 1, "v": 5}], [False])
    bucket.table.add_column(Column("w", types.int_(), aggregate=AggregateFunction("max")))
    bucket.put([{"id": 1, "v": 1, "w": 3}, {"id": 1, "v": 1, "w": 2}], [False, False])
    bucket.put([{"id": 1, "v": 1}], [False], schema_id=1)
    assert bucket.rows == {1: {"id": 1, "v": 8, "w": 3}}


def test_a_partial_delete_clears_its_columns_and_the_last_one_removes_the_row(tmp_path: Path) -> None:
    columns = [Column("id", types.int_())]
    columns += [Column(name, types.bigint(), aggregate=AggregateFunction("sum")) for name in ("v", "w")]
    bucket = Bucket(FakeTable({**ENGINE, "table.delete.behavior": "allow"}, columns), tmp_path)
    bucket.put([{"id": 1, "v": 5, "w": 6}], [False])
    bucket.put([{"id": 1}], [True], targets=("id", "v"))
    assert bucket.rows == {1: {"id": 1, "v": None, "w": 6}}
    bucket.put([{"id": 1, "v": 2}], [False], targets=("id", "v"))
    assert bucket.rows == {1: {"id": 1, "v": 2, "w": 6}}
    for name in ("w", "v"):
        bucket.put([{"id": 1}], [True], targets=("id", name))
    assert bucket.rows == {}
    bucket.close()
