"""One vocabulary: the same calls on a live table and a lake table have the same results."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import forebay
import forebay.paimon
from forebay.base.errors import AlreadyExists, ForebayError, InvalidRequest, NotFound, UnsupportedOperation

SCHEMA = [("id", "BIGINT"), ("name", "STRING"), ("amount", "DOUBLE")]
ROWS = [{"id": i, "name": f"n{i}", "amount": i / 2} for i in range(5)]


@pytest.fixture(params=["live", "lake"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A connection or a catalog, with database `shop`."""
    if request.param == "live":
        with forebay.embedded(tmp_path / "data") as conn:
            conn.create_database("shop")
            yield conn
    else:
        catalog = forebay.paimon.Catalog.open(str(tmp_path / "lake"))
        catalog.create_database("shop")
        yield catalog


@pytest.fixture
def keyed(place: Any) -> Any:
    """A table with a primary key, and five rows."""
    table = place.create_table("shop.keyed", SCHEMA, primary_key="id", buckets=1)
    table.upsert(ROWS)
    return table


@pytest.fixture
def plain(place: Any) -> Any:
    """A table without a primary key, and five rows."""
    table = place.create_table("shop.plain", SCHEMA, buckets=1, bucket_keys=["id"])
    table.append(ROWS)
    return table


