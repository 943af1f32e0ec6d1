"""Changes as streams: both sides report the same ones, whichever side wrote and compacted the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.metadata import types
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.table import Table
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaTable, Plain, plain_rows
from tests.paimon.lake import new_catalog, put, stream_of

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

_COLUMNS = {"id": types.int_(), "v": types.string(), "n": types.bigint()}
_WRITE_ONLY = {"write-only": "true"}
_COMMITS: list[list[tuple[str, tuple[Any, ...]]]] = [
    [("+I", (i, "first", i)) for i in range(6)],
    [("+I", (1, "second", 10)), ("-D", (2, "first", 2)), ("-U", (3, "first", 3)), ("+U", (3, "second", 30))],
    [("+I", (2, "again", 20)), ("+I", (7, "new", 7)), ("-D", (9, "never was", 9))],
    [("+I", (7, "new", 7)), ("-D", (0, "first", 0)), ("+I", (1, "third", 100))],
    [("+I", (8, "last", 8))],
]


def _arrow(table: Table, rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(table.schema.names, row, strict=True)) for row in rows], schema=arrow_schema(table.schema.fields)
    )


class Streams:
    """What both sides' streams tell about one table, from their beginnings on."""

    def __init__(self, table: Table, java: JavaTable, name: str, **options: str) -> None:
        self.table, self.java, self.name, self.options = table, java, name, options
        self.state: Any = None

    def news(self) -> list[list[Plain]]:
        """What is new to both: kinds and rows, sorted."""
        stream = stream_of(self.table.with_options(self.options), state=self.state, follow=False)
        ours = []
        for batch in stream:
            kinds = batch.column("_row_kind").to_pylist()
            rows = plain_rows(self.table.schema, pa.Table.from_batches([batch]).drop_columns(["_row_kind"]))
            ours += [[kind, *row] for kind, row in zip(kinds, rows, strict=True)]
        self.state = stream.state()
        theirs = [row for plan in self.java.stream(self.name, options=self.options) for row in plan]
        assert sorted(ours, key=repr) == sorted(theirs, key=repr)
        return sorted(ours, key=repr)


def _write(table: Table, java: JavaTable, number: int, by: str, **options: str) -> None:
    kinds, rows = zip(*_COMMITS[number], strict=True)
    if by == "ours":
        put(table.with_options(options), _arrow(table, list(rows)), list(kinds))
    else:
        java.write(table.schema, _arrow(table, list(rows)), list(kinds), options=options, wait_compaction=True)


