"""Messages of a topic as rows of a table: Debezium's change events, or plain JSON objects.

A *run* is rows of one topic's batch that are written together, in the order of the runs. `forebay.debezium` decodes
events. An update that lacks values which the database did not log becomes a partial one, in a run of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from forebay.api.changes import CHANGE_TYPE_COLUMN, DELETE, UPDATE_AFTER
from forebay.debezium.columns import columns_of
from forebay.debezium.events import EventRow, Fault, decode, parsed, unlogged, unlogged_fault, with_changed_key
from forebay.metadata.table import TableInfo

DEBEZIUM, JSON = FORMATS = ("debezium", "json")


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


def read(messages: Sequence[Message], form: str) -> MessageRows:
    """The rows of messages in one of `FORMATS`."""
    rows, wrong = decode(message.value for message in messages) if form == DEBEZIUM else _json_rows(messages)
    return MessageRows(messages, rows, [(messages[at], reason) for at, reason in wrong.items()])


def runs(batch: MessageRows, info: TableInfo, time_unit: str | None) -> list[RowRun]:
    """The rows as columns of the table. Rows with values of other types go to `batch.wrong`.

    Columns that the table does not have are left out.
    """
    column_runs = []
    for missing, rows in _with_same_columns(batch, info):
        run = _run(batch, info, missing, rows, time_unit)
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
        return EventRow(at, DELETE, key, {})
    row = parsed(message.value, "value")
    if not isinstance(row, dict):
        raise Fault("its value is not a JSON object")
    return EventRow(at, UPDATE_AFTER, row, {})


def key_fields(message: Message) -> list[str]:
    """The columns of a message's key: of Debezium, those of the primary key of the table."""
    try:
        key = None if message.key is None else parsed(message.key, "key")
    except Fault:
        return []
    payload = key.get("payload", key) if isinstance(key, dict) else None
    return list(payload) if isinstance(payload, dict) else []


# ---- rows -> columns ------------------------------------------------------------------------------------------------


def _with_same_columns(batch: MessageRows, info: TableInfo) -> Iterable[tuple[frozenset[str], list[EventRow]]]:
    """Rows that follow one another and lack the same columns, which are those with Debezium's placeholder."""
    run: list[EventRow] = []
    lacking: frozenset[str] = frozenset()
    names = frozenset(info.schema.names)
    required = {c.name for c in info.schema.columns if not c.data_type.nullable}
    for row in batch.rows:
        message = batch.messages[row.at]
        events = with_changed_key(row, info.schema.primary_key) if info.has_primary_key else [row]
        missing = unlogged(row, message.value or b"", names)
        fault = unlogged_fault(events[-1], missing, required)
        if fault is not None:
            batch.wrong.append((message, fault))
            continue
        if missing != lacking and run:
            yield lacking, run
            run = []
        lacking = missing
        run += events
    if run:
        yield lacking, run


def _run(
    batch: MessageRows, info: TableInfo, missing: frozenset[str], rows: list[EventRow], time_unit: str | None
) -> RowRun | None:
    schema = info.schema
    columns = [c for c in schema.columns if c.name not in missing and c.name != schema.auto_increment_column]
    fitting = columns_of(rows, columns, time_unit, set(schema.primary_key))
    batch.wrong += [(batch.messages[at], reason) for at, reason in fitting.wrong.items()]
    if not fitting.rows:
        return None
    arrays, names = fitting.arrays, [c.name for c in columns]
    run_columns = tuple(names) if missing else None
    if info.has_primary_key:
        kinds = pa.array([row.kind for row in fitting.rows], pa.string())
        arrays, names = [kinds, *arrays], [CHANGE_TYPE_COLUMN, *names]
    return RowRun(pa.RecordBatch.from_arrays(arrays, names), run_columns)
