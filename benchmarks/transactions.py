"""Rows in a transaction, against the same rows written plainly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from benchmarks import data
from benchmarks.report import Figure, FigureTable, Section
from benchmarks.running import Bench, Run, bench, in_turns, seconds_of

ROWS = 2_000_000
_KEYED_SHARE = 4
"""A put takes longer than an append: a primary-key table gets this part of the rows."""
_LOG_MAX, _KEYED_MAX = 1.3, 1.15
_REASON = (
    "rows are written twice, and the server writes them to their tables only when the client has encoded all of them, "
    "which a plain write does at the same time."
)


def run(options: Run) -> Section:
    table = FigureTable(
        "A transaction of one table",
        "Arrow data in memory until the commit is answered, in a table of one bucket and of four. The ratio is the "
        "time of the transaction to that of `append` or `upsert` with the same rows, in turns; targets: 1.3 and 1.15.",
    )
    with bench(options, "transactions") as server:
        for keyed in (False, True):
            rows = options.rows_or(ROWS) // (_KEYED_SHARE if keyed else 1)
            for buckets in (1, 4):
                _measure(options, server, table, keyed, rows, buckets)
        watching = _watching(options, server, options.rows_or(ROWS) // _KEYED_SHARE)
        server.connection.close()
    return Section("transactions", "Transactions", [table, watching])


def _watching(options: Run, server: Bench, rows: int) -> FigureTable:
    """What it costs that a commit is refused if others have changed its rows."""
    table = FigureTable(
        "A transaction that watches its table",
        f"{rows:,} rows of a primary-key table of 4 buckets are written again, in a transaction; watching, the server "
        "checks at the commit that no other writer has changed one of them since. Others have changed as many other "
        "rows as it says. Ratios are times.",
    )
    whole = pa.Table.from_batches(list(data.batches(rows)))
    made = server.create("watched", primary_key=True, buckets=4)
    made.upsert(whole)

    def again(others: int | None) -> float:
        tx = server.connection.transaction().begin()
        if others is not None:
            tx.watch(made)
            if others:
                made.upsert(data.table(others, first=rows))
        tx.upsert(made, whole)
        return seconds_of(tx.commit)

    others = rows // 5
    contenders = {"a plain commit": None, "watching": 0, f"watching, {others:,} changes": others}
    seconds = in_turns(
        {name: partial(again, others) for name, others in contenders.items()}, options.repeat, options.say
    )
    for name, taken in seconds.items():
        table.add(Figure(name, 1000 * taken, "ms", ratio=taken / seconds["a plain commit"]))
    return table


def _measure(options: Run, server: Bench, table: FigureTable, keyed: bool, rows: int, buckets: int) -> None:
    whole = pa.Table.from_batches(list(data.batches(rows)))
    kind = f"{'primary-key' if keyed else 'log'} table, {buckets} bucket{'s' if buckets > 1 else ''}"
    turns = 0

    def fresh(write: Callable[[str], None]) -> float:
        nonlocal turns
        turns += 1
        made = server.create(f"t{int(keyed)}_{buckets}_{turns}", primary_key=keyed, buckets=buckets)
        seconds = seconds_of(lambda: write(str(made.path)))
        found = made.scan().count()
        if found != rows:
            raise AssertionError(f"{made.path} has {found} rows after {rows} were written")
        server.connection.drop_table(made.path)
        return seconds

    def plain(path: str) -> None:
        target = server.connection.table(path)
        (target.upsert if keyed else target.append)(whole)

    def staged(path: str) -> None:
        with server.connection.transaction(f"bench {kind}", turns) as tx:
            (tx.upsert if keyed else tx.append)(path, whole)

    seconds = in_turns({"plain": lambda: fresh(plain), "tx": lambda: fresh(staged)}, options.repeat, options.say)
    table.add(Figure(f"{kind}: plain", rows / seconds["plain"]))
    table.add(
        Figure(
            f"{kind}: transaction",
            rows / seconds["tx"],
            ratio=seconds["tx"] / seconds["plain"],
            ratio_max=_KEYED_MAX if keyed else _LOG_MAX,
            reason=_REASON,
        )
    )
