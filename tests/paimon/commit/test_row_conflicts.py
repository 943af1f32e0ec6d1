"""A statement's changes are not committed behind a snapshot that has changed the same rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from forebay.base.errors import Conflict
from forebay.paimon.commit.row_conflicts import RowConflicts
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.table import Table
from tests.paimon.lake import new_catalog, put

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    options = {"bucket": "1", "write-only": "true"}
    return new_catalog(tmp_path).create_table("db.t", SCHEMA, primary_key=["id"], options=options)


def write(table: Table, *ids: int) -> None:
    put(table, [{"id": i, "v": 0} for i in ids])


def latest(table: Table) -> Snapshot | None:
    return table.context.snapshots.latest()


def prepared(table: Table, *ids: int) -> list[CommitMessage]:
    """What a statement has written, and not committed."""
    with table.new_write() as writer:
        writer.upsert(pa.table({"id": list(ids), "v": [1] * len(ids)}, SCHEMA))
        return writer.prepare_commit()


def test_rows_that_nobody_else_has_changed_may_follow(table: Table) -> None:
    write(table, 1, 2)
    check = RowConflicts(table.context, latest(table), prepared(table, 1), "UPDATE db.t")
    check(latest(table))
    write(table, 2, 3)
    check(latest(table))


def test_rows_that_somebody_changed_meanwhile_are_named(table: Table) -> None:
    write(table, 1, 2)
    check = RowConflicts(table.context, latest(table), prepared(table, 1, 2), "UPDATE db.t")
    write(table, 2, 3)
    with pytest.raises(Conflict, match=r"UPDATE db.t was not carried out: snapshot 2 of user .* has changed 1 of its"):
        check(latest(table))


def test_a_table_that_was_empty_may_have_got_its_first_rows(table: Table) -> None:
    check = RowConflicts(table.context, None, prepared(table, 1), "INSERT")
    check(None)
    write(table, 2)
    check(latest(table))
    write(table, 1)
    with pytest.raises(Conflict, match="snapshot 2 of user"):
        check(latest(table))


def test_compactions_change_no_rows_and_files_that_were_replaced_are_a_conflict(table: Table) -> None:
    write(table, 1)
    check = RowConflicts(table.context, latest(table), prepared(table, 1), "UPDATE db.t")
    table.compact(full=True)
    check(latest(table))
    table.overwrite([{"id": 9, "v": 0}])
    with pytest.raises(Conflict, match="has replaced files that have rows of its buckets"):
        check(latest(table))


def test_a_snapshot_that_has_expired_cannot_be_checked(table: Table) -> None:
    write(table, 1)
    check = RowConflicts(table.context, latest(table), prepared(table, 1), "UPDATE db.t")
    write(table, 2)
    write(table, 3)
    table.expire_snapshots(retain_min=1, retain_max=1)
    with pytest.raises(Conflict, match="snapshot 2, which came since it began, has expired"):
        check(latest(table))
