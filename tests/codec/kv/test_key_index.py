"""The index of newest rows against a dict."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.codec.kv.key_index import KeyIndex
from tests.every_run import examples

_keys = st.lists(st.lists(st.binary(max_size=20) | st.sampled_from([b"", b"\0", b"\0\0", b"a" * 8]), max_size=30))


@settings(max_examples=examples(200), deadline=None)
@given(batches=_keys, asked=st.lists(st.binary(max_size=20), max_size=20))
def test_the_index_knows_the_newest_row_of_each_key_as_a_dict_does(
    batches: list[list[bytes]], asked: list[bytes]
) -> None:
    index, model, row = KeyIndex(), dict[bytes, int](), 0
    for batch in batches:
        index.add(pa.array(batch, pa.binary()))
        for key in batch:
            model[key] = row
            row += 1
    assert len(index) == len(model)
    assert index.newest_rows().tolist() == sorted(model.values())
    every = [*asked, *model]
    assert index.contains(pa.array(every, pa.binary())).to_pylist() == [key in model for key in every]


def test_slices_of_arrays_count_from_their_own_first_value() -> None:
    keys = pa.array([b"one", b"two", b"three", b"four"], pa.binary())
    index = KeyIndex()
    index.add(keys.slice(1, 2))
    assert index.contains(keys).to_pylist() == [False, True, True, False]
    assert index.contains(keys.slice(2)).to_pylist() == [True, False]
    assert index.newest_rows().tolist() == [0, 1]


def test_the_index_grows_past_every_first_size() -> None:
    count = 100_000
    keys = pa.array([b"key-%d" % i for i in range(count)], pa.binary())
    index = KeyIndex()
    index.add(keys)
    index.add(keys.slice(0, 10))
    assert len(index) == count
    assert index.newest_rows().tolist() == [*range(10, count), *range(count, count + 10)]
    assert index.contains(keys).true_count == count
    assert index.contains(pa.array([b"key-100000", b"key--1"], pa.binary())).true_count == 0
    assert index.nbytes < 40 * count + 24 * count + 32 * count
