"""Change events of Debezium with the rows that they are, for each program that decodes them."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from forebay.debezium.events import UNAVAILABLE

CONNECT = "org.apache.kafka.connect.data"

COLUMNS = {
    "id": "BIGINT NOT NULL",
    "name": "STRING",
    "note": "STRING NOT NULL",
    "day": "DATE",
    "at": "TIMESTAMP(6)",
    "amount": "DECIMAL(18, 2)",
    "raw": "BYTES",
    "ok": "BOOLEAN",
    "tags": "ARRAY<STRING>",
}
"""The columns of a table of a cluster, by their types."""

SPARK_COLUMNS = (
    "id BIGINT NOT NULL, name STRING, note STRING NOT NULL, day DATE, at TIMESTAMP_NTZ, amount DECIMAL(18,2), "
    "raw BINARY, ok BOOLEAN, tags ARRAY<STRING>"
)
"""The same as DDL of Spark."""

SCHEMA = {
    "type": "struct",
    "fields": [
        {"field": "before", "type": "struct", "fields": []},
        {
            "field": "after",
            "type": "struct",
            "fields": [
                {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
                {"field": "amount", "type": "bytes", "name": f"{CONNECT}.Decimal", "parameters": {"scale": "2"}},
            ],
        },
    ],
}

_PLAIN = {
    "id": 1, "name": "a", "note": "n", "day": 19_000, "at": 1_700_000_000_123, "amount": "12.34", "raw": "aGk=",
    "ok": True, "tags": ["x", None],
}  # fmt: skip
_READ = {
    "id": 1, "name": "a", "note": "n", "day": dt.date(2022, 1, 8), "at": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000),
    "amount": Decimal("12.34"), "raw": b"hi", "ok": True, "tags": ["x", None],
}  # fmt: skip
_DESCRIBED = {**_PLAIN, "at": 1_700_000_000_123_456, "amount": "/2o="}
_READ_DESCRIBED = {**_READ, "at": dt.datetime(2023, 11, 14, 22, 13, 20, 123_456), "amount": Decimal("-1.50")}
_NOT_LOGGED = "ALTER TABLE ... REPLICA IDENTITY FULL there"


def _described(op: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, "payload": {"op": op, "before": None, "after": row}}


EVENTS: list[tuple[Any, dict[str, Any] | str | None]] = [
    ({"op": "c", "before": None, "after": _PLAIN}, {"_change_type": "insert", **_READ}),
    (_described("r", _DESCRIBED), {"_change_type": "insert", **_READ_DESCRIBED}),
    (_described("u", {**_DESCRIBED, "id": 2}), {"_change_type": "update_after", **_READ_DESCRIBED, "id": 2}),
    # The same schema part, but not at the beginning of the text, and with another part behind the payload.
    (dict(reversed(_described("c", _DESCRIBED).items())), {"_change_type": "insert", **_READ_DESCRIBED}),
    (_described("c", _DESCRIBED) | {"more": 1}, {"_change_type": "insert", **_READ_DESCRIBED}),
    ({"op": "u", "after": {**_PLAIN, "amount": -3.5, "at": "2024-01-01T00:00:00", "day": "2024-01-02", "more": 1}},
     {"_change_type": "update_after", **_READ, "amount": Decimal("-3.50"), "at": dt.datetime(2024, 1, 1),
      "day": dt.date(2024, 1, 2)}),
    (None, None),
    ({"op": "t"}, "its op is t: it is not a change of a row"),
    ({"op": "c", "before": _PLAIN, "after": None}, "it has no row in 'after'"),
    ("garbage", "its value is not JSON"),
    ([1], "its value is not a change event of Debezium"),
    ({"op": "c", "after": {**_PLAIN, "id": None}}, "'id' is missing, which is NOT NULL"),
    ({"op": "c", "after": {**_PLAIN, "day": "tomorrow"}}, "'day' is no DATE: 'tomorrow'"),
    ({"op": "c", "after": {**_PLAIN, "amount": "1.234"}}, "'amount' is no DECIMAL(18, 2): '1.234'"),
    ({"op": "c", "after": {**_PLAIN, "name": 5}}, "'name' is no STRING: 5"),
    ({"op": "c", "after": {**_PLAIN, "ok": "perhaps"}}, "'ok' is no BOOLEAN: 'perhaps'"),
    ({"op": "c", "after": {**_PLAIN, "tags": 5}}, "'tags' is no ARRAY<STRING>: 5"),
    ({"op": "c", "after": {**_PLAIN, "name": UNAVAILABLE}}, f"the database did not log 'name': {_NOT_LOGGED}"),
    ({"op": "u", "after": {**_PLAIN, "note": UNAVAILABLE}}, f"the database did not log 'note': {_NOT_LOGGED}"),
    ({"op": "c", "after": {**_PLAIN, "name": f"{UNAVAILABLE}s"}},
     {"_change_type": "insert", **_READ, "name": f"{UNAVAILABLE}s"}),
]  # fmt: skip
"""Events, each with its row, or how the reason begins for which it is wrong; None for no row."""

UNLOGGED: list[tuple[Any, str]] = [
    ({"op": "u", "after": {**_PLAIN, "name": UNAVAILABLE}}, "name"),
    ({"op": "u", "after": {**_PLAIN, "raw": base64.b64encode(UNAVAILABLE.encode()).decode()}}, "raw"),
    ({"op": "u", "after": {**_PLAIN, "tags": [UNAVAILABLE]}}, "tags"),
]
"""Updates that leave a column alone, which the database did not log."""


def text_of(event: Any) -> str | None:
    """An event as a message has it."""
    return event if event is None or isinstance(event, str) else json.dumps(event)


def rows() -> list[dict[str, Any]]:
    """The rows of all right events, in order."""
    return [found for _, found in EVENTS if isinstance(found, dict)]


def reasons() -> list[tuple[int, str]]:
    """The positions of wrong events, with how their reasons begin."""
    return [(at, found) for at, (_, found) in enumerate(EVENTS) if isinstance(found, str)]


def begins(found: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Reasons, each cut to the length of the one that is expected at its place."""
    lengths = dict(reasons())
    return [(at, reason[: len(lengths.get(at, reason))]) for at, reason in sorted(found)]
