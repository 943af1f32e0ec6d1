"""Other software reads the Iceberg tables of our tiering, and we read and continue those of Fluss's tiering."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from forebay.codec.arrow.arrow_types import user_schema
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.metadata import types
from forebay.metadata.types import DataType
from forebay.testing.lake_contract_base import EVERY_TYPE, FULL_ROW, people
from forebay.testing.lake_rounds import PATH, Row, TieredTable, in_order
from tests.lake.iceberg_contract import IcebergContract
from tests.lake.iceberg_tables import compact, lake_table
from tests.lake.java_iceberg import ExamUnavailable, JavaIceberg, plain
from tests.lake.spark_iceberg import rows_by_spark

COLUMNS: dict[str, DataType] = {
    "id": types.bigint(),
    "day": types.date(),
    "name": types.string(),
    "price": types.decimal(38, 10),
    "at": types.timestamp_ltz(6),
    "tags": types.array(types.string()),
}
SHAPES: dict[str, dict[str, Any]] = {
    "log": {},
    "hashed log": {"bucket_keys": ["id"]},
    "partitioned log": {"partition_keys": ["day"]},
    "keyed": {"primary_key": ["id"]},
    "partitioned keyed": {"primary_key": ["id", "day"], "bucket_keys": ["id"], "partition_keys": ["day"]},
}


def row(i: int, name: str = "v") -> Row:
    return {
        "id": i,
        "day": dt.date(2024, 1, 1 + i % 3),
        "name": f"{name}{i}",
        "price": FULL_ROW["huge"] + i,
        "at": FULL_ROW["moment"] + dt.timedelta(seconds=i),
        "tags": [name] * (i % 3),
    }


def tiered(storage: IcebergLakeStorage, shape: str) -> tuple[TieredTable, list[Row]]:
    """A table of some rounds, and what is in it."""
    contract = IcebergContract()
    table = contract.create(storage, contract.descriptor(COLUMNS, **SHAPES[shape]))
    rows = [row(i) for i in range(30)]
    if not table.info.descriptor.has_primary_key:
        for part in (rows[:20], rows[20:]):
            places: dict[Any, list[Any]] = {}
            for r in part:
                places.setdefault(table.place_of(r), []).append(("+A", r))
            table.round(places)
        return table, rows
    for start in range(0, 30, 5):
        table.upsert(*rows[start : start + 5])
    table.upsert(*(row(i, "new") for i in range(10)))
    table.delete(*rows[8:12])
    return table, [*(row(i, "new") for i in range(8)), *rows[12:]]


@pytest.fixture
def storage(tmp_path: Path) -> IcebergLakeStorage:
    return IcebergLakeStorage({"warehouse": str(tmp_path / "lake")})


def java_on(storage: IcebergLakeStorage) -> JavaIceberg:
    try:
        return JavaIceberg(Path(storage.options["warehouse"]), str(PATH))
    except ExamUnavailable as e:
        pytest.skip(str(e))


def lines_of(java: JavaIceberg, *words: str) -> list[str]:
    """The rows that Java reads, without the system columns."""
    return sorted(java.ask("rows", *words))


def expected_lines(table: TieredTable, rows: list[Row]) -> list[str]:
    """Rows of the stream in the words of the exam."""
    typed = pa.Table.from_pylist(rows, schema=user_schema(table.info.schema.columns))
    return sorted(plain(r) for r in typed.to_pylist())


def rows_of(data: pa.Table) -> list[Row]:
    """Rows without the system columns."""
    return in_order(data.select([n for n in data.column_names if not n.startswith("__")]).to_pylist())


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.one_in(2)
def test_pyiceberg_reads_what_was_tiered(storage: IcebergLakeStorage, shape: str, compacted: bool) -> None:
    _, rows = tiered(storage, shape)
    if compacted:
        compact(storage)
    found = rows_of(lake_table(storage).scan().to_arrow())
    assert [{**r, "at": r["at"].replace(tzinfo=dt.UTC)} for r in found] == in_order(rows)
    assert lake_table(storage).inspect.partitions().num_rows > 0


@pytest.mark.parametrize("shape", ["log", "partitioned log", "keyed"])
def test_duckdb_reads_the_files_of_a_table_without_deletes(storage: IcebergLakeStorage, shape: str) -> None:
    _, rows = tiered(storage, shape)
    compact(storage)
    files = [task.file.file_path.removeprefix("file://") for task in lake_table(storage).scan().plan_files()]
    with duckdb.connect() as connection:
        found = connection.execute("SELECT id, name, price, tags FROM read_parquet(?)", [files]).fetchall()
    assert sorted(found) == sorted((r["id"], r["name"], r["price"], r["tags"]) for r in rows)


@pytest.mark.foreign
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", ["partitioned log", "partitioned keyed"])
def test_spark_reads_what_was_tiered(storage: IcebergLakeStorage, shape: str) -> None:
    _, rows = tiered(storage, shape)
    query = f"SELECT id, cast(day AS string), name, cast(price AS string), tags FROM {{catalog}}.{PATH} ORDER BY id"
    try:
        found = rows_by_spark(Path(storage.options["warehouse"]), query)
    except ExamUnavailable as e:
        pytest.skip(str(e))
    assert found == [[r["id"], str(r["day"]), r["name"], f"{r['price']:.10f}", r["tags"]] for r in rows]


@pytest.mark.foreign
@pytest.mark.slow
@pytest.mark.timeout(300)
class TestJava:
    """Java Iceberg."""

    @pytest.mark.parametrize("shape", SHAPES)
    def test_it_reads_what_was_tiered(self, storage: IcebergLakeStorage, shape: str) -> None:
        table, rows = tiered(storage, shape)
        java = java_on(storage)
        assert lines_of(java) == expected_lines(table, rows)
        compact(storage)
        assert lines_of(java) == expected_lines(table, rows)
        assert table.base is not None
        assert lines_of(java, str(table.base)) == expected_lines(table, rows)

    def test_it_reads_values_of_every_type(self, storage: IcebergLakeStorage) -> None:
        table = IcebergContract().keyed_table(storage, EVERY_TYPE)
        rows = [FULL_ROW, {**dict.fromkeys(EVERY_TYPE), "id": 2}]
        table.upsert(*rows)
        assert lines_of(java_on(storage)) == expected_lines(table, rows)

    def test_it_finds_the_definition_that_fluss_makes(self, storage: IcebergLakeStorage) -> None:
        tiered(storage, "partitioned keyed")
        assert java_on(storage).ask("spec") == [
            "identifiers [day, id]",
            "partition day identity",
            "partition id_bucket bucket[2]",
            "sort __offset ASC",
            *(f"property write.{mode}.mode merge-on-read" for mode in ("delete", "merge", "update")),
        ]

    def test_rounds_of_fluss_and_ours_follow_on_each_other(self, storage: IcebergLakeStorage) -> None:
        table = IcebergContract().keyed_table(storage)
        table.upsert(*people(*range(10)))
        java = java_on(storage)
        table.base = int(java.ask("delta", "1:x1,2:x2,20:x20", "3:v3")[0])
        expected = in_order([*people(0, 4, 5, 6, 7, 8, 9), *people(1, 2, 20, name="x")])
        assert table.read() == expected
        missing = table.committer().get_missing_lake_snapshot(None)
        assert missing is not None
        assert (missing.snapshot_id, missing.properties["fluss-offsets"]) == (table.base, "of Java")
        table.upsert(*people(2, 3, 4, name="y"))
        table.delete(*people(5, 20))
        expected = in_order([*people(0, 6, 7, 8, 9), *people(1, name="x"), *people(2, 3, 4, name="y")])
        assert table.read() == expected
        assert lines_of(java) == expected_lines(table, expected)
        assert compact(storage) is not None
        assert rows_of(lake_table(storage).scan().to_arrow()) == expected
        table.base = int(java.ask("delta", "6:z6", "7:v7")[0])
        assert table.read() == in_order([r for r in expected if r["id"] not in (6, 7)] + people(6, name="z"))
