"""The result of each way to read, for every merge engine, changelog producer and with deletion vectors: as in Java.

Each table has commits of writers that do not compact, and compactions between them, so that there are rows at level 0
and above it in every range that is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.metadata import types
from forebay.paimon.table import Table
from tests.paimon.foreign.both_sides import WRITE_ONLY, data_of
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaTable, plain_rows
from tests.paimon.lake import new_catalog, put

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

_COLUMNS = {"id": types.int_(), "v": types.int_()}
_ENGINES: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "partial-update": {"partial-update.remove-record-on-delete": "true"},
    "aggregation": {"fields.v.aggregate-function": "sum", "aggregation.remove-record-on-delete": "true"},
    "first-row": {"ignore-delete": "true"},
}
_PRODUCERS = ("none", "input", "lookup", "full-compaction")
_COMMITS: list[list[tuple[str, int, int]] | str] = [
    [("+I", 1, 1), ("+I", 2, 2), ("+I", 3, 3)],
    [("+U", 1, 10), ("-D", 2, 2), ("+I", 4, 4)],
    "compact",
    [("+I", 2, 20), ("+U", 3, 30)],
    [("-D", 4, 4), ("+I", 5, 5)],
    "compact",
    [("+I", 5, 50), ("+I", 6, 6)],
]
_MODES = ("auto", "delta", "changelog", "diff")


def _definitions() -> list[tuple[str, str, bool]]:
    found = []
    for engine in _ENGINES:
        for producer in _PRODUCERS:
            for vectors in (False, True):
                if engine == "first-row" and (vectors or producer in ("input", "full-compaction")):
                    continue  # refused by both
                if vectors and producer == "full-compaction":
                    continue  # refused by both
                found.append((engine, producer, vectors))
    return found


def _filled(table: Table, java: JavaTable) -> None:
    for number, commit in enumerate(_COMMITS):
        if isinstance(commit, str):
            java.ask("compact", full=True)
        else:
            data, kinds = data_of(table, *(row[1:] for row in commit)), [row[0] for row in commit]
            if number % 2:
                java.write(table.schema, data, kinds, options=WRITE_ONLY)
            else:
                put(table.refresh().with_options(WRITE_ONLY), data, kinds)


def _scans(table: Table) -> dict[str, dict[str, str]]:
    """Scan options by what they read: every pair of snapshots by ids, some by tags and times."""
    latest = table.context.snapshots.latest_id()
    assert latest is not None
    times = {i: table.context.snapshots.snapshot(i).time_millis for i in range(1, latest + 1)}
    scans: dict[str, dict[str, str]] = {"batch": {}}
    for number in range(1, latest + 1):
        scans[f"snapshot {number}"] = {"scan.snapshot-id": str(number)}
    pairs = [(0, 1), (1, 2), (1, latest), (2, 4), (3, latest - 1), (latest - 1, latest)]
    for mode in _MODES:
        for first, last in pairs:
            if first == 0 and mode == "diff":
                continue
            chosen = {"incremental-between-scan-mode": mode}
            scans[f"{mode} {first} to {last}"] = chosen | {"incremental-between": f"{first},{last}"}
        for first, last in pairs[1:4]:
            chosen = {"incremental-between-scan-mode": mode}
            between = {"incremental-between-timestamp": f"{times[first]},{times[last]}"}
            scans[f"{mode} times {first} to {last}"] = chosen | between
        chosen = {"incremental-between-scan-mode": mode, "incremental-between": "one,last"}
        scans[f"{mode} tags"] = chosen
        if mode != "diff":
            scans[f"{mode} tags as snapshots"] = chosen | {"incremental-between-tag-to-snapshot": "true"}
    return scans


def _read_by_both(table: Table, java: JavaTable, which: str, options: dict[str, str]) -> tuple[Any, Any]:
    """What a scan gives to both; `which` is a system table, or "" for the rows, of which deletes are left out."""
    answer = java.java.ask("read", java.warehouse, f"{java.name}${which}" if which else java.name, options=options)
    theirs = [row[1:] for row in answer["rows"] if which or row[0] in ("+I", "+U")]
    table = table.with_options(options)
    if which:
        found = table.system(which).read().read_all()
        ours = [list(row.values()) for row in found.select(answer["columns"]).to_pylist()]
    else:
        ours = plain_rows(table.schema, table.scan().to_arrow())
    return sorted(ours, key=repr), sorted(theirs, key=repr)


def _is_compared(engine: str, which: str, scan: dict[str, str]) -> bool:
    """Whether Java's answer counts: where it compares two states (mode `diff`, and tags) it cannot read its own splits
    as a binlog, and where rows are put together it gives what was added, not what came of it."""
    between = scan.get("incremental-between", "")
    compares = "incremental-between-tag-to-snapshot" not in scan and (
        scan.get("incremental-between-scan-mode") == "diff" or "one" in between
    )
    return not (compares and (which == "binlog" or engine in ("aggregation", "partial-update")))


@pytest.mark.parametrize(("engine", "producer", "vectors"), _definitions())
def test_every_way_to_read_gives_what_java_gives(
    tmp_path: Path, java_table: JavaTableOf, engine: str, producer: str, vectors: bool
) -> None:
    catalog = new_catalog(tmp_path)
    options = {"bucket": "1", "merge-engine": engine, "changelog-producer": producer, **_ENGINES[engine]}
    options |= {"deletion-vectors.enabled": str(vectors).lower(), "num-sorted-run.compaction-trigger": "20"}
    table = catalog.create_table("db.t", _COLUMNS, primary_key=["id"], options=options)
    java = java_table(catalog, "db.t")
    _filled(table, java)
    table = table.refresh()
    latest = table.context.snapshots.latest_id()
    assert latest is not None
    table.context.tags.create("one", table.context.snapshots.snapshot(1))
    table.context.tags.create("last", table.context.snapshots.snapshot(latest))
    differing = {}
    for what, scan in _scans(table).items():
        for which in ("", "audit_log", "binlog"):
            if not _is_compared(engine, which, scan):
                continue
            ours, theirs = _read_by_both(table, java, which, scan)
            if ours != theirs:
                differing[f"{which or 'rows'}, {what}"] = (ours, theirs)
    assert differing == {}, "\n".join(f"{name}:\n  {a}\n  {b}" for name, (a, b) in differing.items())
