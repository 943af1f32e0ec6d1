"""The layout of Iceberg tables of streams, the options that determine it, and the metadata of their files."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, StringType, TimestampType, TimeType

from forebay.base.errors import Conflict, CorruptData, InvalidRequest, NotFound, StorageFailure, UnsupportedOperation
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.rows.buckets import bucket_ids
from forebay.codec.rows.keys import bucket_key_encoder
from forebay.lake.formats import lake_formats
from forebay.lake.source import SnapshotSuccessor
from forebay.lakes import iceberg_upkeep
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.lakes.iceberg_commit import Change, commit
from forebay.lakes.iceberg_files import FileWriter
from forebay.lakes.iceberg_rows import live_batches
from forebay.lakes.iceberg_tables import SYSTEM_COLUMNS, catalog_properties, load_table, opened
from forebay.lakes.iceberg_tiering import TIERED_TAG
from forebay.lakes.iceberg_types import arrow_schema, internal_value
from forebay.lakes.iceberg_upkeep import Upkeep
from forebay.metadata import types
from forebay.metadata.predicate import col
from forebay.metadata.table import Column
from forebay.metadata.types import DataType
from forebay.testing.lake_contract_base import ID_NAME, people
from forebay.testing.lake_contract_catalog import widened
from forebay.testing.lake_rounds import PATH, TieredTable, changes_of, in_order
from tests.lake.iceberg_contract import IcebergContract
from tests.lake.iceberg_tables import END_OF_TIME, compact, expire, lake_table
from tests.patience import PATIENCE


@pytest.fixture
def storage(tmp_path: Path) -> IcebergLakeStorage:
    return IcebergLakeStorage({"warehouse": str(tmp_path / "lake")})


def keyed(storage: IcebergLakeStorage, **more: Any) -> TieredTable:
    return IcebergContract().keyed_table(storage, **{"buckets": 1, **more})


# ---- options --------------------------------------------------------------------------------------------------------


def test_the_format_is_found_by_its_name() -> None:
    assert "iceberg" in lake_formats()


def test_without_pyiceberg_the_package_to_install_is_named() -> None:
    program = (
        "import sys; sys.modules['pyiceberg'] = None\n"
        "from forebay.lake.formats import create_lake_storage\n"
        "try: create_lake_storage('iceberg', {'warehouse': 'x'})\n"
        "except NotImplementedError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert "pip install 'forebay[iceberg]'" in done.stdout


def test_without_a_catalog_a_sqlite_file_in_the_warehouse_is_one(tmp_path: Path) -> None:
    found = catalog_properties({"warehouse": str(tmp_path)})
    assert found == {"type": "sql", "warehouse": tmp_path.as_uri(), "uri": f"sqlite:///{tmp_path}/catalog.db"}
    assert catalog_properties({"warehouse": tmp_path.as_uri()}) == found


def test_a_jdbc_catalog_of_java_is_the_sql_catalog_of_python(tmp_path: Path) -> None:
    found = catalog_properties({"type": "jdbc", "uri": "jdbc:sqlite:/x/c.db", "warehouse": str(tmp_path)})
    assert (found["type"], found["uri"]) == ("sql", "sqlite:////x/c.db")


@pytest.mark.parametrize(
    ("options", "kind", "word"),
    [
        ({}, InvalidRequest, "warehouse"),
        ({"warehouse": "s3://bucket/lake"}, InvalidRequest, "uri"),
        ({"type": "hadoop", "warehouse": "/x"}, UnsupportedOperation, "hadoop"),
        ({"type": "rest", "catalog-impl": "org.example.Mine"}, UnsupportedOperation, "org.example.Mine"),
    ],
)
def test_options_that_lead_to_no_catalog_are_refused(options: dict[str, str], kind: type[Exception], word: str) -> None:
    with pytest.raises(kind, match=word):
        IcebergLakeStorage(options)


def test_properties_of_other_catalogs_are_passed_on() -> None:
    options = {"type": "REST", "uri": "http://127.0.0.1:8181", "warehouse": "w", "token": "t"}
    assert catalog_properties(options) == {**options, "type": "rest"}


# ---- definitions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SYSTEM_COLUMNS))
def test_names_of_system_columns_are_refused(storage: IcebergLakeStorage, name: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        IcebergContract().log_table(storage, {**ID_NAME, name: types.int_()})


@pytest.mark.parametrize("t", [types.timestamp(9), types.timestamp_ltz(7)])
def test_timestamps_with_more_than_six_digits_are_refused(storage: IcebergLakeStorage, t: DataType) -> None:
    with pytest.raises(UnsupportedOperation, match="six"):
        IcebergContract().log_table(storage, {"id": types.int_(), "t": t})


def test_several_bucket_keys_are_refused(storage: IcebergLakeStorage) -> None:
    with pytest.raises(InvalidRequest, match="at most one bucket key"):
        IcebergContract().log_table(storage, bucket_keys=["id", "name"])


@pytest.mark.parametrize("t", [types.boolean(), types.double()])
def test_bucket_keys_of_types_that_iceberg_does_not_hash_are_refused(storage: IcebergLakeStorage, t: DataType) -> None:
    with pytest.raises(InvalidRequest, match="bucket key"):
        IcebergContract().log_table(storage, {"id": t}, bucket_keys=["id"])


@pytest.mark.parametrize("t", [types.float_(), types.double()])
def test_keys_of_floating_point_numbers_are_refused(storage: IcebergLakeStorage, t: DataType) -> None:
    with pytest.raises(UnsupportedOperation, match=r"'id' of type .* primary key"):
        keyed(storage, columns={"id": t.not_null(), "name": types.string()})


def test_other_versions_of_the_format_are_refused(storage: IcebergLakeStorage) -> None:
    with pytest.raises(UnsupportedOperation, match="format-version"):
        IcebergContract().log_table(storage, custom={"iceberg.format-version": "3"})
    IcebergContract().log_table(storage, custom={"iceberg.format-version": "2"})


@pytest.mark.parametrize("option", ["write.format.default", "write.delete.format.default"])
def test_files_in_formats_that_are_not_written_are_refused(storage: IcebergLakeStorage, option: str) -> None:
    with pytest.raises(UnsupportedOperation, match=f"{option}.*orc"):
        IcebergContract().log_table(storage, custom={f"iceberg.{option}": "orc"})
    IcebergContract().log_table(storage, custom={f"iceberg.{option}": "Parquet"})


def test_an_existing_table_with_other_properties_is_refused(storage: IcebergLakeStorage) -> None:
    IcebergContract().log_table(storage, custom={"owner": "me"})
    with pytest.raises(Conflict, match=r"fluss\.owner"):
        IcebergContract().log_table(storage, custom={"owner": "you"})


def test_new_columns_go_before_the_system_columns(storage: IcebergLakeStorage) -> None:
    table = keyed(storage)
    table.altered(widened(table.info.descriptor, Column("extra", types.array(types.int_()), "why")))
    schema = lake_table(storage).metadata.schema()
    assert [f.name for f in schema.fields] == ["id", "name", "extra", *SYSTEM_COLUMNS]
    assert schema.find_field("extra").doc == "why"


BUCKETED: list[tuple[DataType, Any, list[Any]]] = [
    (types.int_(), IntegerType(), [0, 1, -1, 34, 2**31 - 1, -(2**31)]),
    (types.bigint(), LongType(), [0, 34, -1, 2**63 - 1, -(2**63)]),
    (types.string(), StringType(), ["", "iceberg", "snow ☃", "😀"]),
    (types.date(), DateType(), [dt.date(2017, 11, 16), dt.date(1969, 12, 31), dt.date(1, 1, 1)]),
    (types.timestamp(6), TimestampType(), [dt.datetime(2017, 11, 16, 22, 31, 8, 1), dt.datetime(1900, 1, 1)]),
    (types.timestamp(3), TimestampType(), [dt.datetime(2017, 11, 16, 22, 31, 8, 1000)]),
    (types.time(3), TimeType(), [dt.time(22, 31, 8), dt.time(0), dt.time(23, 59, 59, 999000)]),
    (types.decimal(9, 2), DecimalType(9, 2), [Decimal("14.20"), Decimal("0.00"), Decimal("-1.28"), Decimal("1.27")]),
    (types.decimal(38, 4), DecimalType(38, 4), [Decimal("-99999999999999999999.0001"), Decimal("2.5500")]),
]


@pytest.mark.parametrize(("t", "iceberg", "values"), BUCKETED, ids=[str(t) for t, _, _ in BUCKETED])
def test_the_bucket_of_the_stream_is_the_one_that_iceberg_computes(
    t: DataType, iceberg: Any, values: list[Any]
) -> None:
    descriptor = IcebergContract().descriptor({"k": t}, bucket_keys=["k"], buckets=7)
    encoder = bucket_key_encoder(descriptor)
    assert encoder is not None
    rows = pa.RecordBatch.from_pylist([{"k": v} for v in values], schema=storage_schema(descriptor.schema.columns))
    transform: Any = BucketTransform(7).transform(iceberg)
    found = bucket_ids(encoder.encode(rows), 7, "iceberg").tolist()
    assert found == [transform(internal_value(v)) for v in values]


@pytest.mark.parametrize(
    ("t", "values"), [(t, values) for t, _, values in BUCKETED], ids=[str(t) for t, *_ in BUCKETED]
)
def test_rows_are_found_by_a_bucket_key_of_every_type(
    storage: IcebergLakeStorage, t: DataType, values: list[Any]
) -> None:
    table = IcebergContract().log_table(storage, {"k": t}, bucket_keys=["k"], buckets=3)
    table.append(*({"k": v} for v in values))
    assert table.read() == in_order([{"k": v} for v in values])
    source = table.source().with_filters([col("k") == values[0]]).source
    assert table.read(source=source) == [{"k": values[0]}]


# ---- what is written ------------------------------------------------------------------------------------------------


def test_system_columns_say_where_a_row_is_in_the_stream(storage: IcebergLakeStorage) -> None:
    table = IcebergContract().log_table(storage)
    table.round({((), 1): [("+A", r) for r in people(1, 2)]})
    rows = lake_table(storage).scan(selected_fields=tuple(SYSTEM_COLUMNS)).to_arrow().to_pylist()
    when = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    assert [(r["__bucket"], r["__offset"], r["__timestamp"].astimezone(dt.UTC)) for r in rows] == [
        (1, 0, when),
        (1, 1, when),
    ]


def test_files_lie_below_their_partition_and_bucket(storage: IcebergLakeStorage) -> None:
    columns = {"id": types.int_(), "day": types.string()}
    table = IcebergContract().log_table(storage, columns, partition_keys=["day"])
    table.round({(("a",), 1): [("+A", {"id": 1, "day": "a"})]})
    [task] = lake_table(storage).scan().plan_files()
    assert "/data/day=a/__bucket=1/" in task.file.file_path
    assert (list(task.file.partition._data), task.file.sort_order_id) == (["a", 1], 1)
    assert task.file.lower_bounds[1] == (1).to_bytes(4, "little")
    assert task.file.null_value_counts[1] == 0


def test_a_row_of_another_partition_is_refused(storage: IcebergLakeStorage) -> None:
    columns = {"id": types.int_(), "day": types.string()}
    table = IcebergContract().log_table(storage, columns, partition_keys=["day"])
    for rows in (["b"], ["a", "b"]):
        with pytest.raises(InvalidRequest, match="day"):
            table.write((("a",), 0), [("+A", {"id": 1, "day": day}) for day in rows])


def test_a_key_that_changes_often_in_a_round_is_written_once(storage: IcebergLakeStorage) -> None:
    table = keyed(storage)
    table.round({((), 0): [("+U", r) for i in range(50) for r in people(1, 2, name=f"r{i} ")]})
    [file] = [t.file for t in lake_table(storage).scan().plan_files()]
    assert file.record_count == 2
    assert table.read() == people(1, 2, name="r49 ")


def test_rows_of_large_rounds_are_in_files_of_the_target_size(storage: IcebergLakeStorage, monkeypatch: Any) -> None:
    monkeypatch.setattr("forebay.lakes.iceberg_writer.BUFFER_ROWS", 10)
    table = keyed(storage, custom={"iceberg.write.target-file-size-bytes": "1"})
    changes: list[Any] = [("+U", r) for r in people(*range(40))]
    changes += [("+U", people(3, name="new")[0]), ("-D", people(15)[0]), ("+U", people(3, name="newest")[0])]
    table.round({((), 0): changes}, chunk=10)
    lake = lake_table(storage)
    assert lake.inspect.data_files().num_rows == 5
    assert lake.inspect.delete_files().num_rows == 1
    kept = [i for i in range(40) if i not in (3, 15)]
    assert table.read() == sorted([*people(*kept), *people(3, name="newest")], key=repr)
    table.upsert(*people(*range(40), name="all"))
    assert table.read() == sorted(people(*range(40), name="all"), key=repr)


def test_files_whose_keys_lie_elsewhere_are_not_read_for_a_round(storage: IcebergLakeStorage) -> None:
    table = keyed(storage)
    table.upsert(*people(*range(100, 110)))
    table.upsert(*people(*range(10)))
    [high] = [t for t in lake_table(storage).scan().plan_files() if t.file.lower_bounds[1][0] == 100]
    path = Path(high.file.file_path.removeprefix("file://"))
    moved = path.rename(path.with_suffix(".away"))
    table.upsert(*people(3, 4, name="new"))
    with pytest.raises(NotFound, match="does not exist"):
        table.upsert(*people(105))
    moved.rename(path)
    assert len(table.read()) == 20


# ---- what is read ---------------------------------------------------------------------------------------------------


def test_filters_on_the_bucket_key_read_one_bucket(storage: IcebergLakeStorage) -> None:
    table = keyed(storage, buckets=8)
    table.upsert(*people(*range(40)))
    source = table.source().with_filters([col("id") == 7]).source
    assert [s.bucket() for s in table.splits(None, source)] == [table.place_of(people(7)[0])[1]]
    assert table.read(source=source) == people(7)


def test_filters_skip_files_by_their_statistics(storage: IcebergLakeStorage) -> None:
    table = IcebergContract().log_table(storage, custom={"iceberg.read.split.target-size": "1"})
    for first in (0, 10, 20):
        table.append(*people(*range(first, first + 10)))
    source = table.source().with_filters([col("id") > 25]).source
    assert (len(table.splits()), len(table.splits(None, source))) == (3, 1)
    assert table.read(source=source) == people(26, 27, 28, 29)


def test_a_damaged_file_is_told_as_such(storage: IcebergLakeStorage) -> None:
    table = IcebergContract().log_table(storage)
    table.append(*people(1))
    [task] = lake_table(storage).scan().plan_files()
    Path(task.file.file_path.removeprefix("file://")).write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(CorruptData, match="damaged"):
        table.read()


def test_columns_that_others_renamed_and_widened_are_read_by_their_ids(storage: IcebergLakeStorage) -> None:
    columns = {"id": types.int_(), "at": types.row(types.field("x", types.int_()), types.field("y", types.string()))}
    table = IcebergContract().log_table(storage, columns)
    table.append({"id": 1, "at": {"x": 2, "y": "z"}}, {"id": 2, "at": None})
    with opened(storage.options) as catalog, load_table(catalog, PATH).update_schema() as update:
        update.update_column("id", LongType())
        update.rename_column("id", "number")
        update.delete_column(("at", "x"))
        update.add_column(("at", "w"), StringType())
    source = table.source()
    [split] = table.splits(None, source)
    rows = [r for b in source.create_record_reader(split).read() for r in b.to_pylist()]
    assert [(r["number"], r["at"]) for r in rows] == [(1, {"y": "z", "w": None}), (2, None)]
    assert source.schema.field("number").type == pa.int64()


def test_fields_inside_lists_that_others_renamed_are_read_by_their_ids(storage: IcebergLakeStorage) -> None:
    columns = {"id": types.int_(), "seen": types.array(types.row(types.field("x", types.int_())))}
    table = IcebergContract().log_table(storage, columns)
    table.append({"id": 1, "seen": [{"x": 2}, None]}, {"id": 2, "seen": None})
    with opened(storage.options) as catalog, load_table(catalog, PATH).update_schema() as update:
        update.rename_column(("seen", "element", "x"), "y")
    source = table.source()
    [split] = table.splits(None, source)
    rows = [r for b in source.create_record_reader(split).read() for r in b.to_pylist()]
    assert [(r["id"], r["seen"]) for r in rows] == [(1, [{"y": 2}, None]), (2, None)]


def test_equality_deletes_of_others_take_older_rows_and_no_newer_ones(storage: IcebergLakeStorage) -> None:
    table = IcebergContract().log_table(storage)
    table.append(*people(1, 2, 3))
    lake = lake_table(storage)
    partition = next(iter(lake.scan().plan_files())).file.partition
    values = tuple(partition[i] for i in range(len(lake.spec().fields)))
    snapshot_id = delete_by_id(storage, lake.spec().spec_id, values, 1, 2)
    assert table.read(snapshot_id) == people(3)
    table.append(*people(1))
    assert table.read() == people(1, 3)


@pytest.mark.parametrize("backwards", [False, True])
def test_equality_deletes_for_the_whole_table_are_kept_where_one_bucket_is_compacted(
    storage: IcebergLakeStorage, backwards: bool
) -> None:
    table = keyed(storage, buckets=2)
    table.upsert(*people(*range(6)))
    lake = lake_table(storage)
    own = lake.spec()
    with lake.update_spec() as update:
        update.remove_field(own.fields[0].name)
    whole = lake_table(storage).spec()
    assert (whole.fields, whole.spec_id != own.spec_id) == ((), True)
    with lake_table(storage).update_spec() as update:
        update.add_field("id", own.fields[0].transform, own.fields[0].name)
    assert lake_table(storage).spec() == own
    delete_by_id(storage, whole.spec_id, (), 1, 2)
    partitions = sorted({task.file.partition for task in lake.scan().plan_files()}, key=repr, reverse=backwards)
    assert len(partitions) == 2
    for partition in partitions:
        with storage.upkeep(PATH) as upkeep:
            snapshot_id = upkeep.compact(files_min=1, partitions=[partition])
        assert table.read(snapshot_id) == people(0, 3, 4, 5)
    assert lake_table(storage).inspect.delete_files().num_rows == 0  # no longer needed


def delete_by_id(storage: IcebergLakeStorage, spec_id: int, partition: tuple[object, ...], *ids: int) -> int:
    """Delete rows as others do, by their values in a partition; the new snapshot's id."""
    lake = lake_table(storage)
    keys = lake.schema().select("id")
    writer = FileWriter(lake.io, f"{lake.location()}/data/deletes.parquet", keys, {})
    writer.write(pa.RecordBatch.from_pylist([{"id": i} for i in ids], schema=arrow_schema(keys.fields)))
    told = writer.close(partition).data_file(spec_id)
    deletes = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=told.file_path,
        file_format=told.file_format,
        partition=told.partition,
        file_size_in_bytes=told.file_size_in_bytes,
        record_count=len(ids),
        equality_ids=[keys.fields[0].field_id],
    )
    deletes.spec_id = told.spec_id
    _, snapshot = commit(lambda: lake_table(storage), lambda _: Change(Operation.DELETE, [deletes]))
    return snapshot.snapshot_id


