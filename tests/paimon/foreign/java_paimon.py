"""Apache Paimon's own Java API, driven by a program of ours (`java/PaimonExam.java`): the reference implementation.

Terms: `JavaPaimon` is one JVM that answers requests, one JSON line each, until it is closed. Values are exchanged as
*plain* values, which are lossless: floating point as the bits of a double and bytes in hexadecimal, decimals as text,
dates in days, times in milliseconds, timestamps in nanoseconds, maps as `{"map": list of pairs}`, rows as lists.

The jar comes from Maven Central into the cache of `tests/foreign`; Hadoop's client comes from PySpark's jars.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.metadata.types import DataType, TypeRoot, child
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.types_json import format_type
from tests.java_programs import (
    ExamUnavailable,
    JavaProgram,
    class_path,
    compiled,
    java_command,
    maven_jars,
    spark_jars,
)

__all__ = [
    "HADOOP",
    "HERE",
    "ExamUnavailable",
    "JavaError",
    "JavaPaimon",
    "JavaTable",
    "Plain",
    "plain_rows",
    "rows_for_java",
    "sorted_rows",
]

Plain = Any
HERE = Path(__file__).resolve().parent
_HEAP_MB, _JVM = 700, ["-Dlog4j2.level=ERROR"]
HADOOP = ("hadoop-client-", "slf4j-", "jcl-over-slf4j", "log4j-", "commons-lang", "snappy-java", "lz4-java")
_ANSWER_SECONDS = 120.0


class JavaError(Exception):
    """What Java Paimon refused; `kind` is the exception's class."""

    def __init__(self, kind: str, message: str, trace: str) -> None:
        super().__init__(f"{kind}: {message[:300]}\n{_causes(trace)}")
        self.kind, self.message, self.trace = kind, message, trace


class JavaPaimon:
    """A running JVM with Java Paimon. Not thread-safe. Raises `ExamUnavailable` where there can be none."""

    def __init__(self) -> None:
        own = maven_jars(HERE / "java" / "pom.xml", ["paimon-bundle"], "paimon-jars", "Apache Paimon")
        jars = class_path([*own, *spark_jars(HADOOP)])
        classes = compiled(sorted((HERE / "java").glob("*.java")), jars, "paimon-classes")
        command = java_command(classes, jars, "PaimonExam", _HEAP_MB, _JVM)
        self._program = JavaProgram("java-paimon", [*command, "{scratch}"], _ANSWER_SECONDS)

    def close(self) -> None:
        self._program.close()

    def ask(self, op: str, warehouse: str, table: str, **details: Any) -> Any:
        """One request; its value. Raises `JavaError` with what Java says if it refuses."""
        request = {"op": op, "warehouse": warehouse, "table": table, **details}
        answer = json.loads(self._program.answer(json.dumps(request)))
        if "error" in answer:
            raise JavaError(answer["error"], answer["message"], answer["trace"])
        return answer["value"]


