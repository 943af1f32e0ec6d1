"""Lake files that other engines read directly: which ones, and which of their rows a changelog overrides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.base.errors import ErrorCode, InternalError, NotFound
from forebay.client.table import Table
from forebay.lake.source import LakeSource, LakeSplit
from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.metadata.types import DataType
from forebay.unionread.lake_side import LakeSide
from forebay.unionread.overridden import MarkBucket, local_path
from forebay.unionread.splits import LakeSnapshotAndLogSplit, LakeSnapshotSplit
from tests.unionread.world import MEMORY, PAIMON, World

KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@dataclass(frozen=True)
class Described:
    """A source of which only the schema is asked for; its one file is plain."""

    schema: pa.Schema

    def plain_files(self, _split: LakeSplit) -> tuple[str, ...]:
        return ("/file",)


def is_plain(lake: pa.Schema, *columns: Column) -> bool:
    side = LakeSide(cast("LakeSource", Described(lake)), columns)
    return side.plain_files(cast("LakeSplit", None)) is not None


@pytest.mark.parametrize(
    ("lake", "stream", "plain"),
    [
        (pa.int32(), types.tinyint(), True),
        (pa.int8(), types.int_(), True),
        (pa.int64(), types.int_(), False),
        (pa.int32(), types.bigint(), False),
        (pa.int64(), types.bigint(), True),
        (pa.float32(), types.int_(), False),
        (pa.int32(), types.float_(), False),
        (pa.timestamp("us"), types.timestamp(3), True),
        (pa.timestamp("us", "UTC"), types.timestamp(3), False),
        (pa.timestamp("us", "UTC"), types.timestamp_ltz(3), True),
        (pa.timestamp("us"), types.timestamp_ltz(3), False),
        (pa.int64(), types.timestamp(3), False),
        (pa.binary(), types.binary(3), True),
        (pa.binary(3), types.binary(3), True),
        (pa.binary(4), types.binary(3), False),
        (pa.binary(), types.bytes_(), True),
        (pa.string(), types.string(), True),
        (pa.string(), types.bytes_(), False),
        (pa.timestamp("ns"), types.timestamp(9), False),
        (pa.list_(pa.int32()), types.array(types.int_()), False),
    ],
    ids=str,
)
def test_files_are_plain_where_the_lake_stores_values_as_what_they_are(
    lake: pa.DataType, stream: DataType, plain: bool
) -> None:
    assert is_plain(pa.schema([("c", lake)]), Column("c", stream)) == plain


def test_files_without_a_column_of_the_stream_are_not_plain() -> None:
    lake = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    a, b, c = (Column(name, types.bigint()) for name in "abc")
    assert is_plain(lake, b, a)
    assert not is_plain(lake, a, c)


def test_local_paths_are_distinguished_from_those_of_other_stores() -> None:
    for path in ("/lake/a%20b", "file:/lake/a", "file:///lake/a%20b", "file://localhost/lake/a"):
        assert local_path(path) == path.removeprefix("file:").removeprefix("//localhost").replace("//", "")
    for path in ("file://host/lake/a", "s3://bucket/a", "hdfs:/lake/a", "file:///lake//a", "file:lake/a"):
        assert local_path(path) is None


def marking(world: World) -> tuple[Table, MarkBucket]:
    """A bucket whose lake file has keys 0 to 99; of these, 7, 64 and 99 were changed since."""
    table = world.create(KEYED, primary_key=["id"])
    table.upsert([{"id": i, "name": "a"} for i in range(100)])
    world.tier(table)
    table.upsert([{"id": i, "name": "b"} for i in (7, 99, 200)])
    table.delete([{"id": 64}])
    plan = world.plan(table)
    (split,) = plan.splits
    assert isinstance(split, LakeSnapshotAndLogSplit)
    side = plan.reader.lake
    assert side is not None
    files = [path for lake in split.lake for path in side.plain_files(lake) or ()]
    return table, MarkBucket(plan.reader, split.bucket, split.start, split.stop, tuple(files))


def test_rows_that_a_changelog_overrides_are_marked_by_their_places_in_the_files(both: World) -> None:
    if both.lake == MEMORY:
        pytest.skip("it has no files")
    _, mark = marking(both)
    (path,) = mark.files
    (found,) = mark()
    assert found.path == path
    assert len(found.words) == 16
    bits = np.unpackbits(np.frombuffer(found.words, np.uint8), bitorder="little")
    ids = pq.read_table(local_path(path), columns=["id"], partitioning=None)["id"].to_numpy()
    assert sorted(ids[np.flatnonzero(bits)]) == [7, 64, 99]


def test_marks_of_an_empty_file_are_empty_and_a_file_that_is_gone_tells_of_the_snapshot(
    both: World, tmp_path: Path
) -> None:
    if both.lake == MEMORY:
        pytest.skip("it has no files")
    _, mark = marking(both)
    empty = tmp_path / "empty.parquet"
    pq.write_table(KEYED.empty_table(), empty)
    assert [found.words for found in replace(mark, files=(str(empty),))()] == [b""]
    empty.unlink()
    with pytest.raises(NotFound, match=str(empty)) as gone:
        replace(mark, files=(str(empty),))()
    assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    with pytest.raises(InternalError, match="its plan has no lake"):
        replace(mark, reader=replace(mark.reader, lake=None))()


def test_files_of_appended_rows_are_plain_whatever_columns_are_requested(both: World) -> None:
    if both.lake == MEMORY:
        pytest.skip("it has no files")
    table = both.create(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    rows = [{"id": i, "name": f"n{i}"} for i in range(5)]
    table.append(rows)
    both.tier(table)
    for columns in (None, ["name"]):
        plan = both.plan(table, columns=columns)
        (split,) = plan.splits
        assert isinstance(split, LakeSnapshotSplit)
        assert plan.reader.lake is not None
        (path,) = plan.reader.lake.plain_files(split.lake) or ()
        assert pq.read_table(local_path(path), columns=["id", "name"], partitioning=None).to_pylist() == rows


def test_a_projection_into_a_struct_leaves_a_paimon_table_without_plain_files(both: World) -> None:
    if both.lake != PAIMON:
        pytest.skip("other lakes tell by the type alone")
    table = both.create(pa.schema([("s", pa.struct([("a", pa.int64())])), ("id", pa.int64())]))
    table.append([{"s": {"a": 1}, "id": 2}])
    snapshot_id = both.tier(table)
    source = both.storage.create_source(table.path)
    (split,) = source.create_planner(snapshot_id).plan()
    assert source.with_project([[1]]).plain_files(split) is not None
    assert source.plain_files(split) is not None
    assert source.with_project([[1], [0, 0]]).plain_files(split) is None