def sorted_rows(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by("id").to_pylist()


# ---- databases and tables -------------------------------------------------------------------------------------------


def test_databases_and_tables_are_made_listed_and_dropped(place: Any) -> None:
    place.create_database("shop", ignore_if_exists=True)
    with pytest.raises(AlreadyExists):
        place.create_database("shop")
    made = place.create_table("shop.a", {"id": "BIGINT", "v": pa.string()}, primary_key=["id"], buckets=1)
    again = place.create_table("shop.a", {"id": "BIGINT"}, ignore_if_exists=True)
    assert made.arrow_schema.names == again.arrow_schema.names == ["id", "v"]
    with pytest.raises(AlreadyExists):
        place.create_table("shop.a", SCHEMA)
    assert place.list_tables("shop") == ["a"]
    assert (place.table_exists("shop.a"), place.table_exists("shop.b")) == (True, False)
    assert (place.database_exists("shop"), place.database_exists("nope")) == (True, False)
    place.drop_table("shop.a")
    place.drop_table("shop.a", ignore_if_not_exists=True)
    with pytest.raises(NotFound):
        place.drop_table("shop.a")
    place.drop_database("shop")
    assert "shop" not in place.list_databases()


@pytest.mark.parametrize(
    ("mistake", "kind", "says"),
    [
        (lambda p: p.table("shop.none"), NotFound, "none"),
        (lambda p: p.list_tables("none"), NotFound, "none"),
        (lambda p: p.create_table("none.t", SCHEMA), NotFound, "none"),
        (lambda p: p.create_table("shop.t", {"id": int}), InvalidRequest, "column 'id': int is not a data type"),
        (lambda p: p.create_table("shop.t", [("id", "BIGNIT")]), InvalidRequest, "did you mean 'BIGINT'"),
        (lambda p: p.create_table("shop.t", SCHEMA, primary_key="nope"), InvalidRequest, "nope"),
        (lambda p: p.create_table("shop.t", SCHEMA, partition_keys=["nope"]), InvalidRequest, "nope"),
        (lambda p: p.create_table("shop.t", []), InvalidRequest, "at least one column"),
        (lambda p: p.create_table("shop.t", SCHEMA, buckets=0), InvalidRequest, "bucket"),
        (lambda p: p.drop_database("none"), NotFound, "none"),
    ],
    ids=range(10),
)  # fmt: skip
def test_the_same_mistake_with_names_and_schemas_is_the_same_error(
    place: Any, mistake: Callable[[Any], Any], kind: type[ForebayError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        mistake(place)


def test_a_table_is_made_from_a_data_frame(place: Any) -> None:
    frame = pd.DataFrame({"id": [1, 2], "name": ["a", None]})
    table = place.create_table("shop.t", frame, primary_key="id", buckets=1)
    table.upsert(frame)
    assert sorted_rows(table.scan().to_arrow()) == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


def test_the_named_index_of_a_data_frame_is_a_column_everywhere(place: Any) -> None:
    frame = pd.DataFrame({"name": ["a", "b"]}, index=pd.Index([7, 8], name="id"))
    table = place.create_table("shop.t", frame, primary_key="id", buckets=1)
    table.upsert(frame)
    both = [{"id": 7, "name": "a"}, {"id": 8, "name": "b"}]
    assert sorted_rows(table.scan().to_arrow()) == both
    assert table.lookup(frame.drop(columns="name")).to_pylist() == both
    table.write_changes(frame.assign(name=["c", "d"], _change_type=["update_after", "delete"]))
    assert table.scan().to_arrow().to_pylist() == [{"id": 7, "name": "c"}]
    with table.lookup_table() as rows:
        assert rows.join(frame.rename(columns={"name": "old"})).to_pylist() == [
            {"id": 7, "old": "a", "name": "c"},
            {"id": 8, "old": "b", "name": None},
        ]
    table.delete(frame.iloc[:1].drop(columns="name"))
    assert table.scan().count() == 0
    log = place.create_table("shop.log", frame, buckets=1, bucket_keys=["id"])
    log.append(frame)
    assert sorted_rows(log.scan().to_arrow()) == both
    with pytest.raises(InvalidRequest, match=r"index of the DataFrame is named 'n'.*reset_index\(drop=True\)"):
        log.append(frame.rename_axis("n"))


def test_times_that_rows_and_lakes_cannot_hold_are_refused_before_they_are_written(place: Any) -> None:
    """With a key and without one: they were cut to milliseconds, or written and then blocked tiering."""
    columns = [("id", "BIGINT"), ("clock", "TIME(6)")]
    keyed = place.create_table("shop.keyed", columns, primary_key="id", buckets=1)
    plain = place.create_table("shop.plain", columns, buckets=1, bucket_keys=["id"])
    night = pa.table({"id": [1], "clock": pa.array([86_400_000_000]).cast(pa.time64("us"))})
    for write, scan in ((keyed.upsert, keyed.scan), (plain.append, plain.scan)):
        for data in ([{"id": 1, "clock": dt.time(0, 0, 0, 1)}], night):
            with pytest.raises(InvalidRequest, match=r"column 'clock', row 0: .* does not fit TIME.6"):
                write(data)
        write([{"id": 1, "clock": dt.time(23, 59, 59, 999_000)}])
        assert scan().to_arrow().to_pylist() == [{"id": 1, "clock": dt.time(23, 59, 59, 999_000)}]


def test_categories_of_polars_are_written_and_looked_up(place: Any) -> None:
    schema = {"kind": pl.Enum(["a", "b"]), "tags": pl.List(pl.Categorical)}
    frame = pl.DataFrame({"kind": ["a", "b"], "tags": [["x"], None]}, schema=schema)
    table = place.create_table("shop.t", frame, primary_key="kind", buckets=1)
    table.upsert(frame)
    assert table.scan().to_arrow().sort_by("kind").to_pylist() == frame.to_dicts()
    for keys in (frame.select("kind"), frame["kind"], frame["kind"].cast(pl.String), frame["kind"].to_arrow()):
        assert table.lookup(keys, missing="error").to_pylist() == frame.to_dicts()
    left = frame.select("kind", text=pl.lit("t"))
    with table.lookup_table() as rows:
        for how in ("left", "inner"):
            assert [row["tags"] for row in rows.join(left, how=how).to_pylist()] == [["x"], None]
    table.write_changes(left.select("kind", _change_type=pl.lit("delete").cast(pl.Categorical)))
    assert table.scan().count() == 0


def test_columns_are_added_and_options_set(place: Any, keyed: Any) -> None:
    changed = keyed.alter(add_columns={"note": "STRING"})
    assert changed.arrow_schema.names == ["id", "name", "amount", "note"]
    assert keyed.arrow_schema.names == ["id", "name", "amount"]
    assert keyed.refresh().arrow_schema.names == changed.arrow_schema.names
    assert sorted_rows(changed.scan().to_arrow())[0] == {**ROWS[0], "note": None}
    changed.alter(set={"comment-of-ours": "x"}) if isinstance(place, forebay.Connection) else changed.alter(comment="x")


# ---- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["keyed", "plain"])
def test_rows_are_read_into_whatever_is_requested(place: Any, kind: str, request: pytest.FixtureRequest) -> None:
    table = request.getfixturevalue(kind)
    scan = table.scan()
    assert sorted_rows(scan.to_arrow()) == sorted_rows(scan.to_arrow()) == ROWS
    assert sorted_rows(pa.Table.from_batches(scan)) == ROWS
    assert sorted_rows(pa.table(table)) == ROWS
    assert scan.to_pandas().sort_values("id")["name"].tolist() == [row["name"] for row in ROWS]
    assert scan.to_duckdb().aggregate("sum(amount)").fetchall() == [(5.0,)]
    assert duckdb.from_arrow(table).count("*").fetchall() == [(5,)]
    assert (scan.count(), table.scan(limit=3).count(), scan.head(2).num_rows) == (5, 3, 2)
    assert table.scan(["name"]).schema.names == ["name"]
    assert table.scan(limit=0).to_arrow().num_rows == 0
    with scan.reader() as reader:
        assert sorted_rows(reader.read_all()) == ROWS
    parts = [scan.read_split(split).read_all() for split in scan.plan()]
    assert sorted_rows(pa.concat_tables(parts)) == ROWS
    assert scan.explain()
    with pytest.raises(InvalidRequest, match="to_pandas"):
        np.asarray(table)
    with pytest.raises(ValueError, match=r"DataFrame constructor|to_pandas"):
        pd.DataFrame(table)


@pytest.mark.parametrize(
    "given",
    [
        (forebay.col("id") >= 2) & (forebay.col("name") != "n4"),
        "id >= 2 AND name <> 'n4'",
        (pc.field("id") >= 2) & (pc.field("name") != "n4"),
    ],
    ids=["col", "sql", "pyarrow"],
)
@pytest.mark.parametrize("kind", ["keyed", "plain"])
def test_a_filter_may_be_written_in_three_ways(
    place: Any, kind: str, given: Any, request: pytest.FixtureRequest
) -> None:
    table = request.getfixturevalue(kind)
    assert sorted_rows(table.scan(filter=given).to_arrow()) == ROWS[2:4]
    assert table.scan(filter=given).count() == 2


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda t: t.scan(["nmae"]).to_arrow(), "nmae"),
        (lambda t: t.scan("name"), "list of names"),
        (lambda t: t.scan(filter="nmae = 1").to_arrow(), "nmae"),
        (lambda t: t.scan(filter="id >").to_arrow(), "is not SQL"),
        (lambda t: t.scan(filter=5).to_arrow(), "is not a filter"),
        (lambda t: t.scan(limit=-1), "limit=-1"),
        (lambda t: t.scan(limit="3"), "limit='3'"),
        (lambda t: t.changes(start="yesterday"), "yesterday"),
        (lambda t: t.changes(stop=1_700_000_000_000), "1700000000000"),
        (lambda t: t.append([{"id": "x"}]), "id"),
    ],
    ids=range(10),
)  # fmt: skip
def test_the_same_mistake_with_rows_is_the_same_error(plain: Any, mistake: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        mistake(plain)


# ---- writes ---------------------------------------------------------------------------------------------------------


def test_writes_say_what_they_did(keyed: Any, plain: Any) -> None:
    assert keyed.upsert([{"id": 1, "name": "new", "amount": None}]).rows == 1
    assert keyed.delete([0]).rows == 1
    assert keyed.delete(pa.table({"id": [2]})).rows == 1
    assert [row["name"] for row in sorted_rows(keyed.scan().to_arrow())] == ["new", "n3", "n4"]
    assert plain.append(pa.Table.from_pylist(ROWS)).rows == 5
    assert plain.scan().count() == 10


def test_a_write_that_a_table_does_not_take_names_the_one_that_it_does(keyed: Any, plain: Any) -> None:
    with pytest.raises(InvalidRequest, match="upsert"):
        keyed.append(ROWS)
    with pytest.raises(InvalidRequest, match="append"):
        plain.upsert(ROWS)
    with pytest.raises(InvalidRequest, match="primary key"):
        plain.delete([1])


# ---- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [[3, 9, 1], [(3,), (9,), (1,)], [{"id": 3}, {"id": 9}, {"id": 1}], pa.table({"id": [3, 9, 1]}), np.array([3, 9, 1]),
     pd.DataFrame({"id": [3, 9, 1]})],
    ids=["values", "tuples", "dicts", "arrow", "numpy", "pandas"],
)  # fmt: skip
def test_a_lookup_has_one_row_for_each_key_in_order(keyed: Any, keys: Any) -> None:
    assert keyed.lookup(keys)["name"].to_pylist() == ["n3", None, "n1"]
    assert keyed.lookup(keys, ["amount"], missing="drop").to_pylist() == [{"amount": 1.5}, {"amount": 0.5}]
    with pytest.raises(NotFound, match="9"):
        keyed.lookup(keys, missing="error")


