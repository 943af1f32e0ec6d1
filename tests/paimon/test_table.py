"""Whole tables: written rows are read back, for every kind of table, filter and schema change."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import Conflict, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.predicate import Predicate, col
from forebay.paimon import Catalog
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.store.schema_changes import (
    AddColumn,
    DropColumn,
    RenameColumn,
    SetOption,
    UpdateColumnDefault,
    UpdateColumnType,
)
from forebay.paimon.table import Table
from tests.paimon.lake import (
    ALL_TYPES,
    all_types_rows,
    altered,
    at_ms,
    live_files,
    new_catalog,
    planned_files,
    put,
    rows_of,
)

PLAIN = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.int32())])


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


def keyed(catalog: FileSystemCatalog, name: str = "db.pk", **options: str) -> Table:
    return catalog.create_table(name, PLAIN, primary_key=["id"], options={"bucket": "2", **options})


KINDS: dict[str, dict[str, Any]] = {
    "append": {},
    "bucketed append": {"options": {"bucket": "3", "bucket-key": "id,text"}},
    "primary key": {"primary_key": ["id"], "options": {"bucket": "2"}},
    "thin": {"primary_key": ["id"], "options": {"bucket": "2", "data-file.thin-mode": "true"}},
    "dynamic bucket": {"primary_key": ["id"], "options": {"dynamic-bucket.target-row-num": "7"}},
    "partitioned": {"partition_keys": ["day", "text"]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_types_come_back_from_every_kind_of_table(catalog: FileSystemCatalog, kind: str) -> None:
    data = all_types_rows()
    table = catalog.create_table("db.t", ALL_TYPES, **KINDS[kind])
    put(table, data)
    read = catalog.table("db.t").scan().to_arrow().sort_by("id")
    assert read.schema.names == ALL_TYPES.names
    assert read.to_pylist() == data.to_pylist()


def test_nanoseconds_and_types_with_lengths_come_back_and_can_be_filtered(catalog: FileSystemCatalog) -> None:
    moment, noon = 1_700_000_000_123_456_789, datetime.datetime(2024, 1, 1, 12)
    nanos = pa.array([moment, None], pa.timestamp("ns"))
    alone = catalog.create_table("db.alone", {"n": types.timestamp(9), "z": types.timestamp_ltz(9)})
    put(alone, pa.table({"n": nanos, "z": nanos.cast(pa.timestamp("ns", "UTC"))}))
    mixed = catalog.create_table("db.mixed", {"n": types.timestamp(9), "m": types.timestamp(0)})
    put(mixed, pa.table({"n": nanos, "m": [noon, noon]}))
    for table in (alone, mixed):
        assert table.scan(["n"], col("n").is_not_null()).to_arrow()["n"].cast(pa.int64()).to_pylist() == [moment]
    assert mixed.scan(filter=col("m") == noon).to_arrow().num_rows == 2
    columns = {"c": types.char(3), "b": types.binary(2), "t": types.time(0), "s": types.timestamp(0)}
    keyed = catalog.create_table("db.odd", columns, primary_key=["c", "b", "s"], options={"bucket": "3"})
    row = {"c": "ab", "b": b"\1\2", "t": datetime.time(1, 2, 3), "s": noon}
    put(keyed, [row])
    where = (col("c") == "ab") & (col("b") == b"\1\2") & (col("s") == noon) & (col("t") < datetime.time(2))
    assert keyed.scan(filter=where).to_arrow().to_pylist() == [row]


def test_upserts_replace_and_deletes_remove_by_key(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    table.upsert([{"id": i, "name": f"n{i}", "v": i} for i in range(6)])
    table.upsert([{"id": 2, "name": "two"}], missing="null")
    table.delete([{"id": 4}])
    put(table, pa.table({"id": [0, 1], "name": ["", ""], "v": [0, 0]}), kinds=["-D", "+U"])
    assert rows_of(table) == [(1, "", 0), (2, "two", None), (3, "n3", 3), (5, "n5", 5)]
    assert rows_of(table, as_of=1) == [(i, f"n{i}", i) for i in range(6)]


def test_a_deleted_row_stays_away_when_one_file_holds_it_and_its_delete(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", PLAIN, primary_key=["id"], options={"bucket": "1"})
    put(table, pa.table({"id": [0, 1, 2, 1]}), kinds=["+I", "+I", "+I", "-D"])
    assert rows_of(table, ["id"]) == [(0,), (2,)]
    assert [f.delete_row_count for f in live_files(table)] == [1]


def test_a_column_may_carry_the_row_kinds(catalog: FileSystemCatalog) -> None:
    columns = pa.schema([("id", pa.int64()), ("op", pa.string())])
    table = catalog.create_table("db.t", columns, primary_key=["id"], options={"bucket": "1", "rowkind.field": "op"})
    put(table, [{"id": 1, "op": "+I"}, {"id": 2, "op": "+I"}, {"id": 1, "op": "-D"}])
    assert rows_of(table) == [(2, "+I")]
    with pytest.raises(InvalidRequest, match="row 0 has kind delete"):
        put(table, [{"id": 1, "op": "delete"}])


def test_a_filter_on_values_never_brings_an_old_version_back(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", PLAIN, primary_key=["id"], options={"bucket": "1"})
    put(table, pa.table({"id": [1, 2], "v": pa.array([10, 20], pa.int32())}))
    put(table, pa.table({"id": [1], "v": pa.array([99], pa.int32())}))
    assert rows_of(table, ["id"], col("v") == 10) == []
    assert rows_of(table, ["id"], col("v") >= 20) == [(1,), (2,)]
    assert len(planned_files(table, col("v") == 10)) == 2
    assert planned_files(table, col("v") == 1000) == []


@pytest.mark.parametrize(
    "where",
    [
        col("id") == 7,
        col("id").is_in([3, 500, 777]),
        (col("id") >= 100) & (col("name") == "n150"),
        (col("v") < 10) | (col("name").starts_with("n99")),
        col("v").is_null(),
        col("id") > 990,
    ],
)
@pytest.mark.parametrize("kind", ["append", "keyed"])
@pytest.mark.one_in(2)
def test_filters_are_exact_whatever_they_prune(catalog: FileSystemCatalog, kind: str, where: Predicate) -> None:
    data = pa.table(
        {
            "id": list(range(1000)),
            "name": [f"n{i}" for i in range(1000)],
            "v": pa.array([None if i % 7 == 0 else i for i in range(1000)], pa.int32()),
        }
    )
    table = keyed(catalog) if kind == "keyed" else catalog.create_table("db.a", PLAIN)
    for start in range(0, 1000, 250):
        put(table, data.slice(start, 250))
    wanted = [tuple(r.values()) for r in data.to_pylist() if _matches(where, r)]
    assert rows_of(table, None, where) == sorted(wanted, key=repr)
    assert rows_of(table, ["name"], where) == sorted(((name,) for _, name, _ in wanted), key=repr)


def _matches(where: Predicate, row: dict[str, Any]) -> bool:
    from forebay.codec.filters import mask
    from forebay.paimon.catalog.definition import new_schema
    from forebay.paimon.files.pruning import bind_filter

    batch = pa.RecordBatch.from_pylist([row], schema=PLAIN)
    found: bool = mask(bind_filter(where, new_schema(PLAIN).fields), batch)[0].as_py()
    return found


def test_a_key_prunes_buckets_and_files(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog, "db.t", bucket="4")
    put(table, pa.table({"id": list(range(100))}))
    put(table, pa.table({"id": list(range(100, 200))}))
    assert len(live_files(table)) == 8
    assert len(planned_files(table, col("id") == 42)) == 1
    assert {s.bucket for s in table.scan(filter=col("id").is_in([1, 2, 3])).plan()} < {0, 1, 2, 3}


def test_partitions_are_pruned_exactly_and_reported_as_accepted(catalog: FileSystemCatalog) -> None:
    columns = pa.schema([("id", pa.int64()), ("dt", pa.date32()), ("region", pa.string())])
    table = catalog.create_table("db.t", columns, partition_keys=["dt", "region"])
    days = [datetime.date(2024, 1, d) for d in (1, 2, 3)]
    put(table, [{"id": i, "dt": days[i % 3], "region": [None, "a/b", "x=y"][i % 3]} for i in range(30)])
    where = (col("dt") >= days[1]) & (col("id") < 5)
    assert [r[0] for r in rows_of(table, None, where)] == [1, 2, 4]
    assert len(table.scan(filter=where).plan()) == 2
    assert rows_of(table, ["id"], col("region").is_null()) == rows_of(table, ["id"], col("dt") == days[0])
    assert table.split_reader(None, where)._filter.accepted == (col("dt") >= days[1],)
    assert table.split_reader(None, where)._filter.remaining == (col("id") < 5,)


def test_a_limit_reads_no_more_files_than_it_needs(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", PLAIN, options={"source.split.open-file-cost": "128 mb"})
    for start in range(0, 50, 10):
        put(table, pa.table({"id": list(range(start, start + 10))}))
    assert len(table.scan(limit=15).plan()) == 2
    assert table.scan(limit=15).to_arrow().num_rows == 15
    assert table.scan(limit=0).to_arrow().num_rows == 0
    assert table.scan(limit=7, filter=col("id") > 30).to_arrow().num_rows == 7


def test_old_files_are_read_under_new_schemas(catalog: FileSystemCatalog) -> None:
    columns = {
        "id": types.bigint(),
        "a": types.int_(),
        "b": types.string(),
        "r": types.row(types.field("x", types.int_()), types.field("y", types.string())),
        "gone": types.int_(),
    }
    table = catalog.create_table("db.t", columns, primary_key=["id"], options={"bucket": "1"})
    put(table, [{"id": 1, "a": 5, "b": "12", "r": {"x": 1, "y": "p"}, "gone": 0}])
    table = altered(
        table,
        [
            RenameColumn(("a",), "renamed"),
            UpdateColumnType(("renamed",), types.bigint()),
            UpdateColumnType(("b",), types.int_()),
            AddColumn(("added",), types.double()),
            DropColumn(("gone",)),
            AddColumn(("r", "z"), types.int_()),
            RenameColumn(("r", "x"), "w"),
        ],
    )
    put(table, [{"id": 2, "renamed": 1 << 40, "b": 7, "r": {"w": 2, "y": "q", "z": 3}, "added": 1.5}])
    assert table.scan().to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "renamed": 5, "b": 12, "r": {"w": 1, "y": "p", "z": None}, "added": None},
        {"id": 2, "renamed": 1 << 40, "b": 7, "r": {"w": 2, "y": "q", "z": 3}, "added": 1.5},
    ]
    assert rows_of(table, ["id"], col("renamed") == 5) == [(1,)]
    assert rows_of(table, ["id"], col("b") == 12) == [(1,)]
    assert rows_of(table, ["id"], col("added").is_null()) == [(1,)]
    assert rows_of(table, ["id"], col("added") > 1) == [(2,)]
    assert [r.keys() for r in table.scan(as_of=1).to_arrow().to_pylist()] == [
        {"id": 0, "a": 0, "b": 0, "r": 0, "gone": 0}.keys()
    ]


def test_a_name_that_is_used_again_is_another_column(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", PLAIN)
    put(table, [{"id": 1, "v": 5}])
    table = altered(table, [DropColumn(("v",)), AddColumn(("v",), types.int_())])
    assert rows_of(table) == [(1, None, None)]
    assert rows_of(table, ["id"], col("v") == 5) == []


def test_parts_of_nested_rows_can_be_chosen(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", ALL_TYPES)
    put(table, all_types_rows(3))
    read = table.scan(["nested.z", "id", "nested.x"], col("nested").is_not_null()).to_arrow()
    assert read.to_pylist()[1] == {"nested": {"x": 1, "z": [1]}, "id": 1}
    with pytest.raises(InvalidRequest, match="has no field 'q'"):
        table.scan(["nested.q"])
    for twice in (["id", "id"], ["nested", "nested.x"], ["nested.x", "nested"]):
        with pytest.raises(InvalidRequest, match=f"column '{twice[0].partition('.')[0]}' is asked for twice"):
            table.scan(twice)


def test_no_columns_still_count_rows(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", PLAIN)
    put(table, pa.table({"id": [1, 2, 3]}))
    assert sum(b.num_rows for b in table.scan([])) == 3


def test_columns_that_are_left_out_get_their_default(catalog: FileSystemCatalog) -> None:
    table = altered(catalog.create_table("db.t", PLAIN), [UpdateColumnDefault(("v",), "42")])
    put(table, pa.table({"id": [1], "name": ["a"]}))
    assert rows_of(table) == [(1, "a", 42)]


def test_writing_under_another_bucket_count_is_refused_until_the_partition_is_empty(
    catalog: FileSystemCatalog,
) -> None:
    columns = pa.schema([("id", pa.int64()), ("dt", pa.string())])
    table = catalog.create_table(
        "db.t", columns, primary_key=["id", "dt"], partition_keys=["dt"], options={"bucket": "2"}
    )
    put(table, [{"id": 1, "dt": "old"}])
    table = altered(table, [SetOption("bucket", "4")])
    with pytest.raises(InvalidRequest, match="dt=old was written with 2 buckets, and the table now has 4"):
        put(table, [{"id": 2, "dt": "old"}])
    put(table, [{"id": 2, "dt": "new"}])
    table.overwrite([{"id": 3, "dt": "old"}])
    assert rows_of(table) == [(2, "new"), (3, "old")]


def test_overwrite_replaces_the_partitions_it_writes_to_or_the_one_that_is_named(catalog: FileSystemCatalog) -> None:
    columns = pa.schema([("id", pa.int64()), ("dt", pa.string())])
    table = catalog.create_table("db.t", columns, partition_keys=["dt"])
    put(table, [{"id": 1, "dt": "a"}, {"id": 2, "dt": "b"}])
    table.overwrite([{"id": 3, "dt": "a"}])
    assert rows_of(table) == [(2, "b"), (3, "a")]
    table.overwrite(pa.table({"id": pa.array([], pa.int64()), "dt": pa.array([], pa.string())}), {"dt": "b"})
    assert rows_of(table) == [(3, "a")]


def test_a_failed_write_leaves_no_files(catalog: FileSystemCatalog, tmp_path: Path) -> None:
    table = keyed(catalog, **{"write-buffer-size": "1 kb"})
    good, bad = pa.table({"id": list(range(5000))}), pa.table({"id": pa.array([None], pa.int64())})
    with table.new_write() as writer:
        writer.write(good)
        assert [p.name for p in tmp_path.rglob("*.parquet")] != []
        with pytest.raises(InvalidRequest, match="NOT NULL"):
            writer.write(bad)
    assert [p.name for p in tmp_path.rglob("*.parquet")] == []
    assert table.context.snapshots.latest() is None


def test_a_write_that_loses_to_a_rescale_leaves_no_files(catalog: FileSystemCatalog, tmp_path: Path) -> None:
    table = keyed(catalog)
    put(table, [{"id": 1}])
    with table.new_write() as writer:
        writer.write([{"id": 2}])
        late = writer.prepare_commit()
    rescaled = altered(table, [SetOption("bucket", "5")])
    rescaled.overwrite([{"id": 1}])
    before = {p.name for p in tmp_path.rglob("data-*")}
    with pytest.raises(Conflict):
        table.new_commit().commit(late)
    with pytest.raises(InvalidRequest, match="outside"):
        _with_partitions(catalog).overwrite([{"id": 1, "dt": "outside"}], {"dt": "inside"})
    assert {p.name for p in tmp_path.rglob("data-*")} == before


def _with_partitions(catalog: FileSystemCatalog) -> Table:
    columns = pa.schema([("id", pa.int64()), ("dt", pa.string())])
    return catalog.create_table("db.parts", columns, partition_keys=["dt"])


def test_reading_at_a_tag_and_at_a_time(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", PLAIN)
    first = put(table, [{"id": 1}])
    assert first is not None
    table.context.tags.create("one", first)
    second = put(table, [{"id": 2}])
    assert second is not None
    assert rows_of(table, ["id"], as_of="one") == [(1,)]
    assert len(rows_of(table, ["id"], as_of=at_ms(second.time_millis))) == 2
    with pytest.raises(NotFound):
        table.scan(as_of=at_ms(first.time_millis - 1))


def test_features_that_are_not_built_are_refused_by_name(catalog: FileSystemCatalog) -> None:
    with pytest.raises(UnsupportedOperation, match=r"row-tracking.enabled"):
        catalog.create_table("db.t", PLAIN, options={"row-tracking.enabled": "true"})
    table = catalog.create_table("db.orc", PLAIN, options={"file.format": "orc"})
    with pytest.raises(UnsupportedOperation, match="'orc' can be read but not written"):
        put(table, [{"id": 1}])


def test_a_catalog_is_opened_by_its_directory(tmp_path: Path) -> None:
    catalog = Catalog.open(f"file://{tmp_path}/lake")
    catalog.create_database("db")
    put(catalog.create_table("db.t", PLAIN), [{"id": 1}])
    assert rows_of(Catalog.open({"warehouse": f"{tmp_path}/lake"}).table("db.t"), ["id"]) == [(1,)]
