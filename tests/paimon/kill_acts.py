"""The operations to kill: all that change a table, each on a table made for it, with the rows allowed afterwards."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.base.ambient import ManualClock
from forebay.paimon.table import Table
from tests.paimon.kills import KillingFileIO
from tests.paimon.lake import put
from tests.paimon.maintain.lakes import NOW, make_table, open_table

Rows = list[tuple[Any, ...]]
DAYS = pa.schema([("day", pa.date32()), ("id", pa.int64())])
NEW = [{"id": 2, "v": 90}, {"id": 50, "v": 91}]
LONG = {"changelog.num-retained.min": "9", "changelog.num-retained.max": "9", "changelog-producer": "input"}
OLD_DAY, NEW_DAY = datetime.date(2020, 1, 1), datetime.date(2030, 3, 15)


@dataclass(frozen=True)
class Act:
    """`build` makes the table that `run` changes. `states` are the rows that readers may find after a kill.

    `again`: it is run to its end afterwards, and must be able to.
    """

    build: Callable[[Path], Table]
    run: Callable[[Table], object]
    states: list[Rows]
    again: bool = True


def keyed(root: Path, **options: str) -> Table:
    """Commit `i` writes keys `i` to `i` + 3 with value `i`."""
    table = make_table(root, options)
    for i in range(6):
        put(table, [{"id": k, "v": i} for k in range(i, i + 4)])
    return table


def appended(root: Path, **options: str) -> Table:
    table = make_table(root, {"compaction.min.file-num": "3", **options}, primary_keys=())
    for i in range(6):
        put(table, [{"id": 10 * i + k, "v": i} for k in range(4)])
    return table


APPENDED: Rows = [(10 * i + k, i) for i in range(6) for k in range(4)]
KEYED: Rows = sorted({k: i for i in range(6) for k in range(i, i + 4)}.items())
WRITTEN: Rows = sorted({**dict(KEYED), 2: 90, 50: 91}.items())


def with_history(root: Path, **options: str) -> Table:
    """Eight commits with a compaction and an overwrite among them, tags on the second and the third."""
    table = make_table(root, {"changelog-producer": "input", **options})
    for i in range(8):
        if i == 4:
            table.overwrite([{"id": 100, "v": i}])
        elif i == 6:
            table.compact(full=True)
        else:
            put(table, [{"id": i % 4, "v": i}, {"id": i + 10, "v": i}])
        if i == 2:
            table.context.tags.create("kept", table.context.snapshots.snapshot(2))
            table.context.tags.create("gone", table.context.snapshots.snapshot(3))
    return table


def expired(root: Path, **options: str) -> Table:
    """Only the last two of these snapshots, and the tags."""
    table = with_history(root, **options)
    table.expire_snapshots(2, 2)
    return table


HISTORY: list[Rows] = [
    [(0, 0), (10, 0)],
    [(0, 0), (1, 1), (10, 0), (11, 1)],
    [(0, 0), (1, 1), (2, 2), (10, 0), (11, 1), (12, 2)],
    [(0, 0), (1, 1), (2, 2), (3, 3), (10, 0), (11, 1), (12, 2), (13, 3)],
    [(100, 4)],
    [(1, 5), (15, 5), (100, 4)],
    [(1, 5), (15, 5), (100, 4)],
    [(1, 5), (3, 7), (15, 5), (17, 7), (100, 4)],
]


def days(root: Path) -> Table:
    options = {"partition.expiration-time": "30 d"}
    table = make_table(root, options, DAYS, ("day", "id"), ("day",))
    for i in range(3):
        put(table, [{"day": day, "id": i} for day in (OLD_DAY, NEW_DAY)])
    return table


def day_rows(*which: datetime.date) -> Rows:
    return [(day, i) for day in which for i in range(3)]


def stream(table: Table) -> object:
    with table.stream_writer("killed") as writer:
        put(writer, NEW)
        return writer.commit(1)


def by_tasks(table: Table) -> object:
    """Compaction as an engine with several workers does it."""
    return table.new_commit().commit([table.run_compaction(t) for t in table.plan_compaction(full=True)])


def drop_tag(table: Table) -> object:
    if "gone" in table.context.tags.names():
        table.delete_tag("gone")
    return None


COMPACTING = {"write-only": "false", "num-sorted-run.compaction-trigger": "2", "changelog-producer": "lookup"}

ACTS: dict[str, Act] = {
    "append": Act(appended, lambda t: put(t, NEW), [APPENDED, sorted([*APPENDED, (2, 90), (50, 91)])], False),
    "write and compact": Act(lambda r: keyed(r, **COMPACTING), lambda t: put(t, NEW), [KEYED, WRITTEN]),
    "write a changelog": Act(
        lambda r: keyed(r, **{"changelog-producer": "input"}), lambda t: put(t, NEW), [KEYED, WRITTEN]
    ),
    "dynamic buckets": Act(
        lambda r: keyed(r, **{"bucket": "-1", "dynamic-bucket.target-row-num": "4"}),
        lambda t: put(t, NEW),
        [KEYED, WRITTEN],
    ),
    "delete": Act(keyed, lambda t: t.delete([{"id": 0}, {"id": 8}]), [KEYED, KEYED[1:-1]]),
    "overwrite": Act(keyed, lambda t: t.overwrite(NEW), [KEYED, [(2, 90), (50, 91)]]),
    "stream": Act(lambda r: keyed(r, **COMPACTING), stream, [KEYED, WRITTEN]),
    "minor compaction": Act(keyed, lambda t: t.compact(), [KEYED]),
    "full compaction": Act(
        lambda r: keyed(r, **{"changelog-producer": "full-compaction"}), lambda t: t.compact(full=True), [KEYED]
    ),
    "dedicated compaction": Act(keyed, by_tasks, [KEYED]),
    "append compaction": Act(appended, lambda t: t.compact(), [APPENDED]),
    "sort compaction": Act(
        appended, lambda t: t.compact(full=True, order_by=["v", "id"], strategy="zorder"), [APPENDED]
    ),
    "bucketed append compaction": Act(
        lambda r: appended(r, **{"bucket": "2", "bucket-key": "id"}), lambda t: t.compact(full=True), [APPENDED]
    ),
    "rescale": Act(lambda r: keyed(r, bucket="2"), lambda t: t.rescale(3), [KEYED]),
    "merge manifests": Act(keyed, lambda t: t.new_commit().compact_manifests(), [KEYED]),
    "analyze": Act(keyed, lambda t: t.analyze(["v"]), [KEYED]),
    "expire snapshots": Act(with_history, lambda t: t.expire_snapshots(2, 2), [HISTORY[7]]),
    "keep changelogs": Act(lambda r: with_history(r, **LONG), lambda t: t.expire_snapshots(2, 2), [HISTORY[7]]),
    "expire changelogs": Act(
        lambda r: expired(r, **LONG),
        lambda t: t.maintenance().expire_changelogs(retain_min=3, retain_max=3),
        [HISTORY[7]],
    ),
    "delete a tag": Act(
        expired,
        drop_tag,
        [HISTORY[7]],
    ),
    "expire partitions": Act(days, lambda t: t.expire_partitions(), [day_rows(OLD_DAY, NEW_DAY), day_rows(NEW_DAY)]),
    "roll back": Act(with_history, lambda t: t.rollback_to(4), HISTORY[3:]),
    "roll back to a tag": Act(expired, lambda t: t.rollback_to("kept"), [HISTORY[1], *HISTORY[6:]]),
}


def run_named(act: str, table: Table) -> None:
    ACTS[act].run(table)


def perform(root: str, act: str, kill_at: str | None) -> None:
    """What the process does that is killed."""
    ACTS[act].run(open_table(root, KillingFileIO(kill_at), ManualClock(NOW)))


def steps_of(root: Path, act: str) -> list[str]:
    """All steps of `act`, which is run to its end on the table at `root`."""
    io = KillingFileIO()
    ACTS[act].run(open_table(root, io, ManualClock(NOW)))
    return io.steps
