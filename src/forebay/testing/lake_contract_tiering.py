"""The lake contract's rules for writers and committers: rounds, fencing, failures, column changes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from forebay.base.errors import Conflict, ErrorCode, InvalidRequest, NotFound
from forebay.lake.storage import LakeStorage
from forebay.lake.tiering import EPOCH_PROPERTY, OFFSETS_PROPERTY, CommitterContext, offsets_name
from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.testing.lake_contract_base import ID_NAME, LakeContractBase, people
from forebay.testing.lake_contract_catalog import WITH_DAY, widened
from forebay.testing.lake_rounds import Row, TieredTable

RESULT_BYTES_MAX = 20_000
"""The maximum size of a pickled writer result for a few files, as it is sent to the driver."""


class TieringRules(LakeContractBase):
    """Rules for writers and committers."""

    # -- rounds -------------------------------------------------------------------------------------------------------

    def test_appended_rows_of_several_buckets_and_partitions_are_in_one_snapshot(self, storage: LakeStorage) -> None:
        """`commit` creates one snapshot of the results of all writers."""
        table = self.log_table(storage, WITH_DAY, partition_keys=["day"], buckets=3)
        rows: list[Row] = [{"id": i, "name": f"v{i}", "day": "ab"[i % 2]} for i in range(12)]
        table.round({((d,), b): [("+A", r) for r in rows[b::3] if r["day"] == d] for d in "ab" for b in range(3)})
        assert table.read() == sorted(rows, key=repr)
        more: Row = {"id": 99, "name": None, "day": "c"}
        table.round({(("c",), 1): [("+A", more)]})
        assert table.read() == sorted([*rows, more], key=repr)

    def test_equal_rows_of_a_log_are_all_kept(self, storage: LakeStorage) -> None:
        table = self.log_table(storage)
        table.append(*people(1, 1))
        table.append(*people(1))
        assert table.read() == people(1, 1, 1)

    def test_upserts_replace_and_deletes_remove(self, storage: LakeStorage) -> None:
        """INSERT and UPDATE_AFTER replace the row of the key; DELETE removes it."""
        table = self.keyed_table(storage, buckets=3)
        table.upsert(*people(*range(10)))
        table.upsert(*people(2, 3, 11, name="new"))
        table.delete(*people(0, 3, 77))
        assert table.read() == sorted([*people(1, 4, 5, 6, 7, 8, 9), *people(2, 11, name="new")], key=repr)
        table.upsert(*people(3, name="back"))
        assert {"id": 3, "name": "back3"} in table.read()

    @pytest.mark.parametrize("chunk", [1, 2, None])
    def test_of_several_changes_of_a_key_the_last_one_counts(self, storage: LakeStorage, chunk: int | None) -> None:
        """Also if the changes are in one batch, or in several batches of a round."""
        table = self.keyed_table(storage, buckets=1)
        a, b, c = ({"id": 1, "name": n} for n in "abc")
        deleted = {"id": 2, "name": "x"}
        updates = [("+I", a), ("-U", a), ("+U", b), ("-U", b), ("+U", c)]
        table.round({((), 0): [*updates, ("+I", deleted), ("-D", deleted)]}, chunk=chunk)
        assert table.read() == [c]
        table.round({((), 0): [("-D", c), ("+I", a)]}, chunk=chunk)
        assert table.read() == [a]

    def test_the_old_image_of_an_update_removes_nothing(self, storage: LakeStorage) -> None:
        """A writer ignores UPDATE_BEFORE: the row after it replaces the old one."""
        table = self.keyed_table(storage, buckets=1)
        old, new = ({"id": 1, "name": n} for n in ("old", "new"))
        table.round({((), 0): [("+I", old), ("-U", old)]})
        assert table.read() == [old]
        table.round({((), 0): [("+U", new)]})
        assert table.read() == [new]

    def test_a_partition_and_its_keys_are_apart_from_others(self, storage: LakeStorage) -> None:
        table = self.keyed_table(storage, WITH_DAY, partition_keys=["day"], primary_key=["id", "day"])
        rows: list[Row] = [{"id": 1, "name": "x", "day": d} for d in ("a", "b")]
        table.upsert(*rows)
        table.delete(rows[0])
        assert table.read() == [rows[1]]

    def test_a_round_without_rows_makes_a_snapshot_with_its_properties(self, storage: LakeStorage) -> None:
        """A round without rows advances the offsets in the snapshot properties."""
        table = self.log_table(storage)
        table.append(*people(1))
        before = table.base
        empty = table.write(((), 0), [])
        committed = table.committer().commit([empty], {OFFSETS_PROPERTY: "file-2"})
        assert committed.snapshot_id != before
        assert table.read(committed.snapshot_id) == people(1)
        snapshot = table.committer().get_missing_lake_snapshot(before)
        assert snapshot is not None
        assert (snapshot.snapshot_id, snapshot.properties[OFFSETS_PROPERTY]) == (committed.snapshot_id, "file-2")

    def test_properties_and_the_epoch_are_kept_in_the_snapshot(self, storage: LakeStorage) -> None:
        """`get_missing_lake_snapshot` returns the properties unchanged, together with the epoch."""
        table = self.log_table(storage)
        table.epoch = 12
        properties = {OFFSETS_PROPERTY: "/remote/lake/ä.offsets", "other": '{"a": 1}'}
        committed = table.round({((), 0): [("+A", r) for r in people(1)]}, properties)
        snapshot = table.committer().get_missing_lake_snapshot(None)
        assert snapshot is not None
        assert snapshot.snapshot_id == committed.snapshot_id
        assert {**snapshot.properties, **properties, EPOCH_PROPERTY: "12"} == dict(snapshot.properties)

    def test_a_commit_tells_which_snapshot_is_readable(self, storage: LakeStorage) -> None:
        table = self.keyed_table(storage)
        committed = table.upsert(*people(1, 2))
        assert committed.is_readable
        assert table.read(committed.readable_snapshot_id) == people(1, 2)

    def test_statistics_are_exact_where_there_are_any(self, storage: LakeStorage) -> None:
        """`TieringStats.rows` counts all rows of the table, not those of the round. None if the format does not
        know."""
        table = self.log_table(storage)
        table.append(*people(1, 2))
        first = table.append(*people(3))
        assert first.stats.rows in (None, 3)
        files = self.data_files(storage)
        if files and first.stats.file_bytes is not None:
            assert first.stats.file_bytes > 0
        assert table.round({}).stats.rows in (None, 3)

    def test_results_are_small(self, storage: LakeStorage) -> None:
        table = self.keyed_table(storage, buckets=1)
        result = table.write(((), 0), [("+I", r) for r in people(*range(5000), name="a longer text than needed ")])
        assert len(pickle.dumps(result)) < RESULT_BYTES_MAX

    def test_a_log_takes_nothing_but_appended_rows(self, storage: LakeStorage) -> None:
        table = self.log_table(storage)
        with pytest.raises(InvalidRequest):
            table.write(((), 0), [("-D", people(1)[0])])

    @pytest.mark.parametrize("by_a_round", [False, True])
    def test_a_snapshot_expired_by_another_process_has_a_successor_and_rounds_continue(
        self, storage: LakeStorage, by_a_round: bool
    ) -> None:
        """`successor` finds the next snapshot and whether its rows are the same. An expired base is not fenced off."""
        table = self.keyed_table(storage, buckets=1)
        table.upsert(*people(1))
        table.upsert(*people(2))
        base = table.base or 0
        assert table.committer().has_snapshot(base)
        if by_a_round:
            table.upsert(*people(3))
        elif not self.disturb(storage):
            pytest.skip("no other program commits to this format here")
        rows = table.read(self.newest_behind(table, base))
        self.expire_old_snapshots(storage)
        successor = table.source().successor(base)
        if not table.committer().has_snapshot(base) and successor is not None:
            assert successor.has_same_rows is not by_a_round
            assert table.read(successor.snapshot_id) == rows
            assert table.source().successor(successor.snapshot_id) is None
        table.upsert(*people(4))
        assert table.read() == [*rows, *people(4)]

    def newest_behind(self, table: TieredTable, snapshot_id: int) -> int:
        """The last of the snapshots that follow a snapshot, each the successor of the previous one."""
        while (later := table.source().successor(snapshot_id)) is not None:
            snapshot_id = later.snapshot_id
        return snapshot_id

    @pytest.mark.parametrize("keyed", [False, True])
    def test_upkeep_changes_no_rows_and_no_offsets(self, storage: LakeStorage, keyed: bool) -> None:
        """After `maintain`, the newest tiering snapshot and its offsets are those of the last round."""
        properties = {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "true"}
        make = self.keyed_table if keyed else self.log_table
        table = make(storage, properties=properties)
        for i in range(7):
            committer = table.committer()
            changes = table.changes("+U" if keyed else "+A", people(i))
            results = [table.write(place, listed) for place, listed in changes.items()]
            table.base = committer.commit(results, {OFFSETS_PROPERTY: f"file-{i}"}).snapshot_id
            committer.maintain()
        assert table.read() == people(*range(7))
        snapshot = table.committer().get_missing_lake_snapshot(None)
        assert snapshot is not None
        assert (snapshot.snapshot_id, snapshot.properties[OFFSETS_PROPERTY]) == (table.base, "file-6")

    # -- what is missing ----------------------------------------------------------------------------------------------

    def test_the_newest_snapshot_of_a_round_is_found_unless_it_is_known(self, storage: LakeStorage) -> None:
        """`get_missing_lake_snapshot` returns None if the cluster knows the newest snapshot."""
        table = self.log_table(storage)
        first, second = table.append(*people(1)), table.append(*people(2))
        for latest in (None, first.snapshot_id):
            snapshot = table.committer().get_missing_lake_snapshot(latest)
            assert snapshot is not None
            assert snapshot.snapshot_id == second.snapshot_id
        assert table.committer().get_missing_lake_snapshot(second.snapshot_id) is None

    def test_snapshots_of_others_are_nothing_that_is_missing(self, storage: LakeStorage) -> None:
        """`get_missing_lake_snapshot` ignores commits of other programs, and rounds continue after them."""
        table = self.keyed_table(storage, buckets=1)
        table.upsert(*people(1, 2))
        table.upsert(*people(2, 3, name="new"))
        ours = table.base
        if not self.disturb(storage):
            pytest.skip("no other program can commit to this format here")
        assert table.committer().get_missing_lake_snapshot(ours) is None
        table.delete(*people(1))
        assert table.read() == people(2, 3, name="new")
        snapshot = table.committer().get_missing_lake_snapshot(ours)
        assert snapshot is not None
        assert snapshot.snapshot_id == table.base

    # -- fencing ------------------------------------------------------------------------------------------------------

    def refused(self, table: TieredTable, results: list[Any], **committer: Any) -> None:
        """Check that a commit is fenced off and leaves the rows unchanged, and that its files can be deleted."""
        before = table.read() if table.base is not None else None
        zombie = table.committer(**committer)
        with pytest.raises(Conflict) as refused:
            zombie.commit(results, {OFFSETS_PROPERTY: "of a zombie"})
        assert refused.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
        assert before is None or table.read() == before
        zombie.abort(results)
        assert before is None or table.read() == before
        newest = table.committer().get_missing_lake_snapshot(None)
        assert newest is None or newest.properties.get(OFFSETS_PROPERTY) != "of a zombie"

    def test_a_worker_that_was_overtaken_cannot_commit(self, storage: LakeStorage) -> None:
        """`commit` raises `Conflict` if another round was committed on the base; then `abort` deletes the files."""
        table = self.keyed_table(storage, buckets=1)
        table.upsert(*people(1))
        old = table.base
        late = table.write(((), 0), [("+U", r) for r in people(1, name="late")])
        files = self.data_files(storage)
        table.upsert(*people(1, name="in time"))
        self.refused(table, [late], base=old)
        remaining = self.data_files(storage)
        if files is not None and remaining is not None:
            assert len(remaining & files) < len(files)

    def test_of_two_first_rounds_one_commits(self, storage: LakeStorage) -> None:
        table = self.log_table(storage)
        late = table.write(((), 0), [("+A", r) for r in people(1)])
        table.append(*people(1))
        self.refused(table, [late], base=None)
        assert table.read() == people(1)

    def test_an_overtaken_worker_is_refused_behind_snapshots_of_others_too(self, storage: LakeStorage) -> None:
        """The check compares tiering snapshots, not the latest snapshot of the table."""
        table = self.keyed_table(storage, buckets=1)
        table.upsert(*people(1))
        old = table.base
        late = table.write(((), 0), [("+U", r) for r in people(1, name="late")])
        table.upsert(*people(2))
        if not self.disturb(storage):
            pytest.skip("no other program can commit to this format here")
        self.refused(table, [late], base=old)

    def test_a_worker_of_an_older_epoch_cannot_follow_on_a_newer_one(self, storage: LakeStorage) -> None:
        """`commit` raises `Conflict` if the base has a newer epoch; the same epoch and newer ones may follow."""
        table = self.log_table(storage)
        table.epoch = 5
        table.append(*people(1))
        late = table.write(((), 0), [("+A", r) for r in people(2)])
        self.refused(table, [late], epoch=4)
        for epoch in (5, 6):
            table.epoch = epoch
            table.append(*people(epoch))
        assert table.read() == people(1, 5, 6)

    def test_a_round_for_another_table_of_the_name_is_refused(self, storage: LakeStorage) -> None:
        table = self.log_table(storage)
        table.append(*people(1))
        recreated = replace(table, info=replace(table.info, table_id=8))
        late = recreated.write(((), 0), [("+A", r) for r in people(2)])
        self.refused(recreated, [late])

    def test_a_base_that_the_lake_does_not_have_is_refused(self, storage: LakeStorage) -> None:
        table = self.log_table(storage)
        late = table.write(((), 0), [("+A", r) for r in people(2)])
        with pytest.raises(Conflict):
            table.committer(base=4711).commit([late], {})
        assert table.committer().get_missing_lake_snapshot(None) is None

    def test_a_committer_follows_on_its_own_commits(self, storage: LakeStorage) -> None:
        """The second commit of a committer builds on the snapshot of its first."""
        table = self.log_table(storage)
        committer = table.committer()
        for i in range(3):
            result = table.write(((), 0), [("+A", r) for r in people(i)])
            table.base = committer.commit([result], {}).snapshot_id
        committer.close()
        assert table.read() == people(0, 1, 2)

    # -- rollbacks by others ------------------------------------------------------------------------------------------

    def undone(self, storage: LakeStorage, keyed: bool = False) -> tuple[TieredTable, int, int]:
        """A table of two rounds, the second of which was rolled back, and the snapshots of both."""
        table = self.keyed_table(storage) if keyed else self.log_table(storage)
        snapshots = []
        for i in (1, 2):
            results = [table.write(p, c) for p, c in table.changes("+U" if keyed else "+A", people(i)).items()]
            committed = table.committer().commit(results, {OFFSETS_PROPERTY: f"/offsets/of-{i}"})
            table.base = committed.snapshot_id
            snapshots.append(committed.snapshot_id)
        if not self.undo(storage, snapshots[0]):
            pytest.skip("no other program can roll back tables of this format here")
        return table, snapshots[0], snapshots[1]

    @pytest.mark.parametrize("disturbed", [False, True])
    def test_what_was_undone_is_not_the_newest_snapshot_whatever_has_its_id(
        self, storage: LakeStorage, disturbed: bool
    ) -> None:
        """After a rollback, the newest tiering snapshot is the one before it, and `was_undone` is true for the later
        one."""
        table, first, second = self.undone(storage)
        if disturbed:
            self.disturb(storage)
        committer, source = table.committer(), table.source()
        for snapshot in (committer.get_missing_lake_snapshot(None), source.newest_tiered()):
            assert snapshot is not None
            assert (snapshot.snapshot_id, offsets_name(snapshot.properties)) == (first, "of-1")
        for tells in (committer, source):
            assert tells.was_undone(second, "of-2")
            assert not tells.was_undone(first, "of-1")
        assert table.read(first) == people(1)

    def test_a_round_on_an_undone_base_is_refused_and_one_on_the_older_continues(self, storage: LakeStorage) -> None:
        """A base that was rolled back is fenced off, also if its id has been reused: the name of its offsets
        differs."""
        table, first, second = self.undone(storage, keyed=True)
        results = [table.write(p, c) for p, c in table.changes("+U", people(3)).items()]
        with pytest.raises(Conflict) as refused:
            table.committer(base=second).commit(results, {})
        assert refused.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
        table.base = first
        committed = table.committer().commit(results, {OFFSETS_PROPERTY: "/offsets/of-3"})
        table.base = committed.snapshot_id
        assert table.read() == people(1, 3)
        if committed.snapshot_id == second:  # ids come again in this format: names tell them apart
            context = CommitterContext(table.info, table.epoch, second, base_offsets="of-2")
            with pytest.raises(Conflict, match="another one has this number now"):
                storage.create_tiering_factory().create_committer(context).commit([], {})
        assert table.committer().was_undone(second, "of-2")

    def test_a_split_of_an_undone_snapshot_has_the_rows_of_that_snapshot_or_none(self, storage: LakeStorage) -> None:
        """Another commit may have its id by the time that a split is read: a split names more than an id."""
        table = self.log_table(storage)
        first = table.append(*people(1)).snapshot_id
        source, second = table.source(), table.append(*people(2)).snapshot_id
        splits = table.splits(second, source)
        if not self.undo(storage, first):
            pytest.skip("no other program can roll back tables of this format here")
        table.base = first
        table.append(*people(3))
        rows: list[Row] = []
        refusal: int | None = None
        try:
            for split in splits:
                with source.create_record_reader(split) as reader:
                    rows += [row for batch in reader.read() for row in table.plain(batch)]
        except NotFound as e:
            refusal = e.code
        assert refusal == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST or sorted(rows, key=repr) == people(1, 2)

    def test_a_planner_tells_the_snapshots_apart_that_have_had_one_id(self, storage: LakeStorage) -> None:
        """`Planner.identity` differs between snapshots that had the same id."""
        table, first, second = self.undone(storage)
        planner = table.source().create_planner(first)
        assert planner.properties is None or offsets_name(planner.properties) == "of-1"
        results = [table.write(p, c) for p, c in table.changes("+A", people(3)).items()]
        table.base = first
        snapshot_id = table.committer().commit(results, {OFFSETS_PROPERTY: "/offsets/of-3"}).snapshot_id
        assert table.source().create_planner(first).identity == planner.identity
        new_planner = table.source().create_planner(snapshot_id)
        assert new_planner.properties is None or offsets_name(new_planner.properties) == "of-3"
        if snapshot_id == second:  # ids come again in this format
            assert new_planner.identity not in (None, planner.identity)

    # -- failures -----------------------------------------------------------------------------------------------------

    def test_what_was_written_and_not_committed_is_not_seen(self, storage: LakeStorage) -> None:
        """Files of crashed writers are invisible, and later rounds are not affected."""
        table = self.log_table(storage)
        table.append(*people(1))
        table.write(((), 0), [("+A", r) for r in people(2)])  # its worker then crashed
        table.write(((), 1), [("+A", r) for r in people(3)], finish=False)
        assert table.read() == people(1)
        table.append(*people(2, 3))
        assert table.read() == people(1, 2, 3)

    def test_of_two_attempts_at_a_bucket_one_is_committed(self, storage: LakeStorage) -> None:
        """Aborting the other attempt deletes its files only."""
        table = self.log_table(storage)
        changes = [("+A", r) for r in people(1, 2)]
        first = table.write(((), 0), changes, attempt="0")
        second = table.write(((), 0), changes, attempt="1")
        committer = table.committer()
        table.base = committer.commit([second], {}).snapshot_id
        committer.abort([first])
        assert table.read() == people(1, 2)

    @pytest.mark.parametrize("keyed", [False, True])
    def test_a_writer_that_gives_up_leaves_no_files(self, storage: LakeStorage, keyed: bool) -> None:
        """`LakeWriter.abort` deletes the written files. It can be repeated."""
        table = self.keyed_table(storage) if keyed else self.log_table(storage)
        kind = "+U" if keyed else "+A"
        table.round(table.changes(kind, people(1)))
        files = self.data_files(storage)
        writer = table.write(((), 0), [(kind, r) for r in people(*range(100))], finish=False)
        writer.abort()
        writer.abort()
        assert self.data_files(storage) == files
        assert table.read() == people(1)

    def test_the_files_of_a_round_that_is_given_up_are_removed(self, storage: LakeStorage) -> None:
        """`LakeCommitter.abort` deletes the files of uncommitted results, and no others."""
        table = self.log_table(storage)
        table.append(*people(1))
        files = self.data_files(storage)
        results = [table.write(((), b), [("+A", r) for r in people(b)]) for b in range(2)]
        if files is not None:
            assert self.data_files(storage) != files
        table.committer().abort(results)
        assert self.data_files(storage) == files
        assert table.read() == people(1)

    def test_a_commit_whose_answer_was_lost_is_found_and_not_repeated(self, storage: LakeStorage) -> None:
        """After a crash, `get_missing_lake_snapshot` finds the committed snapshot, and a repeated commit raises
        `Conflict`."""
        table = self.log_table(storage)
        table.append(*people(1))
        before = table.base
        result = table.write(((), 0), [("+A", r) for r in people(2)])
        committed = table.committer().commit([result], {OFFSETS_PROPERTY: "file-2"})
        # The driver crashed here. The next one knows the previous snapshot.
        with pytest.raises(Conflict):
            table.committer(base=before).commit([result], {OFFSETS_PROPERTY: "file-2"})
        snapshot = table.committer(base=before).get_missing_lake_snapshot(before)
        assert snapshot is not None
        assert (snapshot.snapshot_id, snapshot.properties[OFFSETS_PROPERTY]) == (committed.snapshot_id, "file-2")
        table.base = snapshot.snapshot_id
        assert table.read() == people(1, 2)

    def test_removing_what_was_committed_after_all_removes_nothing(self, storage: LakeStorage) -> None:
        table = self.log_table(storage)
        result = table.write(((), 0), [("+A", r) for r in people(1)])
        table.base = table.committer().commit([result], {}).snapshot_id
        table.committer(base=None).abort([result])
        assert table.read() == people(1)

    # -- columns ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("keyed", [False, True])
    def test_rows_from_before_and_after_a_new_column_are_read_together(self, storage: LakeStorage, keyed: bool) -> None:
        """Old rows have null in the new column. A source from before the change keeps its columns."""
        table = self.keyed_table(storage) if keyed else self.log_table(storage)
        kind = "+U" if keyed else "+A"
        table.round(table.changes(kind, people(1, 2)))
        first, old_source = table.base, table.source()
        narrow = table
        table = table.altered(widened(table.info.descriptor, Column("extra", types.bigint())))
        # The lake has more columns than the log: the stream table changes last, and rows may still lack the column.
        narrow.round(narrow.changes(kind, people(3)))
        table.base = narrow.base
        table.round(table.changes(kind, [{"id": 4, "name": "v4", "extra": 40}]))
        expected = [*({**r, "extra": None} for r in people(1, 2, 3)), {"id": 4, "name": "v4", "extra": 40}]
        assert table.read() == expected
        assert table.read(first) == expected[:2]
        narrow.base = table.base
        assert narrow.read(source=old_source) == people(1, 2, 3, 4)

    def test_rows_with_a_column_that_the_lake_lacks_are_refused(self, storage: LakeStorage) -> None:
        """`InvalidRequest` names the column."""
        table = self.log_table(storage)
        wider = replace(
            table, info=replace(table.info, descriptor=self.descriptor({**ID_NAME, "extra": types.bigint()}))
        )
        with pytest.raises(InvalidRequest, match="extra"):
            wider.write(((), 0), [("+A", {"id": 1, "name": "a", "extra": 1})])
