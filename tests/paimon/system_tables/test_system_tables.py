"""System tables are correct, with the columns of Java Paimon."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata import types
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.store.schema_changes import AddColumn
from forebay.paimon.system_tables.registry import NAMES
from forebay.paimon.table import Table
from tests.paimon.lake import altered, new_catalog, put
from tests.paimon.maintain.lakes import FAST, NOW, make_table, open_table
from tests.paimon.stream.model import COLUMNS, compact_fully

PARTITIONED = pa.schema([("p", pa.date32()), ("id", pa.int64()), ("name", pa.string())])
DAY = datetime.date(2024, 2, 29)


def system(table: Table, name: str, **options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.with_options(options).system(name).read().read_all().to_pylist()
    return found


@pytest.fixture
def table(tmp_path: Path) -> Table:
    clock = ManualClock(NOW)
    made = make_table(tmp_path / "t", {"bucket": "1"}, PARTITIONED, ("p", "id"), ("p",), clock=clock)
    put(made, [{"p": DAY, "id": i, "name": f"n{i}"} for i in range(5)])
    clock.advance(60)
    put(made, [{"p": DAY, "id": 3, "name": "three"}, {"p": datetime.date(2024, 3, 1), "id": 3}])
    return made


@pytest.mark.parametrize("name", NAMES)
def test_every_system_table_of_a_new_table_can_be_read(tmp_path: Path, name: str) -> None:
    made = make_table(tmp_path / "t")
    read = made.system(name).read().read_all()
    assert made.system(name).schema == read.schema
    assert read.num_rows == {"schemas": 1, "options": 2, "aggregation_fields": 2}.get(name, 0)
    one = read.schema.names[-1]
    assert made.system(name).read([one]).schema.names == [one]
    with pytest.raises(InvalidRequest, match="has no column 'nonsense'"):
        made.system(name).read(["nonsense"])


def test_an_unknown_system_table_is_an_error_with_the_names_that_there_are(table: Table) -> None:
    with pytest.raises(NotFound, match="snapshots, schemas"):
        table.system("nonsense")
    with pytest.raises(UnsupportedOperation, match="audit_log"):
        table.system("files").stream()


def test_snapshots(table: Table) -> None:
    found = system(table, "snapshots")
    assert [(s["snapshot_id"], s["commit_kind"], s["total_record_count"]) for s in found] == [
        (1, "APPEND", 5),
        (2, "APPEND", 7),
    ]
    assert found[1]["commit_time"] == datetime.datetime.fromtimestamp(NOW / 1000 + 60)
    assert found[1]["commit_identifier"] == (1 << 63) - 1
    nullable = [f.name for f in table.system("snapshots").schema if f.nullable]
    assert ("watermark" in nullable, "snapshot_id" in nullable) == (True, False)


def test_schemas_and_options(table: Table) -> None:
    table = altered(table, [AddColumn(("more",), types.int_())])
    found = system(table, "schemas")
    assert [s["schema_id"] for s in found] == [0, 1]
    assert json.loads(found[0]["fields"])[1] == {"id": 1, "name": "id", "type": "BIGINT NOT NULL"}
    assert found[0]["primary_keys"] == '["p","id"]'
    assert json.loads(found[1]["options"]) == {"bucket": "1", "write-only": "true"}
    assert {o["key"]: o["value"] for o in system(table, "options")} == {"bucket": "1", "write-only": "true"}


def test_manifests(table: Table) -> None:
    found = system(table, "manifests")
    assert [(m["num_added_files"], m["num_deleted_files"]) for m in found] == [(1, 0), (2, 0)]
    assert (found[1]["min_partition_stats"], found[1]["max_partition_stats"]) == ("{2024-02-29}", "{2024-03-01}")
    assert len(system(table, "manifests", **{"scan.snapshot-id": "1"})) == 1
    first = table.context.snapshots.snapshot(1)
    assert len(system(table, "manifests", **{"scan.timestamp-millis": str(first.time_millis)})) == 1


def test_files_partitions_and_buckets(table: Table) -> None:
    found = sorted(system(table, "files"), key=lambda f: (f["partition"], f["record_count"]))
    assert [(f["partition"], f["bucket"], f["level"], f["record_count"]) for f in found] == [
        ("{2024-02-29}", 0, 0, 1),
        ("{2024-02-29}", 0, 0, 5),
        ("{2024-03-01}", 0, 0, 1),
    ]
    first = found[1]
    assert (first["min_key"], first["max_key"], first["file_source"]) == ("[0]", "[4]", "APPEND")
    assert first["null_value_counts"] == "{id=0, name=0, p=0}"
    assert first["min_value_stats"] == "{id=0, name=n0, p=19782}"
    assert first["max_value_stats"] == "{id=4, name=n4, p=19782}"
    assert Path(first["file_path"]).stat().st_size == first["file_size_in_bytes"]
    assert first["creation_time"] == datetime.datetime.fromtimestamp(NOW / 1000)
    partitions = system(table, "partitions")
    assert [(p["partition"], p["record_count"], p["file_count"], p["total_buckets"]) for p in partitions] == [
        ("p=2024-02-29", 6, 2, 1),
        ("p=2024-03-01", 1, 1, 1),
    ]
    buckets = system(table, "buckets")
    assert [(b["partition"], b["bucket"], b["record_count"]) for b in buckets] == [
        ("{2024-02-29}", 0, 6),
        ("{2024-03-01}", 0, 1),
    ]
    assert partitions[0]["last_update_time"] == datetime.datetime.fromtimestamp(NOW / 1000 + 60)


def test_the_snapshot_of_a_tag_can_be_named_after_it_expired(table: Table) -> None:
    table.context.tags.create("first", table.context.snapshots.snapshot(1))
    put(table, [{"p": DAY, "id": 9}])
    table.expire_snapshots(1, 1)
    assert table.context.snapshots.ids() == [3]
    assert len(system(table, "files", **{"scan.snapshot-id": "1"})) == 1
    with pytest.raises(NotFound, match="snapshot 2"):
        system(table, "files", **{"scan.snapshot-id": "2"})


def test_bytes_of_keys_are_shown_with_their_sign(tmp_path: Path) -> None:
    columns = pa.schema([("k", pa.binary()), ("v", pa.int64())])
    made = make_table(tmp_path / "t", {"bucket": "1"}, columns, ("k",))
    put(made, [{"k": b"\x00\x7f"}, {"k": b"\x80\xff"}])
    (found,) = system(made, "files")
    assert (found["min_key"], found["max_key"]) == ("[[0, 127]]", "[[-128, -1]]")


def test_files_of_an_append_table_have_no_keys(tmp_path: Path) -> None:
    made = make_table(tmp_path / "t", {"bucket": "-1"}, COLUMNS, ())
    put(made, [{"id": 1}])
    (found,) = system(made, "files")
    assert (found["min_key"], found["max_key"]) == (None, None)
    assert found["min_value_stats"] == "{id=1, name=null, v=null}"


def test_tags_branches_and_consumers(table: Table) -> None:
    table.context.tags.create("plain", table.context.snapshots.snapshot(1))
    table.context.tags.create("short", table.context.snapshots.snapshot(2), retained_ms=93_784_500)
    found = system(table, "tags")
    assert [(t["tag_name"], t["snapshot_id"], t["record_count"]) for t in found] == [("plain", 1, 5), ("short", 2, 7)]
    assert [t["time_retained"] for t in found] == [None, "PT26H3M4.5S"]
    assert found[1]["create_time"] is not None
    BranchManager(FAST, table.context.paths).create("b", "plain")
    os.utime(f"{table.context.paths.branches_directory}/branch-b", (NOW / 1000, NOW / 1000))
    made = datetime.datetime.fromtimestamp(NOW / 1000)
    assert system(table, "branches") == [{"branch_name": "b", "create_time": made}]
    ConsumerManager(FAST, table.context.paths).record("job", 2)
    assert system(table, "consumers") == [{"consumer_id": "job", "next_snapshot_id": 2}]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (500, "PT0.5S"),
        (0, "PT0S"),
        (4_000, "PT4S"),
        (60_000, "PT1M"),
        (3_600_000, "PT1H"),
        (93_600_250, "PT26H0.25S"),
        (93_784_000, "PT26H3M4S"),
    ],
)
def test_how_long_a_tag_is_kept_is_told_as_java_tells_it(table: Table, ms: int, text: str) -> None:
    table.context.tags.create("t", table.context.snapshots.snapshot(1), retained_ms=ms)
    assert [t["time_retained"] for t in system(table, "tags")] == [text]


def test_statistics_come_from_analyze(table: Table) -> None:
    assert system(table, "statistics") == []
    table.analyze(["id", "name", "p"])
    (found,) = system(table, "statistics")
    assert (found["snapshot_id"], found["mergedRecordCount"]) == (2, 6)
    columns = json.loads(found["colstat"])
    assert columns["id"] == {"colId": 1, "distinctCount": 5, "min": "0", "max": "4", "nullCount": 0}
    assert columns["name"] == {
        "colId": 2, "distinctCount": 5, "min": "n0", "max": "three", "nullCount": 1, "avgLen": 3, "maxLen": 5,
    }  # fmt: skip
    assert columns["p"]["min"] == "19782"
    assert table.context.snapshots.latest().commit_kind == "ANALYZE"  # type: ignore[union-attr]
    put(table, [{"p": DAY, "id": 9}])
    assert len(system(table, "statistics")) == 1  # still the table's, though older than its rows


@pytest.fixture
def changed(tmp_path: Path) -> Table:
    made = make_table(tmp_path / "t", {"changelog-producer": "input"}, COLUMNS)
    put(made, [{"id": 1, "v": 1}, {"id": 2, "v": 2}])
    put(
        made,
        pa.table({"id": [1, 1, 2], "name": ["", "x", ""], "v": pa.array([1, 5, 2], pa.int32())}),
        ["-U", "+U", "-D"],
    )
    return made


def test_the_audit_log_of_a_state_shows_deletes_until_they_are_compacted(changed: Table) -> None:
    found = system(changed, "audit_log")
    assert [(r["rowkind"], r["id"], r["v"]) for r in found] == [("+U", 1, 5), ("-D", 2, 2)]
    compact_fully(changed)
    assert [(r["rowkind"], r["id"]) for r in system(open_table(changed.context.paths.root), "audit_log")] == [("+U", 1)]


def test_the_audit_log_shows_changes_in_batches_and_streams(changed: Table) -> None:
    expected = [("-U", 1, 1), ("+U", 1, 5), ("-D", 2, 2)]
    found = system(changed, "audit_log", **{"incremental-between": "1,2"})
    assert [(r["rowkind"], r["id"], r["v"]) for r in found] == expected
    stream = changed.with_options({"scan.snapshot-id": "2"}).system("audit_log").stream(follow=False)
    rows = [tuple(r.values()) for b in stream for r in b.select(["rowkind", "id", "v"]).to_pylist()]
    assert rows == expected
    assert stream.schema.names == ["rowkind", "id", "name", "v"]
    put(changed, [{"id": 3}])
    going_on = changed.system("audit_log").stream(stream.state(), follow=False)
    assert [r["id"] for b in going_on for r in b.to_pylist()] == [3]


def test_the_difference_of_tags_has_its_deletes_in_the_audit_log(changed: Table) -> None:
    changed.context.tags.create("a", changed.context.snapshots.snapshot(1))
    changed.context.tags.create("b", changed.context.snapshots.snapshot(2))
    found = system(changed, "audit_log", **{"incremental-between": "a,b"})
    assert [(r["rowkind"], r["id"], r["v"]) for r in found] == [("+U", 1, 5), ("-D", 2, 2)]


def test_the_binlog_puts_updates_together(changed: Table) -> None:
    found = system(changed, "binlog", **{"incremental-between": "1,2"})
    assert found == [
        {"rowkind": "+U", "id": [1, 1], "name": ["", "x"], "v": [1, 5]},
        {"rowkind": "-D", "id": [2], "name": [""], "v": [2]},
    ]
    assert [r["id"] for r in system(changed, "binlog", **{"scan.snapshot-id": "1"})] == [[1], [2]]


def test_the_binlog_is_streamed_and_continues_where_it_was(changed: Table) -> None:
    whole = changed.with_options({"scan.snapshot-id": "1"})
    rows = [(r["rowkind"], r["v"]) for b in whole.system("binlog").stream(follow=False) for r in b.to_pylist()]
    assert rows == [("+I", [1]), ("+I", [2]), ("+U", [1, 5]), ("-D", [2])]
    stream = whole.system("binlog").stream(follow=False)
    first = next(stream)
    rest = whole.system("binlog").stream(stream.state(), follow=False)
    assert [(r["rowkind"], r["v"]) for b in [first, *rest] for r in b.to_pylist()] == rows
    assert [r["v"] for b in changed.system("binlog").stream(follow=False) for r in b.to_pylist()] == [[5], [2]]
    with pytest.raises(UnsupportedOperation, match="'files' cannot be streamed; 'audit_log' and 'binlog' can"):
        changed.system("files").stream()


def test_a_binlog_pair_may_lie_across_batches() -> None:
    from forebay.paimon.system_tables.row_views import binlog_schema, packed

    schema = pa.schema([("rowkind", pa.string()), ("id", pa.int64())])
    kinds = ["+I", "-U", "+U", "-U", "-U", "+U", "-D", "-U"]
    rows = [{"rowkind": k, "id": i} for i, k in enumerate(kinds)]
    for size in range(1, 9):
        batches = [pa.RecordBatch.from_pylist(rows[i : i + size], schema) for i in range(0, 8, size)]
        found = [tuple(r.values()) for b in packed(batches, binlog_schema(schema)) for r in b.to_pylist()]
        assert found == [("+I", [0]), ("+U", [1, 2]), ("-U", [3]), ("+U", [4, 5]), ("-D", [6]), ("-U", [7])]


def test_read_optimized_is_the_last_full_compaction(changed: Table) -> None:
    assert system(changed, "ro") == []
    compact_fully(changed)
    put(changed, [{"id": 7}])
    assert [r["id"] for r in system(changed, "ro")] == [1]
    assert len(system(changed, "ro", **{"scan.snapshot-id": "2"})) == 0


def test_aggregation_fields_shows_what_options_say_of_columns(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path)
    made = catalog.create_table(
        "db.t",
        {"id": types.bigint(), "n": types.decimal(10, 2), "l": types.array(types.string())},
        primary_key=["id"],
        options={
            "merge-engine": "aggregation",
            "fields.n.aggregate-function": "sum",
            "fields.n.ignore-retract": "true",
            "fields.default-aggregate-function": "last_value",
            "my.n.option": "1",
        },
    )
    found = [tuple(row.values()) for row in made.system("aggregation_fields").read().read_all().to_pylist()]
    assert found == [
        ("id", "BIGINT NOT NULL", "[]", "[]", None),
        ("n", "DECIMAL(10, 2)", "[sum, true]", "[fields.n.aggregate-function, fields.n.ignore-retract]", None),
        ("l", "ARRAY<STRING>", "[]", "[]", None),
    ]
