"""The kind and parts of an SQL statement, by DuckDB's own parser, which returns the tree of a SELECT as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from forebay.base.errors import InvalidRequest, UnsupportedOperation

_SKIPPED = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_NAME = r'(?:"(?:[^"]|"")+"|\w+)'
_EXPLAIN = re.compile(rf"^{_SKIPPED}EXPLAIN\b{_SKIPPED}(?:ANALYZE\b|\([^)]*\))?", re.IGNORECASE | re.DOTALL)
_SHOW_TABLES = re.compile(rf"^{_SKIPPED}SHOW\s+(?:ALL\s+)?TABLES{_SKIPPED};?{_SKIPPED}$", re.IGNORECASE | re.DOTALL)
_INSERT = re.compile(
    rf"^{_SKIPPED}INSERT\s+INTO\s+(?P<table>{_NAME}(?:\s*\.\s*{_NAME})*)\s*"
    rf"(?P<columns>\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\))?\s*(?P<by>BY\s+(?:NAME|POSITION)\b)?"
    rf"(?P<query>{_SKIPPED}(?:\(|SELECT\b|WITH\b|FROM\b|VALUES\b).*)$",
    re.IGNORECASE | re.DOTALL,
)

Namespace: TypeAlias = tuple[str | None, str | None]
"""The catalog and the database of names that have none."""


@dataclass(frozen=True)
class TableName:
    """A table that a statement names, in the parts that were written: [catalog,] [database,] table."""

    parts: tuple[str, ...]

    def within(self, namespace: Namespace) -> TableName:
        """The name with a catalog and a database, where it has none and these are known."""
        (catalog, database), parts = namespace, self.parts
        if len(parts) == 1 and database is not None:
            parts = (database, *parts)
        return TableName(parts if len(parts) != 2 or catalog is None else (catalog, *parts))

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True)
class TableReference:
    """A table at a place in a statement's tree, and the expression of `AT (VERSION => ...)`, if it has one."""

    node: dict[str, Any]

    @property
    def name(self) -> TableName:
        parts = (self.node.get("catalog_name"), self.node.get("schema_name"), self.node["table_name"])
        return TableName(tuple(part for part in parts if part))

    @property
    def at(self) -> tuple[str, Any] | None:
        """The unit ("VERSION" or "TIMESTAMP") and the tree of the value."""
        clause = self.node.get("at_clause")
        return None if clause is None else (clause["unit"].upper(), clause["expr"])


@dataclass(frozen=True)
class Statement:
    """A statement: its `kind` ("SELECT", "EXPLAIN", "INSERT", "SHOW TABLES"), and the tree of its query."""

    kind: str
    text: str
    tree: Any = None
    target: TableName | None = None
    into: str = ""
    """Of an INSERT: what stands between the table and the query."""

    @property
    def references(self) -> Iterator[TableReference]:
        """The tables that it reads; names of common table expressions among them."""
        pending = [self.tree]
        while pending:
            node = pending.pop()
            if isinstance(node, dict):
                if node.get("type") == "BASE_TABLE":
                    yield TableReference(node)
                pending += node.values()
            elif isinstance(node, list):
                pending += node

    def check_closed(self, is_built_in: Callable[[TableName], bool]) -> None:
        """Raise `UnsupportedOperation` for statements that read the process and its machine, and not tables.

        `is_built_in` says whether a name that no common table expression takes is one of DuckDB's own views. Views,
        table functions and settings go by lists of those that are allowed: extensions and releases bring further ones.
        """
        for node, common in self._scopes():
            kind = node.get("type")
            if kind == "TABLE_FUNCTION":
                called = str(node["function"].get("function_name", "")).lower()
                if called not in _TABLE_FUNCTIONS:
                    raise UnsupportedOperation(
                        f"the table function {called} cannot be called here, only {', '.join(sorted(_TABLE_FUNCTIONS))}"
                    )
            elif kind == "BASE_TABLE":
                name = TableReference(node).name
                is_common = len(name.parts) == 1 and name.parts[0].lower() in common
                if not is_common and is_built_in(name) and not _is_open_view(name):
                    raise UnsupportedOperation(
                        f"{name}, a view of DuckDB, cannot be read here, only information_schema: SHOW TABLES lists "
                        "the tables"
                    )
            elif kind == "SHOW_REF":
                _check_shown(node)
            _check_call(node)

    def _scopes(self) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
        """All objects of the tree, each with the common table expressions that it can name, in lower case.

        The query of one sees those before it. The recursive part of one sees itself, too.
        """
        pending: list[tuple[Any, frozenset[str]]] = [(self.tree, frozenset())]
        while pending:
            node, common = pending.pop()
            if isinstance(node, list):
                pending += ((part, common) for part in node)
            if not isinstance(node, dict):
                continue
            for each in (node.get("cte_map") or {}).get("map", ()):
                pending.append((each["value"], common))
                common |= {each["key"].lower()}
            yield node, common
            pending += ((part, common) for key, part in node.items() if key not in ("cte_map", "right"))
            own = {node["cte_name"].lower()} if node.get("type") == "RECURSIVE_CTE_NODE" else set[str]()
            pending.append((node.get("right"), common | own))

    @property
    def common_tables(self) -> Iterator[str]:
        """The names of its common table expressions."""
        pending = [self.tree]
        while pending:
            node = pending.pop()
            if isinstance(node, dict):
                for each in (node.get("cte_map") or {}).get("map", ()):
                    yield each["key"]
                pending += node.values()
            elif isinstance(node, list):
                pending += node

    @property
    def parameters(self) -> list[str]:
        """The names of its parameters, in order: numbers, or names without their `$`."""
        if self.tree is None:
            return []
        positions = self.tree["statements"][0].get("named_param_map", ())
        return [each["key"] for each in sorted(positions, key=lambda each: int(each["value"]))]


