"""Transactions: rows of any tables that become visible together, once, however often a job is repeated.

    with conn.transaction("nightly-load", 17) as tx:
        tx.append("sales.events", events)
        tx.upsert(orders, changed)

Nouns: an *application* is a job by its name; the *version* is the number of its run, and grows. *Staged* rows are on
the server, durable, and seen by no reader until the commit. Rows that other processes stage belong to *attempts*: each
is a `StagedWriter`, and the commit names those that count.

A transaction may *watch* tables: its commit is refused if another writer has changed a row that it writes since.

A version that is committed already takes no rows and commits at once, so a job that runs twice adds nothing. A job that
begins a version ends the one that another process has begun and not committed.

`conn.transaction()` has neither name nor version: its rows become visible together, and each call is another one.

Clusters without transactions (Apache Fluss): rows are written at once. Upserts of a job that is repeated come out the
same; appends are there twice. A warning says so, once for each connection.
"""

from __future__ import annotations

import datetime as dt
import logging
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from forebay.api.data import Rows
from forebay.api.keys import key_rows
from forebay.api.results import WriteResult
from forebay.base import threads
from forebay.base.completion import hidden_from_completion
from forebay.base.errors import (
    ErrorCode,
    ForebayError,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    UnsupportedOperation,
)
from forebay.base.retrying import may_repeat
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.cluster.rpc import Call
from forebay.client.writing.accumulator import NO_SEQUENCE, NO_WRITER_ID, WriteTarget
from forebay.client.writing.encode import APPEND, CHANGES, DELETE, Piece, WriteEncoder, seal, upsert_operation
from forebay.metadata.log_offset import epoch_of
from forebay.metadata.table import TableBucket, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode

if TYPE_CHECKING:
    from forebay.client.session import Session
    from forebay.client.table import Table

_LOGGER = logging.getLogger("forebay")

OWN_ATTEMPT = "driver"
"""The attempt of the rows that a transaction's own process stages."""

_OWN_CHARS = 12
"""Characters of the random suffix that makes an attempt's name unique."""

_REQUEST_BYTES = 2 << 20
_REQUEST_BUCKETS_MAX = 256
"""A request to stage rows is sent when it has this many bytes or batches."""

_IN_FLIGHT_MAX = 4
"""Requests of one attempt that are in flight at a time."""

_KNOWS_CONDITIONS = 1
"""The first version of CommitTransaction with conditions (`watched`)."""

_warned_clusters: weakref.WeakSet[ClusterClient] = weakref.WeakSet()
"""The clusters without transactions that a warning has named."""


class TableRows:
    """Rows for any tables, given as to the methods of `Table`. Subclasses stage or write them."""

    connection: Session

    def append(self, table: str | TablePath | Table, data: Rows) -> WriteResult:
        """Rows for a log table; returns the numbers of rows and batches. Raises as `Table.append` does."""
        return self._write(APPEND, self._info(table), data)

    def upsert(
        self,
        table: str | TablePath | Table,
        data: Rows,
        columns: Sequence[str] | None = None,
        *,
        missing: str = "error",
    ) -> WriteResult:
        """Rows for a primary-key table, as with `Table.upsert`."""
        return self._write(upsert_operation(missing), self._info(table), data, columns)

    def delete(self, table: str | TablePath | Table, keys: Any, columns: Sequence[str] | None = None) -> WriteResult:
        """Deletes by primary key, as with `Table.delete`."""
        info = self._info(table)
        if info.has_primary_key:
            keys = key_rows(keys, info.schema.primary_key, str(info.path))
        return self._write(DELETE, info, keys, columns)

    def write_changes(
        self, table: str | TablePath | Table, data: Rows, columns: Sequence[str] | None = None
    ) -> WriteResult:
        """Upserts and deletes for a primary-key table, as with `Table.write_changes`."""
        return self._write(CHANGES, self._info(table), data, columns)

    def _info(self, table: str | TablePath | Table) -> TableInfo:
        from forebay.client.table import Table

        return table.info if isinstance(table, Table) else self.connection.cluster.table_info(TablePath.parse(table))

    def _write(self, operation: str, info: TableInfo, data: Any, columns: Sequence[str] | None = None) -> WriteResult:
        raise NotImplementedError(f"{type(self).__name__} does not say where rows go")


