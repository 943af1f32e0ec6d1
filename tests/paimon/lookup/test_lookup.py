"""Lookups by primary key return what a read returns, whatever is cached, compacted or written meanwhile."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pytest

from forebay.base.errors import InvalidRequest, NotFound, StorageFailure, UnsupportedOperation
from forebay.paimon.format.commit_message import CommitMessage, DataIncrement
from forebay.paimon.format.file_meta import DeletionVectorMeta, IndexFileMeta
from forebay.paimon.lookup.lake_lookup import LakeLookupTable
from forebay.paimon.lookup.local_files import Probe
from forebay.paimon.table import Table
from tests.paimon.lake import ALL_TYPES, all_types_rows, new_catalog, put
from tests.paimon.read.commit_messages import deletion_vector

COLUMNS = pa.schema([("id", pa.int64()), ("region", pa.string()), ("name", pa.string()), ("amount", pa.int64())])


def _table(folder: Path, options: dict[str, str] | None = None, keys: tuple[str, ...] = ("id",)) -> Table:
    given = {"bucket": "2", "continuous.discovery-interval": "0 ms", **(options or {})}
    partitions = ["region"] if "region" in keys else []
    return new_catalog(folder).create_table("db.t", COLUMNS, primary_key=keys, partition_keys=partitions, options=given)


def _rows(ids: Any, tag: str = "a") -> pa.Table:
    ids = list(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "region": pa.array([f"r{i % 3}" for i in ids]),
            "name": pa.array([f"{tag}{i}" for i in ids]),
            "amount": pa.array([i * 10 for i in ids], pa.int64()),
        }
    )


def _names(found: pa.Table) -> list[str]:
    return found.column("name").to_pylist()


def test_rows_are_found_in_the_order_of_the_keys_and_missing_keys_are_left_out(tmp_path: Path) -> None:
    table = _table(tmp_path)
    put(table, _rows(range(100)))
    put(table, _rows(range(50, 60), "b"))
    table.delete([{"id": 7}])
    with table.lookup_table(columns=["name"]) as lookup:
        keys = [{"id": i} for i in (99, 55, 7, 1000, 3, 55)]
        assert _names(lookup.lookup(keys, missing="drop")) == ["a99", "b55", "a3", "b55"]
        assert lookup.lookup(keys, missing="drop").schema.names == ["name"]
        assert lookup.lookup([], missing="drop").num_rows == 0
        assert lookup.lookup([{"id": 7}], missing="drop").num_rows == 0


def test_a_file_of_nothing_but_deletes_has_no_row(tmp_path: Path) -> None:
    table = _table(tmp_path, {"bucket": "1", "write-only": "true"})
    table.delete([{"id": 1}])
    with table.lookup_table() as lookup:
        assert lookup.lookup([{"id": 1}], missing="drop").num_rows == 0
        put(table, _rows([1]))
        assert _names(lookup.lookup([{"id": 1}], missing="drop")) == ["a1"]
        table.delete([{"id": 1}])
        assert lookup.lookup([{"id": 1}], missing="drop").num_rows == 0


@pytest.mark.parametrize("bucket", ["1", "4", "-1"])
def test_keys_of_several_columns_find_their_partition_and_bucket(tmp_path: Path, bucket: str) -> None:
    table = _table(tmp_path, {"bucket": bucket}, ("region", "id"))
    put(table, _rows(range(30)))
    with table.lookup_table() as lookup:
        found = lookup.lookup(
            [{"id": 4, "region": "r1"}, {"id": 4, "region": "r2"}, {"id": 5, "region": "r2"}], missing="drop"
        )
    assert found.to_pylist() == [
        {"id": 4, "region": "r1", "name": "a4", "amount": 40},
        {"id": 5, "region": "r2", "name": "a5", "amount": 50},
    ]


def test_any_bucket_may_have_the_keys_of_a_table_whose_buckets_grow(tmp_path: Path) -> None:
    table = _table(tmp_path, {"bucket": "-1", "dynamic-bucket.target-row-num": "10"})
    put(table, _rows(range(30)))
    put(table, _rows(range(20, 50), "b"))
    assert {split.bucket for split in table.scan().plan()} == {0, 1, 2, 3, 4}
    with table.lookup_table() as lookup:
        keys = [{"id": i} for i in range(50)]
        assert _names(lookup.lookup(keys, missing="drop")) == [f"{'a' if i < 20 else 'b'}{i}" for i in range(50)]


def test_a_join_puts_columns_beside_rows_and_nulls_where_there_is_no_row(tmp_path: Path) -> None:
    table = _table(tmp_path)
    put(table, _rows(range(10)))
    orders = pa.table({"customer": pa.array([3, None, 77, 3], pa.int64()), "n": [1, 2, 3, 4]})
    with table.lookup_table(columns=["name", "amount"]) as lookup:
        joined = lookup.join(orders, on=["customer"])
        assert joined.to_pydict() == {
            "customer": [3, None, 77, 3],
            "n": [1, 2, 3, 4],
            "name": ["a3", None, None, "a3"],
            "amount": [30, None, None, 30],
        }
        assert lookup.join(orders, on=["customer"], how="inner").column("n").to_pylist() == [1, 4]
        with pytest.raises(InvalidRequest, match="no column 'id'"):
            lookup.join(orders)
        with pytest.raises(InvalidRequest, match="both sides"):
            lookup.join(orders.rename_columns(["customer", "name"]), on=["customer"])
    with table.lookup_table() as lookup:
        assert lookup.join(orders.rename_columns(["id", "n"])).schema.names == ["id", "n", "region", "name", "amount"]


def test_a_lookup_follows_new_snapshots_and_keeps_the_copies_that_are_still_good(tmp_path: Path) -> None:
    table = _table(tmp_path, {"bucket": "1"})
    put(table, _rows(range(10)))
    with table.lookup_table() as lookup:
        assert _names(lookup.lookup([{"id": 1}], missing="drop")) == ["a1"]
        before = dict(lookup._local._on_disk)
        put(table, _rows([1, 2], "b"))
        assert _names(lookup.lookup([{"id": 1}, {"id": 3}], missing="drop")) == ["b1", "a3"]
        assert before.items() <= dict(lookup._local._on_disk).items()
        table.overwrite(_rows([5], "c"))
        assert _names(lookup.lookup([{"id": 1}, {"id": 5}], missing="drop")) == ["c5"]
        assert not before.keys() & lookup._local._on_disk.keys()
        assert not lookup.refresh()


def test_between_looks_for_new_snapshots_a_lookup_stays_at_its_snapshot(tmp_path: Path) -> None:
    table = _table(tmp_path, {"continuous.discovery-interval": "1 h"})
    put(table, _rows([1]))
    with table.lookup_table() as lookup:
        assert _names(lookup.lookup([{"id": 1}], missing="drop")) == ["a1"]
        put(table, _rows([1], "b"))
        assert _names(lookup.lookup([{"id": 1}], missing="drop")) == ["a1"]
        assert lookup.refresh()
        assert (_names(lookup.lookup([{"id": 1}], missing="drop")), lookup.snapshot_id) == (["b1"], 2)


def test_files_that_expired_under_a_lookup_make_it_go_to_the_latest_snapshot(tmp_path: Path) -> None:
    table = _table(tmp_path, {"bucket": "1", "continuous.discovery-interval": "1 h"})
    put(table, _rows(range(10)))
    with table.lookup_table() as lookup:
        lookup.refresh()
        table.overwrite(_rows(range(10), "b"))
        for path in (tmp_path / "lake/db.db/t/bucket-0").iterdir():
            if path.name not in {
                e.file.file_name for e in table.context.manifests.live_files(table.context.snapshots.latest())
            }:
                path.unlink()
        assert _names(lookup.lookup([{"id": 1}], missing="drop")) == ["b1"]


@pytest.mark.parametrize("what", ["manifests", "data"])
def test_a_lookup_that_failed_finds_the_right_rows_when_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    table = _table(tmp_path, {"continuous.discovery-interval": "1 h"})
    put(table, _rows(range(10)))
    (tmp_path / "copies").mkdir()
    with table.lookup_table(directory=str(tmp_path / "copies")) as lookup:
        lookup.lookup([{"id": 1}], missing="drop")
        put(table, _rows([1, 2], "b"))

        def fail(*_: Any, **__: Any) -> Any:
            raise StorageFailure("the disk is gone")

        with monkeypatch.context() as broken:
            if what == "manifests":
                broken.setattr(table.context.manifests, "read_list", fail)
            else:
                broken.setattr("forebay.paimon.lookup.lake_lookup.DataFileReader.read", fail)
            with pytest.raises(StorageFailure, match="the disk is gone"):
                _refresh_and_get(lookup)
            with pytest.raises(StorageFailure, match="the disk is gone"):
                lookup.lookup([{"id": 1}], missing="drop")
            copies = {p.stem for p in (tmp_path / "copies").rglob("*.arrow")}
            assert copies == {p.stem for p in (tmp_path / "copies").rglob("*.index")}, "none is half made"
        assert _names(lookup.lookup([{"id": 1}, {"id": 3}], missing="drop")) == ["b1", "a3"]


def _refresh_and_get(lookup: LakeLookupTable) -> None:
    lookup.refresh()
    lookup.lookup([{"id": 1}], missing="drop")


def _mark_deleted(table: Table, position: int) -> None:
    """Commit a deletion vector for one row of the table's only file."""
    snapshot = table.context.snapshots.latest()
    assert snapshot is not None
    (entry,) = table.context.manifests.live_files(snapshot)
    vector = deletion_vector([position])
    marks = (DeletionVectorMeta(entry.file.file_name, 1, len(vector) - 8, 1),)
    index = IndexFileMeta("DELETION_VECTORS", "index-1", len(vector) + 1, 1, marks)
    path = Path(table.context.paths.index_file(index, entry.partition, entry.bucket))
    path.parent.mkdir()
    path.write_bytes(b"\1" + vector)
    message = CommitMessage(entry.partition, entry.bucket, 1, DataIncrement((), new_index_files=(index,)))
    table.new_commit().commit([message])


