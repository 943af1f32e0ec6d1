"""Writing on a file system that fails: failed writes leave no files, and committed ones are complete."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from forebay.base.errors import ForebayError, StorageFailure
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.table import Table
from forebay.paimon.write.writers import KeyValueWriter
from tests.every_run import every_run
from tests.paimon.failing import FailingFileIO
from tests.paimon.lake import new_catalog, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int32())])


@pytest.mark.parametrize("options", [{"bucket": "3"}, {"bucket": "-1", "dynamic-bucket.target-row-num": "5"}])
@pytest.mark.parametrize("seed", every_run(range(6), lambda seed: seed < 2))
def test_commits_that_succeeded_are_whole_and_the_others_absent(
    tmp_path: Path, seed: int, options: dict[str, str]
) -> None:
    catalog = new_catalog(tmp_path)
    small = {"write-buffer-size": "4 kb", "commit.min-retry-wait": "1 ms", "commit.max-retry-wait": "1 ms"}
    catalog.create_table("db.t", COLUMNS, primary_key=["id"], options={**options, **small})
    root = catalog.table_path("db.t")
    failing = FailingFileIO(LocalFileIO(sync=False), seed=seed, rate=0.0)
    model: dict[int, int] = {}
    failed = 0
    for step in range(12):
        failing.rate = 0.06
        rows = {(step * 7 + i) % 40: step for i in range(20)}
        try:
            table = Table(failing, root)
            with table.new_write() as writer:
                writer.write(pa.table({"id": list(rows), "v": list(rows.values())}))
                messages = writer.prepare_commit()
        except ForebayError:
            failed += 1
            continue
        failing.rate = 0.0  # what a commit does under faults is tested with commits
        table.new_commit().commit(messages)
        model.update(rows)
    assert 0 < failed < 12
    assert rows_of(catalog.table("db.t")) == sorted(model.items(), key=repr)


def test_a_buffer_that_cannot_be_written_out_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options={"write-buffer-size": "4 kb"})

    def fails(self: KeyValueWriter, **_: object) -> None:
        raise StorageFailure("the disk has a bad day")

    monkeypatch.setattr(KeyValueWriter, "flush", fails)
    with table.new_write() as writer, pytest.raises(StorageFailure, match="the disk has a bad day"):
        writer.write(pa.table({"id": range(2000), "v": pa.array(range(2000), pa.int32())}))
