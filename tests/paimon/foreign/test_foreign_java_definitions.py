"""Other parts of a schema, set by either side: defaults, nullability, comments, positions, codecs, bucket counts."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.base.errors import ForebayError
from forebay.metadata import types
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.store.schema_changes import (
    MoveColumn,
    Position,
    RemoveOption,
    SchemaChange,
    SetOption,
    UpdateColumnComment,
    UpdateColumnDefault,
    UpdateColumnNullability,
    UpdateComment,
)
from forebay.paimon.table import Table
from tests.paimon.foreign.both_sides import COLUMNS, KEYED, WRITE_ONLY, agree, data_of, numbered, write_in_turn
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaError, sorted_rows
from tests.paimon.foreign.rows import every_row, every_type
from tests.paimon.lake import altered, live_files, new_catalog, put

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

_ABC = {"id": types.int_(), "a": types.bigint(), "b": types.string(), "c": types.decimal(6, 2)}
CHANGES: list[tuple[list[Any], SchemaChange]] = [
    (["default", "b", "nothing"], UpdateColumnDefault(("b",), "nothing")),
    (["default", "c", "1.5"], UpdateColumnDefault(("c",), "1.5")),
    (["comment", "a", "how many"], UpdateColumnComment(("a",), "how many")),
    (["first", "c"], MoveColumn("c", Position("first"))),
    (["after", "a", "b"], MoveColumn("a", Position("after", "b"))),
    (["option", "snapshot.num-retained.max", "40"], SetOption("snapshot.num-retained.max", "40")),
    (["remove option", "snapshot.num-retained.max"], RemoveOption("snapshot.num-retained.max")),
    (["table comment", "letters"], UpdateComment("letters")),
    (["default", "b", None], UpdateColumnDefault(("b",), None)),
]


@pytest.mark.parametrize("definition", [{}, KEYED], ids=["append", "keyed"])
def test_either_side_changes_definitions_to_the_same_schema(
    tmp_path: Path, java_table: JavaTableOf, definition: dict[str, Any]
) -> None:
    catalog = new_catalog(tmp_path)
    ours = catalog.create_table("db.ours", _ABC, **definition)
    theirs = catalog.create_table("db.theirs", _ABC, **definition)
    java = java_table(catalog, "db.theirs")
    for number, (by_java, by_us) in enumerate(CHANGES):
        ours = altered(ours, [by_us])
        java.ask("alter", changes=[by_java])
        theirs = theirs.refresh()
        assert ours.schema.fields == theirs.schema.fields
        assert ours.schema.options == theirs.schema.options
        assert ours.schema.comment == theirs.schema.comment
        # No nulls: Java writes defaults instead of them, and we only where a column is left out.
        values = {"id": number, "a": number, "b": "text", "c": Decimal("0.25")}
        row = pa.Table.from_pylist([values], schema=arrow_schema(ours.schema.fields))
        put(ours, row)
        java.write(theirs.schema, row)
        assert agree(ours, java_table(catalog, "db.ours")) == agree(theirs, java)
    assert ours.schema.id == theirs.schema.id == len(CHANGES)


def test_columns_that_are_left_out_get_the_defaults_that_java_set(tmp_path: Path, java_table: JavaTableOf) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _ABC, **KEYED)
    java = java_table(catalog, "db.t")
    java.ask("alter", changes=[["default", "b", "nothing"], ["default", "c", "1.5"]])
    table = table.refresh()
    put(table, [{"id": 1, "a": 5}])
    java.write(table.schema, data_of(table, (2, 5, None, None)))
    assert [row[1:] for row in agree(table, java)] == [[5, "nothing", "1.50"], [5, "nothing", "1.50"]]


@pytest.mark.parametrize("definition", [{}, KEYED], ids=["append", "keyed"])
def test_nullability_changes_and_is_kept_by_both(
    tmp_path: Path, java_table: JavaTableOf, definition: dict[str, Any]
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", {**_ABC, "b": types.string().not_null()}, **definition)
    java = java_table(catalog, "db.t")
    put(table, data_of(table, (1, None, "b", None)))
    with pytest.raises(ForebayError, match="b"):
        put(table, pa.table({"id": pa.array([2], pa.int32())}))
    unset = data_of(table, (2, None, "b", None)).set_column(2, pa.field("b", pa.string()), pa.nulls(1, pa.string()))
    with pytest.raises(JavaError, match=r"(?i)null"):
        java.write(table.schema, unset)
    java.ask("alter", changes=[["nullable", "b", True]])
    table = table.refresh()
    put(table, data_of(table, (3, None, None, None)))
    java.write(table.schema, data_of(table, (4, None, None, None)))
    assert [row[2] for row in agree(table, java)] == ["b", None, None]
    table = table.alter(set={"alter-column-null-to-not-null.disabled": False})
    altered(table, [UpdateColumnNullability(("a",), False)])
    assert '"type" : "BIGINT NOT NULL"' in java.ask("schema")


# ---- codecs ---------------------------------------------------------------------------------------------------------

CODECS = ("zstd", "snappy", "gzip", "lz4", "lz4_raw", "none", "uncompressed", "ZSTD", "brotli")


@pytest.mark.parametrize("codec", CODECS)
def test_files_of_every_codec_are_read_by_the_other_side(tmp_path: Path, java_table: JavaTableOf, codec: str) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", every_type(), options={"file.compression": codec})
    java = java_table(catalog, "db.t")
    data = every_row(table.schema)
    try:
        java.write(table.schema, data)
    except JavaError:  # what Java cannot write (its Hadoop has no such codec), it cannot read from us either
        assert codec in ("brotli", "lz4_raw", "uncompressed")
        return
    assert sorted_rows(table.schema, table.scan().to_arrow()) == sorted_rows(table.schema, data)
    put(table, data)
    assert len(agree(table, java)) == 2 * data.num_rows
    used = {_codec(table, f.file_name) for f in live_files(table)}
    # Java's lz4 is Hadoop's, for which Arrow has no name; what we write is lz4_raw, which newer readers want.
    assert len(used) == 1 or codec == "lz4"


def _codec(table: Table, name: str) -> str:
    found: str = (
        pq.ParquetFile(f"{table.context.paths.root}/bucket-0/{name}").metadata.row_group(0).column(0).compression
    )
    return found


@pytest.mark.parametrize(
    "options",
    [
        *({"file.format": "orc", "file.compression": c} for c in ("zstd", "zlib", "snappy", "lz4", "none")),
        *({"file.format": "avro", "file.compression": c} for c in ("zstd", "snappy", "deflate", "bzip2", "null")),
    ],
    ids=lambda o: " ".join(o.values()),
)
def test_orc_and_avro_files_of_every_codec_are_read(
    tmp_path: Path, java_table: JavaTableOf, options: dict[str, str]
) -> None:
    catalog = new_catalog(tmp_path)
    java = java_table(catalog, "db.t")
    java.create(every_type(6), options=options)
    table = catalog.table("db.t")
    data = every_row(table.schema)
    java.write(table.schema, data)
    assert sorted_rows(table.schema, table.scan().to_arrow()) == sorted_rows(table.schema, data)


# ---- bucket counts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buckets", [1, 5])
def test_our_rescale_of_one_partition_is_understood_by_java(
    tmp_path: Path, java_table: JavaTableOf, buckets: int
) -> None:
    catalog = new_catalog(tmp_path)
    columns = {"p": types.string(), **COLUMNS}
    table = catalog.create_table(
        "db.t", columns, primary_key=["p", "id"], partition_keys=["p"], options={"bucket": "2"}
    )
    java = java_table(catalog, "db.t")
    rows = [("xy"[i % 2], i, f"v{i}") for i in range(40)]
    put(table, data_of(table, *rows[:30]))
    java.write(table.schema, data_of(table, *rows[20:]), options=WRITE_ONLY)
    before = agree(table, java)
    table = table.rescale(buckets, {"p": "x"})
    assert agree(table, java) == before
    java.write(table.schema, data_of(table, ("x", 0, "new"), ("z", 1, "new")))
    put(table, data_of(table, ("x", 2, "newer"), ("z", 2, "newer")))
    many = data_of(table, *(("y", i, "refused") for i in range(20)))
    with pytest.raises(JavaError, match="bucket"):  # of a single row Java takes note only if its bucket had been there
        java.write(table.schema, many)
    with pytest.raises(ForebayError, match="bucket"):
        put(table, data_of(table, ("y", 1, "refused")))
    assert len(agree(table, java)) == len(before) + 2
    table.compact(full=True)
    table = table.rescale(buckets)
    java.write(table.schema, data_of(table, ("y", 1, "taken")))
    assert ["y", 1, "taken"] in agree(table, java)
    plan = java.ask("plan")
    assert {split["total_buckets"] for split in plan} == {buckets}


@pytest.mark.parametrize(
    "definition", [KEYED, {"options": {"bucket": "2", "bucket-key": "id"}}], ids=["keyed", "append"]
)
def test_javas_rescale_is_understood_by_us(tmp_path: Path, java_table: JavaTableOf, definition: dict[str, Any]) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, **definition)
    java = java_table(catalog, "db.t")
    write_in_turn(table, java, 4)
    before = agree(table, java)
    java.ask("alter", changes=[["option", "bucket", "3"]])
    assert agree(table, java) == before
    whole = table.scan().to_arrow()
    java.write(table.schema, whole, op="overwrite", partition={})
    assert agree(table, java) == before
    put(table.refresh(), numbered(table, range(3), "ours "))
    java.write(table.schema, numbered(table, range(900, 903), "theirs "))
    after = agree(table, java)
    assert len(after) == len(before) + (3 if "primary_key" in definition else 6)
    table.refresh().compact(full=True)
    assert agree(table, java) == after