def test_a_lookup_sees_which_rows_were_marked_as_deleted_and_what_a_rollback_brings_back(tmp_path: Path) -> None:
    table = _table(tmp_path, {"bucket": "1", "deletion-vectors.enabled": "true", "write-only": "true"})
    put(table, _rows(range(10)))
    table.compact(full=True)
    with table.lookup_table(columns=["name"]) as lookup:
        assert _names(lookup.lookup([{"id": 3}, {"id": 4}], missing="drop")) == ["a3", "a4"]
        _mark_deleted(table, 3)
        assert _names(lookup.lookup([{"id": 3}, {"id": 4}], missing="drop")) == ["a4"]
    plain = new_catalog(tmp_path / "plain").create_table(
        "db.t", COLUMNS, primary_key=["id"], options={"bucket": "1", "continuous.discovery-interval": "0 ms"}
    )
    put(plain, _rows(range(4)))
    with plain.lookup_table(columns=["name"]) as lookup:
        put(plain, _rows([3], "b"))
        assert _names(lookup.lookup([{"id": 3}], missing="drop")) == ["b3"]
        plain.rollback_to(1)
        for tag in ("c", "d"):
            put(plain, _rows([2], tag))
        assert _names(lookup.lookup([{"id": 3}, {"id": 2}], missing="drop")) == ["a3", "d2"]


