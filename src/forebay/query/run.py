"""`forebay.sql`: one statement over live tables and lakes; and `SqlDatabase`, for what serves many."""

from __future__ import annotations

import datetime as dt
import pickle
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from forebay.api.sql_result import Result
from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.client.connection import Connection, connect
from forebay.query.statement import (
    PLACEHOLDERS,
    Namespace,
    Statement,
    TableName,
    parameter_types,
    parse,
    text_of,
    value_of,
)
from forebay.query.tables import LAKE, LISTED, Tables, Views, opened_lake
from forebay.unionread.scan import PinnedUnionScan

if TYPE_CHECKING:
    from forebay.query.tables import LakeLike

T = TypeVar("T")


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
    imported_duckdb()
    with ExitStack() as stack:
        connection: Connection | None = None
        if isinstance(bootstrap_servers, Connection):
            connection = bootstrap_servers
        elif bootstrap_servers is not None or (warehouse is None and not lakes):
            connection = connect(bootstrap_servers, user, password, lake_options=lake_options, **options)
            stack.callback(connection.close)
        lakes_by_name = {**({} if warehouse is None else {LAKE: warehouse}), **(lakes or {})}
        result = SqlDatabase(connection, lakes_by_name).execution(data).run(statement, parameters)
        stack.callback(result._close)
        result._close = stack.pop_all().close
        return result
    raise AssertionError("unreachable")


CLOSED_IN = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
}
"""Settings for statements of others: SQL can name files, addresses, extensions and settings, and may use none of them.
With them, a statement may read few settings and views of DuckDB, and call few table functions
(`Statement.check_closed`)."""


