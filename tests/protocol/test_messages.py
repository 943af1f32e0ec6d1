"""Bodies: incomplete messages are rejected, and payloads bypass protobuf without a difference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, ErrorCode, InternalError, LimitExceeded
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol import messages
from forebay.protocol.api import APIS
from forebay.protocol.messages import (
    Message,
    check_entries,
    entries_of,
    parse,
    parse_split,
    sendable_text,
    serialize,
)

MESSAGE_CLASSES = [cls for api in APIS.values() for cls in (api.request, api.response)]
WITH_PAYLOADS = [
    pb.ProduceLogRequest,
    pb.PutKvRequest,
    pb.FetchLogResponse,
    pb.LimitScanResponse,
    pb.ScanKvResponse,
]


@pytest.fixture
def split_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for payloads in small bodies too, and however small the payloads are."""
    monkeypatch.setattr(messages, "PAYLOAD_SPLIT_MIN", 0)
    monkeypatch.setattr(messages, "_SAMPLE_BYTES_PER_LEAF", 0)


def texts_in(message: Any) -> list[Any]:
    """All values of string fields, found without the code under test."""
    found = []
    for field, value in message.ListFields():
        values = [value] if isinstance(value, str | bytes | Message) or not hasattr(value, "__len__") else list(value)
        if field.type == field.TYPE_STRING:
            found += values
        elif field.message_type is not None:
            for child in values:
                found += texts_in(child)
    return found


@given(message_class=st.sampled_from(MESSAGE_CLASSES), body=st.binary(max_size=60))
def test_random_bytes_are_a_whole_message_or_corrupt_data(message_class: type[Message], body: bytes) -> None:
    try:
        message = parse(message_class, body)
    except CorruptData as refused:
        error = refused
    else:
        assert message.IsInitialized()
        assert all(isinstance(text, str) for text in texts_in(message))
        return
    assert (error.code, message_class.__name__ in str(error)) == (ErrorCode.CORRUPT_MESSAGE, True)


@pytest.mark.parametrize(
    ("message_class", "body", "what"),
    [
        (pb.GetTableInfoRequest, "", "lacks required fields: table_path"),
        (pb.GetTableInfoRequest, "0a03 0a01 61", "lacks required fields: table_path.table_name"),
        (pb.GetTableInfoRequest, "0a06 0a01 61 1201", "not valid protobuf"),
        (pb.GetTableInfoRequest, "0a06 0a01 ff 1201 61", "text 'table_path.database_name'|not valid protobuf"),
        (pb.ListDatabasesResponse, "0a01 61 0a01 ff", "text 'database_name'|not valid protobuf"),
        (
            pb.MetadataRequest,
            "0a06 0a01 61 1201 61 0a06 0a01 61 1201 ff",
            "text 'table_path.table_name'|not valid protobuf",
        ),
    ],
)
def test_a_broken_body_is_refused_with_the_reason(message_class: type[Message], body: str, what: str) -> None:
    with pytest.raises(CorruptData, match=what):
        parse(message_class, bytes.fromhex(body))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bodies_may_be_any_kind_of_bytes(kind: type) -> None:
    message = pb.GetTableInfoRequest(table_path=pb.PbTablePath(database_name="d\u00e9", table_name="t"))
    assert parse(pb.GetTableInfoRequest, kind(message.SerializeToString())) == message


def test_fields_that_are_not_known_are_skipped() -> None:
    assert parse(pb.DatabaseExistsResponse, bytes.fromhex("0801 fa01 0161")).exists is True


payload = st.binary(max_size=40)
partition = st.none() | st.integers(0, 2**63 - 1)


@st.composite
def skeletons(draw: st.DrawFn) -> tuple[Message, list[bytes]]:
    """A message of a class with payloads, its `records` fields empty, and the payloads for them."""
    count = draw(st.integers(0, 5))
    partitions = draw(st.lists(partition, min_size=count, max_size=count))
    present = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    kind = draw(st.sampled_from(WITH_PAYLOADS))
    message: Any
    if kind is pb.ProduceLogRequest or kind is pb.PutKvRequest:
        message = kind(acks=-1, table_id=draw(st.integers(0, 2**63 - 1)), timeout_ms=30_000)
        for bucket_id, partition_id in enumerate(partitions):
            name = draw(st.none() | st.text(max_size=5))
            message.buckets_req.add(
                partition_id=partition_id, bucket_id=bucket_id, records=b"", original_partition_name=name
            )
        return message, draw(st.lists(payload, min_size=count, max_size=count))
    if kind is pb.FetchLogResponse:
        message = pb.FetchLogResponse(tables_resp=[pb.PbFetchLogRespForTable(table_id=t) for t in (1, 2)])
        for bucket_id, (partition_id, has_records) in enumerate(zip(partitions, present)):
            bucket = message.tables_resp[bucket_id % 2].buckets_resp.add(
                partition_id=partition_id, bucket_id=bucket_id, high_watermark=5, filtered_end_offset=-1
            )
            if has_records:
                bucket.records = b""
        return message, draw(st.lists(payload, min_size=sum(present), max_size=sum(present)))
    message = kind(error_code=0, error_message=draw(st.text(max_size=5)))
    if draw(st.booleans()):
        message.records = b""
        return message, [draw(payload)]
    return message, []