def test_a_file_whose_rows_are_all_marked_as_deleted_has_no_row(tmp_path: Path) -> None:
    table = _table(tmp_path, {"bucket": "1", "deletion-vectors.enabled": "true", "write-only": "true"})
    put(table, _rows([3]))
    table.compact(full=True)
    _mark_deleted(table, 0)
    with table.lookup_table() as lookup:
        assert lookup.lookup([{"id": 3}], missing="drop").num_rows == 0


def test_threads_share_a_lookup(tmp_path: Path) -> None:
    table = _table(tmp_path, {"lookup.cache-max-memory-size": "8 kb", "lookup.cache-max-disk-size": "40 kb"})
    put(table, _rows(range(500)))
    with table.lookup_table() as lookup, ThreadPoolExecutor(4) as pool:
        asked = [[{"id": i} for i in range(n, 500, 7)] for n in range(20)]
        found = list(pool.map(lambda keys: _names(lookup.lookup(keys, missing="drop")), asked))
    assert found == [[f"a{key['id']}" for key in keys] for keys in asked]


@pytest.mark.parametrize(
    ("memory", "disk"),
    [("0 kb", "0 kb"), ("0 kb", "1 gb"), ("1 gb", "0 kb"), ("20 kb", "40 kb"), ("1 gb", "1 gb")],
)
def test_what_is_found_does_not_depend_on_how_much_may_be_cached(tmp_path: Path, memory: str, disk: str) -> None:
    options = {"bucket": "3", "lookup.cache-max-memory-size": memory, "lookup.cache-max-disk-size": disk}
    table = _table(tmp_path, options)
    for part in range(4):
        put(table, _rows(range(part * 100, part * 100 + 300), f"w{part}-"))
    expected = {row["id"]: row["name"] for row in table.scan().to_arrow().to_pylist()}
    with table.lookup_table(directory=str(tmp_path)) as lookup:
        for _ in range(2):
            assert _names(lookup.lookup([{"id": i} for i in range(-5, 650)], missing="drop")) == [
                expected[i] for i in range(600)
            ]
            assert lookup._local.memory_bytes <= table.context.options.lookup_cache_max_memory_size
            assert lookup._local.disk_bytes <= table.context.options.lookup_cache_max_disk_size
            copies = {path for path, _ in lookup._local._on_disk.values()}
            assert set(tmp_path.glob("forebay-lookup-*/*.arrow")) == copies, "what did not fit is deleted at once"
    assert not list(tmp_path.glob("forebay-lookup-*"))


