"""`forebay history TABLE KEY`: one key's changes in log and lake, in order, who has its row now, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound
from forebay.cli.browse import keys_of
from forebay.cli.conditions import column_names
from forebay.cli.connecting import add_connection_arguments, connected
from forebay.cli.output import Progress, output_argument, print_batches, print_object
from forebay.client.key_filter import possible_buckets
from forebay.client.planning import EARLIEST, list_offsets
from forebay.client.table import Table
from forebay.metadata.predicate import Predicate, all_of, col
from forebay.metadata.table import TableBucket

_EPILOG = """Log records come in the order of their offsets. A lake snapshot stands behind the records that it holds,
where its row differs from that of the snapshot before. The last line says who has the key's row now: the lake, or the
stream, whose newer record overrides it.

examples:
  forebay history sales.orders 17
  forebay history sales.visits user=7,day=2026-01-31 -c page -o json"""

_WHERE, _OFFSET, _TIME, _CHANGE = "where", "offset", "time", "change"


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("table", help="a table with a primary key, as database.table")
    parser.add_argument(
        "key", help="the key: its value, or column=value pairs with commas where the key has several columns"
    )
    parser.add_argument("-c", "--columns", metavar="A,B,...", help="only these columns of the rows")
    parser.add_argument(
        "--snapshots", type=int, default=20, metavar="N", help="the newest lake snapshots to look into (default: 20)"
    )
    add_connection_arguments(parser)
    output_argument(parser)


def run(options: argparse.Namespace) -> int:
    with connected(options) as connection, Progress("reading the log:", unit="changes") as progress:
        table = connection.table(options.table)
        if not table.has_primary_key:
            raise InvalidRequest(f"{table.path} is a log table and has no keys; try `forebay changes --where ...`")
        history = _KeyHistory(table, options.key, column_names(options.columns), progress)
        events = [*history.log(), *history.lake(options.snapshots)]
        why = history.why(events)
    rows = [event.row for event in sorted(events, key=lambda event: (event.position, not event.is_lake))]
    print_batches(
        pa.Table.from_pylist(rows, history.schema).to_batches(), options.output,
        schema=None if options.output == "json" else history.schema,
    )  # fmt: skip
    if options.output == "table":
        print(f"\n{why}")
    elif options.output == "json":
        print_object({"now": why})
    return 0


@dataclass(frozen=True)
class _Event:
    """A change: of the log at offset `position`, or of a lake snapshot that holds the log up to before it."""

    position: int
    is_lake: bool
    row: dict[str, Any]


class _KeyHistory:
    def __init__(self, table: Table, key: str, columns: list[str] | None, progress: Progress) -> None:
        self._table, self._progress = table, progress
        self._keys = keys_of(table, [key])
        self._key = key
        names = columns or list(table.schema.names)
        self._columns = [*names, *(name for name in self._keys.schema.names if name not in names)]
        self._predicate = self._condition()
        self._bucket, self._first = self._place()
        shown = [table.arrow_schema.field(name) for name in names]
        heads = ((_WHERE, pa.string()), (_OFFSET, pa.int64()), (_TIME, pa.string()), (_CHANGE, pa.string()))
        taken = {name for name, _ in heads}
        self.schema = pa.schema([*heads, *(f.with_name(f"row.{f.name}") if f.name in taken else f for f in shown)])
        self._shown = names

    def _condition(self) -> Predicate:
        values = self._keys.to_pylist()[0]
        found = all_of(col(name) == value for name, value in values.items())
        assert found is not None
        return found

    def _place(self) -> tuple[TableBucket, int]:
        """The bucket of the key, and the first offset that its log still has."""
        table, partitions = self._table, None
        if table.info.is_partitioned:
            values = self._keys.to_pylist()[0]
            partitions = [{name: values[name] for name in table.info.descriptor.partition_keys}]
        possible = possible_buckets(table.info, self._predicate, table.buckets(partitions))
        if not possible:
            raise NotFound(f"table {table.path} has no partition for key {self._key}")
        bucket = possible[0]
        return bucket, list_offsets(table.connection.cluster, table.info, [bucket], EARLIEST)[bucket]

    def log(self) -> Iterator[_Event]:
        """The changes in the log."""
        with self._table.changes(
            {self._bucket: "earliest"}, {self._bucket: "latest"}, columns=self._columns, filter=self._predicate,
            include=("change_type", "offset", "timestamp"),
        ) as changes:  # fmt: skip
            for batch in changes:
                self._progress.advance(batch.num_rows)
                for change in batch.to_pylist():
                    offset = change["_log_offset"]
                    yield _Event(
                        offset, False,
                        self._row("log", offset, str(change["_commit_timestamp"]), change["_change_type"], change),
                    )  # fmt: skip

    def lake(self, count: int) -> Iterator[_Event]:
        """What the newest lake snapshots have, where it differs from the one before."""
        table = self._table
        if not table.info.lake_enabled:
            return
        from forebay.client.admin import Admin
        from forebay.unionread.planning import lake_of

        source, admin = lake_of(table).create_source(table.info.path), Admin(table.connection)
        newest = list(islice(source.snapshots_until(table.connection.clock.now_ms()), count))
        before: Any = None
        position = 0
        for snapshot_id in reversed(newest):
            try:
                offsets = admin.lake_snapshot(table.info.path, snapshot_id).log_offsets
                position = offsets.get(self._bucket, position)
            except NotFound as e:  # of a compaction, which holds what the one before does
                if e.code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
                    raise
            found = table.scan(self._columns, self._predicate, source="union", as_of=snapshot_id).to_arrow().to_pylist()
            row = found[0] if found else None
            if row != before:
                change = "has no row" if row is None else "has"
                yield _Event(position, True, self._row(f"lake snapshot {snapshot_id}", None, "", change, row or {}))
            before = row

    def why(self, events: list[_Event]) -> str:
        """Who has the key's row now, and why."""
        from forebay.unionread.planning import readable_snapshot

        table, key = self._table, f"key {self._key}"
        row = table.lookup(self._keys, missing="drop").num_rows
        last = max((event.position for event in events if not event.is_lake), default=None)
        gone = "" if self._first == 0 else f" (the log begins at offset {self._first}; older changes have expired)"
        newest = "no record in the log" if last is None else f"its newest record is at offset {last} of the log"
        known = readable_snapshot(table)
        if known is None:
            lake = "the table has no lake" if not table.info.lake_enabled else "the lake has no readable snapshot yet"
            state = "the stream has the row" if row else "there is no row"
            return f"{key}: {state}: {newest}{gone}; {lake}"
        held = known.log_offsets.get(self._bucket, 0)
        lake = f"lake snapshot {known.snapshot_id} holds bucket {self._bucket.bucket} up to offset {held}"
        if last is not None and last >= held:
            state = "the stream overrides the lake" if row else "deleted in the stream, which overrides the lake"
        else:
            state = "the lake has the row" if row else "there is no row in lake or stream"
        return f"{key}: {state}: {newest}{gone}, and {lake}"

    def _row(self, where: str, offset: int | None, time: str, change: str, values: dict[str, Any]) -> dict[str, Any]:
        shown = dict(zip(self.schema.names[4:], (values.get(name) for name in self._shown), strict=True))
        return {_WHERE: where, _OFFSET: offset, _TIME: time, _CHANGE: change, **shown}