def fill(message: Any, payloads: list[bytes]) -> Message:
    """A copy of `message` with the payloads set by protobuf."""
    full = type(message)()
    full.CopyFrom(message)
    remaining = list(payloads)
    leaves = {
        pb.FetchLogResponse: lambda m: [b for t in m.tables_resp for b in t.buckets_resp],
        pb.ProduceLogRequest: lambda m: m.buckets_req,
        pb.PutKvRequest: lambda m: m.buckets_req,
    }.get(type(message), lambda m: [m])
    for leaf in leaves(full):
        if leaf.HasField("records"):
            leaf.records = remaining.pop(0)
    return full


@pytest.mark.usefixtures("split_always")
@given(skeletons())
def test_payloads_put_in_by_hand_and_cut_out_by_hand_are_what_protobuf_makes_of_them(
    drawn: tuple[Message, list[bytes]],
) -> None:
    message, payloads = drawn
    full = fill(message, payloads)
    body = b"".join(serialize(message, payloads))
    assert parse(type(message), body) == full
    assert parse_split(type(message), body) == (message, payloads)
    assert parse_split(type(message), bytearray(full.SerializeToString())) == (message, payloads)


@pytest.mark.usefixtures("split_always")
@given(skeletons(), st.data())
def test_a_damaged_body_is_split_as_protobuf_reads_it_or_refused_as_protobuf_refuses_it(
    drawn: tuple[Message, list[bytes]], data: st.DataObject
) -> None:
    message, payloads = drawn
    body = bytearray(fill(message, payloads).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        expected = parse(type(message), bytes(body))
    except CorruptData:
        with pytest.raises(CorruptData):
            parse_split(type(message), body)
    else:
        skeleton, found = parse_split(type(message), body)
        assert fill(skeleton, [bytes(view) for view in found]) == expected


def test_of_two_records_fields_in_one_place_the_last_counts_as_protobuf_has_it() -> None:
    once = pb.PbPutKvReqForBucket(bucket_id=0, records=b"a" * 50_000).SerializeToString()
    again = pb.PbPutKvReqForBucket(bucket_id=0, records=b"b" * 50_000).SerializeToString()
    bucket = once + again
    head = pb.PutKvRequest(acks=-1, table_id=1, timeout_ms=1).SerializeToString()
    body = head + b"\x2a" + (len(bucket) & 0x7F | 0x80).to_bytes(1) + (len(bucket) >> 7 & 0x7F | 0x80).to_bytes(1)
    body += (len(bucket) >> 14).to_bytes(1) + bucket
    message, payloads = parse_split(pb.PutKvRequest, body)
    assert len(message.buckets_req) == 1
    assert payloads == [b"b" * 50_000]


def test_large_payloads_are_views_of_the_body() -> None:
    message = pb.PutKvRequest(acks=-1, table_id=1, timeout_ms=1)
    message.buckets_req.add(bucket_id=0, records=b"")
    large = bytes(range(256)) * 1000
    parts = serialize(message, [large])
    assert any(part is large for part in parts)
    body = bytearray(b"".join(parts))
    _, (view,) = parse_split(pb.PutKvRequest, body)
    assert view == large
    assert view.obj is body


def test_payloads_are_looked_for_in_bodies_from_a_size_on_and_while_they_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = pb.PutKvRequest(acks=-1, table_id=1, timeout_ms=1)
    for bucket_id in range(5):
        message.buckets_req.add(bucket_id=bucket_id, records=bytes(100))
    body = message.SerializeToString()
    first_four = len(body) - message.buckets_req[4].ByteSize() - 2  # a tag and a length of one byte

    def are_views() -> bool:
        _, payloads = parse_split(pb.PutKvRequest, body)
        assert payloads == [bytes(100)] * 5
        (is_view,) = {payload.obj is body for payload in payloads}
        return is_view

    monkeypatch.setattr(messages, "_SAMPLE_BYTES_PER_LEAF", 0)
    for least, views in ((len(body), True), (len(body) + 1, False)):
        monkeypatch.setattr(messages, "PAYLOAD_SPLIT_MIN", least)
        assert are_views() is views
    monkeypatch.setattr(messages, "PAYLOAD_SPLIT_MIN", 0)
    monkeypatch.setattr(messages, "_SAMPLE_LEAVES", 4)
    for per_leaf, views in ((first_four / 4, True), ((first_four + 1) / 4, False)):
        monkeypatch.setattr(messages, "_SAMPLE_BYTES_PER_LEAF", per_leaf)
        assert are_views() is views


def test_small_parts_are_sent_together_and_large_ones_as_they_are() -> None:
    message = pb.PutKvRequest(acks=-1, table_id=1, timeout_ms=1)
    for bucket_id in range(4):
        message.buckets_req.add(bucket_id=bucket_id, records=b"")
    payloads = [bytes(1023), bytes(1023), bytes(1024), bytes(1)]
    parts = serialize(message, payloads)
    assert [part is payloads[2] for part in parts] == [False, True, False]
    assert parse_split(pb.PutKvRequest, b"".join(parts))[1] == payloads
    assert len(serialize(message, [b"x"] * 4)) == 1


def test_many_small_payloads_are_left_to_protobuf() -> None:
    message = pb.PutKvRequest(acks=-1, table_id=1, timeout_ms=1)
    for bucket_id in range(1000):
        message.buckets_req.add(bucket_id=bucket_id, records=b"%050d" % bucket_id)
    skeleton, payloads = parse_split(pb.PutKvRequest, message.SerializeToString())
    assert payloads == [b"%050d" % bucket_id for bucket_id in range(1000)]
    assert all(bucket.records == b"" for bucket in skeleton.buckets_req)


def test_messages_without_payloads_come_whole() -> None:
    message = pb.InitWriterResponse(writer_id=2**62)
    assert parse_split(pb.InitWriterResponse, message.SerializeToString()) == (message, [])


@pytest.mark.parametrize("payloads", [[b"a"], [b"a", b"b", b"c"]])
def test_payloads_must_match_the_empty_fields(payloads: list[bytes]) -> None:
    message = pb.PutKvRequest(acks=-1, table_id=1, timeout_ms=1)
    message.buckets_req.add(bucket_id=0, records=b"")
    message.buckets_req.add(bucket_id=1, records=b"")
    with pytest.raises(InternalError):
        serialize(message, payloads)


def test_a_field_that_is_full_already_takes_no_payload() -> None:
    message = pb.ScanKvResponse(records=b"full")
    with pytest.raises(InternalError):
        serialize(message, [b"more"])


def test_an_incomplete_message_is_our_own_bug() -> None:
    with pytest.raises(InternalError, match="table_name"):
        serialize(pb.PbTablePath(database_name="d"))


def test_error_texts_are_made_sendable() -> None:
    assert sendable_text("caf\u00e9") == "caf\u00e9"
    assert sendable_text("a\ud800b") == "a?b"
    assert len(sendable_text("x" * 10_000)) == 2048


VARINT, LONG_VARINT, FIXED64, FIXED32 = b"\x78\x05", b"\x78\xff\xff\x01", b"\x79" + b"\xff" * 8, b"\x7d" + b"\xff" * 4
BUCKET, LIST_OF_THREE = b"\x2a\x03\x0a\x01x", b"\x7a\x03\x01\x02\x03"
PACKED, UNPACKED, GROUP = b"\x1a\x04\x01\x80\x01\x02", b"\x18\x05", b"\x7b\x0a\x00\x7c"


@pytest.mark.parametrize(
    ("message_class", "fields", "count"),
    [
        (pb.MetadataRequest, [b"\x0a\x00"] * 3, 3),
        (pb.MetadataRequest, [PACKED], 3),
        (pb.MetadataRequest, [UNPACKED] * 4, 4),
        (pb.MetadataRequest, [b"\x0a\x04\x0a\x02ab\x12\x00" * 2], 4),
        (pb.MetadataRequest, [b"\x08\x01", b"\x09" + bytes(8)], 2),  # a path has to be a message
        (pb.LookupRequest, [b"\x08\x01"], 0),
        (pb.LookupRequest, [b"\x08\x01" * 9], 8),  # each replaces the one before
        (pb.PbTablePath, [b"\x0a\x01x" * 3, b"\x12\x01x"], 2),
        (pb.ProduceLogRequest, [b"\x22\x04" + b"\x10\x01" * 2] * 3, 6),
        (pb.LookupRequest, [b"\x12\x06" + b"\x1a\x00" * 3] * 2, 8),  # buckets and keys
        (pb.ProduceLogRequest, [VARINT, LONG_VARINT, FIXED64, FIXED32, LIST_OF_THREE], 5),  # none is known
        (pb.ProduceLogRequest, [GROUP], 2),
        (pb.MetadataRequest, [b"\x0a\x00", b"\x0a\x09"], 1),  # cut off
        (pb.MetadataRequest, [b"\x0a\x00", b"\xff" * 11, b"\x0a\x00"], 1),
        (pb.MetadataRequest, [], 0),
    ],
)
def test_the_entries_of_a_request_are_counted_before_it_is_parsed(
    message_class: type[Any], fields: list[bytes], count: int
) -> None:
    body = b"".join(fields)
    assert entries_of(message_class, body, 1000) == count
    if count:
        assert entries_of(message_class, body, count - 1) >= count


@pytest.mark.parametrize("name", sorted(pb.DESCRIPTOR.message_types_by_name))
def test_no_list_of_a_message_escapes_the_count(name: str) -> None:
    """Each repeated field of every message, as protobuf itself encodes it."""
    message_class = getattr(pb, name)
    for field in message_class.DESCRIPTOR.fields:
        message = message_class()
        elements = getattr(message, field.name)
        if not hasattr(elements, "append"):
            continue
        for _ in range(3):
            if field.message_type is not None:
                elements.add()
            elif field.type == field.TYPE_STRING:
                elements.append("x")
            elif field.type == field.TYPE_BYTES:
                elements.append(b"x")
            else:
                elements.append(1)
        assert entries_of(message_class, message.SerializePartialToString(), 100) == 3, field.name


def test_no_message_has_two_fields_that_the_count_takes_for_one() -> None:
    """Whether a single value is there again is remembered in 64 bits, by the field's number."""
    for name, message in pb.DESCRIPTOR.message_types_by_name.items():
        assert len({field.number % 64 for field in message.fields}) == len(message.fields), name


def test_a_number_without_an_end_is_not_walked_through() -> None:
    body = memoryview(b"\x08" + b"\x80" * messages.PAYLOAD_SPLIT_MIN)
    with pytest.raises(messages._Unusual):
        messages._next_delimited(body, 0, len(body), 42)
    assert messages._behind_varint(memoryview(b"\x80" * 9 + b"\x01"), 0, 10) == 10
    with pytest.raises(CorruptData):
        parse_split(pb.PutKvRequest, body)


def test_messages_within_messages_are_counted_as_deep_as_protobuf_reads_them() -> None:
    message = pb.PbPredicate(type=1)
    for _ in range(30):
        message = pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=0, children=[message]))
    assert entries_of(pb.PbPredicate, message.SerializeToString(), 1000) == 60


