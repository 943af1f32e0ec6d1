"""`forebay verify` on a running server: each broken guarantee is reported, and concurrent writes are not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import forebay.unionread.open_lakes as open_lakes
from forebay.base.errors import CorruptData, NotFound, OutcomeUnknown, UnsupportedOperation
from forebay.client.table import Table
from forebay.verify import Report, running, verify_server
from tests.tiering.running import LakeCluster, lake_cluster, memory_storage

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
RECORDS = 10
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeCluster]:
    with lake_cluster(tmp_path_factory.mktemp("running"), memory_storage) as found:
        yield found


@pytest.fixture(autouse=True)
def lake_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Union reads find the lake in memory."""
    monkeypatch.setattr(open_lakes, "create_lake_storage", memory_storage)


def rows(*keys: int, value: str = "old") -> list[dict[str, Any]]:
    return [{"k": k, "v": value} for k in keys]


@pytest.fixture
def keyed(cluster: LakeCluster) -> Table:
    """A table with keys 0 to 9 in one bucket, and in the lake."""
    table = cluster.create(f"t{next(_numbers)}", SCHEMA, primary_key=["k"], buckets=1)
    table.upsert(rows(*range(RECORDS)))
    cluster.tier(table)
    return table


@pytest.fixture
def appended(cluster: LakeCluster) -> Table:
    table = cluster.create(f"t{next(_numbers)}", SCHEMA, buckets=1)
    table.append(rows(*range(RECORDS)))
    return table


def verified(table: Table) -> Report:
    return verify_server(table.connection, [table.path])


def told(report: Report) -> list[tuple[bool, str]]:
    return [(finding.is_fault, finding.message) for finding in report.findings]


# ---- the log --------------------------------------------------------------------------------------------------------


class Log:
    """What a server says of a log: batches of offsets, and of commit times."""

    def __init__(self, batches: Sequence[Sequence[int]], times: Mapping[int, int]) -> None:
        self._batches, self._times = batches, times

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for offsets in self._batches:
            times = pa.array([self._times.get(offset, 7) for offset in offsets], pa.timestamp("ms", "UTC"))
            yield pa.RecordBatch.from_arrays([pa.array(offsets), times], ["_log_offset", "_commit_timestamp"])


