"""`forebay create`: a table from DDL, from a list of columns, or with the columns of a file."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, field
from typing import Any

from forebay.base.arguments import did_you_mean
from forebay.base.errors import InvalidRequest
from forebay.cli.conditions import column_names
from forebay.cli.connecting import add_place_arguments, place_of
from forebay.cli.jobs import definitions
from forebay.metadata.table import Column
from forebay.metadata.type_text import parse_type

_EPILOG = """DDL is that of Spark and Flink: types of both, PRIMARY KEY (...), PARTITIONED BY (...),
DISTRIBUTED BY (...) INTO n BUCKETS, COMMENT, WITH or TBLPROPERTIES. A missing database is
created. A table of a lake is lake.database.table, with -w.

examples:
  forebay create "CREATE TABLE sales.orders (id BIGINT NOT NULL, amount DECIMAL(10, 2), PRIMARY KEY (id))"
  forebay create sales.visits --columns 'user BIGINT, page STRING, at TIMESTAMP_LTZ(3)' --buckets 4
  forebay create sales.items --like items.parquet --primary-key item
  forebay create -w /lake lake.sales.items --like items.csv --primary-key item --if-not-exists"""


@dataclass
class CreatedTable:
    """A table to create."""

    name: str
    columns: Any
    primary_key: list[str] = field(default_factory=list)
    partition_keys: list[str] = field(default_factory=list)
    bucket_keys: list[str] = field(default_factory=list)
    buckets: int | None = None
    options: dict[str, str] = field(default_factory=dict)
    comment: str | None = None
    if_not_exists: bool = False


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay create`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("table", help="the table, as database.table; or a CREATE TABLE statement")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--columns", metavar="NAME TYPE, ...", help="the columns")
    source.add_argument("--like", metavar="FILE", help="the columns of a CSV, Parquet, JSON lines or Arrow file")
    definition_arguments(parser)
    parser.add_argument("--if-not-exists", action="store_true", help="do nothing if the table exists")
    add_place_arguments(parser)


def definition_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for keys, buckets and options."""
    parser.add_argument("--primary-key", metavar="A,B,...", help="the primary key; without one it is a log table")
    parser.add_argument("--partitioned-by", metavar="A,B,...", help="the partition keys")
    parser.add_argument("--bucket-key", metavar="A,B,...", help="the columns by which rows are distributed")
    parser.add_argument("--buckets", type=int, metavar="N", help="the number of buckets")
    parser.add_argument(
        "-D", "--table-option", action="append", default=[], metavar="key=value",
        help="an option of the table, such as table.datalake.enabled=true; may be repeated",
    )  # fmt: skip
    parser.add_argument("--comment", help="a comment")


def run(options: argparse.Namespace) -> int:
    """Create the table, and print its name. Raises `InvalidRequest` if the columns are given twice, or not at all."""
    if re.match(r"\s*\w+\s+\S", options.table):  # words, and no name
        if options.columns or options.like:
            raise InvalidRequest("CREATE TABLE has the columns already: leave out --columns and --like")
        definition = parse_ddl(options.table)
    elif options.columns is not None:
        definition = _with_columns(CreatedTable(options.table, []), options.columns, options.columns)
    elif options.like is not None:
        from forebay.cli.files import schema_of

        definition = CreatedTable(options.table, schema_of(options.like))
    else:
        raise InvalidRequest("which columns? Give a CREATE TABLE statement, --columns or --like FILE")
    complete(definition, options)
    with place_of(options) as (connection, lakes):
        print(f"created {create(definition, connection, lakes)}")
    return 0


def complete(definition: CreatedTable, options: argparse.Namespace) -> None:
    """Add what the arguments of `definition_arguments` say."""
    definition.primary_key = column_names(options.primary_key) or definition.primary_key
    definition.partition_keys = column_names(options.partitioned_by) or definition.partition_keys
    definition.bucket_keys = column_names(options.bucket_key) or definition.bucket_keys
    definition.buckets = options.buckets or definition.buckets
    definition.comment = options.comment or definition.comment
    definition.options |= definitions(options.table_option)
    definition.if_not_exists = definition.if_not_exists or getattr(options, "if_not_exists", False)