def test_the_snapshot_behind_another_says_whether_it_has_the_same_rows(storage: IcebergLakeStorage) -> None:
    table = keyed(storage)
    table.upsert(*people(1, 2))
    first = table.base
    table.upsert(*people(1, name="new"))
    second = table.base
    compacted = compact(storage)
    source = table.source()
    assert source.successor(first) == SnapshotSuccessor(second, False)
    assert source.successor(second) == SnapshotSuccessor(compacted, True)
    assert source.successor(compacted) is None


# ---- upkeep ---------------------------------------------------------------------------------------------------------


def with_upkeep(table: TieredTable, compacts: str) -> TieredTable:
    """The table, with the option that asks for compaction or does not."""
    options = {**table.info.descriptor.properties, "table.datalake.auto-compaction": compacts}
    return replace(table, info=replace(table.info, descriptor=replace(table.info.descriptor, properties=options)))


def upsert_and_maintain(table: TieredTable, *numbers: int) -> None:
    committer = table.committer()
    table.base = committer.commit([table.write(((), 0), [("+U", r) for r in people(*numbers)])], {}).snapshot_id
    committer.maintain()


def test_buckets_are_compacted_only_where_the_table_asks_for_it(storage: IcebergLakeStorage) -> None:
    table = with_upkeep(keyed(storage), "false")
    for i in range(6):
        upsert_and_maintain(table, i % 2)
    operations = [s.summary.operation.value for s in lake_table(storage).metadata.snapshots if s.summary]
    assert "replace" not in operations
    table = with_upkeep(table, "true")
    upsert_and_maintain(table, 9)
    lake = lake_table(storage)
    assert (lake.inspect.data_files().num_rows, lake.inspect.delete_files().num_rows) == (1, 0)
    assert table.read() == people(0, 1, 9)
    table.upsert(*people(1, name="new"))
    assert table.read() == sorted([*people(0, 9), *people(1, name="new")], key=repr)


