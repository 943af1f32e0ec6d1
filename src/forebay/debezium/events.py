"""Change events, with the schema part or without, as rows.

PostgreSQL does not log large values (TOAST) that an update leaves as they are, unless the table's replica identity is
FULL. Debezium writes a placeholder for them. The rule: such an update leaves these columns alone. It is wrong where a
row has to be whole: in an insert, in a column that must have a value, and for a reader that takes whole rows only.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any, NamedTuple

from forebay.api.changes import DELETE, INSERT, UPDATE_AFTER
from forebay.debezium.values import fields_of

UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's placeholder (`unavailable.value.placeholder`); of bytes, its base64."""

_IN_BASE64 = base64.b64encode(UNAVAILABLE.encode()).decode()
_UNAVAILABLE = (UNAVAILABLE, _IN_BASE64, [UNAVAILABLE])
_MARKS = (UNAVAILABLE.encode(), _IN_BASE64.encode())
_OP_CHARS = 60
_KINDS = {"c": INSERT, "r": INSERT, "u": UPDATE_AFTER, "d": DELETE}
"""By Debezium's `op`: create, read (of a snapshot), update, delete. Others (truncate, message) are no rows."""

_JSON = json.JSONDecoder(parse_float=Decimal)
_BEFORE_SCHEMA = re.compile(r'\s*\{\s*"schema"\s*:\s*')
_BEFORE_PAYLOAD = re.compile(r'\s*,\s*"payload"\s*:\s*')


UNDESCRIBED: Mapping[str, Mapping[str, Any]] = {}
"""The `fields` of events without a schema part: one object, because rows with the same one become columns together."""


class EventRow(NamedTuple):
    """The row of the text at position `at`; `fields` are the columns that a schema part describes, if there is one."""

    at: int
    kind: str
    values: Mapping[str, Any]
    fields: Mapping[str, Mapping[str, Any]]
    before: Mapping[str, Any] | None = None
    """The row before an update, as far as the database logs it."""
    position: Any = None
    """Where the event stands in its source, if that is read."""


class Fault(Exception):
    """A fault of a text, and where it is."""


def parsed(text: bytes, what: str) -> Any:
    """The JSON value of a text; numbers with a fraction are decimals. Raises `Fault`."""
    try:
        return _JSON.decode(text.decode())
    except (ValueError, RecursionError) as e:
        raise Fault(f"its {what} is not JSON: {e}") from None


def decode(
    texts: Iterable[bytes | None], position_of: Callable[[Mapping[str, Any]], Any] | None = None
) -> tuple[list[EventRow], dict[int, str]]:
    """The rows of change events in their order, and what is wrong with other texts, by their index.

    None is a tombstone for Kafka's log compaction, and no row. `position_of` reads the position from an event.
    """
    reader = _EventReader(position_of)
    rows: list[EventRow] = []
    wrong: dict[int, str] = {}
    for at, text in enumerate(texts):
        if text is None:
            continue
        try:
            rows.append(reader.row(at, text))
        except Fault as e:
            wrong[at] = str(e)
        except RecursionError:
            wrong[at] = "its value is nested too deeply"
    return rows, wrong


class _EventReader:
    """Reads events of a topic, which mostly have the same schema part: it is parsed once."""

    def __init__(self, position_of: Callable[[Mapping[str, Any]], Any] | None) -> None:
        self._position_of = position_of
        self._schema: Any = None
        self._fields = UNDESCRIBED
        self._prefix: str | None = None
        """A text up to its payload, if it begins with the schema part that `_schema` is."""

    def row(self, at: int, data: bytes) -> EventRow:
        payload, schema = self._parts(data)
        kind = _KINDS.get(str(payload.get("op")))
        if kind is None:
            op = str(payload.get("op", "missing"))[:_OP_CHARS]
            raise Fault(f"its op is {op}: it is not a change of a row")
        side = "before" if kind == DELETE else "after"
        values = payload.get(side)
        if not isinstance(values, dict):
            raise Fault(f"it has no row in '{side}'")
        before = payload.get("before") if kind == UPDATE_AFTER else None
        position = None if self._position_of is None else self._position_of(payload)
        before = before if isinstance(before, dict) else None
        return EventRow(at, kind, values, self._described(schema), before, position)

    def _parts(self, data: bytes) -> tuple[dict[str, Any], Any]:
        """The payload and the schema part of an event."""
        try:
            text = data.decode()
            if self._prefix is not None and text.startswith(self._prefix):
                payload, end = _JSON.raw_decode(text, len(self._prefix))
                if isinstance(payload, dict) and text[end:].strip() == "}":
                    return payload, self._schema
            event = _JSON.decode(text)
        except (ValueError, RecursionError) as e:
            raise Fault(f"its value is not JSON: {e}") from None
        if not isinstance(event, dict):
            raise Fault("its value is not a change event of Debezium")
        payload = event["payload"] if isinstance(event.get("payload"), dict) else event
        schema = event.get("schema")
        if isinstance(schema, dict) and list(event) == ["schema", "payload"]:
            self._remember(text, schema)
        return payload, schema

    def _remember(self, text: str, schema: Any) -> None:
        """Note how a text with this schema part begins."""
        self._described(schema)
        begin = _BEFORE_SCHEMA.match(text)
        end = None if begin is None else _BEFORE_PAYLOAD.match(text, _JSON.raw_decode(text, begin.end())[1])
        self._prefix = None if end is None else text[: end.end()]

    def _described(self, schema: Any) -> Mapping[str, Mapping[str, Any]]:
        """The columns that a schema part describes."""
        if not isinstance(schema, dict):
            return UNDESCRIBED
        if schema is not self._schema and schema != self._schema:
            sides = fields_of(schema)
            self._fields = fields_of(sides.get("after") or sides.get("before"))
            self._schema, self._prefix = schema, None
        return self._fields


def with_changed_key(row: EventRow, key: Sequence[str]) -> list[EventRow]:
    """`row`; for an update that changes a column of `key`, the delete of the old row and the insert of the new one.

    The key of the source may be another, for which Debezium would write two events. Where the database does not log a
    column of `key` before an update, the column is taken as unchanged.
    """
    before = row.before
    if before is None or any(before.get(name) is None or is_unlogged(before[name]) for name in key):
        return [row]
    if all(_same(before[name], row.values.get(name)) for name in key):
        return [row]
    old = EventRow(row.at, DELETE, before, row.fields, position=row.position)
    return [old, row._replace(kind=INSERT, before=None)]


def _same(old: Any, new: Any) -> bool:
    return type(old) is type(new) and old == new


def is_unlogged(value: Any) -> bool:
    """Whether a value is Debezium's placeholder."""
    return value in _UNAVAILABLE


def unlogged(row: EventRow, text: bytes, names: Set[str]) -> frozenset[str]:
    """The columns among `names` for which the event has Debezium's placeholder; `text` is that of the row."""
    if not any(mark in text for mark in _MARKS):
        return frozenset()
    return frozenset(name for name, value in row.values.items() if is_unlogged(value) and name in names)


def unlogged_fault(row: EventRow, missing: frozenset[str], required: Set[str]) -> str | None:
    """Why a row is wrong that lacks the values of `missing`: only an update may, and not in a `required` column."""
    if not missing or (row.kind == UPDATE_AFTER and not missing & required):
        return None
    name = min(missing & required or missing)
    return f"the database did not log '{name}': ALTER TABLE ... REPLICA IDENTITY FULL there"
