"""Workers that are killed (SIGKILL) at every step of a round; another one continues: no row is lost or duplicated."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.client.table import Table
from forebay.lakes.paimon_tables import lake_table
from forebay.tiering.control import RoundControl
from forebay.tiering.steps import RoundStep
from tests.every_run import every_run
from tests.paimon.lake import at_ms
from tests.tiering.dying_worker import killed_at
from tests.tiering.running import LakeCluster, lake_cluster, paimon_storage

SCHEMA = {"k": pa.int32(), "v": pa.string()}


def change(table: Table, number: int) -> None:
    """Rows of which some replace, and some delete, those of the change before, where the table has a key."""
    data = [{"k": k, "v": f"{number}"} for k in range(2 * number, 2 * number + 5)]
    if not table.has_primary_key:
        table.append(data)
        return
    table.upsert(data)
    table.delete([{"k": 2 * number + 1}])


def files_of(cluster: LakeCluster, table: Table) -> set[str]:
    """Data files in the lake table's folder."""
    folder = Path(cluster.lake_options["warehouse"]) / f"{table.path.database}.db" / table.path.table
    return {p.name for p in folder.rglob("data-*")}


IN_EVERY_RUN = {(RoundStep.WRITE, True), (RoundStep.COMMIT, False)}
"""At which steps a table (with a key or not) is killed in every run; at all steps with `make nightly`."""


@pytest.mark.parametrize(
    ("step", "keyed"),
    [
        pytest.param(
            step,
            keyed,
            id=f"{step}-{'primary key' if keyed else 'log'}",
            marks=() if (step, keyed) in IN_EVERY_RUN else pytest.mark.slow,
        )
        for step in RoundStep
        for keyed in (True, False)
    ],
)
def test_a_worker_that_is_killed_at_any_step_loses_and_doubles_nothing(
    paimon_lake: LakeCluster, step: str, keyed: bool
) -> None:
    die_and_go_on(paimon_lake, step, keyed)


@pytest.mark.parametrize(
    ("step", "keyed"),
    every_run(
        [(step, keyed) for step in (RoundStep.WRITE, RoundStep.COMMIT) for keyed in (False, True)],
        {(RoundStep.COMMIT, True)}.__contains__,
    ),
)
def test_so_it_is_with_iceberg(iceberg_lake: LakeCluster, step: str, keyed: bool) -> None:
    die_and_go_on(iceberg_lake, step, keyed)


def die_and_go_on(cluster: LakeCluster, step: str, keyed: bool) -> None:
    table = cluster.create("t", SCHEMA, primary_key=["k"] if keyed else [], bucket_keys=["k"])
    change(table, 0)
    cluster.tier(table)
    change(table, 1)
    killed_at(cluster.server.bootstrap_servers, step, str(table.path))
    change(table, 2)
    cluster.tier(table)
    cluster.check_complete(table)
    change(table, 3)
    cluster.tier(table)
    cluster.check_complete(table)


@pytest.mark.parametrize("step", every_run([RoundStep.WRITE, RoundStep.COMMIT], lambda step: step == RoundStep.COMMIT))
def test_the_first_round_of_a_table_may_be_killed_too(paimon_lake: LakeCluster, step: str) -> None:
    table = paimon_lake.create("t", SCHEMA, primary_key=["k"])
    change(table, 0)
    killed_at(paimon_lake.server.bootstrap_servers, step, str(table.path))
    change(table, 1)
    paimon_lake.tier(table)
    paimon_lake.check_complete(table)


def test_files_of_a_killed_round_are_in_no_snapshot_and_are_found_by_the_lakes_clean_up(
    paimon_lake: LakeCluster,
) -> None:
    table = paimon_lake.create("t", SCHEMA, bucket_keys=["k"])
    change(table, 0)
    killed_at(paimon_lake.server.bootstrap_servers, RoundStep.WRITE, str(table.path))
    left_over = files_of(paimon_lake, table)
    assert left_over
    paimon_lake.tier(table)
    paimon_lake.check_complete(table)
    removed = lake_table(paimon_lake.lake_options, table.path).remove_orphan_files(
        older_than=at_ms(SYSTEM_CLOCK.now_ms())
    )
    assert removed.files
    assert not left_over & files_of(paimon_lake, table)
    paimon_lake.check_complete(table)


@pytest.mark.parametrize(
    "step",
    every_run(
        [RoundStep.PLAN, RoundStep.WRITE, RoundStep.SAVE, RoundStep.COMMIT, RoundStep.REPORT],
        {RoundStep.SAVE}.__contains__,
    ),
)
def test_a_server_that_is_restarted_in_the_middle_of_a_round_makes_no_difference(tmp_path: Path, step: str) -> None:
    with lake_cluster(tmp_path, paimon_storage) as before:
        table = before.create("t", SCHEMA, primary_key=["k"])
        change(table, 0)
        before.tier(table)
        change(table, 1)
        killed_at(before.server.bootstrap_servers, step, str(table.path))
    with lake_cluster(tmp_path, paimon_storage) as after:
        again = after.connection.table(table.path)
        change(again, 2)
        after.tier(again)
        after.check_complete(again)


class Dies(Exception):
    pass


def test_a_round_that_was_never_reported_leaves_the_snapshot_readable_that_readers_have(any_lake: LakeCluster) -> None:
    """Reads of the lake alone went back to an older snapshot, and union reads needed records that may be trimmed."""

    def dies_at(last: str) -> RoundControl:
        def die(step: str) -> None:
            if step == last:
                raise Dies

        return RoundControl(reached=die)

    def readable() -> int:
        return any_lake.connection.admin.lake_snapshot(table.path, readable=True).snapshot_id

    table = any_lake.create("t", SCHEMA, primary_key=["k"], bucket_keys=["k"])
    for number in range(3):
        change(table, number)
        newest = any_lake.tier(table).snapshot_id
    assert readable() == newest
    change(table, 3)
    with pytest.raises(Dies):
        any_lake.tier(table, dies_at(RoundStep.COMMIT))
    with pytest.raises(Dies):  # it has told the cluster of the snapshot of the one before it
        any_lake.tier(table, dies_at(RoundStep.PLAN))
    assert any_lake.connection.admin.lake_snapshot(table.path).snapshot_id != newest
    assert readable() == newest
    any_lake.tier(table)
    any_lake.check_complete(table)