def test_a_lookup_of_what_is_no_key_is_refused(keyed: Any, plain: Any) -> None:
    with pytest.raises(InvalidRequest, match="missing="):
        keyed.lookup([1], missing="maybe")
    with pytest.raises(InvalidRequest, match="id"):
        keyed.lookup([{"name": "n1"}])
    with pytest.raises(InvalidRequest, match="primary key"):
        plain.lookup([1])


def test_rows_that_lack_a_column_are_refused_unless_they_say_null(keyed: Any) -> None:
    keyed.upsert([{"id": 1, "name": "cup", "amount": 1.5}])
    with pytest.raises(InvalidRequest, match=r"lacks 'name', 'amount'.*missing='null'"):
        keyed.upsert([{"id": 1}])
    with pytest.raises(InvalidRequest, match=r"lacks 'amount'"):
        keyed.upsert(pa.table({"id": [1], "name": ["tin"]}))
    assert keyed.lookup([1], ["amount"]).to_pylist() == [{"amount": 1.5}]
    keyed.upsert([{"id": 1, "name": "tin"}], missing="null")
    assert keyed.lookup([1], ["name", "amount"]).to_pylist() == [{"name": "tin", "amount": None}]
    with pytest.raises(InvalidRequest, match="missing='maybe'"):
        keyed.upsert([{"id": 1}], missing="maybe")