class SqlDatabase:
    """The tables of a cluster (None: of none) and of lakes, for statements of which many run, in any thread."""

    def __init__(self, connection: Connection | None, lakes: Mapping[str, LakeLike]) -> None:
        self._duckdb = imported_duckdb()
        self._connection, self._lakes = connection, {name: opened_lake(lake) for name, lake in lakes.items()}
        self.tables = Tables(connection, self._lakes)

    @cached_property
    def described(self) -> bytes:
        """What another process makes the same tables of, by pickle: with secrets."""
        return pickle.dumps(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return SqlDatabase, (self._connection, self._lakes)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def execution(
        self,
        data: Mapping[str, Any] | None = None,
        settings: Mapping[str, str] | None = None,
        namespace: Namespace = (None, None),
    ) -> Execution:
        """Return an execution, which runs or describes one statement.

        `data` are Arrow tables and readers to join with, by name; `settings` are DuckDB's; `namespace` has the catalog
        and the database of names that have none.
        """
        return Execution(self._duckdb, self.tables, data or {}, settings or {}, namespace)


def imported_duckdb() -> Any:
    """The module duckdb. Raises `UnsupportedOperation` if it is not installed."""
    try:
        return import_module("duckdb")
    except ImportError as e:
        raise UnsupportedOperation("SQL in Python needs DuckDB: pip install 'forebay[sql]'") from e


_PINS_MAX = 5
"""So often at most the tables of a statement are pinned, for an instant that all have in common."""


_BATCH_ROWS = 1_000_000

_DECIMAL_DIGITS = 38

_ROWS = pa.schema([("rows", pa.int64())])
"""What an INSERT returns: how many rows it wrote."""


@dataclass(frozen=True)
class Description:
    """The columns that a statement returns and the parameters that it takes. The types of parameters are those of the
    columns that they are compared with or written to, and else strings.
    """

    schema: pa.Schema
    parameters: pa.Schema
    is_insert: bool


class Execution:
    """One statement, in a DuckDB of its own: `run` or `describe` it once. `cancel` is for other threads.

    Batches of a result have at most `batch_rows`. `on_commit` is called before what an INSERT writes is committed.
    """

    def __init__(
        self,
        duckdb: Any,
        tables: Tables,
        data: Mapping[str, Any],
        settings: Mapping[str, str],
        namespace: Namespace,
    ) -> None:
        self._duckdb, self._tables, self._data, self._namespace = duckdb, tables, data, namespace
        self._own = duckdb.connect(":memory:")
        for setting, value in {"TimeZone": "UTC", "python_enable_replacements": "false", **settings}.items():
            self._own.execute(f"SET {setting} = '{value}'")
        self._is_closed_in = CLOSED_IN.items() <= settings.items()
        self._views = Views(duckdb, self._own)
        self._pins, self._is_one_instant, self._cancelled = 0, True, False
        self._target = ""  # of an INSERT
        self.batch_rows = _BATCH_ROWS
        self.on_commit: Callable[[], object] = _nothing
        for name, rows in data.items():
            self._own.register(name, _scannable(rows))

    def run(
        self,
        text: str,
        parameters: Sequence[Any] | Mapping[str, Any] | pa.RecordBatchReader = (),
        *,
        insert: bool = True,
    ) -> Result:
        """Its rows. An INSERT takes a reader of rows of parameters, too: it writes what all of them give, as one
        change. It is refused without `insert`.
        """
        with ExitStack() as stack:
            stack.callback(self.close)
            result = self._explained(lambda: self._run(text, parameters, insert))
            result._close = stack.pop_all().close
            return result
        raise AssertionError("unreachable")

    def describe(self, text: str, parameters: Sequence[Any] = ()) -> Description:
        """Return the columns and parameters of a statement without reading any row. Parameters that are not given are
        null.
        """
        try:
            return self._explained(lambda: self._describe(text, parameters))
        finally:
            self.close()

    def cancel(self) -> None:
        """Have `run`, and whatever reads its rows, fail. An INSERT that is being committed is not stopped."""
        self._cancelled = True
        with suppress(self._duckdb.ConnectionException):  # it is done
            self._own.interrupt()

    def close(self) -> None:
        """Release what tables are pinned. Idempotent."""
        self._own.close()
        self._views.release()

    def _parsed(self, text: str) -> Statement:
        statement = parse(self._duckdb, self._own, text)
        if self._is_closed_in:
            own = self._own_names(statement)
            statement.check_closed(lambda name: self._is_own(name, own) and self._is_built_in(name))
        return statement

    def _own_names(self, statement: Statement) -> Collection[str]:
        """Names of the statement's common table expressions and data, in lower case: names in DuckDB have no case."""
        return {each.lower() for each in (*statement.common_tables, *self._data)}

    def _is_built_in(self, name: TableName) -> bool:
        table = name.parts[-1].lower()
        return table in self._built_in and table not in {each.lower() for each in self._data}

    @cached_property
    def _built_in(self) -> frozenset[str]:
        """The names of DuckDB's own views."""
        rows = self._own.execute("SELECT view_name FROM duckdb_views() WHERE internal").fetchall()
        return frozenset(row[0].lower() for row in rows)

    def _run(self, text: str, parameters: Any, insert: bool) -> Result:
        statement = self._parsed(text)
        if statement.kind == "SHOW TABLES":
            return self._of(self._tables.listed())
        if statement.target is None:
            query = self._with_views(statement, self._pinned)
            if self._cancelled:  # while tables were pinned, when there was nothing of DuckDB's to interrupt
                raise InvalidRequest("the statement was cancelled")
            result = Result(self._rows(query, parameters), _nothing, self._views.raise_failure)
            result.is_one_instant = self._is_one_instant
            return result
        if not insert:
            raise UnsupportedOperation(f"INSERT INTO {statement.target} is refused: only reading is allowed here")
        target = self._tables.target(statement.target.within(self._namespace))
        self._target = str(statement.target)
        query = self._with_views(statement, self._pinned)
        return self._insert(target, statement.into, query, parameters)

    def _describe(self, text: str, parameter_values: Sequence[Any]) -> Description:
        statement = self._parsed(text)
        if statement.kind == "SHOW TABLES":
            return Description(LISTED, pa.schema([]), False)
        schemas = list[pa.Schema]()

        def empty_tables(names: Sequence[TableName]) -> dict[TableName, Any]:
            scans = {name: self._tables.scan(name.within(self._namespace), None, pinned=False) for name in names}
            schemas.extend(scan.schema for scan in scans.values())
            return {name: scan.schema.empty_table() for name, scan in scans.items()}

        target = None if statement.target is None else self._tables.target(statement.target.within(self._namespace))
        query = self._with_views(statement, empty_tables)
        parameters = parameter_types(statement, schemas, None if target is None else _inserted_schema(target))
        if target is not None:
            return Description(_ROWS, parameters, True)
        relation = self._relation(query, parameter_values, parameters.names)
        schema = (relation if statement.kind == "EXPLAIN" else relation.limit(0)).to_arrow_reader().schema
        fields = zip(relation.columns, schema)  # a subquery's names differ from each other
        return Description(pa.schema([field.with_name(name) for name, field in fields]), parameters, False)

    def _relation(self, query: str, values: Sequence[Any], names: Sequence[str]) -> Any:
        """The query, not run. Parameters without values are null, or 1 where a NULL may not stand."""

        def of(value: Any) -> Any:
            return [value] * len(names) if all(name.isdigit() for name in names) else dict.fromkeys(names, value)

        if values or not names:
            return self._own.sql(query, params=values or None)
        try:
            return self._own.sql(query, params=of(None))
        except self._duckdb.BinderException:
            with suppress(self._duckdb.Error):
                return self._own.sql(query, params=of(1))
            raise

    def _rows(self, text: str, parameters: Any = None) -> pa.RecordBatchReader:
        try:
            return self._own.sql(text, params=parameters or None).to_arrow_reader(self.batch_rows)
        except (self._duckdb.BinderException, self._duckdb.CatalogException) as e:
            raise self._with_place(e, text, parameters) from e

    def _with_place(self, error: Exception, text: str, parameters: Any) -> Exception:
        """The error of a statement that cannot be bound, with its line and a mark below the wrong word.

        DuckDB 2 leaves both out of errors of `sql`, but not of `execute`. EXPLAIN binds a statement and runs nothing.
        """
        fault = str(error)
        if "\n\nLINE " in fault:
            return error
        try:
            self._own.execute(f"EXPLAIN\n{text}", parameters or None)
        except self._duckdb.Error as e:
            if type(e) is type(error):  # another error is one of EXPLAIN
                fault = re.sub(r"\n\nLINE (\d+)", lambda line: f"\n\nLINE {int(line[1]) - 1}", str(e), count=1)
        return type(error)(fault)

    def _with_views(self, statement: Statement, find: Callable[[Sequence[TableName]], Mapping[TableName, Any]]) -> str:
        """Make views of all tables that the statement reads; return it with earlier states as views, too."""
        own = self._own_names(statement)
        references = [each for each in statement.references if not self._is_own(each.name, own)]
        names = dict.fromkeys(reference.name for reference in references if reference.at is None)
        for name, scan in find(list(names)).items():
            self._views.add(scan, name)
        has_earlier_state = False
        for reference in references:
            name, at = reference.name, reference.at
            if at is None:
                continue
            node, has_earlier_state = reference.node, True
            view = self._views.add(self._tables.scan(name.within(self._namespace), self._as_of(*at)), None)
            node |= {"at_clause": None, "catalog_name": "", "schema_name": "", "table_name": view}
            if "qualified_name" in node:
                node["qualified_name"] = {"path": [view]}
            node["alias"] = node["alias"] or name.parts[-1]
        if not has_earlier_state:
            return statement.text
        if statement.kind == "EXPLAIN":
            raise UnsupportedOperation("EXPLAIN of an earlier state is not supported: leave AT (...) out")
        return text_of(self._own, statement.tree)

    def _is_own(self, name: TableName, own: Collection[str]) -> bool:
        if len(name.parts) == 1 and self._namespace[1] is not None:
            return name.parts[0].lower() in own
        return self._tables.is_own(name)

    def _pinned(self, names: Sequence[TableName]) -> dict[TableName, Any]:
        """The tables, pinned one after the other; at the same instant if no live one was written to meanwhile.

        Otherwise they are pinned again, some times: tables that are written to all the time have one instant each.
        """
        while True:
            scans = {name: self._tables.scan(name.within(self._namespace), None) for name in names}
            live = [scan for scan in scans.values() if isinstance(scan, PinnedUnionScan)]
            self._pins += 1
            self._is_one_instant = all(scan.is_current() for scan in live[:-1])
            if self._is_one_instant or self._pins == _PINS_MAX:
                return scans
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
        return value

    def _insert(self, target: Any, into: str, query: str, parameters: Any) -> Result:
        """Rows first go into a table of DuckDB, which casts them as INSERT does and spills what memory cannot hold."""
        schema = _inserted_schema(target)
        self._own.register("__forebay_columns", schema.empty_table())
        self._own.execute(f"CREATE TEMP TABLE {_INSERTED} AS SELECT * FROM __forebay_columns")
        with _naming_numbered(self._duckdb, target):
            self._collect(f"INSERT INTO {_INSERTED} {into}".rstrip(), query, parameters)
        count = self._own.execute(f"SELECT count(*) FROM {_INSERTED}").fetchall()[0][0]
        rows = self._rows(f"SELECT * FROM {_INSERTED}")
        if self._cancelled:
            raise InvalidRequest("the INSERT was cancelled: no row was written")
        self.on_commit()
        if hasattr(target, "connection"):
            with target.connection.transaction() as transaction:
                if target.has_primary_key:
                    columns = None if schema == target.arrow_schema else schema.names
                    transaction.upsert(target, rows, columns)
                else:
                    transaction.append(target, rows)
        elif target.has_primary_key:
            target.upsert(rows)
        else:
            target.append(rows)
        return self._of(pa.table({"rows": pa.array([count], pa.int64())}))

    def _collect(self, head: str, query: str, parameters: Any) -> None:
        """Run the INSERT into DuckDB's table, once for each row of parameters."""
        if not isinstance(parameters, pa.RecordBatchReader):
            self._own.execute(f"{head} {query.strip()}", parameters or None)
        elif PLACEHOLDERS.match(query):
            names = [f"c{index}" for index in range(len(parameters.schema))]
            schema = pa.schema([field.with_name(name) for name, field in zip(names, parameters.schema)])
            batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in parameters)
            rows = _scannable(pa.RecordBatchReader.from_batches(schema, batches))
            self._own.register("__forebay_parameters", rows)
            self._own.execute(f"{head} SELECT * FROM __forebay_parameters")
        else:
            for batch in parameters:
                for values in zip(*(column.to_pylist() for column in batch.columns)):
                    self._own.execute(f"{head} {query.strip()}", list(values))

    def _of(self, table: pa.Table) -> Result:
        reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
        return Result(reader, _nothing, self._views.raise_failure)

    def _explained(self, run: Callable[[], T]) -> T:
        """Run, with DuckDB's errors as those of Forebay."""
        try:
            return run()
        except self._duckdb.Error as e:
            self._views.raise_failure()
            unknown = re.match(r'Catalog Error: Table with name "?([^" ]+)"? does not exist', str(e))
            if unknown is not None:
                raise NotFound(
                    f"there is no table {unknown[1]}: tables are called database.table, or lake.database.table"
                    f"{self._tables.resembling(unknown[1])}"
                ) from e
            raise InvalidRequest(_in_sql(_of_target(str(e), self._target))) from e
        except pa.ArrowInvalid as e:
            if "Recursion level" not in str(e):
                raise
            raise InvalidRequest("the result is nested too deeply: Arrow allows types of at most 64 levels") from e