def test_copies_that_were_not_used_for_a_while_are_deleted(tmp_path: Path) -> None:
    table = _table(tmp_path, {"lookup.cache-file-retention": "0 ms"})
    put(table, _rows(range(10)))
    with table.lookup_table(directory=str(tmp_path)) as lookup:
        lookup.lookup([{"id": 1}], missing="drop")
        lookup.refresh()
        assert (lookup._local.disk_bytes, lookup._local.memory_bytes) == (0, 0)
        assert _names(lookup.lookup([{"id": 1}], missing="drop")) == ["a1"]


def test_files_that_do_not_all_fit_into_memory_do_not_push_each_other_out(tmp_path: Path) -> None:
    table = _table(tmp_path, {"bucket": "4", "lookup.cache-max-memory-size": "64 kb"})
    put(table, _rows(range(3000)))
    with table.lookup_table() as lookup:
        everything = [{"id": i} for i in range(3000)]
        lookup.lookup(everything, missing="drop")
        kept = list(lookup._local._in_memory.values())
        assert 0 < len(kept) < 4
        lookup.lookup(everything, missing="drop")
        assert sorted(map(id, lookup._local._in_memory.values())) == sorted(map(id, kept))
        others = [k for k in everything if not _in_memory_after(lookup, k, kept)][:1]
        for _ in range(2):
            lookup.lookup(others, missing="drop")
        assert sorted(map(id, lookup._local._in_memory.values())) != sorted(map(id, kept))


