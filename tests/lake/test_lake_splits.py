"""Splits, projections and limits of Paimon and Iceberg: what is returned, and what is rejected by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.lake.formats import create_lake_storage
from forebay.lake.source import UNAWARE_BUCKET
from forebay.lake.storage import LakeStorage
from forebay.lakes.iceberg_source import _parts
from forebay.metadata import types
from forebay.metadata.predicate import col
from forebay.metadata.types import DataType
from forebay.testing.lake_contract import LakeContract
from forebay.testing.lake_contract_base import people
from forebay.testing.lake_rounds import TieredTable
from forebay.testing.memory_lake_source import MemorySplit
from tests.lake.iceberg_contract import IcebergContract
from tests.lake.paimon_contract import PaimonContract

CONTRACTS: dict[str, type[LakeContract]] = {"paimon": PaimonContract, "iceberg": IcebergContract}
NESTED: dict[str, DataType] = {
    "id": types.int_(),
    "at": types.row(
        types.field("x", types.int_()), types.field("y", types.row(types.field("z", types.string())))
    ),
    "name": types.string(),
}  # fmt: skip
ROW = {"id": 1, "at": {"x": 2, "y": {"z": "deep"}}, "name": "a"}


@pytest.fixture(params=list(CONTRACTS))
def lake(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def storage(lake: str, tmp_path: Path) -> LakeStorage:
    return create_lake_storage(lake, {"warehouse": str(tmp_path / "lake")})


def log_of(lake: str, storage: LakeStorage, *arguments: Any, **more: Any) -> TieredTable:
    return CONTRACTS[lake]().log_table(storage, *arguments, **more)


def read(table: TieredTable, limit: int | None = None, paths: Sequence[Sequence[int]] | None = None) -> pa.Table:
    """The rows of the only split."""
    source = table.source() if limit is None else table.source().with_limit(limit)
    source = source if paths is None else source.with_project(paths)
    (split,) = table.splits(None, source)
    with source.create_record_reader(split) as reader:
        batches = list(reader.read())
        assert all(batch.num_rows for batch in batches)
        return pa.Table.from_batches(batches, reader.schema)


def test_a_limit_cuts_within_batches_and_between_them(lake: str, storage: LakeStorage) -> None:
    table = log_of(lake, storage, buckets=1)
    table.append(*people(*range(5)))
    table.append(*people(*range(5, 8)))
    for limit in (0, 1, 4, 5, 6, 8, 9):
        assert read(table, limit)["id"].to_pylist() == list(range(min(limit, 8)))
    with pytest.raises(InvalidRequest, match="a limit is a number of rows, 0 or more; got -1"):
        table.source().with_limit(-1)


def test_columns_and_fields_are_chosen_by_their_places(lake: str, storage: LakeStorage) -> None:
    table = log_of(lake, storage, NESTED)
    table.append(ROW)
    for paths, row in (
        ([[2], [0]], {"name": "a", "id": 1}),
        ([[1, 0]], {"at": {"x": 2}}),
        ([[1, 1, 0], [0]], {"at": {"y": {"z": "deep"}}, "id": 1}),
        ([[1, 1], [1, 0]], {"at": {"x": 2, "y": {"z": "deep"}}}),
        ([[1]], {"at": {"x": 2, "y": {"z": "deep"}}}),
    ):
        assert read(table, paths=paths).to_pylist() == [row]
    assert read(table, paths=[]).num_rows == 1
    for paths in ([[]], [[99]], [[-1]], [[0], [0]], [[1], [1, 0]], [[1, 2]], [[1, -1]], [[0, 0]]):
        with pytest.raises(InvalidRequest):
            table.source().with_project(paths)


def test_splits_tell_their_rows_and_place(lake: str, storage: LakeStorage) -> None:
    columns = {"id": types.int_(), "day": types.string()}
    table = log_of(lake, storage, columns, partition_keys=["day"], buckets=4, bucket_keys=["id"])
    for day in ("a", "b"):
        for i in range(2):
            table.append(*({"id": 7, "day": day} for _ in range(i + 1)))
    bucket = table.place_of({"id": 7, "day": "a"})[1]
    found = sorted(table.splits(), key=lambda split: split.partition())
    assert [(s.partition(), s.bucket(), s.rows()) for s in found] == [(("a",), bucket, 3), (("b",), bucket, 3)]
    assert {s.bucket_count() for s in found} == {4 if lake == "paimon" else None}
    serializer = table.source().split_serializer()
    moved = [serializer.deserialize(serializer.version, serializer.serialize(split)) for split in found]
    assert [(s.partition(), s.bucket(), s.rows()) for s in moved] == [(("a",), bucket, 3), (("b",), bucket, 3)]
    chosen = table.source().with_filters([col("day") == "b"]).source
    assert [split.partition() for split in table.splits(None, chosen)] == [("b",)]


def test_a_log_without_a_bucket_key_has_buckets_only_in_iceberg(lake: str, storage: LakeStorage) -> None:
    table = log_of(lake, storage, buckets=1)
    table.append(*people(1))
    (split,) = table.splits()
    assert (split.bucket(), split.bucket_count()) == (UNAWARE_BUCKET if lake == "paimon" else 0, None)


def test_splits_of_others_and_bytes_that_are_none_are_refused(lake: str, storage: LakeStorage) -> None:
    table = log_of(lake, storage)
    table.append(*people(1))
    source = table.source()
    (split,) = table.splits()
    serializer = source.split_serializer()
    data = serializer.serialize(split)
    assert serializer.deserialize(serializer.version, data).rows() == split.rows()
    with pytest.raises(UnsupportedOperation, match=f"version {serializer.version + 1} is newer"):
        serializer.deserialize(serializer.version + 1, data)
    for junk in (b"", b"\0", data[:8], b"x" * 40):
        with pytest.raises(CorruptData):
            serializer.deserialize(serializer.version, junk)
    foreign = MemorySplit(1, "", ((), 0), 0, 1)
    for use in (serializer.serialize, source.create_record_reader, source.plain_files):
        with pytest.raises(InvalidRequest, match="split of a"):
            use(foreign)


def test_snapshots_that_are_not_there_are_distinguished_from_files_that_are_not(
    lake: str, storage: LakeStorage
) -> None:
    table = log_of(lake, storage)
    table.append(*people(1))
    source = table.source()
    with pytest.raises(NotFound, match=r"snapshot 12345 of .* does not exist, or has expired") as gone:
        source.create_planner(12345).plan()
    assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    assert not table.committer().has_snapshot(12345)
    assert table.committer().has_snapshot(table.base or 0)
    (path,) = CONTRACTS[lake]().data_files(storage)
    Path(path).unlink()
    (split,) = table.splits()
    with pytest.raises(NotFound) as lost, source.create_record_reader(split) as reader:
        list(reader.read())
    assert lost.value.code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


def test_filters_on_columns_that_are_not_there_are_not_taken(lake: str, storage: LakeStorage) -> None:
    table = log_of(lake, storage)
    table.append(*people(1, 2))
    result = table.source().with_filters([col("id") == 1, col("nowhere") == 1])
    assert result.accepted == (col("id") == 1,)
    assert (col("nowhere") == 1) in result.remaining


@pytest.mark.parametrize(
    ("target", "cost", "sizes", "parts"),
    [
        (10, 1, [], []),
        (10, 1, [5, 5, 1], [[5, 5], [1]]),
        (10, 1, [5, 6], [[5], [6]]),
        (10, 1, [50, 1], [[50], [1]]),
        (10, 5, [1, 1, 1], [[1, 1], [1]]),
        (10, 20, [1, 1], [[1], [1]]),
    ],
)
def test_files_of_iceberg_are_cut_into_parts_of_about_the_size_of_a_split(
    target: int, cost: int, sizes: list[int], parts: list[list[int]]
) -> None:
    files: list[Any] = [SimpleNamespace(file=SimpleNamespace(file_size_in_bytes=size)) for size in sizes]
    properties = {"read.split.target-size": str(target), "read.split.open-file-cost": str(cost)}
    assert [[f.file.file_size_in_bytes for f in part] for part in _parts(files, properties)] == parts
    assert list(_parts(files, {})) == ([files] if files else [])
