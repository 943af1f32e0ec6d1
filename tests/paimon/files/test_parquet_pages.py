"""A few rows of a row group, read from their pages alone."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.paimon.files import parquet_pages
from forebay.paimon.files.parquet_pages import read_rows

ROWS = 3000


def rows_of_all_flat_types() -> pa.Table:
    rng = random.Random(3)
    stamp = dt.datetime(2026, 1, 1)
    columns: dict[str, tuple[pa.DataType, Any]] = {
        "id": (pa.int64(), lambda n: n * 7919),
        "flag": (pa.bool_(), lambda n: n % 3 == 0),
        "few": (pa.string(), lambda n: f"status {n % 7}"),
        "text": (pa.string(), lambda n: "x" * rng.randrange(90) + str(n)),
        "a.b": (pa.binary(), lambda n: rng.randbytes(rng.choice([0, 3, 2000]))),
        "price": (pa.decimal128(30, 4), lambda n: Decimal(n) / 16),
        "day": (pa.date32(), lambda n: (stamp + dt.timedelta(days=n)).date()),
        "at": (pa.timestamp("us"), lambda n: stamp + dt.timedelta(seconds=n)),
        "real": (pa.float32(), lambda n: n / 8),
    }
    made = {}
    for name, (kind, value) in columns.items():
        made[name] = pa.array([None if rng.random() < 0.1 and name != "id" else value(n) for n in range(ROWS)], kind)
    return pa.table(made)


WAYS: dict[str, dict[str, Any]] = {
    "pages of the first version": {"compression": "zstd"},
    "pages of the second version": {"data_page_version": "2.0", "compression": "snappy"},
    "no compression": {"compression": "none", "use_dictionary": False},
    "a dictionary that is given up": {"dictionary_pagesize_limit": 2000},
    "pages of as many rows": {"max_rows_per_page": 100},
    "pages with checksums, and an index": {"write_page_checksum": True, "write_page_index": True},
}


def written(path: Path, data: pa.Table, **how: Any) -> pq.FileMetaData:
    pq.write_table(data, path, row_group_size=ROWS // 2, data_page_size=1500, write_batch_size=64, **how)
    return pq.read_metadata(path)


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_those_of_the_file_wherever_their_pages_begin(tmp_path: Path, way: str) -> None:
    data, rng = rows_of_all_flat_types(), random.Random(way)
    path = tmp_path / "data.parquet"
    footer = written(path, data, **WAYS[way])
    half = ROWS // 2
    ranges = [range(1), range(half - 1, half), range(half), *(range(a, a + 1) for a in range(0, half, 301))]
    ranges += [range(a, rng.randint(a + 1, half)) for a in rng.sample(range(half), 8)]
    for wanted in ranges:
        names = rng.sample(data.schema.names, rng.randint(1, len(data.schema)))
        index = rng.randrange(2)
        with pa.OSFile(str(path)) as source:
            found = read_rows(source, footer, index, names, wanted)
        assert found is not None
        assert found.equals(data.select(names).slice(index * half + wanted.start, len(wanted))), (wanted, names)


def test_pages_before_the_rows_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, decoded = tmp_path / "data.parquet", []
    footer = written(path, rows_of_all_flat_types(), max_rows_per_page=128)
    original = pq.ParquetFile.iter_batches

    def spy(self: pq.ParquetFile, *rows: int, **how: Any) -> Any:
        decoded.extend(rows)
        return original(self, *rows, **how)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    with pa.OSFile(str(path)) as source:
        assert read_rows(source, footer, 1, ["id", "price", "real"], range(1400, 1410)) is not None
    assert 10 <= max(decoded) <= 10 + 128


def test_nested_columns_and_what_is_no_page_are_left_to_others(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    data = pa.table({"n": range(ROWS), "s": [{"x": 1}] * ROWS, "l": [[1, 2]] * ROWS})
    footer = written(path, data, use_dictionary=False)
    content = bytearray(path.read_bytes())
    with pa.OSFile(str(path)) as source:
        for names in (["s"], ["l"], ["n", "s.x"], ["gone"]):
            assert read_rows(source, footer, 0, names, range(3, 4)) is None
    start = footer.row_group(0).column(0).data_page_offset
    for junk in (b"\x00" * 40, b"\xff" * 400, b"\x15\x04\x15\x7f"):
        damaged = bytearray(content)
        damaged[start : start + len(junk)] = junk
        path.write_bytes(damaged)
        with pa.OSFile(str(path)) as source:
            assert read_rows(source, footer, 0, ["n"], range(1200, 1201)) is None
    path.write_bytes(content[: start + 100])
    with pa.OSFile(str(path)) as source:
        assert read_rows(source, footer, 0, ["n"], range(1200, 1201)) is None


def test_a_header_longer_than_what_is_read_at_first_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_pages, "_HEADER_BYTES", 4)
    path = tmp_path / "data.parquet"
    data = rows_of_all_flat_types()
    footer = written(path, data)
    with pa.OSFile(str(path)) as source:
        found = read_rows(source, footer, 0, data.schema.names, range(1000, 1003))
    assert found is not None
    assert found.equals(data.slice(1000, 3))
