"""A lake table that others have rolled back: the rows come into the lake again, or it is said which are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay.base.errors import Conflict, ErrorCode, ForebayError, InvalidRequest
from forebay.client.cluster.offsets import EARLIEST, list_offsets
from forebay.client.table import Table
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.lakes.iceberg_tables import load_table, opened
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.metadata.table import TableBucket
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.format.snapshot import CommitKind
from forebay.server.lake import lake_snapshots
from forebay.testing.lake_rounds import in_order
from forebay.testing.memory_lake import MemoryLakeStorage
from forebay.tiering import base
from forebay.tiering import repair as repair_module
from forebay.tiering import round as round_module
from forebay.tiering.control import RoundControl
from forebay.tiering.repair import LakeState, lake_state, repair
from forebay.tiering.steps import RoundStep
from tests.lake import rolling_back
from tests.tiering.overtaken_rounds import SCHEMA, commit, fill, written
from tests.tiering.running import LakeCluster

KINDS = pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])


def made(cluster: LakeCluster, keyed: bool = False, **more: Any) -> Table:
    return cluster.create("t", SCHEMA, buckets=1, **({"primary_key": ["k"]} if keyed else {}), **more)


def known(cluster: LakeCluster, table: Table) -> int:
    return cluster.connection.admin.lake_snapshot(table.path).snapshot_id


def undo(cluster: LakeCluster, table: Table, to: int | None) -> None:
    rolling_back.undo(cluster.storage, table.path, to)


def disturb(cluster: LakeCluster, table: Table) -> None:
    rolling_back.disturb(cluster.storage, table.path)


@KINDS
def test_rows_that_were_undone_come_into_the_lake_again(any_lake: LakeCluster, keyed: bool) -> None:
    table = made(any_lake, keyed)
    snapshots = []
    for keys in ([1, 2], [3], [2, 4]):
        fill(table, *keys)
        snapshots.append(any_lake.tier(table).snapshot_id)
    undo(any_lake, table, snapshots[0])
    if keyed:
        table.delete([{"k": 1}])
    report = any_lake.tier(table)
    assert report.lag_records == 0
    assert len(any_lake.check_complete(table)) == (3 if keyed else 5)
    fill(table, 9)
    any_lake.tier(table)
    assert len(any_lake.check_complete(table)) == (4 if keyed else 6)


@KINDS
def test_a_rollback_is_found_in_a_round_without_new_rows(any_lake: LakeCluster, keyed: bool) -> None:
    table = made(any_lake, keyed)
    fill(table, 1)
    first = any_lake.tier(table).snapshot_id
    fill(table, 2)
    any_lake.tier(table)
    undo(any_lake, table, first)
    any_lake.tier(table)
    assert [row["k"] for row in any_lake.check_complete(table)] == [1, 2]


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_snapshot_number_that_another_writer_used_again_is_not_taken_for_the_undone_one(
    any_lake: LakeCluster, commits: int
) -> None:
    table = made(any_lake)
    fill(table, 1)
    first = any_lake.tier(table).snapshot_id
    for key in (2, 3):
        fill(table, key)
        any_lake.tier(table)
    undo(any_lake, table, first)
    for _ in range(commits):
        disturb(any_lake, table)
    any_lake.tier(table)
    assert [row["k"] for row in any_lake.check_complete(table)] == [1, 2, 3]


@KINDS
def test_a_table_that_was_undone_altogether_begins_again(any_lake: LakeCluster, keyed: bool) -> None:
    table = made(any_lake, keyed)
    for keys in ([1, 2], [2, 3]):
        fill(table, *keys)
        any_lake.tier(table)
    undo(any_lake, table, None)
    any_lake.tier(table)
    assert len(any_lake.check_complete(table)) == (3 if keyed else 4)


@KINDS
def test_a_round_that_was_written_before_the_rollback_cannot_commit(any_lake: LakeCluster, keyed: bool) -> None:
    table = made(any_lake, keyed)
    fill(table, 1)
    first = any_lake.tier(table).snapshot_id
    fill(table, 2)
    any_lake.tier(table)
    fill(table, 3)
    late = written(any_lake, table, 1)
    undo(any_lake, table, first)
    with pytest.raises(Conflict) as refused:
        commit(any_lake, *late)
    assert refused.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
    any_lake.tier(table)
    assert [row["k"] for row in any_lake.check_complete(table)] == [1, 2, 3]


def test_a_round_whose_base_was_undone_and_made_again_by_another_worker_cannot_commit(memory_lake: LakeCluster) -> None:
    table = made(memory_lake)
    fill(table, 1)
    first = memory_lake.tier(table).snapshot_id
    fill(table, 2)
    base_id = memory_lake.tier(table).snapshot_id
    fill(table, 3)
    late = written(memory_lake, table, 1)
    undo(memory_lake, table, first)
    again = written(memory_lake, table, 1)
    commit(memory_lake, *again)
    assert known(memory_lake, table) == base_id  # the same number
    with pytest.raises(Conflict, match="another one has this number now"):
        commit(memory_lake, *late)
    assert [row["k"] for row in memory_lake.check_complete(table)] == [1, 2, 3]


def test_a_worker_that_dies_before_it_reports_a_round_after_a_rollback_loses_nothing(any_lake: LakeCluster) -> None:
    class Dies(Exception):
        pass

    def die(step: str) -> None:
        if step == RoundStep.COMMIT:
            raise Dies

    table = made(any_lake, keyed=True)
    fill(table, 1)
    first = any_lake.tier(table).snapshot_id
    fill(table, 2)
    any_lake.tier(table)
    undo(any_lake, table, first)
    for key in (3, 4):
        fill(table, key)
        with pytest.raises(Dies):
            any_lake.tier(table, RoundControl(reached=die))
    any_lake.tier(table)
    assert [row["k"] for row in any_lake.check_complete(table)] == [1, 2, 3, 4]


def test_a_compaction_that_was_rolled_back_alone_needs_no_row_again(paimon_lake: LakeCluster) -> None:
    """Paimon's worker commits rows and their compaction as two snapshots with the same offsets."""
    table = made(paimon_lake, keyed=True, options={"table.datalake.auto-compaction": "true"})
    assert isinstance(paimon_lake.storage, PaimonLakeStorage)
    snapshots = Catalog.open(paimon_lake.storage.options).table(str(table.path)).context.snapshots
    for key in range(20):
        fill(table, key)
        paimon_lake.tier(table)
        latest = snapshots.latest()
        assert latest is not None
        if latest.commit_kind is CommitKind.COMPACT:
            break
    assert latest.commit_kind is CommitKind.COMPACT
    assert known(paimon_lake, table) == latest.id
    undo(paimon_lake, table, latest.id - 1)
    report = paimon_lake.tier(table)
    assert report.rows == 0
    assert len(paimon_lake.check_complete(table)) == key + 1


