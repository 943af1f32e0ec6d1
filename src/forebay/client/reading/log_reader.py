"""Reading logs: of one or all buckets of a table, from any place, up to a given end or continuously.

Nouns: the *fetch offset* of a bucket is the next offset to request; its *position* is the offset after the last
returned row. Between the two are fetched chunks that are not decoded yet, at most about
`client.scanner.log.fetch.max-bytes`.

Rules: rows of a bucket are returned in offset order; buckets take turns. One fetch per server is in flight and covers
all of its buckets that need data, so the server works while the client decodes. Nothing happens between calls: no
thread prefetches. `position` can be stored and passed to `Table.changes(start=...)` to resume later; offsets without
rows (an empty or filtered batch) advance it, too. Each fetch names the epochs that its offsets belong to, and servers
that know epochs refuse what is not of their logs (docs/format/log_epochs.md).

A reader that begins with the current rows (`start="full"`) first returns those of a table snapshot, bucket by bucket,
and then each bucket's changes from the log offset of its rows.

Failures: leaders that have moved or are unavailable are looked up again until `client.retry-timeout` has passed without
any success; a reader that discovers new partitions abandons dropped ones; offsets that the server no longer has
(LOG_OFFSET_OUT_OF_RANGE) and all other errors are raised. If the server finds a log damaged, the reader raises the
error immediately and continues with the other buckets on the next call; when only damaged ones are left it raises
again, so that the rows are not mistaken for the complete log.

Flow: plan (buckets, start and stop offsets) -> fetch -> chunks -> forebay.client.reading.log_decode -> record batches.
Prior art: LogFetcher of Fluss's Java client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.api.scan import ArrowStream, RowReader
from forebay.base import threads
from forebay.base.completion import hidden_from_completion
from forebay.base.errors import CorruptData, ErrorCode, ForebayError, InvalidRequest, Unavailable
from forebay.base.quantity import Span, span_ms
from forebay.base.retrying import BackOff, WaitNotice, may_read_again
from forebay.client.cluster.buckets import plan_buckets
from forebay.client.cluster.offsets import EARLIEST, list_offsets
from forebay.client.cluster.rpc import Call
from forebay.client.reading.log_decode import ChunkDecoder
from forebay.client.reading.log_epochs import check_offsets
from forebay.client.reading.remote_log import RemoteLog, read_remote
from forebay.client.row_view import RowView
from forebay.codec.log.header import iter_headers
from forebay.metadata.log_offset import LogPosition, epoch_of, with_epoch
from forebay.metadata.table import TableBucket, TableInfo
from forebay.metadata.table_options import LogFormat
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode
from forebay.protocol.messages import error_of, partition_id_of

if TYPE_CHECKING:
    from forebay.client.session import Session

_CLIENT = -1
_BATCH_BYTES_MAX = 1 << 29
"""The largest batch for which a reader raises its fetch limit."""

_DISCOVERY_SECONDS = 10.0
"""How often a reader without an end looks for new partitions."""


class _Bucket:
    """The read state of one bucket."""

    __slots__ = (
        "back_off",
        "bucket",
        "bytes_max",
        "damage",
        "epoch",
        "failing_since",
        "fetch_offset",
        "not_before",
        "position",
        "position_epoch",
        "stop",
        "stop_checked",
        "waiting",
    )

    def __init__(self, bucket: TableBucket, start: int, stop: int | None, bytes_max: int, back_off: BackOff) -> None:
        self.bucket = bucket
        self.bytes_max = bytes_max
        self.go_to(start)
        self.stop = stop
        self.stop_checked = ""
        """The epoch of the server when it was found that the end belongs to its log."""
        self.waiting = 0
        self.back_off = back_off
        self.not_before = 0.0
        self.failing_since: float | None = None
        self.damage: ForebayError | None = None
        """Why the bucket is not read further: the server found its log damaged, and the error has been raised."""

    def go_to(self, offset: int) -> None:
        """Continue at `offset`."""
        self.epoch = self.position_epoch = epoch_of(offset) or ""
        """The epochs that the two offsets belong to; empty if they are not known."""
        self.fetch_offset = self.position = int(offset)

    @property
    def is_fetched(self) -> bool:
        return self.stop is not None and self.fetch_offset >= self.stop


@dataclass
class _Chunk:
    """The data of one bucket in a response: bytes, or segments in remote storage."""

    bucket: _Bucket
    data: memoryview
    projected: bool
    end: int
    epoch: str
    """The epoch that its end belongs to."""
    remote: RemoteLog | None = None


@dataclass
class _Fetch:
    """A fetch under way."""

    call: Call
    buckets: dict[TableBucket, _Bucket]
    projected: bool = field(default=False)


@hidden_from_completion("described", "last_bucket", "stop_offsets")
class LogReader(ArrowStream):
    """A reader of logs; see the module. Open one with `Table.changes`. Not thread-safe."""

    def __init__(
        self,
        session: Session,
        info: TableInfo,
        starts: Mapping[TableBucket, int],
        stops: Mapping[TableBucket, int] | None,
        view: RowView,
        include: Sequence[str],
        timeout: float | None = None,
        discover: bool = False,
        first: RowReader | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        """`first` reads the rows that precede the changes; its `log_offsets` replace `starts` at its end.

        `release` is called when no more of these rows will be read.
        """
        settings = session.settings
        self._session = session
        self._info = info
        self._view = view
        self._decoder = ChunkDecoder(
            view,
            include,
            lambda schema_id: session.cluster.schema(info, schema_id),
            settings["client.scanner.log.check-crc"],
            after_rows=first is not None,
        )
        self._first = first
        self._first_rows = None if first is None else first.with_buckets()
        self._first_error: ForebayError | None = None
        self._release = release
        self._bounded = stops is not None
        self._timeout = timeout
        self._max_bytes: int = settings["client.scanner.log.fetch.max-bytes"]
        self._max_bytes_for_bucket: int = settings["client.scanner.log.fetch.max-bytes-for-bucket"]
        self._buckets = {
            bucket: self._begin(bucket, start, None if stops is None else stops[bucket])
            for bucket, start in starts.items()
        }
        self._min_bytes: int = settings["client.scanner.log.fetch.min-bytes"]
        self._wait_ms = int(settings["client.scanner.log.fetch.wait-max-time"] * 1000)
        self._remote_first = settings["client.scanner.log.read-preference"] == "remote_first"
        self._retry_seconds: float = settings["client.retry-timeout"]
        is_arrow = info.descriptor.log_format is LogFormat.ARROW
        self._projecting = view.is_projected and is_arrow
        self._filter = view.wire_filter() if is_arrow else None
        self._fetches: dict[ServerNode, _Fetch] = {}
        self._chunks: deque[_Chunk] = deque()
        self._decoding: Iterator[tuple[pa.RecordBatch | None, int]] | None = None
        self._decoding_bucket: _Bucket | None = None
        self._waiting_bytes = 0
        self._changed = threads.event()
        self._notice = WaitNotice(session.clock)
        self._counters = session.cluster.counters.reads_of(info.path)
        self._next_discovery = session.clock.monotonic() + _DISCOVERY_SECONDS if discover else None
        self._closed = False
        self.last_bucket: TableBucket | None = None
        """The bucket of the rows that were returned last."""

    def _begin(self, bucket: TableBucket, start: int, stop: int | None) -> _Bucket:
        return _Bucket(bucket, start, stop, self._max_bytes_for_bucket, BackOff(self._session.ids))

    # ---- for users --------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches: metadata columns, then the table's."""
        return self._decoder.schema

    @property
    def position(self) -> LogPosition:
        """The offset after the last returned row, per bucket: pass it as `start` to resume here.

        `position.to_json()` can be stored. It names the history that the offsets belong to, so that a server that was
        restored from an older copy refuses what it has never had.

        Raises `InvalidRequest` until a reader with start="full" has returned all of the current rows: no offset of the
        log says which of them have been returned.
        """
        if self._first is not None:
            raise InvalidRequest(
                f"this reader of table {self._info.path} has not returned all of the current rows, so there is no "
                "offset to resume from: read on until `_log_offset` is no longer -1, or begin again with start='full'"
            )
        return LogPosition(
            {bucket: with_epoch(state.position, state.position_epoch) for bucket, state in self._buckets.items()}
        )

    @property
    def stop_offsets(self) -> dict[TableBucket, int] | None:
        """The end offset of each bucket (exclusive); None for a reader without an end."""
        if not self._bounded:
            return None
        return {bucket: state.stop for bucket, state in self._buckets.items() if state.stop is not None}

    @property
    def finished(self) -> bool:
        """Whether everything up to the end has been returned."""
        return self._closed or (
            self._bounded
            and self._first is None
            and not self._chunks
            and self._decoding is None
            and all(state.is_fetched for state in self._buckets.values())
        )

    def poll(self, timeout: Span = 0.0) -> pa.RecordBatch | None:
        """The next rows, after waiting at most `timeout` (a span of time); None if there are none, or at the end.

        With start="full", the current rows are awaited as long as that takes, up to `client.retry-timeout`.
        """
        clock = self._session.clock
        now = clock.monotonic()
        self._counters.polled(now)
        deadline = now + (timeout if isinstance(timeout, int | float) else span_ms(timeout, "timeout") / 1000)
        if self._first is not None and not self._closed:
            batch = self._next_of_first()
            if batch is not None:
                return batch
        while not self.finished:
            self._changed.clear()
            self._take_answers()
            self._send_fetches()
            had_chunks = bool(self._chunks)
            batch = self._next_decoded()
            if batch is not None:
                with self._session.cluster.counters.lock:
                    self._counters.rows += batch.num_rows
                return batch
            if had_chunks:
                continue  # there is room now: fetch more before waiting
            left = deadline - clock.monotonic()
            if left <= 0 or self.finished:
                break
            self._raise_damage_at_the_end()
            self._changed.wait(min(left, self._seconds_to_next_event()))
        return None

    def _next_of_first(self) -> pa.RecordBatch | None:
        """The next of the current rows; at their end None, and each bucket goes on at the log offset of its rows."""
        assert self._first is not None
        assert self._first_rows is not None
        if self._first_error is not None:
            raise self._first_error  # the rows that are missing must not be mistaken for rows that are not there
        try:
            for bucket, rows in self._first_rows:
                assert bucket is not None
                self.last_bucket = bucket
                return self._decoder.snapshot_rows(rows, bucket)
        except ForebayError as e:
            self._first_error = e
            raise
        for bucket, offset in self._first.log_offsets.items():
            self._buckets[bucket].go_to(offset)
        self._leave_first()
        self._first = self._first_rows = None
        return None

    def _leave_first(self) -> None:
        if self._first is not None:
            self._first.close()
            if self._release is not None:
                self._release()

    def _raise_damage_at_the_end(self) -> None:
        """Raise a damaged bucket's error again when nothing else is left to read: the rows are incomplete."""
        damage = [state.damage for state in self._buckets.values() if state.damage is not None]
        if damage and all(state.is_fetched or state.damage is not None for state in self._buckets.values()):
            raise damage[0]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        clock = self._session.clock
        began = clock.monotonic()
        while not self.finished:
            slice_seconds = 1.0
            if self._timeout is not None:
                left = began + self._timeout - clock.monotonic()
                if left <= 0:
                    break
                slice_seconds = min(left, slice_seconds)
            batch = self.poll(slice_seconds)
            if batch is not None:
                return batch
        raise StopIteration

    def reader(self) -> pa.RecordBatchReader:
        """The rows up to the end as a `pa.RecordBatchReader`. Raises `InvalidRequest` for a reader that has none."""
        self._require_end()
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows up to the end. Raises `InvalidRequest` for a reader that has none."""
        self._require_end()
        return pa.Table.from_batches(list(self), schema=self.schema)

    def to_pandas(self, **options: Any) -> Any:
        """All rows up to the end as a pandas DataFrame."""
        return self.to_arrow().to_pandas(**options)

    def _require_end(self) -> None:
        if not self._bounded and self._timeout is None:
            raise InvalidRequest(
                "this reader has no end, so its rows cannot be taken all at once: give stop='latest' or a timeout, or "
                "iterate"
            )

    @property
    def described(self) -> str:
        """The table, the number of buckets, and whether there is an end, as text."""
        end = "up to fixed offsets" if self._bounded else "without an end"
        return f"{self._info.path}, {len(self._buckets)} buckets, {end}"

    def __repr__(self) -> str:
        return f"<forebay.LogReader of {self.described}{', finished' if self.finished else ''}>"

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._closed = True
        self._leave_first()
        for fetch in self._fetches.values():
            fetch.call.channel.abandon(fetch.call)
        self._fetches.clear()
        self._chunks.clear()
        self._decoding = None

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- fetching ---------------------------------------------------------------------------------------------------

    def _send_fetches(self) -> None:
        if self._waiting_bytes >= self._max_bytes:
            return
        now = self._session.clock.monotonic()
        self._discover_partitions(now)
        busy = {bucket for fetch in self._fetches.values() for bucket in fetch.buckets}
        by_node: dict[ServerNode, dict[TableBucket, _Bucket]] = {}
        full: set[ServerNode] = set()
        for bucket, state in list(self._buckets.items()):
            wants = not state.is_fetched and state.damage is None and bucket not in busy and state.not_before <= now
            if not wants:
                continue
            try:
                node = self._session.cluster.leader(self._info.path, bucket)
            except ForebayError as e:
                self._failed([state], e)
                continue
            if state.waiting > self._max_bytes_for_bucket:
                full.add(node)
            elif node not in self._fetches:
                by_node.setdefault(node, {})[bucket] = state
        for node, states in by_node.items():
            # Without the full bucket the server might wait for data of the others, and the full one for that response.
            if node not in full:
                self._send_fetch(node, states)

    def _send_fetch(self, node: ServerNode, states: dict[TableBucket, _Bucket]) -> None:
        request = pb.FetchLogRequest(
            follower_server_id=_CLIENT,
            max_bytes=max(self._max_bytes, *(state.bytes_max for state in states.values())),
            max_wait_ms=self._wait_ms,
            min_bytes=self._min_bytes,
            read_preference=1 if self._remote_first else None,
        )
        table = request.tables_req.add(table_id=self._info.table_id, projection_pushdown_enabled=self._projecting)
        if self._projecting:
            table.projected_fields.extend(self._view.positions)
        if self._filter is not None:
            table.filter_predicate.CopyFrom(self._filter)
            table.filter_schema_id = self._info.schema_id
        try:
            epoch: str | None = None
            if self._session.cluster.has_log_epochs(node):
                epoch = request.log_epoch = next(iter(states.values())).epoch
            # The server fills its answer in this order: first those with the least to decode.
            for bucket, state in sorted(states.items(), key=lambda each: each[1].waiting):
                table.buckets_req.add(
                    partition_id=bucket.partition_id,
                    bucket_id=bucket.bucket,
                    fetch_offset=state.fetch_offset,
                    max_fetch_bytes=state.bytes_max,
                    log_epoch=None if epoch is None or epoch == state.epoch else state.epoch,
                )
            call = self._session.cluster.send(node, ApiKey.FETCH_LOG, request, callback=lambda _: self._changed.set())
        except ForebayError as e:
            self._failed(list(states.values()), e)
            return
        self._fetches[node] = _Fetch(call, states, self._projecting)

    def _seconds_to_next_event(self) -> float:
        """Return the seconds until something is due even without a response."""
        now = self._session.clock.monotonic()
        pauses = [state.not_before - now for state in self._buckets.values() if state.not_before > now]
        return max(min([1.0, *pauses]), 0.001)

    def _discover_partitions(self, now: float) -> None:
        if self._next_discovery is None or now < self._next_discovery:
            return
        self._next_discovery = now + _DISCOVERY_SECONDS
        cluster = self._session.cluster
        new = [bucket for bucket in plan_buckets(cluster, self._info) if bucket not in self._buckets]
        if new:
            for bucket, start in list_offsets(cluster, self._info, new, EARLIEST).items():
                self._buckets[bucket] = self._begin(bucket, start, None)

    # ---- responses --------------------------------------------------------------------------------------------------

    def _take_answers(self) -> None:
        limit = self._session.cluster.request_seconds + self._wait_ms / 1000
        now = self._session.clock.monotonic()
        for node, fetch in list(self._fetches.items()):
            if not fetch.call.done and fetch.call.sent_at + limit <= now:
                fetch.call.give_up(limit)
            if not fetch.call.done:
                fetch.call.tell_if_late(self._wait_ms / 1000)
                continue
            del self._fetches[node]
            try:
                message, payloads = fetch.call.response().parse_split(pb.FetchLogResponse)
            except ForebayError as e:
                self._failed(list(fetch.buckets.values()), e)
                continue
            with self._session.cluster.counters.lock:
                self._counters.fetches += 1
                self._counters.bytes += sum(map(len, payloads))
                self._counters.last_fetch_seconds = fetch.call.seconds
            self._take_answer(fetch, message, payloads)

    def _take_answer(self, fetch: _Fetch, message: pb.FetchLogResponse, payloads: list[memoryview]) -> None:
        remaining = iter(payloads)
        self._check_stops(fetch, message.log_epoch)
        for table in message.tables_resp:
            for answer in table.buckets_resp:
                data = next(remaining) if answer.HasField("records") else memoryview(b"")
                bucket = TableBucket(table.table_id, answer.bucket_id, partition_id_of(answer))
                state = fetch.buckets.get(bucket)
                if state is None:
                    continue
                error = error_of(answer)
                if error is not None:
                    self._failed([state], fetch.call.named(error))
                    continue
                if state.failing_since is not None:
                    state.failing_since, state.back_off = None, BackOff(self._session.ids)
                    self._notice.over()
                state.epoch = answer.log_epoch or message.log_epoch or state.epoch
                self._take_bucket(fetch, state, answer, data)

    def _check_stops(self, fetch: _Fetch, server_epoch: str) -> None:
        """Raise `InvalidRequest` for an end that is not of the logs of a server that has answered.

        That of a plan may be: the server may have been restored from an older copy since.
        """
        if not server_epoch or not self._bounded:
            return
        unchecked = [s for s in fetch.buckets.values() if s.stop is not None and s.stop_checked != server_epoch]
        ends = {s.bucket: s.stop for s in unchecked if epoch_of(s.stop or 0) not in (None, server_epoch)}
        check_offsets(self._session, self._info, {bucket: end for bucket, end in ends.items() if end is not None})
        for state in unchecked:
            state.stop_checked = server_epoch

    def _take_bucket(self, fetch: _Fetch, state: _Bucket, answer: pb.PbFetchLogRespForBucket, data: memoryview) -> None:
        if answer.HasField("remote_log_fetch_info"):
            remote = RemoteLog.from_pb(answer.remote_log_fetch_info)
            state.fetch_offset = max(remote.end_offset, state.fetch_offset)
            self._chunks.append(_Chunk(state, memoryview(b""), False, state.fetch_offset, state.epoch, remote))
            return
        end = state.fetch_offset
        for _, header in iter_headers(data, allow_truncated=True):
            end = max(end, header.next_offset)
        if len(data) and end == state.fetch_offset and not answer.HasField("filtered_end_offset"):
            # Fluss truncates a batch that is larger than the limit: raise the limit.
            if len(data) < state.bytes_max or state.bytes_max > _BATCH_BYTES_MAX:
                raise CorruptData(
                    f"bucket {state.bucket.bucket} of table {self._info.path}: a response of {len(data)} bytes for "
                    f"offset {state.fetch_offset} holds no record from there on"
                )
            state.bytes_max *= 2
            return
        if answer.HasField("filtered_end_offset"):
            end = max(end, answer.filtered_end_offset)
        if end > state.fetch_offset:
            state.fetch_offset = end
            state.waiting += len(data)
            self._waiting_bytes += len(data)
            self._chunks.append(_Chunk(state, data, fetch.projected, end, state.epoch))
        elif state.position == end:
            state.position_epoch = state.epoch

    def _failed(self, states: list[_Bucket], error: ForebayError) -> None:
        """Handle buckets that could not be fetched: schedule a retry, or raise."""
        if error.code == ErrorCode.INVALID_COLUMN_PROJECTION and self._projecting:
            # Fluss cannot project batches that were written before a column was added. The client does it instead.
            self._projecting = False
            return
        if error.code == ErrorCode.PARTITION_NOT_EXISTS and self._next_discovery is not None:
            for state in states:
                self._buckets.pop(state.bucket, None)
            return
        if not may_read_again(error):
            explained = self._explained(states, error)
            if isinstance(error, CorruptData):
                for state in states:
                    state.damage = explained
            raise explained
        cluster, now = self._session.cluster, self._session.clock.monotonic()
        if error.stale_metadata:
            cluster.forget_leader(state.bucket for state in states)
        for state in states:
            state.failing_since = now if state.failing_since is None else state.failing_since
            if cluster.closed or now - state.failing_since > self._retry_seconds:
                raise self._explained(states, error)
            state.not_before = now + state.back_off.next_seconds()
        self._notice.tell(self._explained(states, error).message)

    def _explained(self, states: list[_Bucket], error: ForebayError) -> ForebayError:
        state = states[0]
        where = (
            f"reading the log of bucket {state.bucket.bucket} of table {self._info.path} at offset {state.fetch_offset}"
        )
        hint = ""
        if error.code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
            if "epoch" not in error.message:  # otherwise the server says what to do
                hint = (
                    ". The records there have been removed, or never existed, or the server was restored from an older "
                    "copy: start from 'earliest', or from an offset that connection.admin.list_offsets() gives"
                )
        elif isinstance(error, Unavailable):
            hint = ". To resume later, start another reader from this one's position"
        return type(error)(f"{where} failed: {error.message}{hint}", error.code)

    # ---- decoding ---------------------------------------------------------------------------------------------------

    def _next_decoded(self) -> pa.RecordBatch | None:
        """The next rows from the fetched chunks; advances positions."""
        while True:
            if self._decoding is None:
                if not self._chunks:
                    return None
                self._decoding_bucket = self._chunks[0].bucket
                self._decoding = self._decoded(self._chunks[0])
            state = self._decoding_bucket
            item = next(self._decoding, None)
            if item is None or state is None:
                self._drop_chunk()
                continue
            batch, reached = item
            if reached >= state.position:
                state.position, state.position_epoch = reached, self._chunks[0].epoch
            if batch is not None:
                self.last_bucket = state.bucket
                return batch

    def _decoded(self, chunk: _Chunk) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        state = chunk.bucket
        blocks = [chunk.data] if chunk.remote is None else self._remote_blocks(chunk.remote, state.position)
        for block in blocks:
            yield from self._decoder.decode(block, state.bucket, state.position, state.stop, chunk.projected)
        yield None, chunk.end if state.stop is None else min(chunk.end, state.stop)

    def _remote_blocks(self, remote: RemoteLog, first: int) -> Iterator[memoryview]:
        counters, lock = self._counters, self._session.cluster.counters.lock
        with lock:
            counters.remote_segments += len(remote.segments)
        try:
            for block in read_remote(remote, first):
                with lock:
                    counters.remote_bytes += len(block)
                yield block
        except ForebayError:
            with lock:
                counters.remote_errors += 1
            raise

    def _drop_chunk(self) -> None:
        chunk = self._chunks.popleft()
        chunk.bucket.waiting -= len(chunk.data)
        self._waiting_bytes -= len(chunk.data)
        self._decoding = self._decoding_bucket = None
