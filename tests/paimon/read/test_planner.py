"""Plans of whole tables: deletion vectors, levels that are not read, misleading statistics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.metadata.predicate import col
from forebay.paimon.format.commit_message import DataIncrement
from forebay.paimon.format.file_meta import DeletionVectorMeta, IndexFileMeta
from forebay.paimon.format.stats import ColumnStats, pack_stats
from tests.paimon.lake import new_catalog, planned_files, put, rows_of, stream_of
from tests.paimon.read.commit_messages import at_level, deletion_vector, in_format, postponed, prepared
from tests.paimon.stream.model import drain

COLUMNS = pa.schema([("id", pa.int64()), ("x", pa.float64())])


@pytest.mark.parametrize("keyed", [True, False])
def test_rows_in_deletion_vectors_are_gone(tmp_path: Path, keyed: bool) -> None:
    options = {"bucket": "1", "deletion-vectors.enabled": "true"} | ({} if keyed else {"bucket-key": "id"})
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"] if keyed else [], options=options)
    message = at_level(prepared(table, pa.table({"id": list(range(10)), "x": [float(i) for i in range(10)]})), 5)
    (file,) = message.data.new_files
    vector = deletion_vector([2, 7])
    index = IndexFileMeta(
        "DELETION_VECTORS", "index-1", len(vector) + 1, 1, (DeletionVectorMeta(file.file_name, 1, len(vector) - 8, 2),)
    )
    Path(table.context.paths.index_file(index, message.partition, 0)).parent.mkdir()
    Path(table.context.paths.index_file(index, message.partition, 0)).write_bytes(b"\1" + vector)
    increment = DataIncrement(message.data.new_files, new_index_files=(index,))
    table.new_commit().commit([replace(message, data=increment)])
    assert [r[0] for r in rows_of(table)] == [0, 1, 3, 4, 5, 6, 8, 9]
    assert rows_of(table, ["id"], col("id").is_in([6, 7])) == [(6,)]
    (split,) = table.scan(limit=8).plan()
    assert split.raw_convertible
    assert split.deletion_files is not None


@pytest.mark.parametrize("options", [{"merge-engine": "first-row"}, {"deletion-vectors.enabled": "true"}])
def test_level_zero_is_invisible_where_compaction_has_to_look_things_up_first(
    tmp_path: Path, options: dict[str, str]
) -> None:
    options = {"bucket": "1", "write-only": "true", **options}
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    message = prepared(table, pa.table({"id": [1, 2]}))
    table.new_commit().commit([at_level(message, 5)])
    put(table, pa.table({"id": [3]}))
    assert rows_of(table, ["id"]) == [(1,), (2,)]


@pytest.mark.parametrize(
    ("count", "level"),
    [(None, 0), (None, 5), (0, 0)],
    ids=["an old writer did not count", "nor at higher levels", "pypaimon says 0 whatever there is"],
)
def test_files_without_true_delete_counts_are_checked_row_by_row(tmp_path: Path, count: int | None, level: int) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    with table.new_write() as writer:
        writer.write(pa.table({"id": [1, 2]}), ["+I", "-D"])
        (message,) = writer.prepare_commit()
    files = tuple(replace(f, delete_row_count=count, level=level) for f in message.data.new_files)
    table.new_commit().commit([replace(message, data=DataIncrement(files))])
    assert rows_of(table, ["id"]) == [(1,)]


@pytest.mark.parametrize(("count", "level"), [(None, 5), (0, 0)])
def test_a_limit_counts_on_no_rows_of_files_that_may_hold_deletes(
    tmp_path: Path, count: int | None, level: int
) -> None:
    options = {"bucket": "1", "source.split.target-size": "1 b"}
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    for ids in ([1, 2], [3, 4]):
        with table.with_options({"write-only": "true"}).new_write() as writer:
            writer.write(pa.table({"id": ids}), ["-D", "+I"])
            (message,) = writer.prepare_commit()
        files = tuple(replace(f, delete_row_count=count, level=level) for f in message.data.new_files)
        table.new_commit().commit([replace(message, data=DataIncrement(files))])
    assert [s.raw_convertible for s in table.scan().plan()] == [True, True]
    assert rows_of(table, ["id"]) == [(2,), (4,)]
    assert table.scan(["id"], limit=2).to_arrow().num_rows == 2


def test_a_limit_takes_no_more_splits_than_have_its_rows(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, options={"source.split.target-size": "1 b"})
    for _ in range(3):
        put(table, pa.table({"id": [1, 2, 3]}))
    assert [len(table.scan(limit=limit).plan()) for limit in (0, 1, 3, 4, 6, 9, 10)] == [0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(("engine", "x"), [("aggregation", 18.0), ("deduplicate", 5.0)])
def test_where_compaction_looks_rows_up_the_lowest_row_above_level_0_holds_all_below(
    tmp_path: Path, engine: str, x: float
) -> None:
    """13 at level 4 has the 10 of level 5 in it; 5 is new."""
    options = {"bucket": "1", "merge-engine": engine, "changelog-producer": "lookup", "write-only": "true"}
    table = new_catalog(tmp_path).create_table(
        "db.t", COLUMNS, primary_key=["id"], options={**options, "fields.x.aggregate-function": "sum"}
    )
    for level, value in ((5, 10.0), (4, 13.0), (0, 5.0)):
        message = prepared(table, pa.table({"id": [1], "x": [value]}))
        table.new_commit().commit([at_level(message, level) if level else message])
    assert rows_of(table) == [(1, x)]


@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
@pytest.mark.parametrize("levels", [(0, 0), (5, 0)])
def test_files_without_key_columns_are_merged_whatever_their_format(
    tmp_path: Path, file_format: str, levels: tuple[int, int]
) -> None:
    columns = pa.schema([("name", pa.string()), ("id", pa.int64()), ("x", pa.float64())])
    table = new_catalog(tmp_path).create_table(
        "db.t", columns, primary_key=["id", "name"], options={"bucket": "1", "data-file.thin-mode": "true"}
    )
    for x, level in zip((1.0, 2.0), levels, strict=True):
        rows = pa.table({"name": ["a", "b"], "id": [1, int(x)], "x": [x, x]})
        message = prepared(table, rows)
        if file_format != "parquet":
            message = in_format(table, message, file_format)
        table.new_commit().commit([at_level(message, level) if level else message])
    assert rows_of(table) == [("a", 1, 2.0), ("b", 1, 1.0), ("b", 2, 2.0)]
    assert rows_of(table, ["x"]) == [(1.0,), (2.0,), (2.0,)]
    assert rows_of(table, ["id"], col("id") == 1) == [(1,), (1,)]
    assert table.lookup([(1, "a"), (2, "b"), (3, "c")])["x"].to_pylist() == [2.0, 2.0, None]
    table.compact(full=True)
    assert rows_of(table) == [("a", 1, 2.0), ("b", 1, 1.0), ("b", 2, 2.0)]


@pytest.mark.parametrize("producer", ["none", "lookup"])
def test_postponed_rows_are_hidden_until_they_are_compacted(tmp_path: Path, producer: str) -> None:
    """Java writes them unsorted, with a key several times. A stream without a changelog reads them as written."""
    options = {"bucket": "-2", "changelog-producer": producer}
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    data = pa.table({"id": [3, 1, 2, 1], "x": [3.0, 1.0, 2.0, 1.5]})
    with table.lookup_table() as lookups:
        table.new_commit().commit([postponed(table, data, [0, 0, 0, 2])])
        assert (rows_of(table), table.scan().count(), planned_files(table)) == ([], 0, [])
        assert rows_of(table.with_options({"incremental-between": "0,1"})) == []
        assert lookups.lookup([1, 2], missing="drop").num_rows == 0  # from here on, it follows each commit
        message = prepared(table.with_options({"bucket": "1"}), pa.table({"id": [1, 4], "x": [0.5, 4.0]}))
        table.new_commit().commit([at_level(message, 5)])
        table.new_commit().commit([postponed(table, data.slice(0, 1), [3])])
        assert rows_of(table) == [(1, 0.5), (4, 4.0)]
        assert lookups.refresh()
        assert lookups.lookup([1, 2, 4], missing="drop")["x"].to_pylist() == [0.5, 4.0]
    in_buckets = [("+I", (1, 0.5)), ("+I", (4, 4.0))]
    written = [("+I", (3, 3.0)), ("+I", (1, 1.0)), ("+I", (2, 2.0)), ("+U", (1, 1.5)), ("-D", (3, 3.0))]
    changes = drain(stream_of(table, follow=False))
    assert changes == ([*written, *in_buckets] if producer == "none" else in_buckets)


def test_an_upper_bound_of_floats_says_nothing_about_nan(tmp_path: Path) -> None:
    """Parquet's bounds leave NaN out, and for filters NaN is greater than everything: other writers' bounds mislead."""
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS)
    message = prepared(table, pa.table({"id": [1, 2], "x": [1.0, float("nan")]}))
    stats = pack_stats(table.schema.fields, [ColumnStats(1, 2, 0), ColumnStats(1.0, 1.0, 0)])
    files = tuple(replace(f, value_stats=stats, value_stats_cols=None) for f in message.data.new_files)
    table.new_commit().commit([replace(message, data=DataIncrement(files))])
    assert rows_of(table, ["id"], col("x") > 5) == [(2,)]
    assert rows_of(table, ["id"], col("x") == float("nan")) == [(2,)]
    assert planned_files(table, col("x") < 0) == []


def test_statistics_of_other_shapes_prune_nothing(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS)
    message = prepared(table, pa.table({"id": [1]}))
    files = tuple(replace(f, value_stats=pack_stats([], []), value_stats_cols=None) for f in message.data.new_files)
    table.new_commit().commit([replace(message, data=DataIncrement(files))])
    assert rows_of(table, ["id"], col("id") == 1) == [(1,)]


def test_a_table_without_snapshots_is_empty_and_limits_are_checked(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS)
    assert (table.scan().plan(), table.scan().count()) == ((), 0)
    assert table.scan(["x"]).to_arrow().schema == pa.schema([("x", pa.float64())])
    with pytest.raises(InvalidRequest, match="limit"):
        table.scan(limit=-1)
    with pytest.raises(InvalidRequest, match="no column 'nope'"):
        table.scan(filter=col("nope") == 1)