@KINDS
@pytest.mark.parametrize("undone", [False, True], ids=["in the history", "undone"])
def test_where_no_line_of_parents_leads_to_the_tagged_snapshot_its_rows_decide(
    iceberg_lake: LakeCluster, keyed: bool, undone: bool
) -> None:
    """Other software's compactions have expired between it and the head."""
    storage = iceberg_lake.storage
    assert isinstance(storage, IcebergLakeStorage)
    table = made(iceberg_lake, keyed)
    fill(table, 1)
    first = iceberg_lake.tier(table).snapshot_id
    fill(table, 2)
    iceberg_lake.tier(table)
    if undone:
        undo(iceberg_lake, table, first)
    for _ in range(2):
        disturb(iceberg_lake, table)
    with storage.upkeep(table.path) as upkeep:
        upkeep.compact(files_min=1)
        upkeep.expire(older_than="9999-01-01T00:00:00Z", keep=1)
    with opened(storage.options) as catalog:
        assert len(load_table(catalog, table.path).metadata.snapshots) == 2  # the tagged one, and the head
    fill(table, 3)
    assert iceberg_lake.tier(table).rows == (2 if undone else 1)
    assert [row["k"] for row in iceberg_lake.check_complete(table)] == [1, 2, 3]


def test_deletes_that_were_undone_are_done_again_where_no_line_of_parents_leads_to_their_snapshot(
    iceberg_lake: LakeCluster,
) -> None:
    storage = iceberg_lake.storage
    assert isinstance(storage, IcebergLakeStorage)
    table = made(iceberg_lake, keyed=True)
    fill(table, 1, 2)
    first = iceberg_lake.tier(table).snapshot_id
    table.delete([{"k": 1}])
    iceberg_lake.tier(table)
    undo(iceberg_lake, table, first)
    for _ in range(2):
        disturb(iceberg_lake, table)
    with storage.upkeep(table.path) as upkeep:
        upkeep.compact(files_min=1)
        upkeep.expire(older_than="9999-01-01T00:00:00Z", keep=1)
    iceberg_lake.tier(table)
    iceberg_lake.check_complete(table)
    assert rolling_back.lake_rows(storage, table.path)["k"].to_pylist() == [2]


