"""Windows over runs: what is loaded and returned, duplicates, projections, deletes."""

from __future__ import annotations

import decimal
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, InvalidRequest
from forebay.metadata import types
from forebay.metadata.types import DataType
from forebay.paimon.merge import merge_function, merge_runs, sort_and_merge_buffer, sort_buffer
from tests.paimon.merge import reference
from tests.paimon.merge.reference import Record
from tests.paimon.merge.tables import in_batches, table_schema, to_batch, to_records

COLUMNS = {"id": types.int_().not_null(), "v": types.string(), "s": types.int_()}
TABLE = table_schema(COLUMNS)
SPEC = merge_function(TABLE)


def record(key: int, number: int, kind: int = 0, v: str | None = "x", s: Any = None) -> Record:
    return Record((key,), number, kind, {"id": key, "v": v, "s": s})


def merged(runs, spec=SPEC, table=TABLE, **settings):
    return to_records(list(merge_runs([[to_batch(run, table)] for run in runs], spec, **settings)), table)


def test_a_reader_gets_no_deleted_rows_and_a_compaction_gets_them():
    old = [record(1, 0), record(2, 1), record(3, 2)]
    new = [record(2, 3, kind=3), record(3, 4, kind=2, v="y"), record(4, 5, kind=1)]
    assert [(r.key[0], r.kind) for r in merged([old, new])] == [(1, 0), (2, 3), (3, 2), (4, 1)]
    assert [(r.key[0], r.row["v"]) for r in merged([old, new], keep_deletes=False)] == [(1, "x"), (3, "y")]


def test_a_single_run_loses_its_deletes_too():
    assert [r.key for r in merged([[record(1, 0), record(2, 1, kind=3)]], keep_deletes=False)] == [(1,)]


def test_only_the_wanted_columns_come_out():
    runs = [[to_batch([record(1, 0, v="a")], TABLE)], [to_batch([record(1, 1, v="b")], TABLE)]]
    (batch,) = merge_runs(runs, SPEC, columns=["v", "id"])
    assert batch.to_pydict() == {"v": ["b"], "id": [1]}


@pytest.mark.parametrize("engine", ["deduplicate", "aggregation"])
def test_rows_can_be_counted_without_any_column(engine):
    spec = merge_function(table_schema(COLUMNS, options={"merge-engine": engine}))
    runs = [[to_batch([record(1, 0), record(2, 1)], TABLE)], [to_batch([record(2, 2), record(3, 3)], TABLE)]]
    assert sum(batch.num_rows for batch in merge_runs(runs, spec, columns=[])) == 3
    assert sum(batch.num_rows for batch in merge_runs(runs[:1], spec, columns=[], keep_deletes=False)) == 2


def test_columns_may_have_wide_offsets():
    options = {"merge-engine": "aggregation", "fields.v.aggregate-function": "listagg"}
    spec = merge_function(table_schema(COLUMNS, options=options))
    for arrow_type in (pa.string(), pa.large_string()):
        runs = []
        for number in range(2):
            batch = to_batch([record(1, number, v=str(number))], TABLE)
            runs.append([batch.set_column(4, pa.field("v", arrow_type), batch["v"].cast(arrow_type))])
        (out,) = merge_runs(runs, spec)
        assert out["v"] == pa.array(["0,1"], arrow_type)


def test_no_runs_and_empty_runs_give_nothing():
    assert list(merge_runs([], SPEC)) == []
    assert list(merge_runs([[], [to_batch([], TABLE)]], SPEC)) == []


def test_ranges_of_keys_that_one_run_has_alone_are_not_copied():
    first, second = to_batch([record(i, i) for i in range(4)], TABLE), to_batch([record(9, 9)], TABLE)
    out = list(merge_runs([[first], [second]], SPEC))
    assert out[0].column("v").buffers()[2].address == first.column("v").buffers()[2].address
    assert sum(batch.num_rows for batch in out) == 5


def test_one_batch_of_each_run_is_loaded_at_a_time():
    loaded: list[tuple[int, int]] = []

    def run(number: int):
        for i in range(50):
            loaded.append((number, i))
            yield to_batch([record(100 * i + j, 1000 * number + i) for j in range(3)], TABLE)

    merging = merge_runs([run(0), run(1)], SPEC)
    for window in range(50):
        next(merging)
        assert max(i for _, i in loaded) <= window + 1
    assert list(merging) == []


