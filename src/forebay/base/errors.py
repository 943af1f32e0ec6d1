"""Errors, grouped by how the caller handles them.

The kinds form the whole tree below `ForebayError`: code that handles errors catches a kind, code that reports them
reads the message, code that talks to a Fluss peer reads `code`. The wire table at the end of this module maps every
Fluss error code (`Errors` in Apache Fluss: codes are stable, names may change) to its kind, and states whether a client
may retry the request (`retriable`) and whether its cached metadata may be the cause (`stale_metadata`). All errors
survive pickling, because Spark carries them from workers to the driver.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple


class ErrorCode(IntEnum):
    """Error codes of the Fluss protocol (1.x), plus -2 for errors that never cross the wire."""

    CLIENT_ERROR = -2
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    NETWORK_EXCEPTION = 1
    UNSUPPORTED_VERSION = 2
    CORRUPT_MESSAGE = 3
    DATABASE_NOT_EXIST = 4
    DATABASE_NOT_EMPTY = 5
    DATABASE_ALREADY_EXIST = 6
    TABLE_NOT_EXIST = 7
    TABLE_ALREADY_EXIST = 8
    SCHEMA_NOT_EXIST = 9
    LOG_STORAGE_EXCEPTION = 10
    KV_STORAGE_EXCEPTION = 11
    NOT_LEADER_OR_FOLLOWER = 12
    RECORD_TOO_LARGE_EXCEPTION = 13
    CORRUPT_RECORD_EXCEPTION = 14
    INVALID_TABLE_EXCEPTION = 15
    INVALID_DATABASE_EXCEPTION = 16
    INVALID_REPLICATION_FACTOR = 17
    INVALID_REQUIRED_ACKS = 18
    LOG_OFFSET_OUT_OF_RANGE_EXCEPTION = 19
    NON_PRIMARY_KEY_TABLE_EXCEPTION = 20
    UNKNOWN_TABLE_OR_BUCKET_EXCEPTION = 21
    INVALID_UPDATE_VERSION_EXCEPTION = 22
    INVALID_COORDINATOR_EXCEPTION = 23
    FENCED_LEADER_EPOCH_EXCEPTION = 24
    REQUEST_TIME_OUT = 25
    STORAGE_EXCEPTION = 26
    OPERATION_NOT_ATTEMPTED_EXCEPTION = 27
    NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION = 28
    NOT_ENOUGH_REPLICAS_EXCEPTION = 29
    SECURITY_TOKEN_EXCEPTION = 30
    OUT_OF_ORDER_SEQUENCE_EXCEPTION = 31
    DUPLICATE_SEQUENCE_EXCEPTION = 32
    UNKNOWN_WRITER_ID_EXCEPTION = 33
    INVALID_COLUMN_PROJECTION = 34
    INVALID_TARGET_COLUMN = 35
    PARTITION_NOT_EXISTS = 36
    TABLE_NOT_PARTITIONED_EXCEPTION = 37
    INVALID_TIMESTAMP_EXCEPTION = 38
    INVALID_CONFIG_EXCEPTION = 39
    LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION = 40
    KV_SNAPSHOT_NOT_EXIST = 41
    PARTITION_ALREADY_EXISTS = 42
    PARTITION_SPEC_INVALID_EXCEPTION = 43
    LEADER_NOT_AVAILABLE_EXCEPTION = 44
    PARTITION_MAX_NUM_EXCEPTION = 45
    AUTHENTICATE_EXCEPTION = 46
    SECURITY_DISABLED_EXCEPTION = 47
    AUTHORIZATION_EXCEPTION = 48
    BUCKET_MAX_NUM_EXCEPTION = 49
    FENCED_TIERING_EPOCH_EXCEPTION = 50
    RETRIABLE_AUTHENTICATE_EXCEPTION = 51
    INVALID_SERVER_RACK_INFO_EXCEPTION = 52
    LAKE_SNAPSHOT_NOT_EXIST = 53
    LAKE_TABLE_ALREADY_EXIST = 54
    INELIGIBLE_REPLICA_EXCEPTION = 55
    INVALID_ALTER_TABLE_EXCEPTION = 56
    DELETION_DISABLED_EXCEPTION = 57
    SERVER_NOT_EXIST_EXCEPTION = 58
    SERVER_TAG_ALREADY_EXIST_EXCEPTION = 59
    SERVER_TAG_NOT_EXIST_EXCEPTION = 60
    REBALANCE_FAILURE_EXCEPTION = 61
    NO_REBALANCE_IN_PROGRESS_EXCEPTION = 62
    INVALID_PRODUCER_ID_EXCEPTION = 63
    CONFIG_EXCEPTION = 64
    NOT_COORDINATOR_LEADER_EXCEPTION = 65
    SCANNER_EXPIRED = 66
    UNKNOWN_SCANNER_ID = 67
    INVALID_SCAN_REQUEST = 68
    TOO_MANY_SCANNERS = 69
    DISK_WRITE_LOCKED = 70
    INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY = 71
    STORAGE_BACKPRESSURE_EXCEPTION = 72
    HISTORICAL_PARTITION_THROTTLED = 73
    INVALID_BUCKET_ROUTING = 74


class ForebayError(Exception):
    """The base class of all errors that Forebay raises deliberately.

    `message` states what happened, names the object and its value, and the remedy. `code` is the Fluss error code that
    the error has, or would have, on the wire.
    """

    kind = "error"
    default_code: ErrorCode = ErrorCode.CLIENT_ERROR

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code: int = self.default_code if code is None else code
        self._explicit_code = code

    @property
    def name(self) -> str:
        """The Fluss name of the code, or `ERROR_<n>` for an unknown code."""
        try:
            return ErrorCode(self.code).name
        except ValueError:
            return f"ERROR_{self.code}"

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later without changes by the caller."""
        wire = WIRE_ERRORS.get(self.code)
        return wire is not None and wire.retriable

    @property
    def stale_metadata(self) -> bool:
        """Whether the client should refresh its view of the cluster before retrying."""
        wire = WIRE_ERRORS.get(self.code)
        return wire is not None and wire.stale_metadata

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self._explicit_code)

    def __str__(self) -> str:
        """The message, followed by the name of the code if a peer sent the code or will receive it."""
        return (
            self.message if self._explicit_code in (None, ErrorCode.CLIENT_ERROR) else f"{self.message} [{self.name}]"
        )