@KINDS
def test_a_table_that_others_recreated_and_wrote_to_begins_again(any_lake: LakeCluster, keyed: bool) -> None:
    table = made(any_lake, keyed)
    fill(table, 1)
    any_lake.tier(table)
    undo(any_lake, table, None)
    disturb(any_lake, table)
    any_lake.tier(table)
    assert [row["k"] for row in any_lake.check_complete(table)] == [1]


@KINDS
def test_a_rollback_that_was_undone_after_the_next_round_loses_nothing(iceberg_lake: LakeCluster, keyed: bool) -> None:
    table = made(iceberg_lake, keyed)
    fill(table, 1)
    first = iceberg_lake.tier(table).snapshot_id
    fill(table, 2)
    second = iceberg_lake.tier(table).snapshot_id
    undo(iceberg_lake, table, first)
    fill(table, 3)
    iceberg_lake.tier(table)
    undo(iceberg_lake, table, second)
    iceberg_lake.tier(table)
    assert [row["k"] for row in iceberg_lake.check_complete(table)] == [1, 2, 3]


def test_a_rollback_that_was_undone_in_a_round_is_refused_with_a_way_out(iceberg_lake: LakeCluster) -> None:
    class Dies(Exception):
        pass

    def die(step: str) -> None:
        if step == RoundStep.COMMIT:
            raise Dies

    table = made(iceberg_lake)
    fill(table, 1)
    first = iceberg_lake.tier(table).snapshot_id
    fill(table, 2)
    second = iceberg_lake.tier(table).snapshot_id
    undo(iceberg_lake, table, first)
    with pytest.raises(Dies):
        iceberg_lake.tier(table, RoundControl(reached=die))
    undo(iceberg_lake, table, second)
    with pytest.raises(ForebayError, match=rf"as lake snapshot {first}, .*: roll it back to that one"):
        iceberg_lake.tier(table)
    undo(iceberg_lake, table, first)
    iceberg_lake.tier(table)
    assert [row["k"] for row in iceberg_lake.check_complete(table)] == [1, 2]


def test_rows_that_were_undone_and_added_again_by_others_do_not_come_twice(any_lake: LakeCluster) -> None:
    table = made(any_lake)
    snapshots = []
    for key in (1, 2, 3):
        fill(table, key)
        snapshots.append(any_lake.tier(table).snapshot_id)
    if isinstance(any_lake.storage, MemoryLakeStorage):
        return  # its rows have no offsets
    last = rolling_back.lake_rows(any_lake.storage, table.path)
    undo(any_lake, table, snapshots[0])
    rolling_back.add(any_lake.storage, table.path, last.filter(pc.field("k") == 3))
    with pytest.raises(InvalidRequest, match="A round would add them twice"):
        any_lake.tier(table)
    state = lake_state(any_lake.connection, table.path, any_lake.lake)
    assert state.needs_decision
    assert f"roll the lake table back to snapshot {snapshots[0]}" in str(state)
    with pytest.raises(InvalidRequest, match="needs a decision"):
        repair(any_lake.connection, table.path, accept_loss=True, lake=any_lake.lake)
    undo(any_lake, table, snapshots[0])
    any_lake.tier(table)
    assert [row["k"] for row in any_lake.check_complete(table)] == [1, 2, 3]


