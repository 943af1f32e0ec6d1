"""Scans of lake tables: lazy, repeatable, in other libraries, of the past, counted, split."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay import col
from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.schema_changes import RenameColumn
from forebay.paimon.table import Table
from tests.paimon.lake import altered, at_ms, new_catalog, put

COLUMNS = {"id": "BIGINT", "name": "STRING", "day": "DATE"}
DAYS = [dt.date(2024, 1, d) for d in (1, 2, 3)]


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"n{i}", "day": DAYS[i % 3]} for i in ids]


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


@pytest.fixture
def table(catalog: FileSystemCatalog) -> Table:
    made = catalog.create_table("db.t", COLUMNS, partition_keys="day")
    made.append(rows(*range(9)))
    return made


@pytest.fixture
def keyed(catalog: FileSystemCatalog) -> Table:
    made = catalog.create_table("db.k", COLUMNS, primary_key="id", buckets=2, options={"write-only": True})
    made.upsert(rows(*range(9)))
    made.upsert([{"id": 0, "name": "new"}], missing="null")
    return made


def ids(found: Any) -> list[int]:
    return sorted(pa.table(found)["id"].to_pylist())


# ---- reading --------------------------------------------------------------------------------------------------------


def test_a_scan_is_lazy_and_reads_the_table_as_it_is_each_time(table: Table) -> None:
    scan = table.scan(["id"])
    assert scan.count() == 9
    table.append(rows(9))
    assert (ids(scan), ids(scan.to_arrow()), scan.count()) == ([*range(10)],) * 2 + (10,)
    assert sum(batch.num_rows for batch in scan) == 10


def test_a_pinned_scan_and_a_relation_have_the_rows_of_their_snapshot(catalog: FileSystemCatalog, table: Table) -> None:
    pinned, earlier = table.scan().pinned(), table.to_duckdb(duckdb.connect(), as_of=1)
    empty = catalog.create_table("db.empty", COLUMNS)
    nothing = empty.scan().pinned()
    table.append(rows(9))
    empty.append(rows(1))
    assert (ids(pinned), pinned.count(), nothing.count()) == ([*range(9)], 9, 0)
    assert pinned.pinned() is pinned
    assert earlier.filter("id > 6 AND day = '2024-01-02'").fetchall() == [(7, "n7", DAYS[1])]
    assert "snapshot 1" in pinned.explain()


def test_a_relation_of_nested_columns_is_filtered_exactly(catalog: FileSystemCatalog) -> None:
    made = catalog.create_table("db.nested", {"id": "BIGINT", "r": "ROW<a INT, b STRING>"})
    made.append([{"id": i, "r": {"a": i, "b": str(i)}} for i in range(9)])
    narrow = made.scan(["id", "r.a"]).to_duckdb(duckdb.connect())
    assert narrow.filter("id > 7").fetchall() == [(8, {"a": 8})]
    assert made.to_duckdb(duckdb.connect()).filter("r.a > 6 AND id < 8").select("id").fetchall() == [(7,)]


def test_a_scan_comes_in_every_form(table: Table) -> None:
    scan = table.scan(["id", "name"], "id < 3")
    assert scan.schema == pa.schema([("id", pa.int64()), ("name", pa.string())])
    expected = {"id": [0, 1, 2], "name": ["n0", "n1", "n2"]}
    assert scan.to_arrow().sort_by("id").to_pydict() == expected
    assert scan.to_pandas().sort_values("id").to_dict("list") == expected
    assert sorted(scan.to_duckdb().fetchall()) == [(0, "n0"), (1, "n1"), (2, "n2")]
    assert scan.head(2).num_rows == 2
    with scan.reader() as reader:
        assert ids(reader.read_all()) == [0, 1, 2]
        with pytest.raises(InvalidRequest, match="a reader reads once"):
            list(reader)


def test_other_libraries_take_a_table_as_it_is(table: Table) -> None:
    assert pa.table(table).num_rows == 9
    assert duckdb.from_arrow(table).aggregate("count(*), max(id)").fetchall() == [(9, 8)]
    with pytest.raises(InvalidRequest, match="to_pandas"):
        np.asarray(table)


@pytest.mark.parametrize("where", ["id >= 7", pc.field("id") >= 7, col("id") >= 7], ids=["sql", "pyarrow", "forebay"])
def test_a_filter_may_be_written_in_three_ways(table: Table, where: Any) -> None:
    assert ids(table.scan(filter=where)) == [7, 8]


def test_a_limit_ends_the_reading(table: Table) -> None:
    assert table.scan(limit=4).to_arrow().num_rows == 4
    assert table.scan(limit=0).to_arrow().num_rows == 0
    assert table.scan(limit=4).head(3).num_rows == 3


def test_a_scan_that_is_left_early_reads_no_more(table: Table) -> None:
    with table.scan().reader() as reader:
        next(iter(reader))
    assert list(reader) == []


# ---- the past -------------------------------------------------------------------------------------------------------


def test_a_scan_of_the_past_names_a_snapshot_a_tag_or_a_time(table: Table) -> None:
    table.create_tag("nine")
    then = table.context.snapshots.snapshot(1).time_millis
    table.append(rows(9))
    second = table.context.snapshots.snapshot(2).time_millis
    iso = at_ms(second).isoformat()
    for as_of, count in ((1, 9), ("nine", 9), (2, 10), (at_ms(second), 10), (iso, 10), (at_ms(second + 60_000), 10)):
        assert table.scan(as_of=as_of).count() == count, as_of
    with pytest.raises(NotFound, match="no snapshot as old as"):
        table.scan(as_of=at_ms(then - 60_000))
    with pytest.raises(NotFound, match=r"as_of='ten' is neither a tag of .* \(tags: nine\) nor a time"):
        table.scan(as_of="ten")


def test_a_tag_that_looks_like_a_time_is_a_tag(table: Table) -> None:
    table.create_tag("2001-01-01")
    table.append(rows(9))
    assert table.scan(as_of="2001-01-01").count() == 9


def test_columns_of_the_past_are_those_that_there_were(table: Table) -> None:
    new = altered(table, [RenameColumn(("name",), "label")])
    new.append([{"id": 9, "label": "nine"}])
    assert new.scan(as_of=1).schema.names == ["id", "name", "day"]
    assert ids(new.scan(["id", "name"], "name = 'n3'", as_of=1)) == [3]
    with pytest.raises(InvalidRequest, match="no column 'name'"):
        new.scan(["name"])


def test_options_choose_what_is_read(table: Table) -> None:
    table.append(rows(9))
    table.append(rows(10))
    changes = table.with_options({"incremental-between": "1,3"}).scan(["id"])
    assert (ids(changes), changes.count(), changes.schema.names) == ([9, 10], 2, ["id"])
    assert sorted(i for part in changes.plan() for i in ids(changes.read_split(part))) == [9, 10]
    assert table.with_options({"scan.snapshot-id": 2}).scan().count() == 10
    assert ids(table.with_options({"incremental-between": "1,3"}).scan(partitions={"day": DAYS[0]})) == [9]


# ---- parts ----------------------------------------------------------------------------------------------------------


def test_a_scan_is_taken_apart_and_read_elsewhere(table: Table) -> None:
    scan = table.scan(["id"], col("id") > 1)
    parts = pickle.loads(pickle.dumps(scan.plan()))
    elsewhere = pickle.loads(pickle.dumps(scan))
    assert len(parts) == 3
    assert sorted(i for part in parts for i in ids(elsewhere.read_split(part))) == list(range(2, 9))


def test_partitions_are_chosen_by_name_or_by_values(table: Table) -> None:
    assert ids(table.scan(partitions="2024-01-02")) == [1, 4, 7]
    assert ids(table.scan(partitions=["2024-01-02", {"day": DAYS[0]}])) == [0, 1, 3, 4, 6, 7]
    assert ids(table.scan(partitions={"day": "2024-01-03"}, limit=2, filter="id > 2")) in ([5, 8], [5], [8])
    with pytest.raises(NotFound, match="has no partition '2024-02-01'"):
        table.scan(partitions=["2024-01-01", "2024-02-01"]).plan()
    assert table.scan(partitions={"day": dt.date(2025, 1, 1)}).count() == 0
    wrongs: list[Any] = [5, [5], {}]
    for wrong in wrongs:
        with pytest.raises(InvalidRequest, match="partition"):
            table.scan(partitions=wrong).plan()


def test_buckets_share_the_rows_of_a_table(keyed: Table) -> None:
    parts = [ids(keyed.scan(buckets=bucket)) for bucket in (0, 1)]
    assert sorted(parts[0] + parts[1]) == list(range(9))
    assert all(parts)
    assert ids(keyed.scan(buckets=[0, 1])) == list(range(9))


def test_a_lake_has_one_source(table: Table) -> None:
    assert table.scan(source="lake").count() == 9
    with pytest.raises(UnsupportedOperation, match="has no source but the lake"):
        table.scan(source="union")


# ---- counting and explaining ----------------------------------------------------------------------------------------


class _Opened(LocalFileIO):
    """Knows which data files were opened."""

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.data: list[str] = []

    def open_input(self, path: str) -> Any:
        if "/data-" in path:
            self.data.append(path)
        return super().open_input(path)


def test_rows_are_counted_without_opening_a_file_where_metadata_tell(table: Table, keyed: Table) -> None:
    io = _Opened()
    opened = Table(io, table.context.paths.root)
    assert opened.scan().count() == 9
    assert opened.scan(limit=5).count() == 5
    assert opened.scan(filter=col("day") == DAYS[0]).count() == 3
    assert opened.scan(partitions={"day": DAYS[1]}).count() == 3
    assert io.data == []
    assert opened.scan(filter="id > 2").count() == 6
    assert Table(io, keyed.context.paths.root).scan().count() == 9
    assert io.data != []


def test_a_scan_explains_what_it_reads(table: Table, keyed: Table) -> None:
    said = table.scan(["id"], (col("day") == DAYS[0]) & (col("id") > 2), 5).explain()
    for line in ("lake table db.t, snapshot 1, schema 0", "columns: id", "1 splits, 1 files", "3 rows", "limit: 5"):
        assert line in said
    merged = keyed.scan().explain()
    assert "10 rows before merging" in merged
    assert "splits are merged by key; compaction makes that needless" in merged
    assert (
        "(changes, by the table's scan options)" in table.with_options({"incremental-between": "0,1"}).scan().explain()
    )
    assert repr(table.scan(as_of=1)) == "<forebay.LakeScan of lake table db.t as of 1, columns id, name, day>"


# ---- partitions -----------------------------------------------------------------------------------------------------


def test_partitions_are_listed_with_what_is_in_them(table: Table) -> None:
    found = table.partitions()
    assert [(p.name, p.spec, p.rows, p.files) for p in found] == [
        (str(day), (("day", str(day)),), 3, 1) for day in DAYS
    ]
    assert all(p.size_bytes > 0 for p in found)
    assert [p.name for p in table.partitions({"day": DAYS[1]})] == ["2024-01-02"]


def test_a_partition_is_dropped_with_its_rows(table: Table) -> None:
    table.drop_partition({"day": DAYS[0]})
    assert (ids(table), [p.name for p in table.partitions()]) == ([1, 2, 4, 5, 7, 8], ["2024-01-02", "2024-01-03"])
    with pytest.raises(NotFound, match="has no partition"):
        table.drop_partition({"day": DAYS[0]})
    table.drop_partition({"day": DAYS[0]}, ignore_if_not_exists=True)
    with pytest.raises(InvalidRequest, match="lacks 'day'; give all of the partition keys"):
        table.drop_partition({})
    with pytest.raises(UnsupportedOperation, match="write rows"):
        table.create_partition({"day": DAYS[0]})


# ---- one key --------------------------------------------------------------------------------------------------------


class CountingIO(LocalFileIO):
    """Counts the data files that are opened."""

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.opened: list[str] = []

    def open_input(self, path: str) -> BinaryIO:
        if "/data-" in path:
            self.opened.append(path)
        return super().open_input(path)


def in_five_commits(io: LocalFileIO, folder: Path, **options: Any) -> Table:
    """Ids 0 to 8, of which each commit rewrites some; id 3 is deleted by the last but one, id 4 by the first."""
    catalog = FileSystemCatalog(io, str(folder / "one"))
    catalog.create_database("db")
    given = {"write-only": True, **options}
    made = catalog.create_table("db.t", {"id": "BIGINT", "name": "STRING"}, primary_key="id", buckets=1, options=given)
    for commit in range(5):
        ids = [i for i in range(9) if commit in (0, i % 5) or i in (0, 8)]
        kinds = ["-D" if (commit, i) in ((3, 3), (0, 4)) else "+U" for i in ids]
        put(made, [{"id": i, "name": f"{i} of {commit}"} for i in ids], kinds)
    return made


def test_one_key_is_read_from_the_newest_file_that_has_it(tmp_path: Path) -> None:
    io = CountingIO()
    table = in_five_commits(io, tmp_path)
    expected = {row["id"]: row["name"] for row in table.scan().to_arrow().to_pylist()}
    assert expected == {
        **{i: f"{i} of {i % 5}" for i in (1, 2, 6, 7)},
        0: "0 of 4",
        4: "4 of 4",
        5: "5 of 0",
        8: "8 of 4",
    }
    for key, files in ((0, 1), (4, 1), (7, 3), (5, 5), (3, 2), (99, 0)):
        io.opened.clear()
        found = table.scan(["name"], filter=col("id") == key).to_arrow()["name"].to_pylist()
        assert found == ([expected[key]] if key in expected else [])
        assert len(io.opened) == files, key
        assert table.scan(["name"], filter=(col("id") == key) & (col("name") == "no")).to_arrow().num_rows == 0


@pytest.mark.parametrize(
    "options", [{"sequence.field": "name"}, {"ignore-delete": True}, {"merge-engine": "partial-update"}]
)
def test_one_key_is_read_from_all_files_where_an_older_row_may_count(tmp_path: Path, options: dict[str, Any]) -> None:
    io = CountingIO()
    if "merge-engine" in options:
        options["partial-update.remove-record-on-delete"] = True
    table = in_five_commits(io, tmp_path, **options)
    expected = {row["id"]: row["name"] for row in table.scan().to_arrow().to_pylist()}
    for key in range(9):
        io.opened.clear()
        found = table.scan(["name"], filter=col("id") == key).to_arrow()["name"].to_pylist()
        assert found == ([expected[key]] if key in expected else [])
        assert len(io.opened) == 5
