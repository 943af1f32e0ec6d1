"""`forebay.sql`: one statement over live tables and lakes."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.api.sql_result import Result
from forebay.base.errors import AccessDenied, InvalidRequest, NotFound, UnsupportedOperation
from forebay.client.connection import Connection, connect
from forebay.query.statement import Statement, TableName, parse, text_of, value_of
from forebay.query.tables import LAKE, Tables, Views, opened_lake
from forebay.unionread.scan import PinnedUnionScan

if TYPE_CHECKING:
    from forebay.query.tables import LakeLike


def sql(
    statement: str,
    bootstrap_servers: str | Connection | None = None,
    warehouse: LakeLike | None = None,
    *,
    parameters: Sequence[Any] | Mapping[str, Any] = (),
    lakes: Mapping[str, LakeLike] | None = None,
    data: Mapping[str, Any] | None = None,
    user: str | None = None,
    password: str | None = None,
    lake_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Result:
    """The result of an SQL statement over live tables and lakes, by DuckDB, without a JVM.

    `database.table` is a live table of the cluster at `bootstrap_servers` ("host:port", or an open connection): lake
    and stream as one. `lake.database.table` is a table of the Paimon `warehouse`, and `lakes` are more of them, by
    name; each is a warehouse's path, a catalog, or options ({"format": "iceberg", ...}: those of pyiceberg). With a
    warehouse alone, `database.table` is the lake's. Names in `data` are Arrow tables, data frames and scans to join
    with. Each table is read as of one instant, however often the statement names it; `FROM t AT (VERSION => 3)` and
    `AT (TIMESTAMP => '2026-01-31 12:00+00')` read earlier states. `parameters` are the values of `?`, or of `$name`.

    SELECT, DESCRIBE, SUMMARIZE, EXPLAIN and SHOW TABLES read; INSERT INTO ... SELECT or VALUES adds rows (replaces
    them, in a table with a primary key) as one transaction or one lake commit. Other statements raise
    `UnsupportedOperation`, as does a missing DuckDB (`pip install 'forebay[sql]'`).

    `user`, `password`, `lake_options` and `options` are those of `forebay.connect`.
    """
    duckdb = imported_duckdb()
    stack = ExitStack()
    with stack:
        connection: Connection | None = None
        if isinstance(bootstrap_servers, Connection):
            connection = bootstrap_servers
        elif bootstrap_servers is not None or (warehouse is None and not lakes):
            connection = connect(bootstrap_servers, user, password, lake_options=lake_options, **options)
            stack.callback(connection.close)
        named = {**({} if warehouse is None else {LAKE: warehouse}), **(lakes or {})}
        tables = Tables(connection, {name: opened_lake(given) for name, given in named.items()})
        result = _Execution(duckdb, tables, connection, stack, data or {}).run(statement, parameters)
        result._close = stack.pop_all().close
        return result
    raise AssertionError("unreachable")


class Guard:
    """What a statement that a visitor wrote may do, and a way to stop it from another thread.

    Statements can read files of this machine (`FROM 'x.csv'`); under a guard they read tables of the cluster and the
    lakes, and nothing else. They add rows only if `allows_changes`, and use at most `memory` and `threads`.
    """

    def __init__(self, *, allows_changes: bool = False, memory: str = "1GB", threads: int = 2) -> None:
        self.allows_changes = allows_changes
        self.memory, self.threads = memory, threads
        self.is_stopped = False
        self._connection: Any = None

    def stop(self) -> None:
        """Stop the statement as soon as possible: it raises `InvalidRequest`."""
        self.is_stopped = True
        if self._connection is not None:
            self._connection.interrupt()

    def begin(self, connection: Any) -> None:
        """Limit a connection of DuckDB, which the statement runs on."""
        self._connection = connection
        connection.execute(
            f"SET memory_limit = '{self.memory}'; SET threads = {self.threads}; SET temp_directory = ''; "
            "SET enable_external_access = false; SET lock_configuration = true"
        )
        self.check()

    def check(self, kind: str = "SELECT") -> None:
        """Raise `AccessDenied` for a kind of statement that may not run, `InvalidRequest` if it was stopped."""
        if self.is_stopped:
            raise InvalidRequest("the statement was stopped")
        if kind == "INSERT" and not self.allows_changes:
            raise AccessDenied("only statements that read may run here, such as SELECT: no INSERT")


def guarded_sql(statement: str, connection: Connection, lakes: Mapping[str, LakeLike], guard: Guard) -> Result:
    """The result of a statement as `sql` has it, under a guard."""
    stack = ExitStack()
    with stack:
        tables = Tables(connection, {name: opened_lake(given) for name, given in lakes.items()})
        result = _Execution(imported_duckdb(), tables, connection, stack, {}, guard).run(statement, ())
        result._close = stack.pop_all().close
        return result
    raise AssertionError("unreachable")


def imported_duckdb() -> Any:
    """The module duckdb. Raises `UnsupportedOperation` if it is not installed."""
    try:
        return import_module("duckdb")
    except ImportError as e:
        raise UnsupportedOperation("SQL in Python needs DuckDB: pip install 'forebay[sql]'") from e


_PINS_MAX = 5
"""So often at most the tables of a statement are pinned, for an instant that all have in common."""


class _Execution:
    """One statement."""

    def __init__(
        self,
        duckdb: Any,
        tables: Tables,
        connection: Connection | None,
        stack: ExitStack,
        data: Mapping[str, Any],
        guard: Guard | None = None,
    ) -> None:
        self._duckdb, self._tables, self._connection = duckdb, tables, connection
        self._guard = guard
        self._own = duckdb.connect(":memory:")
        stack.callback(lambda: self._views.release())
        stack.callback(self._own.close)
        self._own.execute("SET TimeZone = 'UTC'; SET python_enable_replacements = false")
        if guard is not None:
            guard.begin(self._own)
        self._views = Views(duckdb, self._own)
        self._pins, self._is_one_instant = 0, True
        for name, rows in data.items():
            self._own.register(name, rows)

    def run(self, text: str, parameters: Sequence[Any] | Mapping[str, Any]) -> Result:
        statement = parse(self._duckdb, self._own, text)
        if self._guard is not None:
            self._guard.check(statement.kind)
        if statement.kind == "SHOW TABLES":
            return self._of(self._tables.listed())
        return self._explained(lambda: self._run(statement, parameters))

    def _run(self, statement: Statement, parameters: Sequence[Any] | Mapping[str, Any]) -> Result:
        target = None if statement.target is None else self._tables.target(statement.target)
        text = self._with_views(statement)
        if target is not None:
            return self._insert(target, statement.into, text, parameters)
        result = Result(self._rows(text, parameters), _nothing, self._views.raise_failure)
        result.is_one_instant = self._is_one_instant
        return result

    def _rows(self, text: str, parameters: Any = None) -> pa.RecordBatchReader:
        return self._own.sql(text, params=parameters or None).to_arrow_reader()

    def _with_views(self, statement: Statement) -> str:
        """Make views of all tables that the statement reads; return it with earlier states as views, too."""
        references = [found for found in statement.references if not self._tables.is_own(found.name)]
        names = dict.fromkeys(reference.name for reference in references if reference.at is None)
        for name, scan in self._pinned(list(names)).items():
            self._views.add(scan, name)
        changed = False
        for reference in references:
            name, at = reference.name, reference.at
            if at is None:
                continue
            node, changed = reference.node, True
            view = self._views.add(self._tables.scan(name, self._as_of(*at)), None)
            node |= {"at_clause": None, "catalog_name": "", "schema_name": "", "table_name": view}
            if "qualified_name" in node:
                node["qualified_name"] = {"path": [view]}
            node["alias"] = node["alias"] or name.parts[-1]
        if not changed:
            return statement.text
        if statement.kind == "EXPLAIN":
            raise UnsupportedOperation("EXPLAIN of an earlier state is not supported: leave AT (...) out")
        return text_of(self._own, statement.tree)

    def _pinned(self, names: Sequence[TableName]) -> dict[TableName, Any]:
        """The tables, pinned one after the other; at the same instant if no live one was written to meanwhile.

        Otherwise they are pinned again, some times: tables that are written to all the time have one instant each.
        """
        while True:
            found = {name: self._tables.scan(name, None) for name in names}
            live = [scan for scan in found.values() if isinstance(scan, PinnedUnionScan)]
            self._pins += 1
            self._is_one_instant = all(scan.is_current() for scan in live[:-1])
            if self._is_one_instant or self._pins == _PINS_MAX:
                return found
            for scan in live:
                scan.release()

    def _as_of(self, unit: str, expression: Any) -> Any:
        value = value_of(self._own, expression)
        if unit == "VERSION":
            return value
        if isinstance(value, str):
            value = self._own.execute("SELECT CAST(? AS TIMESTAMPTZ)", [value]).fetchall()[0][0]
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            value = dt.datetime(value.year, value.month, value.day)
        if not isinstance(value, dt.datetime):
            raise InvalidRequest(f"AT (TIMESTAMP => {value!r}) is no time")
        return value if value.tzinfo else value.replace(tzinfo=dt.UTC)

    def _insert(self, target: Any, into: str, query: str, parameters: Any) -> Result:
        """Rows first go into a table of DuckDB, which casts them as INSERT does and spills what memory cannot hold."""
        self._own.register("__forebay_columns", target.arrow_schema.empty_table())
        self._own.execute("CREATE TEMP TABLE __forebay_rows AS SELECT * FROM __forebay_columns")
        self._own.execute(f"INSERT INTO __forebay_rows {into} {query}", parameters or None)
        count = self._own.execute("SELECT count(*) FROM __forebay_rows").fetchall()[0][0]
        rows = self._rows("SELECT * FROM __forebay_rows")
        if hasattr(target, "connection"):
            with target.connection.transaction() as transaction:
                if target.has_primary_key:
                    transaction.upsert(target, rows)
                else:
                    transaction.append(target, rows)
        elif target.has_primary_key:
            target.upsert(rows)
        else:
            target.append(rows)
        return self._of(pa.table({"rows": pa.array([count], pa.int64())}))

    def _of(self, table: pa.Table) -> Result:
        reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
        return Result(reader, _nothing, self._views.raise_failure)

    def _explained(self, run: Callable[[], Result]) -> Result:
        """Run, with DuckDB's errors as those of Forebay."""
        try:
            return run()
        except self._duckdb.Error as e:
            self._views.raise_failure()
            unknown = re.match(r'Catalog Error: Table with name "?([^" ]+)"? does not exist', str(e))
            if unknown is not None:
                raise NotFound(
                    f"there is no table {unknown[1]}: tables are called database.table, or lake.database.table"
                ) from e
            raise InvalidRequest(str(e)) from e


def _nothing() -> None:
    return
