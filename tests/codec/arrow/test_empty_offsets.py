"""Arrow data without the offsets of empty lists, as Java's Arrow writes it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from forebay.codec.arrow.empty_offsets import with_offsets
from forebay.codec.casting.batches import iter_record_batches
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from tests.codec.arrow.null_lists import one_null


@pytest.mark.parametrize(
    "t",
    [
        pa.string(),
        pa.list_(pa.string()),
        pa.list_(pa.list_(pa.int32())),
        pa.map_(pa.string(), pa.list_(pa.int32())),
        pa.struct([("a", pa.list_(pa.list_(pa.string())))]),
    ],
    ids=str,
)
def test_data_without_offsets_gets_them_and_keeps_its_values(t: pa.DataType) -> None:
    batch = with_offsets(one_null(t))
    batch.validate(full=True)
    assert batch.to_pylist() == [{"id": 7, "c": None}]
    assert 0 < batch.nbytes < 100  # the process would die, or give a number of chance
    assert with_offsets(batch) is batch


def test_whole_data_is_passed_on_as_it_is() -> None:
    batch = pa.record_batch({"id": [1, 2], "a": [[["x"], []], None], "m": [{"k": 1}, {}]})
    assert with_offsets(batch) is batch
    assert with_offsets(batch.slice(1, 0)).num_rows == 0


def test_what_users_bring_has_all_offsets_before_it_is_measured() -> None:
    schema = Schema([Column("id", types.bigint()), Column("c", types.array(types.array(types.string())))])
    [batch] = iter_record_batches(one_null(pa.list_(pa.string())), schema)
    assert batch.nbytes < 100
    assert batch.to_pylist() == [{"id": 7, "c": None}]
