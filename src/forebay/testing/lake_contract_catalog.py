"""The lake contract's rules for catalogs: creating tables, reusing existing ones, altering them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import Conflict, ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.codec.arrow.arrow_types import user_schema
from forebay.lake.storage import LakeStorage
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor, TableInfo, TablePath
from forebay.metadata.types import DataType
from forebay.testing.lake_contract_base import EVERY_TYPE, ID_NAME, NANOSECONDS, LakeContractBase, people
from forebay.testing.lake_rounds import PATH, TieredTable, travelled

WITH_DAY: dict[str, DataType] = {**ID_NAME, "day": types.string()}


def widened(descriptor: TableDescriptor, *columns: Column) -> TableDescriptor:
    """`descriptor` with additional columns at the end."""
    old = descriptor.schema
    first = old.highest_field_id + 1
    added = tuple(replace(c, column_id=first + i) for i, c in enumerate(columns))
    return replace(descriptor, schema=Schema.of([*old.columns, *added], old.primary_key))


def with_options(descriptor: TableDescriptor, **options: str | None) -> TableDescriptor:
    """`descriptor` with custom options set, or removed (None)."""
    merged = {**descriptor.custom_properties, **options}
    return replace(descriptor, custom_properties={k: v for k, v in merged.items() if v is not None})


class CatalogRules(LakeContractBase):
    """Rules for catalogs."""

    @pytest.mark.parametrize("shape", ["log", "hashed", "keyed", "partitioned log", "partitioned keyed"])
    def test_a_new_table_has_the_columns_of_the_stream_and_no_rows(self, storage: LakeStorage, shape: str) -> None:
        """`create_table` supports log and primary-key tables, with and without partitions. A new table has no tiering
        snapshot."""
        keys: dict[str, Any] = {
            "log": {},
            "hashed": {"bucket_keys": ["id"]},
            "keyed": {"primary_key": ["id"]},
            "partitioned log": {"partition_keys": ["day"]},
            "partitioned keyed": {"partition_keys": ["day"], "primary_key": ["id", "day"]},
        }[shape]
        table = self.create(storage, self.descriptor(WITH_DAY, **keys))
        assert table.source().schema.names[:3] == ["id", "name", "day"]
        assert table.committer().get_missing_lake_snapshot(None) is None
        table.round({})
        assert table.read() == []

    def test_columns_of_every_type_are_made(self, storage: LakeStorage) -> None:
        """All columns of a lake table are nullable, and its Arrow types can be cast to those of the stream."""
        columns = {**EVERY_TYPE, **(NANOSECONDS if self.has_nanoseconds else {})}
        table = self.log_table(storage, columns)
        schema = table.source().schema
        expected = user_schema(table.info.schema.columns)
        assert schema.names[: len(columns)] == expected.names
        for f in expected:
            assert schema.field(f.name).nullable
            assert pa.nulls(1, schema.field(f.name).type).cast(f.type).type == f.type

    def test_a_column_that_may_not_be_null_stays_so(self, storage: LakeStorage) -> None:
        table = self.keyed_table(storage, {"id": types.int_(), "name": types.string().not_null()})
        schema = table.source().schema
        assert [schema.field(name).nullable for name in ("id", "name")] == [False, False]

    def test_options_of_the_format_lose_its_prefix_and_others_are_kept_below_fluss(self, storage: LakeStorage) -> None:
        """`<format>.<option>` becomes `<option>` in the lake table; each other option becomes `fluss.<option>`."""
        if self.option_prefix is None:
            pytest.skip("this format takes no options")
        custom = {f"{self.option_prefix}some.option": "a", "owner": "me"}
        self.log_table(storage, custom=custom, properties={"table.datalake.freshness": "1 min"})
        stored = self.stored_options(storage)
        if stored is None:
            pytest.skip("options of this format cannot be seen")
        assert stored["some.option"] == "a"
        assert stored["fluss.owner"] == "me"
        assert stored["fluss.table.datalake.freshness"] == "1 min"

    def test_options_that_follow_from_the_table_are_refused(self, storage: LakeStorage) -> None:
        for option in self.reserved_options:
            with pytest.raises(InvalidRequest, match=option):
                self.log_table(storage, custom={option: "3"})
        with pytest.raises(NotFound):
            storage.create_source(PATH)

    # -- existing tables ----------------------------------------------------------------------------------------------

    def test_an_empty_table_that_fits_is_taken(self, storage: LakeStorage) -> None:
        self.keyed_table(storage)
        table = self.keyed_table(storage)
        table.upsert(*people(1))
        assert table.read() == people(1)

    def test_a_table_with_rows_is_taken_only_for_a_stream_table_that_exists_already(self, storage: LakeStorage) -> None:
        """With `creating`, `create_table` raises `Conflict` for an existing lake table that has rows."""
        table = self.keyed_table(storage)
        table.upsert(*people(1))
        with pytest.raises(Conflict, match="empty") as refused:
            self.create(storage, table.info.descriptor)
        assert refused.value.code == ErrorCode.LAKE_TABLE_ALREADY_EXIST
        again = self.create(storage, table.info.descriptor, creating=False)
        again.base = table.base
        assert again.read() == people(1)

    @pytest.mark.parametrize("creating", [True, False])
    def test_a_table_that_differs_is_refused_with_the_difference(self, storage: LakeStorage, creating: bool) -> None:
        """`Conflict` (LAKE_TABLE_ALREADY_EXIST) names the column, key or bucket count that differs."""
        self.create(storage, self.descriptor(WITH_DAY, primary_key=["id", "name"], bucket_keys=["id"]))
        others = {
            "day": self.descriptor({**WITH_DAY, "day": types.int_()}, primary_key=["id", "name"], bucket_keys=["id"]),
            "more": self.descriptor({**WITH_DAY, "more": types.int_()}, primary_key=["id", "name"], bucket_keys=["id"]),
            "columns": self.descriptor(ID_NAME, primary_key=["id", "name"], bucket_keys=["id"]),
            "primary key": self.descriptor(WITH_DAY, primary_key=["id", "day"], bucket_keys=["id"]),
            "bucket": self.descriptor(WITH_DAY, primary_key=["id", "name"], bucket_keys=["id"], buckets=3),
        }
        for word, other in others.items():
            with pytest.raises(Conflict, match=word) as refused:
                self.create(storage, other, creating=creating)
            assert refused.value.code == ErrorCode.LAKE_TABLE_ALREADY_EXIST

    # -- altering -----------------------------------------------------------------------------------------------------

    def test_options_are_set_changed_and_taken_away(self, storage: LakeStorage) -> None:
        """`alter_table` applies the difference of the options, and the table remains usable."""
        table = self.log_table(storage, custom={"a": "1", "b": "1"})
        altered = table.altered(with_options(table.info.descriptor, a="2", b=None, c="3"))
        stored = self.stored_options(storage)
        if stored is not None:
            assert (stored["fluss.a"], stored["fluss.c"]) == ("2", "3")
            assert "fluss.b" not in stored
        altered.append(*people(1))
        assert altered.read() == people(1)

    def test_an_alteration_may_be_repeated(self, storage: LakeStorage) -> None:
        """`alter_table` does nothing if the lake table is as expected already: a retry adds no column twice."""
        table = self.log_table(storage)
        expected = widened(with_options(table.info.descriptor, a="1"), Column("extra", types.int_(), "why"))
        for _ in range(3):
            altered = table.altered(expected)
        assert altered.source().schema.names[:3] == ["id", "name", "extra"]
        assert altered.source().schema.names.count("extra") == 1

    def test_an_alteration_that_died_half_way_is_finished(self, storage: LakeStorage) -> None:
        """If the column was added before the crash, the retry only sets the options."""
        table = self.log_table(storage)
        table.altered(widened(table.info.descriptor, Column("extra", types.int_())))
        both = widened(with_options(table.info.descriptor, a="1"), Column("extra", types.int_()))
        table.altered(both)
        stored = self.stored_options(storage)
        assert stored is None or stored["fluss.a"] == "1"
        assert table.source().schema.names.count("extra") == 1

    def test_other_alterations_are_refused(self, storage: LakeStorage) -> None:
        """`alter_table` raises `UnsupportedOperation` for changed types, dropped or required columns, and bucket
        counts."""
        table = self.keyed_table(storage)
        current = table.info.descriptor
        other_type = self.descriptor({**ID_NAME, "name": types.bytes_()}, primary_key=["id"])
        fewer = self.descriptor({"id": types.int_()}, primary_key=["id"])
        required = widened(current, Column("extra", types.int_().not_null()))
        for expected in (other_type, fewer, required, replace(current, bucket_count=5)):
            with pytest.raises(UnsupportedOperation):
                table.altered(expected)
        assert table.source().schema.names[:2] == ["id", "name"]

    def test_a_lake_table_changed_by_another_writer_is_not_altered_any_further(self, storage: LakeStorage) -> None:
        table = self.log_table(storage)
        table.altered(widened(table.info.descriptor, Column("theirs", types.int_())))
        with pytest.raises(InvalidRequest) as refused:
            table.altered(widened(table.info.descriptor, Column("ours", types.int_())))
        assert refused.value.code == ErrorCode.INVALID_ALTER_TABLE_EXCEPTION

    # -- what is not there --------------------------------------------------------------------------------------------

    def test_a_missing_table_is_said_to_be_missing(self, storage: LakeStorage) -> None:
        """Each way to use a table that does not exist raises `NotFound`."""
        descriptor = self.descriptor(ID_NAME)
        missing = TieredTable(storage, TableInfo(TablePath("db", "missing"), 1, 1, descriptor))
        for attempt in (
            missing.source,
            missing.committer,
            lambda: missing.altered(with_options(descriptor, a="1")),
            lambda: storage.create_tiering_factory().validate(missing.info),
            lambda: missing.write(((), 0), []),
        ):
            with pytest.raises(NotFound):
                attempt()

    def test_a_table_that_does_not_fit_the_stream_is_not_tiered_into(self, storage: LakeStorage) -> None:
        """`validate` raises `InvalidRequest` if columns, types or the primary key differ."""
        table = self.log_table(storage)
        for columns in ({**ID_NAME, "more": types.int_()}, {**ID_NAME, "name": types.int_()}):
            other = replace(table.info, descriptor=self.descriptor(columns))
            with pytest.raises(InvalidRequest):
                storage.create_tiering_factory().validate(other)
        keyed = replace(table.info, descriptor=self.descriptor(ID_NAME, primary_key=["id"]))
        with pytest.raises(InvalidRequest):
            storage.create_tiering_factory().validate(keyed)

    def test_the_lake_and_all_it_makes_can_travel(self, storage: LakeStorage) -> None:
        """A `LakeStorage` and its objects can be pickled, because workers are other processes."""
        table = self.log_table(storage)
        table.append(*people(1))
        moved = travelled(storage)
        assert moved.format == storage.format
        copy = replace(table, storage=moved)
        copy.append(*people(2))
        assert copy.read() == people(1, 2)
