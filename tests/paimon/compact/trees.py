"""Helpers of compaction tests: artificial files, and the changelog of a table read row by row."""

from __future__ import annotations

from typing import Any

from forebay.metadata.types import bigint
from forebay.paimon.compact.levels import LevelRun
from forebay.paimon.files.reader import DataFileReader
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import EMPTY_STATS, DataFileMeta, FileSource
from forebay.paimon.format.schema import DataField
from forebay.paimon.read.split_reader import KIND_FIELD
from forebay.paimon.table import Table

KEYS = row_layout((DataField(0, "id", bigint().not_null()),))
TINY_FILES = {"target-file-size": "1 kb"}
"""Every file is large: compaction moves files up instead of rewriting them where it may."""


def data_file(
    name: str, size: int = 1, level: int = 0, *, low: int = 0, high: int = 9, sequence: int = 0, **more: Any
) -> DataFileMeta:
    """A file that is nowhere. Keys are one BIGINT."""
    return DataFileMeta(
        file_name=name,
        file_size=size,
        row_count=high - low + 1,
        min_key=KEYS.encode_one((low,)),
        max_key=KEYS.encode_one((high,)),
        key_stats=EMPTY_STATS,
        value_stats=EMPTY_STATS,
        min_sequence_number=sequence,
        max_sequence_number=sequence,
        schema_id=0,
        level=level,
        **{"creation_time": 0, "delete_row_count": 0, "file_source": FileSource.APPEND, **more},
    )


def runs_of(*described: tuple[int, int]) -> list[LevelRun]:
    """Runs, newest first, each of one file: (level, size)."""
    return [LevelRun(level, (data_file(f"f{i}", size, level),)) for i, (level, size) in enumerate(described)]


def changelog(table: Table) -> list[tuple[int, dict[str, Any]]]:
    """All rows of all changelog files, in the order of commits and (within a bucket) of the files: kind and row."""
    reader = DataFileReader(table.context.io, table.context.schemas.schema, (KIND_FIELD, *table.schema.fields))
    found = []
    for snapshot in table.context.snapshots.snapshots():
        for manifest in table.context.manifests.changelog_manifests(snapshot):
            for e in table.context.manifests.read(manifest.file_name):
                for batch in reader.read(e.file, table.context.paths.data_file(e.partition, e.bucket, e.file)):
                    for row in batch.to_pylist():
                        found.append((row.pop(KIND_FIELD.name), row))
    return found


def replay(changes: list[tuple[int, dict[str, Any]]], key: str = "id") -> dict[Any, dict[str, Any]]:
    """The state that a reader has who follows a complete changelog. Fails if a change does not fit."""
    state: dict[Any, dict[str, Any]] = {}
    for kind, row in changes:
        if kind == 0:
            assert row[key] not in state, f"+I of a row that is there: {row}"
            state[row[key]] = row
        elif kind == 1:
            assert state[row[key]] == row, f"-U with another row than the one that is there: {row}"
        elif kind == 2:
            assert row[key] in state, f"+U of a row that is not there: {row}"
            state[row[key]] = row
        else:
            assert state.pop(row[key]) == row, f"-D with another row than the one that is there: {row}"
    return state