def create(definition: CreatedTable, connection: Any, lakes: dict[str, Any]) -> str:
    """Create the table; return its name. The database of a live table has to exist, that of a lake is created."""
    from forebay.lakes.iceberg_lake import IcebergLake
    from forebay.query.statement import TableName
    from forebay.query.tables import LIVE, Tables, opened_lake

    open_lakes = {name: opened_lake(lake) for name, lake in lakes.items()}
    catalog, path = Tables(connection, open_lakes).place(TableName(tuple(definition.name.split("."))))
    place: Any = connection if catalog == LIVE else open_lakes[catalog]
    if isinstance(place, IcebergLake):
        raise InvalidRequest(
            f"{definition.name}: tables of an Iceberg lake are created by tiering, or by other engines"
        )
    place.create_database(path.database, ignore_if_exists=True)
    place.create_table(
        str(path),
        definition.columns,
        primary_key=definition.primary_key,
        partition_keys=definition.partition_keys,
        bucket_keys=definition.bucket_keys,
        buckets=definition.buckets,
        options=definition.options,
        comment=definition.comment,
        ignore_if_exists=definition.if_not_exists,
    )
    return definition.name


# ---- DDL ------------------------------------------------------------------------------------------------------------


def parse_ddl(text: str) -> CreatedTable:
    """The table of a CREATE TABLE statement. Raises `InvalidRequest`, which shows the part at fault."""
    text = text.strip()
    rest = _behind(text, text, "CREATE TABLE")
    guarded = _word(rest).upper() == "IF"
    if guarded:
        rest = _behind(text, rest, "IF NOT EXISTS")
    name = re.match(r"[\w.`\"$]+", rest)
    if name is None:
        raise _syntax_error(text, rest, "the table's name, as database.table")
    rest = rest[name.end() :].lstrip()
    if not rest.startswith("("):
        raise _syntax_error(text, rest, "the columns, as (name TYPE, ...)")
    definition = CreatedTable(re.sub(r"[`\"]", "", name[0]), [], if_not_exists=guarded)
    inside, rest = _parenthesized(text, len(text) - len(rest))
    _with_columns(definition, inside, text)
    while rest.strip().strip(";"):
        rest = _clause(definition, rest.lstrip(), text)
    return definition


def _word(rest: str) -> str:
    """The word, or the one other character, that `rest` begins with."""
    match = re.match(r"\w+|\S|", rest)
    return "" if match is None else match[0]


def _behind(text: str, rest: str, words: str) -> str:
    """Return the text after `words`, with which `rest` should begin. In them `n` is any number."""
    for expected in words.split():
        word = _word(rest)
        if not (word.isdigit() if expected == "n" else word.upper() == expected):
            raise _syntax_error(text, rest, "a number" if expected == "n" else expected)
        rest = rest[len(word) :].lstrip()
    return rest


def _syntax_error(text: str, rest: str, expected: str, hint: str = "") -> InvalidRequest:
    """The error for what `rest`, the end of the statement, begins with."""
    before = text[: len(text) - len(rest)]
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    place = f"'{_word(rest)}' in line {line}, column {column}" if rest else "its end"
    return InvalidRequest(f"CREATE TABLE statement, at {place}: expected {expected}{hint}")


def _with_columns(definition: CreatedTable, inside: str, text: str) -> CreatedTable:
    columns = []
    for part in _split(inside):
        key = re.fullmatch(r"PRIMARY\s+KEY\s*\((.*)\)(\s+NOT\s+ENFORCED)?", part, re.IGNORECASE | re.DOTALL)
        if key is not None:
            definition.primary_key = [_plain(name) for name in _split(key[1])]
            continue
        column = re.match(r"(?P<name>`[^`]+`|\"[^\"]+\"|\w+)\s+(?P<rest>.+)", part, re.DOTALL)
        if column is None:
            raise InvalidRequest(f"{part!r} is not NAME TYPE, in {text.strip()!r}")
        if re.match(r"KEY\b", column["rest"], re.IGNORECASE):
            hint = "" if column["name"].upper() == "PRIMARY" else did_you_mean(column["name"], ["PRIMARY"])
            raise _syntax_error(text, text[text.find(part) :], "a column, or PRIMARY KEY (column, ...)", hint)
        kind, comment = column["rest"], None
        comment_match = re.search(r"\s+COMMENT\s+('(?:[^']|'')*')\s*$", kind, re.IGNORECASE)
        if comment_match is not None:
            kind, comment = kind[: comment_match.start()], _text(comment_match[1])
        keyed = re.search(r"\s+PRIMARY\s+KEY(\s+NOT\s+ENFORCED)?\s*$", kind, re.IGNORECASE)
        if keyed is not None:
            kind = kind[: keyed.start()]
            definition.primary_key = [_plain(column["name"])]
        try:
            columns.append(Column(_plain(column["name"]), parse_type(kind.strip()), comment))
        except InvalidRequest as e:
            raise InvalidRequest(f"column {column['name']}: {e.message}{_nearest_keyword(kind)}", e.code) from e
    definition.columns = columns
    return definition


