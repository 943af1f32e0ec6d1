"""The thread that sends batches, and the handling of the responses.

One sender serves all writers of a connection. Its loop: let lingering writers hand over their rows -> take ready
batches from the accumulator -> one request per server and table, with at most one batch per bucket -> check for overdue
calls. Responses are processed by the reader threads of the channels, under the accumulator's lock.

What an error means for a batch (as in Fluss's clients; the order matters):

    DUPLICATE_SEQUENCE                        written
    OUT_OF_ORDER_SEQUENCE, later one acked    written; this is a late response
    transient errors, sequence errors that    retried, in sequence; its leader is looked up again if the error
      another batch caused                    requires it; not if the writer id has changed meanwhile
    PARTITION_NOT_EXISTS                      moved to the partition of that name, which is recreated if necessary
    anything else                             failed, and its tracker keeps the error

The sender never drops a batch silently, and a batch never waits indefinitely: see
`client.writer.delivery-timeout`.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from forebay.api.results import WriteResult
from forebay.base import threads
from forebay.base.errors import (
    Conflict,
    CorruptData,
    ErrorCode,
    ForebayError,
    InternalError,
    NotFound,
    Unavailable,
)
from forebay.base.retrying import NOTICE_SECONDS, BackOff, may_repeat
from forebay.client.cluster.cluster import ClusterClient, connection_closed
from forebay.client.cluster.partitions import list_partitions
from forebay.client.cluster.routing import BucketChooser, PartitionRouter
from forebay.client.cluster.rpc import Call
from forebay.client.writing.accumulator import (
    NO_WRITER_ID,
    NOT_WRITTEN,
    Accumulator,
    Batch,
    Idempotence,
    WriteTarget,
    WriteTracker,
)
from forebay.client.writing.encode import APPEND, MergeMode, Piece, WriteEncoder, seal
from forebay.metadata.table import TableBucket, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import error_of, partition_id_of, table_path_to_pb

if TYPE_CHECKING:
    from forebay.base.tracing import Tracing

_LOGGER = logging.getLogger("forebay")

_OVERWRITE = 1
"""PutKv's `agg_mode` of writes that the merge engine does not merge."""

_OVERDUE_CHECK_SECONDS = 1.0
"""How often the sender looks for requests whose response is overdue."""

_ANSWER_SLACK_SECONDS = 1.0
"""The request timeout is also sent to the server as its own limit; the client waits this much longer for the response.
"""

_STOP_SECONDS = 5.0
"""How long `close` waits for the sender's thread to end."""

_CORRUPT_ATTEMPTS_MAX = 3
"""The maximum number of attempts for a batch if the server reports it, or its own storage, as corrupt."""


class Lingering(Protocol):
    """The part of a buffered writer that the sender uses."""

    @property
    def due_at(self) -> float | None:
        """When its buffered rows have to be sent; None while it has none."""
        ...

    def hand_over(self) -> None:
        """Encode and queue the buffered rows. Must not block on memory, and must not raise."""
        ...

    def finish(self, timeout: float | None) -> ForebayError | None:
        """Hand everything over and wait; returns an error that was not reported yet."""
        ...


