"""Actions of `forebay paimon` for table maintenance, from compact to purge."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from forebay.base.errors import InvalidRequest
from forebay.base.quantity import format_bytes
from forebay.cli.conditions import column_names
from forebay.cli.output import Progress
from forebay.cli.paimon_tables import (
    Action,
    age,
    counted,
    json_argument,
    older_argument,
    open_table,
    partition_argument,
    partitions_typed,
    print_json,
)
from forebay.paimon import Table
from forebay.paimon.format.file_meta import FileKind


def _compact_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="compact everything, not only what is due by the options")
    parser.add_argument("--order-by", metavar="A,B,...", help="sort an append table by these columns, too")
    parser.add_argument(
        "--strategy", choices=("order", "zorder", "hilbert"), default="order",
        help="how --order-by combines columns (default: %(default)s)",
    )  # fmt: skip
    partition_argument(parser, several=True)
    json_argument(parser)


def _compact(options: argparse.Namespace) -> int:
    table = open_table(options)
    with Progress(f"compacting {table.name}:") as progress:
        snapshot = table.compact(
            options.full,
            partitions_typed(table, options.partition),
            order_by=column_names(options.order_by) or (),
            strategy=options.strategy,
            progress=progress.at,
        )
    changes = (
        []
        if snapshot is None
        else list(table.context.manifests.entries(table.context.manifests.delta_manifests(snapshot)))
    )
    before = sum(1 for e in changes if e.kind is FileKind.DELETE)
    after = len(changes) - before
    if options.json:
        print_json(
            {"snapshot": None if snapshot is None else snapshot.id, "files_before": before, "files_after": after}
        )
    elif snapshot is None:
        print(f"nothing to compact in {table.name}" + ("" if options.full else "; --full compacts everything"))
    else:
        print(f"compacted {counted(before, 'file')} of {table.name} into {after:,}: snapshot {snapshot.id}")
    return 0


def _expire_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--retain-min", type=int, metavar="N", help="keep at least the last N snapshots")
    parser.add_argument("--retain-max", type=int, metavar="N", help="keep at most the last N snapshots")
    older_argument(parser, "expire snapshots that are")
    parser.add_argument(
        "--partitions", nargs="?", const="", metavar="AGE",
        help="also drop partitions older than AGE, such as '30 d', or than option partition.expiration-time says",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only print what would be deleted")
    json_argument(parser)


def _expire(options: argparse.Namespace) -> int:
    """Expire partitions first, because dropping them creates the snapshot that releases their files; then the rest."""
    table = open_table(options)
    maintenance = table.maintenance()
    partitions: list[dict[str, Any]] = []
    if options.partitions is not None:
        partitions = maintenance.expire_partitions(age(options.partitions or None), dry_run=options.dry_run)
    real = not options.dry_run
    tags = maintenance.expire_tags(dry_run=not real) if table.context.options.tag_time_expire_enabled else []
    with Progress(f"expiring snapshots of {table.name}:", unit="snapshots") as progress:
        expiry = maintenance.expire_snapshots(
            options.retain_min, options.retain_max, age(options.older_than), progress=progress.at, dry_run=not real
        )
    changelogs = maintenance.expire_changelogs().count if table.context.options.changelog_decoupled and real else 0
    remaining_ids = table.context.snapshots.ids()
    if options.json:
        print_json(
            {
                "snapshots": expiry.count,
                "data_files": expiry.files.data_files,
                "metadata_files": expiry.files.metadata_files,
                "left": [remaining_ids[0], remaining_ids[-1]] if remaining_ids else [],
                "tags": tags,
                "changelogs": changelogs,
                "partitions": partitions,
            }
        )
        return 0
    remainder = f"{remaining_ids[0]} to {remaining_ids[-1]} are left" if remaining_ids else "none are left"
    did = "expired" if real else "would expire"
    print(f"{did} {counted(expiry.count, 'snapshot')} of {table.name}" + (f"; {remainder}" if real else ""))
    for count, noun in ((len(partitions), "partition"), (len(tags), "tag"), (changelogs, "changelog")):
        if count:
            print(f"{did} {counted(count, noun)}")
    return 0


def _rescale_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("buckets", type=int, help="the new number of buckets per partition")
    partition_argument(parser, several=True)
    json_argument(parser)


def _rescale(options: argparse.Namespace) -> int:
    table = open_table(options)
    before = _of_other_buckets(table, options.buckets)
    with Progress(f"rescaling {table.name}:") as progress:
        partitions: Sequence[dict[str, Any] | None] = [
            *(partitions_typed(table, options.partition) or ()),
            *([] if options.partition else [None]),
        ]
        for partition in partitions:
            table = table.rescale(options.buckets, partition, progress=progress.at)
    rewritten_count = len(before - _of_other_buckets(table, options.buckets))
    if options.json:
        print_json({"buckets": table.context.options.bucket, "rewritten": rewritten_count})
        return 0
    parts = counted(rewritten_count, "partition" if table.schema.partition_keys else "table")
    print(f"{table.name} has {counted(table.context.options.bucket, 'bucket')}; rewritten: {parts}")
    return 0


def _of_other_buckets(table: Table, buckets: int) -> set[bytes]:
    """The partitions that were written with another number of buckets."""
    snapshot = table.context.snapshots.latest()
    entries = [] if snapshot is None else table.context.manifests.live_files(snapshot)
    return {e.partition for e in entries if e.total_buckets != buckets}


def _orphans_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--delete", action="store_true", help="delete the files; without this option they are only listed"
    )
    older_argument(parser, "only files", " (default: 1 d); younger ones may belong to a running commit")
    json_argument(parser)


def _orphans(options: argparse.Namespace) -> int:
    table = open_table(options)
    with Progress(f"looking for orphans of {table.name}:", unit="snapshots and files") as progress:
        orphans = table.maintenance().remove_orphan_files(
            older_than=age(options.older_than), dry_run=not options.delete, progress=progress.at
        )
    if options.json:
        print_json({"files": orphans.files, "bytes": orphans.bytes, "deleted": options.delete})
        return 0
    for path in orphans.files:
        print(path)
    did = "deleted" if options.delete else "found"
    hint = "" if options.delete or not orphans.files else "; --delete deletes them"
    print(f"{did} {counted(len(orphans.files), 'file')} of {format_bytes(orphans.bytes)} that nothing refers to{hint}")
    return 0


# ---- manifests, statistics, purging ---------------------------------------------------------------------------------


def _manifests(options: argparse.Namespace) -> int:
    table = open_table(options)
    before = _count_manifests(table)
    snapshot = table.new_commit().compact_manifests()
    after = _count_manifests(table)
    if options.json:
        print_json(
            {
                "snapshot": None if snapshot is None else snapshot.id,
                "manifests_before": before,
                "manifests_after": after,
            }
        )
    elif snapshot is None:
        print(f"nothing to merge in {table.name}: {counted(before, 'manifest')}")
    else:
        print(f"merged {counted(before, 'manifest')} of {table.name} into {after:,}: snapshot {snapshot.id}")
    return 0


def _count_manifests(table: Table) -> int:
    latest = table.context.snapshots.latest()
    return 0 if latest is None else len(table.context.manifests.data_manifests(latest))


def _analyze_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--columns", metavar="A,B,...", help="also collect statistics of these columns")
    json_argument(parser)


def _analyze(options: argparse.Namespace) -> int:
    table = open_table(options)
    with Progress(f"analyzing {table.name}:") as progress:
        statistics = table.analyze(column_names(options.columns) or (), progress=progress.at)
    if options.json:
        node = (
            None
            if statistics is None
            else {
                "snapshot": statistics.snapshot_id,
                "rows": statistics.merged_record_count,
                "bytes": statistics.merged_record_size,
                "columns": sorted(statistics.columns),
            }
        )
        print_json({"statistics": node})
    elif statistics is None:
        print(f"nothing to analyze in {table.name}: nothing was written yet")
    else:
        print(
            f"{table.name} has {counted(statistics.merged_record_count or 0, 'row')} in snapshot "
            f"{statistics.snapshot_id}"
        )
    return 0


def _purge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="confirm; without this option nothing is deleted")
    parser.add_argument("--dry-run", action="store_true", help="only print how much would be deleted")
    json_argument(parser)


def _purge(options: argparse.Namespace) -> int:
    table = open_table(options)
    if not options.yes and not options.dry_run:
        raise InvalidRequest(f"all rows and all history of {table.name} would be deleted; if that is meant, add --yes")
    if table.context.paths.branch != "main":
        raise InvalidRequest("a branch cannot be purged, only its table; to delete a branch use the action 'branch'")
    if options.dry_run:
        counts = asdict(table.maintenance().purgeable())
        if options.json:
            print_json(counts)
        else:
            print(f"would delete of {table.name}: " + ", ".join(f"{count:,} {noun}" for noun, count in counts.items()))
        return 0
    deletion = table.maintenance().purge()
    if options.json:
        print_json({"files": len(deletion.files), "bytes": deletion.bytes})
        return 0
    print(f"{table.name} is empty; deleted {counted(len(deletion.files), 'file')} that were left over")
    return 0


UPKEEP = {
    "compact": Action("merge a table's small files into larger ones", _compact_arguments, _compact),
    "expire": Action("delete old snapshots, and the files that only they need", _expire_arguments, _expire),
    "rescale": Action("change a table's number of buckets, and rewrite it", _rescale_arguments, _rescale),
    "orphans": Action("find or delete unreferenced files", _orphans_arguments, _orphans),
    "manifests": Action("merge a table's small manifests into larger ones", json_argument, _manifests),
    "analyze": Action("collect statistics of a table for query planners", _analyze_arguments, _analyze),
    "purge": Action("delete all rows and all history of a table", _purge_arguments, _purge),
}
"""The actions by name."""
