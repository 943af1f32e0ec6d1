"""`forebay explain 'SELECT ...'`: which lake files and which log ranges a query reads, and why.

For a query of one table, its columns, its condition and its limit determine this. For everything else (joins, functions
of columns, groups) use Spark's EXPLAIN.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from forebay.api.filters import as_predicate
from forebay.base.errors import InvalidRequest
from forebay.cli.output import print_rows
from forebay.client.connection import Connection


@dataclass(frozen=True)
class Query:
    """A SELECT. `columns`: None for `*`, none for `count(*)`. `where` is SQL."""

    table: str
    columns: list[str] | None
    where: str | None = None
    limit: int | None = None


def parse_select(text: str) -> Query:
    """The parts of a SELECT. Raises `InvalidRequest` saying what is supported."""
    from sqlglot import exp, parse
    from sqlglot.errors import SqlglotError

    refused = InvalidRequest(
        f"{text!r} is not SELECT columns FROM database.table [WHERE condition] [LIMIT n], which is all that "
        "`forebay explain` understands"
    )
    try:
        statements = parse(text, dialect="spark")
    except SqlglotError as e:
        raise refused from e
    select = statements[0] if statements else None
    if len(statements) != 1 or not isinstance(select, exp.Select):
        raise refused
    parts = {name: value for name, value in select.args.items() if value}
    source = parts.pop("from_", None) or parts.pop("from", None)  # by the release of sqlglot
    columns, where, limit = parts.pop("expressions", []), parts.pop("where", None), parts.pop("limit", None)
    if parts or source is None or not isinstance(source.this, exp.Table) or source.this.args.get("joins"):
        raise refused
    if limit is not None and not (isinstance(limit.expression, exp.Literal) and limit.expression.is_int):
        raise refused
    names: list[str] | None = [column.name for column in columns]
    if any(isinstance(column, exp.Star) for column in columns):
        names = None
    elif len(columns) == 1 and isinstance(columns[0], exp.Count):
        names = []
    elif not all(isinstance(column, exp.Column) for column in columns):
        raise refused
    return Query(
        ".".join(part.name for part in source.this.parts),
        names,
        None if where is None else where.this.sql(dialect="spark"),
        None if limit is None else int(limit.expression.name),
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="SELECT", help="SELECT columns FROM database.table [WHERE ...] [LIMIT n]")


def run(connection: Connection, options: argparse.Namespace) -> int:
    """Print which files and log ranges the query reads."""
    from forebay.unionread.planning import plan_union

    query = parse_select(options.query)
    table = connection.table(query.table)
    predicate = as_predicate(query.where, table.arrow_schema)
    text = plan_union(table, query.columns, predicate, query.limit, look_up=True).explain()
    if options.output == "table":
        print(text)
    else:
        print_rows(["line"], [[line] for line in text.splitlines()], options.output)
    return 0
