"""Java Paimon and pypaimon see the same streams, the same system tables, and whole tables after our maintenance."""

from __future__ import annotations

import datetime
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.table import Table
from tests.paimon.foreign.conftest import JavaTableOf, java, java_table
from tests.paimon.lake import at_ms, put, stream_of
from tests.paimon.oracle import ask
from tests.paimon.stream.model import COLUMNS, Change, changes_of, compact_fully, random_rows

__all__ = ["java", "java_table"]  # fixtures

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

START = 1_700_000_000_000
STEP_S = 10
SNAPSHOTS = 12

MODES: dict[str, dict[str, str]] = {
    "default": {},
    "latest-full": {"scan.mode": "latest-full"},
    "from-snapshot": {"scan.mode": "from-snapshot", "scan.snapshot-id": "4"},
    "from-snapshot 0": {"scan.mode": "from-snapshot", "scan.snapshot-id": "0"},
    "from-snapshot-full": {"scan.mode": "from-snapshot-full", "scan.snapshot-id": "5"},
    "from-timestamp": {"scan.mode": "from-timestamp", "scan.timestamp-millis": str(START + 4_000 * STEP_S)},
    "from-timestamp early": {"scan.mode": "from-timestamp", "scan.timestamp-millis": "7"},
    "compacted-full": {"scan.mode": "compacted-full"},
    "from-file-creation-time": {
        "scan.mode": "from-file-creation-time",
        "scan.file-creation-time-millis": str(START + 3_000 * STEP_S),
    },
    "from-creation-timestamp": {
        "scan.mode": "from-creation-timestamp",
        "scan.creation-time-millis": str(START + 3_000 * STEP_S),
    },
    "overwrite": {"scan.snapshot-id": "1", "streaming-read-overwrite": "true"},
    "bounded": {"scan.snapshot-id": "1", "scan.bounded.watermark": "5"},
}


def history(folder: Path, producer: str, keyed: bool = True) -> tuple[FileSystemCatalog, Table]:
    """A table with appends, deletes, compactions and an overwrite, ten seconds apart."""
    clock = ManualClock(START)
    catalog = FileSystemCatalog(LocalFileIO(sync=False), str(folder / "lake"), clock=clock)
    catalog.create_database("db")
    options = {"changelog-producer": producer, "bucket": "2", "write-only": "true"}
    keys = ["id"] if keyed else []
    table = catalog.create_table("db.t", COLUMNS, primary_key=keys, options=options if keyed else {})
    rng = np.random.default_rng(5)
    while (table.context.snapshots.latest_id() or 0) < SNAPSHOTS:
        number = table.context.snapshots.latest_id() or 0
        if keyed and number in (3, 7):
            compact_fully(table, changelog=producer == "full-compaction")
        elif keyed and number == 5:
            table.delete([{"id": i} for i in range(4)])
        elif number == 9:
            table.overwrite(random_rows(rng, 12, 5))
        else:
            put(table, random_rows(rng, 12, 5))
        clock.advance(STEP_S)
    return catalog, table


def by_snapshot(table: Table, options: dict[str, str]) -> list[list[Change]]:
    """Our changes, snapshot by snapshot, each sorted."""
    stream = stream_of(table.with_options(options), follow=False)
    found: dict[tuple[int | None, bool], list[Change]] = {}
    for batch in iter(stream.poll, None):
        is_full = stream.state()["scan"]["full"] is not None
        found.setdefault((stream.snapshot_id, is_full), []).extend(changes_of([batch]))
    return [sorted(changes, key=repr) for changes in found.values()]


def as_state(changes: list[Change]) -> list[Change]:
    """Rows of a state, whatever kinds they were written with."""
    return sorted([("+I", row) for _, row in changes], key=repr)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("producer", ["none", "input", "full-compaction"])
def test_java_streams_the_same(tmp_path: Path, java_table: JavaTableOf, producer: str, mode: str) -> None:
    if mode == "overwrite" and producer == "full-compaction":
        pytest.skip("refused by both: it would repeat changes")
    catalog, table = history(tmp_path, producer)
    options = MODES[mode]
    plans = java_table(catalog, "db.t").stream(f"{tmp_path}", options=options)
    theirs = [sorted(((row[0], tuple(row[1:])) for row in plan), key=repr) for plan in plans]
    ours = by_snapshot(table, options)
    if theirs and ours and mode not in ("from-snapshot", "from-snapshot 0", "from-timestamp", "from-timestamp early"):
        theirs[0], ours[0] = as_state(theirs[0]), as_state(ours[0])  # in a state, Java leaves +U as it was written
    assert ours == theirs


@pytest.mark.parametrize(
    "options",
    [
        {"incremental-between": "2,6"},
        {"incremental-between": "2,6", "incremental-between-scan-mode": "delta"},
        {"incremental-between-timestamp": f"{START + 15_000},{START + 55_000}"},
        {"scan.timestamp-millis": str(START + 15_000)},
        {"scan.snapshot-id": "6"},
        {"scan.mode": "compacted-full"},
    ],
)
def test_java_reads_the_same_by_options(tmp_path: Path, java_table: JavaTableOf, options: dict[str, str]) -> None:
    catalog, table = history(tmp_path, "none")
    answer = java_table(catalog, "db.t").ask("read", options=options)["rows"]
    theirs = sorted((tuple(row[1:]) for row in answer if row[0] in ("+I", "+U")), key=repr)
    read = table.with_options(options).scan().to_arrow().to_pylist()
    assert sorted((tuple(r.values()) for r in read), key=repr) == theirs


