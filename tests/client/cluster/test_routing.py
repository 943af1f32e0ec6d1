"""The bucket and partition of rows, and the buckets that a read covers, without a server."""

from __future__ import annotations

import datetime as dt
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forebay.base.ambient import SeededIds
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, NotFound, Unavailable
from forebay.client.cluster import buckets as bucket_plans
from forebay.client.cluster import partitions as partition_plans
from forebay.client.cluster import routing
from forebay.client.cluster.cluster import ClusterView, Partition
from forebay.client.cluster.partitions import list_partitions
from forebay.client.cluster.routing import BucketChooser, PartitionRouter
from forebay.metadata import types
from forebay.metadata.table import Column, PhysicalTablePath, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import partition_spec_to_pb

PATH = TablePath("d", "t")


def info(*, partitioned: bool = False, buckets: int = 4, keys: tuple[str, ...] = ("p",)) -> TableInfo:
    schema = Schema.of([Column("a", types.int_()), Column("p", types.string()), Column("day", types.date())])
    descriptor = TableDescriptor(schema, partition_keys=keys if partitioned else (), bucket_count=buckets)
    return TableInfo(PATH, 7, 1, descriptor)


def chooser(assigner: str, leaders: dict[TableBucket, int] | None = None) -> BucketChooser:
    cluster = SimpleNamespace(ids=SeededIds(1), view=ClusterView(leaders=leaders or {}))
    return BucketChooser(cast("Any", cluster), assigner)


