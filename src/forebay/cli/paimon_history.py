"""Actions of `forebay paimon` on a table's history: tags, branches, rollback, consumers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest, NotFound
from forebay.base.quantity import moment_at, moment_ms, parse_duration_ms
from forebay.cli.output import print_batches
from forebay.cli.paimon_tables import Action, json_argument, open_table, print_json, time_text


def _answer(options: argparse.Namespace, value: Mapping[str, Any], text: str) -> int:
    if options.json:
        print_json(value)
    else:
        print(text)
    return 0


def _list(options: argparse.Namespace, kind: str, rows: Sequence[Mapping[str, Any]]) -> int:
    if options.json:
        print_json({kind: list(rows)})
    elif rows:
        print_batches(pa.Table.from_pylist([dict(row) for row in rows]).to_batches(), "table")
    else:
        print(f"(no {kind})")
    return 0


def _needs_name(options: argparse.Namespace, kind: str, flags: Sequence[str]) -> None:
    supplied_flags = [f"--{flag.replace('_', '-')}" for flag in flags if getattr(options, flag) not in (None, False)]
    if options.name is None and supplied_flags:
        raise InvalidRequest(f"which {kind}? {supplied_flags[0]} needs its name after that of the table")


# ---- tags -----------------------------------------------------------------------------------------------------------


def _tag_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the tag; without it all tags are listed")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--snapshot", type=int, metavar="ID", help="tag this snapshot (default: the latest)")
    which.add_argument("--at", metavar="TIME", help="tag the first snapshot created at this time (UTC) or later")
    which.add_argument("--rename", metavar="NEW", help="rename the tag")
    which.add_argument("--delete", action="store_true", help="delete the tag, and the files that only it needs")
    parser.add_argument("--keep", metavar="DURATION", help="expire the tag after this time, such as '30 d'")
    parser.add_argument("--replace", action="store_true", help="move an existing tag")
    json_argument(parser)


def _tag(options: argparse.Namespace) -> int:
    table, name = open_table(options), options.name
    _needs_name(options, "tag", ("snapshot", "at", "rename", "delete", "keep", "replace"))
    if name is None:
        rows = [
            {
                "tag": tag.name,
                "snapshot": tag.snapshot.id,
                "committed": time_text(tag.snapshot.time_millis),
                "kept_for": None if tag.retained is None else str(tag.retained),
            }
            for tag in table.context.tags.tags()
        ]
        return _list(options, "tags", rows)
    if options.delete:
        table.delete_tag(name)
        return _answer(options, {"deleted": name}, f"deleted tag {name} of {table.name}")
    if options.rename is not None:
        table.context.tags.rename(name, options.rename)
        return _answer(options, {"tag": options.rename}, f"tag {name} of {table.name} is now {options.rename}")
    snapshot = (
        table.context.snapshots.latest()
        if options.snapshot is None
        else table.context.snapshots.snapshot(options.snapshot)
    )
    if options.at is not None:
        snapshot = table.context.snapshots.after(moment_ms(options.at, "--at"))
    if snapshot is None:
        raise NotFound(
            f"{table.name} has no snapshot to tag" + (f" made at {options.at} or later" if options.at else "")
        )
    keep_ms = None if options.keep is None else parse_duration_ms(options.keep)
    (table.context.tags.replace if options.replace else table.context.tags.create)(name, snapshot, keep_ms)
    answer = {"tag": name, "snapshot": snapshot.id}
    return _answer(options, answer, f"tag {name} of {table.name} is snapshot {snapshot.id}")


# ---- branches -------------------------------------------------------------------------------------------------------


def _branch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the branch; without it all branches are listed")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--tag", metavar="NAME", help="start with this tag's snapshot (default: an empty branch)")
    kind.add_argument("--rename", metavar="NEW", help="rename the branch")
    kind.add_argument("--fast-forward", action="store_true", help="replace the table's history with the branch's")
    kind.add_argument("--delete", action="store_true", help="delete the branch")
    json_argument(parser)


def _branch(options: argparse.Namespace) -> int:
    table, name = open_table(options), options.name
    _needs_name(options, "branch", ("tag", "rename", "fast_forward", "delete"))
    if name is None:
        return _list(options, "branches", [{"branch": branch} for branch in table.branches()])
    if options.delete:
        table.delete_branch(name)
        return _answer(options, {"deleted": name}, f"deleted branch {name} of {table.name}")
    if options.rename is not None:
        table.rename_branch(name, options.rename)
        return _answer(options, {"branch": options.rename}, f"branch {name} of {table.name} is now {options.rename}")
    if options.fast_forward:
        table.fast_forward(name)
        latest = table.context.snapshots.latest_id()
        return _answer(options, {"snapshot": latest}, f"{table.name} is as branch {name} is: snapshot {latest}")
    table.create_branch(name, options.tag)
    return _answer(
        options, {"branch": name}, f"{table.name} has a branch {name}: write to '{table.name}$branch_{name}'"
    )


# ---- rollback -------------------------------------------------------------------------------------------------------


def _rollback_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--snapshot", type=int, metavar="ID", help="to this snapshot")
    where.add_argument("--tag", metavar="NAME", help="to this tag's snapshot")
    where.add_argument("--at", metavar="TIME", help="to the last snapshot created until this time (UTC)")
    parser.add_argument("--dry-run", action="store_true", help="only print the snapshot to roll back to")
    json_argument(parser)


def _rollback(options: argparse.Namespace) -> int:
    table = open_table(options)
    before = table.context.snapshots.latest_id()
    if options.tag is not None:
        table.context.tags.tag(options.tag)  # rejects a time, which is not a tag
    at = None if options.at is None else moment_at(moment_ms(options.at, "--at"))
    to = options.tag if options.tag is not None else at if at is not None else options.snapshot
    now = table.rollback_to(to, dry_run=options.dry_run)
    is_at, was_at = ("would be", "is") if options.dry_run else ("is", "was")
    text = f"{table.name} {is_at} at snapshot {now.id} again; it {was_at} at {before}"
    return _answer(options, {"previous_snapshot": before, "snapshot": now.id}, text)


# ---- consumers ------------------------------------------------------------------------------------------------------


def _consumer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the consumer; without it all consumers are listed")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--next", type=int, metavar="ID", help="continue reading with this snapshot")
    kind.add_argument(
        "--delete", action="store_true", help="delete the consumer, so that expiry no longer waits for it"
    )
    json_argument(parser)


def _consumer(options: argparse.Namespace) -> int:
    table, name = open_table(options), options.name
    consumers = table.context.consumers
    _needs_name(options, "consumer", ("next", "delete"))
    consumer_ids = consumers.all()
    if name is None:
        return _list(
            options,
            "consumers",
            [{"consumer": key, "next_snapshot": consumer_ids[key]} for key in sorted(consumer_ids)],
        )
    if options.delete:
        if not consumers.delete(name):
            raise NotFound(f"there is no consumer '{name}'; consumers are {', '.join(sorted(consumer_ids)) or 'none'}")
        return _answer(options, {"deleted": name}, f"forgot consumer {name} of {table.name}")
    if options.next is not None:
        table.context.snapshots.snapshot(options.next)
        consumers.record(name, options.next)
        consumer_ids[name] = options.next
    if name not in consumer_ids:
        raise NotFound(f"there is no consumer '{name}'; consumers are {', '.join(sorted(consumer_ids)) or 'none'}")
    text = f"consumer {name} of {table.name} reads snapshot {consumer_ids[name]} next"
    return _answer(options, {"consumer": name, "next": consumer_ids[name]}, text)


HISTORY = {
    "tag": Action("list, create, move or delete tags, which keep snapshots", _tag_arguments, _tag),
    "branch": Action("list, create, merge or delete branches", _branch_arguments, _branch),
    "rollback": Action("make an older snapshot the latest again", _rollback_arguments, _rollback),
    "consumer": Action("list, set or delete consumers, the progress of streams", _consumer_arguments, _consumer),
}
"""The actions by name."""
