"""Both ends of a connection: the events, what is bound to one request and what ends the stream."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.base.errors import (
    AccessDenied,
    CorruptData,
    ErrorCode,
    InternalError,
    NotFound,
    Unavailable,
    UnsupportedOperation,
)
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerRole, offered
from forebay.protocol.connection import (
    ClientConnection,
    ConnectionClosed,
    ProtocolViolation,
    RequestReceived,
    RequestRejected,
    ResponseReceived,
    ServerConnection,
    ServerFailed,
    State,
    StrayResponse,
)
from forebay.protocol.frames import FrameType, encode_request, encode_response
from tests.protocol.pairs import EVERYTHING, deliver, deliver_one, events_of, ready_pair

EXISTS = pb.DatabaseExistsRequest(database_name="shop")


def exists_request(request_id: int = 0, api_key: int = ApiKey.DATABASE_EXISTS, version: int = 0) -> bytes:
    return b"".join(encode_request(api_key, version, request_id, [EXISTS.SerializeToString()]))


# --- requests and answers --------------------------------------------------------------------------------------


def test_a_request_reaches_the_server_and_its_answer_the_client() -> None:
    client, server = ready_pair()
    sent = client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)
    request = deliver_one(sent.buffers, server)
    assert isinstance(request, RequestReceived)
    assert (request.request_id, request.api.key, request.api_version) == (sent.request_id, ApiKey.DATABASE_EXISTS, 0)
    assert request.parse(pb.DatabaseExistsRequest) == EXISTS
    answer = server.send_response(request.request_id, pb.DatabaseExistsResponse(exists=True))
    response = deliver_one(answer, client)
    assert isinstance(response, ResponseReceived)
    assert (response.request_id, response.api.key, response.error) == (sent.request_id, ApiKey.DATABASE_EXISTS, None)
    assert response.parse(pb.DatabaseExistsResponse).exists is True
    assert not client.in_flight
    assert server.open_requests == 0


def test_answers_may_come_in_any_order() -> None:
    client, server = ready_pair()
    first, second = (client.send_request(ApiKey.DATABASE_EXISTS, EXISTS) for _ in range(2))
    assert len(deliver(first.buffers + second.buffers, server)) == 2
    answers = server.send_response(second.request_id, pb.DatabaseExistsResponse(exists=True))
    answers += server.send_error(first.request_id, ErrorCode.DATABASE_NOT_EXIST, "gone")
    assert [event.request_id for event in deliver(answers, client)] == [second.request_id, first.request_id]  # type: ignore[union-attr]


def test_an_error_answer_raises_the_servers_error() -> None:
    client, server = ready_pair()
    sent = client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)
    deliver(sent.buffers, server)
    response = deliver_one(server.send_error(sent.request_id, ErrorCode.TABLE_NOT_EXIST, "no table caf\u00e9"), client)
    assert isinstance(response, ResponseReceived)
    with pytest.raises(NotFound, match="no table caf\u00e9") as raised:
        response.parse(pb.DatabaseExistsResponse)
    assert raised.value.code == ErrorCode.TABLE_NOT_EXIST
    with pytest.raises(NotFound, match="no table"):
        response.parse_split(pb.DatabaseExistsResponse)
    with pytest.raises(InternalError, match="DATABASE_EXISTS is not answered by TableExistsResponse"):
        response.parse_split(pb.TableExistsResponse)


def test_payloads_travel_without_a_copy_through_protobuf() -> None:
    client, server = ready_pair()
    request = pb.ProduceLogRequest(acks=-1, table_id=1, timeout_ms=1)
    request.buckets_req.add(bucket_id=3, records=b"")
    records = bytes(range(256)) * 4000
    sent = client.send_request(ApiKey.PRODUCE_LOG, request, [records])
    assert any(buffer is records for buffer in sent.buffers)
    event = deliver_one(sent.buffers, server)
    assert isinstance(event, RequestReceived)
    assert event.api_version == 1
    message, (payload,) = event.parse_split(pb.ProduceLogRequest)
    assert (message.buckets_req[0].bucket_id, payload) == (3, records)


def test_a_malformed_body_is_an_error_of_that_request_and_the_connection_survives() -> None:
    client, server = ready_pair()
    broken, good = deliver([*encode_request(ApiKey.DATABASE_EXISTS, 0, 40, [b"\xff\xff"]), exists_request(41)], server)
    assert isinstance(broken, RequestReceived)
    with pytest.raises(CorruptData) as raised:
        broken.parse(pb.DatabaseExistsRequest)
    assert raised.value.code == ErrorCode.CORRUPT_MESSAGE
    assert server.send_error(40, raised.value.code, raised.value.message)
    assert isinstance(good, RequestReceived)
    assert good.parse(pb.DatabaseExistsRequest) == EXISTS
    sent = client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)
    response = deliver_one(encode_response(FrameType.SUCCESS, sent.request_id, [b"\xff"]), client)
    assert isinstance(response, ResponseReceived)
    with pytest.raises(CorruptData):
        response.parse(pb.DatabaseExistsResponse)
    assert client.state is State.READY


def test_an_error_answer_that_cannot_be_read_is_still_an_error() -> None:
    client, _ = ready_pair()
    sent = client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)
    response = deliver_one(encode_response(FrameType.ERROR, sent.request_id, [b"\xff"]), client)
    assert isinstance(response, ResponseReceived)
    assert isinstance(response.error, CorruptData)


# --- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api_key", "version", "reason"),
    [
        (1, 0, "API 1"),
        (9999, 0, "API 9999"),
        (-1, 0, "API -1"),
        (ApiKey.PUT_KV, 0, r"PUT_KV \(1016\)"),
        (ApiKey.DATABASE_EXISTS, 1, r"versions 0\.\.0 of DATABASE_EXISTS, not 1"),
        (ApiKey.DATABASE_EXISTS, -1, "not -1"),
    ],
)
def test_an_api_that_is_not_offered_is_refused_with_error_2_and_the_connection_survives(
    api_key: int, version: int, reason: str
) -> None:
    server = ServerConnection(offered({ApiKey.DATABASE_EXISTS, ApiKey.PUT_KV}, ServerRole.COORDINATOR))
    rejected, received = deliver([exists_request(5, api_key, version), exists_request(6)], server)
    assert isinstance(rejected, RequestRejected)
    assert (rejected.request_id, rejected.api_key, rejected.api_version) == (5, api_key, version)
    assert isinstance(rejected.error, UnsupportedOperation)
    assert rejected.error.code == ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(UnsupportedOperation, match=reason):
        raise rejected.error
    assert isinstance(received, RequestReceived)
    assert server.send_error(5, rejected.error.code, rejected.error.message)


def test_api_versions_is_answered_in_whatever_version_it_is_asked() -> None:
    server = ServerConnection(EVERYTHING)
    body = pb.ApiVersionsRequest(client_software_name="future", client_software_version="9").SerializeToString()
    assert isinstance(deliver_one(encode_request(ApiKey.API_VERSIONS, 7, 0, [body]), server), RequestReceived)


def test_before_authentication_everything_but_the_handshake_gets_error_46() -> None:
    server = ServerConnection(EVERYTHING, authenticate=True)
    versions = pb.ApiVersionsRequest(client_software_name="c", client_software_version="1").SerializeToString()
    token = pb.AuthenticateRequest(protocol="PLAIN", token=b"").SerializeToString()
    requests = [
        *encode_request(ApiKey.API_VERSIONS, 0, 0, [versions]),
        exists_request(1),
        exists_request(2, api_key=9999),
        *encode_request(ApiKey.AUTHENTICATE, 0, 3, [token]),
    ]
    events = deliver(requests, server)
    assert [type(event) for event in events] == [RequestReceived, RequestRejected, RequestRejected, RequestReceived]
    for event in events[1:3]:
        assert isinstance(event, RequestRejected)
        assert isinstance(event.error, AccessDenied)
        assert event.error.code == ErrorCode.AUTHENTICATE_EXCEPTION
    server.authenticated()
    assert isinstance(deliver_one([exists_request(4)], server), RequestReceived)


def test_a_request_sent_right_behind_authenticate_is_judged_by_its_outcome() -> None:
    server = ServerConnection(EVERYTHING, authenticate=True)
    token = pb.AuthenticateRequest(protocol="PLAIN", token=b"").SerializeToString()
    server.receive_data(b"".join(map(bytes, encode_request(ApiKey.AUTHENTICATE, 0, 0, [token]))) + exists_request(1))
    assert isinstance(server.next_event(), RequestReceived)
    server.authenticated()
    assert isinstance(server.next_event(), RequestReceived)


# --- the end of a connection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [-1, 0, 7, 2**31 - 1])
def test_a_wrong_length_from_a_client_ends_the_connection_after_the_requests_before_it(length: int) -> None:
    server = ServerConnection(EVERYTHING)
    received, violation = deliver([exists_request(3), struct.pack(">i", length), exists_request(4)], server)
    assert isinstance(received, RequestReceived)
    assert isinstance(violation, ProtocolViolation)
    assert violation.request_ids == (3,)
    assert server.state is State.CLOSED
    assert deliver([exists_request(5)], server) == []


def test_a_request_id_used_again_before_its_answer_ends_the_connection() -> None:
    server = ServerConnection(EVERYTHING)
    _, violation = deliver([exists_request(3), exists_request(3)], server)
    assert isinstance(violation, ProtocolViolation)
    assert "request id 3" in str(violation.error)


def test_a_request_id_may_be_used_again_after_its_answer() -> None:
    server = ServerConnection(EVERYTHING)
    for _ in range(2):
        assert isinstance(deliver_one([exists_request(3)], server), RequestReceived)
        server.send_response(3, pb.DatabaseExistsResponse(exists=False))


@pytest.mark.parametrize("frame", ["00000005 03 00000000", "00000005 ff 00000000", "00000004 00 000000", "00000001 01"])
def test_an_answer_of_unknown_type_or_without_an_id_ends_the_connection(frame: str) -> None:
    client, _ = ready_pair()
    sent = client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)
    violation = deliver_one([bytes.fromhex(frame)], client)
    assert isinstance(violation, ProtocolViolation)
    assert violation.request_ids == (sent.request_id,)
    with pytest.raises(Unavailable, match="closed"):
        client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)


def test_a_server_failure_ends_the_connection_and_names_the_requests_without_answer() -> None:
    client, _ = ready_pair()
    ids = tuple(client.send_request(ApiKey.DATABASE_EXISTS, EXISTS).request_id for _ in range(2))
    body = pb.ErrorResponse(error_code=ErrorCode.STORAGE_EXCEPTION, error_message="disk").SerializeToString()
    event = deliver_one([struct.pack(">ib", 1 + len(body), 2) + body], client)
    assert isinstance(event, ServerFailed)
    assert (event.error.code, event.error.message, event.request_ids) == (ErrorCode.STORAGE_EXCEPTION, "disk", ids)
    assert client.state is State.CLOSED


@pytest.mark.parametrize(("tail", "where"), [(b"", "between two frames"), (b"\0\0\0", "in the middle of a frame")])
def test_the_end_of_the_stream_comes_after_what_came_before_it(tail: bytes, where: str) -> None:
    server = ServerConnection(EVERYTHING)
    server.receive_data(exists_request(1) + tail)
    server.receive_eof()
    received, closed = events_of(server)
    assert isinstance(received, RequestReceived)
    assert isinstance(closed, ConnectionClosed)
    assert where in str(closed.error)
    assert closed.error.retriable
    assert closed.request_ids == (1,)
    assert server.next_event() is None


def test_an_answer_that_is_ready_after_the_connection_closed_sends_nothing() -> None:
    server = ServerConnection(EVERYTHING)
    deliver([exists_request(1)], server)
    assert server.close() == (1,)
    assert server.send_response(1, pb.DatabaseExistsResponse(exists=True)) == []
    assert server.send_error(1, ErrorCode.TABLE_NOT_EXIST) == []


def test_a_server_that_gives_up_a_connection_says_why_and_says_nothing_more() -> None:
    client, server = ready_pair()
    sent = client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)
    deliver(sent.buffers, server)
    event = deliver_one(server.send_failure(ErrorCode.STORAGE_EXCEPTION, "disk"), client)
    assert isinstance(event, ServerFailed)
    assert (event.error.code, event.error.message, event.request_ids) == (
        ErrorCode.STORAGE_EXCEPTION,
        "disk",
        (sent.request_id,),
    )
    assert (server.state, server.open_requests) == (State.CLOSED, 0)
    assert server.send_error(sent.request_id, ErrorCode.STORAGE_EXCEPTION) == []


# --- request ids -----------------------------------------------------------------------------------------------


def test_an_answer_to_an_abandoned_or_unknown_request_is_a_stray_one() -> None:
    client, _ = ready_pair()
    sent = client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)
    client.abandon(sent.request_id)
    answers = encode_response(FrameType.SUCCESS, sent.request_id, [b"\x08\x01"])
    answers += encode_response(FrameType.ERROR, 999, [b""])
    assert deliver(answers, client) == [StrayResponse(sent.request_id), StrayResponse(999)]
    assert client.state is State.READY


def test_request_ids_wrap_around_and_skip_those_in_flight() -> None:
    client, _ = ready_pair()
    client._next_id = 2**31 - 1
    ids = [client.send_request(ApiKey.DATABASE_EXISTS, EXISTS).request_id for _ in range(2)]
    assert ids == [2**31 - 1, 0]
    client._next_id = 2**31 - 1
    assert client.send_request(ApiKey.DATABASE_EXISTS, EXISTS).request_id == 1


# --- misuse is a bug -------------------------------------------------------------------------------------------


def test_a_client_asks_for_versions_first() -> None:
    client = ClientConnection()
    with pytest.raises(InternalError, match="'start'"):
        client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)
    client.send_request(ApiKey.API_VERSIONS, pb.ApiVersionsRequest(client_software_name="", client_software_version=""))
    with pytest.raises(InternalError, match="'negotiating'"):
        client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)
    with pytest.raises(InternalError, match="'authenticated' cannot follow"):
        client.authenticated()


def test_a_client_may_ask_for_versions_again_and_stays_ready() -> None:
    client, _ = ready_pair()
    again = pb.ApiVersionsRequest(client_software_name="c", client_software_version="1")
    client.send_request(ApiKey.API_VERSIONS, again)
    assert client.state is State.READY


def test_messages_must_be_those_of_the_api() -> None:
    client, server = ready_pair()
    with pytest.raises(InternalError, match="DATABASE_EXISTS does not carry a TableExistsResponse"):
        client.send_request(ApiKey.DATABASE_EXISTS, pb.TableExistsResponse(exists=True))
    request = deliver_one([exists_request(1)], server)
    assert isinstance(request, RequestReceived)
    with pytest.raises(InternalError, match="does not carry"):
        request.parse(pb.TableExistsRequest)
    with pytest.raises(InternalError, match="not answered by"):
        server.send_response(1, pb.TableExistsResponse(exists=True))


def test_a_request_whose_answer_cannot_be_sent_stays_open_and_can_be_answered_with_an_error() -> None:
    client, server = ready_pair()
    sent = client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)
    deliver(sent.buffers, server)
    for unsendable in (pb.DatabaseExistsResponse(), pb.TableExistsResponse(exists=True)):
        with pytest.raises(InternalError):
            server.send_response(sent.request_id, unsendable)
    response = deliver_one(server.send_error(sent.request_id, ErrorCode.UNKNOWN_SERVER_ERROR, "a bug"), client)
    assert isinstance(response, ResponseReceived)
    assert str(response.error) == "a bug [UNKNOWN_SERVER_ERROR]"
    assert server.open_requests == 0


def test_a_request_is_answered_once() -> None:
    _, server = ready_pair()
    deliver([exists_request(1)], server)
    server.send_response(1, pb.DatabaseExistsResponse(exists=True))
    with pytest.raises(InternalError, match="request 1 is not open"):
        server.send_response(1, pb.DatabaseExistsResponse(exists=True))


# --- hostile peers ---------------------------------------------------------------------------------------------

frames_of_requests = st.builds(
    lambda key, version, request_id, body: b"".join(map(bytes, encode_request(key, version, request_id, [body]))),
    st.sampled_from([int(key) for key in ApiKey]) | st.integers(-(2**15), 2**15 - 1),
    st.integers(0, 3),
    st.integers(0, 5),
    st.binary(max_size=30),
)
frames_of_answers = st.builds(
    lambda kind, request_id, body: struct.pack(">ibi", 5 + len(body), kind, request_id) + body,
    st.integers(-1, 3),
    st.integers(-1, 4),
    st.binary(max_size=30),
)


def exhaust(connection: ClientConnection | ServerConnection, stream: bytes, cuts: list[int]) -> list[Any]:
    found, at, turn = [], 0, 0
    while at < len(stream):
        connection.receive_data(stream[at : at + cuts[turn % len(cuts)]])
        at += cuts[turn % len(cuts)]
        turn += 1
        found += [repr(event) for event in events_of(connection)]
    connection.receive_eof()
    return found + [repr(event) for event in events_of(connection)]


CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


@example([b"HTTP/1.1 400 Bad Request"], [6])
@given(st.lists(frames_of_requests | st.binary(max_size=20), max_size=8), CUTS)
def test_whatever_a_client_sends_the_server_has_events_and_no_exceptions(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    whole, in_bytes, in_pieces = (ServerConnection(EVERYTHING, authenticate=len(parts) % 2 == 0) for _ in range(3))
    expected = exhaust(whole, stream, [len(stream) + 1])
    assert exhaust(in_bytes, stream, [1]) == expected
    assert exhaust(in_pieces, stream, cuts) == expected
    assert whole.state is State.CLOSED


@example([b"HTTP/1.1 400 Bad Request"], [6])
@given(st.lists(frames_of_answers | st.binary(max_size=20), max_size=8), CUTS)
def test_whatever_a_server_sends_the_client_has_events_and_no_exceptions(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    found = []
    for pieces in ([len(stream) + 1], [1], cuts):
        client, _ = ready_pair()
        for _ in range(3):
            client.send_request(ApiKey.DATABASE_EXISTS, EXISTS)
        found.append(exhaust(client, stream, pieces))
        assert client.state is State.CLOSED
        assert not client.in_flight
    assert found[0] == found[1] == found[2]


# --- what a server gives a client that it does not know yet ----------------------------------------------------


def test_a_client_is_trusted_from_its_first_request_on_where_that_is_requested() -> None:
    assert ServerConnection(EVERYTHING).is_trusted
    assert ServerConnection(EVERYTHING, frame_bytes_max=1000, first_frame_bytes_max=1000).is_trusted
    server = ServerConnection(EVERYTHING, frame_bytes_max=1000, first_frame_bytes_max=200)
    long = [struct.pack(">ihhi", 808, ApiKey.DATABASE_EXISTS, 0, 9), bytes(800)]
    assert not server.is_trusted
    assert isinstance(deliver_one([exists_request(1)], server), RequestReceived)
    assert server.is_trusted
    assert isinstance(deliver_one(long, server), RequestReceived)
    stranger = ServerConnection(EVERYTHING, frame_bytes_max=1000, first_frame_bytes_max=200)
    violation = deliver_one(long, stranger)
    assert isinstance(violation, ProtocolViolation)
    assert "the limit is 200 bytes until the client has sent a first request" in str(violation.error)


def test_a_client_that_must_log_in_is_trusted_once_it_has() -> None:
    server = ServerConnection(EVERYTHING, authenticate=True, frame_bytes_max=1000, first_frame_bytes_max=200)
    token = pb.AuthenticateRequest(protocol="PLAIN", token=b"").SerializeToString()
    assert isinstance(deliver_one(encode_request(ApiKey.AUTHENTICATE, 0, 0, [token]), server), RequestReceived)
    assert not server.is_trusted
    server.authenticated()
    assert server.is_trusted


def test_a_large_request_that_is_given_up_is_answered_and_the_next_one_is_served() -> None:
    server = ServerConnection(EVERYTHING)
    error = Unavailable("no memory")
    assert server.give_up_large(error) is None
    assert deliver([struct.pack(">ihhi", 100_008, ApiKey.PUT_KV, 0, 9), bytes(100)], server) == []
    assert (server.has_unread_bytes, server.large_bytes > 0) == (True, True)
    assert server.give_up_large(error) == RequestRejected(9, ApiKey.PUT_KV, 0, error)
    assert (server.large_bytes, server.open_requests) == (0, 1)
    assert isinstance(deliver_one([bytes(99_900), exists_request(3)], server), RequestReceived)
    assert server.open_requests == 2
    server.send_error(9, ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION, "no memory")
    assert deliver([struct.pack(">ihhi", 100_008, ApiKey.PUT_KV, 0, 3), bytes(100)], server) == []
    assert server.give_up_large(error) is None  # the id of another one


def test_a_large_request_gets_the_room_that_it_wants_and_the_next_one_begins_small_where_that_is_requested() -> None:
    server = ServerConnection(EVERYTHING)
    body = bytes(100_000)
    begun = [struct.pack(">ihhi", 8 + len(body), ApiKey.PUT_KV, 0, 9), body[: 1 << 14]]
    assert deliver(begun, server) == []
    before, wanted = server.large_bytes, server.wanted_bytes
    assert before == 1 << 14
    assert wanted > 0
    server.grow()
    assert (server.large_bytes, server.wanted_bytes) == (before + wanted, 0)
    assert isinstance(deliver_one([body[1 << 14 :]], server), RequestReceived)
    begun[0] = struct.pack(">ihhi", 8 + len(body), ApiKey.PUT_KV, 0, 10)
    deliver(begun, server)
    assert server.large_bytes == len(body)  # it has shown that it sends what it announces
    server.give_up_large(Unavailable("no memory"))
    deliver([body[1 << 14 :]], server)
    server.go_in_small_steps()
    begun[0] = struct.pack(">ihhi", 8 + len(body), ApiKey.PUT_KV, 0, 11)
    deliver(begun, server)
    assert server.large_bytes == 1 << 14


def test_a_request_is_parsed_as_what_it_is() -> None:
    request = deliver_one([exists_request(1)], ServerConnection(EVERYTHING))
    assert isinstance(request, RequestReceived)
    assert request.parse_split(pb.DatabaseExistsRequest) == (EXISTS, [])
    for parse in (request.parse, request.parse_split):
        with pytest.raises(InternalError):
            parse(pb.PutKvRequest)
