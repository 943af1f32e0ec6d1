"""The columns of a data file that get a dictionary: by a sample, and by the table's options."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.paimon.catalog.definition import new_schema
from tests.paimon.files.writers import writer_for

ROWS = 20_000


def columns() -> pa.Table:
    rng = np.random.default_rng(5)
    number = rng.integers(0, 1 << 60, ROWS)
    few = rng.integers(0, 40, ROWS)
    offsets = np.arange(0, 2 * ROWS + 1, 2, dtype=np.int32)
    return pa.table(
        {
            "number": number,
            "real": rng.random(ROWS),
            "text": pa.array(number).cast(pa.string()),
            "status": pa.array([f"status {i}" for i in range(40)]).take(pa.array(few)),
            "small": few,
            "day": np.repeat(np.arange(ROWS // 100), 100),  # sorted: each value comes a hundred times in a row
            "flag": few == 0,
            "nothing": pa.nulls(ROWS, pa.int32()),
            "vector": pa.ListArray.from_arrays(pa.array(offsets), pa.array(rng.random(2 * ROWS))),
            "tags": pa.ListArray.from_arrays(pa.array(offsets), pa.array(rng.integers(0, 5, 2 * ROWS))),
            "pair": pa.StructArray.from_arrays([pa.array(number), pa.array(few)], ["id", "kind"]),
        }
    )


def written(folder: Path, data: pa.Table, options: dict[str, str]) -> Path:
    writer = writer_for(folder, new_schema(data.schema), options)
    writer.write(data)
    (meta,) = writer.close()
    return folder / "bucket-0" / meta.file_name


def with_dictionary(path: Path) -> set[str]:
    group = pq.read_metadata(path).row_group(0)
    found = (group.column(i) for i in range(group.num_columns))
    return {c.path_in_schema for c in found if c.has_dictionary_page}


def test_columns_get_a_dictionary_where_values_repeat(tmp_path: Path) -> None:
    path = written(tmp_path, columns(), {})
    assert with_dictionary(path) - {"nothing"} == {"status", "small", "day", "tags.list.element", "pair.kind"}
    assert pq.read_table(path).cast(columns().schema).equals(columns())


@pytest.mark.parametrize("count", [10, ROWS])
def test_decimals_of_more_than_eighteen_digits_get_none(tmp_path: Path, count: int) -> None:
    """Java's filters would not find their rows (tests/paimon/foreign/test_foreign_java_buckets.py)."""
    sevens = [Decimal(7)] * count
    narrow, wide = pa.array(sevens, pa.decimal128(18, 0)), pa.array(sevens, pa.decimal128(19, 0))
    offsets = pa.array(range(count + 1), pa.int32())
    data = pa.table(
        {
            "narrow": narrow,
            "wide": wide,
            "list": pa.ListArray.from_arrays(offsets, wide),
            "pair": pa.StructArray.from_arrays([narrow, wide], ["n", "w"]),
        }
    )
    assert with_dictionary(written(tmp_path, data, {})) == {"narrow", "pair.n"}


def test_files_are_no_larger_than_with_a_dictionary_for_every_column(tmp_path: Path) -> None:
    data = columns()
    pq.write_table(data, tmp_path / "all.parquet", compression="zstd", compression_level=1)
    assert written(tmp_path, data, {}).stat().st_size < 0.9 * (tmp_path / "all.parquet").stat().st_size


def test_options_turn_dictionaries_off_for_all_columns_or_for_some(tmp_path: Path) -> None:
    option = "parquet.enable.dictionary"
    assert with_dictionary(written(tmp_path, columns(), {option: "false"})) == set()
    some = {f"{option}#status": "false", f"{option}#pair.kind": "false", f"{option}#small": "true"}
    assert with_dictionary(written(tmp_path, columns(), some)) - {"nothing"} == {"small", "day", "tags.list.element"}


@pytest.mark.parametrize("rows", [1, 1023, 1024, 2049])
def test_files_of_any_length_are_written_whole(tmp_path: Path, rows: int) -> None:
    data = columns().slice(7, rows)
    assert pq.read_table(written(tmp_path, data, {})).cast(data.schema).equals(data)
