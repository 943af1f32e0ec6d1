"""Files of rows: CSV, Parquet, JSON lines and Arrow IPC, read and written batch by batch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.base.indirect import UTF_8
from forebay.codec.arrow.arrow_types import sql_name

KINDS = {
    "csv": ("csv",),
    "json": ("json", "jsonl", "ndjson"),
    "parquet": ("parquet", "pq"),
    "arrow": ("arrow", "ipc", "feather"),
}
"""The formats, and the endings of their files."""

_ROWS = 65_536


def kind_of(file: str, file_format: str | None) -> str:
    """The format of a file. Raises `InvalidRequest` for an ending that says none."""
    if file_format is not None:
        return file_format
    ending = Path(file).suffix.lower().removeprefix(".")
    for kind, endings in KINDS.items():
        if ending in endings:
            return kind
    raise InvalidRequest(
        f"{file!r} does not end like {', '.join(e for es in KINDS.values() for e in es)}: say --file-format"
    )


def schema_of(file: str, file_format: str | None = None) -> pa.Schema:
    """The schema of a file; of CSV and JSON the one that its first megabyte suggests."""
    with opened(file, kind_of(file, file_format), None) as (schema, _):
        return pa.schema([pa.field(f.name, pa.string() if pa.types.is_null(f.type) else f.type) for f in schema])


_JSON_BLOCK = 1 << 20  # Arrow's default


@contextmanager
def opened(file: str, kind: str, schema: pa.Schema | None) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The schema and the rows of a file. With `schema`, values of CSV and JSON are read as those of its columns.

    Raises `InvalidRequest`, which names the file, for what is not of the format.
    """
    try:
        with _readers[kind](file, schema) as (file_schema, batches):
            yield file_schema, _with_file_name(file, batches, schema)
    except (OSError, pa.ArrowException) as e:
        raise InvalidRequest(f"{file}: {_with_place(file, str(e), schema)}") from e


def _with_file_name(file: str, batches: Iterator[pa.RecordBatch], schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except pa.ArrowException as e:
        raise InvalidRequest(f"{file}: {_with_place(file, str(e), schema)}") from e


def _with_place(file: str, fault: str, schema: pa.Schema | None) -> str:
    """Return Arrow's message about a value with the column's name and type, and in CSV the line of the first such
    value.
    """
    match = re.search(r"Column\(/(.+?)\) changed from \w+ to (\w+) in row (\d+)$", fault)
    if match is not None and schema is not None and match[1] in schema.names:
        expected = sql_name(schema.field(match[1]).type)
        row = f" in row {match[3]}" if os.path.getsize(file) < _JSON_BLOCK else ""  # counted in each block
        return f"column '{match[1]}' is {expected}, but the file has a {match[2]}{row}"
    return _with_line(file, fault, schema)


def _with_line(file: str, fault: str, schema: pa.Schema | None) -> str:
    # Arrow counts rows where it has one core only, in each block.
    match = re.match(r"In CSV column #(\d+): (?:Row #\d+: )?(?:CSV conversion error to [^:]*: )?", fault)
    if match is None:
        return fault
    import csv

    column, message = int(match[1]), fault[match.end() :]
    value = re.fullmatch(r"invalid value '(.*)'", message, re.DOTALL)
    with open(file, encoding=UTF_8, errors="replace", newline="") as text:
        rows = csv.reader(text)
        try:
            name = next(row for row in rows if row)[column]
            line = next((rows.line_num for row in rows if value and row[column : column + 1] == [value[1]]), None)
        except csv.Error:  # such as a text that is too long for Python's reader
            return fault
    kind = f" ({sql_name(schema.field(name).type)})" if schema is not None and name in schema.names else ""
    return f"column '{name}'{kind}{f', line {line}' if line else ''}: {message}"


@contextmanager
def _csv(file: str, schema: pa.Schema | None) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    from pyarrow import csv

    nested = [field.name for field in schema or () if pa.types.is_nested(field.type)]
    types = {} if schema is None else {f.name: _as_text(f.type) for f in schema if f.name not in nested}
    convert = csv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False)
    with csv.open_csv(file, convert_options=convert) as reader:
        bad = [name for name in nested if name in reader.schema.names]
        if bad:
            raise UnsupportedOperation(f"{file}: column '{bad[0]}' is nested, which CSV has no form for: use Parquet")
        yield reader.schema, (_from_text(file, batch, schema) for batch in reader)