def test_rows_are_joined_by_key(keyed: Any) -> None:
    orders = pa.table({"customer": [3, 9], "n": [1, 2]})
    with keyed.lookup_table(["name"]) as customers:
        assert customers.lookup([3])["name"].to_pylist() == ["n3"]
        joined = customers.join(orders, on=["customer"])
        assert joined.select(["customer", "n", "name"]).to_pylist() == [
            {"customer": 3, "n": 1, "name": "n3"},
            {"customer": 9, "n": 2, "name": None},
        ]
        keyed.upsert([{"id": 9, "name": "nine", "amount": 0.0}])
        customers.refresh()
        assert customers.join(orders, on=["customer"], how="inner").num_rows == 2


# ---- changes --------------------------------------------------------------------------------------------------------


def test_changes_come_in_order_and_continue_from_a_position(plain: Any) -> None:
    with plain.changes(stop="latest") as changes:
        first = changes.to_arrow()
        position = changes.position
    assert first["_change_type"].cast(pa.string()).to_pylist() == ["insert"] * 5
    assert sorted_rows(first.select(["id", "name", "amount"])) == ROWS
    plain.append([{"id": 7, "name": "later", "amount": 1.0}])
    with plain.changes(position, "latest", columns=["id"], include=["change_type"]) as changes:
        assert changes.to_arrow().column_names == ["_change_type", "id"]
    with plain.changes(position, "latest") as changes:
        assert changes.to_arrow()["id"].to_pylist() == [7]


