"""A plan in words: each line of it, for hand-made plans."""

from __future__ import annotations

from typing import cast

import pytest

from forebay import col
from forebay.client.row_view import RowView
from forebay.client.settings import Settings
from forebay.lake.source import LakeSource, LakeSplit
from forebay.metadata import types
from forebay.metadata.predicate import Predicate, predicate_text
from forebay.metadata.table import Column, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.unionread.lake_side import LakeSide
from forebay.unionread.plan import PlanFacts, UnionPlan
from forebay.unionread.reading import UnionReader
from forebay.unionread.splits import KvBucketSplit, LakeSnapshotAndLogSplit, LakeSnapshotSplit, LogSplit, UnionSplit

COLUMNS = (Column("p", types.string().not_null()), Column("k", types.int_().not_null()), Column("v", types.int_()))
TIERED = {"table.datalake.enabled": "true"}


class Part(LakeSplit):
    """Some files of a lake."""

    def __init__(self, bucket: int, *partition: str) -> None:
        self._bucket, self._partition = bucket, partition

    def bucket(self) -> int:
        return self._bucket

    def partition(self) -> tuple[str, ...]:
        return self._partition


def plan(
    *splits: UnionSplit,
    keyed: bool = True,
    partitioned: bool = False,
    tiered: bool = True,
    columns: tuple[str, ...] | None = None,
    predicate: Predicate | None = None,
    accepted: tuple[Predicate, ...] | None = None,
    limit: int | None = None,
    facts: PlanFacts | None = None,
) -> list[str]:
    """The lines of a plan with these splits."""
    key = ["p", "k"] if keyed else []
    parts = ("p",) if partitioned else ()
    schema = Schema.of(COLUMNS, key)
    descriptor = TableDescriptor(schema, parts, ("k",), 4, properties=TIERED if tiered else {})
    info = TableInfo(TablePath("db", "t"), 1, 1, descriptor)
    side = None if accepted is None else LakeSide(cast("LakeSource", None), COLUMNS, accepted)
    reader = UnionReader(cast("Settings", None), RowView(info, columns, predicate), limit, side)
    return UnionPlan(reader, splits, {}, facts or PlanFacts()).explain().splitlines()


def bucket(number: int, partition: int | None = None) -> TableBucket:
    return TableBucket(1, number, partition)


HEAD = ["union read of db.t, primary key (p, k), 4 buckets", "columns: p, k, v"]
UNTIERED = "lake: the table is not tiered, so only the stream is read"
NO_SNAPSHOT = "lake: no readable snapshot yet, so only the stream is read"


def test_the_head_says_what_is_read_and_of_which_snapshot() -> None:
    nothing = "nothing is read"
    assert plan(tiered=False) == [*HEAD, UNTIERED, nothing]
    assert plan() == [*HEAD, NO_SNAPSHOT, nothing]
    assert plan(keyed=False, partitioned=True, columns=(), limit=0) == [
        "union read of db.t, log table, 4 buckets in each partition",
        "columns: none, rows are counted",
        "limit: 0 rows; splits are read one after the other until it is reached",
        NO_SNAPSHOT,
        nothing,
    ]
    expired = "lake: paimon, snapshot 7 was expired by another process, so "
    for facts, line in (
        (PlanFacts("paimon", 7), "lake: paimon, snapshot 7, the newest that a union read may start from"),
        (PlanFacts("paimon", None, 7), f"{expired}only the stream is read, which has all rows"),
        (PlanFacts("paimon", 9, 7), f"{expired}snapshot 9 is read, with the log from where the other one ends"),
    ):
        assert plan(facts=facts) == [*HEAD, line, nothing]
    undone = "lake: paimon, snapshot 7 was undone by a rollback of the lake table, so "
    for read, line in (
        (None, f"{undone}only the stream is read, which has all rows"),
        (5, f"{undone}snapshot 5 is read, with the log from where it ends"),
    ):
        assert plan(facts=PlanFacts("paimon", read, 7, rolled_back=True)) == [*HEAD, line, nothing]


