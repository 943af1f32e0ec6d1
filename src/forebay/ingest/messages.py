"""Messages of a topic as rows of a table: Debezium's change events, or plain JSON objects.

A *run* is rows of one topic's batch that are written together, in the order of the runs. Messages are JSON texts, so
they are parsed one by one; from there on, work is by column.

PostgreSQL does not log large values (TOAST) that an update leaves as they are, unless the table's replica identity is
FULL. Debezium writes a placeholder for them. Such an update becomes a partial one, which leaves these columns alone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from forebay.api.changes import CHANGE_TYPE_COLUMN, DELETE, INSERT, UPDATE_AFTER
from forebay.base.errors import InternalError
from forebay.codec.arrow.arrow_types import user_schema
from forebay.ingest.connect_values import BAD_VALUE, NATIVE, Convert, converter
from forebay.metadata.table import Column, TableInfo

DEBEZIUM, JSON = FORMATS = ("debezium", "json")

UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's placeholder (`unavailable.value.placeholder`); of bytes, its base64."""

_IN_BASE64 = base64.b64encode(UNAVAILABLE.encode()).decode()
_UNAVAILABLE = (UNAVAILABLE, _IN_BASE64, [UNAVAILABLE])
_MARKS = (UNAVAILABLE.encode(), _IN_BASE64.encode())
_KINDS = {"c": INSERT, "r": INSERT, "u": UPDATE_AFTER, "d": DELETE}
"""By Debezium's `op`: create, read (of a snapshot), update, delete. Others (truncate, message) are no rows."""

_NONE: frozenset[type] = frozenset()
_SHOWN_CHARS, _REASON_CHARS = 60, 120


class Message(NamedTuple):
    """A message of a topic, and its place."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class RowRun(NamedTuple):
    """Rows to write, with `_change_type` for a primary-key table; `columns` are those of a partial update."""

    rows: pa.RecordBatch
    columns: tuple[str, ...] | None


class Row(NamedTuple):
    """A row of a message; `fields` are the columns that the message's schema part describes, if it has one."""

    message: Message
    kind: str
    values: Mapping[str, Any]
    fields: Mapping[str, Mapping[str, Any]]


@dataclass
class MessageRows:
    """What messages say: rows in their order, and what is wrong with the others."""

    rows: list[Row] = field(default_factory=list)
    wrong: list[tuple[Message, str]] = field(default_factory=list)

    def strange(self, info: TableInfo) -> dict[str, Mapping[str, Any]]:
        """The columns that rows have and the table does not, with what describes them; empty if nothing does."""
        known = set(info.schema.names)
        found: dict[str, Mapping[str, Any]] = {}
        for keys in {tuple(row.values): row for row in self.rows}.values():
            found |= {name: keys.fields.get(name, {}) for name in keys.values if name not in known}
        return found


class _Fault(Exception):
    """What is wrong with a message."""


def read(messages: Iterable[Message], form: str) -> MessageRows:
    """The rows of messages in one of `FORMATS`."""
    row_of: Callable[[Message], Row | None] = _DebeziumReader().row if form == DEBEZIUM else _json_row
    batch = MessageRows()
    for message in messages:
        try:
            row = row_of(message)
        except _Fault as e:
            batch.wrong.append((message, str(e)))
        else:
            if row is not None:
                batch.rows.append(row)
    return batch


def runs(batch: MessageRows, info: TableInfo, time_unit: str | None) -> list[RowRun]:
    """The rows as columns of the table. Rows with values of other types go to `batch.wrong`.

    Columns that the table does not have are left out.
    """
    found = []
    for missing, rows in _with_same_columns(batch, info):
        run = _run(batch, info, missing, rows, time_unit)
        if run is not None:
            found.append(run)
    return found


# ---- texts -> rows --------------------------------------------------------------------------------------------------


def _parsed(text: bytes, what: str) -> Any:
    try:
        return json.loads(text, parse_float=Decimal)
    except ValueError as e:
        raise _Fault(f"its {what} is not JSON: {e}") from None


def _json_row(message: Message) -> Row:
    """A plain object is the whole row; no value means that the row with the message's key was deleted."""
    if message.value is None:
        key = None if message.key is None else _parsed(message.key, "key")
        if not isinstance(key, dict):
            raise _Fault("it has no value, and its key is not a JSON object with the primary key of the row to delete")
        return Row(message, DELETE, key, {})
    row = _parsed(message.value, "value")
    if not isinstance(row, dict):
        raise _Fault("its value is not a JSON object")
    return Row(message, UPDATE_AFTER, row, {})


class _DebeziumReader:
    """Change events, with the schema part or without; those of a topic mostly have the same."""

    def __init__(self) -> None:
        self._schema: Any = None
        self._fields: Mapping[str, Mapping[str, Any]] = {}

    def row(self, message: Message) -> Row | None:
        if message.value is None:  # a tombstone, for Kafka's log compaction
            return None
        event = _parsed(message.value, "value")
        if not isinstance(event, dict):
            raise _Fault("its value is not a change event of Debezium")
        payload = event["payload"] if isinstance(event.get("payload"), dict) else event
        kind = _KINDS.get(str(payload.get("op")))
        if kind is None:
            raise _Fault(f"its op is {payload.get('op', 'missing')}: it is not a change of a row")
        side = "before" if kind == DELETE else "after"
        values = payload.get(side)
        if not isinstance(values, dict):
            raise _Fault(f"it has no row in '{side}'")
        return Row(message, kind, values, self._described(event.get("schema"), side))

    def _described(self, schema: Any, side: str) -> Mapping[str, Mapping[str, Any]]:
        if schema is None:
            return {}
        if schema != self._schema:
            sides = {each.get("field"): each for each in schema.get("fields", ())}
            described = sides.get("after") or sides.get(side) or {}
            self._fields = {each["field"]: each for each in described.get("fields", ())}
            self._schema = schema
        return self._fields