def test_changes_of_a_keyed_table_end_in_its_rows(place: Any, keyed: Any) -> None:
    keyed.upsert([{"id": 1, "name": "new", "amount": 9.0}])
    keyed.delete([2])
    with keyed.changes(stop="latest") as changes:
        rows: dict[int, Any] = {}
        for change in changes.to_arrow().to_pylist():
            kind = change["_change_type"]
            if kind in ("insert", "update_after"):
                rows[change["id"]] = change["name"]
            elif kind == "delete":
                del rows[change["id"]]
            else:
                assert kind == "update_before"
    assert rows == {0: "n0", 1: "new", 3: "n3", 4: "n4"}


def test_changes_can_begin_with_the_current_rows(keyed: Any) -> None:
    keyed.upsert([{"id": 1, "name": "new", "amount": 9.0}])
    keyed.delete([2])
    with keyed.changes("full", "latest") as changes:
        rows = changes.to_arrow()
    assert set(rows["_change_type"].cast(pa.string()).to_pylist()) == {"insert"}
    assert sorted(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True)) == [
        (0, "n0"),
        (1, "new"),
        (3, "n3"),
        (4, "n4"),
    ]


def test_changes_without_an_end_are_not_taken_as_a_whole(plain: Any) -> None:
    with plain.changes() as changes:
        with pytest.raises(InvalidRequest, match="stop"):
            changes.to_arrow()
        with pytest.raises(InvalidRequest, match="stop"):
            pa.table(changes)


def test_a_time_is_a_datetime_or_its_text(plain: Any) -> None:
    time.sleep(0.01)
    later = dt.datetime.now(dt.UTC)
    for start in (later, later.isoformat()):
        with plain.changes(start, "latest") as changes:
            assert changes.to_arrow().num_rows == 0


# ---- what one side cannot do ----------------------------------------------------------------------------------------


def test_what_only_the_other_side_can_is_refused_by_name(place: Any, keyed: Any) -> None:
    if isinstance(place, forebay.Connection):
        with pytest.raises(UnsupportedOperation, match="rename"):
            place.rename_table("shop.keyed", "shop.other")
        with pytest.raises(NotFound, match="has no commit 3"):  # a lake would have snapshots
            keyed.scan(as_of=3).to_arrow()
        with pytest.raises(InvalidRequest, match=r"its log holds changes, not rows. Use source='live'"):
            keyed.scan(source="log")
    else:
        with pytest.raises(UnsupportedOperation, match="partition"):
            keyed.create_partition({"day": "x"})
        with pytest.raises((UnsupportedOperation, InvalidRequest), match="live"):
            keyed.scan(source="live")


LAKE_ONLY = {"analyze", "branches", "compact", "context", "create_branch", "create_tag", "delete_branch", "delete_tag",
             "expire_partitions", "expire_snapshots", "fast_forward", "maintenance", "name", "new_commit", "new_write",
             "on_branch", "overwrite", "plan_compaction", "remove_orphan_files", "rename_branch", "rescale",
             "rollback_to", "run_compaction", "split_reader", "stream_writer",
             "system", "with_options"}  # fmt: skip