@given(st.randoms(use_true_random=True))
def test_runs_that_repeat_keys_merge_across_their_batches(rng: random.Random):
    options = {"merge-engine": "aggregation", "fields.s.aggregate-function": "sum"}
    table = table_schema(COLUMNS, options=options)
    spec = merge_function(table)
    functions = {
        "id": reference.function("primary-key"),
        "v": reference.function("last_non_null_value"),
        "s": reference.function("sum", bits=32),
    }
    records = [
        record(rng.randrange(3), i, v=rng.choice("abc"), s=rng.choice([None, 1, 2])) for i in range(rng.randrange(25))
    ]
    runs = [reference.sorted_records([r for r in records if r.number % 3 == i]) for i in range(3)]
    out = list(merge_runs([in_batches(run, table, rng) for run in runs], spec, unique_keys=False))
    assert to_records(out, table) == reference.merge(records, reference.aggregation(functions))


def test_of_equal_sequence_numbers_an_addition_counts_as_later_and_then_the_later_run():
    assert [r.kind for r in merged([[record(1, 5, kind=0)], [record(1, 5, kind=3)]])] == [0]
    assert [r.row["v"] for r in merged([[record(1, 5, v="a")], [record(1, 5, v="b")]])] == ["b"]


def test_a_projection_still_sees_what_sequence_groups_need():
    options = {
        "merge-engine": "partial-update",
        "fields.s.sequence-group": "w",
        "partial-update.remove-record-on-sequence-group": "s",
    }
    table = table_schema({**COLUMNS, "w": types.int_()}, options=options)
    spec = merge_function(table)
    assert spec.required_columns(["v"]) == ("v", "s")
    rows = [{"id": 1, "v": "a", "s": 1, "w": 1}, {"id": 1, "v": None, "s": 2, "w": None}]
    runs = [[to_batch([Record((1,), i, kind, row)], table)] for i, (kind, row) in enumerate(zip((0, 3), rows))]
    projected = [[run[0].select(["_KEY_id", "_SEQUENCE_NUMBER", "_VALUE_KIND", "v", "s"])] for run in runs]
    assert list(merge_runs(projected, spec, columns=["v"], keep_deletes=False)) == []


def test_required_columns_leave_out_groups_that_are_not_read():
    options = {"merge-engine": "partial-update", "fields.s.sequence-group": "w", "sequence.field": "v"}
    spec = merge_function(table_schema({**COLUMNS, "w": types.int_(), "z": types.int_()}, options=options))
    assert spec.required_columns(["z"]) == ("z", "v")
    assert spec.required_columns(["w"]) == ("w", "v", "s")


def test_nulls_in_keys_are_corruption():
    batch = to_batch([record(1, 0)], TABLE).set_column(0, "_KEY_id", pa.array([None], pa.int32()))
    with pytest.raises(CorruptData, match="_KEY_id"):
        list(merge_runs([[batch]], SPEC))


def test_nulls_in_columns_that_may_not_be_null_are_refused_by_partial_updates():
    table = table_schema({**COLUMNS, "v": types.string().not_null()}, options={"merge-engine": "partial-update"})
    with pytest.raises(InvalidRequest, match="'v' is NOT NULL"):
        merged([[record(1, 0)], [record(1, 1, v=None)]], merge_function(table), table)


def test_overflow_names_the_table_the_key_and_the_column():
    table = table_schema(COLUMNS, options={"merge-engine": "aggregation", "fields.s.aggregate-function": "sum"})
    first, second = [record(4, 0, s=1), record(7, 2, s=2**31 - 1)], [record(4, 1, s=1), record(7, 3, s=1)]
    with pytest.raises(InvalidRequest, match=r"table /lake/t, key id = 7: column 's'.*sum.*forebay\.integer-overflow"):
        merged([first, second], merge_function(table, "/lake/t"), table)
    runs = [[to_batch(run, table)] for run in (first, second)]
    with pytest.raises(InvalidRequest, match="key id = 7"):
        list(merge_runs(runs, merge_function(table, "/lake/t"), columns=["s"]))


