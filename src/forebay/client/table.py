"""A table for writing and reading.

A `Table` is a handle: it keeps the schema that the table had when the handle was created. Rows are written with that
schema, and rows of newer or older schemas are read with it: columns are matched by id, and missing columns are null.
Open the table again to see columns that were added since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.api.data import Missing, Rows
from forebay.api.filters import FilterLike, as_predicate
from forebay.api.keys import key_rows
from forebay.api.scan import ArrowStream, ScanRequest
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.base.quantity import Span, span_seconds
from forebay.client.cluster.buckets import check_bucket, plan_buckets
from forebay.client.cluster.offsets import LogPlace
from forebay.client.cluster.partitions import PartitionSelector, list_partitions, partition_texts
from forebay.codec.arrow.arrow_types import user_schema
from forebay.metadata.table import PartitionInfo, Schema, TableBucket, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey

if TYPE_CHECKING:
    import datetime as dt

    from forebay.api.results import WriteResult
    from forebay.api.scan import Scan
    from forebay.api.schemas import SchemaLike
    from forebay.client.lookups.lookup import Lookup
    from forebay.client.lookups.lookup_table import LookupTable
    from forebay.client.reading.log_reader import LogReader
    from forebay.client.reading.table_snapshot import TableSnapshot
    from forebay.client.session import Session
    from forebay.client.writing.encode import MergeMode, WriteEncoder
    from forebay.client.writing.writer import TableWriter


_LOGGER = logging.getLogger("forebay")

_LOOKUPS_KEPT = 16
"""Maximum number of cached lookups, one for each selection of columns."""


class Table(ArrowStream):
    """A table of a cluster: `connection.table("database.table")`. Thread-safe, and pickles with its connection."""

    def __init__(self, connection: Session, info: TableInfo, *, may_read_standby: bool = False) -> None:
        """`may_read_standby`: rows are asked of the standby of `client.read.standby`, if the connection names one."""
        self.connection = connection
        self.info = info
        self._may_read_standby = may_read_standby

    @property
    def path(self) -> TablePath:
        """Database and name."""
        return self.info.path

    @property
    def schema(self) -> Schema:
        """Columns, primary key and auto-increment column, in Fluss's types."""
        return self.info.schema

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of scans: TIMESTAMP_LTZ columns have the zone UTC."""
        return user_schema(self.info.schema.columns)

    @property
    def has_primary_key(self) -> bool:
        """Whether rows are replaced and deleted by key; a log table is append-only."""
        return self.info.has_primary_key

    def refresh(self) -> Table:
        """A new handle with the table's current schema."""
        info = self.connection.cluster.table_info(self.path)
        return Table(self.connection, info, may_read_standby=self._may_read_standby)

    @property
    def at_server(self) -> Table:
        """The same table, read at the server itself, also where the connection names a standby: for reads that have to
        see every write that was acknowledged before, such as those that decide what is written next.
        """
        return Table(self.connection, self.info)

    @property
    def _reader(self) -> Session:
        return self.connection.reads if self._may_read_standby else self.connection

    def alter(
        self,
        *,
        add_columns: SchemaLike | None = None,
        drop_columns: Sequence[str] | str = (),
        rename_columns: Mapping[str, str] | None = None,
        change_types: Mapping[str, Any] | None = None,
        comment: str | None = None,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - the word of SQL
        reset: Sequence[str] | str = (),
    ) -> Table:
        """Alter the table and return a handle with the new schema.

        Columns are added after the last one, or options set and reset; not both in one call, as in Fluss. Options that
        begin with `table.` configure the server, which stores all others without interpreting them. Columns are given
        as to `Connection.create_table`; added ones are nullable. Raises `UnsupportedOperation` for `drop_columns`,
        `rename_columns`, `change_types` and `comment`, which lake tables support.
        """
        from forebay.client.admin.definition import alteration

        others = {
            "drop_columns": drop_columns,
            "rename_columns": rename_columns,
            "change_types": change_types,
            "comment": comment,
        }
        request = alteration(self.path, add_columns=add_columns, to_set=set, to_reset=reset, unsupported=others)
        self.connection.cluster.coordinator_call(
            ApiKey.ALTER_TABLE, request, pb.AlterTableResponse, repeatable=not request.add_columns
        )
        return self.refresh()

    # ---- partitions -------------------------------------------------------------------------------------------------

    def history(self) -> pa.Table:
        """The last transactions that have written to this table (`Admin.history`)."""
        from forebay.client.admin.admin import Admin

        return Admin(self.connection).history(self.info)

    def partitions(self, values: Mapping[str, Any] | None = None) -> list[PartitionInfo]:
        """The partitions of the table; with `values`, those that have these values of some partition keys."""
        from forebay.client.display import Listing

        texts = None if values is None else partition_texts(self.info, values)
        return Listing(list_partitions(self.connection.cluster, self.path, texts))

    def create_partition(self, values: Mapping[str, Any], *, ignore_if_exists: bool = False) -> None:
        """Create a partition: `values` has each partition key's value ({"dt": "2024-01-15"}, or a date).

        Raises `AlreadyExists`, and `InvalidRequest` for invalid values.
        """
        from forebay.client.cluster.partitions import create_partition

        create_partition(self.connection.cluster, self.info, values, ignore_if_exists)

    def drop_partition(self, values: Mapping[str, Any], *, ignore_if_not_exists: bool = False) -> None:
        """Drop a partition with its rows. Raises `NotFound` (PARTITION_NOT_EXISTS)."""
        from forebay.client.cluster.partitions import drop_partition

        drop_partition(self.connection.cluster, self.info, values, ignore_if_not_exists)

    # ---- buckets ----------------------------------------------------------------------------------------------------

    def bucket(self, bucket: TableBucket | int) -> TableBucket:
        """A bucket of this table; a number is enough without partitions. Raises `InvalidRequest`."""
        return check_bucket(self.info, bucket)

    def buckets(
        self,
        partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
        buckets: Iterable[int | TableBucket] | None = None,
    ) -> list[TableBucket]:
        """The buckets of the table (of some partitions), in order."""
        return plan_buckets(self.connection.cluster, self.info, partitions, buckets)

    # ---- writing ----------------------------------------------------------------------------------------------------

    @cached_property
    def _encoder(self) -> WriteEncoder:
        from forebay.client.writing.encode import WriteEncoder

        return WriteEncoder.of(self.connection.settings, self.info)

    def append(self, data: Rows) -> WriteResult:
        """Append rows to a log table, and wait until they are acknowledged.

        `data` is a pyarrow Table, RecordBatch or RecordBatchReader, a pandas or polars DataFrame, anything else with
        `__arrow_c_stream__`, or a list of dicts. Columns are matched by name; missing nullable ones become null.
        Raises `InvalidRequest` for rows that do not fit the table, and the error of a batch that was not written.
        """
        return self._write("append", data)

    def upsert(
        self,
        data: Rows,
        columns: Sequence[str] | None = None,
        *,
        missing: str = "error",
        merge_mode: MergeMode = "default",
    ) -> WriteResult:
        """Insert rows into a primary-key table, replace those with the same keys, or merge with them as the table's
        merge engine does; wait until they are acknowledged.

        With `columns` (which include the primary key) only these are written, and all others stay unchanged. `data` and
        errors are as in `append`, but rows that lack a column are refused, unless `missing` is "null": then it is set
        to null. With `merge_mode="overwrite"` rows replace existing ones whatever the merge engine is.
        """
        from forebay.client.writing.encode import upsert_operation

        return self._write(upsert_operation(missing), data, columns, merge_mode)

    def delete(
        self, keys: Any, columns: Sequence[str] | None = None, *, merge_mode: MergeMode = "default"
    ) -> WriteResult:
        """Delete rows by primary key, and wait until that is acknowledged. Keys without a row are ignored.

        `keys` holds the primary key columns, in the forms that `append` and `lookup` take. With `columns` only the
        non-key columns among these are set to null, and a row is deleted once all its non-key columns are null.
        With `merge_mode="overwrite"` rows are deleted also where 'table.delete.behavior' ignores or refuses that.
        """
        if self.has_primary_key:
            keys = key_rows(keys, self.info.schema.primary_key, str(self.path))
        return self._write("delete", keys, columns, merge_mode)

    def write_changes(
        self, data: Rows, columns: Sequence[str] | None = None, *, merge_mode: MergeMode = "default"
    ) -> WriteResult:
        """Upsert and delete rows of a primary-key table, in order, and wait until that is acknowledged.

        `data` has the table's columns and `_change_type`, with the values insert, update_before, update_after and
        delete (or +I, -U, +U, -D). Inserts and update_after are upserts; old images (update_before) are skipped; of a
        delete only the key counts. `columns` and `merge_mode` are as in `upsert` and `delete`, and errors are as in
        `append`.
        """
        return self._write("write_changes", data, columns, merge_mode)

    def _write(
        self, operation: str, data: Any, columns: Sequence[str] | None = None, merge_mode: MergeMode = "default"
    ) -> WriteResult:
        return self.connection.sender.write(self._encoder, operation, data, columns, merge_mode=merge_mode)

    def writer(self, columns: Sequence[str] | None = None, *, merge_mode: MergeMode = "default") -> TableWriter:
        """A buffered writer, for many small writes. `columns` makes its upserts partial updates; `merge_mode` as in
        `upsert`.
        """
        from forebay.client.writing.writer import TableWriter

        return TableWriter(self.connection.sender, self._encoder, columns, merge_mode)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,  # noqa: A002 - the word of pyarrow
        limit: int | None = None,
        *,
        partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
        buckets: Sequence[int | TableBucket] | None = None,
        source: str = "live",
        as_of: TableSnapshot | int | str | dt.datetime | None = None,
    ) -> Scan:
        """A lazy scan of the table: nothing is read until requested, and it may be read repeatedly.

        Iterate over record batches, or call `to_arrow()`, `to_pandas()`, `to_polars()`, `to_duckdb()`, `count()` or
        `head()`. `filter` is SQL text ("amount > 5"), `forebay.col("amount") > 5` or a pyarrow expression. At most
        `limit` rows are returned, whichever arrive first. `partitions` are names or dicts of partition values.

        `source` selects where rows come from. "live" (the default) reads from the servers: the current rows of a
        primary-key table, as of one point in time per bucket; for a log table the same as "log". "log" reads everything
        appended to a log table so far. "union" combines lake and stream; if the table has no lake, or the lake is still
        empty, the stream is read. `as_of` is an open snapshot of this table to read; or a number or tag of a lake
        snapshot, or a time: then lake and log are read as the source "union" does, as of then.
        """
        from forebay.client.reading.sources import scan_of

        if as_of is not None:
            return self._scan_as_of(as_of, columns, filter, limit, partitions, buckets, source)
        if source == "union" and not self.info.lake_enabled:
            _tell_no_lake(self.path)
        request = ScanRequest(columns, as_predicate(filter, self.arrow_schema), limit, partitions, buckets)
        return scan_of(self._reader, self.info, request, source)

    def _scan_as_of(
        self,
        snapshot: Any,
        columns: Sequence[str] | None,
        filter: FilterLike | None,  # noqa: A002 - the word of pyarrow
        limit: int | None,
        partitions: Sequence[PartitionSelector] | PartitionSelector | None,
        buckets: Sequence[int | TableBucket] | None,
        source: str,
    ) -> Scan:
        from forebay.client.reading.table_snapshot import TableSnapshot

        if not isinstance(snapshot, TableSnapshot):
            from forebay.client.reading.sources import scan_of

            if source not in ("live", "union"):
                raise InvalidRequest(f"source={source!r} has no earlier states; leave it out, or leave out as_of")
            request = ScanRequest(
                columns, as_predicate(filter, self.arrow_schema), limit, partitions, buckets, snapshot
            )
            return scan_of(self.connection, self.info, request, "union")
        if snapshot.info.table_id != self.info.table_id:
            raise InvalidRequest(f"as_of={snapshot!r} is a snapshot of another table than {self.path}")
        if source != "live":
            raise InvalidRequest(f"source={source!r} has no snapshots; leave it out, or leave out as_of")
        if partitions is not None:
            buckets = self.buckets(partitions, buckets)
        return snapshot.scan(columns, filter, limit, buckets=buckets)

    def to_duckdb(
        self,
        connection: Any = None,
        *,
        source: str = "live",
        as_of: TableSnapshot | int | str | dt.datetime | None = None,
    ) -> Any:
        """A DuckDB relation over the table as of now: see `Scan.to_duckdb`. `source` and `as_of` are as in `scan`."""
        return self.scan(source=source, as_of=as_of).to_duckdb(connection)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.scan().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self.arrow_schema.__arrow_c_schema__()

    def snapshot(
        self,
        lease: Span | None = None,
        *,
        partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
        name: str = "",
    ) -> TableSnapshot:
        """A snapshot of all buckets of a primary-key table at one point in time, pinned on the server: for reading the
        same rows from many processes, any number of times, and for continuing with the changelog exactly after them.

        `lease` (seconds, a timedelta, or text such as "10 min"; default: the server's) is how long the snapshot stays
        open without being used. Use it in a `with` block, which releases it. `name` is shown in listings of snapshots.
        Raises `LimitExceeded` when the server has too many. See forebay.client.reading.table_snapshot for the exact
        guarantees, and for clusters without table snapshots (`is_exact`).
        """
        from forebay.client.reading.table_snapshot import open_table_snapshot

        return self._reader.answer(lambda session: open_table_snapshot(session, self.info, lease, partitions, name))

    def changes(
        self,
        start: LogPlace | Mapping[Any, Any] = "earliest",
        stop: LogPlace | Mapping[Any, Any] | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,  # noqa: A002 - the word of pyarrow
        include: Sequence[str] = ("change_type", "offset", "timestamp", "bucket"),
        partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
        buckets: Sequence[int | TableBucket] | None = None,
        timeout: Span | None = None,
        new_partitions: bool | None = None,
    ) -> LogReader:
        """All changes of the table in order, bucket by bucket. Iterate over them, or call `poll`; with an end also
        `to_arrow()` and `to_pandas()`.

        `start` is "earliest" (all that are kept), "latest" (only what comes from now on), "full" (the current rows of a
        table snapshot as inserts with offset -1 and no timestamp, then their changes; of a log table the same as
        "earliest"), a time (datetime or ISO text), or a dict of buckets and offsets, as `LogReader.position` and
        `TableSnapshot.log_offsets` have it, or what `LogReader.position.to_json()` returned. Such positions are refused
        by a server to whose logs they do not belong; a plain number is only compared with the end of the log. `stop` is
        None to read indefinitely, "latest" to read up to now, a time, or a dict of offsets (excluded). `include`
        chooses the columns in front of the rows: `_change_type` ("insert", "update_before", "update_after", "delete"),
        `_log_offset`, `_commit_timestamp`, `__bucket`. With `timeout` (a span of time), iteration ends after so long
        without a change. `new_partitions` is whether to look for partitions that are created meanwhile, and to let go
        of those that are dropped: by default a reader without an end does, unless buckets or partitions were chosen.
        Give True with a dict of offsets to go on reading a whole table.
        """
        from forebay.client.reading.log_plan import open_log_reader
        from forebay.client.row_view import RowView

        return open_log_reader(
            self.connection,
            RowView(self.info, columns, as_predicate(filter, self.arrow_schema)),
            start,
            stop,
            include,
            partitions=partitions,
            buckets=buckets,
            timeout=span_seconds(timeout, "timeout"),
            new_partitions=new_partitions,
        )

    def binlog(
        self,
        start: LogPlace | Mapping[Any, Any] = "earliest",
        stop: LogPlace | Mapping[Any, Any] | None = None,
        *,
        columns: Sequence[str] | None = None,
        partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
        buckets: Sequence[int | TableBucket] | None = None,
        timeout: Span | None = None,
        new_partitions: bool | None = None,
    ) -> LogReader:
        """All changes of a primary-key table as `changes` has them, but each update in one row.

        The columns are `_change_type` ("insert", "update", "delete"), `_log_offset`, `_commit_timestamp`, `__bucket`,
        and the rows `before` and `after` the change, null where there is none. An update belongs to the offset and time
        of its first record. Parameters are those of `changes`. Raises `UnsupportedOperation` for log tables, and for
        tables with `table.changelog.image` = `wal`, whose logs have no old rows.
        """
        from forebay.client.reading.binlog import METADATA, BinlogReader, check_has_binlog
        from forebay.client.reading.log_plan import open_log_reader
        from forebay.client.row_view import RowView

        check_has_binlog(self.info)
        return open_log_reader(
            self.connection,
            RowView(self.info, columns),
            start,
            stop,
            (*METADATA, "bucket"),
            partitions=partitions,
            buckets=buckets,
            timeout=span_seconds(timeout, "timeout"),
            new_partitions=new_partitions,
            kind=BinlogReader,
        )

    # ---- lookups ----------------------------------------------------------------------------------------------------

    def lookup(
        self,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        missing: Missing = "null",
        insert_missing: bool = False,
    ) -> pa.Table:
        """Rows of a primary-key table by their keys: one row for each key, in order.

        `keys` are plain values where the key is a single column, tuples in the order of the primary key, dicts, one of
        these alone, Arrow data or a data frame with the primary key's columns. A key without a row gives a row of
        nulls, also in the key columns (which are never null otherwise). With missing="drop" there is no row instead,
        with missing="error" it raises `NotFound`.
        With `insert_missing` the server first inserts a row of nothing but its key (and auto-increment number).
        """
        if insert_missing:
            return self._lookup(self.connection, columns).find(keys, missing, insert_missing)
        return self._looked_up(columns, lambda lookup: lookup.find(keys, missing))

    def lookup_table(
        self,
        columns: Sequence[str] | None = None,
        *,
        directory: str | None = None,
        max_age: Span | None = None,
        max_rows: int | None = None,
    ) -> LookupTable:
        """The rows by their keys, for many lookups and for joins: use it in a `with` block.

        Each lookup asks the servers for the rows as they are then. With `max_age` (a span of time), up to `max_rows`
        rows (100,000) are kept in memory for so long, and are not asked for again. Raises `UnsupportedOperation` for
        `directory`, which lake tables have: there are no files here.
        """
        from forebay.client.lookups.lookup_table import ROWS_KEPT, LookupTable

        if directory is not None:
            raise UnsupportedOperation(
                f"directory={directory!r}: lookups in table {self.path} ask its servers and keep no files; leave it out"
            )
        rows_max = ROWS_KEPT if max_rows is None else max_rows
        if rows_max < 2 or (max_rows is not None and max_age is None):
            raise InvalidRequest(
                f"max_rows={max_rows}, max_age={max_age!r}: a lookup keeps at least 2 rows, and for a time that "
                "max_age says"
            )
        return LookupTable(self.connection, self.info, columns, span_seconds(max_age, "max_age"), rows_max)

    def prefix_lookup(self, prefixes: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows whose primary keys begin with one of `prefixes`.

        A prefix is the bucket key, which has to be the first part of the primary key (and the partition keys, in a
        partitioned table). The result's first column `_prefix_index` is the index of the row's prefix, counted from 0;
        rows are in the order of the prefixes.
        """
        return self._looked_up(columns, lambda lookup: lookup.find_prefixes(prefixes))

    def _looked_up(self, columns: Sequence[str] | None, call: Callable[[Lookup], pa.Table]) -> pa.Table:
        return self._reader.answer(lambda session: call(self._lookup(session, columns)))

    def _lookup(self, session: Session, columns: Sequence[str] | None) -> Lookup:
        from forebay.client.lookups.lookup import Lookup

        key = session.number, None if columns is None else tuple(columns)
        lookup = self._lookups.get(key)
        if lookup is None:
            if len(self._lookups) >= _LOOKUPS_KEPT:
                self._lookups.clear()
            lookup = self._lookups[key] = Lookup(session, self.info, columns)
        return lookup

    @cached_property
    def _lookups(self) -> dict[tuple[int, tuple[str, ...] | None], Lookup]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        names = ("connection", "info", "_may_read_standby")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        from forebay.base.markup import abbreviated

        descriptor = self.info.descriptor
        key = f"primary key ({', '.join(self.schema.primary_key)})" if self.has_primary_key else "log table"
        parts = f", partitioned by ({', '.join(descriptor.partition_keys)})" if self.info.is_partitioned else ""
        columns = abbreviated(self.schema.names)
        return f"<forebay.Table {self.path}, {key}{parts}, {descriptor.bucket_count} buckets, columns {columns}>"

    def _repr_html_(self) -> str:
        from forebay.client.display import table_html

        return table_html(self.info)


@lru_cache(maxsize=1000)
def _tell_no_lake(path: TablePath) -> None:
    """Log, once for a table, that a union of lake and stream was requested without a lake."""
    _LOGGER.warning(
        "forebay: table %s has no lake ('table.datalake.enabled' is not true), so the source 'union' reads the stream "
        "only",
        path,
    )