_TABLE_FUNCTIONS = frozenset(
    {"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest", "summary"}
)
"""Table functions that compute from their arguments alone."""

_SETTINGS = frozenset({"calendar", "default_null_order", "default_order", "memory_limit", "threads", "timezone"})
"""Settings that say nothing of the machine's files and users."""


_OPEN_SCHEMA = "information_schema"
"""The schema of views that list what a statement's own DuckDB has: the tables that the statement names."""

_SHOWN = frozenset({"databases", "schemas", "tables", "variables", "__show_tables_expanded"})
"""What SHOW lists of a statement's own DuckDB."""


def _is_open_view(name: TableName) -> bool:
    return len(name.parts) > 1 and name.parts[-2].lower() == _OPEN_SCHEMA


def _check_shown(node: dict[str, Any]) -> None:
    """Refuse SHOW of a setting, or of anything else that is no query's columns."""
    name = str(node.get("table_name") or "").strip('"').lower()
    if node.get("query") is not None or node.get("show_type") == "SHOW_FROM":
        return
    if name not in (_SHOWN if node.get("show_type") == "SHOW_SPECIAL" else _SETTINGS):
        raise UnsupportedOperation(
            f"the setting {name} cannot be read here, only {', '.join(sorted(_SETTINGS))}; DESCRIBE shows the columns "
            "of a table"
        )


def _check_call(node: dict[str, Any]) -> None:
    """Refuse calls that read a setting, or bind a statement that is a text, and so was not checked."""
    name = str(node.get("function_name", "")).lower()
    if name == "json_serialize_plan":
        raise UnsupportedOperation(f"the function {name} cannot be called here, only EXPLAIN shows a plan")
    if name == "current_setting" and (setting := _setting_name(node)) not in _SETTINGS:
        raise UnsupportedOperation(
            f"the setting {setting or 'of a computed name'} cannot be read here, only {', '.join(sorted(_SETTINGS))}"
        )


def _setting_name(call: Any) -> str:
    """The constant text that a call of current_setting names, in lower case; "" if it is none."""
    arguments: list[Any] = call.get("arguments") or call.get("children") or []
    if len(arguments) != 1:
        return ""
    constant = arguments[0].get("expression", arguments[0])
    if constant.get("class") != "CONSTANT":
        return ""
    name = constant.get("literal", {}).get("text") or constant.get("value", {}).get("value")
    return str(name or "").lower()


def parse(duckdb: Any, connection: Any, text: str) -> Statement:
    """The statement. Raises `InvalidRequest` for what is not SQL, `UnsupportedOperation` for other statements."""
    try:
        text.encode()
        statements = connection.extract_statements(text)
    except UnicodeEncodeError as e:
        raise InvalidRequest(
            f"the statement is not Unicode text: see character {e.start + 1}, {text[e.start]!a}"
        ) from e
    except duckdb.Error as e:
        raise InvalidRequest(f"not SQL: {e}") from e
    if len(statements) != 1:
        raise InvalidRequest(f"one statement at a time, not {len(statements)}: {text.strip()!r}")
    kind = str(statements[0].type).rpartition(".")[2]
    if _SHOW_TABLES.match(text):
        return Statement("SHOW TABLES", text)
    if kind == "SELECT":
        return Statement(kind, text, _tree(connection, text))
    if kind == "EXPLAIN":
        explained = _EXPLAIN.sub("", text, count=1)
        return Statement(kind, text, parse(duckdb, connection, explained).tree)
    if kind == "INSERT":
        return _insert(connection, text)
    if kind == "MULTI":
        raise UnsupportedOperation("a PIVOT that looks for its values first is not supported: list them, ON x IN (...)")
    raise UnsupportedOperation(
        f"{kind} is not supported: statements read tables (SELECT, DESCRIBE, SHOW TABLES, EXPLAIN) or add rows (INSERT "
        "INTO ... SELECT). Tables are created, altered, deleted from and maintained by methods of forebay.Table and "
        "forebay.paimon.Table, by the command line, and in Spark SQL"
    )