class NotFound(ForebayError):
    """A database, table, partition, schema or snapshot does not exist. Create it, or correct its name."""

    kind = "not_found"
    default_code = ErrorCode.TABLE_NOT_EXIST


class AlreadyExists(ForebayError):
    """The thing to create already exists. Choose another name, or ask to ignore existing ones."""

    kind = "already_exists"
    default_code = ErrorCode.TABLE_ALREADY_EXIST


class InvalidRequest(ForebayError, ValueError):
    """The request itself is wrong: a name, type, option, offset or combination. Correct it; retrying is useless."""

    kind = "invalid"
    default_code = ErrorCode.CLIENT_ERROR


class UnsupportedOperation(ForebayError, NotImplementedError):
    """The peer, or this version of Forebay, does not offer the operation. See docs/limits.md."""

    kind = "unsupported"
    default_code = ErrorCode.UNSUPPORTED_VERSION


class Unavailable(ForebayError):
    """The service cannot respond now: network, timeout, leader change, back-pressure. Retry later."""

    kind = "unavailable"
    default_code = ErrorCode.NETWORK_EXCEPTION


class OutcomeUnknown(ForebayError):
    """The change may or may not have been made: the response was lost, or the peer failed halfway.

    Do not retry blindly, and delete nothing that the change may refer to: first check whether it was made. The message
    explains how. `code` is the error code of the failure that hid the outcome. Never `retriable`, whatever that code
    is.
    """

    kind = "outcome_unknown"
    default_code = ErrorCode.REQUEST_TIME_OUT

    @property
    def retriable(self) -> bool:
        return False

    @property
    def stale_metadata(self) -> bool:
        return False


class Conflict(ForebayError):
    """Another writer was faster, or this one was fenced. Read the new state, then decide."""

    kind = "conflict"
    default_code = ErrorCode.INVALID_UPDATE_VERSION_EXCEPTION


class AccessDenied(ForebayError):
    """Authentication or authorisation failed. Use other credentials, or request the permission."""

    kind = "access_denied"
    default_code = ErrorCode.AUTHENTICATE_EXCEPTION


class LimitExceeded(ForebayError):
    """A configured limit was reached. Request less, close open resources, or raise the limit."""

    kind = "limit"
    default_code = ErrorCode.TOO_MANY_SCANNERS


class StorageFailure(ForebayError):
    """Storage could not be read or written. Check the disk; everything acknowledged is stored."""

    kind = "storage"
    default_code = ErrorCode.STORAGE_EXCEPTION


