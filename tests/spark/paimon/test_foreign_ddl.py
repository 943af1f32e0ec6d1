"""Java Paimon and pypaimon read a table that Spark SQL has created and changed in every possible way."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.paimon.catalog.filesystem import FileSystemCatalog
from tests.paimon.foreign.conftest import JavaTableOf, java, java_table
from tests.paimon.lake import put
from tests.paimon.oracle import ask
from tests.paimon.pypaimon_tables import PROGRAM

pytestmark = [pytest.mark.spark, pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

__all__ = ["java", "java_table"]  # fixtures

Sql = Callable[[str], list[tuple[Any, ...]]]

STORY = [
    """CREATE TABLE {db}.t (
        id BIGINT NOT NULL COMMENT 'the key', day DATE, v INT DEFAULT 7, gone STRING, word VARCHAR(10) DEFAULT 'abc',
        amount DECIMAL(6, 2), place STRUCT<city: STRING, zip: INT>, tags ARRAY<STRING>, m MAP<STRING, INT>,
        at TIMESTAMP, local_at TIMESTAMP_NTZ)
       USING paimon PARTITIONED BY (day) COMMENT 'things'
       TBLPROPERTIES ('primary-key' = 'id,day', 'bucket' = '2', 'changelog-producer' = 'lookup')""",
    """INSERT INTO {db}.t VALUES
        (1, DATE'2026-01-01', 1, 'x', 'one', 1.5, struct('Ulm', 89), array('a', 'b'), map('k', 1),
         TIMESTAMP'2026-01-01 12:00:00Z', TIMESTAMP_NTZ'2026-01-01 13:00:00'),
        (2, DATE'2026-01-02', 2, 'y', 'two', 2.5, NULL, NULL, NULL, NULL, NULL)""",
    "ALTER TABLE {db}.t DROP COLUMN gone",
    "ALTER TABLE {db}.t ADD COLUMN first_one DOUBLE FIRST",
    "ALTER TABLE {db}.t ADD COLUMN place.street STRING AFTER city",
    "ALTER TABLE {db}.t RENAME COLUMN word TO text",
    "ALTER TABLE {db}.t ALTER COLUMN v TYPE BIGINT",
    "ALTER TABLE {db}.t ALTER COLUMN amount TYPE DECIMAL(10, 3)",
    "ALTER TABLE {db}.t ALTER COLUMN amount COMMENT 'how much'",
    "ALTER TABLE {db}.t ALTER COLUMN v SET DEFAULT 9",
    "ALTER TABLE {db}.t SET TBLPROPERTIES ('snapshot.num-retained.max' = '20')",
    "COMMENT ON TABLE {db}.t IS 'all things'",
    "INSERT INTO {db}.t (id, day, first_one) VALUES (3, DATE'2026-01-02', 0.5)",
    "INSERT INTO {db}.t (id, day, text) VALUES (2, DATE'2026-01-02', 'again')",
]
PLACE = {"city": "Ulm", "street": None, "zip": 89}


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    names = ["id", "day", "first_one", "v", "text", "amount", "place", "tags"]
    return [tuple(row.values()) for row in table.select(names).sort_by("id").to_pylist()]


def test_java_and_pypaimon_read_what_sql_made(
    lake_sql: Sql, lake: str, warehouse: Path, lake_catalog: FileSystemCatalog, java_table: JavaTableOf, tmp_path: Path
) -> None:
    for statement in STORY:
        lake_sql(statement)
    jan1, jan2 = dt.date(2026, 1, 1), dt.date(2026, 1, 2)
    expected = [
        (1, jan1, None, 1, "one", Decimal("1.500"), PLACE, ["a", "b"]),
        (2, jan2, None, 9, "again", None, None, None),
        (3, jan2, 0.5, 9, "abc", None, None, None),
    ]
    ours = lake_catalog.table(f"{lake}.t")
    assert rows_of(ours.scan().to_arrow()) == expected

    out = tmp_path / "rows.arrow"
    ask(PROGRAM, "read", str(warehouse), f"{lake}.t", str(out), "python")
    with pa.OSFile(str(out)) as source:
        assert rows_of(pa.ipc.open_file(source).read_all()) == expected

    theirs = java_table(lake_catalog, f"{lake}.t")
    answer = theirs.ask("read")
    assert answer["columns"] == list(ours.schema.names)
    place, text = (answer["columns"].index(name) + 1 for name in ("id", "text"))
    assert sorted((row[place], row[text]) for row in answer["rows"]) == [(1, "one"), (2, "again"), (3, "abc")]
    newest = max(theirs.system("schemas"), key=lambda row: row["schema_id"])
    assert newest["comment"] == "all things"
    assert newest["primary_keys"] == '["id","day"]'
    said = {row["key"]: row["value"] for row in theirs.system("options")}
    assert said["snapshot.num-retained.max"] == "20"
    kinds = {row["field_name"]: row for row in theirs.system("aggregation_fields")}
    assert kinds["amount"]["comment"] == "how much"


def test_java_writes_defaults_that_sql_has_set(
    lake_sql: Sql, lake: str, lake_catalog: FileSystemCatalog, java_table: JavaTableOf
) -> None:
    lake_sql("CREATE TABLE {db}.d (id INT, v INT, s STRING DEFAULT 'abc', day DATE DEFAULT DATE'2026-01-31')")
    lake_sql("ALTER TABLE {db}.d ALTER COLUMN v SET DEFAULT 9")
    table = lake_catalog.table(f"{lake}.d")
    nulls = pa.table({"id": pa.array([1], pa.int32()), "v": pa.nulls(1, pa.int32()), "s": pa.nulls(1, pa.string()),
                      "day": pa.nulls(1, pa.date32())})  # fmt: skip
    java_table(lake_catalog, f"{lake}.d").write(table.schema, nulls)
    put(table, [{"id": 2}])
    found = sorted(lake_sql("SELECT * FROM {db}.d"))
    assert found == [(n, 9, "abc", dt.date(2026, 1, 31)) for n in (1, 2)]