def test_filters_say_what_the_lake_makes_of_them() -> None:
    known, unknown = col("v") > 3, col("k").is_null()
    filters = (known & unknown), (known,)
    split = LakeSnapshotAndLogSplit(bucket(0), (), 0, 1)
    whole = "  log ranges are read whole: a change that does not match may override a lake row that does"
    lines = ["filter: v > 3 AND k IS NULL", "  the lake skips rows by: v > 3", "  the lake cannot use: k IS NULL"]
    for keyed, splits, expected in (
        (True, (split,), [*lines, whole]),
        (True, (KvBucketSplit(bucket(0)),), lines),
        (False, (split,), lines),
    ):
        found = plan(*splits, keyed=keyed, predicate=filters[0], accepted=filters[1])
        assert found[3 : 3 + len(expected)] == expected
        assert (whole in found) == (whole in expected)
    assert plan(predicate=known)[3:] == ["filter: v > 3", "nothing is read"]
    assert plan(accepted=())[3:] == ["nothing is read"]


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (col("a") == 1, "a = 1"),
        (col("a") != "x", "a != 'x'"),
        (col("a") <= 1, "a <= 1"),
        (col("a").is_not_null(), "a IS NOT NULL"),
        ((col("a") < 1) | (col("b") >= 2), "(a < 1 OR b >= 2)"),
        (col("a").is_in([1, 2]), "a IN 1, 2"),
    ],
)
def test_filters_are_written_nearly_as_in_sql(predicate: Predicate, text: str) -> None:
    assert predicate_text(predicate) == text


def test_each_kind_of_split_has_its_section_and_reasons() -> None:
    facts = PlanFacts("paimon", 5, lake_offsets={bucket(1, 11): 4, bucket(2, 11): 4}, partition_names={11: "x"})
    found = plan(
        LakeSnapshotSplit(Part(0, "x")),
        LakeSnapshotSplit(Part(0, "x")),
        LakeSnapshotSplit(Part(-1, "y")),
        LakeSnapshotAndLogSplit(bucket(1, 11), (Part(1, "x"),), 4, 5),
        LakeSnapshotAndLogSplit(bucket(3, 12), (), 0, 5),
        LogSplit(bucket(2, 11), 4, 6),
        LogSplit(bucket(0), 0, 6),
        KvBucketSplit(bucket(0, 12)),
        partitioned=True,
        facts=facts,
    )
    assert found[3:] == [
        "lake alone, as nothing in the log changes it:",
        "  partition x, bucket 0: 2 lake splits",
        "  partition y, files of all buckets: 1 lake split",
        "lake overridden by the changelog behind it:",
        "  partition x, bucket 1: 1 lake split, then log 4 to 5 (1 record), because the snapshot holds the log up to 4",
        "  partition 12, bucket 3: 0 lake splits, then log 0 to 5 (5 records)",
        "log alone:",
        "  partition x, bucket 2: log 4 to 6 (2 records), behind what the lake holds",
        "  bucket 0: log 0 to 6 (6 records), from its beginning: the lake has nothing of it",
        "current rows from the servers, as the lake has nothing of these buckets:",
        "  partition 12, bucket 0",
    ]


@pytest.mark.parametrize("count", [12, 13, 20])
def test_of_many_splits_and_partitions_some_are_listed(count: int) -> None:
    names = tuple(f"d{i}" for i in range(count))
    facts = PlanFacts("paimon", 5, lake_only_partitions=names, pruned_partitions=names)
    found = plan(*(KvBucketSplit(bucket(i)) for i in range(count)), facts=facts)
    listed = ", ".join(names[:12]) + ("" if count == 12 else f" and {count - 12} more")
    assert found[3:5] == [
        f"partitions of the stream that are left out: {listed}",
        f"partitions that only the lake has: {listed}",
    ]
    more = [] if count == 12 else [f"  and {count - 12} more"]
    assert found[6:] == [*(f"  bucket {i}" for i in range(12)), *more]


def test_an_unbucketed_place_of_a_table_without_partitions() -> None:
    assert plan(LakeSnapshotSplit(Part(-1)), keyed=False)[-1] == "  files of all buckets: 1 lake split"
