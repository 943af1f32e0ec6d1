"""The bytes of a journal's objects: what is written is read, and damage is found wherever it is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, UnsupportedOperation
from forebay.metadata.table import TableBucket
from forebay.store.journal_format import (
    FOOTER_BYTES,
    Entry,
    EpochBegan,
    FileWritten,
    Identity,
    Index,
    LogCut,
    LogGrew,
    MetadataChanged,
    MetadataImage,
    Removed,
    decode_footer,
    decode_index,
    decode_payload,
    decode_statements,
    encode_object,
    encode_statements,
)

IDENTITY = Identity(b"s" * 16, 3, b"w" * 16, 41, 0xFFFFFFFF)

numbers = st.integers(0, 2**63 - 1)
buckets = st.builds(TableBucket, numbers, st.integers(0, 2**31 - 1), st.none() | numbers)
payloads = st.binary(max_size=200) | st.builds(lambda part: part * 500, st.binary(min_size=1, max_size=20))
entries = st.lists(
    st.one_of(
        st.tuples(st.builds(LogGrew, buckets, numbers, numbers), payloads),
        st.tuples(st.builds(MetadataImage, numbers), payloads),
        st.tuples(st.builds(MetadataChanged, numbers), payloads),
        st.tuples(st.builds(FileWritten, st.text(), numbers), payloads),
        st.tuples(st.builds(EpochBegan, st.text(), st.text()), st.none()),
        st.tuples(st.builds(LogCut, buckets, numbers), st.none()),
        st.tuples(st.builds(Removed, st.text()), st.none()),
    ),
    max_size=8,
)


def decoded(data: bytes) -> tuple[Identity, Index, list[tuple[Entry, bytes | None]]]:
    footer = decode_footer(data[-FOOTER_BYTES:], "it")
    start = footer.index_position
    index = decode_index(data[start : start + footer.index_stored_bytes], footer, "it")
    result: list[tuple[Entry, bytes | None]] = []
    for entry, payload in index.entries:
        plain = None
        if payload is not None:
            plain = decode_payload(data[payload.position : payload.position + payload.stored_bytes], payload, "it")
        result.append((entry, plain))
    return footer.identity, index, result


@given(entries)
def test_what_is_written_is_read(written: list[tuple[Entry, bytes | None]]) -> None:
    identity, index, read = decoded(encode_object(IDENTITY, 5, 9, written))
    assert identity == IDENTITY
    assert (index.first_ms, index.last_ms) == (5, 9)
    assert read == written


def test_a_payload_is_compressed_where_that_helps() -> None:
    random_bytes = random.Random(1).randbytes(100_000)
    plain = len(encode_object(IDENTITY, 0, 0, [(FileWritten("a", 0), random_bytes)]))
    assert 100_000 < plain < 100_400
    assert len(encode_object(IDENTITY, 0, 0, [(FileWritten("a", 0), b"row" * 100_000)])) < 1_000


@pytest.mark.parametrize("size", range(120))
def test_an_index_of_any_size_is_read(size: int) -> None:
    """Some are as long when they are compressed."""
    written: list[tuple[Entry, bytes | None]] = [(Removed(random.Random(size).randbytes(size).hex()), None)]
    assert decoded(encode_object(IDENTITY, 0, 0, written))[2] == written


def test_every_flipped_bit_is_found() -> None:
    written: list[tuple[Entry, bytes | None]] = [
        (LogGrew(TableBucket(1, 0), 0, 5), b"batches " * 40),
        (MetadataChanged(7), encode_statements([("DELETE FROM t WHERE id = ?", [5])])),
    ]
    data = encode_object(IDENTITY, 0, 0, written)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CorruptData, match=r"\bit\b"):
            decoded(bytes(damaged))


def test_an_object_that_is_cut_off_is_damaged() -> None:
    data = encode_object(IDENTITY, 0, 0, [(LogGrew(TableBucket(1, 0), 0, 5), b"batches")])
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            decoded(data[:size])


def test_a_kind_of_a_newer_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.store.journal_format._document", lambda _: {"kind": "teleported"})
    data = encode_object(IDENTITY, 0, 0, [(Removed("a"), None)])
    with pytest.raises(UnsupportedOperation, match="an entry of the kind 'teleported'"):
        decoded(data)


@given(
    st.lists(
        st.tuples(st.text(), st.lists(st.text() | st.integers(-(2**63), 2**63 - 1) | st.binary() | st.none())),
        max_size=5,
    )
)
def test_statements_keep_their_parameters(statements: list[tuple[str, list[object]]]) -> None:
    assert decode_statements(encode_statements(statements)) == statements


def test_a_parameter_that_cannot_be_kept_is_a_bug_that_shows() -> None:
    with pytest.raises(TypeError, match="which a journal cannot keep"):
        encode_statements([("INSERT INTO t VALUES (?)", [object()])])


@pytest.mark.parametrize("data", [b"", b"[1]", b"[[1]]", b'[["a", [{"base64": "*"}]]]', b'[["a", [{}]]]', b"\xff"])
def test_statements_that_cannot_be_read_are_damaged(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_statements(data)