def test_users_see_what_they_need_and_no_more(place: Any, keyed: Any) -> None:
    shared = {"append", "alter", "arrow_schema", "changes", "create_partition", "delete", "drop_partition",
              "has_primary_key", "lookup", "lookup_table", "partitions", "refresh", "scan", "schema",
              "to_duckdb", "upsert", "write_changes"}  # fmt: skip
    public = {name for name in dir(keyed) if not name.startswith("_")}
    assert shared <= public
    if isinstance(place, forebay.paimon.Catalog):
        assert public - shared == LAKE_ONLY
        page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
        assert {name for name in public if not re.search(rf"\b{name}\b", page)} == set()


def test_completion_leaves_out_what_only_forebay_itself_uses(tmp_path: Path) -> None:
    with forebay.embedded(tmp_path / "data") as conn:
        table = conn.create_table("fluss.shown", [("id", "BIGINT")], primary_key="id")
        with table.changes() as changes, table.snapshot() as snapshot, table.writer() as writer:
            shown = {type(each).__name__: {n for n in dir(each) if not n.startswith("_")}
                     for each in (conn, changes, snapshot, writer)}  # fmt: skip
    assert shown["EmbeddedConnection"] == {
        "admin", "bootstrap_servers", "close", "closed", "create_database", "create_table", "database_exists",
        "drop_database", "drop_table", "list_databases", "list_tables", "metrics", "rename_table", "restore", "server",
        "sql", "table", "table_exists", "transaction",
    }  # fmt: skip
    assert shown["LogReader"] == {"close", "finished", "poll", "position", "reader", "schema", "to_arrow", "to_pandas"}
    assert shown["TableSnapshot"] >= {"buckets", "keep", "log_offsets", "release", "renew", "row_counts", "scan"}
    assert not shown["TableSnapshot"] & {"bucket_scan", "on", "raw_id"}
    assert shown["TableWriter"] == {"append", "buffered_rows", "close", "closed", "delete", "flush", "upsert",
                                    "write_changes"}  # fmt: skip
    assert set(forebay.__all__) <= set(dir(forebay))


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's zone is 14 hours east of UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        yield
    time.tzset()


def test_times_without_a_zone_are_in_utc_wherever_they_are_written(far_from_utc: None, place: Any) -> None:
    def sql(statement: str) -> Any:
        is_lake = isinstance(place, forebay.paimon.Catalog)
        return forebay.sql(statement, warehouse=place) if is_lake else forebay.sql(statement, place)

    columns = [("id", "BIGINT"), ("seen", "TIMESTAMP_LTZ(3)")]
    table = place.create_table("shop.times", columns, buckets=1, bucket_keys=["id"])
    before = dt.datetime.now(dt.UTC)
    time.sleep(0.01)
    noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    table.append([{"id": 1, "seen": noon}])
    time.sleep(0.01)
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    for value in ("'2026-01-31 12:00:00'", "TIMESTAMP '2026-01-31 12:00:00'"):
        assert table.scan(filter=f"seen = {value}").count() == 1, value
        counted = sql("SELECT count(*) AS n FROM shop.times WHERE seen = " + value)
        assert counted.to_arrow()["n"].to_pylist() == [1], value
    for moment in (now, now.isoformat(" ")):
        assert table.scan(as_of=moment).count() == 1, moment
        with table.changes(start=moment, stop="latest") as changes:
            assert sum(batch.num_rows for batch in changes) == 0, moment
    text = before.replace(tzinfo=None).isoformat(" ")
    with table.changes(start=text, stop="latest") as changes:
        assert sum(batch.num_rows for batch in changes) == 1
    at = f"AT (TIMESTAMP => TIMESTAMP '{now}')"
    assert sql(f"SELECT count(*) AS n FROM shop.times {at}").to_arrow()["n"].to_pylist() == [1]
    assert "12:00" in str(sql("SELECT CAST(seen AS VARCHAR) AS t FROM shop.times").to_arrow()["t"][0])
