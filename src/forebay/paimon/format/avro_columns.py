"""Avro files as columns: selected fields of each record, for any writer schema.

`read_columns(data, fields)` compiles the schema in the file's header to a program of the kernel `_avro` (once per
schema) and runs it over the file's blocks. Writers of different versions have different fields: requested fields that
the schema lacks are null in all records, other fields are skipped, and a field may be a union with null or not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from forebay.base.errors import CorruptData
from forebay.paimon.format._avro import KINDS, Program, Records, decode
from forebay.paimon.format.avro import read_container

_SCALARS = {
    "number": ("int", "long", "boolean", "enum"),
    "bytes": ("bytes", "fixed"),
    "text": ("string",),
}
_ITEMS = {"numbers": "number", "texts": "text"}
_UNKEPT = {"float": 4, "double": 8}
"""Kinds that are only skipped, with their sizes."""


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field to decode. `path` is its dotted path through nested records; its index in `fields` is its slot.

    `kind` is number, bytes, text, numbers or texts (the last two are arrays). A `required` field must not be null.
    """

    path: str
    kind: str
    required: bool = True


def read_columns(data: bytes, fields: tuple[AvroField, ...]) -> Records:
    """The `fields` of all records of a container file. Raises `CorruptData`."""
    container = read_container(data)
    return decode(compile_program(container.schema, fields), container.body, container.blocks)


@lru_cache(maxsize=256)
def compile_program(schema_json: bytes, fields: tuple[AvroField, ...]) -> Program:
    """The program that decodes `fields` from records of a schema.

    Raises `CorruptData` if the schema is malformed, lacks a required field, or has one of another kind.
    """
    try:
        compiler = _Compiler(fields)
        root = compiler.record(json.loads(schema_json))
        return Program(compiler.nodes, root, len(fields), compiler.required, compiler.items)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise CorruptData(f"the schema of an Avro file is malformed: {type(e).__name__} {e}") from e


Node = tuple[int, tuple[int, ...], int, int, bool]


