"""Bucket functions `mod` and `hive`: the buckets of Java Paimon, for writers, filters, lookups and rescaling."""

from __future__ import annotations

import random
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.codec._hash import decimal_hashes
from forebay.metadata import types
from forebay.metadata.predicate import col
from forebay.metadata.types import DataType
from forebay.paimon.bucket_function import bucket_function
from forebay.paimon.catalog.definition import new_schema
from forebay.paimon.store.schema_changes import UpdateColumnType
from forebay.paimon.table import Table
from tests.paimon.bucket_cases import CASES, buckets_by_id, columns_of, data_of, options_of
from tests.paimon.lake import altered, new_catalog, planned_files, put, rows_of

FUNCTIONS = ("mod", "hive")


@pytest.mark.parametrize("name", CASES)
def test_keys_go_to_the_buckets_that_java_gives_them(name: str) -> None:
    case = CASES[name]
    function = bucket_function(new_schema(columns_of(case), options=options_of(case)))
    batch = data_of(case).combine_chunks().to_batches()[0]
    expected = [bucket for _, bucket in case.buckets]
    assert function.buckets(batch, case.total).tolist() == expected
    assert function.buckets(batch.slice(1), case.total).tolist() == expected[1:], "a slice"
    assert function.buckets(batch.slice(0, 0), case.total).tolist() == []


