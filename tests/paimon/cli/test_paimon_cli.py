"""`forebay paimon`: its arguments and output."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.cli.main import main
from forebay.paimon.table import Table
from tests.paimon.lake import live_files, new_catalog, put, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("amount", pa.decimal128(10, 2))])


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    """A primary-key table of three snapshots in two partitions."""
    table = new_catalog(tmp_path).create_table(
        "db.orders",
        COLUMNS,
        primary_key=["day", "id"],
        partition_keys=["day"],
        options={"bucket": "1", "write-only": "true", "num-sorted-run.compaction-trigger": "2"},
        comment="what was bought",
    )
    for i in range(3):
        put(table, [{"id": i, "day": "mon", "amount": Decimal("1.50")}, {"id": 10, "day": "tue", "amount": Decimal(i)}])
    return table


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command line against the warehouse; its exit code, output and errors."""
    monkeypatch.setenv("FOREBAY_PAIMON_WAREHOUSE", str(tmp_path / "lake"))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["paimon", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_describe_shows_columns_keys_options_and_size(orders: Table, typed) -> None:
    code, out, _ = typed("describe", "db.orders")
    assert code == 0
    assert out.startswith("db.orders  (primary-key table, schema 0)\n  what was bought\n")
    for line in (
        "primary key     day, id",
        "partitioned by  day",
        "holds           6 records, before merging",
        "option bucket   1",
    ):
        assert any(" ".join(line.split()) == " ".join(printed.split()) for printed in out.splitlines()), line
    assert "3, APPEND at 20" in out
    assert "files" in out
    assert "2 buckets of 2 partitions" in out


def test_describe_of_a_table_without_rows_says_so(tmp_path: Path, typed) -> None:
    new_catalog(tmp_path).create_table("db.empty", COLUMNS)
    assert "nothing was written yet" in typed("describe", "db.empty")[1]
    assert "nothing was written yet" in typed("snapshots", "db.empty")[1]


def test_read_prints_rows_as_they_are_and_as_they_were(orders: Table, typed) -> None:
    code, out, _ = typed("scan", "db.orders", "-c", "id,amount", "--where", "day = 'tue'", "-f", "json")
    assert (code, [json.loads(line) for line in out.splitlines()]) == (0, [{"id": 10, "amount": "2.00"}])
    assert typed("scan", "db.orders", "--snapshot", "1", "-f", "csv")[1].count("\n") == 3
    assert typed("scan", orders.context.paths.root, "--where", "amount >= 1.75", "-f", "csv")[1].count("\n") == 2
    assert typed("scan", "db.orders", "-n", "1")[1].endswith("(1 row)\n")
    assert typed("scan", "db.orders", "-n", "0")[1].endswith("(0 rows)\n")


def test_read_takes_tags_times_and_options_of_the_table(orders: Table, typed) -> None:
    first = orders.context.snapshots.snapshot(1)
    orders.context.tags.create("t1", first)
    assert typed("scan", "db.orders", "--tag", "t1", "-f", "csv")[1].count("\n") == 3
    assert typed("scan", "db.orders", "--at", "2999-01-01T00:00", "-f", "csv")[1].count("\n") == 5
    assert typed("scan", "db.orders", "--set", "scan.snapshot-id=1", "-f", "csv")[1].count("\n") == 3
    code, _, err = typed("scan", "db.orders", "--at", "2001-01-01")
    assert (code, "no snapshot as old as" in err) == (1, True)


def test_system_tables_and_branches_are_read_by_their_names(orders: Table, typed) -> None:
    code, out, _ = typed("scan", "db.orders$options", "-f", "csv")
    assert (code, "bucket,1" in out) == (0, True)
    assert typed("scan", orders.context.paths.root + "$snapshots", "-c", "snapshot_id", "-n", "2", "-f", "csv")[1] == (
        "snapshot_id\n1\n2\n"
    )
    code, _, err = typed("scan", "db.orders$nonsense")
    assert (code, "no system table 'nonsense'" in err) == (1, True)


def test_snapshots_are_listed_oldest_first_down_to_a_limit(orders: Table, typed) -> None:
    _, out, _ = typed("snapshots", "db.orders", "-n", "2", "-f", "json")
    assert [(row["id"], row["kind"]) for row in map(json.loads, out.splitlines())] == [(2, "APPEND"), (3, "APPEND")]


def test_compact_does_what_is_due_or_everything_of_some_partitions(orders: Table, typed) -> None:
    before = rows_of(orders)
    code, out, _ = typed("compact", "db.orders", "--full", "-p", "day=mon")
    assert (code, out) == (0, "compacted 3 files of db.orders into 1: snapshot 4\n")
    assert typed("compact", "db.orders")[1] == "compacted 3 files of db.orders into 1: snapshot 5\n"
    assert typed("compact", "db.orders")[1] == "nothing to compact in db.orders; --full compacts everything\n"
    assert (len(live_files(orders)), rows_of(orders)) == (2, before)
    code, _, err = typed("compact", "db.orders", "-p", "week=1")
    assert (code, "partitioned by day, not by week" in err) == (1, True)


def test_expire_keeps_as_many_snapshots_as_are_requested(orders: Table, typed) -> None:
    code, out, _ = typed("expire", "db.orders", "--retain-max", "1", "--retain-min", "1", "--older-than", "0 s")
    assert (code, out) == (0, "expired 2 snapshots of db.orders; 3 to 3 are left\n")
    assert typed("expire", "db.orders")[1].startswith("expired 0 snapshots")


def test_rescale_rewrites_the_partitions_that_are_requested(orders: Table, typed) -> None:
    before = rows_of(orders)
    assert typed("rescale", "db.orders", "2", "-p", "day=mon") == (
        0, "db.orders has 2 buckets; rewritten: 1 partition\n", ""
    )  # fmt: skip
    assert typed("rescale", "db.orders", "2")[1] == "db.orders has 2 buckets; rewritten: 1 partition\n"
    assert rows_of(orders.refresh()) == before
    assert {e.total_buckets for e in orders.context.manifests.live_files(orders.context.snapshots.latest())} == {2}
    assert typed("rescale", "db.orders", "2")[1] == "db.orders has 2 buckets; rewritten: 0 partitions\n"


def test_orphans_are_listed_and_deleted_only_when_asked(orders: Table, typed) -> None:
    orphan = Path(orders.context.paths.root) / "day=mon/bucket-0/data-00000000-0000-0000-0000-000000000000-0.parquet"
    orphan.write_bytes(b"x" * 2048)
    os.utime(orphan, (1, 1))
    code, out, _ = typed("orphans", "db.orders")
    assert (code, out) == (0, f"{orphan}\nfound 1 file of 2.0 KiB that nothing refers to; --delete deletes them\n")
    assert orphan.exists()
    assert typed("orphans", "db.orders", "--delete", "--older-than", "2 d")[1].splitlines()[-1].startswith("deleted 1")
    assert not orphan.exists()
    assert typed("orphans", "db.orders")[1] == "found 0 files of 0 B that nothing refers to\n"


def test_catalogs_are_chosen_by_their_options(tmp_path: Path, orders: Table, typed) -> None:
    jdbc = ("-o", "metastore=jdbc", "-o", f"uri=jdbc:sqlite:{tmp_path}/catalog.db")
    code, _, err = typed("describe", "db.orders", *jdbc)
    assert (code, "no table 'db.orders' in SQLite" in err) == (1, True)
    code, _, err = typed("describe", "db.orders", "-o", "metastore=hive")
    assert (code, "a Hive catalog needs option 'uri'" in err) == (1, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["scan", "db.none"], "there is no table 'db.none'"),
        (["scan", "/no/such/table"], "no Paimon table at /no/such/table"),
        (["scan", "db.orders", "-c", "nonsense"], "no column 'nonsense'"),
        (["scan", "db.orders", "--where", "id >"], "is not SQL"),
        (["scan", "db.orders", "--where", "id = 'x'"], "column 'id' is BIGINT"),
        (["scan", "db.orders", "--at", "noon"], "is not a time"),
        (["scan", "db.orders$files", "--where", "a = 1"], "does not work on system tables"),
        (["expire", "db.orders", "--older-than", "soon"], "is not a duration"),
        (["describe", "db.orders", "--option", "nonsense"], "is not KEY=VALUE"),
        (["rescale", "db.orders", "0"], "to a positive number"),
        (["scan", "db.orders", "-c", "amuont"], "did you mean 'amount'?"),
        (["scan", "db.orders", "--set", "scan.snapshotid=1"], "did you mean 'scan.snapshot-id'?"),
        (["expire", "db.orders", "--retain-max", "0"], "retain_max must be at least 1"),
        (["expire", "db.orders", "--partitions"], "'partition.expiration-time' is not set"),
        (["compact", "db.orders", "--order-by", "id"], "only append tables"),
    ],
)
def test_mistakes_are_told_in_one_line(orders: Table, typed, words: list[str], says: str) -> None:
    code, _, err = typed(*words)
    assert (code, says in err, err.count("\n")) == (1, True, 1), err


