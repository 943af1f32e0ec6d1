"""Lookups by key and by prefix."""

from __future__ import annotations

import datetime as dt
import random
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas
import pyarrow as pa
import pytest

from forebay.base.errors import ErrorCode, InvalidRequest, LimitExceeded, NotFound, UnsupportedOperation
from forebay.client.connection import Connection, connect
from forebay.client.lookups.lookup import PREFIX_COLUMN, Lookup
from forebay.client.lookups.lookup_cache import CachedLookup
from forebay.server.embedded import EmbeddedServer
from tests.client.conftest import MakeTable, own_server


@pytest.mark.parametrize("buckets", [1, 4])
def test_a_lookup_has_one_row_for_each_key_in_order(make_table: MakeTable, buckets: int) -> None:
    table = make_table({"id": pa.int64(), "v": pa.string()}, primary_key=["id"], buckets=buckets)
    table.upsert(pa.table({"id": np.arange(1000), "v": [f"v{i}" for i in range(1000)]}))
    keys = [7, 5000, 999, 7, -1, 0]
    found = table.lookup(keys)
    assert found.to_pylist() == [
        {"id": 7, "v": "v7"},
        {"id": None, "v": None},
        {"id": 999, "v": "v999"},
        {"id": 7, "v": "v7"},
        {"id": None, "v": None},
        {"id": 0, "v": "v0"},
    ]
    assert table.lookup(keys, missing="drop")["id"].to_pylist() == [7, 999, 7, 0]
    with pytest.raises(NotFound, match=r"no row for 2 of 6 keys; the first is key 1: \{'id': 5000\}"):
        table.lookup(keys, missing="error")
    with pytest.raises(InvalidRequest, match="missing='maybe'"):
        table.lookup(keys, missing="maybe")


