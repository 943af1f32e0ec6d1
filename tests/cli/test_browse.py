"""The commands that inspect a server: their arguments and output."""

from __future__ import annotations

import datetime as dt
import json
import re

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import UnsupportedOperation
from forebay.cli.main import main
from forebay.client.admin.admin import Admin

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("status", pa.string()),
        pa.field("amount", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)


@pytest.fixture
def shop(forebay_server):
    """A server with a primary-key table of three rows and a log table."""
    with forebay.connect(forebay_server.bootstrap_servers) as connection:
        connection.create_database("shop")
        connection.create_table(
            "shop.orders",
            ORDERS,
            primary_key=["id"],
            buckets=2,
            comment="what was bought",
            options={"a": "b"},
        )
        connection.create_table(
            "shop.visits",
            pa.schema(
                [pa.field("user", pa.int64(), False), pa.field("day", pa.date32(), False), ("page", pa.string())]
            ),
            primary_key=["user", "day"],
        )
        connection.create_table("shop.events", pa.schema([("n", pa.int32())]))
        connection.table("shop.orders").upsert(
            pa.table(
                {
                    "id": [1, 2, 3],
                    "status": ["new", "paid", "paid"],
                    "amount": pa.array(["10.50", "99.00", "1.25"]).cast(pa.decimal128(10, 2)),
                    "at": pa.array([1_769_860_800_000_000, None, None], pa.timestamp("us", "UTC")),
                }
            )
        )
        connection.table("shop.visits").upsert(
            pa.table({"user": [7, 7], "day": pa.array([20_000, 20_001], pa.date32()), "page": ["a", "b"]})
        )
        connection.table("shop.events").append(pa.table({"n": pa.array(range(5), pa.int32())}))
    return forebay_server.bootstrap_servers


def run(capsys, shop, *words):
    """Run a command against the shop; return (exit code, standard output, standard error)."""
    code = main([words[0], "-b", shop, *words[1:]])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_tables_lists_kinds_buckets_and_rows(capsys, shop):
    code, out, _ = run(capsys, shop, "tables", "shop")
    assert code == 0
    assert [line.split() for line in out.splitlines()[2:]] == [
        ["shop.events", "log", "1", "5"],
        ["shop.orders", "primary", "key", "2", "3", "what", "was", "bought"],
        ["shop.visits", "primary", "key", "1", "2"],
    ]


def test_tables_of_a_missing_database_names_it(capsys, shop):
    code, _, err = run(capsys, shop, "tables", "nowhere")
    assert code == 1
    assert "nowhere" in err


def test_where_there_are_no_tables_that_is_told(capsys, forebay_server):
    bootstrap = forebay_server.bootstrap_servers
    with forebay.connect(bootstrap) as connection:
        connection.create_database("bare")
    assert run(capsys, bootstrap, "tables", "bare")[1].splitlines()[-1] == "(no tables in database bare)"
    assert run(capsys, bootstrap, "tables")[1].splitlines()[-1] == "(no tables in bare, fluss)"


def test_describe_lists_partitions(capsys, shop):
    with forebay.connect(shop) as connection:
        schema = pa.schema([("n", pa.int32()), pa.field("day", pa.string(), False)])
        connection.create_table("shop.days", schema, partition_keys=["day"])
        assert run(capsys, shop, "describe", "shop.days")[1].splitlines()[-1].split() == ["partitions", "(none", "yet)"]
        for day in ("mon", "tue"):
            connection.table("shop.days").create_partition({"day": day})
    assert run(capsys, shop, "describe", "shop.days")[1].splitlines()[-1].split() == ["partitions", "mon,", "tue"]


def test_transactions_are_listed(capsys, shop):
    code, out, _ = run(capsys, shop, "transactions")
    assert (code, out.splitlines()[-1]) == (0, "(no transactions)")
    with forebay.connect(shop) as connection:
        table = connection.create_table("shop.loads", {"n": "BIGINT"}, ignore_if_exists=True)
        with connection.transaction("load", 3) as tx:
            tx.append(table, [{"n": 1}])
        connection.transaction("other", 8).begin()
    code, out, _ = run(capsys, shop, "transactions", "load")
    heading, _, *rows = out.splitlines()
    assert heading.split()[:3] == ["application", "version", "state"]
    assert [row.split()[:3] for row in rows] == [["load", "3", "committed"]]
    code, out, _ = run(capsys, shop, "transactions")
    assert "other" in out


def test_a_server_that_does_not_tell_its_health_is_shown_all_the_same(capsys, shop, monkeypatch):
    def refused(self):
        raise UnsupportedOperation("what is health?")

    monkeypatch.setattr(Admin, "cluster_health", refused)
    code, out, _ = run(capsys, shop, "status")
    assert code == 0
    assert "\nhealth: not reported by this server\n" in out
    assert "kv.engine" in out


@pytest.mark.parametrize(("zone", "minutes", "rows"), [(14, -5, 5), (-12, 5, 0), (None, -5, 5), (None, 5, 0)])
def test_tail_begins_at_a_time_which_is_that_of_utc_unless_it_says_otherwise(capsys, shop, zone, minutes, rows):
    zoned = dt.UTC if zone is None else dt.timezone(dt.timedelta(hours=zone))
    start = dt.datetime.now(zoned) + dt.timedelta(minutes=minutes)
    text = (start if zone is not None else start.replace(tzinfo=None)).isoformat()
    _, lines, _ = run(capsys, shop, "changes", "shop.events", "--from", text, "--no-follow", "-f", "json")
    assert len(lines.splitlines()) == rows


