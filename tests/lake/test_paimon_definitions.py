"""The Paimon table of a stream table, and how an existing one differs from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.lakes.paimon_tables import (
    PaimonLakeCatalog,
    asks_for_system_columns,
    business_fields,
    check_fits,
    definition_of,
    difference,
    has_system_columns,
    lake_table,
    layout_default,
    open_catalog,
)
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor
from forebay.metadata.types import DataType
from forebay.paimon.format.schema import TableSchema
from forebay.testing.lake_rounds import PATH

LEGACY = {"partition.legacy-name": "false"}


def describe(key: tuple[str, ...] = (), columns: dict[str, DataType] | None = None, **more: Any) -> TableDescriptor:
    named = {"id": types.int_(), "name": types.string()} if columns is None else columns
    schema = Schema.of([Column(n, t, f"about {n}") for n, t in named.items()], key)
    return TableDescriptor(schema, **{"bucket_count": 4, **more})


def paimon(**options: str) -> dict[str, dict[str, str]]:
    """Custom properties for Paimon, with '-' for '_'."""
    return {"custom_properties": {f"paimon.{key.replace('_', '-')}": value for key, value in options.items()}}


# ---- definitions ----------------------------------------------------------------------------------------------------


def test_a_log_without_a_bucket_key_has_no_buckets() -> None:
    made = definition_of(describe(comment="said"))
    assert [(f.name, str(f.type), f.description) for f in made.fields] == [
        ("id", "INT", "about id"), ("name", "STRING", "about name")
    ]  # fmt: skip
    assert (made.primary_keys, made.partition_keys, made.comment) == ((), (), "said")
    assert made.options == {**LEGACY, "bucket": "-1"}


def test_keys_are_bucket_keys_unless_others_are_named() -> None:
    columns = {"id": types.int_(), "day": types.string(), "n": types.int_()}
    made = definition_of(describe(("id", "day", "n"), columns, partition_keys=("day",)))
    assert (made.primary_keys, made.partition_keys) == (("id", "day", "n"), ("day",))
    assert made.options == {**LEGACY, "bucket": "4", "bucket-key": "id,n", "changelog-producer": "input"}
    assert definition_of(describe(bucket_keys=("id",))).options == {**LEGACY, "bucket": "4", "bucket-key": "id"}


def test_options_of_paimon_lose_their_prefix_those_of_the_lake_stay_away_and_others_get_one() -> None:
    given = {
        "properties": {"table.log.ttl": "1 d", "table.datalake.paimon.warehouse": "/lake"},
        "custom_properties": {"paimon.a.b": "1", "owner": "me", "paimon.forebay.system-columns": "false"},
    }
    expected = {**LEGACY, "bucket": "-1", "fluss.table.log.ttl": "1 d", "a.b": "1", "fluss.owner": "me"}
    assert definition_of(describe(**given)).options == expected


def test_times_lose_their_digits_also_within_other_types() -> None:
    time = types.time(3)
    columns = {
        "t": time, "l": types.array(time), "m": types.map_(types.string(), time),
        "r": types.row(types.field("t", time), types.field("s", types.timestamp(3))),
    }  # fmt: skip
    assert [str(f.type) for f in definition_of(describe(columns=columns)).fields] == [
        "TIME(0)", "ARRAY<TIME(0)>", "MAP<STRING NOT NULL, TIME(0)>", "ROW<`t` TIME(0), `s` TIMESTAMP(3)>"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("descriptor", "kind", "words"),
    [
        (describe(columns={"__bucket": types.int_()}), InvalidRequest, "'__bucket' is one of the lake's system"),
        (describe(bucket_keys=("id",), bucket_count=None), InvalidRequest, "with a bucket key needs a bucket count"),
        (describe(**paimon(bucket="3")), InvalidRequest, r"'paimon\.bucket' follows from the table's buckets and"),
        (describe(**paimon(path="/x")), UnsupportedOperation, r"'paimon\.path' is not supported"),
        (describe(custom_properties={"paimon.deletion-vectors.enabled": "true"}), UnsupportedOperation, "only after a"),
        (
            describe(custom_properties={"paimon.bucket-function.type": "mod"}),
            UnsupportedOperation,
            r"'paimon\.bucket-function\.type' is 'mod'",
        ),
        (
            describe(custom_properties={"paimon.file.format": "orc"}),
            UnsupportedOperation,
            r"'paimon\.file\.format' asks for files in orc",
        ),
        (
            describe(custom_properties={"paimon.changelog-file.format": "avro"}),
            UnsupportedOperation,
            r"'paimon\.changelog-file\.format' asks for files in avro",
        ),
        (
            describe(custom_properties={"paimon.file.format.per.level": "0:parquet,5:avro"}),
            UnsupportedOperation,
            r"'paimon\.file\.format\.per\.level' asks for files in avro",
        ),
    ],
)
def test_definitions_that_cannot_be_are_refused(descriptor: TableDescriptor, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        definition_of(descriptor)


def test_options_that_say_what_is_so_anyway_are_taken() -> None:
    given = {"deletion-vectors.enabled": "false", "bucket-function.type": "default", "file.format": "PARQUET"}
    made = definition_of(describe(custom_properties={f"paimon.{key}": value for key, value in given.items()}))
    assert given.items() <= made.options.items()
    assert definition_of(describe(bucket_count=None)).options["bucket"] == "-1"


def test_the_layout_is_chosen_by_the_table_or_by_the_lake() -> None:
    name = "paimon.forebay.system-columns"
    for text, wanted in (("true", True), ("false", False)):
        assert asks_for_system_columns(describe(custom_properties={name: text}), not wanted) is wanted
        assert asks_for_system_columns(describe(properties={name: text}), not wanted) is wanted
        assert layout_default({"forebay.system-columns": text}) is wanted
    assert [asks_for_system_columns(describe(), default) for default in (True, False)] == [True, False]
    assert layout_default({})
    with pytest.raises(InvalidRequest, match=f"option '{name}': ") as refused:
        asks_for_system_columns(describe(custom_properties={name: "some"}))
    assert refused.value.code == ErrorCode.INVALID_CONFIG_EXCEPTION


# ---- differences ----------------------------------------------------------------------------------------------------

LOG, KEYED = describe(bucket_keys=("id",)), describe(("id",))
WIDE = describe(columns={"id": types.int_(), "name": types.string(), "more": types.int_()}, bucket_keys=("id",))
NESTED = types.row(types.field("a", types.int_(), "one"), types.field("l", types.array(types.time(3))))
RENUMBERED = replace(
    NESTED, fields=tuple(replace(f, field_id=40 + i, description="other") for i, f in enumerate(NESTED.fields))
)


def made(folder: Path, descriptor: TableDescriptor, *, system_columns: bool = True) -> TableSchema:
    """The schema of a table that was created."""
    options = {"warehouse": str(folder / "lake")}
    catalog = PaimonLakeCatalog(open_catalog(options), system_columns=system_columns)
    catalog.create_table(PATH, descriptor, creating=True)
    return lake_table(options, PATH).schema


@pytest.mark.parametrize("system_columns", [True, False])
def test_columns_of_the_stream_are_distinguished_from_those_of_the_system(tmp_path: Path, system_columns: bool) -> None:
    schema = made(tmp_path, WIDE, system_columns=system_columns)
    assert has_system_columns(schema) is system_columns
    assert [f.name for f in business_fields(schema)] == ["id", "name", "more"]
    assert len(schema.fields) == (6 if system_columns else 3)


@pytest.mark.parametrize(
    ("there", "asked", "problem"),
    [
        (LOG, LOG, None),
        (KEYED, KEYED, None),
        (LOG, replace(LOG, comment="other", properties={"a": "b"}), None),
        (KEYED, LOG, "its primary key is ['id'], and should be []"),
        (
            describe(partition_keys=("name",)),
            describe(),
            "its partition keys are ['name'], and should be []",
        ),
        (WIDE, LOG, "its columns are id, name, more, and should be id, name"),
        (LOG, WIDE, "its columns are id, name, and should be id, name, more"),
        (
            LOG,
            describe(columns={"id": types.int_(), "name": types.int_()}, bucket_keys=("id",)),
            "it has the column 'name STRING' where 'name INT' should be",
        ),
        (LOG, replace(LOG, bucket_count=5), "its option 'bucket' is '4', and should be '5'"),
        (LOG, replace(LOG, bucket_keys=("name",)), "its option 'bucket-key' is 'id', and should be 'name'"),
        (describe(columns={"r": NESTED}), describe(columns={"r": NESTED}), None),
        (describe(columns={"r": NESTED}), describe(columns={"r": RENUMBERED}), None),
        (
            describe(columns={"r": NESTED}),
            describe(columns={"r": types.row(types.field("a", types.int_()), types.field("l", types.int_()))}),
            "it has the column 'r ROW<`a` INT, `l` ARRAY<TIME(0)>>' where 'r ROW<`a` INT, `l` INT>' should be",
        ),
    ],
)
def test_a_table_that_is_there_is_compared_with_the_one_that_is_wanted(
    tmp_path: Path, there: TableDescriptor, asked: TableDescriptor, problem: str | None
) -> None:
    assert difference(made(tmp_path, there), definition_of(asked)) == problem


def test_a_table_may_have_more_columns_where_rows_are_written_and_never_fewer(tmp_path: Path) -> None:
    wide = made(tmp_path, WIDE)
    assert difference(wide, definition_of(LOG), wider=True) is None
    table = lake_table({"warehouse": str(tmp_path / "lake")}, PATH)
    check_fits(table, LOG, PATH)
    longer = describe(
        columns={**{c.name: c.data_type for c in WIDE.schema.columns}, "last": types.int_()}, bucket_keys=("id",)
    )
    with pytest.raises(InvalidRequest, match=r"the lake table db\.t does not fit the stream's: its columns are") as no:
        check_fits(table, longer, PATH)
    assert no.value.code == ErrorCode.INVALID_TABLE_EXCEPTION


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"deletion-vectors.enabled": "true"}, "it has deletion vectors, which tiering does not support"),
        ({"file.format": "orc"}, "its option 'file.format' asks for files in orc, which tiering cannot write"),
        ({"merge-engine": "first-row"}, "its option 'merge-engine' is 'first-row', and should be None"),
        ({"path": "/elsewhere", "owner": "others"}, None),
    ],
)
def test_options_of_others_that_change_what_rows_mean_are_told(
    tmp_path: Path, options: dict[str, str], problem: str | None
) -> None:
    schema = made(tmp_path, LOG)
    changed = replace(schema, options={**schema.options, **options})
    assert difference(changed, definition_of(LOG)) == problem
