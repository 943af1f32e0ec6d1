"""Values and keys that users type, by the types of a table's columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import sql_fault, sql_name


def typed_values(table: str, column: str, data_type: pa.DataType, texts: Sequence[str]) -> pa.Array:
    """The values of a column's type for texts. Raises `InvalidRequest`, naming the column and the text."""
    try:
        return _typed(data_type, pa.array(texts))
    except (pa.ArrowException, ValueError) as e:
        raise InvalidRequest(
            f"column {column} of {table} is {sql_name(data_type)}; {', '.join(texts)} is not: {sql_fault(e, data_type)}"
        ) from e


def from_texts(column: str, data_type: pa.DataType, texts: pa.Array) -> pa.Array:
    """The values of a column of a file. Raises `InvalidRequest`, naming the column."""
    try:
        return _typed(data_type, texts)
    except (pa.ArrowException, ValueError) as e:
        raise InvalidRequest(f"column {column} is {sql_name(data_type)}: {sql_fault(e, data_type)}") from e


def _typed(data_type: pa.DataType, texts: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(data_type) and data_type.tz:
        zoned = pc.fill_null(pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$"), True)
        if pc.all(zoned).as_py():
            return texts.cast(data_type)
        if not pc.any(pc.and_(zoned, texts.is_valid())).as_py():
            return texts.cast(pa.timestamp(data_type.unit)).cast(data_type)
        return pa.concat_arrays([_typed(data_type, texts.slice(i, 1)) for i in range(len(texts))])
    if pa.types.is_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
        return pa.array([None if text is None else bytes.fromhex(text) for text in texts.to_pylist()], data_type)
    if pa.types.is_time(data_type):
        return pa.array([_nanoseconds(text) for text in texts.to_pylist()], pa.time64("ns")).cast(data_type)
    return texts.cast(data_type)


def _nanoseconds(text: str | None) -> int | None:
    """The nanoseconds since midnight for 12:30, 12:30:05 or 12:30:05.123456789. Raises `ValueError`."""
    if text is None:
        return None
    match = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,9}))?)?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time like 12:30:05")
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[:3])
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + int((match[4] or "0").ljust(9, "0"))


def keys_of(table: str, schema: pa.Schema, names: Sequence[str], texts: Sequence[str | Mapping[str, str]]) -> pa.Table:
    """Typed keys, as a table of the primary key's columns, which are `names` in the schema of the table.

    A key is its value, column=value pairs with commas where the key has several columns, or a mapping. Raises
    `InvalidRequest`, naming the table and the text.
    """
    columns: dict[str, list[str]] = {name: [] for name in names}
    for text in texts:
        if isinstance(text, Mapping):
            values = dict(text)
        elif len(names) == 1 and "=" not in text:
            values = {names[0]: text}
        else:
            values = dict(_pairs(text, names))
        if set(values) != set(names):
            raise InvalidRequest(f"key {text!r} of {table} must give {', '.join(f'{name}=...' for name in names)}")
        for name, value in values.items():
            columns[name].append(value)
    return pa.table({name: typed_values(table, name, schema.field(name).type, columns[name]) for name in names})


def _pairs(text: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise InvalidRequest(f"{part!r} in key {text!r} is not column=value; the key is ({', '.join(names)})")
        yield name.strip(), value.strip()
