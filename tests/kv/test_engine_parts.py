"""Parts shared by all engines: the bytes of their state, sizes of writes, bounded lists of values, failures."""

from __future__ import annotations

import errno

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import ErrorCode, StorageFailure
from forebay.fs.interface import DiskFull
from forebay.kv.buffered_writes import LARGE_VALUE_BYTES, WriteSize, size_of
from forebay.kv.engine import EngineState
from forebay.kv.lmdb.lmdb_engine import _failure
from forebay.kv.value_pages import just_longer_than

numbers = st.integers(-(2**63), 2**63 - 1)


@given(numbers, numbers, numbers, numbers, st.none() | st.integers(0, 2**64 - 1))
def test_a_state_is_read_back_and_nothing_else_is_taken_for_one(
    applied: int, rows: int, first: int, last: int, digest: int | None
) -> None:
    state = EngineState(applied, rows, first, last, digest)
    data = state.to_bytes()
    assert EngineState.from_bytes(data) == state
    version = {33: 1, 41: 2}[len(data)]
    assert data[0] == version
    for wrong in (b"", data[:-1], data + b"\0", bytes([3 - version]) + data[1:], bytes([3]) + data[1:]):
        with pytest.raises(ValueError, match="is not the state of a key-value engine"):
            EngineState.from_bytes(wrong)


def test_the_size_of_writes_counts_deletes_and_large_values_apart() -> None:
    assert size_of({}) == WriteSize()
    large = LARGE_VALUE_BYTES
    writes = {b"a": bytes(10), b"bb": None, b"ccc": bytes(large), b"d": bytes(large - 1), b"eeeee": b""}
    size = size_of(writes)
    assert size == WriteSize(5, 1, 12 + 10 + large + large - 1, large, 1, large, 5)
    assert size_of({b"a": b"1"}) + size == WriteSize(6, 1, 2 + size.total_bytes, large, 1, large, 5)
    assert size_of({b"a": bytes(7)}) == WriteSize(1, 0, 8, 8, 0, 0, 1)


@pytest.mark.parametrize(("bytes_max", "count"), [(0, 1), (3, 2), (4, 2), (5, 2), (6, 3), (100, 3)])
def test_values_end_behind_the_first_that_is_too_much(bytes_max: int, count: int) -> None:
    assert len(just_longer_than(bytes_max, [b"123", b"456", b"789"])) == count


def test_a_full_disk_is_distinguished_from_other_failures_of_lmdb() -> None:
    full = lmdb.Error("write")
    full.code = errno.ENOSPC
    other = lmdb.Error("write")
    other.code = errno.EIO
    for error in (full, lmdb.DiskError("no space")):
        failure = _failure("cannot write", error)
        assert isinstance(failure, DiskFull)
        assert "free space on this disk" in failure.message
    for error in (other, lmdb.CorruptedError("page"), OSError(errno.EIO, "bad")):
        failure = _failure("cannot write", error)
        assert type(failure) is StorageFailure
        assert failure.code == ErrorCode.KV_STORAGE_EXCEPTION