def test_without_a_catalog_the_user_is_told_how_to_name_one(monkeypatch: pytest.MonkeyPatch, typed) -> None:
    monkeypatch.delenv("FOREBAY_PAIMON_WAREHOUSE")
    code, _, err = typed("describe", "db.orders")
    assert (code, "in which catalog" in err) == (1, True)


def test_each_action_says_in_json_what_it_found_or_did(orders: Table, typed) -> None:
    def told(*words: str) -> dict[str, object]:
        code, out, err = typed(*words, "--json")
        assert (code, err, out.count("\n")) == (0, "", 1)
        return json.loads(out)

    described = told("describe", "db.orders")
    assert (described["primary_key"], described["records"], described["snapshot"]) == (["day", "id"], 6, 3)
    assert described["columns"][2] == {"name": "amount", "type": "DECIMAL(10, 2)", "comment": None}  # type: ignore[index]
    assert told("describe") == {"tables": ["db.orders"]}
    assert told("compact", "db.orders", "--full") == {"snapshot": 4, "files_before": 6, "files_after": 2}
    assert told("compact", "db.orders") == {"snapshot": None, "files_before": 0, "files_after": 0}
    expired = told("expire", "db.orders", "--retain-min", "1", "--retain-max", "1", "--older-than", "0 s")
    assert (expired["snapshots"], expired["data_files"], expired["left"]) == (3, 6, [4, 4])
    assert told("rescale", "db.orders", "2") == {"buckets": 2, "rewritten": 2}
    assert told("orphans", "db.orders") == {"files": [], "bytes": 0, "deleted": False}
    assert typed("scan", "db.orders", "-c", "id", "--where", "day = 'tue'", "--json")[1] == '{"id": 10}\n'