@pytest.mark.parametrize("scale", [0, 1, 9, 18, 38])
def test_decimals_hash_as_java_does_without_the_zeros_at_their_end(scale: int) -> None:
    dice = random.Random(scale)
    unscaled = [dice.getrandbits(dice.randrange(1, 126)) for _ in range(100)]
    unscaled += [n // 10**z * 10**z for n in unscaled for z in (1, scale, 37)]
    unscaled += [-n for n in unscaled]
    with localcontext(prec=50):
        values = pa.array([Decimal(n).scaleb(-scale) for n in unscaled], pa.decimal128(38, scale))
    hashes = decimal_hashes(values.__arrow_c_array__()[1], scale)
    assert hashes.tolist() == [_big_decimal_hash(n, scale) for n in unscaled]


def _big_decimal_hash(unscaled: int, scale: int) -> int:
    while scale and unscaled % 10 == 0:
        unscaled, scale = unscaled // 10, scale - 1
    h = 0
    for shift in (96, 64, 32, 0):
        h = h * 31 + (abs(unscaled) >> shift & 0xFFFFFFFF)
    h = (31 * (h if unscaled >= 0 else -h) + scale) & 0xFFFFFFFF
    return int(np.uint32(h).view(np.int32))


def keyed(folder: Path, function: str, **options: str) -> Table:
    return new_catalog(folder).create_table(
        "db.t", {"k": types.bigint(), "v": types.int_()}, primary_key=["k"],
        options={"bucket": "7", "bucket-function.type": function, **options},
    )  # fmt: skip


def rows(ids: range, v: int) -> pa.Table:
    return pa.table({"k": list(ids), "v": pa.array([v] * len(ids), pa.int32())})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_filters_read_the_bucket_of_their_key_alone(tmp_path: Path, function: str) -> None:
    table = keyed(tmp_path, function)
    put(table, rows(range(-50, 50), 1))
    for k in (-50, -1, 0, 49):
        assert rows_of(table, None, col("k") == k) == [(k, 1)]
        assert len(planned_files(table, col("k") == k)) == 1
    chosen = rows_of(table, None, col("k").is_in([-7, 0, 7]))
    assert sorted(chosen) == [(-7, 1), (0, 1), (7, 1)]
    assert len(planned_files(table, col("k").is_in([-7, 0, 7]))) == (1 if function == "mod" else 2)


def test_filters_find_keys_of_several_nullable_columns(tmp_path: Path) -> None:
    case = CASES["several, few buckets"]
    table = new_catalog(tmp_path).create_table("db.t", columns_of(case), options=options_of(case))
    put(table, data_of(case))
    assert buckets_by_id(table) == {i: bucket for i, (_, bucket) in enumerate(case.buckets)}
    for i, ((number, text), _) in enumerate(case.buckets):
        if number is not None and text is not None:
            key = (col("k0") == number) & (col("k1") == text)
            assert (rows_of(table, ["id"], key), len(planned_files(table, key))) == ([(i,)], 1)
        elif number is None:
            assert rows_of(table, ["id"], col("k0").is_null() & (col("k1") == text)) == [(i,)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_lookups_find_keys_before_and_after_rescaling(tmp_path: Path, function: str) -> None:
    table = keyed(tmp_path, function)
    put(table, rows(range(-50, 50), 1))
    keys = [{"k": k} for k in (49, -50, 0, 1000, -1)]
    found = [{"k": 49, "v": 1}, {"k": -50, "v": 1}, {"k": 0, "v": 1}, {"k": -1, "v": 1}]
    with table.lookup_table() as lookup:
        assert lookup.lookup(keys, missing="drop").to_pylist() == found
    table = table.rescale(3)
    assert {s.bucket for s in table.scan().plan()} == {0, 1, 2}
    with table.lookup_table() as lookup:
        assert lookup.lookup(keys, missing="drop").to_pylist() == found
    put(table, rows(range(-50, 50), 2))
    assert sorted(rows_of(table)) == [(k, 2) for k in range(-50, 50)], "every key is in the bucket it was moved to"
    assert len(planned_files(table.rescale(6), col("k") == -1)) == 1


@pytest.mark.parametrize(
    ("function", "key", "message"),
    [
        ("mod", {"k": types.string()}, r"bucket key is k STRING, and .*one column of type INT or BIGINT"),
        ("mod", {"k": types.smallint()}, "INT or BIGINT"),
        ("mod", {"k": types.int_(), "l": types.int_()}, "bucket key is k INT, l INT, and"),
        ("hive", {"k": types.int_(), "l": types.timestamp(3)}, r"column 'l' of the bucket key has type TIMESTAMP\(3\)"),
        ("hive", {"k": types.timestamp_ltz(6)}, "has no hash of"),
        ("modulo", {"k": types.int_()}, "'bucket-function.type': 'modulo' is not one of default, mod, hive"),
    ],
)
def test_keys_that_a_function_does_not_take_are_refused(function: str, key: dict[str, DataType], message: str) -> None:
    options = {"bucket": "2", "bucket-key": ",".join(key), "bucket-function.type": function}
    with pytest.raises(InvalidRequest, match=message):
        new_schema({**key, "v": types.int_()}, options=options)


def test_a_bucket_key_keeps_a_type_that_its_function_takes(tmp_path: Path) -> None:
    options = {"bucket": "2", "bucket-key": "k", "bucket-function.type": "mod"}
    table = new_catalog(tmp_path).create_table("db.t", {"k": types.int_()}, options=options)
    with pytest.raises(InvalidRequest, match="INT or BIGINT"):
        altered(table, [UpdateColumnType(("k",), types.string())])


@pytest.mark.parametrize("function", ["default", *FUNCTIONS])
def test_rows_of_a_bucket_key_keep_their_buckets_or_it_keeps_its_type(tmp_path: Path, function: str) -> None:
    options = {"bucket": "5", "bucket-key": "k", "bucket-function.type": function}
    table = new_catalog(tmp_path).create_table("db.t", {"k": types.int_()}, options=options)
    put(table, pa.table({"k": pa.array(range(-20, 20), pa.int32())}))
    change = UpdateColumnType(("k",), types.bigint())
    if function == "mod":
        table = altered(table, [change])
    else:
        with pytest.raises(UnsupportedOperation, match="'k' of type INT cannot become BIGINT: it is in the bucket key"):
            altered(table, [change])
    assert [k for k in range(-20, 20) if rows_of(table, None, col("k") == k) != [(k,)]] == []


def test_a_table_whose_function_does_not_take_its_key_is_read_by_filters_all_the_same(tmp_path: Path) -> None:
    options = {"bucket": "2", "bucket-key": "k", "bucket-function.type": "default"}
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", {"k": types.string()}, options=options)
    put(table, [{"k": str(i)} for i in range(20)])
    (file,) = (tmp_path / "lake").rglob("schema-0")
    file.write_text(file.read_text().replace('"default"', '"mod"'))
    table = catalog.table("db.t")
    assert rows_of(table, None, col("k") == "7") == [("7",)]
    with pytest.raises(InvalidRequest, match="INT or BIGINT"):
        table.new_write()