class CorruptData(ForebayError):
    """Bytes do not have the expected form or checksum. This is never an I/O error."""

    kind = "corrupt"
    default_code = ErrorCode.CORRUPT_MESSAGE


class InternalError(ForebayError):
    """A bug on one of the two sides. Report it, with the message."""

    kind = "internal"
    default_code = ErrorCode.UNKNOWN_SERVER_ERROR


class WireError(NamedTuple):
    """The Python error for one Fluss error code."""

    kind: type[ForebayError]
    retriable: bool = False
    stale_metadata: bool = False


OF_SERVERS = (CorruptData, InternalError, LimitExceeded, StorageFailure, Unavailable)
"""Errors for reasons that a server has, or knows more about: it logs them, and the client names the request."""

_E = ErrorCode
_STALE = {_E.NETWORK_EXCEPTION, _E.NOT_LEADER_OR_FOLLOWER, _E.LEADER_NOT_AVAILABLE_EXCEPTION,
          _E.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION, _E.FENCED_LEADER_EPOCH_EXCEPTION,
          _E.INVALID_COORDINATOR_EXCEPTION, _E.NOT_COORDINATOR_LEADER_EXCEPTION,
          _E.INVALID_BUCKET_ROUTING}  # fmt: skip
_RETRIABLE = {_E.NETWORK_EXCEPTION, _E.CORRUPT_MESSAGE, _E.SCHEMA_NOT_EXIST, _E.LOG_STORAGE_EXCEPTION,
              _E.KV_STORAGE_EXCEPTION, _E.NOT_LEADER_OR_FOLLOWER, _E.CORRUPT_RECORD_EXCEPTION,
              _E.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION, _E.REQUEST_TIME_OUT, _E.STORAGE_EXCEPTION,
              _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION, _E.NOT_ENOUGH_REPLICAS_EXCEPTION,
              _E.LEADER_NOT_AVAILABLE_EXCEPTION, _E.DISK_WRITE_LOCKED, _E.STORAGE_BACKPRESSURE_EXCEPTION,
              _E.HISTORICAL_PARTITION_THROTTLED}  # fmt: skip

_KINDS: dict[type[ForebayError], tuple[ErrorCode, ...]] = {
    NotFound: (_E.DATABASE_NOT_EXIST, _E.TABLE_NOT_EXIST, _E.SCHEMA_NOT_EXIST, _E.PARTITION_NOT_EXISTS,
               _E.KV_SNAPSHOT_NOT_EXIST, _E.LAKE_SNAPSHOT_NOT_EXIST, _E.SERVER_NOT_EXIST_EXCEPTION,
               _E.SERVER_TAG_NOT_EXIST_EXCEPTION, _E.NO_REBALANCE_IN_PROGRESS_EXCEPTION, _E.SCANNER_EXPIRED,
               _E.UNKNOWN_SCANNER_ID, _E.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION),
    AlreadyExists: (_E.DATABASE_ALREADY_EXIST, _E.TABLE_ALREADY_EXIST, _E.PARTITION_ALREADY_EXISTS,
                    _E.LAKE_TABLE_ALREADY_EXIST, _E.SERVER_TAG_ALREADY_EXIST_EXCEPTION),
    InvalidRequest: (_E.DATABASE_NOT_EMPTY, _E.INVALID_TABLE_EXCEPTION, _E.INVALID_DATABASE_EXCEPTION,
                     _E.INVALID_REPLICATION_FACTOR, _E.INVALID_REQUIRED_ACKS,
                     _E.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION, _E.NON_PRIMARY_KEY_TABLE_EXCEPTION,
                     _E.RECORD_TOO_LARGE_EXCEPTION, _E.INVALID_COLUMN_PROJECTION, _E.INVALID_TARGET_COLUMN,
                     _E.TABLE_NOT_PARTITIONED_EXCEPTION, _E.INVALID_TIMESTAMP_EXCEPTION,
                     _E.INVALID_CONFIG_EXCEPTION, _E.PARTITION_SPEC_INVALID_EXCEPTION,
                     _E.INVALID_ALTER_TABLE_EXCEPTION, _E.DELETION_DISABLED_EXCEPTION,
                     _E.INVALID_PRODUCER_ID_EXCEPTION, _E.CONFIG_EXCEPTION, _E.INVALID_SCAN_REQUEST,
                     _E.INVALID_SERVER_RACK_INFO_EXCEPTION),
    UnsupportedOperation: (_E.UNSUPPORTED_VERSION,),
    Unavailable: (_E.NETWORK_EXCEPTION, _E.NOT_LEADER_OR_FOLLOWER, _E.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
                  _E.REQUEST_TIME_OUT, _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION,
                  _E.NOT_ENOUGH_REPLICAS_EXCEPTION, _E.LEADER_NOT_AVAILABLE_EXCEPTION,
                  _E.NOT_COORDINATOR_LEADER_EXCEPTION, _E.DISK_WRITE_LOCKED,
                  _E.STORAGE_BACKPRESSURE_EXCEPTION, _E.HISTORICAL_PARTITION_THROTTLED,
                  _E.OPERATION_NOT_ATTEMPTED_EXCEPTION),
    Conflict: (_E.INVALID_UPDATE_VERSION_EXCEPTION, _E.INVALID_COORDINATOR_EXCEPTION,
               _E.FENCED_LEADER_EPOCH_EXCEPTION, _E.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
               _E.DUPLICATE_SEQUENCE_EXCEPTION, _E.UNKNOWN_WRITER_ID_EXCEPTION,
               _E.FENCED_TIERING_EPOCH_EXCEPTION, _E.INELIGIBLE_REPLICA_EXCEPTION,
               _E.REBALANCE_FAILURE_EXCEPTION, _E.INVALID_BUCKET_ROUTING),
    AccessDenied: (_E.SECURITY_TOKEN_EXCEPTION, _E.AUTHENTICATE_EXCEPTION, _E.SECURITY_DISABLED_EXCEPTION,
                   _E.AUTHORIZATION_EXCEPTION, _E.RETRIABLE_AUTHENTICATE_EXCEPTION),
    LimitExceeded: (_E.PARTITION_MAX_NUM_EXCEPTION, _E.BUCKET_MAX_NUM_EXCEPTION, _E.TOO_MANY_SCANNERS,
                    _E.INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY),
    StorageFailure: (_E.LOG_STORAGE_EXCEPTION, _E.KV_STORAGE_EXCEPTION, _E.STORAGE_EXCEPTION),
    CorruptData: (_E.CORRUPT_MESSAGE, _E.CORRUPT_RECORD_EXCEPTION),
    InternalError: (_E.UNKNOWN_SERVER_ERROR,),
}  # fmt: skip