def test_expire_takes_partitions_and_tags_along(orders: Table, typed) -> None:
    orders.create_tag("short", 1, retain=0 / 1000)
    told = json.loads(typed("expire", "db.orders", "--json")[1])
    assert (told["tags"], told["partitions"]) == (["short"], [])
    settings = ("--set", "partition.expiration-strategy=update-time")
    code, out, _ = typed("expire", "db.orders", "--partitions", "0 s", *settings)
    assert (code, out.splitlines()[1]) == (0, "expired 2 partitions")
    assert rows_of(orders) == []


def test_describe_without_a_table_lists_what_there_is(orders: Table, typed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed("describe") == (0, "db.orders\n", "")
    monkeypatch.delenv("FOREBAY_PAIMON_WAREHOUSE")
    assert "say -w WAREHOUSE to list all" in typed("describe")[2]


@pytest.mark.parametrize("action", ["describe", "scan", "snapshots", "compact", "expire", "rescale", "orphans"])
def test_the_help_of_each_action_has_an_example(capsys: pytest.CaptureFixture[str], action: str) -> None:
    with pytest.raises(SystemExit):
        main(["paimon", action, "--help"])
    assert f"  forebay paimon {action} -w /lake " in capsys.readouterr().out


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["paimon", "--help"])
    assert "forebay paimon compact -w /lake sales.orders --full" in capsys.readouterr().out