def test_describe_shows_columns_keys_and_options(capsys, shop):
    code, out, _ = run(capsys, shop, "describe", "shop.orders")
    assert code == 0
    squeezed = " ".join(out.split())
    for words in ("what was bought", "DECIMAL(10, 2)", "primary key id", "buckets 2", "property a b"):
        assert words in squeezed
    assert re.search(r"created 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC changed 20", squeezed)


def test_describe_shows_how_columns_are_merged_and_numbered(capsys, shop):
    with forebay.connect(shop) as connection:
        options = {"table.merge-engine": "aggregation", "fields.v.agg": "listagg", "fields.v.listagg.delimiter": "; "}
        columns = {"k": "INT", "n": "BIGINT", "v": "STRING"}
        connection.create_table("shop.sums", columns, primary_key="k", auto_increment="n", options=options)
    code, out, _ = run(capsys, shop, "describe", "shop.sums")
    assert code == 0
    for words in ("k INT NOT NULL primary key", "n BIGINT numbered", "v STRING merged by listagg(delimiter='; ')"):
        assert words in " ".join(out.split())
    with forebay.connect(shop) as connection:
        connection.drop_table("shop.sums")


def test_status_shows_servers_health_and_settings(capsys, shop):
    code, out, _ = run(capsys, shop, "status")
    assert code == 0
    assert shop in out
    assert "GREEN" in out
    assert "kv.engine" in out
    assert f"now: version {forebay.__version__}, started 20" in out
    assert ", table snapshots 0, transactions 0, memory " in out
    assert re.search(r", memory [\d.]+ [MG]iB, disk free [\d.]+ [MGT]iB", out)
    _, out, _ = run(capsys, shop, "status", "-o", "json")
    assert json.loads(out)["now"]["connections"] >= 1


def test_scan_prints_rows_in_every_format(capsys, shop):
    _, table, _ = run(capsys, shop, "scan", "shop.orders", "-c", "id,status", "--where", "id = 1")
    assert table.splitlines() == ["id  status", "--  ------", " 1  new", "(1 row)"]
    _, text, _ = run(
        capsys, shop, "scan", "shop.orders", "-f", "csv", "--where", "status = 'paid'", "--where", "amount > 2"
    )
    assert text == "id,status,amount,at\n2,paid,99.00,\n"
    _, lines, _ = run(capsys, shop, "scan", "shop.orders", "-f", "json", "--where", "id >= 1")
    rows = sorted((json.loads(line) for line in lines.splitlines()), key=lambda row: row["id"])
    assert rows[0] == {"id": 1, "status": "new", "amount": "10.50", "at": "2026-01-31 12:00:00+00:00"}


def test_scan_stops_at_the_limit(capsys, shop):
    _, lines, _ = run(capsys, shop, "scan", "shop.orders", "-f", "json", "-n", "2")
    assert len(lines.splitlines()) == 2


@pytest.mark.parametrize(
    ("condition", "named"), [("amount", "amount"), ("colour = red", "colour"), ("amount > dear", "dear")]
)
def test_a_bad_condition_is_named(capsys, shop, condition, named):
    code, out, err = run(capsys, shop, "scan", "shop.orders", "--where", condition)
    assert (code, out) == (1, "")
    assert named in err


def test_get_finds_rows_by_single_and_composite_keys(capsys, shop):
    code, lines, _ = run(capsys, shop, "get", "shop.orders", "3", "1", "-f", "json", "-c", "id,status")
    assert code == 0
    assert [json.loads(line) for line in lines.splitlines()] == [
        {"id": 3, "status": "paid"},
        {"id": 1, "status": "new"},
    ]
    code, lines, _ = run(capsys, shop, "get", "shop.visits", "user=7,day=2024-10-05", "-f", "json")
    assert [json.loads(line)["page"] for line in lines.splitlines()] == ["b"]


def test_get_tells_of_keys_that_have_no_row(capsys, shop):
    code, out, _ = run(capsys, shop, "get", "shop.orders", "3", "17")
    assert code == 1
    assert "(1 of 2 keys found)" in out


@pytest.mark.parametrize("key", ["7", "user=7", "user=7,colour=red", "user=x,day=2024-10-05"])
def test_get_explains_a_bad_key(capsys, shop, key):
    code, _, err = run(capsys, shop, "get", "shop.visits", key)
    assert code == 1
    assert "user" in err


def test_get_refuses_a_log_table(capsys, shop):
    code, _, err = run(capsys, shop, "get", "shop.events", "1")
    assert code == 1
    assert "log table" in err


def test_tail_prints_changes_in_order(capsys, shop):
    with forebay.connect(shop) as connection:
        connection.table("shop.orders").upsert(pa.table({"id": [1], "status": ["paid"]}), columns=["id", "status"])
        connection.table("shop.orders").delete(pa.table({"id": [1]}))
    _, lines, _ = run(
        capsys, shop, "changes", "shop.orders", "--from", "earliest", "--no-follow", "-f", "json", "--where", "id=1"
    )
    changes = [(row["_change_type"], row["status"]) for row in map(json.loads, lines.splitlines())]
    assert changes == [("insert", "new"), ("update_before", "new"), ("update_after", "paid"), ("delete", "paid")]


def test_tail_stops_at_the_limit(capsys, shop):
    _, lines, _ = run(capsys, shop, "changes", "shop.events", "--from", "earliest", "-n", "2", "-f", "json")
    assert [json.loads(line)["n"] for line in lines.splitlines()] == [0, 1]


def test_tail_explains_a_bad_start(capsys, shop):
    code, _, err = run(capsys, shop, "changes", "shop.events", "--from", "yesterday")
    assert code == 1
    assert "yesterday" in err


def test_no_server_is_a_message_not_a_traceback(capsys):
    code = main(["status", "-b", "127.0.0.1:1"])
    assert code == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