@pytest.mark.parametrize(
    ("data_type", "function", "values", "kinds", "wrapped"),
    [
        (types.int_(), "sum", (2**31 - 1, 2), (0, 0), -(2**31) + 1),
        (types.int_(), "product", (2**31 - 1, 3), (0, 0), 2**31 - 3),
        (types.tinyint(), "sum", (-128, 1), (0, 3), 127),
        (types.smallint(), "product", (300, 300), (0, 0), 90_000 - 65_536),
        (types.bigint(), "sum", (2**63 - 1, 1), (0, 0), -(2**63)),
        (types.bigint(), "product", (2**62 + 1, 4), (0, 0), 4),
    ],
)
def test_overflow_may_wrap_as_java_numbers_do(data_type, function, values, kinds, wrapped):
    options = {"merge-engine": "aggregation", "fields.s.aggregate-function": function}
    columns = {**COLUMNS, "s": data_type}
    table = table_schema(columns, options={**options, "forebay.integer-overflow": "wrap"})
    runs = [[record(1, i, kind=kind, s=value)] for i, (value, kind) in enumerate(zip(values, kinds, strict=True))]
    assert [r.row["s"] for r in merged(runs, merge_function(table), table)] == [wrapped]
    with pytest.raises(InvalidRequest, match="'error' or 'wrap', not 'ignore'"):
        merge_function(table_schema(columns, options={**options, "forebay.integer-overflow": "ignore"}))


def folded(function: str, data_type: DataType, values: Sequence[object], kinds: Sequence[int], **more: str):
    """The value of one key after rows with `values`."""
    options = {"merge-engine": "aggregation", "fields.s.aggregate-function": function}
    table = table_schema({**COLUMNS, "s": data_type}, options={**options, **more})
    rows = [record(1, i, kind=kind, s=value) for i, (value, kind) in enumerate(zip(values, kinds, strict=True))]
    (batch,) = merge_runs([[to_batch([row], table)] for row in rows], merge_function(table))
    (value,) = batch.column("s").to_pylist()
    return value


@pytest.mark.parametrize(
    ("precision", "count", "wanted"),
    [
        (9, 2, 2 * (10**9 - 1)),
        (10, 3, 3 * (10**10 - 1)),
        (18, 9, 9 * (10**18 - 1)),
        (18, 10, None),
        (19, 1, 10**19 - 1),
        (19, 2, None),
    ],
)
def test_sums_of_decimals_have_as_many_digits_as_the_number_that_java_keeps_them_in(precision, count, wanted):
    nines = decimal.Decimal(10**precision - 1)
    assert folded("sum", types.decimal(precision, 0), [nines] * count, [0] * count) == wanted


def test_sums_of_decimals_of_nine_digits_fail_or_wrap_beyond_32_bits():
    nines = [decimal.Decimal(10**9 - 1)] * 3
    with pytest.raises(InvalidRequest, match=r"'sum' fails for DECIMAL\(9, 0\).*forebay\.integer-overflow"):
        folded("sum", types.decimal(9, 0), nines, [0] * 3)
    wrapped = folded("sum", types.decimal(9, 0), nines, [0] * 3, **{"forebay.integer-overflow": "wrap"})
    assert wrapped == 3 * (10**9 - 1) - 2**32


def test_products_of_decimals_are_null_where_they_have_too_many_digits():
    hundred = decimal.Decimal("100.00")
    assert folded("product", types.decimal(6, 2), [hundred, decimal.Decimal("99.99")], [0, 0]) == decimal.Decimal(9999)
    assert folded("product", types.decimal(6, 2), [hundred, hundred], [0, 0]) is None


def test_what_is_taken_back_of_a_record_that_was_set_whole():
    """A delete sets the record, and what follows is added to that or taken back from it."""
    remove = {"aggregation.remove-record-on-delete": "true"}
    numbers = types.map_(types.string(), types.int_())
    kinds = [0, 3, 1, 0]
    assert folded("merge_map", numbers, [{"a": 1}, {"x": 1}, None, {"b": 2}], kinds, **remove) == [("x", 1), ("b", 2)]
    assert folded("merge_map", numbers, [{"a": 1}, None, {"a": 1}, {"b": 2}], kinds, **remove) == [("b", 2)]
    assert folded("merge_map", numbers, [{"a": 1}, {"x": 1}, {"x": 5}, {"b": 2}], kinds, **remove) == [("b", 2)]
    rows = types.array(types.row(types.field("k", types.int_())))
    one, two, three = ({"k": k} for k in (1, 2, 3))
    assert folded("nested_update", rows, [[one, None, two], [two], [three]], [0, 1, 0]) == [one, three]


