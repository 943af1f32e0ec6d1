"""The layout of Paimon tables of streams: that of a Fluss cluster, so that Flink can continue with them."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.base.errors import Conflict, ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.lake.source import SnapshotSuccessor
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.lakes.paimon_tables import LAYOUT_OPTION, SYSTEM_COLUMNS, open_catalog
from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.paimon.format.schema import DataField
from forebay.paimon.store.schema_changes import SetOption
from forebay.testing.lake_contract_base import ID_NAME, people
from forebay.testing.lake_contract_catalog import widened, with_options
from forebay.testing.lake_rounds import PATH, Row, TieredTable, changes_of, in_order
from tests.lake.paimon_tables import LAKE, create, describe, engine_table
from tests.paimon.lake import altered, at_ms, stream_of


@pytest.fixture
def storage(tmp_path: Path) -> PaimonLakeStorage:
    return PaimonLakeStorage({"warehouse": str(tmp_path / "lake")})


def test_a_table_with_a_key_takes_its_changelog_from_the_stream(storage: PaimonLakeStorage) -> None:
    columns = {"id": types.int_(), "day": types.date(), "at": types.time(3), "text": types.string()}
    custom = {"paimon.file.format": "parquet", "owner": "me", "table.datalake.paimon.x": "y"}
    create(
        storage,
        describe(
            columns,
            primary_key=("id", "day"),
            bucket_keys=("id",),
            partition_keys=("day",),
            custom_properties=custom,
            comment="all of it",
        ),
    )
    schema = engine_table(storage).schema
    assert [(f.name, str(f.type), f.description) for f in schema.fields] == [
        ("id", "INT NOT NULL", "about id"),
        ("day", "DATE NOT NULL", "about day"),
        ("at", str(types.time(0)), "about at"),
        ("text", "STRING", "about text"),
        ("__bucket", "INT", None),
        ("__offset", "BIGINT", None),
        ("__timestamp", str(types.timestamp_ltz(3)), None),
    ]
    assert (schema.primary_keys, schema.partition_keys, schema.comment) == (("id", "day"), ("day",), "all of it")
    assert schema.options == {
        "bucket": "4",
        "bucket-key": "id",
        "changelog-producer": "input",
        "partition.legacy-name": "false",
        "file.format": "parquet",
        "fluss.owner": "me",
        "fluss.table.datalake.enabled": "true",
        "fluss.table.datalake.format": "paimon",
    }


def test_options_of_the_stream_may_be_called_like_those_of_paimon(storage: PaimonLakeStorage) -> None:
    create(storage, describe(ID_NAME, custom_properties={"snapshot.num-retained.max": "5", "merge-engine": "mine"}))
    options = engine_table(storage).schema.options
    assert (options["fluss.snapshot.num-retained.max"], options["fluss.merge-engine"]) == ("5", "mine")


def test_a_log_without_a_bucket_key_has_no_buckets_in_the_lake(storage: PaimonLakeStorage) -> None:
    create(storage, describe(ID_NAME))
    options = engine_table(storage).schema.options
    assert options["bucket"] == "-1"
    assert "bucket-key" not in options
    assert "changelog-producer" not in options


def test_a_user_may_choose_another_changelog_producer(storage: PaimonLakeStorage) -> None:
    chosen = {"paimon.changelog-producer": "lookup"}
    create(storage, describe(ID_NAME, primary_key=("id",), custom_properties=chosen))
    assert engine_table(storage).schema.options["changelog-producer"] == "lookup"


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"paimon.deletion-vectors.enabled": "true"}, UnsupportedOperation),
        ({"paimon.path": "/elsewhere"}, UnsupportedOperation),
        ({"paimon.bucket-function.type": "hive"}, UnsupportedOperation),
        ({"paimon.file.format": "orc"}, UnsupportedOperation),
        ({"paimon.changelog-file.format": "avro"}, UnsupportedOperation),
        ({"paimon.file.format.per.level": "0:avro,5:parquet"}, UnsupportedOperation),
        ({"paimon.bucket": "3"}, InvalidRequest),
    ],
)
def test_options_that_tiering_cannot_live_with_are_refused(
    storage: PaimonLakeStorage, options: dict[str, str], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=next(iter(options))):
        create(storage, describe(ID_NAME, primary_key=("id",), custom_properties=options))


def test_a_lake_table_that_got_deletion_vectors_is_no_longer_taken(storage: PaimonLakeStorage) -> None:
    table = create(storage, describe(ID_NAME, primary_key=("id",)))
    altered(engine_table(storage), [SetOption("deletion-vectors.enabled", "true")])
    with pytest.raises(Conflict, match="deletion vectors"):
        create(storage, table.info.descriptor, creating=False)
    with pytest.raises(InvalidRequest, match="deletion vectors"):
        storage.create_tiering_factory().validate(table.info)


def test_files_of_a_format_that_is_written_may_be_requested_by_name(storage: PaimonLakeStorage) -> None:
    chosen = {"paimon.file.format": "PARQUET", "paimon.file.format.per.level": "0:parquet"}
    table = create(storage, describe(ID_NAME, primary_key=("id",), custom_properties=chosen))
    storage.create_tiering_factory().validate(table.info)
    table.upsert({"id": 1, "name": "a"})
    assert table.read() == [{"id": 1, "name": "a"}]


def test_a_lake_table_whose_files_others_write_in_orc_is_not_taken(storage: PaimonLakeStorage) -> None:
    table = create(storage, describe(ID_NAME))
    altered(engine_table(storage), [SetOption("file.format", "orc")])
    with pytest.raises(Conflict, match=r"file\.format.*orc"):
        create(storage, table.info.descriptor, creating=False)
    with pytest.raises(InvalidRequest, match=r"file\.format.*orc"):
        storage.create_tiering_factory().validate(table.info)


@pytest.mark.parametrize("name", list(SYSTEM_COLUMNS))
def test_names_of_system_columns_are_refused(storage: PaimonLakeStorage, name: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        create(storage, describe({**ID_NAME, name: types.int_()}))


def test_options_that_data_depends_on_cannot_be_changed(storage: PaimonLakeStorage) -> None:
    table = create(storage, describe(ID_NAME, primary_key=("id",)))
    for option in ("paimon.merge-engine", "paimon.sequence.snapshot-ordering"):
        with pytest.raises(InvalidRequest, match=option) as refused:
            table.altered(with_options(table.info.descriptor, **{option: "x"}))
        assert refused.value.code == ErrorCode.INVALID_CONFIG_EXCEPTION
    altered = table.altered(with_options(table.info.descriptor, **{"paimon.snapshot.num-retained.max": "7"}))
    assert engine_table(storage).schema.options["snapshot.num-retained.max"] == "7"
    assert altered.info.descriptor.custom_properties == {"paimon.snapshot.num-retained.max": "7"}


def test_the_bucket_of_the_stream_is_the_bucket_that_paimon_would_choose(storage: PaimonLakeStorage) -> None:
    columns = {"id": types.bigint(), "code": types.string(), "day": types.date(), "v": types.int_()}
    table = create(storage, describe(columns, primary_key=("id", "code", "day"), bucket_keys=("id", "code", "day")))
    rows: list[Row] = [
        {"id": i * 7919, "code": f"c{i}", "day": dt.date(2024, 1, 1) + dt.timedelta(i), "v": i} for i in range(60)
    ]
    table.upsert(*rows)
    lake = engine_table(storage)
    lake.upsert([{**r, "v": -1} for r in rows], missing="null")
    # Had Paimon put a row into another bucket, its old version would still be there.
    assert sorted(r["v"] for r in lake.scan().to_arrow().to_pylist()) == [-1] * 60
    assert {split.bucket for split in lake.scan().plan()} == {0, 1, 2, 3}


def test_followers_of_the_paimon_table_see_both_images_of_an_update(storage: PaimonLakeStorage) -> None:
    table = create(storage, describe(ID_NAME, primary_key=("id",), bucket_count=1))
    old, new = people(1, name="old")[0], people(1, name="new")[0]
    table.round({((), 0): [("+I", old), ("-U", old), ("+U", new)]}, chunk=2)
    table.round({((), 0): [("-D", new)]})
    audit = engine_table(storage).with_options({"scan.mode": "from-snapshot", "scan.snapshot-id": "1"})
    seen = [(r["_row_kind"], r["name"]) for batch in stream_of(audit, follow=False) for r in batch.to_pylist()]
    assert seen == [("+I", "old1"), ("-U", "old1"), ("+U", "new1"), ("-D", "new1")]


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 7])
def test_followers_see_old_images_only_with_the_new_ones_wherever_runs_of_records_end(
    storage: PaimonLakeStorage, chunk: int
) -> None:
    table = create(storage, describe(ID_NAME, primary_key=("id",), bucket_count=1))
    a, b, c = (people(1, name=name)[0] for name in "abc")
    other = people(2)[0]
    alone = [("-U", c)]  # its new image is in the next round
    table.round({((), 0): [("+I", a), ("-U", a), ("+U", b), ("-U", b), ("+U", c), ("+I", other), *alone]}, chunk=chunk)
    audit = engine_table(storage).with_options({"scan.mode": "from-snapshot", "scan.snapshot-id": "1"})
    seen = [(r["_row_kind"], r["name"]) for batch in stream_of(audit, follow=False) for r in batch.to_pylist()]
    assert [row for row in seen if row[1] != "v2"] == [
        ("+I", "a1"), ("-U", "a1"), ("+U", "b1"), ("-U", "b1"), ("+U", "c1")
    ]  # fmt: skip
    assert table.read() == in_order([c, other])


def test_partitions_are_directories_as_paimon_names_them(storage: PaimonLakeStorage, tmp_path: Path) -> None:
    table = create(storage, describe({"id": types.int_(), "day": types.date()}, partition_keys=("day",)))
    table.round({(("2024-02-29",), 0): [("+A", {"id": 1, "day": dt.date(2024, 2, 29)})]})
    assert list((tmp_path / "lake").rglob("day=2024-02-29/bucket-0/*.parquet"))


def test_a_row_of_another_partition_is_refused(storage: PaimonLakeStorage) -> None:
    table = create(storage, describe({"id": types.int_(), "day": types.date()}, partition_keys=("day",)))
    with pytest.raises(InvalidRequest, match="2024-02-28"):
        table.write((("2024-02-28",), 0), [("+A", {"id": 1, "day": dt.date(2024, 2, 29)})])


# ---- layouts --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[3, 6])
def released(storage: PaimonLakeStorage, request: pytest.FixtureRequest) -> TieredTable:
    """A table as released clusters made it: with system columns, whose timestamps have three or six digits."""
    catalog = open_catalog(storage.options)
    catalog.create_database(PATH.database)
    system = {**SYSTEM_COLUMNS, "__timestamp": types.timestamp_ltz(request.param)}
    fields = [DataField(-1, n, t) for n, t in {**ID_NAME, **system}.items()]
    options = {"bucket": "-1", "partition.legacy-name": "false"}
    catalog.create_table(str(PATH), fields, options=options)
    return create(storage, describe(ID_NAME))


def test_a_table_of_a_released_cluster_is_taken_and_its_system_columns_are_filled(released: TieredTable) -> None:
    released.round({((), 1): [("+A", r) for r in people(1, 2)]})
    assert released.read() == people(1, 2)
    rows = engine_table(released.storage).scan(columns=list(SYSTEM_COLUMNS)).to_arrow().to_pylist()
    when = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    assert [(r["__bucket"], r["__offset"], r["__timestamp"].astimezone(dt.UTC)) for r in rows] == [
        (1, 0, when),
        (1, 1, when),
    ]


def test_new_columns_go_before_system_columns(released: TieredTable) -> None:
    released.append(*people(1))
    table = released.altered(widened(released.info.descriptor, Column("extra", types.int_())))
    assert engine_table(released.storage).schema.names == ("id", "name", "extra", *SYSTEM_COLUMNS)
    table.append({"id": 2, "name": "v2", "extra": 20})
    assert table.read() == [{"id": 1, "name": "v1", "extra": None}, {"id": 2, "name": "v2", "extra": 20}]


@pytest.mark.parametrize("keys", [(), ("id",)])
@pytest.mark.parametrize(
    ("lake", "table", "there"),
    [(None, None, True), ("false", None, False), ("false", "true", True), (None, "False", False)],
)
def test_the_layout_is_chosen_by_the_table_or_else_by_the_lake(
    tmp_path: Path, keys: tuple[str, ...], lake: str | None, table: str | None, there: bool
) -> None:
    storage = PaimonLakeStorage({"warehouse": str(tmp_path), **({} if lake is None else {LAYOUT_OPTION: lake})})
    custom = {} if table is None else {f"paimon.{LAYOUT_OPTION}": table}
    made = create(storage, describe(ID_NAME, primary_key=keys, custom_properties=custom))
    stored = engine_table(storage).schema
    assert stored.names == ("id", "name", *(SYSTEM_COLUMNS if there else ()))
    assert not [key for key in stored.options if "system-columns" in key]
    made.upsert(*people(1)) if keys else made.append(*people(1))
    wider = made.altered(widened(made.info.descriptor, Column("extra", types.int_())))
    assert engine_table(storage).schema.names == ("id", "name", "extra", *(SYSTEM_COLUMNS if there else ()))
    assert wider.read() == [{"id": 1, "name": "v1", "extra": None}]


def test_rows_of_a_table_with_a_key_say_which_change_they_come_from(storage: PaimonLakeStorage) -> None:
    table = create(storage, describe(ID_NAME, primary_key=("id",), bucket_count=1))
    old, new = people(1, name="old")[0], people(1, name="new")[0]
    table.round({((), 0): [("+I", old), ("+I", people(2)[0]), ("-U", old), ("+U", new)]})
    found = engine_table(storage).scan(columns=["id", "__bucket", "__offset"]).to_arrow().to_pylist()
    assert in_order(found) == [
        {"id": 1, "__bucket": 0, "__offset": 3},
        {"id": 2, "__bucket": 0, "__offset": 1},
    ]


@pytest.mark.parametrize("existing", ["true", "false"])
def test_an_existing_table_keeps_its_layout_whatever_the_setting_says_now(tmp_path: Path, existing: str) -> None:
    made = create(PaimonLakeStorage({"warehouse": str(tmp_path), LAYOUT_OPTION: existing}), describe(ID_NAME))
    made.append(*people(1))
    other = "false" if existing == "true" else "true"
    storage = PaimonLakeStorage({"warehouse": str(tmp_path), LAYOUT_OPTION: other})
    taken = replace(create(storage, made.info.descriptor, creating=False), base=made.base)
    storage.create_tiering_factory().validate(taken.info)
    taken.append(*people(2))
    assert taken.read() == people(1, 2)


def test_the_layout_of_a_table_cannot_be_changed(storage: PaimonLakeStorage) -> None:
    table = create(storage, describe(ID_NAME))
    with pytest.raises(InvalidRequest, match="system-columns"):
        table.altered(with_options(table.info.descriptor, **{f"paimon.{LAYOUT_OPTION}": "false"}))


def test_a_layout_that_is_neither_true_nor_false_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"forebay\.system-columns.*'some'"):
        PaimonLakeStorage({"warehouse": str(tmp_path), LAYOUT_OPTION: "some"})
    storage = PaimonLakeStorage({"warehouse": str(tmp_path)})
    with pytest.raises(InvalidRequest, match=r"paimon\.forebay\.system-columns.*'some'"):
        create(storage, describe(ID_NAME, custom_properties={f"paimon.{LAYOUT_OPTION}": "some"}))


# ---- compaction -----------------------------------------------------------------------------------------------------


def test_writers_compact_only_where_the_table_asks_for_it(storage: PaimonLakeStorage) -> None:
    compacting = describe(ID_NAME, primary_key=("id",), bucket_count=1)
    compacting = replace(compacting, properties={**LAKE, "table.datalake.auto-compaction": "true"})
    table = create(storage, compacting)
    for i in range(8):
        table.upsert(*people(i % 3, name=f"r{i} "))
    kinds = [s.commit_kind.value for s in engine_table(storage).context.snapshots.snapshots()]
    assert "COMPACT" in kinds
    assert table.read() == [*people(0, name="r6 "), *people(1, name="r7 "), *people(2, name="r5 ")]
    quiet = replace(table, info=replace(table.info, descriptor=replace(compacting, properties=LAKE)))
    before = kinds.count("COMPACT")
    for i in range(8):
        quiet.upsert(*people(i % 3, name=f"s{i} "))
    kinds = [s.commit_kind.value for s in engine_table(storage).context.snapshots.snapshots()]
    assert kinds.count("COMPACT") == before


def test_old_snapshots_expire_only_where_the_table_asks_for_it(storage: PaimonLakeStorage) -> None:
    few = {"paimon.snapshot.num-retained.min": "1", "paimon.snapshot.num-retained.max": "2"}
    table = create(storage, describe(ID_NAME, custom_properties=few))
    for i in range(4):
        table.append(*people(i))
        table.committer().maintain()
    assert engine_table(storage).context.snapshots.ids() == [1, 2, 3, 4]
    asked = replace(table.info.descriptor, properties={**LAKE, "table.datalake.auto-expire-snapshot": "true"})
    expiring = replace(table, info=replace(table.info, descriptor=asked))
    expiring.committer().maintain()
    assert engine_table(storage).context.snapshots.ids() == [3, 4]
    assert expiring.read() == people(0, 1, 2, 3)


@pytest.mark.parametrize("asked", ["false", "true"])
@pytest.mark.parametrize("time", [{}, {"paimon.partition.expiration-time": "7 d"}], ids=["no time", "7 d"])
def test_old_partitions_expire_only_where_the_table_asks_for_it(
    storage: PaimonLakeStorage, asked: str, time: dict[str, str]
) -> None:
    columns = {"id": types.int_(), "day": types.string()}
    described = describe(columns, partition_keys=("day",), custom_properties=time, bucket_keys=("id",))
    properties = {**LAKE, "table.datalake.auto-expire-snapshot": asked}
    table = create(storage, replace(described, properties=properties))
    old, later = {"id": 1, "day": "2001-02-03"}, {"id": 2, "day": "9999-01-01"}
    table.append(old, later)
    table.committer().maintain()
    latest = engine_table(storage).context.snapshots.latest()
    assert latest is not None
    assert table.read(latest.id) == ([later] if asked == "true" and time else [old, later])


def test_old_images_count_only_with_the_new_ones_behind_them_wherever_runs_of_records_end(
    storage: PaimonLakeStorage,
) -> None:
    table = create(storage, describe(ID_NAME, primary_key=("id",), bucket_count=1))
    a, b, c = people(1)[0], people(1, name="b")[0], people(2)[0]
    updates = [("+I", a), ("-U", a), ("+U", b), ("-U", b), ("+I", c), ("-U", c)]
    read = []
    for chunk in (1, 2, 3, 4, 6):
        table.round({((), 0): updates}, chunk=chunk)
        read.append(table.read())
        table.delete(b, c)
        assert table.read() == []
    assert read == [in_order([b, c])] * 5


def test_statistics_tell_the_rows_of_a_log_and_not_those_of_changes_by_key(storage: PaimonLakeStorage) -> None:
    log = create(storage, describe(ID_NAME))
    assert [log.append(*people(*ids)).stats.rows for ids in ((1, 2), (3,), ())] == [2, 3, 3]


def test_statistics_of_a_table_with_a_key_tell_no_rows(storage: PaimonLakeStorage) -> None:
    keyed = create(storage, describe(ID_NAME, primary_key=("id",)))
    assert keyed.upsert(*people(1, 2)).stats.rows is None


@pytest.mark.parametrize("keyed", [False, True])
def test_a_writer_that_is_given_up_or_complete_takes_no_more_and_leaves_what_it_should(
    storage: PaimonLakeStorage, keyed: bool
) -> None:
    keys = {"primary_key": ("id",)} if keyed else {}
    table = create(storage, describe(ID_NAME, bucket_count=1, **keys))
    kind = "+I" if keyed else "+A"
    root = Path(engine_table(storage).context.paths.root.removeprefix("file:"))
    for finish in (False, True):
        writer = table.write(((), 0), [(kind, row) for row in people(1, 2)], finish=False)
        if finish:
            writer.complete()
        writer.abort()
        assert len(list(root.rglob("data-*.parquet"))) == finish
        with pytest.raises(InvalidRequest, match="the writer is complete; make another one"):
            writer.write(changes_of(table.info, []))


@pytest.mark.parametrize("expires", [False, True])
def test_the_snapshot_that_reads_start_from_outlives_the_upkeep_of_its_round(
    storage: PaimonLakeStorage, expires: bool
) -> None:
    few = {"paimon.snapshot.num-retained.min": "1", "paimon.snapshot.num-retained.max": "1"}
    asked = {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": str(expires).lower()}
    table = create(storage, replace(describe(ID_NAME, custom_properties=few), properties={**LAKE, **asked}))
    kinds = set()
    for i in range(6):
        table.append(*people(i))
        table.committer().maintain()
        assert table.read() == people(*range(i + 1))
        snapshots = list(engine_table(storage).context.snapshots.snapshots())
        kinds |= {s.commit_kind.value for s in snapshots}
        assert snapshots[0].id == (table.base if expires else 1)
    assert "COMPACT" in kinds


def test_the_snapshot_behind_another_says_whether_it_has_the_same_rows(storage: PaimonLakeStorage) -> None:
    table = create(storage, describe(ID_NAME, primary_key=("id",), bucket_count=1))
    for i in range(3):
        table.upsert(*people(1, name=f"r{i} "))
    engine_table(storage).compact(full=True)
    source = table.source()
    kinds = [s.commit_kind.value for s in engine_table(storage).context.snapshots.snapshots()]
    assert kinds == ["APPEND", "APPEND", "APPEND", "COMPACT"]
    behind = [source.successor(number) for number in (1, 2, 3, 4)]
    assert behind == [SnapshotSuccessor(2, False), SnapshotSuccessor(3, False), SnapshotSuccessor(4, True), None]
    engine_table(storage).expire_snapshots(retain_min=1, retain_max=1, older_than=at_ms(0))
    assert [source.successor(number) for number in (1, 2, 3, 4)] == [
        SnapshotSuccessor(4, False), SnapshotSuccessor(4, False), SnapshotSuccessor(4, True), None
    ]  # fmt: skip


def test_a_sorted_reader_of_a_bucket_without_splits_is_empty_and_one_with_splits_is_not(
    storage: PaimonLakeStorage,
) -> None:
    table = create(storage, describe(ID_NAME, primary_key=("id",), bucket_count=1))
    table.upsert(*people(2, 1))
    for splits, ids in (([], []), (table.splits(), [1, 2])):
        with table.source().create_sorted_reader(splits) as reader:  # type: ignore[union-attr]
            assert [i for batch in reader.read() for i in batch["id"].to_pylist()] == ids


@pytest.mark.parametrize(("paths", "names"), [([[1]], ["name", "id"]), ([[0]], ["id"]), ([[1], [0]], ["name", "id"])])
def test_a_sorted_reader_has_the_key_columns_behind_those_that_were_requested(
    storage: PaimonLakeStorage, paths: list[list[int]], names: list[str]
) -> None:
    table = create(storage, describe(ID_NAME, primary_key=("id",), bucket_count=1))
    table.upsert(*people(1))
    with table.source().with_project(paths).create_sorted_reader(table.splits()) as reader:  # type: ignore[union-attr]
        assert reader.schema.names == names
        assert [batch.schema.names for batch in reader.read()] == [names]


def test_columns_with_a_dot_in_their_name_are_read_and_fields_with_one_are_not_read_alone(
    storage: PaimonLakeStorage,
) -> None:
    fields = types.row(types.field("x.y", types.int_()), types.field("z", types.int_()))
    table = create(storage, describe({"a.b": types.int_(), "r": fields}))
    table.append({"a.b": 1, "r": {"x.y": 2, "z": 3}})
    for path, row in (([0], {"a.b": 1}), ([1, 1], {"r": {"z": 3}})):
        source = table.source().with_project([path])
        with source.create_record_reader(table.splits()[0]) as reader:
            assert [r for batch in reader.read() for r in batch.to_pylist()] == [row]
    with pytest.raises(UnsupportedOperation, match=r"'x\.y' cannot be read alone: a name on the way to it has a dot"):
        table.source().with_project([[1, 0]])


def test_a_log_has_no_sorted_reader(storage: PaimonLakeStorage) -> None:
    assert create(storage, describe(ID_NAME)).source().create_sorted_reader([]) is None


def test_rows_of_all_buckets_of_a_log_without_a_key_are_in_one_of_paimon(storage: PaimonLakeStorage) -> None:
    table = create(storage, describe(ID_NAME))
    table.round({((), bucket): [("+A", row) for row in people(bucket)] for bucket in (0, 3)})
    entries = engine_table(storage).context.manifests.live_files(engine_table(storage).context.snapshots.latest())
    assert {entry.bucket for entry in entries} == {0}
    rows = engine_table(storage).scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["__bucket"]) for row in rows) == [(0, 0), (3, 3)]


def test_rows_of_another_bucket_than_there_are_cannot_be_written(storage: PaimonLakeStorage) -> None:
    table = create(storage, describe(ID_NAME, primary_key=("id",)))
    with pytest.raises(InvalidRequest, match="bucket 9"):
        table.write(((), 9), [("+I", people(1)[0])])