def test_a_request_of_too_many_entries_is_refused_with_their_number() -> None:
    check_entries(pb.ProduceLogRequest, BUCKET * 3, 3, 3)
    with pytest.raises(LimitExceeded, match="ProduceLogRequest of 15 bytes has more than 2 entries") as raised:
        check_entries(pb.ProduceLogRequest, BUCKET * 3, 3, 2)
    assert raised.value.code == ErrorCode.BUCKET_MAX_NUM_EXCEPTION


def test_fields_that_a_long_list_lacks_are_not_named_one_by_one() -> None:
    with pytest.raises(CorruptData, match=r"table_path\[1\]\.database_name") as short:
        parse(pb.MetadataRequest, b"\x0a\x00" * 1024)
    with pytest.raises(CorruptData, match="lacks required fields: in its many entries"):
        parse(pb.MetadataRequest, b"\x0a\x00" * 1025)
    assert len(short.value.message) < 2200


@pytest.mark.parametrize(
    "text",
    [
        b"\x80", b"\xc1\x81", b"\xc3", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xef\xbf", b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xe2\x28\xa1",
        "\x00\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff".encode(),
    ],
)  # fmt: skip
def test_texts_are_utf_8_as_python_understands_it(text: bytes) -> None:
    body = b"\x0a" + bytes([len(text)]) + text + b"\x12\x01t"
    try:
        text.decode()
    except UnicodeDecodeError:
        with pytest.raises(CorruptData, match="text 'database_name'"):
            parse(pb.PbTablePath, body)
    else:
        assert parse(pb.PbTablePath, body).database_name == text.decode()


@pytest.mark.usefixtures("split_always")
def test_payloads_are_found_between_fields_that_are_not_known() -> None:
    message = pb.PutKvRequest(acks=-1, table_id=1, timeout_ms=1)
    message.buckets_req.add(bucket_id=0, records=bytes(100))
    for before in (FIXED64, FIXED32, LONG_VARINT, LIST_OF_THREE, FIXED32 + FIXED64 + VARINT):
        body = before + message.SerializeToString() + before
        found, (payload,) = parse_split(pb.PutKvRequest, body)
        assert (payload, payload.obj is body, found.buckets_req[0].bucket_id) == (bytes(100), True, 0)