class _Compiler:
    """Builds the nodes of one program.

    Types without requested fields are built once per named type, so that types may be recursive; those with requested
    fields, once per path.
    """

    def __init__(self, fields: Sequence[AvroField]) -> None:
        self.nodes: list[Node] = []
        self.items: dict[int, int] = {}
        self.required = [slot for slot, w in enumerate(fields) if w.required]
        self._slots = {w.path: slot for slot, w in enumerate(fields)}
        self._fields = fields
        self._present: set[int] = set()
        self._prefixes = {w.path[:i] for w in fields for i, c in enumerate(w.path) if c == "."}
        self._types: dict[str, dict[str, Any]] = {}
        self._passed: dict[str, int] = {}

    def record(self, schema: Any) -> int:
        """The root node of a schema, which must be a record schema."""
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise CorruptData("an Avro file of this kind holds records, but its schema is something else")
        root = self._record(schema, "", _name(schema, ""))
        missing = [self._fields[slot].path for slot in self.required if slot not in self._present]
        if missing:
            raise CorruptData(f"the records of an Avro file lack the field {missing[0]}")
        return root

    def _add(
        self, kind: int, children: tuple[int, ...] = (), size: int = 0, slot: int = -1, *, empty: bool = False
    ) -> int:
        self.nodes.append((kind, children, size, slot, empty))
        return len(self.nodes) - 1

    # -- the path to requested fields --------------------------------------------------------------------------------

    def _record(self, schema: dict[str, Any], prefix: str, name: str) -> int:
        self._types[name] = schema
        children = [self._field(field, prefix, _space(name)) for field in schema["fields"]]
        return self._add(KINDS["record"], tuple(children), empty=self._all_empty(children))

    def _field(self, field: dict[str, Any], prefix: str, space: str) -> int:
        path = f"{prefix}.{field['name']}" if prefix else field["name"]
        slot = self._slots.get(path)
        if slot is not None:
            self._present.add(slot)
            return self._projected(field["type"], slot, space)
        if path in self._prefixes:
            return self._leading(field["type"], path, space)
        return self._passed_over(field["type"], space)

    def _leading(self, schema: Any, path: str, space: str) -> int:
        """A record at `path`, optionally in a union with null, that contains requested fields."""
        if isinstance(schema, list):
            return self._union([self._leading(branch, path, space) for branch in schema])
        resolved, name = self._resolved(schema, space)
        if resolved == "null":
            return self._add(KINDS["null"], empty=True)
        if not isinstance(resolved, dict) or resolved["type"] != "record":
            raise CorruptData(f"the field {path} of an Avro file is no record")
        return self._record(resolved, path, name)

    def _projected(self, schema: Any, slot: int, space: str) -> int:
        if isinstance(schema, list):
            if len([b for b in schema if b != "null"]) > 1:
                raise CorruptData(f"the field {self._fields[slot].path} of an Avro file may be of several types")
            return self._union([self._projected(branch, slot, space) for branch in schema])
        resolved, _ = self._resolved(schema, space)
        kind = resolved["type"] if isinstance(resolved, dict) else resolved
        if kind == "null":
            return self._add(KINDS["null"], empty=True)
        field = self._fields[slot]
        items = _ITEMS.get(field.kind)
        if items is None:
            return self._scalar(resolved, kind, field.kind, slot, field.path)
        if kind != "array":
            raise CorruptData(f"the field {field.path} of an Avro file is of type {kind}, not an array")
        item = self._item(resolved["items"], items, field.path, space)
        self.items[slot] = item
        return self._add(KINDS["array"], (item,), slot=slot)

    def _item(self, schema: Any, kind: str, path: str, space: str) -> int:
        """An item of a requested array. The kernel decodes items separately, into slot 0 of a record with one slot."""
        if isinstance(schema, list):
            return self._union([self._item(branch, kind, path, space) for branch in schema])
        resolved, _ = self._resolved(schema, space)
        name = resolved["type"] if isinstance(resolved, dict) else resolved
        if name == "null":
            return self._add(KINDS["null"], empty=True)
        return self._scalar(resolved, name, kind, 0, path)

    def _scalar(self, schema: Any, name: str, kind: str, slot: int, path: str) -> int:
        if name not in _SCALARS[kind]:
            raise CorruptData(f"the field {path} of an Avro file is of type {name}, not a {kind}")
        size = len(schema["symbols"]) if name == "enum" else _fixed_size(schema) if name == "fixed" else 0
        return self._add(KINDS[name], size=size, slot=slot)

    # -- fields that are skipped --------------------------------------------------------------------------------------

    def _passed_over(self, schema: Any, space: str) -> int:
        if isinstance(schema, list):
            return self._union([self._passed_over(branch, space) for branch in schema])
        resolved, name = self._resolved(schema, space)
        kind = resolved["type"] if isinstance(resolved, dict) else resolved
        if kind in ("record", "error"):
            return self._passed_record(resolved, name)
        if kind == "enum":
            return self._add(KINDS["enum"], size=len(resolved["symbols"]))
        if kind == "fixed":
            size = _fixed_size(resolved)
            return self._add(KINDS["fixed"], size=size, empty=size == 0)
        if kind in ("array", "map"):
            items = resolved["items" if kind == "array" else "values"]
            return self._add(KINDS[kind], (self._passed_over(items, space),))
        if kind in _UNKEPT:
            return self._add(KINDS["fixed"], size=_UNKEPT[kind])
        return self._add(KINDS[kind], empty=kind == "null")

    def _passed_record(self, schema: dict[str, Any], name: str) -> int:
        existing = self._passed.get(name)
        if existing is not None:
            return existing
        self._types[name] = schema
        node = self._passed[name] = self._add(KINDS["record"])  # before its fields, which may refer to it
        children = [self._passed_over(field["type"], _space(name)) for field in schema["fields"]]
        self.nodes[node] = (KINDS["record"], tuple(children), 0, -1, self._all_empty(children))
        return node

    # -- types --------------------------------------------------------------------------------------------------------

    def _union(self, branches: list[int]) -> int:
        return self._add(KINDS["union"], tuple(branches))

    def _all_empty(self, children: Sequence[int]) -> bool:
        return all(self.nodes[child][4] for child in children)

    def _resolved(self, schema: Any, space: str) -> tuple[Any, str]:
        """The definition of `schema` (the name of a basic type, or a dict), and its name, if it has one."""
        while isinstance(schema, dict) and not isinstance(schema["type"], str):
            schema = schema["type"]
            if isinstance(schema, list):
                raise CorruptData("a type in an Avro schema is a union inside of a type")
        if isinstance(schema, dict):
            kind = schema["type"]
            if kind in ("record", "error", "enum", "fixed"):
                name = _name(schema, space)
                self._types.setdefault(name, schema)
                return schema, name
            if kind in ("array", "map"):
                return schema, ""
            return self._resolved(kind, space)
        if schema in KINDS or schema in _UNKEPT:
            return schema, ""
        for name in (schema if "." in schema or not space else f"{space}.{schema}", schema):
            if name in self._types:
                return self._types[name], name
        raise CorruptData(f"the Avro type {schema!r} is not known")


def _name(schema: dict[str, Any], space: str) -> str:
    name: str = schema.get("name", "")
    space = schema.get("namespace", space)
    return name if "." in name or not space else f"{space}.{name}"


def _space(name: str) -> str:
    return name.rpartition(".")[0]


def _fixed_size(schema: dict[str, Any]) -> int:
    size = schema["size"]
    if not isinstance(size, int) or not 0 <= size <= 1 << 30:
        raise CorruptData(f"a fixed type in an Avro schema has the size {size!r}")
    return size