def test_keys_may_come_in_many_forms(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "v": pa.string()}, primary_key=["id"])
    table.upsert([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    both = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    for keys in (
        [1, 2],
        [{"id": 1}, {"id": 2}],
        pa.table({"id": [1, 2]}),
        pa.array([1, 2]),
        pa.chunked_array([[1], [2]]),
        pa.record_batch({"id": pa.array([1, 2], pa.int8())}),
        (1, 2),
        [(1,), (2,)],
        range(1, 3),
        (i for i in (1, 2)),
        np.array([1, 2]),
        pandas.Series([1, 2]),
        pandas.DataFrame({"id": [1, 2]}),
    ):
        assert table.lookup(keys).to_pylist() == both
    assert table.lookup({"id": 2}).to_pylist() == both[1:]
    assert table.lookup(2).to_pylist() == both[1:]
    assert table.lookup([]).num_rows == 0
    assert table.lookup([]).schema.names == ["id", "v"]


def test_a_single_key_may_be_of_any_type(make_table: MakeTable) -> None:
    for kind, key in (("DATE", dt.date(2024, 1, 2)), ("STRING", "two words"), ("BINARY(2)", b"ab"), ("BOOLEAN", True)):
        table = make_table({"key": kind, "v": "INT"}, primary_key="key")
        table.upsert([{"key": key, "v": 1}])
        assert table.lookup(key).to_pylist() == [{"key": key, "v": 1}]
        table.delete(key)
        assert table.scan().count() == 0


def test_keys_of_several_columns_may_be_tuples(make_table: MakeTable) -> None:
    table = make_table({"v": "INT", "a": "INT", "b": "STRING"}, primary_key=["b", "a"])
    table.upsert([{"v": 1, "a": 10, "b": "x"}, {"v": 2, "a": 20, "b": "y"}])
    assert table.lookup([("y", 20), ("x", 10), ("x", 11)])["v"].to_pylist() == [2, 1, None]
    assert table.lookup(("x", 10))["v"].to_pylist() == [1]
    assert table.lookup([["x", 10]])["v"].to_pylist() == [1]
    table.delete([("x", 10)])
    assert table.lookup(("x", 10), missing="drop").num_rows == 0
    with pytest.raises(InvalidRequest, match=r"key 1 is \('x',\); a key of table .* has 2 values \(b, a\)"):
        table.lookup([("x", 10), ("x",)])


def test_rows_are_joined_with_those_of_a_table_by_its_key(make_table: MakeTable) -> None:
    table = make_table({"id": "BIGINT", "name": "STRING", "age": "INT"}, primary_key="id")
    table.upsert([{"id": i, "name": f"n{i}", "age": i * 10} for i in range(3)])
    orders = pa.table({"at": [1, 2, 3, 4], "id": [2, 7, None, 2]})
    with table.lookup_table(["name", "id"]) as people:
        assert people.join(orders).to_pylist() == [
            {"at": 1, "id": 2, "name": "n2"},
            {"at": 2, "id": 7, "name": None},
            {"at": 3, "id": None, "name": None},
            {"at": 4, "id": 2, "name": "n2"},
        ]
        assert people.join(orders, how="inner")["at"].to_pylist() == [1, 4]
        renamed = people.join([{"who": 1}, {"who": 5}], on="who").to_pylist()
        assert renamed == [{"who": 1, "name": "n1", "id": 1}, {"who": 5, "name": None, "id": None}]
        assert people.join(orders.to_pandas().dropna().astype("int64"))["name"].to_pylist() == ["n2", None, "n2"]
        assert people.join(orders.slice(0, 0)).schema.names == ["at", "id", "name"]
        assert people.lookup([1, 9], missing="drop").to_pylist() == [{"name": "n1", "id": 1}]
        assert people.schema.names == ["name", "id"]
        table.upsert([{"id": 7, "name": "late", "age": 1}])
        assert people.join(orders)["name"].to_pylist() == ["n2", "late", None, "n2"]  # without refresh()
        assert people.refresh() is False
    with table.lookup_table(["age"]) as ages:
        assert ages.join(orders).schema.names == ["at", "id", "age"]


def test_a_join_that_cannot_be_is_refused(make_table: MakeTable) -> None:
    table = make_table({"a": "INT", "b": "INT", "v": "INT"}, primary_key=["a", "b"])
    rows = table.lookup_table()
    for data, on, message in (
        (pa.table({"a": [1]}), None, r"no column 'b'; they have \['a'\]"),
        (pa.table({"x": [1]}), "x", "the primary key is \\(a, b\\); name 2 columns"),
        (pa.table({"a": [1], "b": [1], "v": [1]}), None, "both sides of the join have column 'v'"),
        (5, None, "a int cannot be joined"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            rows.join(data, on)
    with pytest.raises(InvalidRequest, match="how='outer' is not one of 'left', 'inner'"):
        rows.join(pa.table({"a": [1], "b": [1]}), how="outer")
    with pytest.raises(UnsupportedOperation, match="keep no files"):
        table.lookup_table(directory="/tmp/x")
    with pytest.raises(InvalidRequest, match="no primary key"):
        make_table({"a": "INT"}).lookup_table()


def test_a_lookup_with_a_maximum_age_keeps_rows_and_missing_keys_until_it_is_refreshed(make_table: MakeTable) -> None:
    table = make_table({"name": "STRING", "a": "BIGINT", "b": "STRING"}, primary_key=["a", "b"], partition_keys="b")
    table.create_partition({"b": "x"})
    table.upsert([{"a": i, "b": "x", "name": f"n{i}"} for i in range(4)])
    orders = pa.table({"at": range(5), "a": [0, 9, 0, None, 3], "b": ["x", "x", "x", "x", "y"]})
    with table.lookup_table(["name"], max_age="1 h") as rows:
        assert rows.join(orders)["name"].to_pylist() == ["n0", None, "n0", None, None]
        table.upsert([{"a": i, "b": "x", "name": "new"} for i in (0, 1, 9)])
        assert rows.join(orders)["name"].to_pylist() == ["n0", None, "n0", None, None]
        assert rows.lookup([(1, "x"), (9, "x")]).to_pylist() == [{"name": "new"}, {"name": None}]
        assert rows.lookup([(9, "x"), (2, "x")], missing="drop").to_pylist() == [{"name": "n2"}]
        with pytest.raises(NotFound, match=r"no row for 1 of 2 keys; the first is key 1: {'a': 9, 'b': 'x'}"):
            rows.lookup([(2, "x"), (9, "x")], missing="error")
        assert rows.refresh()
        assert rows.join(orders)["name"].to_pylist() == ["new", "new", "new", None, None]
        assert rows.lookup([]).schema.names == rows.schema.names == ["name"]
    with pytest.raises(InvalidRequest, match="max_rows=5, max_age=None"):
        table.lookup_table(max_rows=5)


class Steps:
    """A clock that tests move on."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(3))
def test_cached_rows_are_never_older_or_more_than_they_may_be(
    make_table: MakeTable, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, clock, rows_max, max_age = random.Random(seed), Steps(), 12, 10.0
    table = make_table({"id": "INT", "v": "INT"}, primary_key="id")
    asked: list[int] = []
    lookup = Lookup(table.connection, table.info, ["id", "v"])
    ask = lookup.find
    monkeypatch.setattr(lookup, "find", lambda keys: asked.append(keys.num_rows) or ask(keys))
    cache = CachedLookup(lookup, table.info, clock, max_age, rows_max)  # type: ignore[arg-type]
    history: dict[int, list[tuple[float, int | None]]] = {key: [(0.0, None)] for key in range(20)}
    wanted = 0
    for version in range(60):
        key = dice.randrange(20)
        if dice.random() < 0.2:
            table.delete([key])
            history[key].append((clock.now, None))
        else:
            table.upsert([{"id": key, "v": version}])
            history[key].append((clock.now, version))
        keys = [dice.randrange(20) for _ in range(dice.choice([1, 3, 9]))]
        wanted += len(keys)
        for key, row in zip(keys, cache.find(keys).to_pylist(), strict=True):
            ends = [*(begun for begun, _ in history[key][1:]), float("inf")]
            alive = [v for (_, v), end in zip(history[key], ends, strict=True) if end >= clock.now - max_age]
            assert row["v"] in alive
            assert row["id"] == (None if row["v"] is None else key)
        assert len(cache) <= rows_max
        clock.now += dice.choice([0.0, 0.5, 1.0, 4.0])
    assert sum(asked) < wanted, "some came from the cache"


def test_rows_that_were_being_looked_up_when_a_cache_was_cleared_are_not_kept(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table({"id": "INT", "v": "INT"}, primary_key="id")
    table.upsert([{"id": 1, "v": 1}])
    lookup = Lookup(table.connection, table.info, ["id", "v"])
    cache = CachedLookup(lookup, table.info, Steps(), 10.0, 12)  # type: ignore[arg-type]
    ask = lookup.find

    def find(keys: Any) -> Any:  # another thread writes and clears while the answer is on its way
        found = ask(keys)
        if not asked:
            asked.append(1)
            table.upsert([{"id": 1, "v": 2}])
            cache.clear()
        return found

    asked: list[int] = []
    monkeypatch.setattr(lookup, "find", find)
    assert cache.find([1])["v"].to_pylist() == [1]
    assert cache.find([1])["v"].to_pylist() == [2]


def test_rows_of_a_slow_lookup_count_from_when_they_were_asked_for(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table({"id": "INT", "v": "INT"}, primary_key="id")
    table.upsert([{"id": 1, "v": 1}, {"id": 2, "v": 1}])
    lookup, clock = Lookup(table.connection, table.info, ["id", "v"]), Steps()
    cache = CachedLookup(lookup, table.info, clock, 10.0, 12)  # type: ignore[arg-type]
    ask = lookup.find

    def find(keys: Any) -> Any:  # slow: another thread begins a generation of rows meanwhile
        found = ask(keys)
        if not asked:
            asked.append(1)
            table.upsert([{"id": 1, "v": 2}])
            clock.now += 8.0
            cache.find([2])
        return found

    asked: list[int] = []
    monkeypatch.setattr(lookup, "find", find)
    assert cache.find([1])["v"].to_pylist() == [1]
    clock.now += 3.0
    assert cache.find([1])["v"].to_pylist() == [2]


def test_few_choices_of_columns_are_kept(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.client.table._LOOKUPS_KEPT", 2)
    table = make_table({"id": pa.int32(), "v": pa.string()}, primary_key=["id"])
    table.upsert([{"id": 1, "v": "a"}])
    for columns, kept in ((None, 1), (["id"], 2), (None, 2), (["v"], 1), (["v", "id"], 2), (["id", "v"], 1)):
        assert table.lookup([1], columns=columns).column_names == (columns or ["id", "v"])
        assert len(table._lookups) == kept


def test_lookups_return_the_columns_that_were_requested(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "v": pa.string(), "w": pa.timestamp("us", "UTC")}, primary_key=["id"])
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    table.upsert([{"id": 1, "v": "a", "w": at}])
    found = table.lookup([1], columns=["w", "id"])
    assert found.to_pylist() == [{"w": at, "id": 1}]
    assert found.schema.field("w").type == pa.timestamp("us", "UTC")
    assert table.lookup([1], columns=["v"]).column_names == ["v"]
    with pytest.raises(InvalidRequest, match="no column 'x'"):
        table.lookup([1], columns=["x"])


def test_keys_that_do_not_fit_are_refused(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int32(), "b": pa.string()}, primary_key=["a", "b"])
    for keys, message in (
        ([{"a": 1}], "'b'"),
        ([1], "needs 2 columns"),
        ([{"a": 1, "b": "x", "c": 1}], "'c'"),
        ([{"a": "no", "b": "x"}], "column 'a'"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            table.lookup(keys)
    log = make_table({"a": pa.int32()})
    with pytest.raises(InvalidRequest, match="no primary key") as e:
        log.lookup([1])
    assert e.value.code == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION


def test_a_key_may_stand_in_any_order_of_columns(make_table: MakeTable) -> None:
    """failure-scenarios 1b: PK order != column order; PK after a non-PK column."""
    table = make_table(
        {"v": pa.string(), "b": pa.string(), "a": pa.int32()}, primary_key=["a", "b"], buckets=3, bucket_keys=["b"]
    )
    table.upsert([{"a": i, "b": f"b{i % 5}", "v": str(i)} for i in range(50)])
    found = table.lookup([{"b": "b3", "a": 13}, {"a": 13, "b": "b4"}])
    assert found.to_pylist() == [{"v": "13", "b": "b3", "a": 13}, {"v": None, "b": None, "a": None}]


def test_many_keys_go_in_many_requests(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"id": pa.int64(), "v": pa.int64()}, primary_key=["id"], buckets=3)
    table.upsert(pa.table({"id": np.arange(3000), "v": np.arange(3000) * 2}))
    with connect(bootstrap, lookup_max_batch_size=10, lookup_max_inflight_requests=4) as other:
        found = other.table(table.path).lookup(pa.table({"id": np.arange(3000)[::-1]}))
    assert found["v"].to_numpy().tolist() == (np.arange(3000)[::-1] * 2).tolist()


def test_partitioned_tables_are_looked_up_in_their_partitions(make_table: MakeTable) -> None:
    table = make_table(
        {"id": pa.int32(), "day": pa.date32(), "v": pa.string()},
        primary_key=["id", "day"],
        partition_keys=["day"],
        buckets=2,
    )
    days = [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]
    table.upsert([{"id": i, "day": days[i % 2], "v": str(i)} for i in range(10)])
    keys = [
        {"id": 3, "day": days[1]},
        {"id": 3, "day": days[0]},
        {"id": 4, "day": days[0]},
        {"id": 4, "day": dt.date(2030, 1, 1)},
    ]
    assert table.lookup(keys)["v"].to_pylist() == ["3", None, "4", None]


def test_a_prefix_finds_all_its_rows(make_table: MakeTable) -> None:
    table = make_table(
        {"user": pa.string(), "n": pa.int32(), "v": pa.int64()},
        primary_key=["user", "n"],
        bucket_keys=["user"],
        buckets=3,
    )
    table.upsert([{"user": f"u{i % 4}", "n": i, "v": i * i} for i in range(40)])
    found = table.prefix_lookup(["u2", "nobody", "u0"], columns=["n", "user"])
    assert found.column_names == [PREFIX_COLUMN, "n", "user"]
    assert found[PREFIX_COLUMN].to_pylist() == [0] * 10 + [2] * 10
    assert sorted(found["n"].to_pylist()[:10]) == list(range(2, 40, 4))
    assert set(found["user"].to_pylist()[10:]) == {"u0"}
    assert table.prefix_lookup([]).num_rows == 0
    plain = make_table({"a": pa.int32()}, primary_key=["a"])
    with pytest.raises(InvalidRequest, match="no prefix to look up"):
        plain.prefix_lookup([1])


def test_a_prefix_of_a_partitioned_table_names_the_partition(make_table: MakeTable) -> None:
    table = make_table(
        {"p": pa.string(), "a": pa.int32(), "b": pa.int32()},
        primary_key=["p", "a", "b"],
        partition_keys=["p"],
        bucket_keys=["a"],
        buckets=2,
    )
    table.upsert([{"p": p, "a": a, "b": b} for p in "xy" for a in range(3) for b in range(4)])
    found = table.prefix_lookup([{"p": "y", "a": 1}, {"p": "z", "a": 1}])
    assert found["b"].to_pylist() == [0, 1, 2, 3]
    assert set(found["p"].to_pylist()) == {"y"}


@own_server
def test_rows_from_before_a_column_was_added_are_found(conn: Connection, make_table: MakeTable) -> None:
    old = make_table({"id": pa.int32(), "v": pa.string()}, primary_key=["id"])
    old.upsert([{"id": 1, "v": "old"}])
    old.alter(add_columns={"w": pa.int64()})
    new = old.refresh()
    new.upsert([{"id": 2, "v": "new", "w": 5}])
    assert new.lookup([1, 2]).to_pylist() == [{"id": 1, "v": "old", "w": None}, {"id": 2, "v": "new", "w": 5}]
    assert old.lookup([1, 2]).to_pylist() == [{"id": 1, "v": "old"}, {"id": 2, "v": "new"}]
    old.upsert([{"id": 2, "v": "by old"}])
    assert new.lookup([2])["v"].to_pylist() == ["by old"]


def test_a_partition_that_is_dropped_is_missing(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "p": pa.string()}, primary_key=["id", "p"], partition_keys=["p"])
    table.upsert([{"id": 1, "p": "a"}, {"id": 1, "p": "b"}])
    assert table.lookup([{"id": 1, "p": "a"}])["id"].to_pylist() == [1]
    table.drop_partition({"p": "a"})
    assert table.refresh().lookup([{"id": 1, "p": "b"}])["id"].to_pylist() == [1]


class Question:
    """Keys of a partition that is dropped each time between its being found and the lookup."""

    def __init__(self, code: ErrorCode, times: int) -> None:
        self.code, self.times, self.asked = code, times, 0

    def ask(self, _cluster: object, _path: object, items: list[int]) -> list[int]:
        self.asked += 1
        if self.asked <= self.times:
            raise NotFound("gone", self.code)
        return items


@pytest.mark.parametrize(
    ("code", "times", "asked"),
    [
        (ErrorCode.PARTITION_NOT_EXISTS, 2, 3),
        (ErrorCode.PARTITION_NOT_EXISTS, 9, 3),
        (ErrorCode.TABLE_NOT_EXIST, 1, 1),
    ],
)
def test_partitions_are_looked_for_three_times(code: ErrorCode, times: int, asked: int) -> None:
    forgotten: list[str] = []
    cluster = SimpleNamespace(forget_table=forgotten.append)
    lookup = SimpleNamespace(_cluster=cluster, _info=SimpleNamespace(path="d.t"))
    question, found = Question(code, times), count(1)

    def ask() -> object:
        return Lookup._ask(cast(Any, lookup), cast(Any, question), lambda: [cast(Any, next(found))])

    if times < asked:
        assert ask() == [asked]  # the answer for the partition that was found last
    else:
        with pytest.raises(NotFound, match="gone"):
            ask()
    assert (question.asked, forgotten) == (asked, ["d.t"] * (asked - 1))


def test_rows_that_are_larger_than_an_answer_are_found_one_by_one(tmp_path: Path) -> None:
    settings = {"server.request.max-answer-size": "100kb"}
    with EmbeddedServer(tmp_path / "data", settings=settings) as server, connect(server.bootstrap_servers) as conn:
        conn.create_database("d")
        table = conn.create_table("d.t", {"id": "INT", "v": "STRING"}, primary_key="id", buckets=1)
        rows = [{"id": i, "v": f"{i}" * size} for i, size in enumerate((150_000, 60_000, 1, 60_000, 150_000))]
        table.upsert(rows)
        assert table.lookup([0]).to_pylist() == rows[:1]
        assert table.lookup([4, 9, 1, 0, 3, 2, 0], missing="drop").to_pylist() == [rows[i] for i in (4, 1, 0, 3, 2, 0)]
        assert table.scan(filter="id = 0").to_arrow().to_pylist() == rows[:1]
        found = table.scan(filter="id IN (0, 1, 4)").to_arrow().sort_by("id").to_pylist()
        assert found == [rows[0], rows[1], rows[4]]
        assert table.scan().head(1).num_rows == 1


def test_rows_of_a_prefix_that_are_larger_than_an_answer_are_found_one_by_one(tmp_path: Path) -> None:
    settings = {"server.request.max-answer-size": "100kb"}
    with EmbeddedServer(tmp_path / "data", settings=settings) as server, connect(server.bootstrap_servers) as conn:
        conn.create_database("d")
        table = conn.create_table(
            "d.t", {"a": "INT", "b": "INT", "v": "STRING"}, primary_key=("a", "b"), buckets=1, bucket_keys="a"
        )
        rows = [{"a": i, "b": 0, "v": f"{i}" * size} for i, size in enumerate((150_000, 60_000, 1, 60_000, 150_000))]
        table.upsert(rows)
        assert table.prefix_lookup([0], columns=["a", "b", "v"]).drop([PREFIX_COLUMN]).to_pylist() == rows[:1]
        found = table.prefix_lookup([4, 9, 1, 0, 3, 2, 0])
        assert found[PREFIX_COLUMN].to_pylist() == [0, 2, 3, 4, 5, 6]
        assert found.drop([PREFIX_COLUMN]).to_pylist() == [rows[i] for i in (4, 1, 0, 3, 2, 0)]
        table.upsert([{"a": 0, "b": 1, "v": "short"}])
        with pytest.raises(LimitExceeded, match=r"larger than 100.0 KiB.*scan\(filter"):
            table.prefix_lookup([0])
