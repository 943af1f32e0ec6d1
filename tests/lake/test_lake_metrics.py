"""What this process does to lake tables is counted, with the figures that the tables themselves tell."""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from forebay.base import lake_events
from forebay.base.errors import Conflict
from forebay.lake.metrics import LakeMetrics
from forebay.paimon.commit.loop import CommitLoop
from forebay.testing.lake_contract_base import people
from tests.paimon.lake import live_files, new_catalog, put

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
OF = ("db", "t")
Samples = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture
def counted() -> Iterator[Callable[[], Samples]]:
    metrics = LakeMetrics()
    registry = CollectorRegistry()
    registry.register(metrics)

    def samples() -> Samples:
        found: Samples = {}
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            found.setdefault(family.name + ("_total" if family.type == "counter" else ""), {})
            for sample in family.samples:
                labels = dict(sample.labels)
                key = labels.pop("database"), labels.pop("table"), *labels.values()
                found.setdefault(sample.name, {})[key] = sample.value
        return found

    yield samples
    metrics.close()


def old_file(path: Path, size: int) -> None:
    path.write_bytes(b"x" * size)
    os.utime(path, (0, 0))


def test_commits_compactions_expiry_and_orphans_of_a_paimon_table(
    tmp_path: Path, counted: Callable[[], Samples]
) -> None:
    options = {"write-only": "true", "bucket": "1"}
    table = new_catalog(tmp_path).create_table("db.t", SCHEMA, primary_key=["id"], options=options)
    for i in range(3):
        put(table, [{"id": i, "v": "x"}, {"id": 100, "v": str(i)}])
    found = counted()
    assert found["forebay_lake_commits_total"] == {(*OF, "append"): 3}
    assert found["forebay_lake_files"] == {OF: 3}
    assert found["forebay_lake_compactions_total"] == {}
    before = live_files(table)
    table.compact(full=True)
    after = live_files(table)
    found = counted()
    assert (len(before), len(after)) == (3, 1)
    assert found["forebay_lake_commits_total"] == {(*OF, "append"): 3, (*OF, "compact"): 1}
    assert found["forebay_lake_compactions_total"] == {OF: 1}
    assert found["forebay_lake_compaction_read_files_total"] == {OF: 3}
    assert found["forebay_lake_compaction_read_bytes_total"] == {OF: sum(f.file_size for f in before)}
    assert found["forebay_lake_compaction_written_files_total"] == {OF: 1}
    assert found["forebay_lake_compaction_written_bytes_total"] == {OF: after[0].file_size}
    assert found["forebay_lake_compaction_seconds_total"][OF] > 0
    assert found["forebay_lake_commit_seconds_total"][OF] > 0
    assert found["forebay_lake_files"] == {OF: 1}
    assert found["forebay_lake_level_files"] == {(*OF, "0"): 3}, "as the planner found it"
    assert found["forebay_lake_level_bytes"] == {(*OF, "0"): sum(f.file_size for f in before)}
    table.compact(full=True)
    assert counted()["forebay_lake_level_files"] == {(*OF, "5"): 1}
    assert counted()["forebay_lake_compactions_total"] == {OF: 1}, "there was nothing to do"
    there = sum(1 for path in Path(table.context.paths.root).rglob("*") if path.is_file())
    expired = table.expire_snapshots(retain_min=1, retain_max=1)
    gone = there - sum(1 for path in Path(table.context.paths.root).rglob("*") if path.is_file())
    found = counted()
    assert expired.count == 3
    assert found["forebay_lake_expired_snapshots_total"] == {OF: 3}
    assert found["forebay_lake_expired_files_total"][OF] == pytest.approx(gone - 3, abs=1), (
        "without snapshots and hints"
    )
    old_file(Path(table.context.paths.root) / "bucket-0" / "data-orphan-0.parquet", 1000)
    assert len(table.remove_orphan_files(older_than=dt.timedelta(hours=1), dry_run=True).files) == 1
    assert counted()["forebay_lake_removed_orphans_total"] == {}
    table.remove_orphan_files(older_than=dt.timedelta(hours=1))
    found = counted()
    assert found["forebay_lake_removed_orphans_total"] == {OF: 1}
    assert found["forebay_lake_removed_orphan_bytes_total"] == {OF: 1000}


