"""`CALL lake.sys.…` for a table's history: expiry, tags, branches, rollback, consumers, orphans, purging."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.paimon import Catalog
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.table import Table
from tests.paimon.lake import put
from tests.spark.releases import needs

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]

COLUMNS = pa.schema([("id", pa.int64()), ("dt", pa.string())])
DONE = [(True,)]


@pytest.fixture
def table(lake_catalog: Catalog, lake: str) -> Table:
    """Snapshots 1 to 4, with a row each; nothing expires by itself."""
    table = lake_catalog.create_table(
        f"{lake}.t", COLUMNS, partition_keys=["dt"], options={"write-only": "true", "snapshot.num-retained.min": "1"}
    )
    for day in range(1, 5):
        put(table, [{"id": day, "dt": f"2026-01-0{day}"}])
    return table


@pytest.fixture
def call(lake_sql: Sql, lake: str) -> Callable[..., list[tuple[Any, ...]]]:
    """Call a procedure on the table, with more arguments as SQL."""

    def run(name: str, arguments: str = "", table: str = "t") -> list[tuple[Any, ...]]:
        return lake_sql(f"CALL lake.sys.{name}(table => '{lake}.{table}'{', ' * bool(arguments)}{arguments})")

    return run


Call = Callable[..., list[tuple[Any, ...]]]


def ids(table: Table, as_of: Any = None) -> list[int]:
    return sorted(row["id"] for row in table.scan(["id"], as_of=as_of).to_arrow().to_pylist())


# ---- expiry ---------------------------------------------------------------------------------------------------------


def test_snapshots_expire_by_number_and_time(table: Table, call: Call) -> None:
    assert call("expire_snapshots", "retain_max => 2, dry_run => true") == [(2,)]
    assert table.context.snapshots.ids() == [1, 2, 3, 4]
    assert call("expire_snapshots", "retain_max => 2, max_deletes => 1") == [(1,)]
    assert call("expire_snapshots", "older_than => '2026-01-01 00:00:00'") == [(0,)]
    assert call("expire_snapshots", "options => 'snapshot.num-retained.max=3,snapshot.expire.limit=7'") == [(0,)]
    assert call("expire_snapshots", "older_than => '2200-01-01 00:00:00', retain_min => 1") == [(2,)]
    assert table.context.snapshots.ids() == [4]
    assert ids(table) == [1, 2, 3, 4]
    with pytest.raises(Exception, match="argument 'retain_max' is 0"):
        call("expire_snapshots", "retain_max => 0")
    with pytest.raises(Exception, match="argument 'older_than': 'yesterday' is no time"):
        call("expire_snapshots", "older_than => 'yesterday'")


def test_old_partitions_are_dropped_and_named(table: Table, call: Call) -> None:
    put(table, [{"id": 9, "dt": "2999-01-01"}])
    how = "expiration_time => '1 d', timestamp_formatter => 'yyyy-MM-dd', timestamp_pattern => '$dt'"
    expected = [(f"dt=2026-01-0{day}",) for day in range(1, 5)]
    assert call("expire_partitions", f"{how}, dry_run => true") == expected
    assert ids(table) == [1, 2, 3, 4, 9]
    assert call("expire_partitions", f"{how}, max_expires => 1, expire_strategy => 'values-time'") == expected[:1]
    assert call("expire_partitions", how) == expected[1:]
    assert call("expire_partitions", how) == []
    assert ids(table) == [9]
    with pytest.raises(Exception, match="argument 'expire_strategy' is 'age'"):
        call("expire_partitions", "expire_strategy => 'age'")
    with pytest.raises(Exception, match="argument 'expiration_time': 'old' is not a duration"):
        call("expire_partitions", "expiration_time => 'old'")


@pytest.mark.parametrize(("legacy", "named"), [("true", "day=18262, hour=7"), ("false", "day=2020-01-01, hour=7")])
def test_dropped_partitions_are_called_as_their_directories(
    lake_catalog: Catalog, lake: str, call: Call, legacy: str, named: str
) -> None:
    columns = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("hour", pa.int32())])
    options = {"partition.expiration-time": "1 d", "partition.timestamp-pattern": "$day", "write-only": "true"}
    table = lake_catalog.create_table(
        f"{lake}.t", columns, partition_keys=["day", "hour"], options={**options, "partition.legacy-name": legacy}
    )
    put(table, [{"id": 1, "day": datetime.date(2020, 1, 1), "hour": 7}])
    assert Path(table.context.paths.root, named.replace(", ", "/")).is_dir()
    assert call("expire_partitions", "dry_run => true") == call("expire_partitions") == [(named,)]


# ---- tags -----------------------------------------------------------------------------------------------------------


def test_tags_are_made_moved_renamed_and_deleted(table: Table, call: Call) -> None:
    assert call("create_tag", "tag => 'a', snapshot => 2, time_retained => '1 d'") == DONE
    assert call("create_tag", "tag => 'b'") == DONE
    assert {tag.name: tag.snapshot.id for tag in table.context.tags.tags()} == {"a": 2, "b": 4}
    assert call("replace_tag", "tag => 'b', snapshot => 3, time_retained => '2 h'") == DONE
    assert call("rename_tag", "tag => 'a', target_tag => 'c'") == DONE
    found = {tag.name: (tag.snapshot.id, tag.retained) for tag in table.context.tags.tags()}
    assert {name: (snapshot, str(kept)) for name, (snapshot, kept) in found.items()} == {
        "b": (3, "2:00:00"),
        "c": (2, "1 day, 0:00:00"),
    }
    with pytest.raises(Exception, match="there is no tag 'x'"):
        call("delete_tag", "tag => 'b,x'")
    assert table.context.tags.names() == ["b", "c"], "all or none"
    assert call("delete_tag", "tag => 'b, c'") == DONE
    assert table.context.tags.names() == []


def test_a_time_is_tagged_and_tags_expire(table: Table, call: Call) -> None:
    second = table.context.snapshots.snapshot(2)
    made = call("create_tag_from_timestamp", f"tag => 'then', timestamp => {second.time_millis}")
    assert made == [("then", 2, second.time_millis, None)]
    with pytest.raises(Exception, match="argument 'timestamp'"):
        call("create_tag_from_timestamp", "tag => 'late', timestamp => 99999999999999")
    assert call("create_tag", "tag => 'short', time_retained => '1 ms'") == DONE
    assert call("create_tag", "tag => 'long', time_retained => '9999 d'") == DONE
    assert call("expire_tags", "dry_run => true") == call("expire_tags") == [("short",)]
    assert call("expire_tags", "older_than => '2020-01-01 00:00:00'") == []
    assert sorted(call("expire_tags", "older_than => '2200-01-01 00:00:00'")) == [("long",), ("then",)]


# ---- branches -------------------------------------------------------------------------------------------------------


def test_branches_are_made_written_and_become_the_table(table: Table, call: Call) -> None:
    call("create_tag", "tag => 'start', snapshot => 2")
    assert call("create_branch", "branch => 'dev', tag => 'start'") == DONE
    assert call("create_branch", "branch => 'dev', ignoreIfExists => 'true'") == DONE
    with pytest.raises(Exception, match="there is a branch 'dev' already"):
        call("create_branch", "branch => 'dev'")
    put(table.on_branch("dev"), [{"id": 77, "dt": "2026-02-01"}])
    assert call("compact", "dry_run => true", table="t$branch_dev")[0][0] is True
    assert call("rename_branch", "from_branch => 'dev', to_branch => 'next'") == DONE
    assert call("create_branch", "branch => 'b1'") == call("create_branch", "branch => 'b2'") == DONE
    assert call("delete_branch", "branch => 'b1, b2'") == DONE
    assert call("fast_forward", "branch => 'next'") == DONE
    assert ids(table) == [1, 2, 77]
    assert BranchManager(table.context.io, table.context.paths).names() == ["next"]


# ---- rollback -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rollback", "rollback_to"])
def test_a_table_goes_back_to_a_snapshot_or_a_tag(table: Table, call: Call, name: str) -> None:
    call("create_tag", "tag => 'two', snapshot => 2")
    for wrong in ("", "snapshot => 1, tag => 'two'"):
        with pytest.raises(Exception, match="give one of the arguments 'snapshot', 'tag' and 'version'"):
            call(name, wrong)
    assert call(name, "tag => 'two', dry_run => true") == [(4, 2)]
    assert call(name, "version => '3'") == [(4, 3)]
    assert call(name, "tag => 'two'") == [(3, 2)]
    assert call(name, "snapshot => 1") == [(2, 1)]
    assert ids(table) == [1]


def test_a_table_goes_back_to_a_time(table: Table, call: Call) -> None:
    third = table.context.snapshots.snapshot(3).time_millis
    back = table.context.snapshots.at_or_before(third)
    assert back is not None
    assert call("rollback_to_timestamp", f"timestamp => {third}, dry_run => true") == [(4, back.id)]
    assert call("rollback_to_timestamp", f"timestamp => {third}") == [(4, back.id)]
    with pytest.raises(Exception, match="argument 'timestamp'"):
        call("rollback_to_timestamp", "timestamp => 5")


def test_a_table_goes_back_to_a_watermark(lake_catalog: Catalog, lake: str, call: Call) -> None:
    table = lake_catalog.create_table(f"{lake}.t", COLUMNS)
    for watermark in (10, 20, 30):
        with table.new_write() as writer:
            writer.write([{"id": watermark, "dt": "a"}])
            table.new_commit().commit(writer.prepare_commit(), watermark=watermark)
    assert call("rollback_to_watermark", "watermark => 25, dry_run => true") == [(3, 2)]
    assert call("rollback_to_watermark", "watermark => 25") == [(3, 2)]
    assert ids(table) == [10, 20]
    with pytest.raises(Exception, match="argument 'watermark'"):
        call("rollback_to_watermark", "watermark => 5")


# ---- consumers ------------------------------------------------------------------------------------------------------


def test_consumers_are_set_and_forgotten(table: Table, call: Call) -> None:
    consumers = ConsumerManager(table.context.io, table.context.paths)
    for name in ("a1", "a2", "b1"):
        consumers.record(name, 4)
    assert call("reset_consumer", "consumerId => 'a1', nextSnapshotId => 2") == DONE
    assert consumers.all() == {"a1": 2, "a2": 4, "b1": 4}
    with pytest.raises(Exception, match="argument 'nextSnapshotId'"):
        call("reset_consumer", "consumerId => 'a1', nextSnapshotId => 50")
    some = "includingConsumers => 'a.*', excludingConsumers => '.*2'"
    assert call("clear_consumers", f"{some}, dry_run => true") == call("clear_consumers", some) == [(True, ["a1"])]
    assert consumers.all() == {"a2": 4, "b1": 4}
    assert call("reset_consumer", "consumerId => 'b1'") == DONE
    assert call("clear_consumers") == [(True, ["a2"])]
    assert consumers.all() == {}
    with pytest.raises(Exception, match="no regular expression"):
        call("clear_consumers", "includingConsumers => '('")


# ---- files and statistics -------------------------------------------------------------------------------------------


def test_orphans_of_a_table_or_a_database_are_told_and_deleted(
    table: Table, lake_catalog: Catalog, lake: str, call: Call
) -> None:
    other = lake_catalog.create_table(f"{lake}.other", COLUMNS)
    lost = [Path(t.context.paths.root, name) for t, name in ((table, "dt=2026-01-01/bucket-0/data-lost.parquet"),
                                                     (other, "manifest/manifest-lost"))]  # fmt: skip
    for path in lost:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(b"lost")
        os.utime(path, (1, 1))
    assert call("remove_orphan_files", "dry_run => true") == [(1, 4, [str(lost[0])])]
    assert all(path.exists() for path in lost)
    assert call("remove_orphan_files", "older_than => '1960-01-01 00:00:00'", table="*") == [(0, 0, [])]
    assert call("remove_orphan_files", "mode => 'distributed', parallelism => 2", table="*")[0][:2] == (2, 8)
    assert not any(path.exists() for path in lost)
    with pytest.raises(Exception, match="argument 'mode' is 'far'"):
        call("remove_orphan_files", "mode => 'far'")
    with pytest.raises(Exception, match="older than now"):
        call("remove_orphan_files", "older_than => '2200-01-01 00:00:00'")


def test_statistics_are_collected(table: Table, call: Call) -> None:
    snapshot, count, size, columns = call("analyze", "columns => 'id'")[0]
    assert (snapshot, count, columns) == (4, 4, ["id"])
    assert size > 0
    assert call("analyze", "columns => '*'")[0][3] == ["dt", "id"]
    with pytest.raises(Exception, match="argument 'columns'"):
        call("analyze", "columns => 'x'")


@pytest.mark.parametrize("name", ["purge_files", "purge"])
def test_a_purged_table_is_empty_and_has_no_files_but_a_snapshot(table: Table, call: Call, name: str) -> None:
    call("create_tag", "tag => 'a', snapshot => 1")
    call("create_branch", "branch => 'dev', tag => 'a'")
    put(table.on_branch("dev"), [{"id": 5, "dt": "2026-03-01"}])
    ConsumerManager(table.context.io, table.context.paths).record("reader", 2)
    would = "Would delete 4 rows, 4 files, 4 snapshots, 1 tags, 1 branches, 1 consumers"
    assert call(name, "dry_run => true") == [(would,)]
    assert ids(table) == [1, 2, 3, 4]
    assert call(name)[0][0].startswith("Success")
    assert ids(table) == []
    assert (table.context.tags.names(), table.context.snapshots.ids()) == ([], [5])
    assert ConsumerManager(table.context.io, table.context.paths).all() == {}
    assert list(Path(table.context.paths.root).rglob("*.parquet")) == []
    put(table, [{"id": 6, "dt": "2026-03-01"}])
    assert ids(table) == [6]


@needs(4, 1, "SHOW PROCEDURES")
def test_all_procedures_are_listed(lake_sql: Sql) -> None:
    from forebay.spark.sql.lake_procedures import LAKE_PROCEDURES

    shown = {str(row[-1]) for row in lake_sql("SHOW PROCEDURES IN lake.sys")}
    assert shown >= {*LAKE_PROCEDURES}


def test_arguments_of_every_type_reach_a_procedure(lake_sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import types as t

    from forebay.spark.sql.lake_procedures import LAKE_PROCEDURES
    from forebay.spark.sql.procedures import DONE, Parameter, Procedure

    heard: dict[str, Any] = {}
    texts = t.StringType()
    kinds = {
        "i": t.IntegerType(),
        "l": t.LongType(),
        "b": t.BooleanType(),
        "s": texts,
        "a": t.ArrayType(texts),
        "m": t.MapType(texts, texts),
    }
    parameters = tuple(Parameter(name, kind, default="NULL") for name, kind in kinds.items())
    echo = Procedure("echo", "Remember the arguments.", parameters, DONE, lambda _, **given: heard.update(given))
    monkeypatch.setitem(LAKE_PROCEDURES, "echo", echo)
    lake_sql("CALL lake.sys.echo(i => 1, l => 5000000000, b => true, s => 'x', a => array('p'), m => map('k', 'v'))")
    assert heard == {"i": 1, "l": 5_000_000_000, "b": True, "s": "x", "a": ["p"], "m": {"k": "v"}}
    lake_sql("CALL lake.sys.echo()")
    assert set(heard.values()) == {None}
