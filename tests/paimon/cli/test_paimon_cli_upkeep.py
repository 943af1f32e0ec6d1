"""`forebay paimon` for a table's history and metadata: tags, branches, rollback, consumers, manifests, purging."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.cli.main import main
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.table import Table
from tests.paimon.lake import new_catalog, put, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Snapshots 1 to 3, with a row each."""
    made = new_catalog(tmp_path).create_table(
        "db.t", COLUMNS, partition_keys=["day"], options={"snapshot.num-retained.min": "1"}
    )
    for i in range(1, 4):
        put(made, [{"id": i, "day": "2026-01-01"}])
    return made


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Runs an action on db.t; its output. With `fails`, its errors."""

    def run(action: str, *words: str, fails: bool = False) -> str:
        code = main(["paimon", action, "-w", str(tmp_path / "lake"), "db.t", *words])
        printed = capsys.readouterr()
        assert code == int(fails), printed
        return printed.err if fails else printed.out

    return run


def test_tags_are_made_listed_moved_and_deleted(table: Table, typed) -> None:
    assert typed("tag") == "(no tags)\n"
    assert typed("tag", "a") == "tag a of db.t is snapshot 3\n"
    assert typed("tag", "b", "--snapshot", "1", "--keep", "2 d") == "tag b of db.t is snapshot 1\n"
    assert "there is a tag 'a' already" in typed("tag", "a", "--snapshot", "2", fails=True)
    typed("tag", "a", "--snapshot", "2", "--replace")
    assert typed("tag", "old", "--at", "2020-01-01") == "tag old of db.t is snapshot 1\n"
    assert "no snapshot to tag made at 2200-01-01 or later" in typed("tag", "x", "--at", "2200-01-01", fails=True)
    typed("tag", "b", "--rename", "c")
    found = {tag["tag"]: (tag["snapshot"], tag["kept_for"]) for tag in json.loads(typed("tag", "--json"))["tags"]}
    assert found == {"a": (2, None), "c": (1, "2 days, 0:00:00"), "old": (1, None)}
    assert "kept_for" in typed("tag")
    assert typed("tag", "c", "--delete") == "deleted tag c of db.t\n"
    assert "which tag? --delete needs its name" in typed("tag", "--delete", fails=True)
    assert table.context.tags.names() == ["a", "old"]


def test_branches_are_made_listed_merged_and_deleted(table: Table, typed) -> None:
    typed("tag", "start", "--snapshot", "1")
    assert "write to 'db.t$branch_dev'" in typed("branch", "dev", "--tag", "start")
    put(table.on_branch("dev"), [{"id": 9, "day": "x"}])
    typed("branch", "empty")
    assert json.loads(typed("branch", "--json")) == {"branches": [{"branch": "dev"}, {"branch": "empty"}]}
    typed("branch", "empty", "--rename", "bare")
    assert typed("branch", "bare", "--delete") == "deleted branch bare of db.t\n"
    assert typed("branch", "dev", "--fast-forward") == "db.t is as branch dev is: snapshot 2\n"
    assert rows_of(table, ["id"]) == [(1,), (9,)]
    assert "which branch? --fast-forward" in typed("branch", "--fast-forward", fails=True)


def test_a_table_is_rolled_back(table: Table, typed) -> None:
    typed("tag", "one", "--snapshot", "1")
    assert typed("rollback", "--snapshot", "2", "--dry-run") == "db.t would be at snapshot 2 again; it is at 3\n"
    assert typed("rollback", "--snapshot", "2") == "db.t is at snapshot 2 again; it was at 3\n"
    assert json.loads(typed("rollback", "--tag", "one", "--json")) == {"previous_snapshot": 2, "snapshot": 1}
    assert "no snapshot as old as" in typed("rollback", "--at", "1999-12-31", fails=True)
    assert rows_of(table, ["id"]) == [(1,)]


def test_consumers_are_listed_set_and_forgotten(table: Table, typed) -> None:
    consumers = ConsumerManager(table.context.io, table.context.paths)
    consumers.record("reports", 3)
    assert "reports" in typed("consumer")
    assert typed("consumer", "reports") == "consumer reports of db.t reads snapshot 3 next\n"
    assert json.loads(typed("consumer", "reports", "--next", "2", "--json")) == {"consumer": "reports", "next": 2}
    assert consumers.all() == {"reports": 2}
    assert "snapshot 50" in typed("consumer", "reports", "--next", "50", fails=True)
    typed("consumer", "reports", "--delete")
    assert "there is no consumer 'reports'" in typed("consumer", "reports", fails=True)


def test_manifests_are_merged_and_statistics_collected(table: Table, typed) -> None:
    assert typed("manifests") == "merged 3 manifests of db.t into 1: snapshot 4\n"
    assert typed("manifests") == "nothing to merge in db.t: 1 manifest\n"
    assert json.loads(typed("analyze", "-c", "id", "--json"))["statistics"]["rows"] == 3
    assert typed("analyze") == "db.t has 3 rows in snapshot 5\n"


def test_merged_manifests_and_a_purge_may_be_told_as_json(table: Table, typed) -> None:
    merged = {"snapshot": 4, "manifests_before": 3, "manifests_after": 1}
    assert json.loads(typed("manifests", "--json")) == merged
    assert json.loads(typed("manifests", "--json")) == {"snapshot": None, "manifests_before": 1, "manifests_after": 1}
    (Path(table.context.paths.root) / "day=2026-01-01/bucket-0/data-stray").write_bytes(b"123")
    assert json.loads(typed("purge", "--yes", "--json")) == {"files": 1, "bytes": 3}


def test_an_empty_table_has_nothing_to_analyze(tmp_path: Path, typed) -> None:
    new_catalog(tmp_path).create_table("db.t", COLUMNS)
    assert typed("analyze") == "nothing to analyze in db.t: nothing was written yet\n"
    assert json.loads(typed("analyze", "--json")) == {"statistics": None}


def test_a_dry_run_of_expire_says_what_would_go(table: Table, typed) -> None:
    assert typed("expire", "--retain-max", "1", "--dry-run") == "would expire 2 snapshots of db.t\n"
    assert table.context.snapshots.ids() == [1, 2, 3]
    assert typed("expire", "--retain-max", "1").startswith("expired 2 snapshots")


def test_a_table_is_purged_only_with_yes(table: Table, typed) -> None:
    assert "add --yes" in typed("purge", fails=True)
    told = {"rows": 3, "files": 3, "snapshots": 3, "tags": 0, "branches": 0, "consumers": 0}
    assert json.loads(typed("purge", "--dry-run", "--json")) == told
    assert typed("purge", "--dry-run").startswith("would delete of db.t: 3 rows, 3 files")
    assert len(rows_of(table)) == 3
    table.create_tag("kept")
    BranchManager(table.context.io, table.context.paths).create("b", "kept")
    assert typed("purge", "--yes").startswith("db.t is empty")
    assert rows_of(table) == []
    assert (table.context.tags.names(), BranchManager(table.context.io, table.context.paths).names()) == ([], [])
    assert table.context.snapshots.ids() == [4]
    assert list(Path(table.context.paths.root).rglob("data-*")) == []
