"""`forebay explain 'SELECT ...'`: which lake files and which log ranges a query reads, and why.

The SQL that it understands is what decides that: columns, the conditions that are joined by AND, and a limit. For
everything else (joins, functions, OR) ask Spark's EXPLAIN.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

from forebay.base.errors import InvalidRequest
from forebay.cli.conditions import conjunction
from forebay.client.connection import Connection
from forebay.metadata.predicate import Leaf, LeafFunction, Predicate, all_of

_SELECT = re.compile(
    r"\s*SELECT\s+(?P<columns>.+?)\s+FROM\s+(?P<table>[\w.`$-]+)(?:\s+WHERE\s+(?P<where>.+?))?(?:\s+LIMIT\s+(?P<limit>\d+))?"
    r"\s*;?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_NULL_TEST = re.compile(r"\s*(\w+)\s+IS\s+(NOT\s+)?NULL\s*$", re.IGNORECASE)
_COUNT = re.compile(r"count\s*\(\s*(\*|1)\s*\)$", re.IGNORECASE)
_QUOTED = re.compile(r"'(?:[^']|'')*'")


@dataclass(frozen=True)
class Query:
    """A SELECT. `columns`: None for `*`, none for `count(*)`. `conditions` hold together."""

    table: str
    columns: list[str] | None
    conditions: tuple[str, ...] = ()
    limit: int | None = None


def parse_select(text: str) -> Query:
    """The parts of a SELECT. Raises `InvalidRequest` saying what is understood."""
    match = _SELECT.match(text)
    if match is None:
        raise InvalidRequest(
            f"{text!r} is not SELECT columns FROM database.table [WHERE condition AND ...] [LIMIT n], which is all "
            "that `forebay explain` understands"
        )
    named = match["columns"].strip()
    columns: list[str] | None
    if named == "*":
        columns = None
    elif _COUNT.match(named):
        columns = []
    else:
        columns = [name.strip().strip("`") for name in named.split(",")]
    where = match["where"]
    limit = match["limit"]
    return Query(
        match["table"].replace("`", ""),
        columns,
        () if where is None else tuple(_joined_by_and(where)),
        None if limit is None else int(limit),
    )


def _joined_by_and(text: str) -> list[str]:
    """The conditions of `text`, cut at each AND that is not inside quotes."""
    hidden = _QUOTED.sub(lambda quoted: "\0" * len(quoted.group()), text)
    cuts = [match.span() for match in re.finditer(r"\s+AND\s+", hidden, re.IGNORECASE)]
    starts = [0, *(end for _, end in cuts)]
    ends = [*(start for start, _ in cuts), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="SELECT", help="SELECT columns FROM database.table [WHERE ...] [LIMIT n]")


def run(connection: Connection, options: argparse.Namespace) -> int:
    from forebay.unionread.planning import plan_union

    query = parse_select(options.query)
    table = connection.table(query.table)

    def predicate(condition: str) -> Predicate | None:
        null_test = _NULL_TEST.match(condition)
        if null_test is not None:
            name, negated = null_test.groups()
            return Leaf(LeafFunction.IS_NOT_NULL if negated else LeafFunction.IS_NULL, name)
        return conjunction(
            str(table.path), lambda c: table.arrow_schema.field(table.schema.column(c).name).type, [condition]
        )

    parts = [part for part in map(predicate, query.conditions) if part is not None]
    print(plan_union(table, query.columns, all_of(parts), query.limit).explain())
    return 0