def _nearest_keyword(kind: str) -> str:
    """A hint if something behind a column's type resembles a keyword."""
    behind = re.sub(_QUOTED, "", kind).split()[1:]
    hints = (did_you_mean(word, _OF_COLUMNS) for word in behind if word.upper() not in _OF_COLUMNS)
    return next(filter(None, hints), "")


_OF_COLUMNS = ("NOT", "NULL", "COMMENT", "PRIMARY", "KEY", "ENFORCED")

_PARENTHESIZED = re.compile(
    r"(?P<what>PARTITIONED\s+BY|DISTRIBUTED\s+BY|CLUSTERED\s+BY|WITH|TBLPROPERTIES|OPTIONS)\s*\(", re.IGNORECASE
)


_CLAUSES = (
    "COMMENT", "PARTITIONED BY", "DISTRIBUTED BY", "CLUSTERED BY", "INTO n BUCKETS", "WITH", "TBLPROPERTIES", "OPTIONS",
)  # fmt: skip


def _clause(definition: CreatedTable, rest: str, text: str) -> str:
    """Take the first clause of `rest`, the end of the statement `text`; return what is behind it."""
    comment = re.match(r"COMMENT\s*=?\s*('(?:[^']|'')*')", rest, re.IGNORECASE)
    if comment is not None:
        definition.comment = _text(comment[1])
        return rest[comment.end() :]
    buckets = re.match(r"INTO\s+(\d+)\s+BUCKETS", rest, re.IGNORECASE)
    if buckets is not None:
        definition.buckets = int(buckets[1])
        return rest[buckets.end() :]
    clause = _PARENTHESIZED.match(rest)
    if clause is None:
        raise _clause_error(text, rest)
    inside, behind = _parenthesized(rest, clause.end() - 1)
    keyword = clause["what"].upper().split()[0]
    if keyword == "PARTITIONED":
        definition.partition_keys = [_plain(name) for name in _split(inside)]
    elif keyword in ("DISTRIBUTED", "CLUSTERED"):
        definition.bucket_keys = [_plain(name) for name in _split(inside)]
    else:
        for pair in _split(inside):
            option = re.fullmatch(r"('(?:[^']|'')*')\s*=\s*('(?:[^']|'')*'|[\w.]+)", pair)
            if option is None:
                raise InvalidRequest(f"{pair!r} is not 'key' = 'value'")
            _set(definition, _text(option[1]), _text(option[2]))
    return behind


def _clause_error(text: str, rest: str) -> InvalidRequest:
    clauses = {clause.split()[0]: clause for clause in _CLAUSES}
    clause = clauses.get(_word(rest).upper())
    if clause is None:
        expected = "COMMENT '...', PARTITIONED BY (...), DISTRIBUTED BY (...), INTO n BUCKETS, WITH (...) or the end"
        return _syntax_error(text, rest, expected, did_you_mean(_word(rest), clauses))
    behind = _behind(text, rest, clause)
    return _syntax_error(text, behind, "a text in single quotes" if clause == "COMMENT" else "a parenthesis")


def _set(definition: CreatedTable, key: str, value: str) -> None:
    """An option; those by which Flink and Spark say keys and buckets are the definition's own."""
    if key in ("primary.key", "primary-key"):
        definition.primary_key = [part.strip() for part in value.split(",")]
    elif key in ("bucket.key", "bucket-key"):
        definition.bucket_keys = [part.strip() for part in value.split(",")]
    elif key in ("bucket.num", "bucket"):
        definition.buckets = int(value)
    else:
        definition.options[key] = value


_QUOTED = r"'(?:[^']|'')*'|`[^`]*`"


def _parenthesized(text: str, start: int) -> tuple[str, str]:
    """Return the text in the parenthesis that opens at `start`, and the text after it."""
    depth = 0
    for match in re.finditer(rf"{_QUOTED}|\(|\)", text[start:]):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return text[start + 1 : start + match.start()], text[start + match.end() :]
    raise InvalidRequest(f"a parenthesis is not closed in {text.strip()!r}")


def _split(text: str) -> list[str]:
    """The parts between commas that are not inside of parentheses, angle brackets or quotes."""
    parts, depth, begin = [], 0, 0
    for match in re.finditer(rf"{_QUOTED}|[()<>,]", text):
        depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(match[0], 0)
        if match[0] == "," and depth == 0:
            parts.append(text[begin : match.start()])
            begin = match.end()
    return [part.strip() for part in (*parts, text[begin:]) if part.strip()]


def _plain(name: str) -> str:
    return name.strip().strip('`"')


def _text(quoted: str) -> str:
    return quoted[1:-1].replace("''", "'") if quoted.startswith("'") else quoted