def test_a_round_of_nothing_but_deletes_has_its_bucket_compacted(storage: IcebergLakeStorage) -> None:
    table = with_upkeep(keyed(storage), "true")
    for i in range(6):
        table.upsert(*people(i))
    committer = table.committer()
    result = table.write(((), 0), [("-D", row) for row in people(0, 1)])
    assert (result.files, result.deletes is None) == ((), False)
    table.base = committer.commit([result], {}).snapshot_id
    committer.maintain()
    lake = lake_table(storage)
    assert (lake.inspect.data_files().num_rows, lake.inspect.delete_files().num_rows) == (1, 0)
    assert table.read() == people(2, 3, 4, 5)


def test_a_round_tells_the_rows_and_the_bytes_that_the_table_has_then(storage: IcebergLakeStorage) -> None:
    table = keyed(storage)
    for change, rows, operation in (
        (lambda: table.upsert(*people(1, 2, 3)), 3, Operation.APPEND),
        (lambda: table.upsert(*people(1, name="new")), 3, Operation.OVERWRITE),
        (lambda: table.delete(*people(2)), 2, Operation.OVERWRITE),
        (lambda: table.round({}), 2, Operation.APPEND),
    ):
        told = change().stats
        size = sum(Path(path).stat().st_size for path in IcebergContract().data_files(storage))
        assert (told.rows, told.file_bytes) == (rows, size)
        head = lake_table(storage).current_snapshot()
        assert head is not None
        assert head.summary is not None
        assert head.summary.operation is operation
    lake = lake_table(storage)
    partition = next(iter(lake.scan().plan_files())).file.partition
    delete_by_id(storage, lake.spec().spec_id, (partition[0],), 3)
    assert table.upsert(*people(4)).stats.rows is None  # how many rows such deletes remove is not known
    assert table.read() == in_order([*people(4), *people(1, name="new")])


