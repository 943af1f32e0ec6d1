"""Descriptions of tables and schemas for clients, each built once.

A table of a thousand columns takes milliseconds to describe, on the event loop, and every client requests it again and
again. Descriptions are cached up to a number of bytes, with the least recently used evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from forebay.metadata import json_serde
from forebay.metadata.table import Schema, TableDescriptor, TableInfo

BYTES_MAX = 32 << 20
_ENTRY_BYTES = 512
"""Approximate memory of an entry in addition to its text."""


class Descriptions:
    """JSON by table and schema. For the event loop only."""

    def __init__(self, told: Callable[[TableDescriptor], TableDescriptor], bytes_max: int = BYTES_MAX) -> None:
        """`told`: a descriptor as clients see it, always the same of one descriptor."""
        self._told = told
        self._bytes_max = bytes_max
        self._made: OrderedDict[tuple[int, int | None], tuple[object, bytes]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._made)

    def table(self, info: TableInfo) -> bytes:
        """The descriptor of a table as it is now."""
        descriptor = info.descriptor
        return self._get((info.table_id, None), info, lambda: json_serde.descriptor_to_json(self._told(descriptor)))

    def schema(self, table_id: int, schema_id: int, schema: Schema) -> bytes:
        """One schema of a table."""
        return self._get((table_id, schema_id), schema, lambda: json_serde.schema_to_json(schema))

    def _get(self, key: tuple[int, int | None], of: object, describe: Callable[[], Any]) -> bytes:
        made = self._made.get(key)
        if made is not None and made[0] is of:  # an altered table is another object
            self._made.move_to_end(key)
            return made[1]
        text = json_serde.dumps(describe())
        if made is not None:
            self._forget(key)
        self._made[key] = (of, text)
        self._bytes += len(text) + _ENTRY_BYTES
        while self._bytes > self._bytes_max:
            self._forget(next(iter(self._made)))
        return text

    def _forget(self, key: tuple[int, int | None]) -> None:
        self._bytes -= len(self._made.pop(key)[1]) + _ENTRY_BYTES