def test_nulls_that_are_only_added_are_no_values_of_a_column_that_may_not_be_null():
    columns = {**COLUMNS, "v": types.string().not_null()}
    table = table_schema(columns, options={"merge-engine": "aggregation"})
    (row,) = merged([[record(1, 0, v=None)], [record(1, 1, v="b")]], merge_function(table), table)
    assert row.row["v"] == "b"
    removing = {"merge-engine": "aggregation", "aggregation.remove-record-on-delete": "true"}
    table = table_schema(columns, options=removing)
    with pytest.raises(InvalidRequest, match="'v' is NOT NULL"):
        merged([[record(1, 0, v="b")], [record(1, 1, kind=3, v=None)]], merge_function(table), table)


def test_a_product_that_takes_back_zero_names_the_key():
    for data_type in (types.int_(), types.decimal(9, 2)):
        table = table_schema(
            {**COLUMNS, "s": data_type},
            options={"merge-engine": "aggregation", "fields.s.aggregate-function": "product"},
        )
        zero = decimal.Decimal("0.00") if data_type != types.int_() else 0
        with pytest.raises(InvalidRequest, match=r"key id = 1: column 's'.*zero.*fields\.s\.ignore-retract"):
            merged([[record(1, 0, s=zero)], [record(1, 1, kind=3, s=zero)]], merge_function(table), table)


def test_a_buffer_sorts_without_merging():
    batches = [to_batch([record(2, 0), record(1, 1)], TABLE), to_batch([record(2, 2, kind=3)], TABLE)]
    assert [(r.key[0], r.number) for r in to_records(list(sort_buffer(batches, SPEC)), TABLE)] == [
        (1, 1),
        (2, 0),
        (2, 2),
    ]


def test_a_buffer_in_order_without_repeats_is_not_copied():
    batch = to_batch([record(i, i) for i in range(5)], TABLE)
    (out,) = sort_and_merge_buffer([batch], SPEC)
    assert out.column("v").buffers()[2].address == batch.column("v").buffers()[2].address


def test_an_empty_buffer_has_no_pieces():
    empty = to_batch([], TABLE)
    assert list(sort_and_merge_buffer([empty], SPEC)) == list(sort_buffer([empty, empty], SPEC)) == []


@pytest.mark.parametrize("engine", ["deduplicate", "aggregation"])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_buffer_of_many_batches_comes_out_in_pieces(engine: str, in_order: bool):
    """Each has as many rows as were asked for, but the last."""
    spec = merge_function(table_schema(COLUMNS, options={"merge-engine": engine}))
    keys = list(range(11)) if in_order else [7, 3, 9, 1, 7, 10, 0, 2, 8, 6, 3, 5, 4]
    rows = [record(key, number, v=f"{key}/{number}", s=number) for number, key in enumerate(keys)]
    batches = [to_batch(rows[start : start + 3], TABLE) for start in range(0, len(rows), 3)]
    pieces = list(sort_and_merge_buffer(batches, spec, 4))
    assert [piece.num_rows for piece in pieces] == [4, 4, 3]
    assert to_records(pieces, TABLE) == sorted({r.key: r for r in rows}.values(), key=lambda r: r.key)
    assert [r.number for r in to_records(list(sort_buffer(batches, spec, 4)), TABLE)] == sorted(
        range(len(keys)), key=lambda number: (keys[number], number)
    )


def test_large_runs_merge_as_a_sort_would():
    rng = np.random.default_rng(3)
    runs = []
    for number in range(5):
        ids = np.unique(rng.integers(0, 30_000, 10_000)).astype(np.int32)
        runs.append(
            pa.RecordBatch.from_pydict(
                {
                    "_KEY_id": pa.array(ids),
                    "_SEQUENCE_NUMBER": pa.array(np.arange(len(ids)) + 100_000 * number),
                    "_VALUE_KIND": pa.array(np.zeros(len(ids), np.int8)),
                    "id": pa.array(ids),
                    "v": pa.array([f"{number}-{i}" for i in ids]),
                    "s": pa.array(ids * number),
                }
            )
        )
    latest = {}
    for run in runs:
        latest.update(zip(run["id"].to_pylist(), run["v"].to_pylist()))
    out = merge_runs([[run.slice(i, 997) for i in range(0, run.num_rows, 997)] for run in runs], SPEC)
    table = pa.Table.from_batches(list(out))
    assert table["id"].to_pylist() == sorted(latest)
    assert table["v"].to_pylist() == [latest[key] for key in sorted(latest)]
