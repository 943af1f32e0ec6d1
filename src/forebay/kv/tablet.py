"""The key-value state of one bucket of a primary-key table, driven by its changelog.

Nouns: a *put request* is one KV record batch of a client; a *group* is the requests that have queued up for the bucket
and are written together; the *state* is the engine's rows.

Flow of `put_group`, in the one thread that writes this bucket (docs/design/0005-the-log-is-the-truth.md):

1. Each request is merged against the state as left by the requests before it, and becomes one changelog batch, which is
   appended to the log. A request that fails changes nothing and does not stop the others.
2. If any request has acks=all, the log is synced once for the group.
3. The engine takes all changes of the group and the new applied offset in one atomic step.
4. The high watermark advances. Only now do readers see the changelog, and callers their responses.

So nothing is visible that is not in the log, nothing is acknowledged with acks=all that is not on the disk, and after a
crash at any point the state is restored from the log beyond the engine's applied offset.

A changelog batch is built from the result of a merge, and read back to restore the state (`ChangelogCodec`): exactly
one log batch for each KV batch, in the table's log format and with its latest schema. (Rows of a decided transaction
cannot be refused: where their changelog is larger than a log batch may be, it becomes several.) A batch without any
change is still written, empty, and takes one offset: it records its writer's sequence. The log is the source of truth,
so everything is checked before it is appended: rows decode under the table's schema, NOT NULL columns have values, and
the key bytes are the encoding of the row's key columns. Otherwise a restart would not restore the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode, ForebayError, InvalidRequest, NotFound, StorageFailure, check
from forebay.base.quantity import format_bytes
from forebay.codec.kv._records import positions_of_other_schemas, slice_kv_records
from forebay.codec.kv.kv_batch import (
    HEADER_BYTES,
    KvBatch,
    KvHeader,
    halves_of_kv_batch,
    kv_batch_header,
    parse_kv_batch,
)
from forebay.codec.kv.value_batch import (
    LENGTH_PREFIX_BYTES,
    STORED_PREFIX_BYTES,
    ValueDecoder,
    stored_schema_id,
    stored_value,
)
from forebay.codec.log.header import LogBatchHeader
from forebay.codec.log.log_batch import (
    ChangeType,
    build_arrow_batch,
    build_empty_batch,
    build_row_batch,
    change_types,
    decode_arrow_batch,
    decode_row_batch,
)
from forebay.codec.rows._slices import RowSlices
from forebay.codec.rows.keys import KeyEncoder, prefix_encoder, primary_key_encoder
from forebay.codec.rows.row_codec import DecodedRows, row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.kv import _digest
from forebay.kv._merge import MergePlan
from forebay.kv.auto_increment import AutoIncrementSequence, FetchSegment
from forebay.kv.engine import UNBOUNDED, EngineState, GroupWrites, KvEngine, KvSnapshot
from forebay.kv.merge_plans import merge_plan
from forebay.log.tablet import LogTablet
from forebay.metadata.table import Schema, TableInfo
from forebay.metadata.table_options import ArrowCompression, LogFormat
from forebay.metadata.types import TypeRoot

SchemaById = Callable[[int], Schema]
Writes = dict[bytes, bytes | None]


ROW_BYTES_MAX = 96 << 20
"""Maximum size of a row with its key, so that an answer with it fits into a frame (100 MiB)."""
STAGED_ROW_BYTES_MAX = ROW_BYTES_MAX // 2
"""The same for rows of a transaction: a log batch has to hold such a row and the one that it replaces."""


class _StoredPrefixes(dict[int, bytes]):
    """The prefix of a row in its stored value, cached by the row's length, because many rows have the same length."""

    def __init__(self, schema_id: int) -> None:
        self._schema_id = schema_id

    def __missing__(self, row_bytes: int) -> bytes:
        prefix = self[row_bytes] = stored_value(self._schema_id, bytes(row_bytes))[:STORED_PREFIX_BYTES]
        return prefix