def test_a_base_that_others_have_expired_does_not_stop_tiering_and_any_other_base_does(
    storage: IcebergLakeStorage,
) -> None:
    table = keyed(storage)
    for i in range(2):
        table.upsert(*people(i))
    compact(storage)
    lake = lake_table(storage)
    lake.manage_snapshots().remove_tag(TIERED_TAG).commit()
    assert table.base in expire(storage)
    head = lake.metadata.current_snapshot_id
    result = table.write(((), 0), [("+U", row) for row in people(5)])
    with pytest.raises(Conflict, match=f"it started from lake snapshot {head}, and the newest one is None"):
        table.committer(base=head).commit([result], {})
    table.upsert(*people(5))
    assert table.read() == people(0, 1, 5)


def test_a_round_on_a_base_is_refused_by_a_table_without_snapshots(storage: IcebergLakeStorage) -> None:
    table = keyed(storage)
    result = table.write(((), 0), [("+U", row) for row in people(5)])
    with pytest.raises(Conflict, match="it started from lake snapshot 77, and the newest one is None"):
        table.committer(base=77).commit([result], {})


def test_the_files_of_other_buckets_stay_where_one_is_compacted(storage: IcebergLakeStorage) -> None:
    table = keyed(storage, buckets=2)
    for name in ("a", "b"):
        table.upsert(*people(*range(6), name=name))
    lake = lake_table(storage)
    partitions = {task.file.partition for task in lake.scan().plan_files()}
    assert len(partitions) == 2
    with storage.upkeep(PATH) as upkeep:
        assert upkeep.compact(files_min=1, partitions=[partitions.pop()]) is not None
    assert table.read(lake_table(storage).metadata.current_snapshot_id) == people(*range(6), name="b")
    table.upsert(*people(9))
    assert table.read() == in_order([*people(*range(6), name="b"), *people(9)])


