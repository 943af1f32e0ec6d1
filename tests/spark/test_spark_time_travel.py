"""VERSION AS OF and TIMESTAMP AS OF of live tables with a lake, in SQL and by options of DataFrames."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.paimon import Catalog
from tests.unionread.world import PAIMON, World, world

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def tiered(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    import forebay.spark

    with world(tmp_path_factory.mktemp("travel"), PAIMON) as running:
        server = running.connection.settings.bootstrap_servers[0]
        forebay.spark.attach(spark, "travel", bootstrap_servers=f"{server.host}:{server.port}")
        yield running


def test_earlier_states_are_read_in_sql_and_by_options(spark: Any, tiered: World) -> None:
    table = tiered.create({"id": "BIGINT NOT NULL", "v": "STRING"}, primary_key=["id"], buckets=2)
    name = f"travel.{table.path}"
    table.upsert([{"id": 1, "v": "a"}, {"id": 2, "v": "a"}])
    first = tiered.tier(table)
    table.upsert([{"id": 1, "v": "b"}])
    table.delete([2])
    time.sleep(0.005)
    then = dt.datetime.now(dt.UTC)
    time.sleep(0.005)
    table.upsert([{"id": 1, "v": "c"}, {"id": 3, "v": "c"}])
    tiered.tier(table)

    def rows(frame: Any) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in frame.collect())

    old, middle = [(1, "a"), (2, "a")], [(1, "b")]
    assert rows(spark.sql(f"SELECT * FROM {name} VERSION AS OF {first}")) == old
    assert rows(spark.sql(f"SELECT v FROM {name} VERSION AS OF {first} WHERE id = 2")) == [("a",)]
    text = then.strftime("%Y-%m-%d %H:%M:%S.%f")
    assert rows(spark.sql(f"SELECT * FROM {name} TIMESTAMP AS OF '{text}'")) == middle
    assert rows(spark.sql(f"SELECT count(*) FROM {name} TIMESTAMP AS OF '{text}'")) == [(1,)]
    assert rows(spark.read.option("timestampAsOf", text).table(name)) == middle
    assert rows(spark.read.option("versionAsOf", first).table(name)) == old
    joined = f"SELECT n.id FROM {name} n JOIN {name} VERSION AS OF {first} o ON n.id = o.id"
    assert rows(spark.sql(joined)) == [(1,)]
    assert "lake and stream as of" in spark.sql(f"EXPLAIN SELECT * FROM {name} TIMESTAMP AS OF '{text}'").first()[0]
    assert "ParquetScan" in spark.sql(f"EXPLAIN SELECT * FROM {name} VERSION AS OF {first}").first()[0]
    lake: Any = tiered.storage
    Catalog.open(lake.options).table(str(table.path)).create_tag("before", first)
    assert rows(spark.sql(f"SELECT * FROM {name} VERSION AS OF 'before'")) == old
    for query, message in (
        (f"SELECT * FROM {name} VERSION AS OF 'none'", "neither a tag of the lake"),
        (f"SELECT * FROM {name} VERSION AS OF 99999", "99999"),
        (f"SELECT * FROM {name} TIMESTAMP AS OF '2999-01-01'", "ms now"),
        (f"SELECT * FROM travel.fluss.`{table.path.table}$changelog` VERSION AS OF 1", "only the table"),
        (f"INSERT INTO {name} VERSION AS OF {first} VALUES (1, 'x')", "PARSE_SYNTAX_ERROR"),
    ):
        with pytest.raises(Exception, match=message) as error:
            spark.sql(query).collect()
        assert "Traceback" not in str(error.value)
    tiered.connection.drop_table(table.path)
