"""Messages of a topic as rows of a table: Debezium's change events, or plain JSON objects.

A *run* is rows of one topic's batch that are written together, in the order of the runs. `forebay.debezium` decodes
events. An update that lacks values which the database did not log becomes a partial one, in a run of its own. A delete
that the table would ignore is a wrong message, unless the `MessageReading` says what becomes of deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from forebay.api.changes import CHANGE_TYPE_COLUMN, DELETE, UPDATE_AFTER
from forebay.base.arguments import did_you_mean
from forebay.base.errors import InvalidRequest
from forebay.debezium.columns import RowColumns, columns_of
from forebay.debezium.events import (
    UNDESCRIBED,
    EventRow,
    Fault,
    decode,
    parsed,
    unlogged,
    unlogged_fault,
    with_changed_key,
)
from forebay.debezium.marks import KAFKA_OFFSET, Marks, VersionColumn
from forebay.debezium.values import new_field
from forebay.metadata.merge_engines import FIRST_ROW, VERSIONED
from forebay.metadata.names import check_partition_value
from forebay.metadata.partitions import partition_text
from forebay.metadata.table import Column, TableInfo
from forebay.metadata.types import TypeRoot

DEBEZIUM, JSON = FORMATS = ("debezium", "json")

VERSION_OPTION = "table.merge-engine.versioned.ver-column"


@dataclass(frozen=True)
class MessageReading:
    """How the messages of a topic are read."""

    form: str = DEBEZIUM
    time_unit: str | None = None
    """The unit of times that are numbers without a schema part."""
    deleted_column: str | None = None
    """The column that is true in the row of a deleted key; None if deletes delete rows."""
    version_column: VersionColumn | None = None
    ignores_deletes: bool = False
    """Whether deletes are left out."""


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


@dataclass
class MessageRows:
    """The rows of messages in their order, and the faults of the others."""

    messages: Sequence[Message]
    rows: list[EventRow]
    wrong: list[tuple[Message, str]]

    def strange(self, info: TableInfo) -> dict[str, Mapping[str, Any]]:
        """The columns that rows have and the table does not, with what describes them; empty if nothing does."""
        column_names = set(info.schema.names)
        columns: dict[str, Mapping[str, Any]] = {}
        for keys in {tuple(row.values): row for row in self.rows}.values():
            columns |= {name: keys.fields.get(name, {}) for name in keys.values if name not in column_names}
        return columns

    def new_field(self, info: TableInfo) -> str | None:
        """A field inside of a value of some row that the type of its column lacks, if any."""
        nested = [c for c in info.schema.columns if c.data_type.root in (TypeRoot.ARRAY, TypeRoot.MAP, TypeRoot.ROW)]
        for column in nested:
            for row in self.rows:
                if (inner := new_field(column.data_type, row.values.get(column.name))) is not None:
                    return f"{column.name}.{inner}"
        return None


def check_table(info: TableInfo, reading: MessageReading) -> None:
    """Raise `InvalidRequest` for a table that cannot take the rows of messages that are read so."""
    flag, version, of_table = reading.deleted_column, reading.version_column, _version_name(info)
    if not info.has_primary_key and (reading.form == DEBEZIUM or flag is not None):
        raise InvalidRequest(f"table {info.path} has no primary key, and cannot take Debezium's changes, or deletes")
    if flag is not None and _column(info, flag).data_type.root != TypeRoot.BOOLEAN:
        raise InvalidRequest(f"column '{flag}' of table {info.path} is not BOOLEAN, so it cannot mark deleted rows")
    if version is not None:
        _column(info, version.name)
        if reading.form == JSON and version.field != KAFKA_OFFSET:
            raise InvalidRequest(
                f"plain JSON messages have no field '{version.field}' beside the row: a field of the row is the column "
                f"of its name, and a version can be {KAFKA_OFFSET}"
            )
        if of_table not in (None, version.name):
            raise InvalidRequest(
                f"table {info.path} compares versions in column '{of_table}', not in '{version.name}': fill that column"
            )
    elif flag is not None and of_table is not None and reading.form == DEBEZIUM:
        raise InvalidRequest(
            f"table {info.path} keeps the row with the greatest '{of_table}', and a deleted row has an old one: fill "
            f"the column from the event, for example with --version-column {of_table}=source.lsn"
        )
    if flag is not None and info.descriptor.merge_engine == FIRST_ROW:
        raise InvalidRequest(f"table {info.path} keeps the first row of each key, so no later row can say of a delete")


def _column(info: TableInfo, name: str) -> Column:
    if name not in info.schema.names:
        hint = did_you_mean(name, info.schema.names)
        raise InvalidRequest(
            f"table {info.path} has no column '{name}'{hint}: add it, or let --create create the table"
        )
    return info.schema.column(name)


def read(messages: Sequence[Message], reading: MessageReading) -> MessageRows:
    """The rows of messages."""
    version = reading.version_column
    if reading.form == JSON:
        rows, wrong = _json_rows(messages)
    else:
        rows, wrong = decode((message.value for message in messages), None if version is None else version.of)
    if version is not None and version.field == KAFKA_OFFSET:
        rows = [row._replace(position=messages[row.at].offset) for row in rows]
    return MessageRows(messages, rows, [(messages[at], reason) for at, reason in wrong.items()])


def runs(batch: MessageRows, info: TableInfo, reading: MessageReading) -> list[RowRun]:
    """The rows as columns of the table. Rows that do not fit it go to `batch.wrong`.

    Columns that the table does not have are left out.
    """
    column_runs = []
    for missing, rows in _with_same_columns(batch, info, reading):
        run = _run(batch, info, missing, rows, reading.time_unit)
        if run is not None:
            column_runs.append(run)
    return column_runs


# ---- texts -> rows --------------------------------------------------------------------------------------------------


def _json_rows(messages: Sequence[Message]) -> tuple[list[EventRow], dict[int, str]]:
    """Plain objects as rows, and what is wrong with other messages, by position."""
    rows: list[EventRow] = []
    wrong: dict[int, str] = {}
    for at, message in enumerate(messages):
        try:
            rows.append(_json_row(at, message))
        except Fault as e:
            wrong[at] = str(e)
    return rows, wrong


def _json_row(at: int, message: Message) -> EventRow:
    """A plain object is the whole row; no value means that the row with the message's key was deleted."""
    if message.value is None:
        key = None if message.key is None else parsed(message.key, "key")
        if not isinstance(key, dict):
            raise Fault("it has no value, and its key is not a JSON object with the primary key of the row to delete")
        return EventRow(at, DELETE, key, UNDESCRIBED)
    row = parsed(message.value, "value")
    if not isinstance(row, dict):
        raise Fault("its value is not a JSON object")
    return EventRow(at, UPDATE_AFTER, row, UNDESCRIBED)