class Sender:
    """Sends batches in a separate thread, which starts with the first batch."""

    def __init__(self, cluster: ClusterClient) -> None:
        settings = cluster.settings
        self.cluster = cluster
        self.idempotence = (
            Idempotence(settings["client.writer.max-inflight-requests-per-bucket"]) if settings.idempotent else None
        )
        self.accumulator = Accumulator(
            cluster.clock,
            self.idempotence,
            memory_bytes=settings["client.writer.buffer.memory-size"],
            wait_seconds=settings["client.writer.buffer.wait-timeout"],
            in_flight_max=settings["client.writer.max-inflight-requests-per-bucket"],
            delivery_seconds=settings["client.writer.delivery-timeout"],
            throttle_seconds_max=settings["client.writer.kv-backpressure.max-throttle"],
            counters=cluster.counters.writes,
        )
        self.partitions = PartitionRouter(cluster)
        self.choose_bucket = BucketChooser(cluster, settings["client.writer.bucket.no-key-assigner"])
        self._delivery_seconds: float = settings["client.writer.delivery-timeout"]
        self._acks: int = settings["client.writer.acks"]
        self._request_bytes_max: int = settings["client.writer.request-max-size"]
        self._retries: int = settings["client.writer.retries"]
        self._answer_seconds = cluster.request_seconds + _ANSWER_SLACK_SECONDS
        self._calls: set[Call] = set()
        self._lingering: weakref.WeakSet[Any] = weakref.WeakSet()
        self._thread: threads.Thread | None = None
        self._stopping = False
        self._leader_pause = BackOff(cluster.ids)
        self._next_notice_at = 0.0
        self._refresh_at = 0.0

    @property
    def thread(self) -> threads.Thread | None:
        """The sending thread, once started."""
        return self._thread

    # ---- for writers ------------------------------------------------------------------------------------------------

    def write(
        self,
        encoder: WriteEncoder,
        operation: str,
        data: Any,
        columns: Sequence[str] | None = None,
        bucket: int | None = None,
        merge_mode: MergeMode = "default",
    ) -> WriteResult:
        """Write all of `data`, and return once it is acknowledged. Raises the first error.

        `bucket`: the bucket for rows of a log table without a bucket key. `merge_mode` as in `Table.upsert`.
        """
        tracing = self.cluster.tracing
        if tracing is None:
            return self._write(encoder, operation, data, columns, bucket, merge_mode)
        with tracing.inside(f"table.{operation}", db_collection_name=str(encoder.info.path)):
            return self._write(encoder, operation, data, columns, bucket, merge_mode)

    def _write(
        self,
        encoder: WriteEncoder,
        operation: str,
        data: Any,
        columns: Sequence[str] | None,
        bucket: int | None,
        merge_mode: MergeMode,
    ) -> WriteResult:
        names, target = encoder.columns_of(operation, columns, merge_mode)
        info, tracker = encoder.info, WriteTracker()
        try:
            for batch in encoder.batches(operation, data, names):
                if batch.num_rows == 0:
                    continue
                if operation == APPEND:
                    pieces = encoder.log_pieces(batch)
                    if bucket is not None:
                        pieces = (p if p.bucket is not None else p._replace(bucket=bucket) for p in pieces)
                else:
                    pieces = encoder.kv_pieces([encoder.keyed(operation, batch, target)])
                self.submit(info, target, pieces, tracker)
                if tracker.error is not None:
                    break
        except Exception:
            # What was queued before the invalid row is in flight; wait for its outcome before raising the error.
            tracker.wait(self.cluster.request_seconds)
            raise
        tracker.wait()
        error = tracker.error
        if error is not None:
            raise error
        return tracker.result()

    def submit(
        self, info: TableInfo, target: WriteTarget, pieces: Iterable[Piece], tracker: WriteTracker, wait: bool = True
    ) -> None:
        """Queue pieces as batches, in order. Stops early when an earlier batch has failed."""
        for piece in pieces:
            self.add(Batch(target, self.place(info, piece), piece.data, piece.rows, tracker, piece.partition), wait)
            if tracker.error is not None:
                return

    def place(self, info: TableInfo, piece: Piece) -> TableBucket:
        """The bucket for a piece, in a partition that is created where it is missing."""
        partition_id, count = None, info.bucket_count
        if piece.partition is not None:
            partition = self.partitions.for_writing(info, [piece.partition])[piece.partition]
            partition_id = partition.partition_id
            count = count if partition.bucket_count is None else partition.bucket_count
        bucket = piece.bucket
        if bucket is None:
            bucket = self.choose_bucket(info, partition_id, count)
        return TableBucket(info.table_id, bucket, partition_id)

    def add(self, batch: Batch, wait: bool = True) -> None:
        """Queue a batch; with `wait`, block until there is memory. Raises as `Accumulator.add` does."""
        if self.cluster.tracing is not None:
            batch.trace = self.cluster.tracing.current(), self.cluster.tracing.now_ns()
        self._start()  # before: a batch that is queued has a thread that sends it, even if this is interrupted
        self.accumulator.add(batch, wait)

    def watch(self, writer: Lingering) -> None:
        """Register a buffered writer with the sender."""
        with self.accumulator.lock:
            self._lingering.add(writer)
        self._start()

    def unwatch(self, writer: Lingering) -> None:
        with self.accumulator.lock:
            self._lingering.discard(writer)

    def wake(self) -> None:
        """Check the lingering writers again."""
        with self.accumulator.lock:
            self.accumulator.changed.notify_all()

    def _start(self) -> None:
        if self._thread is None:
            with self.accumulator.lock:
                if self._thread is None and not self._stopping:
                    thread = threads.thread(self._run_if_started, name="forebay-sender")
                    thread.start()
                    self._thread = thread

    def close(self, timeout: float | None) -> ForebayError | None:
        """Let all writers finish, wait for all batches, then stop. Returns the first unreported error.

        `timeout` is in seconds; None: as long as a batch may take (`client.writer.delivery-timeout`, and one request).
        """
        clock = self.cluster.clock
        deadline = clock.monotonic() + (self._delivery_seconds + self._answer_seconds if timeout is None else timeout)
        errors = []

        def left() -> float:
            return min(max(deadline - clock.monotonic(), 0.0), threads.FOREVER)

        try:
            with self.accumulator.lock:
                writers = list(self._lingering)
            for writer in writers:
                error = writer.finish(left())
                if error is not None:
                    errors.append(error)
            with self.accumulator.changed:
                self.accumulator.changed.notify_all()  # of a batch whose writer was interrupted before it did
                self.accumulator.changed.wait_for(lambda: self.accumulator.is_empty, left())
        finally:
            self.stop()
        return errors[0] if errors else None

    def stop(self, join: bool = True) -> None:
        """Stop the thread. Batches that are still queued fail."""
        closed = Unavailable("the connection was closed before the batch was acknowledged")
        with self.accumulator.lock:
            self._stopping = True
            self.accumulator.close(connection_closed())
            self.accumulator.fail_queued(self.accumulator.queued(lambda _: True), closed)
        if join and self._thread is not None and self._thread is not threads.current_thread():
            self._thread.join(_STOP_SECONDS)

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run_if_started(self) -> None:
        with self.accumulator.lock:
            is_started = self._thread is threads.current_thread()
        if is_started:  # otherwise its start was interrupted, and the next batch starts another one
            self._run()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except ForebayError as e:
                # Not an error of specific batches (the cluster is unreachable): they wait or expire.
                if not may_repeat(e):
                    self._fail_all(e)
                self.cluster.clock.sleep(self._leader_pause.next_seconds())
            except Exception as e:  # noqa: BLE001 - a bug must fail the batches, not leave their writers waiting
                self._fail_all(InternalError(f"the sender failed: {type(e).__name__}: {e}"))

    def _fail_all(self, error: ForebayError) -> None:
        with self.accumulator.lock:
            self.accumulator.fail_queued(self.accumulator.queued(lambda _: True), error)

    def _turn(self) -> None:
        self._hand_over_due()
        self._get_writer_id()
        self._give_up_overdue()
        view = self.cluster.view
        accumulator = self.accumulator
        with accumulator.changed:
            expires_in = accumulator.expire()
            ready, leaderless, wake_in = accumulator.take_ready(
                lambda bucket: view.leaders.get(bucket), self._request_bytes_max
            )
            pause = self._refresh_at - self.cluster.clock.monotonic()
            if leaderless and pause > 0:
                # They wait for the next metadata request; batches of other buckets do not wait for them.
                leaderless, wake_in = [], min(pause, pause if wake_in is None else wake_in)
            if not ready and not leaderless:
                if not self._stopping and not accumulator.needs_writer_id():
                    accumulator.changed.wait(self._wait_seconds(wake_in, expires_in))
                return
        for (server, target), batches in ready.items():
            self._send(server, target, batches)
        if leaderless:
            self._find_leaders(leaderless)

    def _wait_seconds(self, *limits: float | None) -> float | None:
        """The seconds until there is something to do, unless a batch is added or a response arrives."""
        delays = [limit for limit in limits if limit is not None]
        now = self.cluster.clock.monotonic()
        delays += [max(due - now, 0.0) for writer in self._lingering if (due := writer.due_at) is not None]
        if self._calls:
            delays.append(_OVERDUE_CHECK_SECONDS)
        return min(delays, default=None)

    def _hand_over_due(self) -> None:
        now = self.cluster.clock.monotonic()
        with self.accumulator.lock:
            due = [writer for writer in self._lingering if writer.due_at is not None and writer.due_at <= now]
        for writer in due:
            writer.hand_over()

    def _give_up_overdue(self) -> None:
        now = self.cluster.clock.monotonic()
        with self.accumulator.lock:
            calls = list(self._calls)
        for call in calls:
            if call.sent_at + self._answer_seconds <= now:
                call.give_up(self._answer_seconds)
            else:
                call.tell_if_late()

    def _get_writer_id(self) -> None:
        with self.accumulator.lock:
            paths = self.accumulator.needs_writer_id()
        if not paths or self.idempotence is None:
            return
        request = pb.InitWriterRequest(table_path=[table_path_to_pb(path) for path in paths])
        try:
            writer_id = self.cluster.retrying(lambda: self._init_writer(request))
        except ForebayError as e:
            with self.accumulator.lock:
                affected = self.accumulator.queued(lambda batch: batch.target.path in paths)
                self.accumulator.fail_queued(
                    affected, type(e)(f"the server assigned no writer id: {e.message}", e.code)
                )
            return
        with self.accumulator.lock:
            self.idempotence.writer_id = writer_id

    def _init_writer(self, request: pb.InitWriterRequest) -> int:
        nodes = list(self.cluster.view.tablet_servers.values()) or list(self.cluster.refresh().tablet_servers.values())
        return self.cluster.call(nodes[0], ApiKey.INIT_WRITER, request, pb.InitWriterResponse).writer_id

    # ---- leaders ----------------------------------------------------------------------------------------------------

    def _find_leaders(self, batches: Iterable[Batch]) -> None:
        """Look up the leaders of the buckets of `batches`; batches of dropped tables or partitions fail."""
        by_path: dict[TablePath, list[Batch]] = {}
        for batch in batches:
            by_path.setdefault(batch.target.path, []).append(batch)
        found_all = True
        for path, affected in by_path.items():
            found_all &= self._find_leaders_of(path, affected)
        if found_all:
            self._leader_pause = BackOff(self.cluster.ids)
        else:
            self._refresh_at = self.cluster.clock.monotonic() + self._leader_pause.next_seconds()

    def _find_leaders_of(self, path: TablePath, batches: list[Batch]) -> bool:
        partition_ids = {b.bucket.partition_id for b in batches if b.bucket.partition_id is not None}
        try:
            view = self.cluster.refresh([path], partition_ids={path: partition_ids} if partition_ids else None)
        except ForebayError as e:
            if may_repeat(e):
                self._keep_waiting(batches, e)
                return False
            self.cluster.forget_table(path)
            table_ids = {batch.target.table_id for batch in batches}
            if e.code == ErrorCode.PARTITION_NOT_EXISTS:
                return self._reroute(path, table_ids)
            self._fail_tables(table_ids, e)
            return True
        info = view.tables.get(path)
        if info is not None and any(batch.target.table_id < info.table_id for batch in batches):
            self._fail_older(info)
            return True
        leaderless = [batch for batch in batches if view.leader(batch.bucket) is None]
        for batch in leaderless:
            message = f"bucket {batch.bucket.bucket} of {path} has no leader at the moment"
            self._keep_waiting([batch], Unavailable(message, ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION))
        return not leaderless

    def _keep_waiting(self, batches: list[Batch], error: ForebayError) -> None:
        """Store why batches cannot be sent yet, for the error of a batch that expires."""
        for batch in batches:
            batch.last_error = error
        self._tell_waiting(batches[0], error)

    def _reroute(self, path: TablePath, table_ids: set[int]) -> bool:
        """Move batches of dropped partitions to the current ones of the same names. False: call it again later."""
        try:
            info = self.cluster.table_info(path)
            self._fail_older(info)
            existing = {partition.partition_id for partition in list_partitions(self.cluster, path)}
        except ForebayError as e:
            if may_repeat(e):
                return False
            self._fail_tables(table_ids, e)
            return True
        with self.accumulator.lock:
            lost = self.accumulator.queued(lambda b: b.target.path == path and b.bucket.partition_id not in existing)
            names = {batch.bucket: batch.partition for batch in lost if batch.partition is not None}
        done = True
        for bucket, name in names.items():
            try:
                partition = self.partitions.for_writing(info, [name])[name]
            except ForebayError as e:
                if may_repeat(e):
                    return False
                with self.accumulator.lock:
                    self.accumulator.fail_queued(self.accumulator.queued(partial(_is_for, bucket)), e)
                continue
            with self.accumulator.lock:
                done &= self.accumulator.move(bucket, partition.partition_id)
        return done

    def _fail_tables(self, table_ids: set[int], error: ForebayError) -> None:
        """Fail the batches of dropped tables, but not the batches of a new table of the same name."""
        with self.accumulator.lock:
            dropped = self.accumulator.queued(lambda b: b.target.table_id in table_ids)
            self.accumulator.fail_queued(dropped, error)

    def _fail_older(self, info: TableInfo) -> None:
        """Fail the batches of an earlier table of the same name."""
        error = NotFound(
            f"table {info.path} was dropped and created again (its id is {info.table_id} now); open it again with "
            "connection.table()"
        )
        with self.accumulator.lock:
            old = self.accumulator.queued(lambda b: b.target.path == info.path and b.target.table_id < info.table_id)
            self.accumulator.fail_queued(old, error)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _send(self, server: int, target: WriteTarget, batches: list[Batch]) -> None:
        node = self.cluster.view.tablet_servers.get(server)
        take_answer = self._take_puts if target.is_kv else self._take_appends

        def answered(call: Call) -> None:
            with self.accumulator.lock:
                self._calls.discard(call)
                self._take_outcome(call, batches, take_answer)

        try:
            if node is None:
                raise Unavailable(f"server {server} has left the cluster", ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION)
            for batch in batches:
                seal(batch.data, target.is_kv, batch.writer_id, batch.sequence)
            key, request = self._request(target, batches)
            traces = () if self.cluster.tracing is None else self._traces(self.cluster.tracing, batches)
            call = self.cluster.send(node, key, request, [batch.data for batch in batches], answered, traces)
        except Exception as e:  # noqa: BLE001 - a bug must fail the batches, not leave their writers waiting
            error = e if isinstance(e, ForebayError) else InternalError(f"the sender failed: {type(e).__name__}: {e}")
            with self.accumulator.lock:
                self._fail_or_retry(batches, error, was_sent=False)
            return
        with self.accumulator.lock:
            if not call.done:
                self._calls.add(call)

    @staticmethod
    def _traces(tracing: Tracing, batches: Sequence[Batch]) -> tuple[Any, ...]:
        """The contexts of the writers of `batches`, after spans of the time that they were buffered."""
        for batch in batches:
            if batch.trace is not None and batch.attempts == 1:
                context, added_ns = batch.trace
                tracing.end(tracing.begin("write.buffer", context, start_ns=added_ns, forebay_rows=batch.rows))
        return tuple(batch.trace[0] for batch in batches if batch.trace is not None)

    def _request(self, target: WriteTarget, batches: list[Batch]) -> tuple[ApiKey, Any]:
        timeout_ms = min(int(self.cluster.request_seconds * 1000), (1 << 31) - 1)
        request: Any
        if target.is_kv:
            request = pb.PutKvRequest(
                acks=self._acks, table_id=target.table_id, timeout_ms=timeout_ms, target_columns=target.columns
            )
            if target.overwrite:
                request.agg_mode = _OVERWRITE
        else:
            request = pb.ProduceLogRequest(acks=self._acks, table_id=target.table_id, timeout_ms=timeout_ms)
        for batch in batches:
            request.buckets_req.add(partition_id=batch.bucket.partition_id, bucket_id=batch.bucket.bucket, records=b"")
        return (ApiKey.PUT_KV if target.is_kv else ApiKey.PRODUCE_LOG), request

    # ---- responses (on the reader threads, with the accumulator's lock held) ----------------------------------------

    def _take_outcome(
        self, call: Call, batches: list[Batch], take_answer: Callable[[Call, dict[TableBucket, Batch]], None]
    ) -> None:
        waiting = {batch.bucket: batch for batch in batches}
        error: ForebayError | None = None
        try:
            take_answer(call, waiting)
        except ForebayError as e:
            error = e
        except Exception as e:  # noqa: BLE001 - a bug must fail the batches, not leave their writers waiting
            error = InternalError(f"the response to a write could not be processed: {type(e).__name__}: {e}")
        if waiting:
            missing = InternalError("the server left the bucket out of its response to a write")
            self._fail_or_retry(waiting.values(), error or missing)

    def _take_appends(self, call: Call, waiting: dict[TableBucket, Batch]) -> None:
        answer = call.response().parse(pb.ProduceLogResponse)
        table_id = next(iter(waiting)).table_id
        for message in answer.buckets_resp:
            batch = waiting.pop(TableBucket(table_id, message.bucket_id, partition_id_of(message)), None)
            if batch is None:
                continue
            error = error_of(message)
            if error is not None:
                self._fail_or_retry([batch], call.named(error))
                continue
            has_offset = message.HasField("base_offset") and message.base_offset >= 0
            self.accumulator.complete(batch, message.base_offset + batch.rows if has_offset else None)

    def _take_puts(self, call: Call, waiting: dict[TableBucket, Batch]) -> None:
        answer = call.response().parse(pb.PutKvResponse)
        table_id = next(iter(waiting)).table_id
        for message in answer.buckets_resp:
            bucket = TableBucket(table_id, message.bucket_id, partition_id_of(message))
            if message.HasField("pressure"):
                self.accumulator.throttle(bucket, message.pressure)
            batch = waiting.pop(bucket, None)
            if batch is None:
                continue
            error = error_of(message)
            if error is not None:
                self._fail_or_retry([batch], call.named(error))
                continue
            has_offset = message.HasField("log_end_offset") and message.log_end_offset >= 0
            self.accumulator.complete(batch, message.log_end_offset if has_offset else None)

    def _fail_or_retry(self, batches: Iterable[Batch], error: ForebayError, *, was_sent: bool = True) -> None:
        stale = []
        hides_outcome = was_sent and _hides_outcome(error)
        for batch in batches:
            batch.may_be_written |= hides_outcome
            if error.stale_metadata or error.code == ErrorCode.PARTITION_NOT_EXISTS:
                stale.append(batch.bucket)
            self._judge(batch, error)
        if stale:
            self.cluster.forget_leader(stale)

    def _judge(self, batch: Batch, error: ForebayError) -> None:
        """Handle the outcome of one batch that was sent, or could not be: see the table in the module docstring."""
        code, state = error.code, self.idempotence
        if code == ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION:
            self.accumulator.throttle(batch.bucket, 1.0)
        if code == ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION or (
            code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION and state is not None and state.is_written(batch)
        ):
            self.accumulator.complete(batch, None)
            return
        passing = may_repeat(error) or (state is not None and state.may_retry(batch, code))
        passing |= code == ErrorCode.PARTITION_NOT_EXISTS and batch.partition is not None
        if isinstance(error, CorruptData) and batch.attempts >= _CORRUPT_ATTEMPTS_MAX:
            passing = False  # not damaged in transit: the bucket itself is
        if not passing or batch.attempts > self._retries or self._stopping:
            # A sequence returned by mistake would make the next batch look like a duplicate and be lost.
            certain = not (may_repeat(error) or isinstance(error, InternalError) or batch.may_be_written)
            self.accumulator.fail(batch, _explained(batch, error), certain=certain)
        elif state is not None and batch.writer_id != state.writer_id:
            self.accumulator.fail(batch, _writer_id_changed(batch, state, error), certain=False)
        else:
            self.accumulator.retry_later(batch, error)
            self._tell_waiting(batch, error)

    def _tell_waiting(self, batch: Batch, error: ForebayError) -> None:
        """Log why a batch has not been written yet, if it has waited long; one line for all pending batches."""
        now = self.cluster.clock.monotonic()
        waited = now - batch.added_at
        if waited >= NOTICE_SECONDS and now >= self._next_notice_at:
            self._next_notice_at = now + 3 * waited
            _LOGGER.warning(
                "forebay: rows for table %s have waited for %.0f s to be written, and are retried: %s",
                batch.target.path,
                waited,
                error.message,
            )


def _is_for(bucket: TableBucket, batch: Batch) -> bool:
    return batch.bucket == bucket


def _explained(batch: Batch, error: ForebayError) -> ForebayError:
    attempts = f" after {batch.attempts} attempts" if batch.attempts > 1 else ""
    return type(error)(
        f"writing to bucket {batch.bucket.bucket} of table {batch.target.path} failed{attempts}: {error.message}",
        error.code,
    )


def _hides_outcome(error: ForebayError) -> bool:
    """Whether a server that fails a request with `error` may have written its batches nevertheless."""
    passing = may_repeat(error) and not isinstance(error, CorruptData)
    return isinstance(error, InternalError) or (passing and error.code not in NOT_WRITTEN)


def _writer_id_changed(batch: Batch, state: Idempotence, error: ForebayError) -> ForebayError:
    now = "none" if state.writer_id == NO_WRITER_ID else str(state.writer_id)
    return Conflict(
        f"a batch for bucket {batch.bucket.bucket} of table {batch.target.path} cannot be retried: the writer id "
        f"changed from {batch.writer_id} to {now} because another batch failed, so it might be written twice. "
        f"The last error was: {error.message}",
        ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION,
    )
