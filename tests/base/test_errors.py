"""The reaction of clients to an error sent by a server."""

from __future__ import annotations

import pickle

import pytest

from forebay.base.errors import (
    WIRE_ERRORS,
    Conflict,
    CorruptData,
    ErrorCode,
    ForebayError,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    error_from_wire,
    wire_code,
)

LEARN_AGAIN = {
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
    ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
    ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION,
    ErrorCode.INVALID_COORDINATOR_EXCEPTION,
    ErrorCode.NOT_COORDINATOR_LEADER_EXCEPTION,
    ErrorCode.INVALID_BUCKET_ROUTING,
}
"""The server that was asked is not, or no longer, the right one: which is, clients have to ask."""


@pytest.mark.parametrize("code", sorted(WIRE_ERRORS))
def test_clients_look_for_another_server_after_the_errors_that_say_so_and_no_others(code: int) -> None:
    assert error_from_wire(code, "what happened").stale_metadata == (code in LEARN_AGAIN)


@pytest.mark.parametrize(
    ("code", "retriable"),
    [
        (ErrorCode.REQUEST_TIME_OUT, True),
        (ErrorCode.CORRUPT_MESSAGE, True),
        (ErrorCode.DISK_WRITE_LOCKED, True),
        (ErrorCode.TABLE_NOT_EXIST, False),
        (ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, False),
        (4711, False),
    ],
)
def test_only_what_may_pass_is_worth_another_attempt(code: int, retriable: bool) -> None:
    assert error_from_wire(code, "what happened").retriable == retriable


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("it failed\n\n  twice", "it failed\n\n  twice"),
        ("Outer: why\n\tat org.A.b(A.java:1)\n\n\t... 3 more\nCaused by: Inner", "Outer: why Caused by: Inner"),
        ("", "the server answered with error 7 and no message"),
        (None, "the server answered with error 7 and no message"),
    ],
)
def test_what_a_server_says_is_shown_without_the_stack_trace_of_a_java_server(sent: str | None, shown: str) -> None:
    assert error_from_wire(7, sent).message == shown


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (NotFound("gone"), "gone"),
        (NotFound("gone", ErrorCode.CLIENT_ERROR), "gone"),
        (NotFound("gone", ErrorCode.SCHEMA_NOT_EXIST), "gone [SCHEMA_NOT_EXIST]"),
        (Conflict("taken", 4711), "taken [ERROR_4711]"),
    ],
)
def test_an_error_is_shown_with_the_name_of_the_code_that_was_given(error: ForebayError, shown: str) -> None:
    assert (str(error), error.args) == (shown, (error.message,))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code) == (type(error), shown, error.code)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("gone"), ErrorCode.TABLE_NOT_EXIST),
        (Unavailable("later", ErrorCode.KV_STORAGE_EXCEPTION), ErrorCode.KV_STORAGE_EXCEPTION),
        (CorruptData("bad", ErrorCode.KV_STORAGE_EXCEPTION), ErrorCode.CORRUPT_RECORD_EXCEPTION),
        (CorruptData("bad", ErrorCode.CORRUPT_MESSAGE), ErrorCode.CORRUPT_MESSAGE),
        (OutcomeUnknown("lost", ErrorCode.REQUEST_TIME_OUT), ErrorCode.UNKNOWN_SERVER_ERROR),
        (InvalidRequest("wrong"), ErrorCode.INVALID_TABLE_EXCEPTION),
        (InvalidRequest("wrong", ErrorCode.CONFIG_EXCEPTION), ErrorCode.CONFIG_EXCEPTION),
        (Unavailable("a bug", ErrorCode.NONE), ErrorCode.UNKNOWN_SERVER_ERROR),  # never as if all was well
        (Unavailable("a bug", ErrorCode.CLIENT_ERROR), ErrorCode.UNKNOWN_SERVER_ERROR),
        (ZeroDivisionError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_under_which_code_an_error_crosses_the_wire(error: BaseException, code: ErrorCode) -> None:
    assert wire_code(error) == code