def test_round_robin_goes_through_the_buckets_of_each_partition_in_turn() -> None:
    choose = chooser("round_robin")
    assert [choose(info(), None, 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [choose(info(partitioned=True), 5, 3) for _ in range(2)] == [0, 1]
    assert [choose(info(partitioned=True), 6, 3) for _ in range(2)] == [0, 1]
    assert choose(info(), None, 1) == 0


def test_buckets_without_a_leader_are_left_out_while_others_have_one() -> None:
    leaders = {TableBucket(7, 1): 0, TableBucket(7, 3): 0, TableBucket(8, 0): 0, TableBucket(7, 0, 5): 0}
    choose = chooser("round_robin", leaders)
    assert [choose(info(), None, 4) for _ in range(3)] == [1, 3, 1]
    assert {chooser("sticky", leaders)(info(), None, 4) for _ in range(20)} <= {1, 3}


def test_the_sticky_way_moves_to_another_bucket_at_random() -> None:
    choose = chooser("sticky")
    chosen = [choose(info(), None, 4) for _ in range(200)]
    assert all(one != other for one, other in itertools.pairwise(chosen))
    assert set(chosen) == {0, 1, 2, 3}
    alone = chooser("sticky", {TableBucket(7, 2): 0})
    assert [alone(info(), None, 4) for _ in range(3)] == [2, 2, 2]


class Cluster:
    """A cluster whose partitions the test decides."""

    def __init__(self, *names: str, may_create: bool = True) -> None:
        self.settings = {"client.writer.dynamic-create-partition.enabled": may_create}
        self.existing = {name: Partition(number, None) for number, name in enumerate(names)}
        self.view = ClusterView()
        self.created: list[str] = []
        self.specs: list[dict[str, str]] = []
        self.errors: list[ForebayError] = []
        self.drops = False
        self.listed: list[object] = []
        """What was requested of each list of partitions: None is all."""

    def coordinator_call(self, _key: object, request: Any, _response: object, *, repeatable: bool) -> None:
        assert repeatable
        name = "$".join(pair.value for pair in request.partition_spec.partition_key_values)
        self.created.append(name)
        self.specs.append({pair.key: pair.value for pair in request.partition_spec.partition_key_values})
        self.existing[name] = Partition(100 + len(self.created), None)

    def refresh(self, paths: list[TablePath], partitions: list[PhysicalTablePath]) -> None:
        assert paths == [PATH]
        if self.errors:
            raise self.errors.pop()
        known = {} if self.drops else {p: self.existing[p.partition] for p in partitions if p.partition is not None}
        self.view = ClusterView(partitions={**self.view.partitions, **known})

    def retrying(self, attempt: Any, stale: Any) -> Any:
        for _ in range(5):
            try:
                return attempt()
            except Unavailable:
                stale()
        raise AssertionError("tried too often")


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def listing(cluster: Cluster, _path: TablePath, partial: object = None) -> list[Any]:
        cluster.listed.append(partial)
        return [
            SimpleNamespace(name=name, partition_id=partition.partition_id, spec={"p": name})
            for name, partition in cluster.existing.items()
        ]

    monkeypatch.setattr(routing, "list_partitions", listing)
    monkeypatch.setattr(partition_plans, "list_partitions", listing)


def test_partitions_that_are_missing_are_made_and_others_are_looked_up_once() -> None:
    cluster = Cluster("x")
    router = PartitionRouter(cast("Any", cluster))
    found = router.for_writing(info(partitioned=True), ["x", "y"])
    assert {name: partition.partition_id for name, partition in found.items()} == {"x": 0, "y": 101}
    assert cluster.created == ["y"]
    cluster.existing.clear()  # known already: no request is sent
    assert router.for_writing(info(partitioned=True), ["x", "y"]) == found
    assert cluster.created == ["y"]


def test_one_partition_is_looked_up_alone_however_many_there_are() -> None:
    cluster = Cluster("x")
    router = PartitionRouter(cast("Any", cluster))
    router.for_writing(info(partitioned=True), ["y"])
    router.existing(info(partitioned=True, keys=("p", "day")), ["x$1"])
    assert cluster.listed == [{"p": "y"}, {"p": "x", "day": "1"}]
    router.existing(info(partitioned=True, keys=("p", "day")), ["x$1$2"])  # which names no partition
    router.for_writing(info(partitioned=True), ["a", "b"])
    assert cluster.listed[2:] == [None, None]


def test_the_name_of_a_partition_has_a_value_for_each_key() -> None:
    cluster = Cluster()
    router = PartitionRouter(cast("Any", cluster))
    router.for_writing(info(partitioned=True, keys=("p", "day")), ["x$2024-01-15"])
    assert cluster.specs == [{"p": "x", "day": "2024-01-15"}]
    router.for_writing(info(partitioned=True), ["x$y"])  # of one key the whole name is the value
    assert cluster.specs[1:] == [{"p": "x$y"}]


def test_partitions_are_not_made_where_writers_may_not_make_them() -> None:
    cluster = Cluster("x", may_create=False)
    router = PartitionRouter(cast("Any", cluster))
    assert set(router.for_writing(info(partitioned=True), ["x"])) == {"x"}
    with pytest.raises(NotFound, match=r"no partition 'y', and writers may not create it"):
        router.for_writing(info(partitioned=True), ["y"])


def test_only_partitions_that_exist_are_found_for_reading() -> None:
    cluster = Cluster("x")
    router = PartitionRouter(cast("Any", cluster))
    assert router.existing(info(partitioned=True), ["y"]) == {}
    assert set(router.existing(info(partitioned=True), ["x", "y"])) == {"x"}
    assert cluster.created == []


def test_a_new_partition_that_the_servers_do_not_know_yet_is_waited_for() -> None:
    cluster = Cluster("x")
    router = PartitionRouter(cast("Any", cluster))
    cluster.errors = [NotFound("not yet", ErrorCode.PARTITION_NOT_EXISTS)]
    assert set(router.existing(info(partitioned=True), ["x"])) == {"x"}
    cluster.view = ClusterView()
    cluster.errors = [NotFound("the table is gone", ErrorCode.TABLE_NOT_EXIST)]
    with pytest.raises(NotFound, match="the table is gone"):
        router.existing(info(partitioned=True), ["x"])


def test_partitions_that_are_dropped_all_the_time_are_given_up() -> None:
    cluster = Cluster()
    cluster.drops = True
    with pytest.raises(Unavailable, match=r"partitions x of table d\.t are dropped as often as they are created"):
        PartitionRouter(cast("Any", cluster)).for_writing(info(partitioned=True), ["x"])


@pytest.mark.parametrize(
    ("partial", "sent", "found"),
    [
        (None, {}, ["x$2024-01-15", "y$2024-01-15"]),
        ({}, {}, ["x$2024-01-15", "y$2024-01-15"]),
        ({"p": "y"}, {"p": "y"}, ["y$2024-01-15"]),
        ({"day": dt.date(2024, 1, 15), "p": "x"}, {"day": "2024-01-15", "p": "x"}, ["x$2024-01-15"]),
        ({"day": dt.date(2024, 1, 16)}, {"day": "2024-01-16"}, []),
        ({"other": 5}, {"other": "5"}, []),
    ],
)
def test_the_server_is_asked_only_for_the_wanted_partitions(
    partial: dict[str, Any] | None, sent: dict[str, str], found: list[str]
) -> None:
    table, asked = info(partitioned=True, keys=("p", "day")), []

    def any_call(key: ApiKey, request: pb.ListPartitionInfosRequest, _response: object) -> Any:
        asked.append({pair.key: pair.value for pair in request.partial_partition_spec.partition_key_values})
        return pb.ListPartitionInfosResponse(
            partitions_info=[
                pb.PbPartitionInfo(
                    partition_id=n, partition_spec=partition_spec_to_pb([("p", p), ("day", "2024-01-15")])
                )
                for n, p in enumerate("xy")
            ]
        )

    cluster = SimpleNamespace(any_call=any_call, table_info=lambda path: table)
    partitions = list_partitions(cast("Any", cluster), PATH, partial)
    assert (asked, [partition.name for partition in partitions]) == ([sent], found)


def test_a_value_of_another_type_than_its_partition_key_is_refused() -> None:
    table = info(partitioned=True, keys=("p", "day"))
    with pytest.raises(InvalidRequest, match=r"5 is not a value of partition key 'day' of table d\.t, which is DATE"):
        partition_plans.partition_texts(table, {"day": 5})


# ---- which buckets are read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bucket", "partitioned", "match"),
    [
        (4, False, "has no bucket 4; it has 0 to 3"), (-1, False, "has no bucket -1"),
        (0, True, "is partitioned: name bucket 0 by a TableBucket"), ("0", False, "neither a bucket number nor"),
        (TableBucket(8, 0), False, "does not belong to table d.t, whose id is 7"),
        (TableBucket(7, 0, 1), False, "which is not partitioned"), (TableBucket(7, 0), True, "which is partitioned"),
        (TableBucket(7, 4), False, "has no bucket 4"), (TableBucket(7, 4, 1), True, "has no bucket 4"),
    ],
)  # fmt: skip
def test_buckets_that_a_table_does_not_have_are_refused(bucket: Any, partitioned: bool, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        bucket_plans.check_bucket(info(partitioned=partitioned), bucket)


def test_buckets_are_planned_by_partition_and_number() -> None:
    plain, cluster = info(), cast("Any", Cluster())
    assert bucket_plans.check_bucket(plain, 3) == TableBucket(7, 3)
    assert bucket_plans.plan_buckets(cluster, plain) == [TableBucket(7, number) for number in range(4)]
    assert bucket_plans.plan_buckets(cluster, plain, buckets=[2, 0, 2]) == [TableBucket(7, 0), TableBucket(7, 2)]
    twice = [TableBucket(7, 2), TableBucket(7, 0), TableBucket(7, 2)]
    assert bucket_plans.plan_buckets(cluster, plain, buckets=twice) == twice[:2]
    assert bucket_plans.plan_buckets(cluster, plain, buckets=[]) == []
    with pytest.raises(InvalidRequest, match="has no bucket 9"):
        bucket_plans.plan_buckets(cluster, plain, buckets=[1, 9])
    with pytest.raises(InvalidRequest, match="is not partitioned"):
        bucket_plans.plan_buckets(cluster, plain, partitions=["x"])
    divided, cluster = info(partitioned=True, buckets=2), cast("Any", Cluster("x", "y"))
    assert bucket_plans.plan_buckets(cluster, divided) == [TableBucket(7, n, p) for p in (0, 1) for n in (0, 1)]
    assert bucket_plans.plan_buckets(cluster, divided, "y") == [TableBucket(7, 0, 1), TableBucket(7, 1, 1)]
    assert bucket_plans.plan_buckets(cluster, divided, ["y", "x"], [1]) == [TableBucket(7, 1, 0), TableBucket(7, 1, 1)]
    with pytest.raises(NotFound, match="has no partition 'z'"):
        bucket_plans.plan_buckets(cluster, divided, ["z"])
    with pytest.raises(InvalidRequest, match=r"partitioned by \['p'\], not by \['q'\]"):
        bucket_plans.plan_buckets(cluster, divided, [{"q": "x"}])