# ---- what is not known any more -------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True], ids=["log", "keyed"])
def test_offsets_that_the_server_has_forgotten_follow_from_the_rows(
    any_lake: LakeCluster, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_snapshots, "HISTORY_KEPT", 0)
    table = any_lake.create("t", SCHEMA, buckets=2, bucket_keys=["k"], **({"primary_key": ["k"]} if keyed else {}))
    snapshots = []
    for keys in ([1, 2, 3, 4], [5, 6], [7]):
        fill(table, *keys)
        snapshots.append(any_lake.tier(table).snapshot_id)
    undo(any_lake, table, snapshots[0])
    if isinstance(any_lake.storage, MemoryLakeStorage):  # its rows have no offsets
        with pytest.raises(InvalidRequest, match="are not known any more"):
            any_lake.tier(table)
        return
    any_lake.tier(table)
    assert len(any_lake.check_complete(table)) == 7


def test_a_bucket_without_undone_rows_is_not_taken_for_one_that_is_ahead(
    iceberg_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_snapshots, "HISTORY_KEPT", 0)
    table = iceberg_lake.create("t", SCHEMA, buckets=2, bucket_keys=["k"])
    snapshots = []
    for keys in ([1, 2, 3, 4], [1], [1]):  # one bucket gets rows in the first round alone
        fill(table, *keys)
        snapshots.append(iceberg_lake.tier(table).snapshot_id)
    undo(iceberg_lake, table, snapshots[0])
    iceberg_lake.tier(table)
    assert len(iceberg_lake.check_complete(table)) == 6


def test_rows_in_files_without_statistics_do_not_come_twice(
    iceberg_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_snapshots, "HISTORY_KEPT", 0)
    table = made(iceberg_lake)
    snapshots = []
    for key in (1, 2, 3):
        fill(table, key)
        snapshots.append(iceberg_lake.tier(table).snapshot_id)
    undo(iceberg_lake, table, snapshots[0])
    storage = iceberg_lake.storage
    assert isinstance(storage, IcebergLakeStorage)
    with opened(storage.options) as catalog:
        theirs = load_table(catalog, table.path)
        with theirs.transaction() as change:
            change.set_properties({"write.metadata.metrics.default": "none"})
        theirs.overwrite(theirs.scan().to_arrow())
    with pytest.raises(InvalidRequest, match="are not known any more"):
        iceberg_lake.tier(table)


