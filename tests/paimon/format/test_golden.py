"""Metadata written by pypaimon (`golden/`, made by make_golden.py): read correctly, and written back identically."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from forebay.paimon.format import avro
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import EMPTY_ROW, FileKind, FileSource, ManifestEntry
from forebay.paimon.format.manifest_codec import (
    Arities,
    describe_manifest,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from forebay.paimon.format.manifest_rows import read_manifest_rows
from forebay.paimon.format.schema_json import format_schema, parse_schema
from forebay.paimon.format.snapshot_json import format_snapshot, parse_snapshot
from forebay.paimon.format.stats import ColumnStats, unpack_stats
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.paths import PathFactory
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.store.snapshots import SnapshotManager
from forebay.paimon.store.tags import TagManager

GOLDEN = Path(__file__).parent / "golden"
IO = LocalFileIO(sync=False)
TABLES = ("pk", "log")


def _paths(name: str) -> PathFactory:
    schema = SchemaManager(IO, PathFactory(str(GOLDEN / name))).latest()
    return PathFactory.of(str(GOLDEN / name), schema)


def _entries(name: str, snapshot_id: int) -> list[ManifestEntry]:
    paths = _paths(name)
    snapshot = SnapshotManager(IO, paths).snapshot(snapshot_id)
    lists = (snapshot.base_manifest_list, snapshot.delta_manifest_list)
    manifests = [m for name in lists for m in read_manifest_list(IO.read(paths.manifest(name)))]
    return [e for m in manifests for e in read_manifest_rows(IO.read(paths.manifest(m.file_name))).entries()]


def _as_java(node: Any) -> Any:
    """`node` without what only pypaimon writes: a member "nullable" in nested types, which Java says in the type."""
    if isinstance(node, list):
        return [_as_java(item) for item in node]
    if isinstance(node, dict):
        return {k: _as_java(v) for k, v in node.items() if k != "nullable"}
    return node


@pytest.mark.parametrize("name", TABLES)
def test_schema_and_snapshots_come_back_as_they_were(name: str) -> None:
    paths = _paths(name)
    for path, parse, write in (
        (paths.schema(0), parse_schema, format_schema),
        (paths.snapshot(1), parse_snapshot, format_snapshot),
        (paths.snapshot(2), parse_snapshot, format_snapshot),
    ):
        data = IO.read(path)
        value: Any = parse(data)
        assert json.loads(write(value)) == _as_java(json.loads(data))


@pytest.mark.parametrize("name", TABLES)
def test_the_latest_snapshot_and_the_tag_are_found(name: str) -> None:
    paths = _paths(name)
    latest = SnapshotManager(IO, paths).latest()
    assert latest is not None
    assert (latest.id, latest.total_record_count) == (2, 8)
    assert TagManager(IO, paths).tag("t1").snapshot.id == 1


@pytest.mark.parametrize("name", TABLES)
def test_manifests_are_written_back_record_for_record(name: str) -> None:
    paths = _paths(name)
    schema = parse_schema(IO.read(paths.schema(0)))
    arities = Arities(1, len(schema.trimmed_primary_keys))
    snapshot = SnapshotManager(IO, paths).snapshot(2)
    for list_name in (snapshot.base_manifest_list, snapshot.delta_manifest_list):
        theirs = IO.read(paths.manifest(list_name))
        manifests = read_manifest_list(theirs)
        ours = avro.read_records(write_manifest_list(manifests, 1))
        known = set(ours[0])
        assert ours == [{k: v for k, v in record.items() if k in known} for record in avro.read_records(theirs)]
        for manifest in manifests:
            data = IO.read(paths.manifest(manifest.file_name))
            entries = read_manifest_rows(data).entries()
            assert avro.read_records(write_manifest(entries, arities)) == avro.read_records(data)


@pytest.mark.parametrize("name", TABLES)
def test_the_description_of_a_manifest_is_the_one_that_pypaimon_gave(name: str) -> None:
    paths = _paths(name)
    schema = parse_schema(IO.read(paths.schema(0)))
    snapshot = SnapshotManager(IO, paths).snapshot(1)
    (theirs,) = read_manifest_list(IO.read(paths.manifest(snapshot.delta_manifest_list)))
    entries = read_manifest_rows(IO.read(paths.manifest(theirs.file_name))).entries()
    ours = describe_manifest(theirs.file_name, theirs.file_size, entries, row_layout(schema.partition_fields), 0)
    assert ours == theirs


def test_partitions_keys_and_statistics_have_the_values_that_were_written() -> None:
    schema = parse_schema(IO.read(_paths("pk").schema(0)))
    entries = _entries("pk", 2)
    assert {e.kind for e in entries} == {FileKind.ADD}
    assert {row_layout(schema.partition_fields).decode(e.partition) for e in entries} == {(19723,), (19724,)}
    keys = row_layout(schema.key_fields)
    ids = {value for e in entries for row in (e.file.min_key, e.file.max_key) for value in keys.decode(row)}
    assert min(ids) == 0
    assert max(ids) == 7
    assert {e.file.file_source for e in entries} == {FileSource.APPEND}
    merged = [unpack_stats(e.file.value_stats, schema.fields, e.file.value_stats_cols) for e in entries]
    least = {
        name: min(s[name].min for s in merged if s[name].min is not None) for name in ("s", "p30", "ts", "ts3", "y")
    }
    assert least == {
        "s": "text number 0",
        "p30": Decimal("0.0000"),
        "ts": 1704067200123456,
        "ts3": 1704067200005,
        "y": b"\x00\xff",
    }
    assert {s["b"].null_count for s in merged} == {0}
    assert {s["i32"].max for s in merged} <= {1000 * i for i in range(8)}


def test_the_keys_of_append_files_are_rows_without_fields() -> None:
    assert {(e.file.min_key, e.file.max_key, e.bucket) for e in _entries("log", 2)} == {(EMPTY_ROW, EMPTY_ROW, 0)}


def test_data_files_lie_where_pypaimon_put_them() -> None:
    paths = _paths("pk")
    directories = {paths.bucket_directory(e.partition, e.bucket) for e in _entries("pk", 2)}
    assert directories <= {str(GOLDEN / "pk" / f"dt={day}" / f"bucket-{b}") for day in (19723, 19724) for b in (0, 1)}


def test_columns_without_statistics_are_absent() -> None:
    schema = parse_schema(IO.read(_paths("log").schema(0)))
    stats = _entries("log", 1)[0].file.value_stats
    assert unpack_stats(stats, schema.fields[:2]) == {}
    assert unpack_stats(stats, schema.fields)["id"] == ColumnStats(0, 2, 0)
