"""The catalog: each change is there after a restart, or is rejected and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import (
    AlreadyExists,
    ErrorCode,
    ForebayError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    StorageFailure,
)
from forebay.fs import names
from forebay.metadata import types
from forebay.metadata.table import Column, DatabaseInfo, Schema, TableDescriptor, TablePath
from forebay.server import metadata_store
from forebay.server.metadata.catalog import CatalogLimits, TableCatalog
from forebay.server.metadata_store import MetadataStore, OffsetsFile, StoredLakeSnapshot
from tests.server.metadata.catalogs import LIMITS, PATH, descriptor, opened, spec


def seen(catalog: TableCatalog) -> object:
    """Everything that a catalog tells of what it has."""
    assert all(catalog.table_by_id(t.info.table_id) is t for t in catalog.tables())
    tables = [
        (t.info, dict(t.current.schemas), dict(t.current.partitions_by_id), dict(t.current.partition_ids))
        for t in catalog.tables()
    ]
    named = {info.name: catalog.table_names(info.name) for info in catalog.databases()}
    return [catalog.database(name) for name in named], catalog.databases(), named, tables


def long_comment() -> TableDescriptor:
    return replace(descriptor(), comment="x" * (1 << 20))


CHANGES: dict[str, Callable[[TableCatalog], object]] = {
    "create_database": lambda c: c.create_database(DatabaseInfo("new", "why", {"k": "v"}), ignore_if_exists=False),
    "alter_database": lambda c: c.alter_database("db", {"k": "w", "more": "x"}, ["old"], None),
    "comment": lambda c: c.alter_database("db", {}, [], "another"),
    "drop_database": lambda c: c.drop_database("empty", cascade=False),
    "drop_full_database": lambda c: c.drop_database("full", cascade=True),
    "create_table": lambda c: c.create_table(TablePath("db", "t"), descriptor(), ignore_if_exists=False),
    "alter_properties": lambda c: c.alter_properties(PATH, {"mine": "1"}, []),
    "add_columns": lambda c: c.add_columns(PATH, [Column("b", types.int_()), Column("c", types.string())]),
    "create_partition": lambda c: c.create_partition(PATH, spec("new"), ignore_if_exists=False),
    "drop_partition": lambda c: c.drop_partition(PATH, spec("1")),
    "drop_table": lambda c: c.drop_table(PATH),
}


def fill(catalog: TableCatalog) -> None:
    catalog.create_database(DatabaseInfo("db", "why", {"k": "v", "old": "o"}), ignore_if_exists=False)
    catalog.create_database(DatabaseInfo("empty"), ignore_if_exists=False)
    catalog.create_database(DatabaseInfo("full"), ignore_if_exists=False)
    for path in (PATH, TablePath("fluss", "other"), TablePath("full", "t")):
        catalog.create_table(path, descriptor(), ignore_if_exists=False)
        for p in "12":
            catalog.create_partition(path, spec(p), ignore_if_exists=False)


def test_each_change_of_the_catalog_is_there_after_a_restart_and_nothing_else(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalog, _):
        fill(catalog)
        shown = seen(catalog)
    for name, change in CHANGES.items():
        with opened(tmp_path) as (catalog, _):
            assert seen(catalog) == shown, name
            change(catalog)
            assert seen(catalog) != shown, name
            shown = seen(catalog)
            assert [catalog.database_exists(d) for d in ("db", "no")] == [True, False]
    with opened(tmp_path) as (catalog, store):
        assert seen(catalog) == shown
        store.check_rows()
        assert [(d.name, d.table_count) for d in catalog.databases()] == [("db", 1), ("fluss", 1), ("new", 0)]
        assert catalog.database("db").custom_properties == {"k": "w", "more": "x"}
        assert catalog.database("db").comment == "another"
        assert catalog.table_names("fluss") == ["other"]
        assert not catalog.table_exists(PATH)
        assert catalog.table_exists(TablePath("fluss", "other"))
        assert store.doomed_folders() == ["full/t-3", "fluss/t-1/1$q-p1", "fluss/t-1"]
        with pytest.raises(NotFound):
            catalog.table(PATH)
        other = catalog.table(TablePath("fluss", "other"))
        assert catalog.table_by_id(other.info.table_id) is other
        assert list(other.current.partition_ids) == ["1$q", "2$q"]
        dropped = catalog.drop_partition(other.info.path, spec("1"))
        assert other.current.partition("2$q").name == "2$q"
        assert set(other.current.partitions_by_id) == set(other.current.partition_ids.values())
        assert dropped.partition_id not in other.current.partitions_by_id
        with pytest.raises(NotFound):
            other.current.partition("1$q")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TableCatalog, MetadataStore]]:
    with opened(tmp_path_factory.mktemp("catalog")) as (catalog, store):
        fill(catalog)
        yield catalog, store


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda c: c.create_database(DatabaseInfo("db"), False), ErrorCode.DATABASE_ALREADY_EXIST),
        (lambda c: c.create_database(DatabaseInfo("a/b"), False), ErrorCode.INVALID_DATABASE_EXCEPTION),
        (lambda c: c.alter_database("no", {}, [], None), ErrorCode.DATABASE_NOT_EXIST),
        (lambda c: c.drop_database("no", False), ErrorCode.DATABASE_NOT_EXIST),
        (lambda c: c.drop_database("full", False), ErrorCode.DATABASE_NOT_EMPTY),
        (lambda c: c.table_names("no"), ErrorCode.DATABASE_NOT_EXIST),
        (lambda c: c.create_table(PATH, descriptor(), False), ErrorCode.TABLE_ALREADY_EXIST),
        (lambda c: c.create_table(TablePath("no", "t"), descriptor(), False), ErrorCode.DATABASE_NOT_EXIST),
        (lambda c: c.create_table(TablePath("db", "a/b"), descriptor(), False), ErrorCode.INVALID_TABLE_EXCEPTION),
        (lambda c: c.create_table(TablePath("db", "x"), descriptor(9), False), ErrorCode.BUCKET_MAX_NUM_EXCEPTION),
        (lambda c: c.create_table(TablePath("db", "x"), long_comment(), False), ErrorCode.INVALID_TABLE_EXCEPTION),
        (lambda c: c.alter_properties(PATH, {"my.key": "x" * (1 << 20)}, []), ErrorCode.INVALID_TABLE_EXCEPTION),
        (lambda c: c.drop_table(TablePath("db", "no")), ErrorCode.TABLE_NOT_EXIST),
        (lambda c: c.alter_properties(TablePath("db", "no"), {}, []), ErrorCode.TABLE_NOT_EXIST),
        (lambda c: c.add_columns(PATH, [Column("a", types.int_())]), ErrorCode.INVALID_ALTER_TABLE_EXCEPTION),
        (lambda c: c.add_columns(PATH, [Column("b", types.int_())] * 2), ErrorCode.INVALID_ALTER_TABLE_EXCEPTION),
        (
            lambda c: c.add_columns(PATH, [Column("b", types.int_().not_null())]),
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
        ),
        (lambda c: c.create_partition(PATH, spec("1"), False), ErrorCode.PARTITION_ALREADY_EXISTS),
        (lambda c: c.create_partition(PATH, {"p": "3"}, False), ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION),
        (lambda c: c.drop_partition(PATH, spec("3")), ErrorCode.PARTITION_NOT_EXISTS),
    ],
)
def test_what_is_refused_changes_nothing(
    filled: tuple[TableCatalog, MetadataStore], change: Callable[[TableCatalog], object], code: ErrorCode
) -> None:
    catalog, store = filled
    before = seen(catalog)
    with pytest.raises(ForebayError) as refused:
        change(catalog)
    assert refused.value.code == code
    assert seen(catalog) == before
    assert seen(TableCatalog(store, ManualClock(), LIMITS)) == before


def test_what_exists_may_be_ignored(filled: tuple[TableCatalog, MetadataStore]) -> None:
    catalog, _ = filled
    before = seen(catalog)
    catalog.create_database(DatabaseInfo("db"), ignore_if_exists=True)
    catalog.create_table(PATH, descriptor(), ignore_if_exists=True)
    catalog.create_partition(PATH, spec("1"), ignore_if_exists=True)
    assert seen(catalog) == before


def test_a_partition_more_than_the_limits_allow_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalog, _):
        for table, buckets, most, code in (
            (PATH, 1, 3, ErrorCode.PARTITION_MAX_NUM_EXCEPTION),
            (TablePath("fluss", "wide"), 4, 2, ErrorCode.BUCKET_MAX_NUM_EXCEPTION),
        ):
            catalog.create_table(table, descriptor(buckets), ignore_if_exists=False)
            for number in range(most):
                catalog.create_partition(table, spec(f"{number}"), ignore_if_exists=False)
            with pytest.raises(LimitExceeded) as refused:
                catalog.create_partition(table, spec("more"), ignore_if_exists=False)
            assert refused.value.code == code


def test_the_longest_name_of_a_partition_is_that_of_its_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalog, _):
        catalog.create_table(PATH, descriptor(), ignore_if_exists=False)
        longest = names.PARTITION_NAME_BYTES_MAX - len("$") - 100
        catalog.create_partition(PATH, spec("p" * 100, "q" * longest), ignore_if_exists=False)
        with pytest.raises(InvalidRequest, match="is longer than") as refused:
            catalog.create_partition(PATH, spec("p" * 100, "q" * (longest + 1)), ignore_if_exists=False)
        assert refused.value.code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION


@pytest.mark.parametrize("kind", ["log", "kv"])
def test_a_server_may_allow_only_one_kind_of_tables(tmp_path: Path, kind: str) -> None:
    limits = CatalogLimits(log_tables_allowed=kind == "log", kv_tables_allowed=kind == "kv")
    key = Schema.of([Column("a", types.int_())], ["a"])
    tables = {"log": descriptor(), "kv": TableDescriptor(key, bucket_keys=("a",), bucket_count=1)}
    with opened(tmp_path, limits) as (catalog, _):
        for name, each in tables.items():
            if name == kind:
                catalog.create_table(TablePath("fluss", name), each, ignore_if_exists=False)
                continue
            with pytest.raises(InvalidRequest, match=rf"allow\.create\.{name}\.tables"):
                catalog.create_table(TablePath("fluss", name), each, ignore_if_exists=False)


def test_two_tables_never_share_an_id_and_the_default_database_is_made_once(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalog, _):
        created = catalog.database("fluss")
        catalog.create_table(PATH, descriptor(), ignore_if_exists=False)
        catalog.drop_table(PATH)
        assert catalog.table_by_id(1) is None
    with opened(tmp_path) as (catalog, _):
        assert catalog.database("fluss") == created
        catalog.create_table(PATH, descriptor(), ignore_if_exists=False)
        assert catalog.table(PATH).info.table_id == 2
        with pytest.raises(AlreadyExists):
            catalog.create_table(PATH, descriptor(), ignore_if_exists=False)
        with pytest.raises(NotFound) as missing:
            catalog.table(PATH).schema_by_id(2)
        assert missing.value.code == ErrorCode.SCHEMA_NOT_EXIST


# ---- what the store keeps besides -----------------------------------------------------------------------------------


def test_lake_snapshots_are_kept_in_order_and_go_with_their_table(tmp_path: Path) -> None:
    tiered, readable = OffsetsFile("/tiered", 1), OffsetsFile("/readable", 2)
    first = [StoredLakeSnapshot(7, 70, tiered, None), StoredLakeSnapshot(5, 50, tiered, readable)]
    with opened(tmp_path) as (catalog, store):
        catalog.create_table(PATH, descriptor(), ignore_if_exists=False)
        store.put_lake_snapshots(1, [*first, StoredLakeSnapshot(9, 90, tiered, None)])
        store.put_lake_snapshots(1, first)
        store.put_lake_snapshots(2, first[:1])
    with opened(tmp_path) as (catalog, store):
        assert store.lake_snapshots() == {1: tuple(first), 2: tuple(first[:1])}
        assert set(first[0].files) == {tiered}
        assert set(first[1].files) == {tiered, readable}
        catalog.drop_table(PATH)
        assert store.lake_snapshots() == {2: tuple(first[:1])}


def test_folders_are_noted_until_they_are_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalog, _):
        fill(catalog)
        catalog.drop_partition(PATH, spec("1"))
        catalog.drop_table(PATH)
    with opened(tmp_path) as (_, store):
        folders = store.doomed_folders()
        assert len(folders) == 2
        store.folder_removed(folders[0])
    with opened(tmp_path) as (_, store):
        assert store.doomed_folders() == folders[1:]


def test_offsets_of_producers_are_kept_until_their_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_store, "PRODUCER_BYTES_MAX", 10)
    with opened(tmp_path) as (_, store):
        assert store.put_producer_offsets("a", 100, b"1", 0)
        assert not store.put_producer_offsets("a", 200, b"2", 99)
        assert store.put_producer_offsets("b", 300, b"3", 99)
    with opened(tmp_path) as (_, store):
        assert store.producer_offsets("a", 99) == (100, b"1")
        assert store.producer_offsets("a", 100) is None
        assert store.put_producer_offsets("a", 200, b"2", 100)
        assert store.producer_offsets("a", 100) == (200, b"2")
        assert store.expire_producer_offsets(200) == 1
        assert store.producer_offsets("a", 0) is None
        store.delete_producer_offsets("b")
        assert store.producer_offsets("b", 0) is None
        assert store.put_producer_offsets("c", 10, bytes(9), 0)
        with pytest.raises(LimitExceeded):
            store.put_producer_offsets("d", 10, b"12", 0)
        assert store.put_producer_offsets("d", 10, b"1", 0)


def test_a_transaction_that_fails_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    def fail(store: MetadataStore) -> None:
        with store.transaction() as sql:
            sql.execute("DELETE FROM databases")
            sql.execute("SELECT * FROM no_such_table")

    with opened(tmp_path) as (_, store):
        with pytest.raises(StorageFailure, match="cannot write the metadata file"):
            fail(store)
        assert [info.name for info in store.databases()] == ["fluss"]
        assert store.take("writer", 10) == 1
    with opened(tmp_path) as (_, store):
        assert store.take("writer") == 11
