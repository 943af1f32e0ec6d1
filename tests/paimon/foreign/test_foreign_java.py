"""Java Paimon reads what we write, and we read what it writes: every kind of table, all types, bit by bit."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.metadata import types
from forebay.metadata.predicate import col
from forebay.paimon.format.arrow import arrow_schema
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import sorted_rows
from tests.paimon.foreign.rows import every_row, every_type
from tests.paimon.lake import new_catalog, put

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

APPEND: dict[str, dict[str, Any]] = {
    "append": {},
    "bucketed": {"options": {"bucket": "3", "bucket-key": "id,text"}},
    "full stats": {"options": {"metadata.stats-mode": "full", "metadata.stats-dense-store": "false"}},
    "no stats": {"options": {"metadata.stats-mode": "none"}},
    "counts": {"options": {"metadata.stats-mode": "counts"}},
    "sparse stats": {"options": {"metadata.stats-dense-store": "false"}},
    "no dictionaries": {"options": {"parquet.enable.dictionary": "false"}},
    **{c: {"options": {"file.compression": c}} for c in ("gzip", "snappy", "lz4", "none")},
}
KEYED: dict[str, dict[str, Any]] = {
    "keyed": {"primary_key": ["id"], "options": {"bucket": "2"}},
    "one bucket": {"primary_key": ["id"], "options": {"bucket": "1", "metadata.stats-mode": "none"}},
    "thin": {"primary_key": ["id"], "options": {"bucket": "2", "data-file.thin-mode": "true"}},
    "dynamic": {"primary_key": ["id"], "options": {"bucket": "-1"}},
    "keyed, plain": {
        "primary_key": ["id"],
        "options": {"bucket": "2", "parquet.enable.dictionary": "false"},
    },
    "wide key": {"primary_key": ["text", "id", "d38_6", "ts9"], "options": {"bucket": "3"}},
}
KINDS = APPEND | KEYED
FORMATS: dict[str, dict[str, Any]] = {
    "orc": {"options": {"file.format": "orc"}},
    "avro": {"options": {"file.format": "avro"}},
    "orc, keyed": {"primary_key": ["id"], "options": {"file.format": "orc", "bucket": "2"}},
    "avro, keyed": {"primary_key": ["id"], "options": {"file.format": "avro", "bucket": "2"}},
    **{
        f"{name}, thin": {
            "primary_key": ["id", "text"],
            "options": {"file.format": name, "bucket": "1", "data-file.thin-mode": "true"},
        }
        for name in ("orc", "avro")
    },
    "formats by level": {"primary_key": ["id"], "options": {"file.format.per.level": "0:avro,5:orc", "bucket": "2"}},
    "uncompressed avro": {"options": {"file.format": "avro", "file.compression": "null"}},
    "file index": {
        "options": {"file-index.bloom-filter.columns": "id,text", "file-index.in-manifest-threshold": "1 kb"}
    },
    "file index file": {
        "options": {"file-index.bloom-filter.columns": "id,text", "file-index.in-manifest-threshold": "1 b"}
    },
    "prefix": {"options": {"data-file.prefix": "rows-", "bucket": "2", "bucket-key": "id"}},
    "small files": {"options": {"target-file-row-num": "4"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_java_reads_what_we_write(tmp_path: Path, java_table: JavaTableOf, kind: str) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", every_type(), **KINDS[kind])
    data = _with_keys(every_row(table.schema), KINDS[kind])
    put(table, data.slice(0, 15))
    put(table, data.slice(15))
    theirs = java_table(catalog, "db.t")
    assert theirs.rows() == sorted_rows(table.schema, data)


@pytest.mark.parametrize("digits", [6, 9])
def test_java_and_we_read_timestamps_of_distant_years(tmp_path: Path, java_table: JavaTableOf, digits: int) -> None:
    catalog = new_catalog(tmp_path)
    columns = {
        "id": types.bigint(),
        "ms": types.timestamp(3),
        "us": types.timestamp_ltz(6),
        "x": types.timestamp(digits),
    }
    table = catalog.create_table("db.t", columns)
    years = [datetime.datetime(year, 5, 6, 7, 8, 9, 123_000) for year in (1, 1500, 1969, 2500, 9999)]
    rows = [
        {"id": i, "ms": year, "us": year.replace(tzinfo=datetime.UTC), "x": years[2]} for i, year in enumerate(years)
    ]
    data = pa.Table.from_pylist(rows, schema=arrow_schema(table.schema.fields))
    put(table, data)
    theirs = java_table(catalog, "db.t")
    assert theirs.rows() == sorted_rows(table.schema, data)
    assert sorted_rows(table.schema, table.scan().to_arrow()) == sorted_rows(table.schema, data)
    latest = table.scan(["id"], col("ms") >= datetime.datetime(2400, 1, 1)).to_arrow()
    assert latest["id"].to_pylist() == [3, 4]


@pytest.mark.parametrize("kind", KINDS | FORMATS)
def test_we_read_what_java_writes(tmp_path: Path, java_table: JavaTableOf, kind: str) -> None:
    catalog = new_catalog(tmp_path)
    theirs = java_table(catalog, "db.t")
    definition = (KINDS | FORMATS)[kind]
    theirs.create(every_type(6 if "avro" in str(definition) else 9), **definition)
    table = catalog.table("db.t")
    data = _with_keys(every_row(table.schema), definition)
    theirs.write(table.schema, data.slice(0, 15))
    theirs.write(table.schema, data.slice(15))
    assert sorted_rows(table.schema, table.scan().to_arrow()) == sorted_rows(table.schema, data)


def _with_keys(data: Any, definition: dict[str, Any]) -> Any:
    """The rows that have all of their keys."""
    return data.drop_null() if len(definition.get("primary_key", [])) > 1 else data