@pytest.mark.parametrize(("target", "files"), [("1", 2), ("1000000", 1)])
def test_a_writer_that_is_given_up_removes_its_files(
    storage: IcebergLakeStorage, monkeypatch: pytest.MonkeyPatch, target: str, files: int
) -> None:
    monkeypatch.setattr("forebay.lakes.iceberg_writer.BUFFER_ROWS", 2)
    table = keyed(storage, custom={"iceberg.write.target-file-size-bytes": target})
    writer = table.write(((), 0), [("+U", row) for row in people(1, 2, 3, 4)], chunk=2, finish=False)
    assert len(IcebergContract().data_files(storage)) == files
    writer.abort()
    assert IcebergContract().data_files(storage) == set()
    with pytest.raises(InvalidRequest, match="the writer is complete"):
        writer.write(changes_of(table.info, []))


def test_buckets_are_compacted_from_so_many_small_files_on(storage: IcebergLakeStorage) -> None:
    table = IcebergContract().log_table(storage, buckets=1)
    for i in range(2):
        table.append(*people(i))
    before = IcebergContract().data_files(storage)
    with storage.upkeep(PATH) as upkeep:
        assert upkeep.compact(files_min=3) is None
        assert upkeep.compact(files_min=2) is not None
        assert upkeep.compact(files_min=2) is None
    assert lake_table(storage).inspect.data_files().num_rows == 1
    ((path,),) = [IcebergContract().data_files(storage) - before]
    assert pq.read_metadata(path).num_row_groups == 1


