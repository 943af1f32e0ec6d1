"""The error of a reader whose files are gone: that the snapshot has expired, or only what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.base.errors import NotFound
from forebay.paimon.read.expired import expiry_errors
from forebay.paimon.table import Table
from tests.paimon.lake import new_catalog, put
from tests.paimon.stream.model import COLUMNS


def filled(folder: Path, commits: int) -> Table:
    table = new_catalog(folder).create_table("db.t", COLUMNS)
    for i in range(commits):
        put(table, [{"id": i}])
    return table


def told(table: Table, snapshot_id: int | None) -> str:
    """What a reader of a snapshot is told when one of its files is missing."""
    with pytest.raises(NotFound) as error, expiry_errors(table.context.snapshots, snapshot_id):
        table.context.io.read(f"{table.context.paths.root}/gone")
    return error.value.message


def test_a_file_that_is_missing_of_an_older_snapshot_went_with_it(tmp_path: Path) -> None:
    table = filled(tmp_path, 3)
    assert "snapshot 2 of " in told(table, 2)
    assert "has expired while it was read (there are 1 to 3; cannot read " in told(table, 2)
    assert told(table, None).startswith(f"a snapshot of {table.context.paths.root} has expired")


@pytest.mark.parametrize(("commits", "snapshot_id"), [(3, 3), (3, 4), (0, None), (0, 1)])
def test_a_file_that_is_missing_of_the_latest_snapshot_is_missing(
    tmp_path: Path, commits: int, snapshot_id: int | None
) -> None:
    assert told(filled(tmp_path, commits), snapshot_id).endswith("/gone: there is no such file")


def test_a_name_that_is_not_there_has_not_expired(tmp_path: Path) -> None:
    table = filled(tmp_path, 3)
    with pytest.raises(NotFound, match=r"^no such tag$"), expiry_errors(table.context.snapshots, None):
        raise NotFound("no such tag")