def key_fields(message: Message) -> list[str]:
    """The columns of a message's key: of Debezium, those of the primary key of the table."""
    try:
        key = None if message.key is None else _parsed(message.key, "key")
    except _Fault:
        return []
    found = key.get("payload", key) if isinstance(key, dict) else None
    return list(found) if isinstance(found, dict) else []


# ---- rows -> columns ------------------------------------------------------------------------------------------------


def _with_same_columns(batch: MessageRows, info: TableInfo) -> Iterable[tuple[frozenset[str], list[Row]]]:
    """Rows that follow one another and lack the same columns, which are those with Debezium's placeholder."""
    run: list[Row] = []
    lacking: frozenset[str] = frozenset()
    fixed = {c.name for c in info.schema.columns if not c.data_type.nullable}
    for row in batch.rows:
        missing = frozenset[str]()
        if any(mark in (row.message.value or b"") for mark in _MARKS):
            missing = frozenset(name for name, value in row.values.items() if value in _UNAVAILABLE)
        if missing and (row.kind != UPDATE_AFTER or missing & fixed):
            name = min(missing & fixed or missing)
            batch.wrong.append(
                (row.message, f"the database did not log '{name}': ALTER TABLE ... REPLICA IDENTITY FULL there")
            )
            continue
        if missing != lacking and run:
            yield lacking, run
            run = []
        lacking = missing
        run.append(row)
    if run:
        yield lacking, run


def _run(
    batch: MessageRows, info: TableInfo, missing: frozenset[str], rows: list[Row], time_unit: str | None
) -> RowRun | None:
    schema = info.schema
    columns = [c for c in schema.columns if c.name not in missing and c.name != schema.auto_increment_column]
    arrays, faults = _columns_of_all(rows, columns, time_unit, set(schema.primary_key))
    if faults:
        batch.wrong += [(rows[at].message, reason) for at, reason in sorted(faults.items())]
        kept = [row for at, row in enumerate(rows) if at not in faults]
        return _run(batch, info, missing, kept, time_unit) if kept else None
    names = [c.name for c in columns]
    run_columns = tuple(names) if missing else None
    if info.has_primary_key:
        arrays, names = [pa.array([row.kind for row in rows], pa.string()), *arrays], [CHANGE_TYPE_COLUMN, *names]
    return RowRun(pa.RecordBatch.from_arrays(arrays, names), run_columns)


def _columns_of_all(
    rows: list[Row], columns: Sequence[Column], time_unit: str | None, key: set[str]
) -> tuple[list[pa.Array], dict[int, str]]:
    """The columns of rows between which the source's schema may change."""
    chunks: list[list[pa.Array]] = []
    faults: dict[int, str] = {}
    begin = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end].fields is not rows[begin].fields:
            arrays, found = _columns(rows[begin:end], columns, time_unit, key)
            faults |= {begin + at: reason for at, reason in found.items()}
            chunks.append(arrays)
            begin = end
    if faults or len(chunks) == 1:
        return chunks[0], faults
    return [pa.concat_arrays(list(each)) for each in zip(*chunks, strict=True)], {}


def _columns(
    rows: list[Row], columns: Sequence[Column], time_unit: str | None, key: set[str]
) -> tuple[list[pa.Array], dict[int, str]]:
    """The columns of rows with one schema part, and what is wrong with some of the rows."""
    arrays: list[pa.Array] = []
    faults: dict[int, str] = {}
    described = rows[0].fields
    deleted = [row.kind == DELETE for row in rows]
    for column, wanted in zip(columns, user_schema(columns), strict=True):
        name, t = column.name, column.data_type
        convert = converter(t, described.get(name), time_unit)
        given = [row.values.get(name) for row in rows]
        if name not in key and any(deleted):  # of a deleted row only the key counts
            given = [None if is_deleted else value for is_deleted, value in zip(deleted, given, strict=True)]
        try:
            if convert is not None and not set(map(type, given)) <= NATIVE.get(t.root, _NONE):
                values = [None if value is None else convert(value) for value in given]
            else:
                values = given
            array = pa.array(values, wanted.type)
        except BAD_VALUE as e:
            found = {at: reason for at, value in enumerate(given) if (reason := _fault(value, convert, wanted.type))}
            if not found:
                raise InternalError(f"{len(given)} values of '{name}' do not become {t}, but each of them does") from e
            faults |= {at: f"'{name}' is no {t}: {reason}" for at, reason in found.items()}
            continue
        arrays.append(array)
        if array.null_count and not t.nullable:
            lacking = [at for at, value in enumerate(given) if value is None and (name in key or not deleted[at])]
            faults |= dict.fromkeys(lacking, f"'{name}' is missing, which is NOT NULL")
    return arrays, faults


def _fault(value: Any, convert: Convert | None, wanted: pa.DataType) -> str | None:
    if value is None:
        return None
    try:
        pa.array([value if convert is None else convert(value)], wanted)
    except BAD_VALUE as e:
        return f"{repr(value)[:_SHOWN_CHARS]} ({str(e)[:_REASON_CHARS]})"
    return None
