"""`SELECT ... FROM t CHANGES FROM ... TO ...` of live tables: what `loadChangelog` returns (Spark 4.3 and newer)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NoReturn

from pyspark.sql.types import StructType

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata.table import TableInfo
from forebay.spark.context import CatalogContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.options import read_options
from forebay.spark.reading.live_changes import ChangesScan, require_old_rows
from forebay.spark.reading.plan import Pushdown, ScanPlan
from forebay.spark.reading.scan_builder import Readable, ScanBuilder

_OWN_OPTIONS = ("startingversion", "endingversion", "startingtimestamp", "endingtimestamp", "startingboundinclusive",
                "endingboundinclusive", "deduplicationmode", "computeupdates")  # fmt: skip
"""Those by which DataFrames say the range, which Spark has read."""

Bounds = tuple[int, int | None]


class LiveChangelog(JavaProxy):
    """The changes of a live table in a range. `asked` is Spark's ChangelogContext."""

    interfaces: ClassVar[tuple[str, ...]] = (CONNECTOR + "catalog.Changelog",)

    def __init__(self, context: CatalogContext, info: TableInfo, asked: JavaObject) -> None:
        """Raises `UnsupportedOperation` and `InvalidRequest` for a range that such a table does not have."""
        super().__init__(context.jvm)
        require_old_rows(info, "CHANGES")
        self._context, self._info = context, info
        self._name = f"{context.full_name(info.path)} CHANGES"
        times, versions = _range_of(info, asked.range())
        settings = read_options(context.settings, info.descriptor, {})
        self._scan = ChangesScan(info, settings, is_changelog=True, times=times, versions=versions)

    def name(self) -> str:
        return self._name

    def columns(self) -> JavaObject:
        create = self.jvm.class_(CONNECTOR + "catalog.Column").create
        fields = self.jvm.struct_type(self._scan.schema).fields()
        columns = [create(f.name(), f.dataType(), f.nullable()) for f in fields]
        return self.jvm.array(CONNECTOR + "catalog.Column", columns)

    def containsCarryoverRows(self) -> bool:
        return False

    def containsIntermediateChanges(self) -> bool:
        return self._info.has_primary_key

    def representsUpdateAsDeleteAndInsert(self) -> bool:
        return False

    def rowId(self) -> JavaObject:
        references = [self.jvm.column(name) for name in self._info.schema.primary_key]
        return self.jvm.array(CONNECTOR + "expressions.NamedReference", references)

    def rowVersion(self) -> JavaObject:
        return self.jvm.column("_commit_version")

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        return ScanBuilder(self._context, self._readable(self.jvm.options(options)))

    def _readable(self, options: Mapping[str, str]) -> Readable:
        context = self._context
        left = {name: value for name, value in options.items() if name.lower() not in _OWN_OPTIONS}
        read_options(context.settings, self._info.descriptor, left)

        def plan(wanted: Pushdown, schema: StructType) -> ScanPlan:
            return self._scan.plan(context.connection, context.cores, wanted, schema)

        def no_stream() -> NoReturn:
            raise UnsupportedOperation(
                f"{self._name} cannot be read as a stream; {self._info.path}$changelog and {self._info.path}$binlog can"
            )

        return Readable(self._name, self._scan.schema, (), plan, stream=no_stream)


def _range_of(info: TableInfo, given: JavaObject) -> tuple[Bounds | None, Bounds | None]:
    """The range in milliseconds, or in versions; from the first one to before the second one."""
    kind = str(given.getClass().getSimpleName())
    if kind == "UnboundedRange":
        return None, None
    from_start, to_end = bool(given.startingBoundInclusive()), bool(given.endingBoundInclusive())
    if kind == "TimestampRange":
        end = given.endingTimestamp()
        start_ms = _first_ms(int(given.startingTimestamp()), from_start)
        # An end that belongs to the range is in front of the first millisecond that does not.
        end_ms = None if not end.isPresent() else _first_ms(int(end.get()), not to_end)
        return _checked(info, start_ms, end_ms), None
    if info.is_partitioned or info.bucket_count > 1:
        raise UnsupportedOperation(
            f"CHANGES FROM VERSION: table {info.path} has several buckets, each with versions of its own. Use CHANGES "
            f"FROM TIMESTAMP, or {info.path}$changelog"
        )
    last = given.endingVersion()
    start = _version(str(given.startingVersion())) + (not from_start)
    stop = None if not last.isPresent() else _version(str(last.get())) + to_end
    return None, _checked(info, start, stop)


def _checked(info: TableInfo, start: int, stop: int | None) -> Bounds:
    if stop is not None and stop < start:
        raise InvalidRequest(f"the range of CHANGES of table {info.path} ends before it begins")
    return start, stop


def _first_ms(micros: int, is_inside: bool) -> int:
    """The first millisecond at `micros` or later; or after it, unless `micros` itself `is_inside`."""
    return -(-micros // 1000) if is_inside else micros // 1000 + 1


def _version(text: str) -> int:
    if not text.isdigit():
        raise InvalidRequest(f"'{text}' is no version of a live table: these are log offsets, from 0 on")
    return int(text)