class ChangelogCodec:
    """Builds and reads the changelog of one table at one version of its schema."""

    def __init__(self, info: TableInfo, schema_by_id: SchemaById) -> None:
        self.info = info
        self._schema_by_id = schema_by_id
        self._columns = info.schema.columns
        self._row_format = RowFormat(info.descriptor.kv_format.value)
        self._log_format = info.descriptor.log_format
        self._keys = primary_key_encoder(info.descriptor)
        self._rows = row_codec(self._columns, self._row_format)
        self._upgrade = ValueDecoder(self._columns, self._row_format, schema_by_id)
        self._required = tuple(position for position, c in enumerate(self._columns) if not c.data_type.nullable)

    @cached_property
    def _compression(self) -> ArrowCompression:
        return self.info.descriptor.arrow_compression

    # ---- writing ----------------------------------------------------------------------------------------------------

    def check(self, request: PutRequest) -> None:
        """Check a put that is written later as thoroughly as if it were written now.

        Raises what a put raises: `CorruptData`, `InvalidRequest`, `NotFound`.
        """
        # Whether the sum of these rows alone fits says nothing about their sums with the rows that are there then.
        plan = merge_plan(self.info, request.target_columns, request.overwrite, must_succeed=True)
        header = kv_batch_header(request.records)
        if plan.takes_whole_rows and not self.changes_keys and self._has_plain_rows(request, header):
            return
        batch = self.parsed(request, header)
        batch, rows = self.with_canonical_keys(batch, self.of_latest_schema(batch))
        self._check_row_bytes(rows, batch.keys, STAGED_ROW_BYTES_MAX)
        if request.target_columns and self.info.descriptor.delete_behavior != "ignore" and rows.nulls().any():
            self._check_cleared(set(request.target_columns))
        _, changelog, keys, _, _ = plan.merge(batch.keys, rows, {}, _AnyId())
        self._check(self._rows.decode(changelog), keys)

    def _has_plain_rows(self, request: PutRequest, header: KvHeader) -> bool:
        """Whether a put of whole rows is sound at a first look, as `build` takes it: half of what a check costs."""
        if header.schema_id != self.info.schema_id:
            return False
        keys, rows = slice_kv_records(request.records, HEADER_BYTES, header.record_count)
        if rows.nulls().any() or rows.total_bytes > STAGED_ROW_BYTES_MAX // 2:
            return False
        return self._is_plain(self._rows.decode_rows(rows), keys)

    def _is_plain(self, rows: DecodedRows, keys: RowSlices) -> bool:
        """Whether rows and their keys are sound at a first look."""
        return rows.is_plainly_sound(self._required) and self._keys.match(rows, keys)

    def _check_row_bytes(self, rows: RowSlices, keys: list[bytes] | RowSlices, bytes_max: int) -> None:
        """Refuse rows that have more than `bytes_max` with their keys."""
        if rows.total_bytes <= bytes_max // 2:  # keys are columns of the rows, too
            return
        size = max(len(keys[at] or b"") + len(rows[at] or b"") for at in range(len(rows)))
        if size > bytes_max:
            where = " in a transaction" if bytes_max < ROW_BYTES_MAX else ""
            raise InvalidRequest(
                f"a row of table {self.info.path} would have {format_bytes(size)} with its key, more than the limit of "
                f"{format_bytes(bytes_max)}{where}",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )

    def _check_cleared(self, target_columns: set[int]) -> None:
        """Refuse deletes of some columns if they would leave rows without a value that these must have.

        Which rows are there then is not known: those with nothing but these columns would go, and are refused, too.
        """
        if len(target_columns) == len(self._columns):
            return
        for position in target_columns.intersection(self._required):
            name = self._columns[position].name
            if name not in self.info.schema.primary_key:
                raise InvalidRequest(
                    f"a delete that names some columns of table {self.info.path} clears these, but column '{name}' is "
                    "NOT NULL: delete whole rows, without a list of columns, or write new values for them",
                    ErrorCode.INVALID_TARGET_COLUMN,
                )

    @property
    def changes_keys(self) -> bool:
        """Whether a client's keys may have to be brought into canonical form."""
        return self._keys.changes_keys

    def parsed(self, request: PutRequest, header: KvHeader) -> KvBatch:
        """The batch of a put. Raises `CorruptData`, `InvalidRequest`."""
        batch = parse_kv_batch(request.records, header)
        if b"" in batch.keys:
            # Only Iceberg's encoding has such keys, of empty texts and bytes; engines reserve the empty key.
            raise InvalidRequest(
                f"table {self.info.path}: a key of no bytes at all, such as an empty text in an Iceberg table, "
                "cannot be stored",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        return batch

    def of_latest_schema(self, batch: KvBatch) -> RowSlices:
        """The rows of a batch, of the latest schema. Raises `NotFound` for a schema that does not exist."""
        latest = self.info.schema_id
        if not 0 <= batch.schema_id <= latest:
            raise NotFound(
                f"the batch has schema {batch.schema_id}, but the latest schema of {self.info.path} is {latest}",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        return batch.rows if batch.schema_id == latest else self.upgrade_rows(batch.rows, batch.schema_id)

    def build(
        self,
        kinds: bytes,
        rows: RowSlices,
        keys: list[bytes] | RowSlices,
        writer_id: int,
        sequence: int,
        *,
        is_checked: bool = False,
    ) -> bytes | bytearray:
        """Return the log batch of a merge's outcome: a change type, a row and a key for each changelog record.

        Raises `CorruptData` for rows that do not decode or do not match their key, and `InvalidRequest` for a null in a
        NOT NULL column, unless that `is_checked` already.
        """
        schema_id = self.info.schema_id
        if not kinds:
            return build_empty_batch(schema_id=schema_id, writer_id=writer_id, batch_sequence=sequence)
        if not is_checked:
            self._check_row_bytes(rows, keys, ROW_BYTES_MAX)
        decoded = self._rows.decode_rows(rows)
        batch: DecodedRows | pa.RecordBatch = decoded
        if not is_checked and not (isinstance(keys, RowSlices) and self._is_plain(decoded, keys)):
            batch = decoded.to_batch()
            self._check(batch, keys)
        if self._log_format is LogFormat.ARROW:
            return build_arrow_batch(
                batch,
                schema_id=schema_id,
                change_types=kinds,
                writer_id=writer_id,
                batch_sequence=sequence,
                compression=self._compression.codec,
                level=self._compression.level,
            )
        encoded = rows.to_arrow()
        if self._log_format.value != self._row_format.value:
            whole = batch.to_batch() if isinstance(batch, DecodedRows) else batch
            encoded = row_codec(self._columns, RowFormat(self._log_format.value)).encode(whole)
        return build_row_batch(
            encoded, schema_id=schema_id, change_types=kinds, writer_id=writer_id, batch_sequence=sequence
        )

    def _check(self, batch: pa.RecordBatch, keys: list[bytes] | RowSlices) -> None:
        try:
            batch.validate(full=True)  # text that is not UTF-8 would look like damage to every reader, and to recovery
        except pa.ArrowInvalid as e:
            raise CorruptData(
                f"a row written to table {self.info.path} is malformed: {e}", ErrorCode.CORRUPT_RECORD_EXCEPTION
            ) from e
        for position in self._required:
            column = batch.column(position)
            if column.null_count:
                raise InvalidRequest(
                    f"column '{self._columns[position].name}' of table {self.info.path} is NOT NULL, "
                    f"but {column.null_count} of the rows written have no value for it",
                    ErrorCode.INVALID_TARGET_COLUMN,
                )
        # Not `pa.array`, which would import pandas.
        supplied = keys if isinstance(keys, RowSlices) else RowSlices.from_values(keys)
        if not self._keys.encode(batch).equals(supplied.to_arrow()):
            raise CorruptData(
                f"a record for table {self.info.path} has a key that is not the key of its row",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )

    def upgrade(self, values: list[bytes]) -> list[bytes]:
        """Return stored values of older schema versions as stored values of the latest one."""
        ids = np.fromiter((stored_schema_id(value) for value in values), np.int16, len(values))
        encoded = self._rows.encode(self._upgrade.decode(ids, RowSlices.from_values(values, 6)))
        return [stored_value(self.info.schema_id, row) for row in encoded.to_pylist()]

    def upgrade_rows(self, rows: RowSlices, schema_id: int) -> RowSlices:
        """Return rows of an older schema as rows of the latest one; nulls (deletes) stay."""
        present = np.flatnonzero(~rows.nulls())
        ids = np.full(len(present), schema_id, np.int16)
        encoded = self._rows.encode(self._upgrade.decode(ids, rows.take(present))).to_pylist()
        upgraded: list[bytes | None] = [None] * len(rows)
        for position, row in zip(present.tolist(), encoded):
            upgraded[position] = row
        return RowSlices.from_values(upgraded)

    def with_canonical_keys(self, batch: KvBatch, rows: RowSlices) -> tuple[KvBatch, RowSlices]:
        """Return a batch and its rows (of the latest schema) with zeros and NaNs in keys in canonical form."""
        keys = self._keys.canonical(batch.keys)
        if keys is batch.keys:
            return batch, rows
        present = np.flatnonzero(~rows.nulls())
        values: list[bytes | None] = [None] * len(rows)
        encoded = self._rows.encode(self._keys.canonical_columns(self._rows.decode(rows.take(present))))
        for position, row in zip(present.tolist(), encoded.to_pylist()):
            values[position] = row
        return batch._replace(keys=list(keys)), RowSlices.from_values(values)

    # ---- reading back -----------------------------------------------------------------------------------------------

    def replay(self, header: LogBatchHeader, data: memoryview) -> tuple[Writes, int]:
        """Return the effect of a log batch: the last value of each key (None: deleted), and the rows added."""
        if header.record_count == 0:
            return {}, 0
        columns = self._schema_by_id(header.schema_id).columns
        batch, kind_array = self._decoded(header, data)
        if kind_array is None:
            raise CorruptData(
                f"the changelog of {self.info.path} has a batch of appends at offset {header.base_offset}",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )
        kinds = kind_array.to_numpy()
        effective = np.flatnonzero(kinds != ChangeType.UPDATE_BEFORE)
        selected = batch.take(pa.array(effective))
        keys = self._keys.encode(selected).to_pylist()
        encoded = row_codec(columns, self._row_format).encode(selected).to_pylist()
        prefixes = _StoredPrefixes(header.schema_id)
        values: list[bytes | None] = [prefixes[len(row)] + row for row in encoded]
        for position in np.flatnonzero(kinds[effective] == ChangeType.DELETE).tolist():
            values[position] = None
        writes: Writes = dict(zip(keys, values))
        added = int(np.count_nonzero(kinds == ChangeType.INSERT)) - int(np.count_nonzero(kinds == ChangeType.DELETE))
        return writes, added

    def _decoded(self, header: LogBatchHeader, data: memoryview) -> tuple[pa.RecordBatch, pa.Array | None]:
        """The rows of a log batch, which has some, and their change types."""
        columns = self._schema_by_id(header.schema_id).columns
        if self._log_format is LogFormat.ARROW:
            return decode_arrow_batch(data, 0, header, columns), change_types(data, 0, header)
        rows, kinds = decode_row_batch(data, 0, header)
        return row_codec(columns, RowFormat(self._log_format.value)).decode(rows), kinds

    def keys_of_changes(self, header: LogBatchHeader, data: memoryview) -> pa.BinaryArray:
        """The keys of the changes of a log batch, which has some, in their order."""
        return self._keys.encode(self._decoded(header, data)[0])

    def keys_of_put(self, records: bytes | memoryview) -> pa.BinaryArray:
        """The keys of a KV record batch, as `keys_of_changes` has them."""
        return pa.array(self._keys.canonical(parse_kv_batch(records).keys), pa.binary())

    def shown_keys(self, keys: Sequence[bytes]) -> str:
        """Some keys, for a message."""
        return self._keys.shown(keys)


ACKS_ALL = -1
"""`acks` of a put that is acknowledged after a sync."""

_PLANS_MAX = 256
"""Number of cached merge plans for different target columns."""

_REPLAY_ROWS = 200_000
"""Rows that recovery collects before it applies them to the engine in one step."""


class TableView(Protocol):
    """The current table, as a tablet sees it."""

    @property
    def info(self) -> TableInfo: ...

    def schema_by_id(self, schema_id: int) -> Schema:
        """Return a version of the schema. Raises `NotFound` (SCHEMA_NOT_EXIST) for a version that does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class PutRequest:
    """One KV record batch to write. `target_columns` are positions in the schema; empty means all columns.

    `overwrite`: earlier values are restored (Fluss's undo of a failed job), so rows replace existing ones and deletes
    delete, whatever the table's merge engine and 'table.delete.behavior' do for other writes.
    """

    records: bytes | memoryview
    target_columns: tuple[int, ...] = ()
    acks: int = ACKS_ALL
    overwrite: bool = False
    decided_ms: int | None = None
    """The time of its decision, if the rows are those of a transaction: checked when they were staged, and no longer
    refused. The checksum of such a batch is not looked at."""

    @property
    def is_decided(self) -> bool:
        return self.decided_ms is not None


@dataclass(frozen=True, slots=True)
class PutResult:
    """The changelog's end offset after a put (for a duplicate: after the original), or the error."""

    log_end_offset: int = -1
    error: ForebayError | None = None


class _Appended(NamedTuple):
    """A changelog batch in the log (of a duplicate: the original), and the rows that it adds."""

    end: int
    rows_added: int


class KvTablet:
    """One bucket's rows. One thread calls `put_group`, `recover` and `checkpoint`; any thread reads."""

    def __init__(self, table: TableView, log: LogTablet, engine: KvEngine, fetch_segment: FetchSegment) -> None:
        self._table = table
        self._log = log
        self.engine = engine
        self._fetch_segment = fetch_segment
        self._codec: ChangelogCodec | None = None
        self._plans: dict[tuple[int, tuple[int, ...], bool, bool], MergePlan] = {}
        self._sequence: AutoIncrementSequence | None = None

    @property
    def applied_offset(self) -> int:
        """The offset below which the changelog is in the state."""
        return self.engine.state.applied_offset

    @property
    def row_count(self) -> int | None:
        """Number of live rows, or None for a table whose changelog image does not allow counting them."""
        count = self.engine.state.row_count
        return None if count < 0 or not self._table.info.descriptor.has_full_changelog else count

    # ---- writing ----------------------------------------------------------------------------------------------------

    def put_group(self, requests: Sequence[PutRequest]) -> list[PutResult]:
        """Write a group of requests in order; one result each. See the module's docstring.

        A storage failure fails every request of the group that had not failed on its own.
        """
        keeps_digest = (
            self._table.info.descriptor.has_full_changelog
        )  # both need the old values, which the same changelog image provides
        added = 0
        results: list[PutResult] = []
        end_before = self._log.log_end_offset
        group: GroupWrites | None = None
        for request in requests:
            try:
                if group is None:
                    self._require_caught_up()
                    group = self.engine.begin(keeps_digest)
                for appended in self._append_changelog(request, group):
                    end = appended.end
                    added += appended.rows_added
            except ForebayError as e:
                results.append(PutResult(error=e))
                continue
            results.append(PutResult(end))
        try:
            if any(r.acks == ACKS_ALL and not p.error for r, p in zip(requests, results)):
                self._log.sync()
            if group is not None and self._log.log_end_offset != end_before:
                group.apply(self._state_after(added, group.digest_change()))
                group = None
        except ForebayError as e:
            error = _after_append(e)
            return [p if p.error else PutResult(error=error) for p in results]
        finally:
            if group is not None:
                group.abandon()
        # Also if nothing was appended: what is acknowledged now may be a resent batch, whose first attempt had reached
        # the log and then failed, without a sync and without becoming visible.
        self._log.raise_high_watermark(self.applied_offset)
        return results

    def _append_changelog(self, request: PutRequest, group: GroupWrites) -> Iterator[_Appended]:
        """Merge one request and append its changelog; yield what was appended for each batch, mostly one.

        A crash may leave some of several batches. All are written again then, before anything else is.
        """
        try:
            appended = self._append_batch(request, group)
        except InvalidRequest as e:
            is_divisible = request.is_decided and e.code is ErrorCode.RECORD_TOO_LARGE_EXCEPTION
            halves = halves_of_kv_batch(request.records) if is_divisible else None
            if halves is None:
                raise
            for half in halves:
                yield from self._append_changelog(replace(request, records=half), group)
        else:
            yield appended

    def _append_batch(self, request: PutRequest, group: GroupWrites) -> _Appended:
        """Merge one request and append its changelog as one batch.

        The engine has space for the group with this request before its changelog is appended: on a full disk nothing
        is written.
        """
        codec = self._changelog_codec()
        header = kv_batch_header(request.records, has_checksum=not request.is_decided)
        duplicate = self._log.find_duplicate(header.writer_id, header.sequence) if header.writer_id >= 0 else None
        if duplicate is not None:
            return _Appended(duplicate.last_offset + 1, 0)
        log_batch, added = self._merged(request, header, group, self._ids(codec.info))
        try:
            appended = self._log.append_as_leader(log_batch, committed_ms=request.decided_ms)
        except BaseException:
            group.take_back()
            raise
        check(not appended.duplicate, "a duplicate passed the check for duplicates")
        return _Appended(appended.next_offset, added)

    def _merged(
        self, request: PutRequest, header: KvHeader, group: GroupWrites, sequence: AutoIncrementSequence | None
    ) -> tuple[bytes | bytearray, int]:
        """Merge one request into the group; return its changelog and the rows added. An error leaves no effect."""
        codec = self._changelog_codec()
        plan = self._merge_plan(codec.info, request)
        merged = None
        if header.schema_id == codec.info.schema_id and not codec.changes_keys:
            merged = group.put_records(request.records, HEADER_BYTES, header.record_count, plan, sequence)
        if merged is not None:
            kinds, changelog, changed_keys, added = merged
            try:
                log_batch = codec.build(
                    kinds, changelog, changed_keys, header.writer_id, header.sequence, is_checked=request.is_decided
                )
            except BaseException:
                group.take_back()
                raise
        else:
            batch = codec.parsed(request, header)
            batch, rows = codec.with_canonical_keys(batch, codec.of_latest_schema(batch))
            before = self._before(codec, plan, batch, rows, group)
            kinds, changelog, keys, touched, added = plan.merge(batch.keys, rows, before, sequence)
            log_batch = codec.build(
                kinds, changelog, keys, batch.writer_id, batch.sequence, is_checked=request.is_decided
            )
            group.put(touched)
        return log_batch, added

    def try_puts(self, requests: Iterable[PutRequest]) -> None:
        """Merge requests with the rows that are there, without any effect. Raises the error of the first that fails.

        For the thread that writes the bucket, as `put_group`.
        """
        self._require_caught_up()
        any_id = cast(AutoIncrementSequence, _AnyId())
        group = self.engine.begin(self._table.info.descriptor.has_full_changelog)
        try:
            for request in requests:
                self._merged(request, kv_batch_header(request.records), group, any_id)
        finally:
            group.abandon()

    def catch_up(self) -> None:
        """Apply the changelog up to the end of the log, and make it visible, as a put does if the state is behind."""
        self._require_caught_up()
        self._log.raise_high_watermark(self.applied_offset)

    def _require_caught_up(self) -> None:
        """Check that the state is at the end of the log."""
        if self.applied_offset != self._log.log_end_offset:
            self.recover()

    def _changelog_codec(self) -> ChangelogCodec:
        info = self._table.info
        if self._codec is None or self._codec.info is not info:
            self._codec = ChangelogCodec(info, self._table.schema_by_id)
            self._plans.clear()  # options that were altered without the schema change them, too
        return self._codec

    def _merge_plan(self, info: TableInfo, request: PutRequest) -> MergePlan:
        targets = tuple(sorted(set(request.target_columns)))  # a client may name a column as often as it likes
        key = (info.schema_id, targets, request.overwrite, request.is_decided)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            plan = self._plans[key] = merge_plan(info, targets, request.overwrite, request.is_decided)
        return plan

    def _before(
        self, codec: ChangelogCodec, plan: MergePlan, batch: KvBatch, rows: RowSlices, group: GroupWrites
    ) -> Mapping[bytes, bytes | None]:
        """The stored values that merging this batch needs, all in the latest schema."""
        keys = batch.keys
        if not plan.reads_old_values:
            keys = [keys[i] for i in np.flatnonzero(rows.nulls()).tolist()]
        before = group.get(keys)
        keys = list(dict.fromkeys(keys))
        stale = positions_of_other_schemas([before[key] for key in keys], codec.info.schema_id)
        if not stale:
            return before
        values = [value for i in stale if (value := before[keys[i]]) is not None]
        return {**before, **dict(zip([keys[i] for i in stale], codec.upgrade(values)))}

    def _ids(self, info: TableInfo) -> AutoIncrementSequence | None:
        name = info.schema.auto_increment_column
        if name is not None and self._sequence is None:
            root = info.schema.column(name).data_type.root
            state = self.engine.state
            self._sequence = AutoIncrementSequence(
                name,
                2**31 - 1 if root is TypeRoot.INT else 2**63 - 1,
                info.descriptor.option("table.auto-increment.cache-size"),
                self._fetch_segment,
                state.next_id,
                state.last_id,
            )
        return self._sequence

    def _state_after(self, added: int, digest_change: int | None) -> EngineState:
        state = self.engine.state
        if not self._table.info.descriptor.has_full_changelog:
            state = replace(state, row_count=-1)
        state = state.advanced(self._log.log_end_offset, added, digest_change)
        if self._sequence is not None:
            state = replace(state, next_id=self._sequence.next_id, last_id=self._sequence.last_id)
        return state

    # ---- reading ----------------------------------------------------------------------------------------------------

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return `schema id | row` of each key, None if there is none."""
        return [None if v is None else v[LENGTH_PREFIX_BYTES:] for v in self.stored_values(keys)]

    def stored_values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key as it is stored, which is `LENGTH_PREFIX_BYTES` before what `lookup` returns."""
        keys = self._keys.canonical(keys)
        if not all(keys):  # no row has an empty key, and engines store their state under it
            by_key = dict(zip(filled := [key for key in keys if key], self.engine.multi_get(filled)))
            return [by_key.get(key) for key in keys]
        return self.engine.multi_get(keys)

    @cached_property
    def _keys(self) -> KeyEncoder:
        return primary_key_encoder(self._table.info.descriptor)  # ALTER TABLE changes no key columns

    @cached_property
    def _prefixes(self) -> KeyEncoder | None:
        return prefix_encoder(self._table.info.descriptor)

    def prefix_lookup(self, prefix: bytes, bytes_max: int = UNBOUNDED) -> list[bytes]:
        """Return `schema id | row` of each key with this `prefix`, in key order; `bytes_max` as in `KvEngine`."""
        [canonical] = self._prefixes.canonical([prefix]) if self._prefixes is not None else [prefix]
        return [value[LENGTH_PREFIX_BYTES:] for value in self.engine.prefix(canonical, bytes_max)]

    def first_values(self, limit: int, bytes_max: int = UNBOUNDED) -> list[bytes]:
        """Return the stored values of the first `limit` keys; `bytes_max` as in `KvEngine.prefix`."""
        return self.engine.first(limit, bytes_max)

    def snapshot(self) -> KvSnapshot:
        """Return a snapshot of the current rows, with the changelog offset that they contain (exclusive)."""
        return self.engine.snapshot()

    # ---- recovery ---------------------------------------------------------------------------------------------------

    def recover(self, progress: Callable[[int, int], None] | None = None, until: int | None = None) -> int:
        """Apply the changelog that the engine has not seen; return the number of log batches replayed.

        `until`: the end of the changelog for now, where a batch ends; None: the end of the log. `progress` is called
        with (offset reached, end offset). Raises `CorruptData` for a damaged log, and where the log does not go back as
        far as the state.
        """
        state = self.engine.state
        end = self._log.log_end_offset if until is None else max(until, state.applied_offset)
        if state.applied_offset < self._log.log_start_offset:
            raise CorruptData(
                f"the key-value state of table {self._table.info.path} is at changelog offset {state.applied_offset}, "
                f"and {self._log.folder} begins at {self._log.log_start_offset}: the checkpoint that covered the "
                "records in between ('table.log.ttl' removed them) is lost or damaged; restore it from a copy",
                ErrorCode.KV_STORAGE_EXCEPTION,
            )
        check(state.applied_offset <= end, f"the state is at {state.applied_offset}, beyond the log's end {end}")
        if state.applied_offset == end:
            return 0
        codec = self._changelog_codec()
        # The rest of an id segment is unknown once changes are replayed: the next id begins a new segment.
        state = replace(
            state,
            next_id=1,
            last_id=0,
            row_count=state.row_count if self._table.info.descriptor.has_full_changelog else -1,
        )
        writes: dict[bytes, bytes | None] = {}
        added = batches = 0
        for header, data in self._log.iterate_batches(state.applied_offset, end):
            replayed, rows = codec.replay(header, data)
            writes.update(replayed)
            added += rows
            batches += 1
            if len(writes) >= _REPLAY_ROWS:
                state = self._advanced(state, header.next_offset, writes, added)
                self.engine.apply(writes, state)
                writes, added = {}, 0
                if progress is not None:
                    progress(header.next_offset, end)
        self.engine.apply(writes, self._advanced(state, end, writes, added))
        self._sequence = None
        return batches

    def _advanced(self, state: EngineState, end: int, writes: Mapping[bytes, bytes | None], added: int) -> EngineState:
        """Return the state after `writes`, which add `added` rows according to the changelog.

        If the earlier rows are looked up for the digest, the added rows are counted instead: a repaired changelog may
        lack the insert of a row that it updates.
        """
        before = self.engine.state
        if not self._table.info.descriptor.has_full_changelog or (before.applied_offset > 0 and before.digest is None):
            return state.advanced(end, added, None)
        old = dict(zip(writes, self.engine.multi_get(list(writes))))
        added = sum((new is not None) - (old[key] is not None) for key, new in writes.items())
        return state.advanced(end, added, _digest.change(writes, old))


def _after_append(error: ForebayError) -> ForebayError:
    """Return the error for a group whose changelog is written but whose state is not; it must not deny the write."""
    if error.code != ErrorCode.DISK_WRITE_LOCKED:
        return error
    return StorageFailure(
        f"{error.message}. The changelog has this write already, and the state follows it with the next one",
        ErrorCode.KV_STORAGE_EXCEPTION,
    )


class _AnyId:
    """An auto-increment sequence for puts that are only checked: it returns any id."""

    def next(self) -> int:
        return 1