@dataclass
class _Request:
    """A request that may have to be sent again, with those behind it."""

    message: pb.StageRowsRequest
    payloads: list[bytearray]
    call: Call | None = None


class StagedWriter(TableRows):
    """Stages the rows of one attempt. For one thread. `finish` makes them durable, and they count once the
    transaction is committed with `attempt`: the name that was given, and something that no other writer has.

    Rows that were not finished are dropped with the transaction: a task that fails begins another attempt.
    """

    def __init__(self, session: Session, transaction_id: int, attempt: str) -> None:
        self.attempt = f"{attempt}.{session.ids.token_hex()[:_OWN_CHARS]}"
        self.rows = 0
        self.connection = session
        self._cluster = session.cluster
        self._transaction_id = transaction_id
        self._sent = 0
        self._batches = 0
        self._window: deque[_Request] = deque()

    def _write(self, operation: str, info: TableInfo, data: Any, columns: Sequence[str] | None = None) -> WriteResult:
        encoder = WriteEncoder.of(self.connection.settings, info)
        names, target = encoder.columns_of(operation, columns)
        rows, batches = self.rows, self._batches
        for batch in encoder.batches(operation, data, names):
            if batch.num_rows == 0:
                continue
            if operation == APPEND:
                pieces = encoder.log_pieces(batch)
            else:
                pieces = encoder.kv_pieces([encoder.keyed(operation, batch, target)])
            self._stage(info, target, pieces)
        return WriteResult(self.rows - rows, self._batches - batches, {})

    def _stage(self, info: TableInfo, target: WriteTarget, pieces: Iterable[Piece]) -> None:
        placed: list[tuple[TableBucket, bytearray]] = []
        size = 0
        for piece in pieces:
            seal(piece.data, target.is_kv, NO_WRITER_ID, NO_SEQUENCE)
            placed.append((self.connection.sender.place(info, piece), piece.data))
            size += len(piece.data)
            self.rows += piece.rows
            self._batches += 1
            if size >= _REQUEST_BYTES or len(placed) >= _REQUEST_BUCKETS_MAX:
                self._send(target, placed)
                placed, size = [], 0
        if placed:
            self._send(target, placed)

    def _send(self, target: WriteTarget, placed: Sequence[tuple[TableBucket, bytearray]]) -> None:
        message = pb.StageRowsRequest(
            transaction_id=self._transaction_id,
            attempt=self.attempt,
            sequence=self._sent,
            table_id=target.table_id,
            target_columns=target.columns,
        )
        for bucket, _ in placed:
            message.buckets_req.add(partition_id=bucket.partition_id, bucket_id=bucket.bucket, records=b"")
        while len(self._window) >= _IN_FLIGHT_MAX:
            self._settle_first()
        self._sent += 1
        request = _Request(message, [data for _, data in placed])
        self._window.append(request)
        self._try(request)

    def _try(self, request: _Request) -> None:
        """Send a request; where that fails, `_settle_first` finds it without a call."""
        try:
            node = _tablet_server(self._cluster)
            request.call = self._cluster.send(node, ApiKey.STAGE_ROWS, request.message, request.payloads)
        except ForebayError as e:
            if not may_repeat(e):
                raise
            request.call = None

    def _settle_first(self) -> None:
        """Wait until the first request is staged; all are sent again, in order, as long as that fails for a moment."""
        has_failed = False

        def settle() -> None:
            nonlocal has_failed
            if has_failed:
                self._again()
            has_failed = True
            call = self._window[0].call
            if call is None:
                raise Unavailable("the server cannot be reached")
            call.result(self._cluster.request_seconds)

        self._cluster.retrying(settle, allowed=may_repeat)
        self._window.popleft()

    def _again(self) -> None:
        for request in self._window:  # those behind the failed one have failed, too: they are written in order
            if request.call is not None:
                request.call.wait(self._cluster.request_seconds)
        for request in self._window:
            self._try(request)

    def finish(self) -> int:
        """End the attempt: its rows are durable when this returns. Returns their bytes."""
        while self._window:
            self._settle_first()
        request = pb.FinishStageRequest(transaction_id=self._transaction_id, attempt=self.attempt, requests=self._sent)
        return self._cluster.retrying(
            lambda: self._cluster.call(
                _tablet_server(self._cluster), ApiKey.FINISH_STAGE, request, pb.FinishStageResponse
            ),
            allowed=may_repeat,
        ).size_bytes


