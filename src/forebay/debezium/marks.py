"""Deletes as rows that say so, and the position of each event in its source as a column.

A table with the merge engine `versioned` takes changes in any order, and repeatedly, if each row has a version of its
source. A delete has to stay as a row, because a key without a row has no version that an older change could be compared
with. The *flag* is the column that is true in the row of a deleted key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from forebay.api.changes import DELETE, UPDATE_AFTER
from forebay.base.errors import InvalidRequest
from forebay.debezium.events import EventRow, Fault, is_unlogged
from forebay.metadata.table import Column
from forebay.metadata.types import TypeRoot

BINLOG = "binlog"
"""A field: MySQL's file, position and row (`source.file`, `source.pos`, `source.row`) as one number."""

KAFKA_OFFSET = "kafka.offset"
"""A field: the offset of the message, which orders the messages of a partition, and so those of a key."""

_FILE_BITS, _POSITION_BITS, _ROW_BITS = 19, 32, 12
_TIMES = {"ts_ms": "Timestamp", "ts_us": "MicroTimestamp", "ts_ns": "NanoTimestamp"}
_ROWS = ("before", "after")


class VersionColumn(NamedTuple):
    """A column of the table, and the field of events that it gets: a path such as `source.lsn`, or one of the above."""

    name: str
    field: str

    @classmethod
    def parse(cls, text: str) -> VersionColumn:
        """`text` is COLUMN=FIELD. Raises `InvalidRequest`."""
        name, _, field = (part.strip() for part in text.partition("="))
        if not name or not all(field.split(".")) or field.split(".")[0] in _ROWS:
            raise InvalidRequest(
                f"the version column {text!r} is not COLUMN=FIELD, such as lsn=source.lsn: FIELD is one that events "
                f"have beside the rows in 'before' and 'after', or {BINLOG} (of MySQL), or {KAFKA_OFFSET}"
            )
        return cls(name, field)

    def of(self, payload: Mapping[str, Any]) -> Any:
        """The field's value in an event; None if there is none."""
        if self.field == BINLOG:
            return _binlog_position(payload.get("source"))
        value: Any = payload
        for part in self.field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def described(self, column: Column) -> Mapping[str, Any]:
        """The field, as a schema part describes it for a column: times are timestamps, or plain numbers."""
        name = _TIMES.get(self.field.rpartition(".")[2])
        is_time = name is not None and column.data_type.root in (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
        return {"type": "int64", "name": f"io.debezium.time.{name}"} if is_time else {"type": "int64"}


def _binlog_position(source: Any) -> int | None:
    """Greater for what comes later in the binary log of one server; None where an event has no such position."""
    if not isinstance(source, Mapping):
        return None
    number = str(source.get("file")).rpartition(".")[2]
    position, row = source.get("pos"), source.get("row") or 0
    if not (number.isascii() and number.isdecimal() and type(position) is int and type(row) is int):
        return None
    parts = ((int(number), _FILE_BITS), (position, _POSITION_BITS), (row, _ROW_BITS))
    if not all(0 <= value < 1 << bits for value, bits in parts):
        return None
    return (int(number) << _POSITION_BITS | position) << _ROW_BITS | row


class Marks:
    """Adds the flag and the version to rows."""

    def __init__(
        self, columns: Iterable[Column], flag: str | None, version: VersionColumn | None, *, takes_flag: bool = False
    ) -> None:
        """`columns` are those of the table, which has both. With `takes_flag`, rows may have the flag already."""
        self._flag, self._version, self._takes_flag = flag, version, takes_flag
        by_name = {column.name: column for column in columns}
        added = {flag} if version is None else {flag, version.name}
        self._added = {name for name in added if name is not None}
        self._required = [c.name for c in by_name.values() if not c.data_type.nullable and c.name not in added]
        self._version_described = None if version is None else version.described(by_name[version.name])
        self._described: dict[int, tuple[Any, Mapping[str, Mapping[str, Any]]]] = {}

    def marked(self, row: EventRow) -> EventRow:
        """`row` with both; of a delete, if there is a flag, the old row as an upsert.

        Raises `Fault` for a row without version, for one that has these columns already, and for a deleted row that
        lacks values which the table must have.
        """
        if not self._added:
            return row
        flag = row.values.get(self._flag) if self._takes_flag and self._flag is not None else None
        for name in self._added & row.values.keys() - ({self._flag} if self._takes_flag else set()):
            raise Fault(f"its row has a column '{name}' already: give another name to what is added")
        kind, values = row.kind, dict(row.values)
        if self._flag is not None:
            if kind == DELETE:
                kind, values = UPDATE_AFTER, self._old_row(row)
            values[self._flag] = row.kind == DELETE if flag is None else flag
        if self._version is not None:
            if row.position is None:
                raise Fault(f"it has no {self._version.field}, which is the version of its row")
            values[self._version.name] = row.position
        return row._replace(kind=kind, values=values, fields=self._fields_of(row), before=None)

    def _old_row(self, row: EventRow) -> dict[str, Any]:
        values = {name: None if is_unlogged(value) else value for name, value in row.values.items()}
        for name in self._required:
            if values.get(name) is None:
                raise Fault(
                    f"the deleted row lacks '{name}', which is NOT NULL: make the column nullable, or have the "
                    "database log whole rows (PostgreSQL: REPLICA IDENTITY FULL)"
                )
        return values

    def _fields_of(self, row: EventRow) -> Mapping[str, Mapping[str, Any]]:
        """What describes the columns, with the version's: the same object for the same schema part."""
        if self._version is None or self._version_described is None:
            return row.fields
        known = self._described.get(id(row.fields))
        if known is None:
            fields = {**row.fields, self._version.name: self._version_described}
            known = self._described[id(row.fields)] = (row.fields, fields)
        return known[1]