def _in_memory_after(lookup: LakeLookupTable, key: dict[str, int], kept: list[Any]) -> bool:
    """Whether the file that holds `key` is one of those that are kept in memory."""
    batch = pa.RecordBatch.from_pylist([key])
    probe = Probe(lookup._layout.encode(batch))
    renamed = lookup._local._layout
    return any(list(file.find(probe, renamed)) for file, _ in kept)


ENGINES = [
    {},
    {"merge-engine": "partial-update"},
    {"merge-engine": "aggregation", "fields.amount.aggregate-function": "sum"},
    {"merge-engine": "first-row"},
    {"sequence.field": "amount"},
    {"deletion-vectors.enabled": "true"},
    {"changelog-producer": "lookup"},
    {"bucket": "-1", "dynamic-bucket.target-row-num": "10"},
]


@pytest.mark.parametrize("options", ENGINES, ids=lambda o: o.get("merge-engine", "/".join(o) or "deduplicate"))
@pytest.mark.one_in(2)
def test_lookups_agree_with_reads_under_random_writes_and_compactions(tmp_path: Path, options: dict[str, str]) -> None:
    dice = random.Random(7)
    table = _table(tmp_path, options)
    with table.lookup_table() as lookup:
        for _ in range(12):
            ids = dice.sample(range(40), 12)
            amounts = [dice.choice([None, dice.randrange(100)]) for _ in ids]
            if options.get("sequence.field"):
                amounts = [dice.randrange(100) for _ in ids]
            rows = _rows(ids, f"v{dice.randrange(99)}-").set_column(3, "amount", pa.array(amounts, pa.int64()))
            put(table, rows)
            if dice.random() < 0.3 and "merge-engine" not in options:
                number = {"amount": 100} if options.get("sequence.field") else {}  # a delete without it would not count
                table.delete([{"id": i, **number} for i in dice.sample(range(40), 5)])
            if dice.random() < 0.3:
                table.compact(full=dice.random() < 0.5)
            _check(table, lookup)


def _check(table: Table, lookup: LakeLookupTable) -> None:
    expected = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert lookup.lookup([{"id": i} for i in range(45)], missing="drop").to_pylist() == expected


@pytest.mark.parametrize(
    "column",
    ["flag", "tiny", "whole", "double", "text", "raw", "d9", "d38", "day", "clock", "ms", "us", "instant"],
)
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.one_in(2)
def test_keys_may_have_any_type(tmp_path: Path, column: str, partitioned: bool) -> None:
    rows = all_types_rows(20)
    rows = rows.filter(pa.compute.is_valid(rows.column(column)))
    table = new_catalog(tmp_path).create_table(
        "db.t",
        ALL_TYPES,
        primary_key=["id", column],
        partition_keys=[column] if partitioned and column != "raw" else [],
        options={"bucket": "3"},
    )
    put(table, rows)
    keys = rows.select([column, "id"])
    with table.lookup_table() as lookup:
        found = lookup.lookup(keys, missing="drop")
        wrong = keys.set_column(1, "id", pa.compute.add(keys.column("id"), 1000))
        assert lookup.lookup(wrong, missing="drop").num_rows == 0
    expected = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    assert found.to_pylist() == [expected[i] for i in rows.column("id").to_pylist()]


def test_tables_without_a_usable_key_are_refused(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path)
    with pytest.raises(InvalidRequest, match="no primary key"):
        catalog.create_table("db.log", COLUMNS).lookup_table()
    crossing = catalog.create_table(
        "db.crossing", COLUMNS, primary_key=["id"], partition_keys=["region"], options={"bucket": "-1"}
    )
    with pytest.raises(UnsupportedOperation, match="does not follow"):
        crossing.lookup_table()