def key_fields(message: Message) -> list[str]:
    """The columns of a message's key: of Debezium, those of the primary key of the table."""
    try:
        key = None if message.key is None else parsed(message.key, "key")
    except Fault:
        return []
    payload = key.get("payload", key) if isinstance(key, dict) else None
    return list(payload) if isinstance(payload, dict) else []


# ---- rows -> columns ------------------------------------------------------------------------------------------------


def _with_same_columns(
    batch: MessageRows, info: TableInfo, reading: MessageReading
) -> Iterable[tuple[frozenset[str], list[EventRow]]]:
    """Rows that follow one another and lack the same columns, which are those with Debezium's placeholder."""
    run: list[EventRow] = []
    lacking: frozenset[str] = frozenset()
    names = frozenset(info.schema.names)
    is_whole = info.descriptor.merge_engine in (FIRST_ROW, VERSIONED)
    required = names if is_whole else {c.name for c in info.schema.columns if not c.data_type.nullable}
    marks = Marks(info.schema.columns, reading.deleted_column, reading.version_column, takes_flag=reading.form == JSON)
    prepare = partial(_prepared, info, reading, marks)
    for row in batch.rows:
        message = batch.messages[row.at]
        missing = frozenset[str]() if row.kind == DELETE else unlogged(row, message.value or b"", names)
        events = with_changed_key(row, info.schema.primary_key) if info.has_primary_key else [row]
        fault = unlogged_fault(events[-1], missing, required)
        try:
            if fault is not None:
                raise Fault(fault)
            events = prepare(events)
        except Fault as e:
            batch.wrong.append((message, str(e)))
            continue
        if missing != lacking and run:
            yield lacking, run
            run = []
        lacking = missing
        run += events
    if run:
        yield lacking, run