WHOLE = tuple(range(RECORDS))
EMPTY = ": `forebay repair` has given them up, or a client has written empty batches"
LOGS: list[tuple[str, list[Sequence[int]], dict[int, int], str | None, str | None]] = [
    ("whole", [WHOLE], {}, None, None),
    ("in two batches", [WHOLE[:4], WHOLE[4:]], {}, None, None),
    ("a gap", [(0, 1, 3, *WHOLE[4:])], {}, f"offset 2 has no row{EMPTY}", None),
    ("a gap between batches", [(0, 1), (4, *WHOLE[5:])], {}, f"offsets 2 to 3 have no rows{EMPTY}", None),
    ("a gap at the beginning", [WHOLE[2:]], {}, f"offsets 0 to 1 have no rows{EMPTY}", None),
    ("twice", [(0, 1, 1)], {}, *["offset 1 follows 1 in the log"] * 2),
    ("back", [WHOLE[:4], WHOLE[3:]], {}, *["offset 3 follows 3 in the log"] * 2),
    ("times go back", [WHOLE], {5: 6}, *["commit times go back between offsets 0 and 9"] * 2),
    ("times go back later", [WHOLE[:5], WHOLE[5:]], {0: 9, 1: 9, 2: 9, 3: 9, 4: 9},
     *["commit times go back between offsets 5 and 9"] * 2),
    ("short", [WHOLE[:7]], {}, f"offsets 7 to 9 have no rows{EMPTY}", None),
    ("long", [(*WHOLE, 10)], {}, *["the log ends with offset 11, and should with 10"] * 2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("batches", "times", "of_a_log", "of_a_changelog"), [c[1:] for c in LOGS], ids=[c[0] for c in LOGS]
)
def test_records_out_of_order_are_a_fault_and_offsets_without_rows_of_a_log_table_a_note(
    appended: Table,
    keyed: Table,
    monkeypatch: pytest.MonkeyPatch,
    batches: list[Sequence[int]],
    times: Mapping[int, int],
    of_a_log: str | None,
    of_a_changelog: str | None,
) -> None:
    monkeypatch.setattr(Table, "changes", lambda *_args, **_options: Log(batches, times))
    for table, message in ((appended, of_a_log), (keyed, of_a_changelog)):
        report = verified(table)
        assert told(report) == ([] if message is None else [(not message.endswith(EMPTY), message)])
        assert all(str(table.path) in finding.place for finding in report.findings)


def test_steps_and_counts_tell_how_much_was_read(appended: Table, keyed: Table) -> None:
    for table in (appended, keyed):
        steps: list[tuple[str, int, int]] = []
        report = verify_server(table.connection, [table.path], on_step=lambda *step: steps.append(step))  # noqa: B023
        place = f"{table.path} {table.buckets()[0]}"
        assert steps[:2] == [("tables", 0, 1), (f"log of {place}, offsets", RECORDS, RECORDS)]
        assert steps[2:] == ([(f"rows of {place}", RECORDS, 0)] if table is keyed else [])
        counts = {"tables": 1, "buckets": 1, "records": RECORDS}
        of_state = {"rows": RECORDS, "lookups": RECORDS, "lake snapshots": 1}
        assert report.counts == counts | (of_state if table is keyed else {})


def test_damage_of_one_bucket_is_a_fault_and_the_others_are_checked(
    keyed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_args: object, **_options: object) -> Log:
        raise CorruptData("a batch is damaged")

    monkeypatch.setattr(Table, "changes", damaged)
    report = verified(keyed)
    assert told(report) == [(True, "a batch is damaged")]
    assert report.counts["rows"] == RECORDS


# ---- the state ------------------------------------------------------------------------------------------------------


def test_lookups_of_other_rows_are_a_fault_that_names_keys(keyed: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Table.lookup

    def wrong(self: Table, keys: pa.Table) -> pa.Table:
        found = ask(self, keys)
        values = [v if k < 6 else None if k == 9 else "other" for k, v in zip(*found.to_pydict().values(), strict=True)]
        return found.set_column(1, found.schema.field(1), pa.array(values))

    monkeypatch.setattr(Table, "lookup", wrong)
    report = verified(keyed)
    assert told(report) == [(True, "4 lookups give other rows than the full scan: [(6,), (7,), (8,)]")]
    assert report.counts["lookups"] == RECORDS


def test_keys_that_are_not_found_are_a_fault(keyed: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = pa.Table.from_pylist(
        [{"k": None, "v": None}] * RECORDS, pa.schema([("k", pa.int64()), ("v", pa.string())])
    )
    monkeypatch.setattr(Table, "lookup", lambda _self, _keys: nothing)
    ((is_fault, message),) = told(verified(keyed))
    assert (is_fault, "10 lookups give other rows" in message) == (True, True)


def test_rows_that_writers_change_meanwhile_are_not_compared_and_others_are(
    keyed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Table.lookup
    lies: list[int] = []

    def changed(self: Table, keys: pa.Table) -> pa.Table:
        keyed.upsert(rows(3, value="new"))
        keyed.delete([{"k": 4}])
        found = ask(self, keys)
        values = ["lie" if k in lies else v for k, v in zip(*found.to_pydict().values(), strict=True)]
        return found.set_column(1, found.schema.field(1), pa.array(values))

    monkeypatch.setattr(Table, "lookup", changed)
    assert told(verified(keyed)) == []
    keyed.upsert(rows(3, 4))
    lies.append(5)
    assert told(verified(keyed)) == [(True, "1 lookups give other rows than the full scan: [(5,)]")]


def test_a_scan_that_is_not_the_fold_of_the_changelog_is_a_fault(keyed: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "rows_at", lambda *_: iter(()))
    ((is_fault, message),) = told(verified(keyed))
    assert is_fault
    assert re.fullmatch(
        r"the full scan at offset 10 has 10 rows, checksum \w+, and the fold of the changelog 0 rows, checksum 0+",
        message,
    )


def test_a_changelog_whose_beginning_has_expired_is_a_note(keyed: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "rows_at", lambda *_: None)
    expired = "the changelog's beginning has expired: the scan was not compared with its fold"
    assert told(verified(keyed)) == [(False, expired)]


# ---- the lake -------------------------------------------------------------------------------------------------------


def test_a_lake_snapshot_that_holds_more_than_the_log_has_is_a_fault(
    keyed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = keyed.connection.admin.lake_snapshot(keyed.path)
    (bucket,) = keyed.buckets()
    gone = bucket._replace(partition_id=77)
    for offset in (RECORDS, RECORDS + 1):
        monkeypatch.setattr(
            running, "newest_lake_snapshot", lambda *_, o=offset: replace(known, log_offsets={bucket: o, gone: 99})
        )
        report = verified(keyed)
        text = f"lake snapshot {known.snapshot_id} holds the log up to offset 11, and it ends at 10"
        assert told(report) == ([] if offset == RECORDS else [(True, text)])
        assert report.counts["lake snapshots"] == 1


@pytest.mark.parametrize(
    ("error", "finding"),
    [
        (UnsupportedOperation("not installed"), (False, "the lake was not read: not installed")),
        (OutcomeUnknown("lost"), (False, "the lake was not read: lost")),
        (NotFound("no file"), (True, "the union read fails: no file")),
    ],
)
def test_a_union_read_that_fails_is_a_fault_and_one_that_cannot_be_tried_is_a_note(
    keyed: Table, monkeypatch: pytest.MonkeyPatch, error: Exception, finding: tuple[bool, str]
) -> None:
    def fails(_: Table) -> None:
        raise error

    monkeypatch.setattr(running, "union_checksum", fails)
    assert told(verified(keyed)) == [finding]


def test_union_reads_are_compared_unless_writers_continue(keyed: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    live = running.live_checksum
    monkeypatch.setattr(running, "union_checksum", live)
    assert told(verified(keyed)) == []
    other = running.checksum_of(keyed.schema, keyed.arrow_schema.empty_table())
    monkeypatch.setattr(running, "union_checksum", lambda _: other)
    ((is_fault, message),) = told(verified(keyed))
    assert (is_fault, message) == (True, f"the union read has {other}, and the servers have {live(keyed)}")

    def late(_: Table) -> object:
        keyed.upsert(rows(0, value="late"))
        return other

    monkeypatch.setattr(running, "union_checksum", late)
    text = "the union read was not compared with the live rows: writes continued"
    assert told(verified(keyed)) == [(False, text)]


def test_the_lake_of_a_log_table_and_of_one_without_a_snapshot_is_not_read(
    cluster: LakeCluster, appended: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = verified(appended)
    assert (report.findings, "lake snapshots" in report.counts) == ([], False)
    cluster.tier(appended)
    monkeypatch.setattr(running, "union_checksum", lambda _: pytest.fail("it was read"))
    report = verified(appended)
    assert (report.findings, report.counts["lake snapshots"]) == ([], 1)