SYSTEM = [
    "snapshots", "schemas", "options", "manifests", "files", "partitions", "buckets", "tags", "consumers", "statistics",
    "audit_log", "binlog", "ro",
]  # fmt: skip
NOT_COMPARED = {"partitions": {"created_at", "created_by", "updated_by", "options"}}


@pytest.mark.parametrize("name", SYSTEM)
def test_java_shows_the_same_system_tables(tmp_path: Path, java_table: JavaTableOf, name: str) -> None:
    catalog = FileSystemCatalog(LocalFileIO(sync=False), str(tmp_path / "lake"), clock=ManualClock(START))
    catalog.create_database("db")
    columns = pa.schema([("p", pa.date32()), ("id", pa.int64()), ("name", pa.string()), ("d", pa.float64())])
    table = catalog.create_table(
        "db.t", columns, primary_key=["p", "id"], partition_keys=["p"], options={"bucket": "1", "write-only": "true"}
    )
    day = datetime.date(2024, 2, 29)
    put(table, [{"p": day, "id": i, "name": f"name number {i} is long", "d": i / 2} for i in range(5)])
    put(table, [{"p": day, "id": 1}, {"p": datetime.date(1969, 1, 1), "id": 7, "name": "é"}])
    table.context.tags.create("plain", table.context.snapshots.snapshot(1))
    table.context.tags.create("short", table.context.snapshots.snapshot(1), retained_ms=93_784_500)
    table.analyze(["id", "name", "d", "p"])
    answer = java_table(catalog, "db.t").java.ask("read", catalog.warehouse, f"db.t${name}")
    ours = table.system(name).read().read_all()
    columns_there = answer["columns"]  # ours are those of the newest Paimon, which may have more
    assert ours.schema.names[: len(columns_there)] == columns_there
    left_out = NOT_COMPARED.get(name, set())
    theirs = [dict(zip(columns_there, row[1:], strict=True)) for row in answer["rows"]]
    assert _comparable(ours.select(columns_there).to_pylist(), left_out) == _comparable(theirs, left_out)


def _comparable(rows: list[dict[str, Any]], left_out: set[str]) -> list[str]:
    return sorted(repr([(k, _plain(v)) for k, v in row.items() if k not in left_out]) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("{") and '"colId"' in value:
        return sorted(json.loads(value).items())  # statistics; Java orders columns by their hashes
    if isinstance(value, datetime.datetime):
        return round((value - datetime.datetime(1970, 1, 1)) / datetime.timedelta(microseconds=1)) * 1000
    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days
    if isinstance(value, float):
        return struct.pack(">d", value).hex()
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value


def test_java_reads_and_expires_on_after_our_upkeep(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog, table = history(tmp_path, "input")
    table.context.tags.create("four", table.context.snapshots.snapshot(4))
    expected = sorted((tuple(r.values()) for r in table.scan().to_arrow().to_pylist()), key=repr)
    tagged = sorted((tuple(r.values()) for r in table.scan(as_of="four").to_arrow().to_pylist()), key=repr)
    assert table.expire_snapshots(3, 3).count == 9
    table.remove_orphan_files(older_than=at_ms(START - 1))
    theirs = java_table(catalog, "db.t")
    assert [tuple(r) for r in theirs.rows()] == expected
    assert [tuple(r) for r in theirs.rows(options={"scan.tag-name": "four"})] == tagged
    theirs.ask("expire", retain=1)
    fresh = catalog.table("db.t")
    assert fresh.context.snapshots.ids() == [12]
    assert sorted((tuple(r.values()) for r in fresh.scan().to_arrow().to_pylist()), key=repr) == expected
    assert sorted((tuple(r.values()) for r in fresh.scan(as_of="four").to_arrow().to_pylist()), key=repr) == tagged


PYPAIMON = """
import json, sys
from pypaimon import CatalogFactory
warehouse, name, start = sys.argv[1:]
table = CatalogFactory.create({"warehouse": warehouse}).get_table(name)
builder = table.new_stream_read_builder().with_include_row_kind(True)
scan, read = builder.new_streaming_scan(), builder.new_read()
scan._diff_threshold = 10 ** 9
last = table.snapshot_manager().get_latest_snapshot().id
if start:
    scan.next_snapshot_id = int(start)
rows = []
for plan in scan.stream_sync():
    splits = plan.splits()
    if splits:
        rows += [list(r.values()) for r in read.to_arrow(splits).to_pylist()]
    if scan.next_snapshot_id > last:
        break
print(json.dumps(rows))
"""


@pytest.mark.parametrize("start", ["", "3"])
def test_pypaimon_streams_the_same_where_it_can(tmp_path: Path, start: str) -> None:
    catalog, table = history(tmp_path, "input")
    table.expire_snapshots(11, 11)
    theirs = [(row[0], tuple(row[1:])) for row in ask(PYPAIMON, catalog.warehouse, "db.t", start)]
    options = {"scan.snapshot-id": start} if start else {}
    ours = [change for plan in by_snapshot(table, options) for change in plan]
    if not start:
        ours, theirs = as_state(ours), as_state(theirs)
    assert sorted(ours, key=repr) == sorted(theirs, key=repr)
