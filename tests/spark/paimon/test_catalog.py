"""Tables of a lake found through Spark SQL: names, time travel, branches, system tables, partitions, all catalogs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import forebay.spark
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.paimon import Catalog
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.system_tables.registry import METADATA_NAMES, NAMES
from tests.paimon.catalog.conftest import hive_options, metastore
from tests.paimon.catalog.rest_server import RestServer
from tests.paimon.lake import put

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]

__all__ = ["hive_options", "metastore"]  # fixtures


def refusal(sql: Sql, statement: str) -> str:
    """The message of the error that a statement gets."""
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        sql(statement)
    return str(caught.value)


# ---- databases and names --------------------------------------------------------------------------------------------


def test_databases_are_made_shown_and_dropped(lake_sql: Sql, lake: str, lake_catalog: Catalog) -> None:
    lake_sql(f"CREATE DATABASE lake.{lake}_x")
    lake_sql(f"CREATE DATABASE IF NOT EXISTS lake.{lake}_x")
    assert "SCHEMA_ALREADY_EXISTS" in refusal(lake_sql, f"CREATE DATABASE lake.{lake}_x")
    assert (f"{lake}_x",) in lake_sql("SHOW DATABASES IN lake")
    assert ("Namespace Name", f"{lake}_x") in lake_sql(f"DESCRIBE DATABASE lake.{lake}_x")
    lake_sql(f"CREATE TABLE lake.{lake}_x.t (id INT)")
    assert "SCHEMA_NOT_EMPTY" in refusal(lake_sql, f"DROP DATABASE lake.{lake}_x")
    lake_sql(f"DROP DATABASE lake.{lake}_x CASCADE")
    assert f"{lake}_x" not in lake_catalog.list_databases()
    assert "SCHEMA_NOT_FOUND" in refusal(lake_sql, f"DROP DATABASE lake.{lake}_x")
    lake_sql(f"DROP DATABASE IF EXISTS lake.{lake}_x")


def test_a_statement_sees_what_another_process_has_done_to_a_table(
    lake_sql: Sql, lake: str, lake_catalog: Catalog
) -> None:
    lake_sql("CREATE TABLE {db}.t (id INT)")
    lake_sql("INSERT INTO {db}.t VALUES (1)")
    assert lake_sql("SELECT * FROM {db}.t") == lake_sql("SELECT * FROM {db}.t") == [(1,)]
    name = f"{lake}.t"
    changed = lake_catalog.table(name).alter(add_columns={"v": "STRING"})
    assert lake_sql("SELECT * FROM {db}.t") == [(1, None)]
    put(changed, [{"id": 2, "v": "b"}])
    assert lake_sql("SELECT * FROM {db}.t ORDER BY id") == [(1, None), (2, "b")]
    changed.rollback_to(1)
    put(changed, [{"id": 3, "v": "c"}])
    assert lake_sql("SELECT * FROM {db}.t ORDER BY id") == [(1, None), (3, "c")]
    lake_catalog.drop_table(name)
    assert "TABLE_OR_VIEW_NOT_FOUND" in refusal(lake_sql, "SELECT * FROM {db}.t")
    put(lake_catalog.create_table(name, {"id": "INT"}), [{"id": 7}])
    assert lake_sql("SELECT * FROM {db}.t") == [(7,)]
    lake_sql("INSERT INTO {db}.t VALUES (8)")
    assert lake_sql("SELECT * FROM {db}.t ORDER BY id") == [(7,), (8,)]


def test_what_a_lake_does_not_keep_of_a_database_is_refused(lake_sql: Sql, lake: str) -> None:
    assert "comment" in refusal(lake_sql, f"CREATE DATABASE lake.{lake}_c COMMENT 'x'")
    assert "nothing can be changed" in refusal(lake_sql, f"ALTER DATABASE lake.{lake} SET DBPROPERTIES (a = 'b')")
    assert (f"{lake}_c",) not in lake_sql("SHOW DATABASES IN lake")


def test_a_table_that_is_not_there_is_sparks_own_error(lake_sql: Sql) -> None:
    for name in ("{db}.nix", "{db}.`nix$snapshots`", "{db}.x.y", "lake.nix.nix", "{db}.`a/b`", "{db}.`t$`"):
        assert "TABLE_OR_VIEW_NOT_FOUND" in refusal(lake_sql, f"SELECT * FROM {name}")
    assert "SCHEMA_NOT_FOUND" in refusal(lake_sql, "CREATE TABLE lake.nix.t (id INT)")
    assert "SCHEMA_NOT_FOUND" in refusal(lake_sql, "SHOW TABLES IN lake.nix")
    lake_sql("DROP TABLE IF EXISTS {db}.nix")
    assert "TABLE_OR_VIEW_NOT_FOUND" in refusal(lake_sql, "DROP TABLE {db}.nix")


def test_a_table_of_another_engine_is_found_and_read(lake_sql: Sql, lake: str, lake_catalog: Catalog) -> None:
    table = lake_catalog.create_table(f"{lake}.t", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    put(table, pa.table({"id": [1, 2], "v": ["a", "b"]}))
    assert lake_sql("SHOW TABLES IN {db}") == [(lake, "t", False)]
    assert sorted(lake_sql("SELECT * FROM {db}.t WHERE id > 0")) == [(1, "a"), (2, "b")]
    put(table, pa.table({"id": [3], "v": ["c"]}))
    assert lake_sql("SELECT count(*) FROM {db}.t") == [(3,)]


# ---- time travel, branches, system tables ---------------------------------------------------------------------------


@pytest.fixture
def history(lake_sql: Sql, lake: str, lake_catalog: Catalog) -> str:
    """Table `h`: snapshot 1 (tag `first`, branch `dev`) has row 1, snapshot 2 has row 2 and a new column."""
    table = lake_catalog.create_table(f"{lake}.h", pa.schema([("id", pa.int64())]), options={"bucket": "-1"})
    put(table, pa.table({"id": [1]}))
    table.create_tag("first", 1)
    BranchManager(table.context.io, table.context.paths).create("dev", "first")
    lake_sql("ALTER TABLE {db}.h ADD COLUMN v STRING")
    put(lake_catalog.table(f"{lake}.h"), pa.table({"id": [2], "v": ["b"]}))
    return f"{lake}.h"


def test_time_travel_shows_rows_and_columns_of_then(
    lake_session: Any, lake_sql: Sql, history: str, lake_catalog: Catalog
) -> None:
    times = [s.time_millis for s in lake_catalog.table(history).context.snapshots.snapshots()]
    assert sorted(lake_sql("SELECT * FROM {db}.h")) == [(1, None), (2, "b")]
    first = f"timestamp_millis({times[1] - 1})"
    for when in ("VERSION AS OF 1", "VERSION AS OF 'first'", f"TIMESTAMP AS OF {first}"):
        assert lake_sql(f"SELECT * FROM {{db}}.h {when}") == [(1,)], when
    at = lake_sql(f"SELECT string({first})")[0][0]
    for option, value in (("versionAsOf", 1), ("versionAsOf", "first"), ("timestampAsOf", at)):
        frame = lake_session.read.option(option, value).table(f"lake.{history}")
        assert list(map(tuple, frame.collect())) == [(1,)], option
    assert sorted(lake_sql(f"SELECT id FROM {{db}}.h TIMESTAMP AS OF timestamp_millis({times[1]})")) == [(1,), (2,)]
    joined = "SELECT n.id FROM {db}.h n LEFT ANTI JOIN {db}.h VERSION AS OF 1 o ON n.id = o.id"
    assert lake_sql(joined) == [(2,)]


def test_time_travel_to_where_nothing_is_says_what_there_is(lake_sql: Sql, history: str) -> None:
    assert "there are 1 to 2" in refusal(lake_sql, "SELECT * FROM {db}.h VERSION AS OF 7")
    assert "tags are first" in refusal(lake_sql, "SELECT * FROM {db}.h VERSION AS OF 'second'")
    assert "h$branch_dev`" in refusal(lake_sql, "SELECT * FROM {db}.h VERSION AS OF 'dev'")
    assert "no snapshot as old" in refusal(lake_sql, "SELECT * FROM {db}.h TIMESTAMP AS OF '2001-01-01'")
    assert "milliseconds" in refusal(lake_sql, "SELECT * FROM {db}.h VERSION AS OF 'watermark-soon'")


def test_a_branch_is_a_table_of_its_own(lake_sql: Sql, history: str) -> None:
    lake_sql("INSERT INTO {db}.`h$branch_dev` VALUES (9)")
    assert sorted(lake_sql("SELECT * FROM {db}.`h$branch_dev`")) == [(1,), (9,)]
    assert sorted(lake_sql("SELECT id FROM {db}.h")) == [(1,), (2,)]
    assert lake_sql("SELECT snapshot_id FROM {db}.`h$branch_dev$snapshots` ORDER BY 1") == [(1,), (2,)]
    lake_sql("ALTER TABLE {db}.`h$branch_dev` ADD COLUMN w INT")
    assert [row[0] for row in lake_sql("DESCRIBE {db}.`h$branch_dev`")] == ["id", "w"]
    assert [row[0] for row in lake_sql("DESCRIBE {db}.h")] == ["id", "v"]
    assert "its branches are dev" in refusal(lake_sql, "SELECT * FROM {db}.`h$branch_nix`")


def test_every_system_table_reads_as_in_the_engine(lake_sql: Sql, history: str, lake_catalog: Catalog) -> None:
    table = lake_catalog.table(history)
    for name in NAMES:
        expected = table.system(name).read().read_all()
        found = lake_sql(f"SELECT * FROM {{db}}.`h${name}`")
        assert len(found) == expected.num_rows, name
        if name in METADATA_NAMES:
            assert found == [tuple(row.values()) for row in expected.to_pylist()], name
        columns = [row[0] for row in lake_sql(f"DESCRIBE {{db}}.`h${name}`")]
        assert columns == expected.schema.names, name


def test_system_tables_can_be_filtered_counted_and_travelled(
    lake_sql: Sql, history: str, lake_catalog: Catalog
) -> None:
    assert lake_sql("SELECT count(*) FROM {db}.`h$files`") == [(2,)]
    assert lake_sql("SELECT count(*) FROM {db}.`h$files` VERSION AS OF 1") == [(1,)]
    second = lake_catalog.table(history).context.snapshots.snapshot(2).time_millis
    then = f"TIMESTAMP AS OF timestamp_millis({second - 1})"
    assert lake_sql(f"SELECT count(*) FROM {{db}}.`h$files` {then}") == [(1,)]
    assert lake_sql("SELECT snapshot_id FROM {db}.`h$snapshots` WHERE total_record_count = 2") == [(2,)]
    assert lake_sql("SELECT max(schema_id) FROM {db}.`h$schemas`") == [(1,)]


def test_a_system_table_that_is_none_names_those_there_are(lake_sql: Sql, history: str) -> None:
    message = refusal(lake_sql, "SELECT * FROM {db}.`h$snapshot`")
    assert "$snapshots" in message
    assert "$audit_log" in message
    assert "TABLE_OR_VIEW_NOT_FOUND" in refusal(lake_sql, "SELECT * FROM {db}.`h$files$files`")


def test_system_tables_are_for_reading(lake_sql: Sql, history: str) -> None:
    for statement in (
        "INSERT INTO {db}.`h$options` VALUES ('a', 'b')",
        "INSERT INTO {db}.`h$ro` SELECT * FROM {db}.`h$ro`",
        "ALTER TABLE {db}.`h$options` SET TBLPROPERTIES ('a' = 'b')",
    ):
        assert "can only be read: write into lake." in refusal(lake_sql, statement)
    of_branch = refusal(lake_sql, "ALTER TABLE {db}.`h$branch_dev$options` SET TBLPROPERTIES ('a' = 'b')")
    assert "h$branch_dev$options can only be read: write into lake." in of_branch
    assert ".h$branch_dev" in of_branch.partition("write into ")[2]


# ---- partitions -----------------------------------------------------------------------------------------------------


def test_partitions_are_shown_described_and_dropped(lake_sql: Sql, lake: str, lake_catalog: Catalog) -> None:
    lake_sql("CREATE TABLE {db}.p (id INT, dt DATE, d DECIMAL(4, 2), s STRING) PARTITIONED BY (dt, d, s)")
    put(
        lake_catalog.table(f"{lake}.p"),
        [
            {"id": n, "dt": None if n == 4 else dt.date(2026, 1, n), "d": Decimal("1.50"), "s": f"a/{n}"}
            for n in (1, 2, 3, 4)
        ],
    )
    shown = [f"dt={'null' if n == 4 else f'2026-01-0{n}'}/d=1.50/s=a%2F{n}" for n in (1, 2, 3, 4)]
    assert sorted(lake_sql("SHOW PARTITIONS {db}.p")) == [(name,) for name in shown]
    assert lake_sql("SHOW PARTITIONS {db}.p PARTITION (dt = '2026-01-02')") == [(shown[1],)]
    (extended,) = lake_sql("SHOW TABLE EXTENDED IN {db} LIKE 'p' PARTITION (dt = '2026-01-01', d = 1.5, s = 'a/1')")
    assert "record_count: 1" in extended[3]
    first, second = (f"PARTITION (dt = '2026-01-0{n}', d = 1.5, s = 'a/{n}')" for n in (1, 2))
    lake_sql(f"ALTER TABLE {{db}}.p DROP {first}, {second}")
    assert sorted(lake_sql("SELECT id FROM {db}.p")) == [(3,), (4,)]
    assert lake_sql("SELECT count(*) FROM {db}.`p$snapshots`") == [(2,)], "both in one commit"
    lake_sql("TRUNCATE TABLE {db}.p PARTITION (dt = null, d = 1.5, s = 'a/4')")
    assert lake_sql("SELECT id FROM {db}.p") == [(3,)]


def test_partitions_that_are_not_there_cannot_be_dropped_and_none_can_be_added(lake_sql: Sql) -> None:
    lake_sql("CREATE TABLE {db}.p (id INT, dt STRING) PARTITIONED BY (dt)")
    assert "PARTITIONS_NOT_FOUND" in refusal(lake_sql, "ALTER TABLE {db}.p DROP PARTITION (dt = 'x')")
    lake_sql("ALTER TABLE {db}.p DROP IF EXISTS PARTITION (dt = 'x')")
    assert "as soon as rows are in it" in refusal(lake_sql, "ALTER TABLE {db}.p ADD PARTITION (dt = 'x')")
    assert lake_sql("SHOW PARTITIONS {db}.p") == []


# ---- all catalogs ---------------------------------------------------------------------------------------------------


def a_story_of_ddl(spark: Any, name: str) -> None:
    """What every catalog can do, from CREATE DATABASE to DROP."""

    def sql(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(statement.replace("{db}", f"{name}.story")).collect()]

    sql("CREATE DATABASE {db}")
    sql("CREATE TABLE {db}.t (id BIGINT NOT NULL, v STRING) TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '1')")
    sql("INSERT INTO {db}.t VALUES (1, 'a'), (2, 'b')")
    sql("ALTER TABLE {db}.t ADD COLUMN w INT")
    sql("ALTER TABLE {db}.t SET TBLPROPERTIES ('snapshot.num-retained.max' = '9')")
    sql("INSERT INTO {db}.t VALUES (2, 'c', 7)")
    assert sorted(sql("SELECT * FROM {db}.t")) == [(1, "a", None), (2, "c", 7)]
    assert sql("SELECT * FROM {db}.t VERSION AS OF 1 WHERE id = 2") == [(2, "b")]
    assert ("snapshot.num-retained.max", "9") in sql("SHOW TBLPROPERTIES {db}.t")
    sql("CREATE OR REPLACE TABLE {db}.t AS SELECT id + 1 AS k FROM {db}.t")
    sql("ALTER TABLE {db}.t RENAME TO story.renamed")
    assert [row[1] for row in sql("SHOW TABLES IN {db}")] == ["renamed"]
    assert sorted(sql("SELECT k FROM {db}.renamed")) == [(2,), (3,)]
    sql("DROP TABLE {db}.renamed")
    sql("DROP DATABASE {db}")


@pytest.mark.slow
def test_a_jdbc_catalog_shows_its_tables(lake_session: Any, tmp_path: Path) -> None:
    where = {"uri": f"jdbc:sqlite:{tmp_path}/catalog.db"}
    forebay.spark.attach(lake_session, "by_jdbc", warehouse=f"{tmp_path}/lake", metastore="jdbc", paimon=where)
    a_story_of_ddl(lake_session, "by_jdbc")


@pytest.fixture
def rest_server(tmp_path: Path) -> Iterator[RestServer]:
    made = RestServer(tmp_path)
    yield made
    made.close()


def test_a_rest_catalog_shows_its_tables(lake_session: Any, rest_server: RestServer) -> None:
    forebay.spark.attach(lake_session, "by_rest", paimon=rest_server.options)
    a_story_of_ddl(lake_session, "by_rest")


@pytest.mark.slow
def test_a_hive_catalog_shows_its_tables_and_places_them(
    lake_session: Any, hive_options: dict[str, str], tmp_path: Path
) -> None:
    forebay.spark.attach(lake_session, "by_hive", paimon=hive_options)
    a_story_of_ddl(lake_session, "by_hive")
    lake_session.sql("CREATE DATABASE by_hive.places")
    lake_session.sql(f"CREATE TABLE by_hive.places.t (id INT) LOCATION 'file://{tmp_path}/elsewhere'")
    lake_session.sql("INSERT INTO by_hive.places.t VALUES (5)")
    assert list((tmp_path / "elsewhere" / "snapshot").iterdir())
    lake_session.sql("DROP DATABASE by_hive.places CASCADE")


# ---- attaching ------------------------------------------------------------------------------------------------------


def test_attach_says_what_is_wrong_with_its_arguments(lake_session: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="letters"):
        forebay.spark.attach(lake_session, "a-b", warehouse=str(tmp_path))
    with pytest.raises(InvalidRequest, match="no bootstrap_servers"):
        forebay.spark.attach(lake_session, "x", warehouse=str(tmp_path), user="u")
    with pytest.raises(InvalidRequest, match="warehouse"):
        forebay.spark.attach(lake_session, "x", metastore="jdbc")
    with pytest.raises(UnsupportedOperation, match="metastore 'glue'"):
        forebay.spark.attach(lake_session, "x", warehouse=str(tmp_path), metastore="glue")


def test_an_unknown_procedure_names_those_there_are(lake_sql: Sql) -> None:
    said = refusal(lake_sql, "CALL lake.sys.compct(table => 'db.t')")
    for words in ("lake.sys.compct", " analyze, ", " compact, "):
        assert words in said
    assert "lake.other.compact" in refusal(lake_sql, "CALL lake.other.compact(table => 'db.t')")