class JavaTable:
    """One table as Java Paimon sees it."""

    def __init__(self, java: JavaPaimon, warehouse: str, name: str) -> None:
        self.java, self.warehouse, self.name = java, warehouse, name

    def ask(self, op: str, **details: Any) -> Any:
        return self.java.ask(op, self.warehouse, self.name, **details)

    def create(
        self,
        columns: Mapping[str, DataType],
        primary_key: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Make the table by Java's catalog."""
        fields = [{"name": n, "type": format_type(_with_ids(t, [100]))} for n, t in columns.items()]
        self.ask(
            "create", fields=fields, primary_keys=list(primary_key), partition_keys=list(partition_keys),
            options=dict(options or {}),
        )  # fmt: skip

    def write(self, schema: TableSchema, data: pa.Table, kinds: Sequence[str] | None = None, **details: Any) -> Any:
        """Write rows in one commit; the latest snapshot's id."""
        return self.ask(details.pop("op", "write"), rows=rows_for_java(schema, data, kinds), **details)

    def rows(self, **details: Any) -> list[list[Plain]]:
        """The rows of a read, sorted, without their kinds."""
        return sorted((_sorted_maps(row[1:]) for row in self.ask("read", **details)["rows"]), key=repr)

    def system(self, which: str) -> list[dict[str, Plain]]:
        """The rows of a system table."""
        answer = self.java.ask("read", self.warehouse, f"{self.name}${which}")
        return [dict(zip(answer["columns"], row[1:], strict=True)) for row in answer["rows"]]

    def planned_files(self, **details: Any) -> list[str]:
        """Names of the files that a read opens."""
        return [file[0] for split in self.ask("plan", **details) for file in split["files"]]

    def stream(self, name: str, **details: Any) -> list[list[list[Plain]]]:
        """What the stream `name` has to tell now, plan by plan; rows with their kinds in front."""
        return self.ask("stream", stream=name, **details)["plans"]  # type: ignore[no-any-return]


def _with_ids(t: DataType, counter: list[int]) -> DataType:
    """`t` with ids for nested fields, which Java requires and then reassigns."""
    match t.root:
        case TypeRoot.ARRAY:
            return replace(t, element=_with_ids(child(t.element), counter))
        case TypeRoot.MAP:
            return replace(t, key=_with_ids(child(t.key), counter), value=_with_ids(child(t.value), counter))
        case TypeRoot.ROW:
            fields = []
            for f in t.fields:
                counter[0] += 1
                fields.append(replace(f, field_id=counter[0], data_type=_with_ids(f.data_type, counter)))
            return replace(t, fields=tuple(fields))
    return t


# ---- plain values ---------------------------------------------------------------------------------------------------


def rows_for_java(schema: TableSchema, data: pa.Table, kinds: Sequence[str] | None = None) -> list[list[Plain]]:
    """Rows of our table as Java takes them: the kind, then plain values."""
    rows = plain_rows(schema, data)
    return [[kind, *row] for kind, row in zip(kinds or ["+I"] * len(rows), rows, strict=True)]


def plain_rows(schema: TableSchema, data: pa.Table) -> list[list[Plain]]:
    """The rows of `data`, in its order, as plain values; columns are those of `data`."""
    columns = [_plain_column(data.column(n).combine_chunks(), schema.field_named(n).type) for n in data.column_names]
    return [list(row) for row in zip(*columns, strict=True)]


def sorted_rows(schema: TableSchema, data: pa.Table) -> list[list[Plain]]:
    """As `plain_rows`, in the order of `JavaTable.rows`."""
    return sorted((_sorted_maps(row) for row in plain_rows(schema, data)), key=repr)


def _plain_column(array: pa.Array, t: DataType) -> list[Plain]:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    match t.root:
        case TypeRoot.FLOAT | TypeRoot.DOUBLE | TypeRoot.DECIMAL:
            values = array.to_pylist()
            if t.root is TypeRoot.DECIMAL:
                return [None if v is None else f"{v:f}" for v in values]
            return [None if v is None else struct.pack(">d", v if v == v else math.nan).hex() for v in values]
        case TypeRoot.BINARY | TypeRoot.BYTES:
            return [None if v is None else v.hex() for v in array.to_pylist()]
        case TypeRoot.DATE | TypeRoot.TIME:
            return array.cast(pa.int32()).to_pylist()
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            scale = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[array.type.unit]
            return [None if v is None else v * scale for v in array.cast(pa.int64()).to_pylist()]
        case TypeRoot.ARRAY:
            return _sliced(array, _plain_column(array.values, child(t.element)))
        case TypeRoot.MAP:
            keys = _plain_column(array.keys, child(t.key))
            values = _plain_column(array.items, child(t.value))
            pairs = [list(p) for p in zip(keys, values, strict=True)]
            return [None if p is None else {"map": p} for p in _sliced(array, pairs)]
        case TypeRoot.ROW:
            parts = [_plain_column(array.field(i), f.data_type) for i, f in enumerate(t.fields)]
            valid = pc.is_valid(array).to_pylist()
            return [list(r) if ok else None for ok, r in zip(valid, zip(*parts, strict=True), strict=True)]
    return array.to_pylist()


def _sliced(array: pa.Array, values: list[Plain]) -> list[Plain]:
    valid = pc.is_valid(array).to_pylist()
    offsets = array.offsets.to_pylist()
    return [values[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(len(array))]


def _sorted_maps(cells: Sequence[Plain]) -> list[Plain]:
    """Cells in which the entries of maps are in one order."""
    return [_ordered(cell) for cell in cells]


def _ordered(cell: Plain) -> Plain:
    if isinstance(cell, dict):
        return {"map": sorted(([_ordered(c) for c in pair] for pair in cell["map"]), key=repr)}
    return [_ordered(c) for c in cell] if isinstance(cell, list) else cell


def _causes(trace: str) -> str:
    """The lines of a Java stack trace that say something: causes, and where each began."""
    lines = trace.splitlines()
    starts = [i for i, line in enumerate(lines) if i == 0 or line.startswith("Caused by")]
    return "\n".join(line[:300] for i in starts for line in lines[i : i + 8])