@KINDS
def test_rows_that_the_log_does_not_have_any_more_are_named_and_nothing_is_tiered(
    any_lake: LakeCluster, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(any_lake, keyed)
    fill(table, 1)
    first = any_lake.tier(table).snapshot_id
    fill(table, 2, 3)
    any_lake.tier(table)
    undo(any_lake, table, first)
    before = any_lake.connection.admin.lake_snapshot(table.path)
    trimmed(monkeypatch, 2)
    with pytest.raises(InvalidRequest) as refused:
        any_lake.tier(table)
    bucket = TableBucket(table.info.table_id, 0)
    assert refused.value.code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    assert f"it lacks records 1 to 1 of bucket {bucket}" in refused.value.message
    assert f"`forebay tiering repair {table.path}`" in refused.value.message
    assert any_lake.connection.admin.lake_snapshot(table.path) == before
    monkeypatch.undo()
    any_lake.tier(table)
    assert in_order([{"k": row["k"]} for row in any_lake.check_complete(table)]) == [{"k": k} for k in (1, 2, 3)]


def trimmed(monkeypatch: pytest.MonkeyPatch, earliest: int) -> None:
    """Let each log begin at an offset, as if retention had removed what is before it."""
    monkeypatch.setattr(base, "list_offsets", lambda _c, _i, buckets, _at: dict.fromkeys(buckets, earliest))


def test_a_server_that_was_restored_from_an_older_copy_takes_no_offsets_from_the_rows_of_the_lake(
    any_lake: LakeCluster, tmp_path: Path
) -> None:
    """Its logs end before what the lake has, and will have other records there."""

    class Dies(Exception):
        pass

    def die(step: str) -> None:
        if step == RoundStep.COMMIT:
            raise Dies

    table = made(any_lake)
    fill(table, 1)
    any_lake.tier(table)
    before = any_lake.connection.admin.lake_snapshot(table.path)
    here = set(tmp_path.rglob("*.offsets"))
    fill(table, 2)
    with pytest.raises(Dies):
        any_lake.tier(table, RoundControl(reached=die))
    for path in set(tmp_path.rglob("*.offsets")) - here:
        path.unlink()
    with pytest.raises(ForebayError, match="later rounds have been committed since"):
        any_lake.tier(table)
    assert any_lake.connection.admin.lake_snapshot(table.path) == before


# ---- repair ---------------------------------------------------------------------------------------------------------


def broken(cluster: LakeCluster, keyed: bool, monkeypatch: pytest.MonkeyPatch, lost: int = 2) -> Table:
    """A table whose second round was rolled back, and whose log has lost the records before an offset."""
    table = made(cluster, keyed)
    fill(table, 1, 5)
    first = cluster.tier(table).snapshot_id
    fill(table, 2, 3, 4)
    if keyed:
        table.delete([{"k": 5}])
    cluster.tier(table)
    undo(cluster, table, first)
    trimmed(monkeypatch, lost)
    return table


def test_a_table_says_whether_the_lake_has_what_the_server_knows(any_lake: LakeCluster) -> None:
    table = made(any_lake)

    def state() -> LakeState:
        return lake_state(any_lake.connection, table.path, any_lake.lake)

    assert state().state == "not tiered"
    fill(table, 1)
    first = any_lake.tier(table).snapshot_id
    assert (state().state, state().registered, state().newest) == ("agreed", first, first)
    fill(table, 2)
    second = any_lake.tier(table).snapshot_id
    undo(any_lake, table, first)
    assert (state().state, state().registered, state().newest) == ("rolled back", second, first)
    assert not state().needs_decision
    assert "nothing has to be done" in str(state())
    assert repair(any_lake.connection, table.path, lake=any_lake.lake).rows == 1
    assert state().state == "agreed"


def test_a_log_table_goes_on_without_what_is_lost_if_that_is_accepted(
    any_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = broken(any_lake, False, monkeypatch, lost=4)
    state = lake_state(any_lake.connection, table.path, any_lake.lake)
    bucket = TableBucket(table.info.table_id, 0)
    assert [str(lost) for lost in state.lost] == [f"2 to 3 of bucket {bucket}"]
    assert state.needs_decision
    with pytest.raises(InvalidRequest, match="needs a decision"):
        repair(any_lake.connection, table.path, lake=any_lake.lake)
    with pytest.raises(InvalidRequest, match=r"needs a primary key.*\n.*"):
        repair(any_lake.connection, table.path, rebuild=True, lake=any_lake.lake)
    monkeypatch.setattr(round_module, "list_offsets", lambda c, i, b, at: (
        dict.fromkeys(b, 4) if at == EARLIEST else list_offsets(c, i, b, at)
    ))  # fmt: skip
    report = repair(any_lake.connection, table.path, accept_loss=True, lake=any_lake.lake)
    assert (report.rows, report.lost_records, report.lag_records) == (1, 2, 0)
    assert [row["k"] for row in any_lake.lake_rows(table)] == [1, 4, 5]
    assert lake_state(any_lake.connection, table.path, any_lake.lake).state == "agreed"
    monkeypatch.undo()
    fill(table, 6)
    any_lake.tier(table)
    assert [row["k"] for row in any_lake.lake_rows(table)] == [1, 4, 5, 6]


@pytest.mark.parametrize("commits", [0, 2])
def test_a_keyed_table_is_rebuilt_from_the_current_rows(
    any_lake: LakeCluster, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = broken(any_lake, True, monkeypatch, lost=4)
    for _ in range(commits):
        disturb(any_lake, table)
    with pytest.raises(InvalidRequest, match=r"needs a decision[\s\S]*--rebuild"):
        repair(any_lake.connection, table.path, accept_loss=True, lake=any_lake.lake)
    report = repair(any_lake.connection, table.path, rebuild=True, lake=any_lake.lake)
    assert report.lag_records == 0
    monkeypatch.undo()
    assert [row["k"] for row in any_lake.check_complete(table)] == [1, 2, 3, 4]
    table.delete([{"k": k} for k in (1, 2, 3, 4)])
    fill(table, 7)
    any_lake.tier(table)
    assert [row["k"] for row in any_lake.check_complete(table)] == [7]


def test_a_bucket_without_rows_is_rebuilt_as_well(memory_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(memory_lake, keyed=True)
    fill(table, 1)
    first = memory_lake.tier(table).snapshot_id
    table.delete([{"k": 1}])
    memory_lake.tier(table)
    undo(memory_lake, table, first)
    trimmed(monkeypatch, 2)
    repair(memory_lake.connection, table.path, rebuild=True, lake=memory_lake.lake)
    assert memory_lake.lake_rows(table) == []


def test_a_rollback_is_undone_where_the_lake_still_has_the_rows(
    any_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = broken(any_lake, False, monkeypatch, lost=4)
    state = lake_state(any_lake.connection, table.path, any_lake.lake)
    if not isinstance(any_lake.storage, IcebergLakeStorage):
        assert not state.can_restore
        with pytest.raises(InvalidRequest, match=r"there is no snapshot of .* to restore"):
            repair(any_lake.connection, table.path, restore=True, lake=any_lake.lake)
        return
    disturb(any_lake, table)
    assert "--restore" in str(state)
    assert repair(any_lake.connection, table.path, restore=True, lake=any_lake.lake).rows == 0
    monkeypatch.undo()
    assert [row["k"] for row in any_lake.check_complete(table)] == [1, 2, 3, 4, 5]


def test_a_rollback_is_undone_only_if_no_other_process_has_done_something_about_it(
    iceberg_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = broken(iceberg_lake, False, monkeypatch, lost=4)
    given: Any = {"restore": True, "lake": iceberg_lake.lake}
    look, others = repair_module._compare_with_lake, iter([True])

    def looked_at(*arguments: Any) -> Any:
        found = look(*arguments)
        if next(others, False):
            repair(iceberg_lake.connection, table.path, **given)
        return found

    monkeypatch.setattr(repair_module, "_compare_with_lake", looked_at)
    with pytest.raises(Conflict, match="has another newest tiering snapshot by now"):
        repair(iceberg_lake.connection, table.path, **given)


def test_rows_of_a_dropped_partition_are_lost_only_if_that_is_accepted(paimon_lake: LakeCluster) -> None:
    table = paimon_lake.create("t", {"p": pa.string(), "k": pa.int32()}, buckets=1, partition_keys=["p"],
                               primary_key=["p", "k"])  # fmt: skip
    table.upsert([{"p": "a", "k": 1}])
    first = paimon_lake.tier(table).snapshot_id
    table.upsert([{"p": "a", "k": 2}, {"p": "b", "k": 3}])
    paimon_lake.tier(table)
    table.drop_partition({"p": "b"})
    undo(paimon_lake, table, first)
    with pytest.raises(InvalidRequest, match="it lacks records 0 to 0 of bucket"):
        paimon_lake.tier(table)
    with pytest.raises(InvalidRequest, match=r"--rebuild alone is not enough[\s\S]*--accept-loss has to be given, too"):
        repair(paimon_lake.connection, table.path, rebuild=True, lake=paimon_lake.lake)
    repair(paimon_lake.connection, table.path, rebuild=True, accept_loss=True, lake=paimon_lake.lake)
    assert [row["k"] for row in paimon_lake.lake_rows(table)] == [1, 2]
    assert paimon_lake.tier(table).lag_records == 0
