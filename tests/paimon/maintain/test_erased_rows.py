"""A deleted row is in no file of a lake table after what docs/how-to/erase.md does."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from tests.paimon.lake import new_catalog, put

OPTIONS = {"file.compression": "none", "manifest.compression": "none"}


def files_with(folder: Path, text: bytes) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


@pytest.mark.parametrize("producer", ["none", "input", "lookup"])
def test_no_file_has_a_row_that_was_deleted_compacted_and_expired(tmp_path: Path, producer: str) -> None:
    options = {**OPTIONS, "bucket": "1", "changelog-producer": producer}
    columns = {"id": "INT", "mail": "STRING"}
    table = new_catalog(tmp_path).create_table("db.t", columns, primary_key="id", options=options)
    put(table, [{"id": 1, "mail": "ann@example.org"}, {"id": 2, "mail": "bob@example.org"}])
    table.create_tag("before")
    table.delete([1])
    table.compact(full=True)
    assert table.new_commit().compact_manifests() is not None
    table.expire_snapshots(retain_min=1, retain_max=1, older_than=dt.timedelta(0))
    assert files_with(tmp_path, b"ann@"), "the tag keeps its rows"
    table.delete_tag("before")
    assert files_with(tmp_path, b"ann@") == []
    assert files_with(tmp_path, b"bob@") != []
    assert table.scan().to_arrow().to_pylist() == [{"id": 2, "mail": "bob@example.org"}]