WIRE_ERRORS: dict[int, WireError] = {
    int(code): WireError(kind, code in _RETRIABLE, code in _STALE) for kind, codes in _KINDS.items() for code in codes
}
"""Every error code of the protocol except NONE, with its Python kind."""


def error_from_wire(code: int, message: str | None) -> ForebayError:
    """Return the Python error for an error from a peer. An unknown code becomes an `InternalError`."""
    wire = WIRE_ERRORS.get(code)
    kind = InternalError if wire is None else wire.kind
    text = message or f"the server answered with error {code} and no message"
    return kind(_without_stack_trace(text), code)


def _without_stack_trace(text: str) -> str:
    """Return a Java server's message without its stack trace."""
    if "\n\tat " not in text:
        return text
    lines = (line.strip() for line in text.splitlines())
    return " ".join(line for line in lines if line and not line.startswith(("at ", "... ")))


_DAMAGED_STORAGE = {_E.LOG_STORAGE_EXCEPTION, _E.KV_STORAGE_EXCEPTION, _E.STORAGE_EXCEPTION}


def wire_code(error: BaseException) -> int:
    """Return the wire code of `error`; anything that is not a `ForebayError` is a bug in Forebay."""
    if isinstance(error, OutcomeUnknown):
        return ErrorCode.UNKNOWN_SERVER_ERROR  # every code for a lost response makes clients retry the request
    if isinstance(error, CorruptData) and error.code in _DAMAGED_STORAGE:
        return ErrorCode.CORRUPT_RECORD_EXCEPTION  # the storage codes mean I/O errors, which clients retry
    if isinstance(error, ForebayError) and error.code > 0:
        return error.code
    if isinstance(error, InvalidRequest):
        return ErrorCode.INVALID_TABLE_EXCEPTION
    return ErrorCode.UNKNOWN_SERVER_ERROR


# `check` stays on: `python -O` strips `assert`, and a store must not continue after a broken invariant.


def error_name(code: int) -> str:
    """The name of a code; the number of one that this version does not know."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def check(condition: object, message: str) -> None:
    """Raise `InternalError` unless `condition` holds. For internal invariants, never for user input."""
    if not condition:
        raise InternalError(f"internal check failed: {message}")
