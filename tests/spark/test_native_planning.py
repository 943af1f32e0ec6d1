"""The part of a union read for Spark's own reader, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from forebay.client.table import Table
from forebay.metadata.predicate import col
from forebay.spark.reading import native_files
from forebay.spark.reading.native import hadoop_settings
from forebay.spark.reading.native_files import NativeShare, is_local, native_share, spark_path, spark_paths
from forebay.unionread.overridden import MarkBucket
from forebay.unionread.plan import UnionPlan
from forebay.unionread.splits import LakeSnapshotAndLogSplit, LogSplit
from tests.spark.tables import ROWS_SCHEMA, rows
from tests.unionread.world import ICEBERG, MEMORY, PAIMON, World, world

THRESHOLDS = (native_files.ROWS_MIN, native_files.MARKED_ROWS_MIN, native_files.MARKED_SHARE_MAX)
"""As they are where no test has made them smaller."""


@pytest.fixture(scope="module", params=[PAIMON, ICEBERG])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("share"), request.param) as running:
        yield running


@pytest.fixture(autouse=True)
def small_tables_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ROWS_MIN", 1), ("MARKED_ROWS_MIN", 1), ("MARKED_SHARE_MAX", 10)):
        monkeypatch.setattr(native_files, name, value)


def share_of(plan: UnionPlan, table: Table, limit: int | None = None) -> NativeShare:
    share = native_share(plan, frozenset(table.buckets()), limit)
    assert share is not None
    return share


def keyed(lake: World) -> Table:
    """Rows 0 to 39 in the lake; of some buckets the changed ones are 3 and 4, which is gone."""
    table = lake.create(ROWS_SCHEMA, primary_key=["id"], buckets=4)
    table.upsert(rows(0, 40))
    lake.tier(table)
    table.upsert(rows(3, 4))
    table.delete([{"id": 4}])
    return table


def test_the_rows_that_a_log_overrides_are_told_by_their_places_in_the_files(lake: World) -> None:
    table = keyed(lake)
    share = share_of(lake.plan(table), table)
    assert all(isinstance(split, LakeSnapshotAndLogSplit) and not split.lake for split in share.rest.splits)
    assert 0 < len(share.marking) <= 2
    counted = [id_ for path in share.files for id_ in ids_in(path)]
    left_out: list[int] = []
    for task in share.marking:
        sent: MarkBucket = pickle.loads(pickle.dumps(task))
        for marks in sent():
            ids = ids_in(marks.path)
            bits = np.zeros(len(ids), np.uint8)
            if marks.words is not None:
                bits = np.unpackbits(np.frombuffer(marks.words, np.uint8), bitorder="little")[: len(ids)]
            counted += [id_ for id_, bit in zip(ids, bits, strict=True) if not bit]
            left_out += [id_ for id_, bit in zip(ids, bits, strict=True) if bit]
    assert sorted(left_out) == [3, 4]
    assert sorted(counted) == [i for i in range(40) if i not in (3, 4)]


def ids_in(path: str) -> list[int]:
    found: list[int] = pq.read_table(path.removeprefix("file://"), columns=["id"]).column(0).to_pylist()
    return found


def test_files_of_a_log_table_are_all_there_is_or_stand_beside_its_logs(lake: World) -> None:
    table = lake.create(ROWS_SCHEMA, buckets=2)
    table.append(rows(0, 10))
    lake.tier(table)
    alone = share_of(lake.plan(table), table, limit=3)
    assert alone.native_files().is_all
    assert sorted(id_ for path in alone.files for id_ in ids_in(path)) == list(range(10))
    table.append(rows(10, 20))
    plan = lake.plan(table)
    mixed = share_of(plan, table)
    assert not mixed.native_files().is_all
    assert all(isinstance(split, LogSplit) for split in mixed.rest.splits)
    assert native_share(plan, frozenset(table.buckets()), 3) is None


@pytest.mark.parametrize("name", ["MARKED_ROWS_MIN", "MARKED_ROWS_MAX", "MARKED_SHARE_MAX"])
def test_buckets_are_merged_in_python_where_marks_do_not_pay(
    lake: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    table = keyed(lake)
    plan = lake.plan(table)
    before = share_of(plan, table)
    monkeypatch.setattr(native_files, name, 1_000_000 if name.endswith("ROWS_MIN") else 0)
    after = share_of(plan, table)
    assert after.marking == ()
    assert after.files == before.files
    assert {repr(split) for split in after.rest.splits} <= {repr(split) for split in plan.splits}


def test_buckets_that_filters_leave_out_are_not_marked(lake: World) -> None:
    table = keyed(lake)
    share = native_share(lake.plan(table), frozenset(), None)
    assert share is not None
    assert share.marking == ()


def test_what_the_lake_merges_itself_is_not_plain(lake: World) -> None:
    table = keyed(lake)
    lake.tier(table)
    plan = lake.plan(table, columns=["name"], filter=col("id") > 1)
    merged = {split for split in plan.splits if plan.reader.lake and not plan.reader.lake.plain_files(split.lake)}  # type: ignore[union-attr]
    assert merged
    assert merged <= set(share_of(plan, table).rest.splits)


def test_a_lake_that_is_no_file_system_is_read_by_python(tmp_path_factory: pytest.TempPathFactory) -> None:
    with world(tmp_path_factory.mktemp("memory"), MEMORY) as running:
        table = running.create(ROWS_SCHEMA)
        table.append(rows(0, 3))
        running.tier(table)
        plan = running.plan(table)
        assert native_share(plan, frozenset(table.buckets()), None) is None
        assert native_share(replace(plan, splits=()), frozenset(table.buckets()), None) is None
    assert [is_local(path) for path in ("/a b/%20", "file:///a", "file:///a%20b", "s3://a/b", "hdfs://x/y", "a")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "served", "expected"),
    [
        ("/a b/%20", (), "/a b/%20"),
        ("file:///a", (), "/a"),
        ("file:///a%20b", ("file",), "/a%20b"),
        ("file://host/a", ("file",), None),
        ("a/b", ("a",), None),
        ("s3://b/day=1/x y", ("s3a", "s3"), "s3a://b/day=1/x y"),
        ("s3://b/x", ("s3",), "s3://b/x"),
        ("s3n://b/x", ("s3a",), "s3a://b/x"),
        ("s3://b/x", ("hdfs",), None),
        ("hdfs://n:8020/x", ("hdfs",), "hdfs://n:8020/x"),
        ("oss://b/x", ("s3a",), None),
    ],
)
def test_spark_reads_the_stores_for_which_it_has_a_file_system(
    path: str, served: tuple[str, ...], expected: str | None
) -> None:
    assert spark_path(path, served.__contains__) == expected
    assert spark_paths([path, "/local"], served.__contains__) == (None if expected is None else [expected, "/local"])


def test_options_of_a_store_become_settings_of_its_buckets() -> None:
    files = ["s3a://one/a", "s3a://two/b/c", "s3a://one/d", "/local"]
    assert hadoop_settings(files, {}) == hadoop_settings(["/local"], {"s3.region": "eu"}) == {}
    made = hadoop_settings(files, {"s3.endpoint": "http://h:9000", "s3.access-key": "k", "s3.secret-key": "s"})
    assert made == {
        f"fs.s3a.bucket.{bucket}.{name}": value
        for bucket in ("one", "two")
        for name, value in {
            "endpoint": "http://h:9000",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": "k",
            "secret.key": "s",
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }.items()
    }
    temporary = {"s3.access-key": "k", "s3.secret-key": "s", "s3.session-token": "t", "s3.region": "eu"}
    made = hadoop_settings(["s3a://b/x"], temporary)
    assert made["fs.s3a.bucket.b.session.token"] == "t"
    assert made["fs.s3a.bucket.b.endpoint.region"] == "eu"
    assert made["fs.s3a.bucket.b.aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")


def test_the_page_on_spark_says_when_rows_are_marked() -> None:
    path = Path(__file__).parents[2] / "docs" / "spark" / "performance.md"
    page = " ".join(path.read_text(encoding="utf-8").split())
    rows_min, marked_rows_min, marked_share_max = THRESHOLDS
    assert f"{rows_min:,} rows in files and more" in page
    between = f"applies to {marked_rows_min:,} to {native_files.MARKED_ROWS_MAX:,} rows"
    assert f"{between} with at most {marked_share_max * 100:.0f} newer log records for 100 rows" in page
