"""Writers: sequence numbers, buffers, changelogs, streams of commits; and tables against a model."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import fs

from forebay.base.errors import InvalidRequest
from forebay.metadata.predicate import col
from forebay.paimon.files.writer import _OpenFile
from forebay.paimon.format.file_meta import EMPTY_ROW
from forebay.paimon.io.arrow_file_io import ArrowFileIO
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.table import Table
from forebay.paimon.write.table_write import WriterShard
from tests.codec.arrow.null_lists import one_null
from tests.every_run import examples
from tests.paimon.lake import live_files, new_catalog, put, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int32())])


def keyed(folder: Path, **options: str) -> Table:
    return new_catalog(folder).create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "1", **options})


def rows(*pairs: tuple[int, int]) -> pa.Table:
    return pa.table({"id": [i for i, _ in pairs], "v": [v for _, v in pairs]}, schema=COLUMNS)


def test_sequence_numbers_continue_through_commits_and_writers(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    put(table, rows((1, 1), (2, 2), (1, 3)))
    with table.new_write() as writer:
        for step in range(2):
            writer.write(rows((1, 4), (5, 5)))
            table.new_commit().commit(writer.prepare_commit(), step)
    found = sorted((f.min_sequence_number, f.max_sequence_number, f.row_count) for f in live_files(table))
    assert found == [(1, 2, 2), (3, 4, 2), (5, 6, 2)]  # number 0 was replaced before it was written


def test_rows_of_bucketed_append_tables_are_numbered_in_the_order_of_commits(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, options={"bucket": "1", "bucket-key": "id"})
    for start in (0, 10, 20):
        put(table, rows(*((start + i, 0) for i in range(10))))
    assert sorted((f.min_sequence_number, f.max_sequence_number) for f in live_files(table)) == [
        (0, 9),
        (10, 19),
        (20, 29),
    ]
    assert table.scan(["id"]).to_arrow()["id"].to_pylist() == list(range(30))


def test_a_full_buffer_becomes_a_file_and_the_latest_row_still_wins(tmp_path: Path) -> None:
    table = keyed(tmp_path, **{"write-buffer-size": "32 kb", "write-only": "true"})
    with table.new_write() as writer:
        for v in range(20):
            writer.write(rows(*((i, v) for i in range(1000))))
        messages = writer.prepare_commit()
        table.new_commit().commit(messages)
    assert len(live_files(table)) > 3
    assert rows_of(table) == sorted(((i, 19) for i in range(1000)), key=repr)


def test_a_full_buffer_of_an_append_table_becomes_a_row_group_of_the_open_file(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, options={"write-buffer-size": "32 kb"})
    with table.new_write() as writer:
        for v in range(4):
            writer.write(rows(*((i, v) for i in range(3000))))
        table.new_commit().commit(writer.prepare_commit())
    (file,) = tmp_path.rglob("*.parquet")
    assert pq.ParquetFile(file).num_row_groups == 4


def test_an_input_changelog_has_every_row_and_its_kind(tmp_path: Path) -> None:
    table = keyed(tmp_path, **{"changelog-producer": "input"})
    with table.new_write() as writer:
        writer.write(rows((1, 1), (1, 2), (2, 2)), ["+I", "+U", "-D"])
        (message,) = writer.prepare_commit()
    (change,) = message.data.changelog_files
    assert change.file_name.startswith("changelog-")
    assert (change.row_count, change.delete_row_count) == (3, 1)
    assert sum(f.row_count for f in message.data.new_files) == 2


def test_many_partitions_need_few_open_files_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = pa.schema([("id", pa.int64()), ("p", pa.int32())])
    table = new_catalog(tmp_path).create_table(
        "db.t", columns, partition_keys=["p"], options={"write-buffer-size": "64 kb"}
    )
    opened: list[int] = []
    original = _OpenFile.__init__

    def counted(self: _OpenFile, *arguments: Any) -> None:
        original(self, *arguments)
        opened.append(len(list(tmp_path.rglob("*.tmp"))))

    monkeypatch.setattr(_OpenFile, "__init__", counted)
    ids = list(range(20_000))
    with table.new_write() as writer:
        for _ in range(3):
            writer.write(pa.table({"id": ids, "p": pa.array([i % 100 for i in ids], pa.int32())}))
        table.new_commit().commit(writer.prepare_commit())
    assert len(opened) > 100
    assert max(opened) <= 64
    assert rows_of(table, ["id"], col("p") == 7) == sorted([(i,) for i in ids if i % 100 == 7] * 3, key=repr)


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_batches_whose_empty_lists_have_no_offsets_are_written(tmp_path: Path, keys: list[str]) -> None:
    batch = one_null(pa.list_(pa.list_(pa.int32())))
    options = {"bucket": "1", "bucket-key": "id"}
    table = new_catalog(tmp_path).create_table("db.t", batch.schema, primary_key=keys, options=options)
    with table.new_write() as writer:
        writer.write_batch(batch, np.zeros(1, np.int8))
        writer.write_bucket(EMPTY_ROW, 0, batch, np.zeros(1, np.int8))
        table.new_commit().commit(writer.prepare_commit())
    assert table.scan().to_arrow().to_pylist() == [{"id": 7, "c": None}] * (1 if keys else 2)


def test_nothing_is_committed_of_what_was_not_prepared(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    with table.new_write() as writer:
        writer.write(rows((1, 1)))
        messages = writer.prepare_commit()
        writer.write(rows((2, 2)))
    table.new_commit().commit(messages)
    assert rows_of(table) == [(1, 1)]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


NEUTRAL: list[tuple[pa.DataType, Any]] = [
    (pa.bool_(), False),
    (pa.int8(), 0),
    (pa.int64(), 0),
    (pa.float32(), 0.0),
    (pa.float64(), 0.0),
    (pa.string(), ""),
    (pa.binary(), b""),
    (pa.decimal128(9, 2), Decimal("0.00")),
    (pa.decimal128(38, 6), Decimal("0.000000")),
    (pa.date32(), datetime.date(1970, 1, 1)),
    (pa.time32("ms"), datetime.time(0)),
    (pa.timestamp("us"), datetime.datetime(1970, 1, 1)),
    (pa.timestamp("us", tz="UTC"), datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)),
    (pa.list_(pa.int32()), []),
    (pa.map_(pa.string(), pa.int32()), []),
    (pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": 0, "y": ""}),
]


def test_rows_deleted_by_their_keys_are_written_with_neutral_values_where_null_is_not_allowed(tmp_path: Path) -> None:
    columns = [pa.field("id", pa.int64(), nullable=False), pa.field("null", pa.int32())]
    columns += [pa.field(f"c{i}", t, nullable=False) for i, (t, _) in enumerate(NEUTRAL)]
    table = new_catalog(tmp_path).create_table(
        "db.t", pa.schema(columns), primary_key=["id"], options={"bucket": "1", "changelog-producer": "input"}
    )
    table.delete([{"id": 7}])
    assert table.scan().to_arrow().num_rows == 0
    ((kind, key, null, *values),) = (
        tuple(row.values()) for row in table.system("audit_log").read().read_all().to_pylist()
    )
    assert (kind, key, null) == ("-D", 7, None)
    assert values == [value for _, value in NEUTRAL]
    with pytest.raises(InvalidRequest, match="c0"):
        put(table, [{"id": 7}])


@pytest.mark.parametrize("io", [LocalFileIO(sync=False), ArrowFileIO(fs.LocalFileSystem())], ids=["local", "arrow"])
@pytest.mark.parametrize("producer", ["none", "input"])
def test_what_was_written_and_not_prepared_is_gone_when_the_writer_is_closed(
    tmp_path: Path, producer: str, io: FileIO
) -> None:
    """Also on stores whose files are visible before they are closed."""
    small = {"write-buffer-size": "32 kb", "file.block-size": "16 kb"}
    table = Table(io, keyed(tmp_path, **small, **{"changelog-producer": producer}).context.paths.root)
    with table.new_write() as writer:
        for v in range(5):
            writer.write(rows(*((i, v) for i in range(2000))))
        made = {p.name.lstrip(".").partition("-")[0] for p in tmp_path.rglob("*") if ".parquet" in p.name}
        assert made == ({"data"} if producer == "none" else {"data", "changelog"})
    assert [p for p in tmp_path.rglob("*") if ".parquet" in p.name] == []


@pytest.mark.parametrize(("index", "count"), [(1, 1), (-1, 2), (2, 2), (0, 0)])
def test_a_writer_is_one_of_those_that_there_are(index: int, count: int) -> None:
    assert [WriterShard(i, 2).index for i in range(2)] == [0, 1]
    with pytest.raises(InvalidRequest, match=f"writer {index} is none of {count}"):
        WriterShard(index, count)


def test_kinds_may_come_in_chunks_of_arrow(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    with table.new_write() as writer:
        writer.write(rows((1, 1), (2, 2), (3, 3)), pa.chunked_array([["+I"], ["-D", "+U"]]))
        assert writer.write(rows(), pa.chunked_array([], pa.string())) == 0
        table.new_commit().commit(writer.prepare_commit())
    assert rows_of(table) == [(1, 1), (3, 3)]


def kinds_of(*kinds: int) -> Any:
    return np.array(kinds, np.int8)


def test_rows_of_a_bucket_that_is_known_are_written_there(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="2", **{"ignore-delete": "true"})
    batch = rows((1, 1), (2, 2), (3, 3)).to_batches()[0]
    with table.new_write() as writer:
        for wrong in (-1, 2):
            with pytest.raises(InvalidRequest, match=f"bucket {wrong} is none of the table's 2"):
                writer.write_bucket(EMPTY_ROW, wrong, batch, kinds_of(0, 0, 0))
        writer.write_bucket(EMPTY_ROW, 1, batch, kinds_of(3, 3, 1))
        assert writer.prepare_commit() == []
        writer.write_bucket(EMPTY_ROW, 1, batch, kinds_of(0, 3, 2))
        (message,) = writer.prepare_commit()
    assert (message.bucket, sum(f.row_count for f in message.data.new_files)) == (1, 2)
    dynamic = new_catalog(tmp_path / "d").create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "-1"})
    with dynamic.new_write() as writer, pytest.raises(InvalidRequest, match="chosen by its index; use write_batch"):
        writer.write_bucket(EMPTY_ROW, 0, batch, kinds_of(0, 0, 0))
    append = new_catalog(tmp_path / "a").create_table("db.t", COLUMNS)
    with append.new_write() as writer, pytest.raises(InvalidRequest, match="bucket 1 is none of the table's 1"):
        writer.write_bucket(EMPTY_ROW, 1, batch, kinds_of(0, 0, 0))


@pytest.mark.parametrize(
    ("options", "kept"),
    [({}, [0, 1, 2, 3]), ({"ignore-update-before": "true"}, [0, 2, 3]), ({"ignore-delete": "true"}, [0, 2])],
)
def test_kinds_of_rows_that_a_table_ignores_are_not_even_in_its_changelog(
    tmp_path: Path, options: dict[str, str], kept: list[int]
) -> None:
    table = keyed(tmp_path, **{"changelog-producer": "input", **options})
    put(table, rows(*((i, i) for i in range(4))), [0, 1, 2, 3])
    log = table.with_options({"incremental-between": "0,1"}).system("audit_log").read().read_all().to_pylist()
    assert sorted(row["id"] for row in log) == kept


def test_a_writer_of_a_rescaled_table_is_told_which_partition_has_which_buckets(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="2")
    put(table, rows((1, 1)))
    other = table.with_options({"bucket": "3"})
    with (
        other.new_write() as writer,
        pytest.raises(InvalidRequest, match=r"the table was written with 2 buckets.* has 3"),
    ):
        writer.write(rows((1, 2)))


def test_as_many_kinds_are_needed_as_rows(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    with table.new_write() as writer:
        with pytest.raises(InvalidRequest, match="1 row kinds were given for more rows"):
            writer.write(rows((1, 1), (2, 2)), ["+I"])
        with pytest.raises(InvalidRequest, match="3 row kinds were given for 2 rows"):
            writer.write(rows((1, 1), (2, 2)), ["+I"] * 3)
    with table.new_write() as writer:
        assert writer.write(rows((1, 1), (2, 2)), ["+I", "-D"]) == 2
        assert writer.delete([{"id": 1}, {"id": 2}]) == 2


def test_append_tables_take_no_deletes_and_kinds_must_fit(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path)
    append = catalog.create_table("db.a", COLUMNS)
    with pytest.raises(InvalidRequest, match="takes no deletes"):
        put(append, rows((1, 1)), ["-D"])
    with pytest.raises(InvalidRequest, match="no primary key"):
        append.delete([{"id": 1}])
    with pytest.raises(InvalidRequest, match="no primary key"):
        append.upsert(rows((1, 1)))
    table = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    for kinds in (["+I"], ["+I"] * 3, ["+I", "?"], [0, 4]):
        with table.new_write() as writer, pytest.raises(InvalidRequest):
            writer.write(rows((1, 1), (2, 2)), kinds)
    assert table.context.snapshots.latest() is None


_KEYS = st.integers(0, 12)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.lists(st.tuples(_KEYS, st.integers(0, 5)), min_size=1, max_size=6)),
        st.tuples(st.just("delete"), st.lists(_KEYS, min_size=1, max_size=4)),
        st.tuples(
            st.just("mixed"), st.lists(st.tuples(_KEYS, st.integers(0, 5), st.booleans()), min_size=1, max_size=6)
        ),
    ),
    max_size=6,
)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=_STEPS,
    options=st.sampled_from(
        [
            {"bucket": "1"},
            {"bucket": "3", "source.split.target-size": "1 b", "source.split.open-file-cost": "1 b"},
            {"bucket": "-1", "dynamic-bucket.target-row-num": "4"},
            {"bucket": "2", "data-file.thin-mode": "true", "metadata.stats-mode": "none"},
        ]
    ),
)
def test_a_table_holds_what_a_dictionary_would(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[Any]]], options: dict[str, str]
) -> None:
    table = new_catalog(tmp_path_factory.mktemp("model")).create_table(
        "db.t", COLUMNS, primary_key=["id"], options=options
    )
    model: dict[int, int] = {}
    for action, items in steps:
        if action == "upsert":
            table.upsert(rows(*items))
            model.update(items)
        elif action == "delete":
            table.delete([{"id": i} for i in items])
            for i in items:
                model.pop(i, None)
        else:
            put(table, rows(*((i, v) for i, v, _ in items)), ["-D" if gone else "+U" for _, _, gone in items])
            for i, v, gone in items:
                if gone:
                    model.pop(i, None)
                else:
                    model[i] = v
    assert rows_of(table) == sorted(model.items(), key=repr)
    for where, holds in (
        (col("v") == 3, lambda i, v: v == 3),
        (col("id") >= 6, lambda i, v: i >= 6),
        (col("id").is_in([1, 7]) & (col("v") < 4), lambda i, v: i in (1, 7) and v < 4),
    ):
        assert rows_of(table, None, where) == sorted(((i, v) for i, v in model.items() if holds(i, v)), key=repr)
    in_order = [
        row["id"] for s in table.scan().plan() for b in table.split_reader().read_sorted(s) for row in b.to_pylist()
    ]
    assert sorted(in_order) == sorted(model)