def _scannable(rows: Any) -> Any:
    """Arrow rows without the types that DuckDB does not read: float16, and decimals of 256 bits."""
    if not isinstance(rows, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        return rows
    schema = pa.schema([field.with_type(_scanned_type(field.name, field.type)) for field in rows.schema])
    return rows if schema == rows.schema else rows.cast(schema)


def _scanned_type(name: str, t: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(t):
        return pa.float32()
    if pa.types.is_decimal256(t) and t.precision <= _DECIMAL_DIGITS:
        return pa.decimal128(t.precision, t.scale)
    if re.search(r"\b(halffloat|decimal256)\b", str(t)):
        raise UnsupportedOperation(
            f"column {name!r} is {t}, which SQL does not read: cast decimals to at most {_DECIMAL_DIGITS} digits, and "
            "half floats in nested types to float"
        )
    return t


def _inserted_schema(target: Any) -> pa.Schema:
    """The columns that an INSERT writes: all but the one that the server numbers."""
    numbered = _numbered(target)
    schema: pa.Schema = target.arrow_schema
    return schema if numbered is None else schema.remove(schema.get_field_index(numbered))


def _numbered(target: Any) -> str | None:
    return target.info.schema.auto_increment_column if hasattr(target, "connection") else None


@contextmanager
def _naming_numbered(duckdb: Any, target: Any) -> Iterator[None]:
    """Have an error about the columns of an INSERT say which one the server numbers, if there is one."""
    try:
        yield
    except duckdb.BinderException as e:
        numbered = _numbered(target)
        if numbered is None:
            raise
        message, end, rest = str(e).partition("\n\n")
        raise type(e)(f"{message}; the server numbers column {numbered!r}, so leave it out{end}{rest}") from e


def _nothing() -> None:
    return


_INSERTED = "__forebay_rows"
"""DuckDB's table of the rows that an INSERT adds."""


def _of_target(fault: str, target: str) -> str:
    """An error of DuckDB about an INSERT, with the name of the table that the statement names."""
    message, line, statement = fault.replace(f'"{_INSERTED}"', target).partition("\n\nLINE")
    first, here, rest = statement.partition(f"INSERT INTO {_INSERTED}")
    if here and "\n" not in first:
        line_rest, end, mark = rest.partition("\n")  # the mark stands below the word that is wrong
        shift = len(target) - len(_INSERTED)
        statement = f"{first}INSERT INTO {target}{line_rest}{end}{' ' * shift}{mark[max(0, -shift) :]}"
    return message + line + statement


_DUCKDB_INTEGERS = {"INT8": "TINYINT", "INT16": "SMALLINT", "INT32": "INT", "INT64": "BIGINT"}


def _in_sql(fault: str) -> str:
    """An error of DuckDB, which has names of its own for integers, with those of SQL. The statement stays as it is."""
    message, line, statement = fault.partition("\n\nLINE")
    return (
        re.sub(r"(?<!['\w])INT(?:8|16|32|64)\b(?!')", lambda match: _DUCKDB_INTEGERS[match[0]], message)
        + line
        + statement
    )
