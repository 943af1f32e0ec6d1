"""`SELECT ... FROM t CHANGES FROM ... TO ...` and `changes(t)`: what `loadChangelog` returns (Spark 4.3 and newer).

`ChangelogProxy` is what Spark sees, of either side; a side has its `TableChanges`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from forebay.base.errors import InvalidRequest
from forebay.spark.context import SessionContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_values import column_reference, python_options, struct_type
from forebay.spark.reading.plan import ChangesRange
from forebay.spark.reading.relation import ChangesRelation
from forebay.spark.reading.scan_builder import ScanBuilder

_OWN_OPTIONS = ("startingversion", "endingversion", "startingtimestamp", "endingtimestamp", "startingboundinclusive",
                "endingboundinclusive", "deduplicationmode", "computeupdates")  # fmt: skip
"""The options of DataFrames for the range, which Spark has read."""


class TableChanges(ABC):
    """The changes of one table: its versions, and the relation of a range. Each side implements it."""

    name: str
    """The table's name in SQL."""

    @abstractmethod
    def version(self, text: str) -> int:
        """The number of a version in a statement. Raises `InvalidRequest` and `UnsupportedOperation`."""

    @abstractmethod
    def relation(self, changes: ChangesRange, is_net: bool, options: Mapping[str, str]) -> ChangesRelation:
        """The changes in a range, read with `options`; `is_net`: the net change of each row.

        Raises `UnsupportedOperation` and `InvalidRequest` for a range that the table does not have.
        """


class ChangelogProxy(JavaProxy):
    """The changes of a table in a range, for either side."""

    interfaces: ClassVar[tuple[str, ...]] = (CONNECTOR + "catalog.Changelog",)

    def __init__(self, context: SessionContext, changes: TableChanges, changelog_context: JavaObject) -> None:
        """`changelog_context` is Spark's ChangelogContext. Raises like `TableChanges.relation`, or for empty ranges."""
        super().__init__(context.jvm)
        self._context, self._changes = context, changes
        self._range = range_of(changes.name, changelog_context.range(), changes.version)
        self._is_net = str(changelog_context.deduplicationMode().value()) == "netChanges"
        relation = self._relation({})
        self._name, self._schema, self._row_id = relation.name, relation.schema, relation.key

    def _relation(self, options: Mapping[str, str]) -> ChangesRelation:
        return self._changes.relation(self._range, self._is_net, options)

    def name(self) -> str:
        return self._name

    def columns(self) -> JavaObject:
        create = self.jvm.class_(CONNECTOR + "catalog.Column").create
        fields = struct_type(self.jvm, self._schema).fields()
        columns = [create(f.name(), f.dataType(), f.nullable()) for f in fields]
        return self.jvm.array(CONNECTOR + "catalog.Column", columns)

    def containsCarryoverRows(self) -> bool:
        return False

    def containsIntermediateChanges(self) -> bool:
        return bool(self._row_id)

    def representsUpdateAsDeleteAndInsert(self) -> bool:
        return False

    def rowId(self) -> JavaObject:
        references = [column_reference(self.jvm, name) for name in self._row_id]
        return self.jvm.array(CONNECTOR + "expressions.NamedReference", references)

    def rowVersion(self) -> JavaObject:
        return column_reference(self.jvm, "_commit_version")

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        all_options = python_options(options)
        remaining = {name: value for name, value in all_options.items() if name.lower() not in _OWN_OPTIONS}
        return ScanBuilder(self._context, self._relation(remaining))


def range_of(table: object, changelog_range: JavaObject, version: Callable[[str], int]) -> ChangesRange:
    """Spark's ChangelogRange; `version` reads a version. Raises `InvalidRequest` if it ends before it begins."""
    kind = str(changelog_range.getClass().getSimpleName())
    if kind == "UnboundedRange":
        return ChangesRange()
    from_start, to_end = bool(changelog_range.startingBoundInclusive()), bool(changelog_range.endingBoundInclusive())
    if kind == "TimestampRange":
        end = changelog_range.endingTimestamp()
        start = _first_ms(int(changelog_range.startingTimestamp()), from_start)
        # An inclusive end becomes the first millisecond after the range.
        stop = None if not end.isPresent() else _first_ms(int(end.get()), not to_end)
    else:
        end = changelog_range.endingVersion()
        start = version(str(changelog_range.startingVersion())) + (not from_start)
        stop = None if not end.isPresent() else version(str(end.get())) + to_end
    if stop is not None and stop < start:
        raise InvalidRequest(f"the range of CHANGES of table {table} ends before it begins")
    return ChangesRange(start, stop, kind == "TimestampRange")


def _first_ms(micros: int, is_inside: bool) -> int:
    """The first millisecond at `micros` or later; or after it, unless `micros` itself `is_inside`."""
    return -(-micros // 1000) if is_inside else micros // 1000 + 1
