"""Requests of real clients, both ways: our server understands them, and our client sends the same bytes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import ErrorCode
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import APIS, ApiKey
from forebay.protocol.connection import RequestReceived, ServerConnection
from forebay.protocol.frames import encode_request
from forebay.protocol.messages import Message, serialize
from tests.protocol.golden_frames import GOLDEN, golden_frames
from tests.protocol.pairs import EVERYTHING, deliver, deliver_one

FLUSS_L = pb.PbTablePath(database_name="fluss", table_name="l")
CAPTURED: list[tuple[str, int, int, Message]] = [
    (
        "0000001b 03e8 0000 00000000 0a0a 666c7573732d72757374 1205 312e302e30",
        0,
        0,
        pb.ApiVersionsRequest(client_software_name="fluss-rust", client_software_version="1.0.0"),
    ),
    ("00000008 03f4 0000 00000001", 1, 0, pb.MetadataRequest()),
    ("00000014 03f4 0000 00000001 0a0a 0a05 666c757373 1201 6c", 1, 0, pb.MetadataRequest(table_path=[FLUSS_L])),
    ("00000014 0402 0000 00000002 0a0a 0a05 666c757373 1201 6c", 2, 0, pb.InitWriterRequest(table_path=[FLUSS_L])),
    (
        "00000011 03f9 0001 00000006 08 02 12 05 1000 1a01 07",
        6,
        1,
        pb.LookupRequest(table_id=2, buckets_req=[pb.PbLookupReqForBucket(bucket_id=0, keys=[b"\x07"])]),
    ),
]
"""Frames of the reference's appendix D: hex, request id, version, message."""


def key_of(message: Message) -> ApiKey:
    return next(api.key for api in APIS.values() if api.request is type(message))


@pytest.mark.parametrize(("text", "request_id", "version", "message"), CAPTURED)
def test_captured_frames_are_understood_and_reproduced(
    text: str, request_id: int, version: int, message: Message
) -> None:
    frame = bytes.fromhex(text)
    event = deliver_one([frame], ServerConnection(EVERYTHING))
    assert isinstance(event, RequestReceived)
    assert (event.request_id, event.api_version, event.api.key) == (request_id, version, key_of(message))
    assert event.parse(type(message)) == message
    assert b"".join(encode_request(key_of(message), version, request_id, serialize(message))) == frame


@pytest.mark.parametrize(
    ("start", "message", "version", "request_id", "size"),
    [
        (
            "00000291 03f6 0000 00000003 08 ffffffffffffffffff01 10 01 18 b0ea01 22 f504 1000 1a f004",
            pb.ProduceLogRequest(acks=-1, table_id=1, timeout_ms=30_000),
            0,
            3,
            624,
        ),
        (
            "000000e8 03f8 0002 00000005 08 ffffffffffffffffff01 10 02 18 b0ea01 2a cc01 1000 1a c701",
            pb.PutKvRequest(acks=-1, table_id=2, timeout_ms=30_000),
            2,
            5,
            199,
        ),
    ],
)
def test_captured_writes_begin_as_ours_do(
    start: str, message: pb.ProduceLogRequest | pb.PutKvRequest, version: int, request_id: int, size: int
) -> None:
    request = type(message)()
    request.CopyFrom(message)
    request.buckets_req.add(bucket_id=0, records=b"")
    body = serialize(request, [bytes(size)])
    frame = b"".join(encode_request(key_of(request), version, request_id, body))
    assert frame == bytes.fromhex(start) + bytes(size)


@pytest.mark.parametrize(("name", "frame"), golden_frames())
def test_recorded_frames_of_pyfluss_are_understood_and_reproduced(name: str, frame: bytes) -> None:
    event = deliver_one([frame], ServerConnection(EVERYTHING))
    assert isinstance(event, RequestReceived)
    assert event.api.key.name.lower() == name
    message, payloads = event.parse_split(event.api.request)
    assert b"".join(serialize(message, payloads)) == frame[12:]
    whole = event.parse(event.api.request)
    assert b"".join(encode_request(event.api.key, event.api_version, event.request_id, serialize(whole))) == frame


def test_pyfluss_negotiates_the_newest_versions_that_we_offer() -> None:
    versions = {name: frame[7] for name, frame in golden_frames()}
    newest = {name for name, version in versions.items() if version}
    assert newest == {"produce_log", "put_kv", "lookup", "prefix_lookup"}
    for name in newest:
        assert versions[name] == APIS[ApiKey[name.upper()]].server_versions.max


@given(st.permutations([frame for _, frame in golden_frames()]), st.lists(st.integers(1, 700), min_size=1, max_size=9))
def test_recorded_frames_are_understood_in_any_order_and_cut_anywhere(frames: list[bytes], cuts: list[int]) -> None:
    server = ServerConnection(EVERYTHING)
    stream = b"".join(frame[:8] + number.to_bytes(4, "big") + frame[12:] for number, frame in enumerate(frames))
    events, at, turn = [], 0, 0
    while at < len(stream):
        events += deliver([stream[at : at + cuts[turn % len(cuts)]]], server)
        at += cuts[turn % len(cuts)]
        turn += 1
    assert [event.request_id for event in events] == list(range(len(frames)))  # type: ignore[union-attr]
    assert [event.body for event in events] == [frame[12:] for frame in frames]  # type: ignore[union-attr]


def test_the_worked_example_of_the_documentation_is_what_both_sides_send() -> None:
    text = (
        (GOLDEN.parents[2] / "docs" / "format" / "frame.md").read_text().split("## Worked example")[1].split("```")[1]
    )
    columns = [re.match(r"\s*([0-9a-f]+(?: [0-9a-f]+)?)", line) for line in text.splitlines()]
    request, answer = (
        bytes.fromhex("".join(part[1] for part in columns[begin:end] if part)) for begin, end in ((0, 8), (8, None))
    )
    server = ServerConnection(EVERYTHING)
    event = deliver_one([request], server)
    assert isinstance(event, RequestReceived)
    assert event.parse(pb.MetadataRequest) == pb.MetadataRequest(table_path=[FLUSS_L])
    assert b"".join(server.send_error(1, ErrorCode.TABLE_NOT_EXIST, "no such table")) == answer