def _prepared(info: TableInfo, reading: MessageReading, marks: Marks, rows: Sequence[EventRow]) -> list[EventRow]:
    """Rows as the table takes them. Raises `Fault` for a delete that it does not take."""
    prepared = []
    for row in rows:
        if row.kind == DELETE and reading.ignores_deletes:
            continue
        if row.kind == DELETE:
            _check_delete(info, reading, row)
        prepared.append(marks.marked(row))
    return prepared


def _version_name(info: TableInfo) -> str | None:
    """The column by which a table's merge engine `versioned` compares rows; None for other tables."""
    if info.descriptor.merge_engine != VERSIONED:
        return None
    return str(info.descriptor.option(VERSION_OPTION))


def _check_delete(info: TableInfo, reading: MessageReading, row: EventRow) -> None:
    """Raise `Fault` where a delete would be refused or ignored."""
    behavior, engine, version = info.descriptor.delete_behavior, info.descriptor.merge_engine, _version_name(info)
    if reading.deleted_column is not None:
        if version is not None and reading.version_column is None and row.values.get(version) is None:
            raise Fault(
                f"it is a delete without a version in column '{version}', so it cannot be compared with other changes: "
                f"take one from the message (--version-column {version}={KAFKA_OFFSET})"
            )
    elif not info.has_primary_key:
        raise Fault("it is a delete, and rows of a log table stay")
    elif behavior == "disable":
        raise Fault("it is a delete, which the table refuses ('table.delete.behavior' = 'disable')")
    elif behavior == "ignore" and engine is not None:
        raise Fault(
            f"it is a delete, which a table with the merge engine '{engine}' ignores: have the row say so "
            "(--deleted-column), or leave deletes out (--ignore-deletes)"
        )


def _run(
    batch: MessageRows, info: TableInfo, missing: frozenset[str], rows: list[EventRow], time_unit: str | None
) -> RowRun | None:
    schema = info.schema
    columns = [c for c in schema.columns if c.name not in missing and c.name != schema.auto_increment_column]
    fitting = columns_of(rows, columns, time_unit, set(schema.primary_key))
    batch.wrong += [(batch.messages[at], reason) for at, reason in fitting.wrong.items()]
    bad_partitions = _bad_partitions(info, columns, fitting)
    if bad_partitions:
        batch.wrong += [(batch.messages[at], reason) for at, reason in bad_partitions.items()]
        rest = [row for row in fitting.rows if row.at not in bad_partitions]
        return _run(batch, info, missing, rest, time_unit)
    if not fitting.rows:
        return None
    arrays, names = fitting.arrays, [c.name for c in columns]
    run_columns = tuple(names) if missing else None
    if info.has_primary_key:
        kinds = pa.array([row.kind for row in fitting.rows], pa.string())
        arrays, names = [kinds, *arrays], [CHANGE_TYPE_COLUMN, *names]
    return RowRun(pa.RecordBatch.from_arrays(arrays, names), run_columns)


def _bad_partitions(info: TableInfo, columns: Sequence[Column], fitting: RowColumns) -> dict[int, str]:
    """What is wrong with rows whose values name no partition, by the positions of their texts."""
    bad: dict[int, str] = {}
    for key in info.descriptor.partition_keys:
        place = next(at for at, column in enumerate(columns) if column.name == key)
        encoded = fitting.arrays[place].dictionary_encode()
        faults = [_partition_fault(columns[place], value) for value in encoded.dictionary.to_pylist()]
        if encoded.null_count == 0 and not any(faults):
            continue
        for row, code in zip(fitting.rows, encoded.indices.to_pylist(), strict=True):
            fault = f"partition key '{key}' is missing" if code is None else faults[code]
            if fault is not None:
                bad[row.at] = fault
    return bad


def _partition_fault(column: Column, value: Any) -> str | None:
    try:
        check_partition_value(column.name, partition_text(column.data_type, value), creating=True)
    except InvalidRequest as e:
        return e.message
    return None
