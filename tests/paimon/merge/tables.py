"""Tables, runs and records for the tests of merging."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from forebay.codec.arrow.arrow_types import arrow_type
from forebay.metadata.types import DataType
from forebay.paimon.format.schema import DataField, TableSchema
from tests.paimon.merge.reference import Record, sorted_records


def table_schema(
    columns: Mapping[str, DataType], keys: Sequence[str] = ("id",), options: Mapping[str, str] | None = None
) -> TableSchema:
    fields = tuple(DataField(i, name, t) for i, (name, t) in enumerate(columns.items()))
    return TableSchema(0, fields, len(fields), (), tuple(keys), dict(options or {}))


def arrow_schema(schema: TableSchema) -> pa.Schema:
    keys = [pa.field(f.name, arrow_type(f.type)) for f in schema.key_fields]
    system = [pa.field("_SEQUENCE_NUMBER", pa.int64()), pa.field("_VALUE_KIND", pa.int8())]
    return pa.schema([*keys, *system, *(pa.field(f.name, arrow_type(f.type)) for f in schema.fields)])


def to_batch(records: Sequence[Record], schema: TableSchema) -> pa.RecordBatch:
    arrow = arrow_schema(schema)
    columns = [
        *([r.key[i] for r in records] for i in range(len(schema.key_fields))),
        [r.number for r in records],
        [r.kind for r in records],
        *([_arrow_value(r.row[name]) for r in records] for name in schema.names),
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, arrow)], schema=arrow
    )


def _arrow_value(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


def to_records(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> list[Record]:
    found = []
    maps = {f.name for f in arrow_schema(schema) if pa.types.is_map(f.type)}
    for batch in batches:
        batch.validate(full=True)
        for values in batch.to_pylist():
            key = tuple(values[f.name] for f in schema.key_fields)
            row = {name: values[name] for name in schema.names}
            for name in maps:
                row[name] = None if row[name] is None else dict(row[name])
            found.append(Record(key, values["_SEQUENCE_NUMBER"], values["_VALUE_KIND"], row))
    return found


def runs_of(
    records: Sequence[Record], rng: random.Random, runs: int, sequence: Sequence[str] = (), descending: bool = False
) -> list[list[Record]]:
    """The records dealt to sorted runs, in which keys are unique: later records of a key go to later runs."""
    dealt: list[dict[Any, Record]] = [{} for _ in range(runs)]
    for record in records:
        free = [run for run in dealt if record.key not in run]
        if free:
            rng.choice(free)[record.key] = record
    return [sorted_records(run.values(), sequence, descending) for run in dealt]


def in_batches(records: Sequence[Record], schema: TableSchema, rng: random.Random) -> Iterator[pa.RecordBatch]:
    """Batches of 0 to 4 rows, some of them slices of something larger."""
    start = 0
    while start < len(records):
        size = rng.randrange(5)
        if rng.random() < 0.5:
            yield to_batch(records, schema).slice(start, size)
        else:
            yield to_batch(records[start : start + size], schema)
        start += size


def comparable(value: Any) -> Any:
    """Plain values, in which NaN equals NaN and -0.0 is not 0.0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items()}
    return [comparable(v) for v in value] if isinstance(value, list) else value


def comparable_records(records: Sequence[Record], unordered: Sequence[str] = ()) -> list[Any]:
    """Records to compare with ==. Lists in the columns `unordered` have no order (Java keeps them in hash tables)."""
    found = []
    for r in records:
        row = {name: comparable(value) for name, value in r.row.items()}
        for name in unordered:
            if row[name] is not None:
                row[name] = sorted(row[name], key=repr)
        found.append((comparable(list(r.key)), r.number, r.kind, row))
    return found