@pytest.mark.parametrize("by", ["ours", "theirs", "both"])
@pytest.mark.parametrize("producer", ["none", "input", "lookup", "full-compaction"])
def test_both_streams_tell_the_same_changes(
    tmp_path: Path, java_table: JavaTableOf, producer: str, by: str, request: pytest.FixtureRequest
) -> None:
    catalog = new_catalog(tmp_path)
    options = {"bucket": "1", "changelog-producer": producer, "num-sorted-run.compaction-trigger": "4"}
    if producer == "full-compaction":
        options["full-compaction.delta-commits"] = "1"
    table = catalog.create_table("db.t", _COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    streams = Streams(table, java, request.node.name)
    told = []
    for number in range(len(_COMMITS)):
        writer = ("ours", "theirs")[number % 2] if by == "both" else by
        _write(table, java, number, writer)
        if producer == "full-compaction" and writer == "theirs":
            java.ask("compact", full=True)
        told += streams.news()
        told += Streams(table, java, f"{request.node.name} late {number}").news()
    assert told
    for mode in ("latest-full", "compacted-full", "latest"):
        Streams(table, java, f"{request.node.name} {mode}", **{"scan.mode": mode}).news()
    for snapshot in ("1", "3"):
        start = {"scan.mode": "from-snapshot", "scan.snapshot-id": snapshot}
        Streams(table, java, f"{request.node.name} from {snapshot}", **start).news()
        full = {"scan.mode": "from-snapshot-full", "scan.snapshot-id": snapshot}
        Streams(table, java, f"{request.node.name} full from {snapshot}", **full).news()


@pytest.mark.parametrize("by", ["ours", "theirs"])
@pytest.mark.parametrize("definition", [{}, {"bucket": "2", "bucket-key": "id"}], ids=["unaware", "bucketed"])
def test_append_tables_are_streamed_without_what_compaction_rewrote(
    tmp_path: Path, java_table: JavaTableOf, definition: dict[str, str], by: str, request: pytest.FixtureRequest
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, options=definition)
    java = java_table(catalog, "db.t")
    streams = Streams(table, java, request.node.name)
    for number in range(6):
        rows = [(number * 10 + i, "v", i) for i in range(4)]
        if by == "ours":
            put(table, _arrow(table, rows))
        else:
            java.write(table.schema, _arrow(table, rows), options=_WRITE_ONLY)
        if number == 4:
            java.ask("compact", full=True)
        assert [row[1] for row in streams.news()] == [row[0] for row in rows]


@pytest.mark.parametrize("what", ["ids", "times"])
def test_both_read_the_same_changes_between_two_snapshots(tmp_path: Path, java_table: JavaTableOf, what: str) -> None:
    catalog = new_catalog(tmp_path)
    options = {"bucket": "1", "changelog-producer": "input"}
    table = catalog.create_table("db.t", _COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    for number in range(len(_COMMITS)):
        _write(table, java, number, ("ours", "theirs")[number % 2], **_WRITE_ONLY)
    if what == "ids":
        chosen = {"incremental-between": "2,4"}
    else:
        times = [table.context.snapshots.snapshot(i).time_millis for i in (1, 4)]
        chosen = {"incremental-between-timestamp": f"{times[0]},{times[1]}"}
    for mode in ("delta", "changelog", "auto"):
        asked = chosen | {"incremental-between-scan-mode": mode}
        ours = plain_rows(table.schema, table.with_options(asked).scan().to_arrow())
        # Deletes are in what Java's reader yields; engines leave them out of batch reads, as we do.
        theirs = [row[1:] for row in java.ask("read", options=asked)["rows"] if row[0] in ("+I", "+U")]
        assert sorted(ours, key=repr) == sorted(theirs, key=repr), mode


_UPDATES: list[list[tuple[str, tuple[Any, ...]]]] = [
    [("+U", (i, "first", i)) for i in range(6)],
    [("+U", (1, "second", 10)), ("+I", (2, "x", 2)), ("+U", (7, "x", 2))],
    [("+U", (3, "third", 10)), ("-D", (2, "x", 2)), ("+U", (9, "x", 9))],
    [("+U", (3, "last", 11)), ("-D", (9, "x", 9)), ("+U", (10, "x", 9))],
]
_VECTORS = {"deletion-vectors.enabled": "true"}


@pytest.mark.parametrize("by", ["ours", "theirs"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"changelog-producer": "lookup"},
        {"changelog-producer": "input"},
        {"merge-engine": "partial-update", "ignore-delete": "true", "changelog-producer": "lookup"},
        {"merge-engine": "first-row", "ignore-delete": "true", "changelog-producer": "lookup"},
        _VECTORS,
        {**_VECTORS, "changelog-producer": "input"},
        {**_VECTORS, "changelog-producer": "lookup"},
    ],
    ids=lambda o: " ".join(o.values()) or "plain",
)
def test_full_phases_have_the_same_rows_and_kinds(
    tmp_path: Path, java_table: JavaTableOf, options: dict[str, str], by: str, request: pytest.FixtureRequest
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", _COLUMNS, primary_key=["id"], options={"bucket": "1", **options})
    java, log = java_table(catalog, "db.t"), java_table(catalog, "db.t$audit_log")
    for number, changes in enumerate(_UPDATES):
        kinds, rows = zip(*changes, strict=True)
        if number == 2:
            java.ask("compact", full=True)
        if by == "ours":
            put(table.with_options(_WRITE_ONLY), _arrow(table, list(rows)), list(kinds))
        else:
            java.write(table.schema, _arrow(table, list(rows)), list(kinds), options=_WRITE_ONLY)
        for mode in ("latest-full", "compacted-full"):
            name, read = f"{request.node.name} {number} {mode}", {"scan.mode": mode}
            Streams(table, java, name, **read).news()
            stream = table.with_options(read).system("audit_log").stream(follow=False)
            ours = [list(row.values()) for batch in stream for row in batch.to_pylist()]
            theirs = [row[1:] for plan in log.stream(f"{name} log", options=read) for row in plan]
            assert sorted(ours, key=repr) == sorted(theirs, key=repr)