# ---- keys and what is missing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        [2, 9, 1],
        [(2,), (9,), (1,)],
        [{"id": 2}, {"id": 9}, {"id": 1}],
        pa.array([2, 9, 1]),
        pa.table({"id": [2, 9, 1]}),
    ],
    ids=["plain", "tuples", "dicts", "array", "table"],
)
def test_there_is_one_row_for_each_key_in_order(tmp_path: Path, keys: Any) -> None:
    table = _table(tmp_path)
    put(table, _rows(range(4)))
    found = table.lookup(keys, ["id", "name"])
    assert found.to_pylist() == [{"id": 2, "name": "a2"}, {"id": None, "name": None}, {"id": 1, "name": "a1"}]
    assert all(field.nullable for field in found.schema)
    assert table.lookup(keys, ["name"], missing="drop").to_pylist() == [{"name": "a2"}, {"name": "a1"}]
    with pytest.raises(NotFound, match=r"has no row for 1 of 3 keys; the first is key 1: {'id': 9}"):
        table.lookup(keys, missing="error")
    with pytest.raises(InvalidRequest, match="missing='skip' is not one of 'null', 'drop', 'error'"):
        table.lookup(keys, missing="skip")


def test_one_key_is_looked_up_as_it_is(tmp_path: Path) -> None:
    table = _table(tmp_path)
    put(table, _rows(range(4)))
    for key in (3, {"id": 3}):
        assert table.lookup(key, ["name"]).to_pylist() == [{"name": "a3"}]
    assert table.lookup(3, missing="error").num_rows == 1


def test_rows_are_joined_in_two_ways_and_from_all_data(tmp_path: Path) -> None:
    table = _table(tmp_path)
    put(table, _rows(range(4)))
    given = [{"id": 1, "x": "p"}, {"id": 9, "x": "q"}]
    with table.lookup_table(["name"]) as rows:
        for data in (given, pa.Table.from_pylist(given), pd.DataFrame(given)):
            assert rows.join(data).to_pylist() == [{"id": 1, "x": "p", "name": "a1"}, {"id": 9, "x": "q", "name": None}]
            assert rows.join(data, how="inner").to_pylist() == [{"id": 1, "x": "p", "name": "a1"}]
        assert rows.join(pa.table({"key": [2]}), on="key").to_pylist() == [{"key": 2, "name": "a2"}]
        with pytest.raises(InvalidRequest, match="how='outer' is not one of 'left', 'inner'"):
            rows.join(given, how="outer")
        with pytest.raises(InvalidRequest, match=r"on=\['a', 'b'\]: the primary key is \(id\); name 1 columns"):
            rows.join(given, on=["a", "b"])
        with pytest.raises(InvalidRequest, match="both sides of the join have column 'name'"):
            rows.join([{"id": 1, "name": "x"}])
        with pytest.raises(InvalidRequest, match="a int cannot be joined"):
            rows.join(5)  # type: ignore[arg-type]


ENGINES: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "partial-update": {"merge-engine": "partial-update"},
    "sum": {"merge-engine": "aggregation", "fields.amount.aggregate-function": "sum"},
    "first-row": {"merge-engine": "first-row"},
}
WAYS: dict[str, dict[str, str]] = {
    "plain": {},
    "lookup": {"changelog-producer": "lookup"},
    "full-compaction": {"changelog-producer": "full-compaction"},
    "vectors": {"deletion-vectors.enabled": "true"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_merge_engine_is_looked_up_as_it_is_read(tmp_path: Path, engine: str, way: str) -> None:
    if (engine, way) in {("first-row", "full-compaction"), ("first-row", "vectors")}:
        pytest.skip("Paimon has no such tables")
    table = _table(tmp_path, {**ENGINES[engine], **WAYS[way]})
    rng = random.Random(5)
    keys = [{"id": i} for i in range(40)]
    with table.lookup_table() as kept:
        for step in range(12):
            put(table, _rows(sorted(rng.sample(range(40), 15)), f"{step}-"))
            if step % 3 == 2:
                table.compact(full=step % 2 == 1)
            expected = table.scan().to_arrow().sort_by("id")
            for lookup in (table.lookup, kept.lookup):
                assert lookup(keys, missing="drop").sort_by("id").equals(expected), (step, lookup)
    assert expected.num_rows > 30
