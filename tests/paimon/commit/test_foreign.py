"""Commits of ours, read by pypaimon: append, compaction, overwrite, merged manifests, tags, branches, schema changes.

The data file is one that pypaimon wrote; commits that add it again under other names need no writer of ours.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.metadata import types
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.format.commit_message import CommitMessage, CompactIncrement, DataIncrement
from forebay.paimon.format.file_meta import DataFileMeta, FileSource, ManifestEntry
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.paths import PathFactory
from forebay.paimon.store.schema_changes import AddColumn, RenameColumn
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.store.tags import TagManager
from tests.paimon.commit.tables import FAST
from tests.paimon.oracle import ask

pytestmark = [pytest.mark.foreign, pytest.mark.slow]

WRITE = """
import sys, pyarrow as pa
from pypaimon import CatalogFactory, Schema
catalog = CatalogFactory.create({"warehouse": sys.argv[1]})
catalog.create_database("db", True)
schema = pa.schema([("dt", pa.string()), ("id", pa.int64()), ("v", pa.string())])
catalog.create_table("db.t", Schema.from_pyarrow_schema(schema, partition_keys=["dt"]), True)
builder = catalog.get_table("db.t").new_batch_write_builder()
write, commit = builder.new_write(), builder.new_commit()
write.write_arrow(pa.Table.from_pydict({"dt": ["a"] * 3, "id": [1, 2, 3], "v": ["x", "y", "z"]}, schema=schema))
commit.commit(write.prepare_commit())
"""
READ = """
import json, sys
from pypaimon import CatalogFactory
table = CatalogFactory.create({"warehouse": sys.argv[1]}).get_table(sys.argv[2])
if len(sys.argv) > 3:
    table = table.copy({"scan.tag-name": sys.argv[3]})
builder = table.new_read_builder()
splits = builder.new_scan().plan().splits()
rows = builder.new_read().to_arrow(splits)
print(json.dumps([rows.num_rows, rows.column_names, sorted(f.file_name for s in splits for f in s.files)]))
"""


class _Shared:
    """A table that pypaimon made, and its one data file."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = str(warehouse)
        ask(WRITE, self.warehouse)
        root = f"{warehouse}/db.db/t"
        self.schemas = SchemaManager(FAST, PathFactory(root))
        self.paths = PathFactory.of(root, self.schemas.latest())
        self.commit = self.new_commit()
        latest = self.commit.snapshots.latest()
        assert latest is not None
        (self.entry,) = self.commit.manifests.live_files(latest)

    def new_commit(self, branch: str = "main") -> FileStoreCommit:
        paths = self.paths if branch == "main" else self.paths.on_branch(branch)
        return FileStoreCommit(TableContext(FAST, paths, self.schemas.latest(), self.schemas), "forebay")

    def copy(self, name: str) -> DataFileMeta:
        """The data file again, under another name."""
        e: ManifestEntry = self.entry
        directory = self.paths.bucket_directory(e.partition, e.bucket)
        shutil.copy(f"{directory}/{e.file.file_name}", f"{directory}/{name}")
        return replace(e.file, file_name=name)

    def message(self, data: DataIncrement | None = None, compact: CompactIncrement | None = None) -> CommitMessage:
        e = self.entry
        return CommitMessage(
            e.partition, e.bucket, e.total_buckets, data or DataIncrement(), compact or CompactIncrement()
        )

    def read(self, *arguments: str, table: str = "db.t") -> Any:
        return ask(READ, self.warehouse, table, *arguments)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> _Shared:
    return _Shared(tmp_path_factory.mktemp("warehouse"))


def test_pypaimon_reads_what_we_commit(shared: _Shared) -> None:
    first = shared.entry.file
    b, c = shared.copy("data-b-0.parquet"), shared.copy("data-c-0.parquet")
    shared.commit.commit([shared.message(DataIncrement((b, c)))])
    assert shared.read()[0] == 9

    (appended,) = shared.commit.commit([shared.message(DataIncrement((shared.copy("data-d-0.parquet"),)))])
    TagManager(FAST, shared.paths).create("four", appended)

    merged = replace(shared.copy("data-e-0.parquet"), file_source=FileSource.COMPACT)
    shared.commit.commit([shared.message(compact=CompactIncrement((first, b), (merged,)))])
    files = ["data-c-0.parquet", "data-d-0.parquet", "data-e-0.parquet"]
    assert shared.read() == [9, ["dt", "id", "v"], files]
    assert shared.read("four")[0] == 12

    assert shared.commit.compact_manifests() is not None
    assert shared.read() == [9, ["dt", "id", "v"], files]

    shared.schemas.change([AddColumn(("n",), types.decimal(10, 2)), RenameColumn(("v",), "w")])
    shared.commit = shared.new_commit()
    shared.commit.commit([shared.message(DataIncrement((shared.copy("data-f-0.parquet"),)))])
    assert shared.read()[:2] == [12, ["dt", "id", "w", "n"]]

    shared.commit.overwrite([shared.message(DataIncrement((shared.copy("data-g-0.parquet"),)))])
    assert shared.read() == [3, ["dt", "id", "w", "n"], ["data-g-0.parquet"]]

    shared.commit.truncate()
    assert shared.read()[0] == 0
