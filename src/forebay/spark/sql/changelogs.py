"""`SELECT ... FROM t CHANGES FROM ... TO ...` and `changes(t)`: what `loadChangelog` returns (Spark 4.3 and newer)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.types import StructType

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.spark.context import SessionContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.reading.plan import ChangesRange
from forebay.spark.reading.scan import Readable
from forebay.spark.reading.scan_builder import ScanBuilder

_OWN_OPTIONS = ("startingversion", "endingversion", "startingtimestamp", "endingtimestamp", "startingboundinclusive",
                "endingboundinclusive", "deduplicationmode", "computeupdates")  # fmt: skip
"""Those by which DataFrames say the range, which Spark has read."""


class ChangelogProxy(JavaProxy):
    """The changes of a table in a range. Subclasses know how they are read."""

    interfaces: ClassVar[tuple[str, ...]] = (CONNECTOR + "catalog.Changelog",)

    def __init__(
        self,
        context: SessionContext,
        table: str,
        asked: JavaObject,
        wanted: ChangesRange,
        schema: StructType,
        row_id: tuple[str, ...],
    ) -> None:
        """`asked` is Spark's ChangelogContext, `wanted` its range; `row_id` the primary key, () where there is none."""
        super().__init__(context.jvm)
        self._context: SessionContext = context
        self._name = f"{table} CHANGES"
        self._range, self._schema, self._row_id = wanted, schema, row_id
        self._is_net = str(asked.deduplicationMode().value()) == "netChanges"

    if TYPE_CHECKING:  # what subclasses answer

        def _readable(self, options: Mapping[str, str]) -> Readable: ...

    def name(self) -> str:
        return self._name

    def columns(self) -> JavaObject:
        create = self.jvm.class_(CONNECTOR + "catalog.Column").create
        fields = self.jvm.struct_type(self._schema).fields()
        columns = [create(f.name(), f.dataType(), f.nullable()) for f in fields]
        return self.jvm.array(CONNECTOR + "catalog.Column", columns)

    def containsCarryoverRows(self) -> bool:
        return False

    def containsIntermediateChanges(self) -> bool:
        return bool(self._row_id)

    def representsUpdateAsDeleteAndInsert(self) -> bool:
        return False

    def rowId(self) -> JavaObject:
        references = [self.jvm.column(name) for name in self._row_id]
        return self.jvm.array(CONNECTOR + "expressions.NamedReference", references)

    def rowVersion(self) -> JavaObject:
        return self.jvm.column("_commit_version")

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        given = self.jvm.options(options)
        left = {name: value for name, value in given.items() if name.lower() not in _OWN_OPTIONS}
        return ScanBuilder(self._context, self._readable(left))

    def _check_streamed(self) -> None:
        """Raise `UnsupportedOperation` for what a stream cannot be: Spark would wait for the end, or drop changes."""
        if self._range.stop is not None:
            raise UnsupportedOperation(f"{self._name} as a stream has no end: leave it out, or read a batch")
        if self._is_net and self._row_id:
            raise UnsupportedOperation(
                f"{self._name} as a stream has no deduplicationMode = netChanges, for which Spark would drop changes "
                "of equal times: read a batch, or leave it out"
            )


def range_of(table: object, given: JavaObject, version: Callable[[str], int]) -> ChangesRange:
    """Spark's ChangelogRange; `version` reads a version. Raises `InvalidRequest` if it ends before it begins."""
    kind = str(given.getClass().getSimpleName())
    if kind == "UnboundedRange":
        return ChangesRange()
    from_start, to_end = bool(given.startingBoundInclusive()), bool(given.endingBoundInclusive())
    if kind == "TimestampRange":
        end = given.endingTimestamp()
        start = _first_ms(int(given.startingTimestamp()), from_start)
        # An end that belongs to the range is in front of the first millisecond that does not.
        stop = None if not end.isPresent() else _first_ms(int(end.get()), not to_end)
    else:
        end = given.endingVersion()
        start = version(str(given.startingVersion())) + (not from_start)
        stop = None if not end.isPresent() else version(str(end.get())) + to_end
    if stop is not None and stop < start:
        raise InvalidRequest(f"the range of CHANGES of table {table} ends before it begins")
    return ChangesRange(start, stop, kind == "TimestampRange")


def _first_ms(micros: int, is_inside: bool) -> int:
    """The first millisecond at `micros` or later; or after it, unless `micros` itself `is_inside`."""
    return -(-micros // 1000) if is_inside else micros // 1000 + 1
