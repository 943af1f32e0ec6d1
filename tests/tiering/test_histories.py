"""Random histories: writes, new columns and partitions, rounds that die, are cut or overtaken. The lake is a prefix.

After every round that ends, the lake's rows are the log up to the offsets that the cluster knows, replayed; at the end
they are all rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.base.errors import ErrorCode, ForebayError
from forebay.client.admin.lake import TieringTable
from forebay.client.table import Table
from forebay.tiering.control import RoundControl
from forebay.tiering.round import plan_round, run_round, write_round
from forebay.tiering.runner import ThreadRunner
from forebay.tiering.steps import RoundStep
from tests.tiering.running import LAKES, LakeCluster, lake_cluster

SCHEMA = {"k": pa.int32(), "p": pa.string(), "v": pa.string()}
PARTITIONS = ("x", "y")
_numbers = itertools.count()


class Died(BaseException):
    """A worker that is no more: nothing that handles errors sees it."""


keys = st.integers(0, 6)
places = st.sampled_from(PARTITIONS)
operations = st.one_of(
    st.tuples(st.just("write"), st.lists(st.tuples(keys, places), min_size=1, max_size=5)),
    st.tuples(st.just("delete"), st.tuples(keys, places)),
    st.tuples(st.just("tier"), st.none()),
    st.tuples(st.just("tier cut"), st.none()),
    st.tuples(st.just("die"), st.sampled_from(RoundStep)),
    st.tuples(st.just("overtake"), st.tuples(keys, places)),
    st.tuples(st.just("add column"), st.none()),
)


class History:
    """One table, and what is done with it."""

    def __init__(self, cluster: LakeCluster, keyed: bool, partitioned: bool) -> None:
        self.cluster = cluster
        self.keyed = keyed
        self.path = f"fluss.h{next(_numbers)}"
        self.written = itertools.count()
        self.columns = 0
        key = (["k", "p"] if partitioned else ["k"]) if keyed else []
        partition_keys = ["p"] if partitioned else []
        cluster.create(
            self.path.partition(".")[2], SCHEMA, primary_key=key, partition_keys=partition_keys, bucket_keys=["k"]
        )
        if partitioned:
            for name in PARTITIONS:
                cluster.connection.table(self.path).create_partition({"p": name})

    @property
    def table(self) -> Table:
        return self.cluster.connection.table(self.path)

    def write(self, placed: list[tuple[int, str]]) -> None:
        new = {f"c{i}": next(self.written) for i in range(self.columns)}
        data = [{"k": k, "p": p, "v": f"{next(self.written)}", **new} for k, p in placed]
        (self.table.upsert if self.keyed else self.table.append)(data)

    def delete(self, place: tuple[int, str]) -> None:
        if self.keyed:
            key = dict(zip(("k", "p"), place, strict=True))
            self.table.delete([{name: key[name] for name in self.table.schema.primary_key}])

    def tier(self, _: None = None) -> None:
        self.cluster.tier(self.table)
        self.check()

    def tier_cut(self, _: None) -> None:
        control = RoundControl()
        control.cut()
        self.cluster.tier(self.table, control)
        self.check()

    def die(self, step: str) -> None:
        def perhaps(reached: str) -> None:
            if reached == step:
                raise Died

        try:
            self.cluster.tier(self.table, RoundControl(reached=perhaps))
        except Died:
            pass
        self.check()

    def overtake(self, place: tuple[int, str]) -> None:
        """A round is done from its plan to its commit while another one is under way, which is refused then."""
        cluster, info = self.cluster, self.table.info
        handed = TieringTable(info.table_id, info.path, 0, 0)
        self.write([place])

        def other(reached: str) -> None:
            if reached == RoundStep.SAVE:
                cluster.tier(self.table)

        with pytest.raises(ForebayError) as refused:
            run_round(cluster.connection, handed, ThreadRunner(), RoundControl(reached=other), cluster.lake)
        assert refused.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
        self.check()

    def add_column(self, _: None) -> None:
        self.cluster.connection.table(self.path).alter(add_columns={f"c{self.columns}": pa.int64()})
        self.columns += 1

    def check(self) -> None:
        try:
            self.cluster.check(self.table)
        except ForebayError as e:
            if e.code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
                raise

    def run(self, steps: list[tuple[str, Any]]) -> None:
        for operation, argument in steps:
            getattr(self, operation.replace(" ", "_"))(argument)
        self.write([(0, "x")])
        self.tier()
        self.cluster.check_complete(self.table)


@pytest.fixture(scope="module", params=LAKES.values(), ids=LAKES)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeCluster]:
    directory: Path = tmp_path_factory.mktemp("histories")
    with lake_cluster(directory, request.param) as running:
        yield running


@settings(
    max_examples=settings().max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.booleans(), st.booleans(), st.lists(operations, max_size=8))
def test_whatever_happens_the_lake_is_the_log_up_to_its_offsets(
    cluster: LakeCluster, keyed: bool, partitioned: bool, steps: list[tuple[str, Any]]
) -> None:
    History(cluster, keyed, partitioned).run(steps)


def test_a_plan_of_what_is_tiered_already_has_nothing_to_do(cluster: LakeCluster) -> None:
    history = History(cluster, keyed=True, partitioned=True)
    history.write([(1, "x"), (2, "y")])
    history.tier()
    info = history.table.info
    plan = plan_round(cluster.connection, TieringTable(info.table_id, info.path, 0, 0), cluster.lake)
    assert plan.splits == ()
    assert write_round(cluster.connection, plan, ThreadRunner(), RoundControl()) == []
