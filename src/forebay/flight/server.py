"""`FlightSqlServer`: calls of Arrow Flight, with commands of Flight SQL in them, and their answers."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from forebay.api.sql_result import Result
from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.errors import (
    AccessDenied,
    AlreadyExists,
    ForebayError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
    UnsupportedOperation,
)
from forebay.client.connection import Connection
from forebay.flight import flight_sql_pb2 as pb
from forebay.flight.catalog import catalog_rows, catalog_schema
from forebay.flight.commands import command, command_bytes, read_command
from forebay.flight.sessions import MIDDLEWARE, ClientSession, Expiring, NoHandshake, SessionFactory, Sessions
from forebay.flight.sql_info import SQL_INFO, TYPE_INFO, sql_info, type_info
from forebay.flight.statements import Limits, Running, RunStatement, Statements, StoredStatement
from forebay.protocol.messages import Message, parse
from forebay.query.isolated import IsolatedExecution, StatementLimits, StatementProcesses
from forebay.query.run import SqlDatabase
from forebay.query.statement import TableName
from forebay.query.tables import opened_lake, quoted

_LOGGER = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Tls:
    """Certificate and key of the endpoint, in PEM; `client_roots`: of those who sign clients' certificates."""

    certificate: bytes
    key: bytes
    client_roots: bytes | None = None


