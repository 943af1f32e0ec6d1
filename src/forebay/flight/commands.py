"""Commands of Flight SQL as messages, and as the bytes that Flight carries: google.protobuf.Any."""

from __future__ import annotations

from typing import TypeVar

from forebay.base.errors import CorruptData, InvalidRequest, UnsupportedOperation
from forebay.flight import flight_sql_pb2 as pb
from forebay.protocol.messages import Message, parse

M = TypeVar("M", bound=Message)

_TYPES = "arrow.flight.protocol.sql."
_SUPPORTED: dict[str, type[Message]] = {
    kind.DESCRIPTOR.name: kind
    for kind in (
        pb.ActionCancelQueryRequest,
        pb.ActionClosePreparedStatementRequest,
        pb.ActionCreatePreparedStatementRequest,
        pb.CommandGetCatalogs,
        pb.CommandGetCrossReference,
        pb.CommandGetDbSchemas,
        pb.CommandGetExportedKeys,
        pb.CommandGetImportedKeys,
        pb.CommandGetPrimaryKeys,
        pb.CommandGetSqlInfo,
        pb.CommandGetTables,
        pb.CommandGetTableTypes,
        pb.CommandGetXdbcTypeInfo,
        pb.CommandPreparedStatementQuery,
        pb.CommandPreparedStatementUpdate,
        pb.CommandStatementIngest,
        pb.CommandStatementQuery,
        pb.CommandStatementUpdate,
        pb.TicketStatementQuery,
    )
}
_UNSUPPORTED = {
    "CommandStatementSubstraitPlan": "Substrait plans are not supported: send SQL",
    "ActionCreatePreparedSubstraitPlanRequest": "Substrait plans are not supported: send SQL",
}


def read_command(data: bytes) -> Message:
    """The message of a command. Raises `InvalidRequest` for other bytes, `UnsupportedOperation` for other commands."""
    try:
        envelope = parse(pb.AnyMessage, data)
    except CorruptData as e:
        raise InvalidRequest("this is not a command of Arrow Flight SQL: connect with a Flight SQL client") from e
    name = envelope.type_url.rpartition("/")[2].removeprefix(_TYPES)
    if name not in _SUPPORTED:
        raise UnsupportedOperation(_UNSUPPORTED.get(name, f"the command {name or data!r} is not supported"))
    return parse(_SUPPORTED[name], envelope.value)


def command(data: bytes, kind: type[M]) -> M:
    """The message of a command, which is of that kind. Raises `InvalidRequest`."""
    message = read_command(data)
    if not isinstance(message, kind):
        raise InvalidRequest(f"a {message.DESCRIPTOR.name} was sent instead of a {kind.DESCRIPTOR.name}")
    return message


def command_bytes(message: Message) -> bytes:
    """The bytes of a command, or of an action's result."""
    url = f"type.googleapis.com/{_TYPES}{message.DESCRIPTOR.name}"
    return pb.AnyMessage(type_url=url, value=message.SerializeToString()).SerializeToString()
