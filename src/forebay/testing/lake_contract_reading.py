"""The lake contract's rules for sources: snapshots, splits, projections, filters, limits, sorted readers, types."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import CorruptData, ErrorCode, ForebayError, NotFound, UnsupportedOperation
from forebay.codec.arrow.arrow_types import user_schema
from forebay.lake.source import UNAWARE_BUCKET, LakeSource, SortedRecordReader
from forebay.lake.storage import LakeStorage
from forebay.metadata import types
from forebay.metadata.partitions import partition_text
from forebay.metadata.predicate import Predicate, col
from forebay.metadata.table import TablePath
from forebay.metadata.types import DataType
from forebay.testing.lake_contract_base import EVERY_TYPE, FULL_ROW, NANOSECONDS, LakeContractBase, people
from forebay.testing.lake_contract_catalog import WITH_DAY
from forebay.testing.lake_rounds import Row, TieredTable, in_order, travelled

SPLIT_BYTES_MAX = 8_000
"""The maximum size of a pickled split of a few files, as it is sent with a task."""

NESTED: dict[str, DataType] = {
    "id": types.int_(),
    "address": types.row(
        types.field("city", types.string()),
        types.field("place", types.row(types.field("x", types.int_()), types.field("y", types.int_()))),
    ),
    "score": types.double(),
}
NESTED_ROWS: list[Row] = [
    {"id": 1, "address": {"city": "Oslo", "place": {"x": 1, "y": 2}}, "score": 1.5},
    {"id": 2, "address": None, "score": None},
    {"id": 3, "address": {"city": None, "place": None}, "score": math.inf},
]
MIXED: dict[str, DataType] = {
    "id": types.int_(),
    "text": types.string(),
    "score": types.double(),
    "price": types.decimal(10, 2),
    "day": types.date(),
}
MIXED_ROWS: list[Row] = [
    {
        "id": i,
        "text": None if i % 7 == 0 else f"t{i % 5}",
        "score": None if i % 5 == 0 else math.nan if i % 11 == 0 else i / 4,
        "price": (Decimal(i) / 4 - 2).quantize(Decimal("0.01")) if i % 3 else None,
        "day": dt.date(2024, 1, 1) + dt.timedelta(days=i % 10),
    }
    for i in range(40)
]
FILTERS: list[Predicate] = [
    col("id") == 7,
    col("id").is_in([1, 2, 39, 99]),
    col("id") > 35,
    col("text").is_null(),
    col("text").is_not_null() & (col("id") < 9),
    col("text").starts_with("t1"),
    col("text").not_in(["t1", "t2"]),
    col("score") >= 9.0,
    col("score") != 0.25,
    col("price") < Decimal("-0.5"),
    (col("day") == dt.date(2024, 1, 3)) | (col("price") > Decimal("7")),
    (col("id") >= 3) & (col("text") == "t3"),
    col("id") == -1,
]
"""Filters with nulls, NaN and alternatives."""

KEY_SETS: dict[str, tuple[dict[str, DataType], list[tuple[Any, ...]]]] = {
    "int": ({"k": types.int_()}, [(v,) for v in (-5, 3, 0, -(1 << 31), (1 << 31) - 1, 7)]),
    "string": ({"k": types.string()}, [(v,) for v in ("b", "a", "", "ab", "aa", "é", "😀", "￿", "a\x00", "a\x01")]),
    "decimal": ({"k": types.decimal(38, 2)}, [(Decimal(v),) for v in ("-1.5", "0", "1.25", "-99999999999999999999")]),
    "timestamp": (
        {"k": types.timestamp(6)},
        [(dt.datetime(y, 1, 1, 0, 0, 0, u),) for y in (1900, 1970, 2024) for u in (0, 1, 999999)],
    ),
    "date, string": (
        {"k": types.date(), "l": types.string()},
        [(dt.date(y, 1, 1), t) for y in (1969, 2024) for t in ("b", "", "ba")],
    ),
    "string, bigint": (
        {"k": types.string(), "l": types.bigint()},
        [(t, n) for t in ("a", "a\x00", "", "aa") for n in (-1, 0, 1 << 40)],
    ),
}


class ReadingRules(LakeContractBase):
    """Rules for sources."""

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def test_every_snapshot_is_read_as_it_was(self, storage: LakeStorage) -> None:
        """Later upserts and deletes do not change the rows of an older snapshot."""
        table = self.keyed_table(storage)
        first = table.upsert(*people(1, 2)).snapshot_id
        second = table.upsert(*people(2, 3, name="new")).snapshot_id
        table.delete(*people(1))
        assert table.read(first) == people(1, 2)
        assert table.read(second) == in_order([*people(1), *people(2, 3, name="new")])
        assert table.read() == people(2, 3, name="new")

    def test_an_unknown_snapshot_is_not_found(self, storage: LakeStorage) -> None:
        """The error has the code LAKE_SNAPSHOT_NOT_EXIST, also in a table without snapshots."""
        table = self.log_table(storage)
        with pytest.raises(NotFound) as refused:
            table.splits(1)
        assert refused.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
        table.append(*people(1))
        with pytest.raises(NotFound) as refused:
            table.splits(4711)
        assert refused.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST

    def test_a_snapshot_that_expires_is_not_found_by_planners_nor_by_readers(self, storage: LakeStorage) -> None:
        """A planner or reader created before the expiry returns the rows of its snapshot, or raises
        LAKE_SNAPSHOT_NOT_EXIST."""
        table = self.keyed_table(storage, buckets=1)
        for i in range(4):
            table.upsert(*people(1, name=f"r{i}"))
        old = table.base
        planner = table.source().create_planner(old or 0)
        splits = table.splits()
        self.disturb(storage)
        table.upsert(*people(2))
        if not self.expire_old_snapshots(storage):
            pytest.skip("snapshots of this format cannot be expired here")
        # A file that still exists may be read; it is the snapshot that is not found.
        for attempt in (planner.plan, lambda: [list(table.source().create_record_reader(s).read()) for s in splits]):
            assert self.code_of(attempt) in (None, ErrorCode.LAKE_SNAPSHOT_NOT_EXIST)
        assert self.code_of(lambda: table.splits(old)) == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
        assert table.read() == [*people(1, name="r3"), *people(2)]

    def code_of(self, attempt: Callable[[], object]) -> int | None:
        """The error code of the `NotFound` raised by `attempt`; None if it does not raise it."""
        try:
            attempt()
        except NotFound as e:
            return e.code
        return None

    # -- splits -------------------------------------------------------------------------------------------------------

    def test_splits_tell_their_bucket_and_partition(self, storage: LakeStorage) -> None:
        """The rows of a split belong to the bucket and partition that it reports, and no row is in two splits."""
        table = self.keyed_table(storage, WITH_DAY, partition_keys=["day"], primary_key=["id", "day"], buckets=3)
        rows: list[Row] = [{"id": i, "name": "x", "day": "ab"[i % 2]} for i in range(20)]
        table.upsert(*rows)
        source = table.source()
        all_rows: list[Row] = []
        for split in table.splits():
            with source.create_record_reader(split) as reader:
                split_rows = [r for batch in reader.read() for r in table.plain(batch)]
            assert {table.place_of(r) for r in split_rows} == {(split.partition(), split.bucket())}
            all_rows += split_rows
        assert in_order(all_rows) == in_order(rows)

    def test_splits_of_a_log_without_bucket_keys_name_its_buckets_or_none(self, storage: LakeStorage) -> None:
        table = self.log_table(storage, buckets=2)
        table.round({((), b): [("+A", r) for r in people(b)] for b in range(2)})
        buckets = {s.bucket() for s in table.splits()}
        assert buckets in ({0, 1}, {UNAWARE_BUCKET})
        assert {s.partition() for s in table.splits()} == {()}

    def test_partitions_of_all_types_are_told_as_in_the_stream(self, storage: LakeStorage) -> None:
        """`LakeSplit.partition` has the text of the stream's partition names. A filter on the partition key that is
        accepted prunes partitions."""
        for number, (t, values) in enumerate(self.partition_values):
            name = f"p{number}"
            descriptor = self.descriptor({"id": types.int_(), name: t}, partition_keys=[name])
            table = self.create(storage, descriptor, path=TablePath("db", name))
            texts = [partition_text(t, v) for v in values]
            for i, (value, text) in enumerate(zip(values, texts, strict=True)):
                table.round({((text,), 0): [("+A", {"id": i, name: value})]})
            assert {s.partition() for s in table.splits()} == {(text,) for text in texts}
            assert table.read() == in_order({"id": i, name: v} for i, v in enumerate(values))
            result = table.source().with_filters([col(name) == values[1]])
            assert table.read(source=result.source, remaining=result.remaining) == [{"id": 1, name: values[1]}]
            if result.accepted:
                assert {s.partition() for s in table.splits(None, result.source)} == {(texts[1],)}

    def test_splits_cross_processes_as_bytes(self, storage: LakeStorage) -> None:
        """A serialized split is smaller than `SPLIT_BYTES_MAX`, and an unpickled source reads the same rows from it."""
        table = self.keyed_table(storage, WITH_DAY, partition_keys=["day"], primary_key=["id", "day"], buckets=1)
        for i in range(3):
            table.upsert({"id": i, "name": "x" * 200, "day": "day-1"}, {"id": i, "name": "y", "day": "b"})
        source = table.source()
        serializer = source.split_serializer()
        for split in table.splits():
            data = serializer.serialize(split)
            assert max(len(data), len(pickle.dumps(split))) < SPLIT_BYTES_MAX
            again = travelled(source).split_serializer().deserialize(serializer.version, data)
            assert (again.bucket(), again.partition()) == (split.bucket(), split.partition())
            assert self.read_split(source, again) == self.read_split(source, split) != []

    def test_bytes_that_are_no_split_are_refused(self, storage: LakeStorage) -> None:
        """`deserialize` raises `UnsupportedOperation` for a newer version, `CorruptData` for malformed bytes."""
        table = self.log_table(storage)
        table.append(*people(1))
        serializer = table.source().split_serializer()
        data = serializer.serialize(table.splits()[0])
        with pytest.raises(UnsupportedOperation):
            serializer.deserialize(serializer.version + 1, data)
        for damaged in (b"", b"nonsense", data[: len(data) // 2]):
            with pytest.raises(CorruptData):
                serializer.deserialize(serializer.version, damaged)

    def read_split(self, source: LakeSource, split: Any) -> list[Row]:
        with source.create_record_reader(split) as reader:
            return in_order(r for batch in reader.read() for r in batch.to_pylist())

    # -- projections --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("keyed", [False, True])
    def test_columns_come_in_the_order_they_are_requested(self, storage: LakeStorage, keyed: bool) -> None:
        """`with_project` determines the order of the columns."""
        table = self.mixed(storage, keyed)
        for names in (["text"], ["day", "id"], ["price", "score"]):
            source = table.source().with_project([[list(MIXED).index(name)] for name in names])
            rows = table.read(source=source)
            assert repr(rows) == repr(in_order({name: r[name] for name in names} for r in MIXED_ROWS))
            assert not rows or list(rows[0]) == names

    @pytest.mark.parametrize("keyed", [False, True])
    def test_without_columns_rows_are_still_counted(self, storage: LakeStorage, keyed: bool) -> None:
        table = self.mixed(storage, keyed)
        rows = table.read(source=table.source().with_project([]))
        assert rows == [{}] * len(MIXED_ROWS)

    def test_fields_of_rows_are_read_alone(self, storage: LakeStorage) -> None:
        """`with_project` accepts paths to nested fields, at any depth. A null row remains null."""
        table = self.log_table(storage, NESTED)
        table.append(*NESTED_ROWS)
        city = [a and {"city": a["city"]} for a in (r["address"] for r in NESTED_ROWS)]
        both = [
            a and {"city": a["city"], "place": a["place"] and {"y": a["place"]["y"]}}
            for a in (r["address"] for r in NESTED_ROWS)
        ]
        cases: list[tuple[list[list[int]], list[Any]]] = [([[1, 0]], city), ([[1, 1, 1], [1, 0]], both)]
        for paths, addresses in cases:
            source = table.source().with_project([[2], *paths])
            expected = [{"score": r["score"], "address": a} for r, a in zip(NESTED_ROWS, addresses, strict=True)]
            assert self.rows_of(table, source) == in_order(expected)

    def test_columns_that_are_not_there_are_refused(self, storage: LakeStorage) -> None:
        source = self.log_table(storage, NESTED).source()
        strange: list[list[list[int]]] = [[[99]], [[-1]], [[0], [0]], [[1, 7]], [[0, 0]], [[]]]
        for paths in strange:
            with pytest.raises(ForebayError):
                source.with_project(paths)

    def rows_of(self, table: TieredTable, source: LakeSource) -> list[Row]:
        """The rows, with the types of the lake."""
        return in_order(r for split in table.splits(None, source) for r in self.read_split(source, split))

    def mixed(self, storage: LakeStorage, keyed: bool) -> TieredTable:
        """A table with `MIXED_ROWS`; if it is keyed, these have older versions and deleted neighbours."""
        if not keyed:
            table = self.log_table(storage, MIXED)
            for part in (MIXED_ROWS[:15], MIXED_ROWS[15:]):
                table.append(*part)
            return table
        table = self.keyed_table(storage, MIXED, buckets=3)
        old = [{**r, "text": "t1", "score": 9.5, "price": Decimal(-1)} for r in MIXED_ROWS[:30]]
        deleted = [{**r, "id": r["id"] + 1000} for r in MIXED_ROWS[:10]]
        table.upsert(*old, *deleted)
        table.upsert(*MIXED_ROWS)
        table.delete(*deleted)
        return table

    # -- filters ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("keyed", [False, True])
    def test_filters_that_remain_make_exactly_the_rows_that_match(self, storage: LakeStorage, keyed: bool) -> None:
        """A source returns at least the matching rows; the remaining filters leave exactly these."""
        table = self.mixed(storage, keyed)
        everything = table.read()
        for predicate in FILTERS:
            exact = in_order(self.matching(table, everything, [predicate]))
            result = table.source().with_filters([predicate])
            assert {*result.accepted, *result.remaining} == {predicate}
            assert repr(table.read(source=result.source, remaining=result.remaining)) == repr(exact)
            within = table.read(source=travelled(result.source))
            assert {repr(r) for r in within} <= {repr(r) for r in everything}

    @pytest.mark.parametrize("keyed", [False, True])
    def test_several_filters_hold_together_and_may_name_columns_that_are_not_read(
        self, storage: LakeStorage, keyed: bool
    ) -> None:
        """Filters are combined with AND, and are independent of the projection."""
        table = self.mixed(storage, keyed)
        everything = table.read()
        predicates: list[Predicate] = [col("text") == "t2", col("id") < 25]
        expected = self.matching(table, everything, predicates)
        result = table.source().with_filters(predicates)
        assert repr(table.read(source=result.source, remaining=result.remaining)) == repr(in_order(expected))
        if not result.remaining:
            only_score = result.source.with_project([[2]])
            rows = table.read(source=only_score)
            assert repr(rows) == repr(in_order({"score": r["score"]} for r in expected))

    def test_filters_that_are_not_understood_remain(self, storage: LakeStorage) -> None:
        table = self.mixed(storage, False)
        strange = [col("unknown") == 1, col("id") == "text"]
        result = table.source().with_filters(strange)
        assert (result.accepted, result.remaining) == ((), tuple(strange))
        assert len(table.read(source=result.source)) == len(MIXED_ROWS)

    def test_a_filter_does_not_bring_back_an_older_version(self, storage: LakeStorage) -> None:
        """In a table with a primary key, a filter applies to the newest row of a key, not to older rows in other
        files."""
        table = self.keyed_table(storage, buckets=1)
        table.upsert(*people(1, 2, 3, name="old"))
        table.upsert(*people(1, 2, name="new"))
        table.delete(*people(3))
        result = table.source().with_filters([col("name").starts_with("old")])
        assert table.read(source=result.source, remaining=result.remaining) == []

    def matching(self, table: TieredTable, rows: list[Row], filters: list[Predicate]) -> list[Row]:
        """The rows that match, by the library's own filter evaluation."""
        batch = pa.RecordBatch.from_pylist(rows, schema=user_schema(table.info.schema.columns))
        return table.plain(batch, None, filters)

    # -- limits -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("keyed", [False, True])
    def test_a_limit_leaves_enough_rows_of_every_split(self, storage: LakeStorage, keyed: bool) -> None:
        """Each split returns at least as many rows as the limit, or all of its rows."""
        table = self.mixed(storage, keyed)
        source = table.source()
        for limit in (0, 1, 5, 1000):
            few = source.with_limit(limit)
            assert len(table.splits(None, few)) == len(table.splits())
            for split in table.splits():
                whole, part = self.read_split(source, split), self.read_split(travelled(few), split)
                assert min(limit, len(whole)) <= len(part) <= len(whole)
                assert {repr(r) for r in part} <= {repr(r) for r in whole}

    # -- sorted readers -----------------------------------------------------------------------------------------------

    def test_only_tables_with_a_key_have_sorted_readers(self, storage: LakeStorage) -> None:
        table = self.log_table(storage)
        table.append(*people(1))
        assert table.source().create_sorted_reader(table.splits()) is None

    @pytest.mark.parametrize("keys", KEY_SETS)
    def test_a_sorted_reader_yields_each_key_once_in_its_order(self, storage: LakeStorage, keys: str) -> None:
        """Rows of several rounds are merged by key. `order.comparable` of the keys is ascending, and equal for equal
        keys in any batch."""
        columns, values = KEY_SETS[keys]
        if len(columns) > self.bucket_keys_max:
            pytest.skip("this format's bucket keys have fewer columns")
        table = self.keyed_table(storage, {**columns, "v": types.int_()}, primary_key=list(columns), buckets=1)
        rows = [{**dict(zip(columns, key, strict=True)), "v": i} for i, key in enumerate(values)]
        for part in (rows[::2], rows[1::2], [{**r, "v": r["v"] + 100} for r in rows[::3]]):
            table.round({((), 0): [("+U", r) for r in part]})
        expected = [{**r, "v": r["v"] + 100 * (i % 3 == 0)} for i, r in enumerate(rows)]
        reader = self.sorted_reader(table, table.source())
        with reader:
            batches = list(reader.read())
        order = reader.order
        assert order.columns == tuple(columns)
        ranks = [order.comparable(b.select(list(columns))).to_pylist() for b in batches]
        ordered = [rank for part in ranks for rank in part]
        assert ordered == sorted(set(ordered))
        assert in_order(r for b in batches for r in table.plain(b)) == in_order(expected)
        # The same keys encoded one by one, as they come from a log, have the same bytes.
        alone = [
            order.comparable(b.select(list(columns)).slice(i, 1))[0].as_py() for b in batches for i in range(len(b))
        ]
        assert alone == ordered

    def test_a_sorted_reader_brings_several_splits_into_one_order(self, storage: LakeStorage) -> None:
        """`create_sorted_reader` merges the splits of a bucket, given in any order."""
        table = self.keyed_table(storage, buckets=1, custom=dict(self.many_splits))
        for first in (30, 0, 20, 10):
            table.upsert(*people(*range(first, first + 10)))
        splits = table.splits()
        reader = table.source().create_sorted_reader(splits[1:] + splits[:1])
        if reader is None:
            assert not self.sorts
            return
        keys = [
            (rank, r["id"])
            for b in reader.read()
            for rank, r in zip(self.ranks(reader, b), table.plain(b), strict=True)
        ]
        assert keys == sorted(keys)
        assert sorted(i for _, i in keys) == list(range(40))
        ids_of_splits = [{r["id"] for r in self.read_split(table.source(), s)} for s in splits]
        assert sum(map(len, ids_of_splits)) == 40
        assert len(ids_of_splits) > 1 or not self.many_splits

    def ranks(self, reader: SortedRecordReader, batch: pa.RecordBatch) -> list[bytes]:
        """The comparable keys of a batch."""
        ranks: list[bytes] = reader.order.comparable(batch.select(list(reader.order.columns))).to_pylist()
        return ranks

    def test_a_sorted_reader_adds_the_key_behind_the_columns(self, storage: LakeStorage) -> None:
        """Key columns that are not projected follow the projected columns."""
        table = self.keyed_table(storage, MIXED, buckets=1)
        table.upsert(*MIXED_ROWS)
        for paths, names in (([[2]], ["score", "id"]), ([], ["id"]), ([[1], [0]], ["text", "id"])):
            reader = self.sorted_reader(table, table.source().with_project(paths))
            assert reader.schema.names == names
            assert sum(b.num_rows for b in reader.read()) == len(MIXED_ROWS)

    def test_a_sorted_reader_without_splits_is_empty_and_has_an_order(self, storage: LakeStorage) -> None:
        """A union read needs the order of a bucket that has no rows in the lake."""
        table = self.keyed_table(storage)
        reader = table.source().create_sorted_reader([])
        if not self.sorts:
            assert reader is None
            return
        assert reader is not None
        assert list(reader.read()) == []
        assert reader.order.columns == ("id",)
        assert reader.schema.names[:2] == ["id", "name"]
        assert len(reader.order.comparable(pa.RecordBatch.from_pydict({"id": pa.array([], pa.int32())}))) == 0

    def test_a_sorted_reader_filters_the_newest_versions(self, storage: LakeStorage) -> None:
        """A filter of a sorted read does not return an older row of a key, as in an unsorted read."""
        table = self.keyed_table(storage, buckets=1)
        table.upsert(*people(1, 2, 3, name="old"))
        table.upsert(*people(2, name="new"))
        result = table.source().with_filters([col("name").starts_with("old")])
        reader = self.sorted_reader(table, result.source)
        rows = [r for b in reader.read() for r in table.plain(b, None, result.remaining)]
        assert in_order(rows) == people(1, 3, name="old")

    def sorted_reader(self, table: TieredTable, source: LakeSource) -> SortedRecordReader:
        """A sorted reader of the table's only bucket; skips the test if the format has none."""
        reader = travelled(source).create_sorted_reader(travelled(table.splits(None, source)))
        if not self.sorts:
            assert reader is None
            pytest.skip("this format does not sort")
        assert reader is not None
        return reader

    # -- types --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("keyed", [False, True])
    def test_values_of_every_type_come_back(self, storage: LakeStorage, keyed: bool) -> None:
        """The values include nulls, extreme numbers, empty lists and the first representable date."""
        columns, full = dict(EVERY_TYPE), dict(FULL_ROW)
        if self.has_nanoseconds:
            columns |= NANOSECONDS
            full |= {"nanos": full["micros"], "exact": full["moment"]}
        table = self.keyed_table(storage, columns) if keyed else self.log_table(storage, columns)
        nulls: Row = {**dict.fromkeys(columns), "id": 2}
        opposite = {
            **full, "id": 3, "flag": False, "tiny": 127, "real": math.inf, "double": -0.0, "list": [], "map": [],
            "row": None, "huge": Decimal(0), "day": dt.date(1, 1, 1), "clock": dt.time(0), "text": "",
        }  # fmt: skip
        rows = [full, nulls, opposite]
        table.round(table.changes("+U" if keyed else "+A", rows))
        expected = pa.RecordBatch.from_pylist(rows, schema=user_schema(table.info.schema.columns)).to_pylist()
        assert repr(table.read()) == repr(in_order(expected))