class FlightSqlServer(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow is not typed
    """An Arrow Flight SQL endpoint over live tables and lakes. It listens once it is constructed; `stop` ends it."""

    def __init__(
        self,
        connection: Connection | None,
        lakes: Mapping[str, Any],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        connect: Callable[[str, str], Connection] | None = None,
        allow_changes: bool = False,
        tls: Tls | None = None,
        limits: Limits | None = None,
        token: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        ids: IdSource = SYSTEM_IDS,
    ) -> None:
        """`connection` (None: only lakes) and `lakes` are for all callers, who give `token` if there is one. With
        `connect`, which returns a connection as a user, callers log in, and `connection` is not used.
        """
        limits = limits or Limits()
        open_lakes = {name: opened_lake(lake) for name, lake in lakes.items()}
        client_sessions = Expiring[ClientSession](
            clock, limits.session_seconds, limits.sessions_max, "sessions", "--sessions-max"
        )
        self._sessions = Sessions(
            SqlDatabase(connection, open_lakes) if connect is None else None,
            open_lakes,
            connect,
            client_sessions,
            ids,
            token,
        )
        self._directory = tempfile.TemporaryDirectory(prefix="forebay-flight-")
        self._processes = StatementProcesses(
            StatementLimits(
                limits.queries_max + _DESCRIBING_MAX, limits.query_memory_bytes, float("inf"), limits.wait_seconds
            ),
            clock,
        )
        self._statements = Statements(limits, self._processes, allow_changes, Path(self._directory.name), clock, ids)
        self._allows_changes, self._clock, self._closed = allow_changes, clock, threads.event()
        scheme = "grpc" if tls is None else "grpc+tls"
        try:
            super().__init__(
                f"{scheme}://{host}:{port}",
                auth_handler=NoHandshake(),
                middleware={MIDDLEWARE: SessionFactory(self._sessions, raised)},
                tls_certificates=None if tls is None else [(tls.certificate, tls.key)],
                verify_client=tls is not None and tls.client_roots is not None,
                root_certificates=None if tls is None else tls.client_roots,
            )
        except (pa.ArrowException, fl.FlightError, OSError) as e:
            self._processes.close()
            self._directory.cleanup()
            reason = str(e).partition("gRPC client debug")[0]
            raise Unavailable(
                f"cannot listen on {host}:{port}: {reason}; choose a free port, and check certificate and key if there "
                "are any"
            ) from e
        self.location = f"{scheme}://{host}:{self.port}"
        self._processes.start()
        self._cleaner = threads.thread(self._clean, name="forebay-flight-cleaner")
        self._cleaner.start()

    @property
    def statements(self) -> Statements:
        """The statements that are kept and run."""
        return self._statements

    @property
    def sessions(self) -> Sessions:
        """The sessions that are open."""
        return self._sessions

    def stop(self) -> None:
        """Stop what runs, and close the sessions' connections; `serve` returns. Idempotent.

        Clients get the error of their statement; one that does not read it in some seconds loses its connection.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        self._statements.stop_all()
        self._processes.close()
        self._sessions.close_all()  # calls that wait for a server end with their connection
        stopping = threads.thread(self.shutdown, name="forebay-flight-stop")  # waits for all calls
        stopping.start()
        stopping.join(_LAST_WORDS_SECONDS)
        while stopping.is_alive():  # one writes rows that its client does not read
            _break_connections(self.port)
            stopping.join(_LAST_WORDS_SECONDS)
        self._cleaner.join()
        self._directory.cleanup()

    def _clean(self) -> None:
        while not self._closed.wait(_CLEANING_SECONDS):
            self._statements.stop_expired()
            self._sessions.close_expired()

    # ---- calls ------------------------------------------------------------------------------------------------------

    def get_flight_info(self, context: Any, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        """Return the schema of a command's result, and the ticket for it."""
        with _answering():
            session = _session(context)
            message = read_command(_command_of(descriptor))
            if isinstance(message, pb.CommandStatementQuery):
                _check_no_transaction(message)
                statement = self._statements.described(session, message.query)
            elif isinstance(message, pb.CommandPreparedStatementQuery):
                statement = self._prepared(session, message)
            else:
                return _info(self._schema(session, message), descriptor, _command_of(descriptor))
            handle = self._statements.keep(statement)
            ticket = command_bytes(pb.TicketStatementQuery(statement_handle=handle.encode()))
            return _info(statement.description.schema, descriptor, ticket)

    def get_schema(self, context: Any, descriptor: fl.FlightDescriptor) -> fl.SchemaResult:
        """The columns that a command returns."""
        with _answering():
            return fl.SchemaResult(self._schema(_session(context), read_command(_command_of(descriptor))))

    def do_get(self, context: Any, ticket: fl.Ticket) -> fl.FlightDataStream:
        """The rows of a ticket."""
        with _answering():
            session = _session(context)
            message = read_command(ticket.ticket)
            if isinstance(message, pb.TicketStatementQuery):
                return self._stream(session, _text(message.statement_handle))
            if isinstance(message, pb.CommandGetSqlInfo):
                return fl.RecordBatchStream(sql_info(message.info, not self._allows_changes))
            if isinstance(message, pb.CommandGetXdbcTypeInfo):
                return fl.RecordBatchStream(type_info(message.data_type if message.HasField("data_type") else None))
            if catalog_schema(message) is not None:
                return fl.RecordBatchStream(catalog_rows(message, session.database))
            raise UnsupportedOperation(f"a {message.DESCRIPTOR.name} is not a ticket")

    def do_put(self, context: Any, descriptor: fl.FlightDescriptor, reader: Any, writer: Any) -> None:
        """Changes, and the parameters of prepared statements."""
        with _answering():
            session = _session(context)
            message = read_command(_command_of(descriptor))
            if isinstance(message, pb.CommandPreparedStatementQuery):
                self._bind(session, message, reader)
                answer = pb.DoPutPreparedStatementResult(prepared_statement_handle=message.prepared_statement_handle)
                writer.write(pa.py_buffer(answer.SerializeToString()))
                return
            if isinstance(message, pb.CommandStatementUpdate):
                _check_no_transaction(message)
                count = self._update(session, self._statements.described(session, message.query), None)
            elif isinstance(message, pb.CommandPreparedStatementUpdate):
                statement = self._statements.statement(session, _text(message.prepared_statement_handle))
                count = self._update(session, statement, reader if statement.description.parameters else None)
            elif isinstance(message, pb.CommandStatementIngest):
                count = self._ingest(session, message, reader)
            else:
                raise UnsupportedOperation(f"a {message.DESCRIPTOR.name} does not write")
            writer.write(pa.py_buffer(pb.DoPutUpdateResult(record_count=count).SerializeToString()))

    def do_action(self, context: Any, action: fl.Action) -> Iterator[fl.Result]:
        """Prepared statements, cancelling, and sessions."""
        with _answering():
            if action.type in _REFUSED_ACTIONS:
                raise UnsupportedOperation(_REFUSED_ACTIONS[action.type])
            if action.type not in _ACTIONS:
                raise UnsupportedOperation(f"the action {action.type!r} is not supported")
            answer = _ACTIONS[action.type][0](self, _session(context), action.body.to_pybytes())
        return iter(() if answer is None else (fl.Result(pa.py_buffer(answer)),))

    def list_actions(self, context: Any) -> list[fl.ActionType]:
        """The actions that are supported."""
        return [fl.ActionType(name, about) for name, (_, about) in _ACTIONS.items()]

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[fl.FlightInfo]:
        """Raise an error: Flight SQL has commands for that."""
        with _answering():
            raise UnsupportedOperation("flights are not listed: connect with a Flight SQL client")

    # ---- queries ----------------------------------------------------------------------------------------------------

    def _schema(self, session: ClientSession, message: Message) -> pa.Schema:
        if isinstance(message, pb.CommandStatementQuery):
            return self._statements.described(session, message.query).description.schema
        if isinstance(message, pb.CommandPreparedStatementQuery):
            return self._prepared(session, message).description.schema
        if isinstance(message, pb.CommandGetSqlInfo):
            return SQL_INFO
        if isinstance(message, pb.CommandGetXdbcTypeInfo):
            return TYPE_INFO
        schema = catalog_schema(message)
        if schema is None:
            raise UnsupportedOperation(f"a {message.DESCRIPTOR.name} returns no rows")
        return schema

    def _prepared(self, session: ClientSession, message: pb.CommandPreparedStatementQuery) -> StoredStatement:
        """The statement to run now. What it returns is found out again if it has parameters, or may have changed."""
        statement = self._statements.statement(session, _text(message.prepared_statement_handle))
        expected_count = len(statement.description.parameters)
        supplied_count = 0 if statement.parameters is None else statement.parameters.num_columns
        if supplied_count != expected_count:
            raise InvalidRequest(
                f"the statement has {expected_count} parameters, and {supplied_count} were given: "
                f"{statement.text.strip()!r}"
            )
        if not expected_count and statement.described_at + _DESCRIBED_SECONDS > self._clock.monotonic():
            return statement
        return self._statements.described(session, statement.text, statement.parameters)

    def _stream(self, session: ClientSession, handle: str) -> fl.FlightDataStream:
        statement = self._statements.statement(session, handle)
        if statement.description.is_insert:
            self._statements.statement(session, handle, once=True)
            count = self._run_update(session, handle, statement, statement.parameters)
            return fl.RecordBatchStream(pa.table({"rows": pa.array([count], pa.int64())}))
        result: list[Result] = []

        def run(execution: IsolatedExecution) -> Result:
            result.append(execution.run(statement.text, statement.values, insert=False))
            return result[0]

        running = self._statements.run(session, handle, run)
        return fl.GeneratorStream(result[0].schema, _RowStream(running))

    # ---- changes ----------------------------------------------------------------------------------------------------

    def _update(self, session: ClientSession, statement: StoredStatement, reader: Any) -> int:
        parameters = None if reader is None else reader.to_reader()
        if not statement.description.is_insert:
            raise InvalidRequest(f"{statement.text.strip()!r} does not write: run it as a query")
        return self._run_update(session, self._statements.keep(statement), statement, parameters)

    def _run_update(self, session: ClientSession, handle: str, statement: StoredStatement, parameters: Any) -> int:
        if isinstance(parameters, pa.Table):
            parameters = parameters.to_reader()

        def run(execution: IsolatedExecution) -> Result:
            return execution.run(statement.text, () if parameters is None else parameters)

        try:
            return self._count(session, handle, run)
        finally:
            self._statements.forget(session, handle)

    def _count(self, session: ClientSession, handle: str, run: RunStatement, **data: Any) -> int:
        running = self._statements.run(session, handle, run, **data)
        try:
            return sum(batch.column(0)[0].as_py() for batch in running)
        finally:
            running.close()

    def _ingest(self, session: ClientSession, message: pb.CommandStatementIngest, reader: Any) -> int:
        self._statements.check_changes("ingestion")
        _check_no_transaction(message)
        if message.temporary:
            raise UnsupportedOperation("temporary tables are not supported")
        parts = [message.catalog] * message.HasField("catalog") + [message.schema] * message.HasField("schema")
        name = session.qualified(TableName((*filter(None, parts), message.table)))
        rows = reader.to_reader()
        tables, options = session.database.tables, message.table_definition_options
        try:
            tables.target(name)
        except NotFound:
            if options.if_not_exist != _CREATE:
                raise
            tables.create(name, rows.schema)
        else:
            if options.if_exists == _FAIL:
                raise AlreadyExists(f"{name} exists already: ingest with mode 'append'")
            if options.if_exists == _REPLACE:
                raise UnsupportedOperation(f"{name} cannot be replaced: drop it first, or ingest with mode 'append'")
        target = ".".join(map(quoted, name.parts))

        def run(execution: IsolatedExecution) -> Result:
            return execution.run(f"INSERT INTO {target} BY NAME SELECT * FROM {_INGESTED}")

        return self._count(session, "", run, **{_INGESTED: rows})

    # ---- actions ----------------------------------------------------------------------------------------------------

    def _prepare(self, session: ClientSession, body: bytes) -> bytes:
        request = command(body, pb.ActionCreatePreparedStatementRequest)
        _check_no_transaction(request)
        statement = self._statements.described(session, request.query)
        description = statement.description
        return command_bytes(
            pb.ActionCreatePreparedStatementResult(
                prepared_statement_handle=self._statements.keep(statement).encode(),
                # An INSERT has no columns here: by that JDBC knows what is none of a query.
                dataset_schema=b"" if description.is_insert else description.schema.serialize().to_pybytes(),
                parameter_schema=description.parameters.serialize().to_pybytes(),
                is_update=description.is_insert,
            )
        )

    def _close_prepared(self, session: ClientSession, body: bytes) -> None:
        request = command(body, pb.ActionClosePreparedStatementRequest)
        self._statements.forget(session, _text(request.prepared_statement_handle))

    def _bind(self, session: ClientSession, message: pb.CommandPreparedStatementQuery, reader: Any) -> None:
        statement = self._statements.statement(session, _text(message.prepared_statement_handle))
        if not len(statement.description.parameters):
            statement.parameters = None
            return
        stream = reader.to_reader()
        most = _BOUND_ROWS_MAX if statement.description.is_insert else 1
        batches, count = list[pa.RecordBatch](), 0
        for batch in stream:
            batches.append(batch)
            count += batch.num_rows
            if count > most:
                raise LimitExceeded(
                    f"a query takes one row of parameters, an INSERT that is run as a query {_BOUND_ROWS_MAX:,}: run "
                    "it once for each row, or the INSERT as an update (executemany)"
                )
        if not count:
            raise InvalidRequest("no row of parameters was given")
        statement.parameters = pa.Table.from_batches(batches, stream.schema)

    def _cancel(self, session: ClientSession, body: bytes) -> bytes:
        request = parse(pb.CancelFlightInfoRequest, body)
        return pb.CancelFlightInfoResult(status=self._cancelled(session, request.info)).SerializeToString()

    def _cancel_query(self, session: ClientSession, body: bytes) -> bytes:
        request = command(body, pb.ActionCancelQueryRequest)
        return command_bytes(pb.ActionCancelQueryResult(result=self._cancelled(session, request.info)))

    def _cancelled(self, session: ClientSession, info: bytes) -> int:
        try:
            endpoints = fl.FlightInfo.deserialize(info).endpoints
        except pa.ArrowException as e:
            raise InvalidRequest(f"this is not a FlightInfo: {e}") from e
        tickets = [read_command(endpoint.ticket.ticket) for endpoint in endpoints]
        handles = [_text(each.statement_handle) for each in tickets if isinstance(each, pb.TicketStatementQuery)]
        cancelled = [self._statements.cancel(session, handle) for handle in handles]
        return _CANCELLED if any(cancelled) else _NOT_CANCELLABLE

    def _set_options(self, session: ClientSession, body: bytes) -> bytes:
        request, answer = parse(pb.SetSessionOptionsRequest, body), pb.SetSessionOptionsResult()

        def changed(options: dict[str, str]) -> dict[str, str]:
            for name, value in request.session_options.items():
                if name not in _OPTIONS:
                    answer.errors[name].value = _INVALID_NAME
                elif not value.string_value:
                    options.pop(name, None)
                elif name == "catalog" and value.string_value not in session.database.tables.catalogs:
                    answer.errors[name].value = _INVALID_VALUE
                else:
                    options[name] = value.string_value
            return options

        self._sessions.change_options(session, changed)
        return answer.SerializeToString()

    def _get_options(self, session: ClientSession, body: bytes) -> bytes:
        answer = pb.GetSessionOptionsResult()
        defaults = {"catalog": session.database.tables.default_catalog}
        for name, value in (defaults | session.options).items():
            answer.session_options[name].string_value = value
        return answer.SerializeToString()

    def _close_session(self, session: ClientSession, body: bytes) -> bytes:
        self._sessions.close(session)
        return pb.CloseSessionResult(status=_CLOSED).SerializeToString()


_ACTIONS: dict[str, tuple[Callable[[FlightSqlServer, ClientSession, bytes], bytes | None], str]] = {
    "CreatePreparedStatement": (FlightSqlServer._prepare, "prepare a statement"),
    "ClosePreparedStatement": (FlightSqlServer._close_prepared, "close a prepared statement"),
    "CancelFlightInfo": (FlightSqlServer._cancel, "stop a query"),
    "CancelQuery": (FlightSqlServer._cancel_query, "stop a query (the older way)"),
    "SetSessionOptions": (FlightSqlServer._set_options, "set the catalog and the schema of a session"),
    "GetSessionOptions": (FlightSqlServer._get_options, "the options of a session"),
    "CloseSession": (FlightSqlServer._close_session, "end a session"),
}
_NO_TRANSACTIONS = (
    "transactions over several statements are not supported: each INSERT is a transaction, or one commit of a lake"
)
_REFUSED_ACTIONS = {
    "BeginTransaction": _NO_TRANSACTIONS,
    "EndTransaction": _NO_TRANSACTIONS,
    "BeginSavepoint": _NO_TRANSACTIONS,
    "EndSavepoint": _NO_TRANSACTIONS,
    "CreatePreparedSubstraitPlan": "Substrait plans are not supported: send SQL",
}
_OPTIONS = ("catalog", "schema")
_INVALID_NAME, _INVALID_VALUE = 1, 2
_CANCELLED, _NOT_CANCELLABLE = 1, 3
_CLOSED = 1
_CREATE, _FAIL, _REPLACE = 1, 1, 3
_INGESTED = "__forebay_ingested"
_BOUND_ROWS_MAX = 10_000
_CLEANING_SECONDS = 1.0
_LAST_WORDS_SECONDS = 2.0
"""So long clients have to read how their statements ended when the endpoint stops."""

_DESCRIBING_MAX = 2
"""So many statements can be described while all that may run do."""

_DESCRIBED_SECONDS = 5.0
"""So long a prepared statement's columns are taken to be unchanged: a client runs it right after preparing it."""


class _RowStream:
    """The rows of a statement for Flight, with errors as Flight's."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def __iter__(self) -> _RowStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        with _answering():
            batch = next(self._running, None)
        if batch is None:
            raise StopIteration
        return batch

    def __del__(self) -> None:
        """Flight drops a stream that no client reads to its end, without any call."""
        self._running.close()


@contextmanager
def _answering() -> Iterator[None]:
    """Errors as Flight's. Only those reach a client without a Python traceback in their text."""
    try:
        yield
    except Exception as e:  # noqa: BLE001 - a bug, too, is for the log, and not for the client
        raise raised(e) from None


def raised(error: Exception) -> Exception:
    """Flight's error for another one."""
    if isinstance(error, fl.FlightError):
        return error  # type: ignore[no-any-return]
    if isinstance(error, AccessDenied):
        return fl.FlightUnauthenticatedError(str(error))  # type: ignore[no-any-return]
    if isinstance(error, Unavailable | LimitExceeded):
        return fl.FlightUnavailableError(str(error))  # type: ignore[no-any-return]
    if isinstance(error, ForebayError):
        return fl.FlightServerError(str(error))  # type: ignore[no-any-return]
    number = next(_FAILURES)
    _LOGGER.error("internal error %d", number, exc_info=error)
    text = f"internal error {number} of the endpoint, which its log explains: {type(error).__name__}: {error}"
    return fl.FlightInternalError(text)  # type: ignore[no-any-return]


_FAILURES = itertools.count(1)


def _session(context: Any) -> ClientSession:
    session: ClientSession = context.get_middleware(MIDDLEWARE).session
    return session


def _break_connections(port: int) -> None:
    """Break the connections to a port of this process: Flight has no way to end a call that waits for its client."""
    for number in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # some of these are closed meanwhile
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getsockname()[1] == port:
                    connection.shutdown(socket.SHUT_RDWR)


def _command_of(descriptor: fl.FlightDescriptor) -> bytes:
    if descriptor.descriptor_type is not fl.DescriptorType.CMD:
        raise InvalidRequest("a path is not a command of Arrow Flight SQL: connect with a Flight SQL client")
    return bytes(descriptor.command)


def _info(schema: pa.Schema, descriptor: fl.FlightDescriptor, ticket: bytes) -> fl.FlightInfo:
    return fl.FlightInfo(schema, descriptor, [fl.FlightEndpoint(ticket, [])], -1, -1)


def _check_no_transaction(message: Any) -> None:
    if message.HasField("transaction_id") and message.transaction_id:
        raise UnsupportedOperation(_NO_TRANSACTIONS)


def _text(handle: bytes) -> str:
    return handle.decode("latin-1")