@contextmanager
def _json(file: str, schema: pa.Schema | None) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    from pyarrow import json

    if schema is not None:
        bad = [field for field in schema if _not_in_json(field.type)]
        if bad:
            column = f"column '{bad[0].name}', {sql_name(bad[0].type)}"
            raise UnsupportedOperation(f"{file}: {column}, is not read from JSON: use Parquet")
        explicit = pa.schema([pa.field(field.name, _as_text(field.type)) for field in schema])
        options = json.ParseOptions(explicit_schema=explicit, unexpected_field_behavior="infer")
        with json.open_json(file, parse_options=options) as reader:
            names = reader.schema.names
            typed = pa.schema([schema.field(n) if n in schema.names else reader.schema.field(n) for n in names])
            yield typed, (_from_text(file, batch, schema) for batch in reader)
        return
    with json.open_json(file) as reader:
        inferred_schema: pa.Schema = reader.schema
    for place, field in enumerate(inferred_schema):
        if pa.types.is_timestamp(field.type):  # found by the look of texts, whose zones it says nothing about
            inferred_schema = inferred_schema.set(place, field.with_type(_timestamp_in(file, field.name)))
    with _json(file, inferred_schema) as (schema, batches):
        yield schema, batches


@contextmanager
def _parquet(file: str, _: pa.Schema | None) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as reader:
        yield reader.schema_arrow, reader.iter_batches(_ROWS)


@contextmanager
def _arrow(file: str, _: pa.Schema | None) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    with pa.memory_map(file) as source:
        try:
            reader: Any = pa.ipc.open_file(source)
            yield reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))
        except pa.ArrowInvalid:
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            yield stream.schema, iter(stream)


_readers: Any = {"csv": _csv, "json": _json, "parquet": _parquet, "arrow": _arrow}


def _as_text(t: pa.DataType) -> pa.DataType:
    """The type by which values in text are read: bytes are hexadecimal; a time with a zone may lack it."""
    return pa.string() if pa.types.is_temporal(t) or _is_bytes(t) else t


def _is_bytes(t: pa.DataType) -> bool:
    return bool(pa.types.is_binary(t) or pa.types.is_fixed_size_binary(t))


def _not_in_json(t: pa.DataType, inside: bool = False) -> bool:
    """Whether JSON has no form for values of this type that can be read: maps, and bytes and times in other values."""
    if pa.types.is_map(t) or (inside and (pa.types.is_temporal(t) or _is_bytes(t))):
        return True
    return any(_not_in_json(t.field(i).type, True) for i in range(t.num_fields))


def _from_text(file: str, batch: pa.RecordBatch, schema: pa.Schema | None) -> pa.RecordBatch:
    if schema is None:
        return batch
    from forebay.api.texts import from_texts

    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        place = schema.get_field_index(field.name)
        column_type = field.type if place < 0 else schema.field(place).type
        try:
            columns.append(column if column.type.equals(column_type) else from_texts(field.name, column_type, column))
        except InvalidRequest as e:
            raise InvalidRequest(f"{file}: {e.message}") from e
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _timestamp_in(file: str, column: str) -> pa.DataType:
    """The type of a column of times in JSON: with a zone if the first one has it."""
    from pyarrow import json

    options = json.ParseOptions(explicit_schema=pa.schema([(column, pa.string())]))
    with json.open_json(file, parse_options=options) as reader:
        texts = reader.read_next_batch().column(column).drop_null()
    zoned = len(texts) > 0 and re.search(r"(Z|[+-]\d\d:?\d\d)$", texts[0].as_py()) is not None
    return pa.timestamp("us", "UTC" if zoned else None)


# ---- writing --------------------------------------------------------------------------------------------------------


def write(file: str, kind: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    """Write rows to a file, which is there once it is complete; return their number. "-" is standard output."""
    if file == "-":
        if kind not in ("csv", "json"):
            raise InvalidRequest(f"{kind} files do not go to standard output: name a file")
        import sys

        return _write_text(sys.stdout, kind, schema, batches)
    unfinished = f"{file}.part"
    try:
        rows = _write(unfinished, kind, schema, batches)
        try:
            os.replace(unfinished, file)
        except OSError as e:
            raise InvalidRequest(f"{file}: {e.strerror}") from e
    except BaseException:
        with suppress(OSError):  # the first error counts, which may be that no such file can be
            Path(unfinished).unlink()
        raise
    return rows


def _write(file: str, kind: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    try:
        if kind in ("csv", "json"):
            with open(file, "w", encoding="utf-8", newline="") as out:
                return _write_text(out, kind, schema, batches)
        rows = 0
        if kind == "parquet":
            from pyarrow import parquet

            opened: Any = parquet.ParquetWriter(file, schema)
        else:
            opened = pa.ipc.new_file(file, schema)
        with opened as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        return rows
    except OSError as e:
        raise InvalidRequest(f"{file}: {e.strerror or e}") from e


def _write_text(out: Any, kind: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    from forebay.cli.output import print_batches

    return print_batches(batches, kind, out, schema=schema if kind == "csv" else None)