class PlainWriter(TableRows):
    """In place of a `StagedWriter` on clusters without transactions: rows are written at once."""

    def __init__(self, session: Session, attempt: str) -> None:
        self.attempt = attempt
        self.rows = 0
        self.connection = session

    def _write(self, operation: str, info: TableInfo, data: Any, columns: Sequence[str] | None = None) -> WriteResult:
        encoder = WriteEncoder.of(self.connection.settings, info)
        written = self.connection.sender.write(encoder, operation, data, columns)
        self.rows += written.rows
        return written

    def finish(self) -> int:
        return 0


def _tablet_server(cluster: ClusterClient) -> ServerNode:
    nodes = list(cluster.view.tablet_servers.values()) or list(cluster.refresh().tablet_servers.values())
    return nodes[0]


@hidden_from_completion("begin", "begun_id", "staged_writer")
class Transaction(TableRows):
    """Rows that become visible together, once: `connection.transaction(application, version)`.

    Use it in a `with` block, which commits at its end and aborts after an exception. Thread-safe. It pickles, once it
    has begun, for tasks that call `staged_writer`.
    """

    def __init__(self, session: Session, application: str | None = None, version: int | None = None) -> None:
        if (application is None) != (version is None):
            raise InvalidRequest(
                "give both the application and the version of a transaction, or neither if it is not to be repeated"
            )
        if application == "":
            raise InvalidRequest("'' cannot be the name of an application: leave it out, with the version")
        version = 0 if version is None else version
        if not isinstance(version, int) or not -(1 << 63) <= version < 1 << 63:
            raise InvalidRequest(f"{version!r} cannot be the version of a transaction: it is an integer of 64 bits")
        self.connection = session
        self.application = application or ""
        """The name of the job; empty for a transaction that is not repeated."""
        self.version = version
        self.committed: dt.datetime | None = None
        """When the version was committed; None until then."""
        self.begun_id: int | None = None
        """The id of the transaction on the server; 0 where there are no transactions."""
        self._lock = threads.rlock()
        self._own: StagedWriter | PlainWriter | None = None
        self._is_over = False
        self._watched: dict[int, dict[TableBucket, int]] = {}

    # ---- rows -------------------------------------------------------------------------------------------------------

    def _write(self, operation: str, info: TableInfo, data: Any, columns: Sequence[str] | None = None) -> WriteResult:
        with self._lock:
            self._check_begun()
            if self.committed is not None:
                return WriteResult(0, 0, {})
            if self._own is None:
                self._own = self.staged_writer(OWN_ATTEMPT)
            return self._own._write(operation, info, data, columns)

    def staged_writer(self, attempt: str) -> StagedWriter | PlainWriter:
        """A writer of rows, whose `attempt` the commit names: one for each attempt of a task, in any process.

        `attempt`, the beginning of that name, has up to 80 letters, digits, '.', '_' and '-'.
        """
        self._check_begun()
        if not self.begun_id:
            return PlainWriter(self.connection, attempt)
        return StagedWriter(self.connection, self.begun_id, attempt)

    def watch(self, table: str | TablePath | Table, offsets: Mapping[TableBucket, int] | None = None) -> None:
        """From now on, notice other writers: if one of them changes a row of this table that the transaction writes,
        too, its commit raises `Conflict`, and nothing is written.

        Call it before you read what you write back. `offsets` are those of an earlier read (`scan.log_offsets`): then
        changes are noticed from these on, and in buckets that are not there, from the beginning of the log. A table
        that is watched already stays as it is. Raises `UnsupportedOperation` on clusters without transactions.
        """
        info = self._info(table)
        with self._lock:
            self._check_begun()
            if not info.has_primary_key:
                raise InvalidRequest(
                    f"{info.path} has no primary key: rows of a log table are never changed",
                    ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
                )
            if not self.begun_id:
                raise UnsupportedOperation(
                    f"{info.path} cannot be watched: this cluster has no transactions, so rows are written at once"
                )
            if info.table_id not in self._watched:
                self._watched[info.table_id] = dict(_latest(self.connection, info) if offsets is None else offsets)

    def _check_begun(self) -> None:
        if self.begun_id is None or self._is_over:
            raise InvalidRequest(
                f"{self} has ended: begin another one"
                if self._is_over
                else f"{self} has not begun: use it in a `with` block, or call begin()"
            )

    # ---- beginning and ending ---------------------------------------------------------------------------------------

    def begin(self, join: bool = False) -> Transaction:
        """Begin the transaction, and end an open one of the application.

        With `join`, take part in an open one of the same version, which another process may have begun. Raises
        `Conflict` for a version that is older than one that was committed.
        """
        request = pb.BeginTransactionRequest(application=self.application, version=self.version, join=join)
        cluster = self.connection.cluster
        try:
            answer = cluster.coordinator_call(
                ApiKey.BEGIN_TRANSACTION, request, pb.BeginTransactionResponse, repeatable=True
            )
        except UnsupportedOperation:
            self.begun_id = 0
            if cluster not in _warned_clusters:
                _warned_clusters.add(cluster)
                _LOGGER.warning(
                    "forebay: this cluster has no transactions: rows of %s are written at once, and rows appended to "
                    "log tables are there again if the job is repeated",
                    self,
                )
            return self
        self.begun_id = answer.transaction_id
        if answer.HasField("committed_ms"):
            self.committed = _moment(answer.committed_ms)
        return self

    def commit(self, attempts: Sequence[str] | None = None, operation: str = "WRITE") -> None:
        """Make the rows visible: those that this object has staged, or those of these `attempts`, in this order.

        `operation` is what the histories of its tables call it, in up to 100 characters.

        Raises `Conflict` if another writer has changed rows that are watched; the transaction has then ended. Raises
        `OutcomeUnknown` if there is no answer: commit the same version again, which writes nothing twice.
        """
        with self._lock:
            self._check_begun()
            if self.committed is None and self.begun_id:
                if attempts is None:
                    attempts = self._finish_own()
                self._commit(attempts, operation)
            self._is_over = True

    def _finish_own(self) -> list[str]:
        if self._own is None:
            return []
        self._own.finish()
        return [self._own.attempt]

    def _commit(self, attempts: Sequence[str], operation: str) -> None:
        request = pb.CommitTransactionRequest(transaction_id=self.begun_id, attempts=attempts, operation=operation)
        for table_id, offsets in self._watched.items():
            condition = request.unchanged_since.add(table_id=table_id)
            for bucket, offset in offsets.items():
                condition.buckets.add(
                    partition_id=bucket.partition_id,
                    bucket_id=bucket.bucket,
                    log_offset=offset,
                    log_epoch=epoch_of(offset),
                )
        try:
            answer = self.connection.cluster.coordinator_call(
                ApiKey.COMMIT_TRANSACTION,
                request,
                pb.CommitTransactionResponse,
                repeatable=True,
                version_min=_KNOWS_CONDITIONS if self._watched else 0,
            )
        except (Unavailable, NotFound) as e:
            # A transaction that the server does not know may be one that it had committed before an answer was lost.
            if e.code == ErrorCode.DISK_WRITE_LOCKED:
                raise
            raise OutcomeUnknown(
                f"{e.message}. {self} may be committed or not: commit the same version again, which writes nothing "
                "twice",
                e.code,
            ) from e
        self.committed = _moment(answer.committed_ms)

    def abort(self) -> None:
        """Drop the staged rows. Does nothing once the transaction has ended."""
        with self._lock:
            if self.begun_id and self.committed is None and not self._is_over:
                request = pb.AbortTransactionRequest(transaction_id=self.begun_id)
                self.connection.cluster.coordinator_call(
                    ApiKey.ABORT_TRANSACTION, request, pb.AbortTransactionResponse, repeatable=True
                )
            self._is_over = True

    def __enter__(self) -> Transaction:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
            return
        try:
            self.abort()
        except ForebayError as e:  # the error inside the block counts; the server ends an idle transaction
            _LOGGER.warning("forebay: %s is not aborted yet: %s", self, e.message)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_own": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threads.rlock()

    def __str__(self) -> str:
        if not self.application:
            return "a transaction" if not self.begun_id else f"transaction {self.begun_id}"
        return f"version {self.version} of application {self.application!r}"

    def __repr__(self) -> str:
        state = "committed" if self.committed is not None else "over" if self._is_over else "open"
        return f"<forebay.Transaction {self}, {state}>"


def _latest(session: Session, info: TableInfo) -> dict[TableBucket, int]:
    from forebay.client.cluster.buckets import plan_buckets
    from forebay.client.cluster.offsets import list_offsets

    return list_offsets(session.cluster, info, plan_buckets(session.cluster, info, None, None), "latest")


def _moment(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