def test_buckets_of_large_files_are_compacted_from_so_many_files_of_deletes_on(storage: IcebergLakeStorage) -> None:
    table = keyed(storage, custom={"iceberg.write.target-file-size-bytes": "1"})
    for i in range(3):
        table.upsert(*people(1, name=f"r{i} "))
    with storage.upkeep(PATH) as upkeep:
        assert upkeep.compact(files_min=3) is None
        assert upkeep.compact(files_min=2) is not None
    assert lake_table(storage).inspect.delete_files().num_rows == 0
    table.upsert(*people(2))
    assert table.read() == [*people(1, name="r2 "), *people(2)]


def test_a_compaction_that_cannot_read_a_file_leaves_none_of_its_own(
    storage: IcebergLakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(storage)
    for i in range(3):
        table.upsert(*people(i))
    before, read = IcebergContract().data_files(storage), []

    def failing(io: Any, path: str, *others: Any) -> Any:
        read.append(path)
        if len(read) == 3:
            assert IcebergContract().data_files(storage) != before
            raise OSError(5, "Input/output error")
        return live_batches(io, path, *others)

    monkeypatch.setattr("forebay.lakes.iceberg_upkeep.BUFFER_BYTES", 1)
    monkeypatch.setattr("forebay.lakes.iceberg_upkeep.live_batches", failing)
    with pytest.raises(StorageFailure, match="Input/output error"), storage.upkeep(PATH) as upkeep:
        upkeep.compact(files_min=1)
    assert IcebergContract().data_files(storage) == before
    assert table.read() == people(0, 1, 2)


def test_a_bucket_of_which_all_rows_are_gone_is_compacted_to_nothing(storage: IcebergLakeStorage) -> None:
    table = keyed(storage)
    table.upsert(*people(1, 2))
    table.delete(*people(1, 2))
    compact(storage)
    lake = lake_table(storage)
    assert (lake.inspect.data_files().num_rows, lake.inspect.delete_files().num_rows) == (0, 0)
    table.upsert(*people(1))
    assert table.read() == people(1)


def test_old_snapshots_expire_by_age_and_number(storage: IcebergLakeStorage) -> None:
    table = IcebergContract().log_table(storage, custom={"iceberg.history.expire.min-snapshots-to-keep": "3"})
    for i in range(5):
        table.append(*people(i))
    before = lake_table(storage).metadata_location
    with storage.upkeep(PATH) as upkeep:
        assert upkeep.expire() == []
        assert lake_table(storage).metadata_location == before  # nothing was committed
        assert len(upkeep.expire(older_than=END_OF_TIME)) == 2
    assert len(lake_table(storage).metadata.snapshots) == 3
    assert table.read() == people(0, 1, 2, 3, 4)


def test_a_snapshot_that_is_tagged_while_old_ones_expire_stays(
    storage: IcebergLakeStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = IcebergContract().log_table(storage)
    first = table.append(*people(0)).snapshot_id
    table.append(*people(1))
    unused = iceberg_upkeep._unused_files

    def slowly(*given: Any) -> list[str]:
        found = unused(*given)
        with lake_table(storage).manage_snapshots() as change:
            change.create_tag(first, "month")
        return found

    monkeypatch.setattr(iceberg_upkeep, "_unused_files", slowly)
    assert expire(storage) == []
    assert lake_table(storage).metadata.refs["month"].snapshot_id == first
    assert table.read(first) == people(0)


@pytest.mark.parametrize("others_first", [True, False])
def test_snapshots_that_another_process_expires_at_the_same_time_are_no_error(
    storage: IcebergLakeStorage, monkeypatch: pytest.MonkeyPatch, others_first: bool
) -> None:
    table = IcebergContract().log_table(storage)
    first = table.append(*people(0)).snapshot_id
    table.append(*people(1))
    unused = iceberg_upkeep._unused_files

    def slowly(*given: Any) -> list[str]:
        monkeypatch.undo()
        found = [] if others_first else unused(*given)
        assert expire(storage) == [first]
        return unused(*given) if others_first else found

    monkeypatch.setattr(iceberg_upkeep, "_unused_files", slowly)
    assert expire(storage) == []
    assert table.read() == people(0, 1)


def test_snapshots_expire_that_are_older_than_the_limit_in_whatever_order_the_catalog_lists_them(
    storage: IcebergLakeStorage,
) -> None:
    table = IcebergContract().log_table(storage)
    for i in range(4):
        table.append(*people(i))
    lake = lake_table(storage)
    made = sorted(lake.metadata.snapshots, key=lambda s: s.sequence_number or 0)
    limit = made[2].timestamp_ms
    older = [s.snapshot_id for s in made[:-1] if s.timestamp_ms < limit]

    def listed_backwards() -> Table:
        now = lake_table(storage)
        now.metadata = now.metadata.model_copy(update={"snapshots": [*reversed(now.metadata.snapshots)]})
        return now

    assert (
        Upkeep(listed_backwards).expire(
            older_than=dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=limit), keep=1
        )
        == older
    )
    gone = Upkeep(listed_backwards).expire(older_than=END_OF_TIME, keep=2)
    left = [s.snapshot_id for s in made if s.snapshot_id not in older]
    assert gone == left[: max(0, len(left) - 2)]
    assert table.read() == people(0, 1, 2, 3)
