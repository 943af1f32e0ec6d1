"""Helpers of stream tests: a small keyed table, changes applied to a dictionary, and compaction done by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.paimon.files.reader import DataFileReader
from forebay.paimon.files.writer import FileSettings, RollingWriter, key_value_fields
from forebay.paimon.format.commit_message import CommitMessage, CompactIncrement
from forebay.paimon.format.file_meta import FileSource
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.merge.runs import merge_runs
from forebay.paimon.merge.spec import merge_function
from forebay.paimon.read.table_stream import TableStream
from forebay.paimon.table import Table

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.int32())])
Change = tuple[str, tuple[Any, ...]]
State = dict[Any, tuple[Any, ...]]


def changes_of(batches: Iterable[pa.RecordBatch]) -> list[Change]:
    """Row kind and values of every row, in order."""
    found = []
    for batch in batches:
        names = [name for name in batch.schema.names if name != "_row_kind"]
        columns = [batch.column(name).to_pylist() for name in names]
        found += list(zip(batch.column("_row_kind").to_pylist(), zip(*columns, strict=True), strict=True))
    return found


def drain(stream: TableStream) -> list[Change]:
    """All changes that there are, without waiting."""
    return changes_of(iter(stream.poll, None))


def apply(state: State, changes: Iterable[Change]) -> State:
    """`state` by key (the first column) after `changes`."""
    for kind, row in changes:
        if kind in ("+I", "+U"):
            state[row[0]] = row
        else:
            state.pop(row[0], None)
    return state


def state_of(table: Table, as_of: Any = None) -> State:
    """The table as a dictionary by its first column."""
    return {row[0]: row for row in (tuple(r.values()) for r in table.scan(as_of=as_of).to_arrow().to_pylist())}


def json_round_trip(state: dict[str, Any]) -> dict[str, Any]:
    """`state` as it comes back from where a user keeps it."""
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


def compact_fully(table: Table, changelog: bool = False) -> Snapshot:
    """Merge all files of each bucket into the top level, and commit that; with `changelog`, its changelog as well.

    The changelog is worked out a row at a time from the state before (the top level) and after.
    """
    snapshot = table.context.snapshots.latest()
    assert snapshot is not None
    spec = merge_function(table.schema)
    fields = key_value_fields(table.schema)
    top = table.context.options.num_levels - 1
    buckets: dict[tuple[bytes, int], list[Any]] = {}
    for entry in table.context.manifests.live_files(snapshot):
        buckets.setdefault((entry.partition, entry.bucket), []).append(entry)
    messages = []
    for (partition, bucket), entries in buckets.items():
        reader = DataFileReader(table.context.io, table.context.schemas.schema, fields)
        runs = {
            e.file.file_name: list(reader.read(e.file, table.context.paths.data_file(partition, bucket, e.file)))
            for e in sorted(entries, key=lambda e: e.file.max_sequence_number)
        }
        merged = list(merge_runs(list(runs.values()), spec, keep_deletes=False))
        directory, names = (
            table.context.paths.bucket_directory(partition, bucket),
            table.context.paths.data_file_names(),
        )
        settings = FileSettings.of(table.schema, table.context.options, top, FileSource.COMPACT)
        after = _written(table, directory, settings, names, merged)
        changes: tuple[Any, ...] = ()
        if changelog:
            old = [b for e in entries if e.file.level == top for b in runs[e.file.file_name]]
            log = _changelog(old, merged)
            log_settings = FileSettings.of(table.schema, table.context.options, 0, changelog=True)
            changes = _written(table, directory, log_settings, names, log)
        before = tuple(e.file for e in entries)
        increment = CompactIncrement(before, tuple(replace(f, level=top) for f in after), changes)
        messages.append(CommitMessage(partition, bucket, entries[0].total_buckets, compact=increment))
    return table.new_commit("compactor").commit(messages)[-1]


def _written(table: Table, directory: str, settings: Any, names: Any, batches: list[pa.RecordBatch]) -> tuple[Any, ...]:
    writer = RollingWriter(table.context.io, directory, settings, names)
    for batch in batches:
        if batch.num_rows:
            writer.write(batch)
    return tuple(writer.close())


def _changelog(before: list[pa.RecordBatch], after: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    rows = [{r["id"]: r for b in batches for r in b.to_pylist()} for batches in (before, after)]
    log = []
    for key in sorted({*rows[0], *rows[1]}):
        old, new = rows[0].get(key), rows[1].get(key)
        if old is None:
            log.append({**new, "_VALUE_KIND": 0})
        elif new is None:
            log.append({**old, "_VALUE_KIND": 3})
        elif (old["name"], old["v"]) != (new["name"], new["v"]):
            log += [{**old, "_VALUE_KIND": 1}, {**new, "_VALUE_KIND": 2}]
    schema = (after or before)[0].schema
    return [pa.RecordBatch.from_pylist(log, schema)] if log else []


def random_rows(rng: np.random.Generator, keys: int, count: int) -> pa.Table:
    """Up to `count` rows with distinct keys below `keys`."""
    ids = rng.choice(keys, size=min(count, keys), replace=False)
    values = rng.integers(0, 5, len(ids))
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "name": [f"n{v}" for v in values], "v": pa.array(values, pa.int32())}
    )