def test_files_that_only_move_up_were_neither_read_nor_written(tmp_path: Path, counted: Callable[[], Samples]) -> None:
    options = {"write-only": "true", "bucket": "1", "target-file-size": "1 kb"}
    table = new_catalog(tmp_path).create_table("db.t", SCHEMA, primary_key=["id"], options=options)
    put(table, [{"id": i, "v": "x" * i} for i in range(500)])
    table.compact(full=True)
    found = counted()
    assert found["forebay_lake_compactions_total"] == {OF: 1}
    assert found["forebay_lake_compaction_read_files_total"] == {}
    assert found["forebay_lake_compaction_written_bytes_total"] == {}
    assert found["forebay_lake_files"][OF] == len(live_files(table))


def test_attempts_that_lose_and_commits_that_conflict(
    tmp_path: Path, counted: Callable[[], Samples], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", SCHEMA, options={"commit.min-retry-wait": "1 ms", "commit.max-retries": "3"})
    put(table, [{"id": 0, "v": "x"}])
    create, losses = CommitLoop._create, [2]

    def losing(self: Any, snapshot: Any, latest: Any) -> bool:
        if losses[0]:
            losses[0] -= 1
            return False
        return create(self, snapshot, latest)

    monkeypatch.setattr(CommitLoop, "_create", losing)
    put(table, [{"id": 1, "v": "x"}])
    assert counted()["forebay_lake_commit_retries_total"] == {OF: 2}
    losses[0] = 100
    with pytest.raises(Conflict, match="gave up"):
        put(table, [{"id": 2, "v": "x"}])
    found = counted()
    assert found["forebay_lake_commit_failures_total"] == {(*OF, "Conflict"): 1}
    assert found["forebay_lake_commit_retries_total"] == {OF: 5}
    assert found["forebay_lake_commits_total"] == {(*OF, "append"): 2}


def test_the_same_of_an_iceberg_table(tmp_path: Path, counted: Callable[[], Samples]) -> None:
    iceberg = pytest.importorskip("forebay.lakes.iceberg")
    from tests.lake.iceberg_contract import IcebergContract
    from tests.lake.iceberg_tables import END_OF_TIME, compact, lake_table

    storage = iceberg.IcebergLakeStorage({"warehouse": str(tmp_path / "lake")})
    table = IcebergContract().log_table(storage, buckets=1)
    for i in range(6):
        table.append(*people(i))
    sizes = lake_table(storage).inspect.data_files()["file_size_in_bytes"].to_pylist()
    assert compact(storage) is not None
    after = lake_table(storage).inspect.data_files()["file_size_in_bytes"].to_pylist()
    with storage.upkeep(table.info.path) as upkeep:
        expired = upkeep.expire(older_than=END_OF_TIME, keep=1)
        root = Path(lake_table(storage).location().removeprefix("file://"))
        old_file(root / "data" / "orphan.parquet", 10)
        upkeep.remove_orphan_files(dt.timedelta(hours=1))
    found = counted()
    of = (table.info.path.database, table.info.path.table)
    assert found["forebay_lake_commits_total"] == {(*of, "append"): 6, (*of, "compact"): 1}
    assert found["forebay_lake_compaction_read_files_total"] == {of: len(sizes)}
    assert found["forebay_lake_compaction_read_bytes_total"] == {of: sum(sizes)}
    assert found["forebay_lake_compaction_written_bytes_total"] == {of: sum(after)}
    assert found["forebay_lake_compaction_seconds_total"][of] > 0
    assert found["forebay_lake_files"] == {of: len(after)}
    assert found["forebay_lake_expired_snapshots_total"] == {of: len(expired)}
    assert found["forebay_lake_removed_orphans_total"] == {of: 1}
    assert found["forebay_lake_removed_orphan_bytes_total"] == {of: 10}


def test_a_listener_that_fails_does_not_fail_a_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = new_catalog(tmp_path).create_table("db.t", SCHEMA)

    def broken(_: lake_events.LakeEvent) -> None:
        raise ValueError("for a test")

    end = lake_events.listen(broken)
    try:
        with caplog.at_level(logging.ERROR):
            put(table, [{"id": 0, "v": "x"}])
    finally:
        end()
    assert "a listener to lake events failed" in caplog.text
    assert len(live_files(table)) == 1
    assert not lake_events.is_heard()


def test_the_page_about_metrics_names_all_of_lakes(counted: Callable[[], Samples]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = "\n".join(line for line in page.splitlines() if line.startswith("| `forebay_lake_"))
    assert set(re.findall(r"forebay_lake_\w+", rows)) == {
        name for name in counted() if name.startswith("forebay_lake_")
    }
