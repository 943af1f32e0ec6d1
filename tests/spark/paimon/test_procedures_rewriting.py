"""`CALL lake.sys.compact` and `rescale`: files are rewritten by Spark's workers, and all readers see the same rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import Conflict, InvalidRequest
from forebay.paimon import Catalog
from forebay.paimon.table import Table
from tests.paimon.lake import put

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]

COLUMNS = pa.schema([("id", pa.int64()), ("dt", pa.date32()), ("v", pa.int64())])
PLAIN = {"write-only": "true", "partition.legacy-name": "false"}
DAYS = ("2026-01-01", "2026-01-02")


def keyed(catalog: Catalog, database: str, **options: str) -> Table:
    table = catalog.create_table(
        f"{database}.t", COLUMNS, primary_key=["id", "dt"], partition_keys=["dt"],
        options={"bucket": "2", **PLAIN, **options},
    )  # fmt: skip
    for version in range(2):
        fill(table, version)
    return table


def appended(catalog: Catalog, database: str, files: int = 3) -> Table:
    table = catalog.create_table(f"{database}.t", COLUMNS, partition_keys=["dt"], options=PLAIN)
    for version in range(files):
        fill(table, version)
    return table


def fill(table: Table, version: int = 0, days: tuple[str, ...] = DAYS, ids: range = range(20)) -> None:
    import datetime as dt

    put(table, [{"id": i, "dt": dt.date.fromisoformat(day), "v": version} for day in days for i in ids])


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


def files_of(table: Table) -> dict[str, int]:
    """How many files each partition has."""
    snapshot = table.context.snapshots.latest()
    found: dict[str, int] = {}
    for e in [] if snapshot is None else table.context.manifests.live_files(snapshot):
        directory = table.context.paths.partition_directory(e.partition)
        found[directory] = found.get(directory, 0) + 1
    return found


def buckets_of(table: Table) -> dict[str, set[int]]:
    snapshot = table.context.snapshots.latest()
    found: dict[str, set[int]] = {}
    for e in [] if snapshot is None else table.context.manifests.live_files(snapshot):
        found.setdefault(table.context.paths.partition_directory(e.partition), set()).add(e.total_buckets)
    return found


def data_files(table: Table) -> set[str]:
    return {p.name for p in Path(table.context.paths.root).rglob("data-*.parquet")}


def referenced(table: Table) -> set[str]:
    return {
        e.file.file_name for s in table.context.snapshots.snapshots() for e in table.context.manifests.live_files(s)
    }


# ---- compact --------------------------------------------------------------------------------------------------------


def test_a_write_only_table_is_compacted_by_spark(lake_sql: Sql, lake_catalog: Catalog, lake: str) -> None:
    table = keyed(lake_catalog, lake)
    rows = rows_of(table)
    assert lake_sql("CALL lake.sys.compact(table => '{db}.t', dry_run => true)") == [(True, None, 8, None)]
    for buckets, files in (("0", 4), ("0-1", 8), (" 1 , 0 - 0 ", 8)):
        call = f"CALL lake.sys.compact(table => '{lake}.t', buckets => '{buckets}', dry_run => true)"
        assert lake_sql(call) == [(True, None, files, None)]
    for buckets, says in (("2", "2 is not within 0 to 1"), ("1-0", "1-0 is not"), ("a", "'a' is neither")):
        with pytest.raises(Exception, match=f"argument 'buckets': {says}"):
            lake_sql(f"CALL lake.sys.compact(table => '{lake}.t', buckets => '{buckets}')")
    assert table.context.snapshots.latest_id() == 2
    assert lake_sql(f"CALL lake.sys.compact('{lake}.t')") == [(True, 3, 8, 4)]
    assert files_of(table) == {f"dt={day}": 2 for day in DAYS}
    assert rows_of(table) == rows
    assert lake_sql(f"CALL lake.sys.compact(table => '`{lake}`.`t`')") == [(True, None, 0, 0)]


def test_partitions_are_chosen_by_values_conditions_and_idleness(
    lake_sql: Sql, lake_catalog: Catalog, lake: str
) -> None:
    table = appended(lake_catalog, lake)
    compact = f"CALL lake.sys.compact(table => '{lake}.t', dry_run => true, "
    for chosen, files in (
        ("partitions => 'dt=2026-01-01'", 3),
        ("""partitions => 'dt="2026-01-01";dt=2026-01-02'""", 6),
        ("partitions => 'dt=2027-01-01'", 0),
        ("where => 'dt > date\"2026-01-01\"'", 3),
        ("where => 'month(dt) = 1 and dt is not null'", 6),
        ("partition_idle_time => '1 h'", 0),
        ("partition_idle_time => '0 s'", 6),
        ("compact_strategy => 'minor'", 0),
        ("compact_strategy => 'minor', options => 'compaction.min.file-num=2'", 6),
    ):
        assert lake_sql(compact + chosen + ")")[0][2] == files, chosen
    assert lake_sql(compact.replace("true", "false") + "partitions => 'dt=2026-01-02')") == [(True, 4, 3, 1)]
    assert files_of(table) == {"dt=2026-01-01": 3, "dt=2026-01-02": 1}


def test_an_append_table_is_sorted(lake_sql: Sql, lake_catalog: Catalog, lake: str) -> None:
    table = appended(lake_catalog, lake, files=2)
    rows = rows_of(table)
    lake_sql("CALL lake.sys.compact(table => '{db}.t', order_strategy => 'order', order_by => 'v, id')")
    for batch in table.scan(["v", "id"]).to_arrow().to_batches():
        read = [tuple(row.values()) for row in batch.to_pylist()]
        assert read == sorted(read)
    assert rows_of(table) == rows
    assert set(files_of(table).values()) == {1}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("partitions => 'dt=2026-01-01', where => 'dt is null'", "'partitions' and 'where' cannot be given together"),
        ("partitions => 'v=1'", "argument 'partitions': 'v' is not a partition key"),
        ("partitions => 'dt'", "argument 'partitions': 'dt' does not name partitions"),
        ("where => 'v > 1'", "argument 'where': 'v > 1' is no condition on the partitions"),
        ("where => 'dt >'", "argument 'where'"),
        ("compact_strategy => 'some'", "argument 'compact_strategy' is 'some'"),
        ("order_by => 'v'", "'order_by' needs argument 'order_strategy'"),
        ("order_strategy => 'zorder'", "argument 'order_by' is missing"),
        ("order_strategy => 'z', order_by => 'v'", "argument 'order_strategy' is 'z'"),
        ("order_strategy => 'order', order_by => 'w'", "argument 'order_by'.*'w'"),
        ("order_strategy => 'order', order_by => 'dt'", "argument 'order_by': dt has one value"),
        ("order_strategy => 'order', order_by => 'v', compact_strategy => 'minor'", "argument 'compact_strategy'"),
        ("order_strategy => 'order', order_by => 'v', partition_idle_time => '1 d'", "argument 'partition_idle_time'"),
        ("partition_idle_time => 'long'", "argument 'partition_idle_time': 'long' is not a duration"),
        ("buckets => '0'", "argument 'buckets' is for tables with a fixed number of buckets"),
        ("options => 'bucket'", "argument 'options'"),
        ("options => 'target-file-siez=1 mb'", "argument 'options'.*target-file-size"),
    ],
)
def test_a_wrong_argument_of_compact_is_named(
    lake_sql: Sql, lake_catalog: Catalog, lake: str, arguments: str, says: str
) -> None:
    appended(lake_catalog, lake, files=1)
    with pytest.raises(Exception, match=says):
        lake_sql(f"CALL lake.sys.compact(table => '{lake}.t', {arguments})")


def test_a_missing_table_is_named(lake_sql: Sql) -> None:
    with pytest.raises(Exception, match=r"argument 'table': there is no table 'x\.y'"):
        lake_sql("CALL lake.sys.compact(table => 'x.y')")
    with pytest.raises(Exception, match="argument 'table': 'y' names no table"):
        lake_sql("CALL lake.sys.compact(table => 'y')")


def test_all_tables_of_databases_are_compacted_and_one_that_fails_does_not_block_others(
    lake_sql: Sql, lake_catalog: Catalog, lake: str
) -> None:
    table = appended(lake_catalog, lake)
    broken = lake_catalog.create_table(f"{lake}.broken", COLUMNS)
    for version in range(2):
        fill(broken, version)
    next(Path(broken.context.paths.root).rglob("data-*.parquet")).unlink()
    lake_catalog.create_table(f"{lake}.z_empty", COLUMNS)
    lake_catalog.create_table(f"{lake}.left_out", COLUMNS)
    call = f"CALL lake.sys.compact_database(including_databases => '{lake}', excluding_tables => '.*left_out')"
    would = [row[0] for row in lake_sql(call.replace("(", "(dry_run => true, "))]
    assert would == [
        f"{lake}.{t}" for t in ("broken: 2 files to compact", "t: 6 files to compact", "z_empty: nothing to compact")
    ]
    said = [row[0] for row in lake_sql(call)]
    assert said[0].startswith(f"{lake}.broken: failed: ")
    assert said[1:] == [f"{lake}.t: snapshot 4", f"{lake}.z_empty: nothing to compact"]
    assert set(files_of(table).values()) == {1}


# ---- rescale --------------------------------------------------------------------------------------------------------


def test_existing_partitions_are_rescaled_after_alter_changed_new_ones(
    lake_sql: Sql, lake_catalog: Catalog, lake: str
) -> None:
    table = keyed(lake_catalog, lake)
    rows = rows_of(table)
    lake_sql("ALTER TABLE {db}.t SET TBLPROPERTIES ('bucket' = '8')")
    fill(table.refresh(), days=("2026-01-03",))
    assert buckets_of(table) == {"dt=2026-01-01": {2}, "dt=2026-01-02": {2}, "dt=2026-01-03": {8}}
    assert lake_sql("CALL lake.sys.rescale(table => '{db}.t', dry_run => true)") == [(True, 2, None)]
    assert lake_sql("CALL lake.sys.rescale(table => '{db}.t', where => 'dt < date\"2026-01-02\"')") == [(True, 1, 4)]
    assert lake_sql("CALL lake.sys.rescale(table => '{db}.t')") == [(True, 1, 5)]
    assert set().union(*buckets_of(table).values()) == {8}
    assert [row for row in rows_of(table) if str(row[1]) in DAYS] == rows
    assert lake_sql("CALL lake.sys.rescale(table => '{db}.t')") == [(True, 0, None)]
    fill(table.refresh(), version=7)


def test_rescaling_all_to_another_number_changes_the_table_and_some_does_not(
    lake_sql: Sql, lake_catalog: Catalog, lake: str
) -> None:
    table = keyed(lake_catalog, lake)
    rows = rows_of(table)
    lake_sql("CALL lake.sys.rescale(table => '{db}.t', bucket_num => 3, partitions => 'dt=2026-01-01')")
    assert (buckets_of(table)["dt=2026-01-01"], table.refresh().context.options.bucket) == ({3}, 2)
    lake_sql("CALL lake.sys.rescale(table => '{db}.t', bucket_num => 3)")
    assert (set().union(*buckets_of(table).values()), table.refresh().context.options.bucket) == ({3}, 3)
    assert rows_of(table) == rows
    with pytest.raises(Exception, match="argument 'bucket_num' is 0"):
        lake_sql("CALL lake.sys.rescale(table => '{db}.t', bucket_num => 0)")
    lake_catalog.create_table(f"{lake}.a", COLUMNS)
    with pytest.raises(Exception, match=r"argument 'table': .* has 'bucket' = -1"):
        lake_sql("CALL lake.sys.rescale(table => '{db}.a', bucket_num => 4)")


def test_a_branch_is_rescaled_and_compacted_and_its_table_is_not(
    lake_sql: Sql, lake_catalog: Catalog, lake: str
) -> None:
    table = keyed(lake_catalog, lake)
    table.create_tag("now")
    lake_sql("CALL lake.sys.create_branch(table => '{db}.t', branch => 'dev', tag => 'now')")
    assert lake_sql("CALL lake.sys.rescale(table => '{db}.t$branch_dev', bucket_num => 4)")[0][:2] == (True, 2)
    branch = table.on_branch("dev")
    assert (set().union(*buckets_of(branch).values()), branch.context.options.bucket) == ({4}, 4)
    assert (set().union(*buckets_of(table).values()), table.refresh().context.options.bucket) == ({2}, 2)
    assert rows_of(branch) == rows_of(table)
    fill(branch, version=9)
    assert lake_sql("CALL lake.sys.compact(table => '{db}.t$branch_dev')")[0][2] > 0
    assert table.context.snapshots.latest_id() == 2


def test_writers_elsewhere_continue_while_a_partition_is_rescaled(
    lake_sql: Sql, lake_catalog: Catalog, lake: str
) -> None:
    """A stream with the new number writes to a new partition, one with the old number is told to open the table."""
    old = keyed(lake_catalog, lake)
    lake_sql("ALTER TABLE {db}.t SET TBLPROPERTIES ('bucket' = '4')")
    table = old.refresh()
    ending, errors = threading.Event(), []
    written = 0

    def write() -> None:
        nonlocal written
        try:
            while not ending.is_set() or written == 0:
                fill(table, days=("2026-02-01",), ids=range(written, written + 1))
                written += 1
        except Exception as e:  # noqa: BLE001 - the test raises it
            errors.append(e)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert lake_sql("CALL lake.sys.rescale('{db}.t', partitions => 'dt=2026-01-01;dt=2026-01-02')")[0][1] == 2
    finally:
        ending.set()
        writer.join()
    assert errors == []
    assert set().union(*buckets_of(table).values()) == {4}
    read = rows_of(table)
    assert len([row for row in read if str(row[1]) == "2026-02-01"]) == written
    assert len(read) == 40 + written
    with pytest.raises(InvalidRequest, match=r"dt=2026-01-01 was written with 4 buckets"):
        fill(old, days=DAYS[:1])
    assert data_files(table) == referenced(table)


def test_a_writer_that_rescaling_overtakes_is_refused_and_told_what_to_do(
    lake_sql: Sql, lake_catalog: Catalog, lake: str
) -> None:
    table = keyed(lake_catalog, lake)
    rows = rows_of(table)
    with table.new_write() as writer:
        writer.write([{"id": 1, "dt": rows[0][1], "v": 99}])
        messages = writer.prepare_commit()
    assert lake_sql("CALL lake.sys.rescale(table => '{db}.t', bucket_num => 4)") == [(True, 2, 4)]
    commit = table.new_commit()
    with pytest.raises(Conflict, match="bucket"):
        commit.commit(messages)
    commit.abort(messages)
    assert rows_of(table) == rows
    fill(table.refresh(), version=9)
    assert {row[2] for row in rows_of(table)} == {9}
    assert data_files(table) == referenced(table)


# ---- manifests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["compact_manifest", "rewrite_manifests"])
def test_manifests_are_merged(lake_sql: Sql, lake_catalog: Catalog, lake: str, name: str) -> None:
    table = appended(lake_catalog, lake)
    rows = rows_of(table)
    assert lake_sql(f"CALL lake.sys.{name}(table => '{lake}.t', dry_run => true)") == [(True, 3, None)]
    assert lake_sql(f"CALL lake.sys.{name}(table => '{lake}.t')") == [(True, 3, 1)]
    assert rows_of(table) == rows
