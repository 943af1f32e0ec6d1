"""The merge engine `aggregation` of one bucket against a model in plain Python: every function with every type."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.kv.merge_plans import may_refuse_merges
from forebay.metadata import types
from forebay.metadata.merge_engines import INTEGER_OVERFLOW
from forebay.metadata.table import AggregateFunction, Column
from tests.every_run import every_run
from tests.kv.aggregated_rows import CASES, COLUMNS, NAMES, VALUES, random_row
from tests.kv.engine_model import (
    Bucket,
    Model,
    aggregation,
)
from tests.kv.tables import FakeTable

ENGINE = {"table.merge-engine": "aggregation"}
WRAPS = {INTEGER_OVERFLOW: "wrap"}
INTEGERS = [(types.tinyint(), 8), (types.smallint(), 16), (types.int_(), 32), (types.bigint(), 64)]
FORMATS = {"COMPACTED": {}, "INDEXED": {"table.kv.format": "INDEXED", "table.log.format": "INDEXED"}}


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
    table = FakeTable({**ENGINE, **WRAPS, **FORMATS[row_format], "table.delete.behavior": deletes}, COLUMNS)
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
    with pytest.raises(
        InvalidRequest, match=r"table db\.t, key id = 1, column 'v': a sum does not fit into DECIMAL\(4, 2\)"
    ) as refused:
        bucket.put([{"id": 2, "v": Decimal(1)}, {"id": 1, "v": Decimal("40.00")}], [False, False])
    assert refused.value.code == ErrorCode.INVALID_TABLE_EXCEPTION
    assert bucket.rows == {1: {"id": 1, "v": Decimal("60.00")}}


@pytest.mark.parametrize("row_format", FORMATS)
@pytest.mark.parametrize(("data_type", "bits"), INTEGERS)
@pytest.mark.parametrize("function", ["sum", "product"])
def test_a_whole_number_that_does_not_fit_is_refused_with_table_key_and_column(
    bucket_of, function: str, data_type: types.DataType, bits: int, row_format: str
) -> None:
    bucket = bucket_of(data_type, function, **FORMATS[row_format])
    least, greatest = -(1 << bits - 1), (1 << bits - 1) - 1
    fitting, refused = ((least, -1), (1, greatest)) if function == "sum" else ((least // 2, 2), (greatest // 2 + 1, 2))
    bucket.put([{"id": n, "v": pair[0]} for n, pair in enumerate((fitting, refused))], [False, False])
    bucket.put([{"id": 0, "v": 0 if function == "sum" else fitting[1]}], [False])
    message = rf"^table db\.t, key id = 1, column 'v': a {function} does not fit into {data_type}; .*{INTEGER_OVERFLOW}"
    with pytest.raises(InvalidRequest, match=message) as caught:
        bucket.put([{"id": 2, "v": 1}, {"id": 1, "v": refused[1]}], [False, False])
    assert caught.value.code == ErrorCode.INVALID_TABLE_EXCEPTION
    assert {n: row["v"] for n, row in bucket.rows.items()} == {0: least, 1: refused[0]}


def test_an_option_that_is_altered_holds_from_the_next_put(bucket_of) -> None:
    bucket = bucket_of(types.smallint(), "sum")
    bucket.put([{"id": 1, "v": 32767}], [False])
    with pytest.raises(InvalidRequest, match="does not fit into SMALLINT"):
        bucket.put([{"id": 1, "v": 1}], [False])
    info = bucket.table.info
    bucket.table.info = replace(info, descriptor=replace(info.descriptor, custom_properties=WRAPS))
    bucket.put([{"id": 1, "v": 1}], [False])
    assert bucket.rows[1]["v"] == -32768


@pytest.mark.parametrize(("data_type", "bits"), INTEGERS)
def test_a_decided_sum_of_whole_numbers_wraps_around(bucket_of, data_type: types.DataType, bits: int) -> None:
    bucket = bucket_of(data_type, "sum")
    bucket.put([{"id": 1, "v": (1 << bits - 1) - 1}], [False])
    (result,) = bucket.tablet.put_group([replace(bucket.table.request([{"id": 1, "v": 1}]), decided_ms=0)])
    assert result.error is None
    assert bucket.rows[1]["v"] == -(1 << bits - 1)


@pytest.mark.parametrize(
    ("data_type", "left"), [(types.decimal(4, 2), None), (types.decimal(4, 2).not_null(), Decimal("60.00"))]
)
def test_a_decided_write_never_fails(bucket_of, data_type: types.DataType, left: Decimal | None) -> None:
    bucket = bucket_of(data_type, "sum")
    bucket.put([{"id": 1, "v": Decimal("60.00")}], [False])
    decided = replace(bucket.table.request([{"id": 1, "v": Decimal("40.00")}]), decided_ms=0)
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
    decided = replace(bucket.table.request([{"id": 1, "v": second}]), decided_ms=0)
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


@pytest.mark.parametrize(
    ("function", "of", "refuses", "when_it_wraps"),
    [
        ("last_value", types.bigint(), False, False),
        ("max", types.bigint(), False, False),
        ("listagg", types.string(), True, True),
        ("rbm64", types.bytes_(), True, True),
        ("sum", types.bigint(), True, False),
        ("product", types.int_(), True, False),
        ("sum", types.decimal(10, 2), True, True),
        ("sum", types.double(), False, False),
    ],
)
def test_which_functions_may_refuse_a_put_for_what_is_there(
    function: str, of: types.DataType, refuses: bool, when_it_wraps: bool
) -> None:
    columns = [Column("id", types.int_()), Column("v", of, aggregate=AggregateFunction(function))]
    for options, expected in (({}, refuses), (WRAPS, when_it_wraps)):
        info = FakeTable({**ENGINE, **options}, columns).info
        assert may_refuse_merges(info) is expected
    assert not may_refuse_merges(FakeTable({}, columns).info)