def _insert(connection: Any, text: str) -> Statement:
    match = _INSERT.match(text.rstrip().removesuffix(";"))
    if match is None:
        raise UnsupportedOperation(
            f"{text.strip()!r} is not supported: write INSERT INTO database.table [(columns)] [BY NAME] SELECT ... or "
            "VALUES ...; rows of a primary-key table replace those with the same keys anyway"
        )
    parts = tuple(_unquoted(part) for part in re.findall(_NAME, match["table"]))
    tree = _tree(connection, match["query"])
    into = f"{match['columns'] or ''} {match['by'] or ''}"
    return Statement("INSERT", match["query"], tree, TableName(parts), into)


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _tree(connection: Any, text: str) -> Any:
    """The tree of a SELECT. Raises `InvalidRequest` if `text` is none (such as a SELECT with RETURNING)."""
    serialized = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()[0][0]
    with _limited_depth():
        tree = json.loads(serialized)
    if tree.get("error"):
        raise InvalidRequest(f"not a query: {tree.get('error_message')}")
    return tree


def text_of(connection: Any, tree: Any) -> str:
    """The SQL text of a tree."""
    with _limited_depth():
        serialized = json.dumps(tree)
    text: str = connection.execute("SELECT json_deserialize_sql(?::JSON)", [serialized]).fetchall()[0][0]
    return text


@contextmanager
def _limited_depth() -> Iterator[None]:
    """Refuse a statement that is too deep for the module json, before DuckDB's own limit is reached."""
    try:
        yield
    except RecursionError as e:
        raise InvalidRequest(
            "the statement is nested too deeply: operators in a row (a || b || ...), calls and subqueries may have a "
            "few hundred levels. Use IN (...), a function of a list, or several statements"
        ) from e


def value_of(connection: Any, expression: Any) -> Any:
    """The value of an expression without columns, by its tree."""
    tree = _tree(connection, "SELECT 1")
    tree["statements"][0]["node"]["select_list"] = [expression]
    return connection.execute(text_of(connection, tree)).fetchall()[0][0]


# ---- parameters -----------------------------------------------------------------------------------------------------

PLACEHOLDERS = re.compile(rf"^{_SKIPPED}VALUES\s*\(\s*\?(?:\s*,\s*\?)*\s*\){_SKIPPED}$", re.IGNORECASE | re.DOTALL)
"""The query of an INSERT whose values are its parameters, in order."""


def parameter_types(statement: Statement, read: Iterable[pa.Schema], target: pa.Schema | None) -> pa.Schema:
    """The parameters as Arrow fields, for clients that convert values before they send them.

    A parameter has the type of a column that it is compared with, or of the column of the INSERT's `target` that it is
    written to, and is a string elsewhere. DuckDB casts what it gets.
    """
    columns = {field.name.lower(): field.type for schema in read for field in schema}
    types = dict[str, pa.DataType]()
    pending = [statement.tree]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        if not isinstance(node, dict):
            continue
        pending += node.values()
        if node.get("type") == "LIMIT_MODIFIER":
            types |= {_parameter(node.get(part)): pa.int64() for part in ("limit", "offset")}
        if node.get("class") in ("COMPARISON", "BETWEEN", "OPERATOR"):
            operands = [part for value in node.values() for part in (value if isinstance(value, list) else [value])]
            names = [part["column_names"][-1].lower() for part in operands if _class(part) == "COLUMN_REF"]
            column_type = next((columns[name] for name in names if name in columns), None)
            if column_type is not None:
                types |= {_parameter(part): column_type for part in operands}
        if node.get("type") == "EXPRESSION_LIST" and target is not None:
            column_names = [_unquoted(name).lower() for name in re.findall(_NAME, statement.into)]
            fields = {field.name.lower(): field.type for field in target}
            into = [fields.get(name) for name in column_names] if "(" in statement.into else list(target.types)
            for row in node["values"]:
                types |= {_parameter(value): t for value, t in zip(row, into) if t is not None}
    return pa.schema([pa.field(name, types.get(name, pa.string())) for name in statement.parameters])


def _class(node: Any) -> str | None:
    return node.get("class") if isinstance(node, dict) else None


def _parameter(node: Any) -> str:
    """The name of a parameter; "" for another expression."""
    return str(node["identifier"]) if _class(node) == "PARAMETER" else ""
