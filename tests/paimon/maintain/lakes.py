"""Helpers of maintenance tests: a table with a clock, copies of it, and the contents of its disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.base.ambient import ManualClock
from forebay.paimon.catalog.definition import new_schema
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.maintain.references import branches_of
from forebay.paimon.store.manifests import ManifestStore
from forebay.paimon.store.paths import PathFactory
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.table import Table

FAST = LocalFileIO(sync=False)
COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int32())])
NOW = 1_900_000_000_000
"""After all files were made: tests set their clocks here, so that files are old."""


def make_table(
    root: Path | str,
    options: Mapping[str, str] | None = None,
    columns: pa.Schema = COLUMNS,
    primary_keys: tuple[str, ...] = ("id",),
    partition_keys: tuple[str, ...] = (),
    clock: ManualClock | None = None,
) -> Table:
    given = {"write-only": "true", **({"bucket": "1"} if primary_keys else {}), **(options or {})}
    schema = new_schema(columns, primary_keys, partition_keys, given)
    SchemaManager(FAST, PathFactory(str(root))).create(schema)
    return open_table(root, clock=clock)


def open_table(root: Path | str, io: FileIO = FAST, clock: ManualClock | None = None, **options: str) -> Table:
    return Table(io, str(root), clock=clock or ManualClock(NOW), options=options)


def copied(table: Table, target: Path) -> Path:
    """A copy of the table's directory."""
    shutil.copytree(table.context.paths.root, target)
    return target


def rows(table: Table, as_of: Any = None) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in table.scan(as_of=as_of).to_arrow().to_pylist())


def files_of(root: Path | str) -> set[str]:
    """All files, relative to the table; hints left out."""
    base = Path(root)
    return {str(p.relative_to(base)) for p in base.rglob("*") if p.is_file() and p.name not in ("LATEST", "EARLIEST")}


def referenced(root: Path | str) -> set[str]:
    """The files that a table's schemas, snapshots, tags, changelogs and consumers are and refer to, all branches."""
    table = open_table(root)
    found: set[str] = set()
    for branch in branches_of(replace(table.context, io=FAST)):
        own = branch.paths
        store = ManifestStore(FAST, own, table.schema)
        found |= {own.schema(i) for i in SchemaManager(FAST, own).ids()}
        found |= {own.snapshot(i) for i in branch.snapshots.ids()}
        found |= {branch.snapshots.changelogs.path(i) for i in branch.snapshots.changelogs.ids()}
        found |= {own.tag(name) for name in branch.tags.names()}
        found |= {s.path for s in FAST.list(own.consumer_directory)}
        # A tag does not keep its snapshot's changelog.
        tagged = [replace(s, changelog_manifest_list=None) for s in branch.tags.tagged_snapshots()]
        for snapshot in (*branch.snapshots.snapshots(), *tagged):
            lists = {snapshot.base_manifest_list, snapshot.delta_manifest_list, snapshot.changelog_manifest_list}
            manifests = [*store.data_manifests(snapshot), *store.changelog_manifests(snapshot)]
            names = {name for name in lists if name} | {m.file_name for m in manifests}
            entries = [*store.live_files(snapshot), *store.entries(store.changelog_manifests(snapshot))]
            for e in entries:
                found.update(own.data_file_and_companions(e.partition, e.bucket, e.file))
            if snapshot.index_manifest:
                names.add(snapshot.index_manifest)
                for i in store.read_index(snapshot.index_manifest):
                    found.add(own.index_file(i.index_file, i.partition, i.bucket))
            found |= {own.manifest(name) for name in names}
            if snapshot.statistics:
                found.add(own.statistics(snapshot.statistics))
    base = str(root).rstrip("/") + "/"
    return {path.removeprefix(base) for path in found}
