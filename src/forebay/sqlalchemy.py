"""A dialect of SQLAlchemy over `forebay flight`, for Superset, pandas, and whatever else has SQLAlchemy's URLs.

    forebay://[user:password@]host[:port][/database][?tls=true&tls_root=ca.pem]

Statements go through ADBC's Flight SQL driver, as do questions about schemas, tables and columns. A live database is
the schema of its name, and a lake's database is `lake.database`. There are no transactions: each INSERT is one, and is
committed when it returns.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import sqlalchemy.types as sql_types
from sqlalchemy import URL, exc, pool
from sqlalchemy.engine import default, interfaces, reflection
from sqlalchemy.sql import compiler, sqltypes, type_api

_PORT = 31337
_LIVE = "live"
_SCHEMA_OPTION = "adbc.flight.sql.session.option.schema"
_CATALOG_OPTION = "adbc.flight.sql.session.option.catalog"
_KEY_SEQUENCE = b"FOREBAY:KEY_SEQUENCE"
_TYPE_NAME, _REMARKS = b"ARROW:FLIGHT:SQL:TYPE_NAME", b"ARROW:FLIGHT:SQL:REMARKS"
_IS_NUMBERED = b"ARROW:FLIGHT:SQL:IS_AUTO_INCREMENT"
_COMMENT = b"FOREBAY:COMMENT"
_ISOLATION: interfaces.IsolationLevel = "AUTOCOMMIT"
_DECIMAL_DIGITS, _SINGLE_BITS = 38, 24
_LOST = ("connection error", "transport:", "login has expired")


class ForebayIdentifierPreparer(compiler.IdentifierPreparer):
    """Quotes all names: DuckDB reserves other words than SQLAlchemy knows, and ignores the case of quoted names."""

    def _requires_quotes(self, value: str) -> bool:
        return True

    def quote_schema(self, schema: str, force: Any = None) -> str:
        """A schema in SQL: `lake.database` are two names."""
        return ".".join(self.quote(part) for part in schema.split(".", 1))


class ForebayCompiler(compiler.SQLCompiler):
    """SQL as DuckDB has it."""

    def visit_floordiv_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Division rounded down, as Python's `//`. DuckDB's `/` divides integers as floats, and its `//` cuts."""
        left, right = self.process(binary.left, **kw), self.process(binary.right, **kw)
        whole = sql_types.Integer
        if isinstance(binary.left.type, whole) and isinstance(binary.right.type, whole):
            cut = f"({left}) // ({right})"
            return f"({cut} - CAST(({left}) % ({right}) <> 0 AND (({left}) < 0) <> (({right}) < 0) AS INTEGER))"
        return f"FLOOR(({left}) / ({right}))"

    def visit_bitwise_xor_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """The exclusive or; DuckDB's `^` is a power."""
        return f"xor({self.process(binary.left, **kw)}, {self.process(binary.right, **kw)})"

    def visit_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Whether a part of the text matches."""
        return self._regexp("regexp_matches", (binary.left, binary.right), binary.modifiers["flags"], **kw)

    def visit_not_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Whether no part of the text matches."""
        return f"NOT {self.visit_regexp_match_op_binary(binary, operator, **kw)}"

    def visit_regexp_replace_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """The text with the first match replaced, or all with the flag `g`."""
        return self._regexp("regexp_replace", (binary.left, *binary.right), binary.modifiers["flags"], **kw)

    def _regexp(self, function: str, arguments: Sequence[Any], flags: str | None, **kw: Any) -> str:
        texts = [self.process(each, **kw) for each in arguments]
        if flags is not None:
            texts.append(self.render_literal_value(flags, sqltypes.STRINGTYPE))
        return f"{function}({', '.join(texts)})"

    def get_select_precolumns(self, select: Any, **kw: Any) -> str:
        """DISTINCT, and DISTINCT ON."""
        if not select._distinct_on:
            return "DISTINCT " if select._distinct else ""
        return f"DISTINCT ON ({', '.join(self.process(column, **kw) for column in select._distinct_on)}) "

    def visit_postgresql_distinct_on(self, element: Any, **kw: Any) -> str:
        """DISTINCT ON as SQLAlchemy 2.1 has it: `select.ext(postgresql.distinct_on(...))`, after a DISTINCT."""
        return f"ON ({', '.join(self.process(column, **kw) for column in element._distinct_on)})"

    def limit_clause(self, select: Any, **kw: Any) -> str:
        """LIMIT and OFFSET, each of which may stand alone."""
        limit, offset = select._limit_clause, select._offset_clause
        text = "" if limit is None else f"\n LIMIT {self.process(limit, **kw)}"
        return text if offset is None else f"{text}\n OFFSET {self.process(offset, **kw)}"

    def visit_empty_set_expr(self, element_types: Any, **kw: Any) -> str:
        """No rows of NULLs, which compare with every type."""
        return f"SELECT {', '.join('NULL' for _ in element_types or [None])} WHERE 1 = 0"

    def returning_clause(self, stmt: Any, returning_cols: Any, **kw: Any) -> str:
        """Raise `CompileError`: a statement that writes returns no rows."""
        raise exc.CompileError("forebay:// has no RETURNING: read the rows by their keys after the INSERT")


class ForebayTypeCompiler(compiler.GenericTypeCompiler):
    """Types as DuckDB has them."""

    def visit_INTERVAL(self, type_: Any, **kw: Any) -> str:
        """The type of a timedelta."""
        return "INTERVAL"

    def visit_ARRAY(self, type_: Any, **kw: Any) -> str:
        """A list, of lists where it has dimensions."""
        return self.process(type_.item_type, **kw) + "[]" * (type_.dimensions or 1)

    def visit_DATETIME(self, type_: Any, **kw: Any) -> str:
        """A time of a clock, or an instant if it has a zone."""
        return "TIMESTAMP WITH TIME ZONE" if type_.timezone else "TIMESTAMP"

    visit_TIMESTAMP = visit_DATETIME

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        """A DOUBLE, as in other databases, unless 24 bits are enough. DuckDB's FLOAT has 32 bits."""
        return "REAL" if type_.precision is not None and type_.precision <= _SINGLE_BITS else "DOUBLE"

    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:
        """A decimal. Without a precision it has the largest one: DuckDB's would cut after three digits."""
        precision = _DECIMAL_DIGITS if type_.precision is None else type_.precision
        scale = type_.scale
        if scale is None:
            scale = type_._effective_decimal_return_scale if type_.precision is None else 0
        return f"DECIMAL({precision}, {scale})"

    visit_DECIMAL = visit_NUMERIC

    def visit_CLOB(self, type_: Any, **kw: Any) -> str:
        """A text of any length."""
        return "VARCHAR"

    visit_NCLOB = visit_CLOB

    def visit_BINARY(self, type_: Any, **kw: Any) -> str:
        """Bytes of any length."""
        return "BLOB"

    visit_VARBINARY = visit_BINARY


class Bytes(sql_types.LargeBinary):
    """Bytes, which ADBC takes and returns as they are."""

    def bind_processor(self, dialect: Any) -> Any:
        """As `bytes`, also a bytearray or a memoryview."""
        return lambda value: None if value is None else bytes(value)

    def literal_processor(self, dialect: Any) -> Any:
        """As the hexadecimal digits of any bytes."""
        return lambda value: f"from_hex('{bytes(value).hex()}')"

    def result_processor(self, dialect: Any, coltype: Any) -> None:
        """Nothing to do."""


class Decimals(sql_types.Numeric[Any]):
    """Decimals: the values of one parameter are of one type, so numbers of other types become decimals, too."""

    def bind_processor(self, dialect: Any) -> Any:
        """As `Decimal`, by the digits that Python shows."""
        return _as_decimal

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        """As `Decimal` unless floats are asked for: DuckDB divides decimals as floats."""
        return _as_decimal if self.asdecimal else _as_float


def _as_decimal(value: Any) -> Decimal | None:
    return value if value is None or isinstance(value, Decimal) else Decimal(str(value))


def _as_float(value: Any) -> float | None:
    return None if value is None else float(value)


class Floats(sql_types.Float[Any]):
    """Floats: the values of one parameter are of one type, so numbers of other types become floats, too."""

    def bind_processor(self, dialect: Any) -> Any:
        """As `float`."""
        return _as_float


class Interval(type_api.NativeForEmulated, sqltypes._AbstractInterval):
    """A timedelta, as DuckDB's INTERVAL."""

    __visit_name__ = "INTERVAL"
    native = True

    @classmethod
    def adapt_emulated_to_native(cls, impl: Any, **kw: Any) -> Interval:
        """In place of SQLAlchemy's own, which is a time since 1970."""
        return cls()

    @property
    def python_type(self) -> type[dt.timedelta]:
        """The type of the values."""
        return dt.timedelta

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        """An Arrow interval as a timedelta. Raises `ValueError` for one of months, which have no length."""

        def as_timedelta(value: Any) -> dt.timedelta | None:
            if value is None or isinstance(value, dt.timedelta):
                return value
            months, days, nanoseconds = value
            if months:
                raise ValueError(f"an interval of {months} months is no timedelta")
            return dt.timedelta(days=days, microseconds=nanoseconds // 1000)

        return as_timedelta


class NestedType(sql_types.UserDefinedType[Any]):
    """ARRAY, MAP or ROW. Values are Python's lists and dicts."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        """The type in SQL."""
        return self.name


class ForebayDialect(default.DefaultDialect):
    """SQLAlchemy's view of a Forebay endpoint."""

    name = "forebay"
    driver = "flightsql"
    default_paramstyle = "qmark"
    preparer = ForebayIdentifierPreparer
    statement_compiler = ForebayCompiler
    type_compiler_cls = ForebayTypeCompiler
    colspecs: Any = {  # noqa: RUF012 - as SQLAlchemy declares it
        sqltypes._Binary: Bytes,
        sql_types.Numeric: Decimals,
        sql_types.Float: Floats,
        sql_types.Interval: Interval,
    }
    div_is_floordiv = False
    supports_statement_cache = True
    supports_native_boolean = True
    supports_native_decimal = True
    supports_multivalues_insert = True
    supports_default_values = supports_empty_insert = False
    supports_alter = False
    cte_follows_insert = True
    postfetch_lastrowid = False
    supports_sane_rowcount = False  # of a query it is -1
    supports_sane_multi_rowcount = False

    @classmethod
    def import_dbapi(cls) -> Any:
        """ADBC's DBAPI."""
        try:
            import adbc_driver_flightsql.dbapi as dbapi
        except ImportError as e:
            raise exc.InvalidRequestError("forebay:// needs ADBC: pip install 'forebay[sqlalchemy]'") from e
        return dbapi

    @classmethod
    def get_pool_class(cls, url: URL) -> type[pool.Pool]:
        """Connections are kept: opening one logs in."""
        return pool.QueuePool

    def create_connect_args(self, url: URL) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of ADBC's `connect` for a URL."""
        query = {name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()}
        tls = query.pop("tls", "false").lower()
        if tls not in ("true", "false"):
            raise exc.ArgumentError(f"tls={tls!r} in the URL is neither 'true' nor 'false'")
        options = {"adbc.flight.sql.rpc.with_cookie_middleware": "true"}
        if "tls_root" in query:
            with open(query.pop("tls_root"), encoding="utf-8") as file:
                options["adbc.flight.sql.client_option.tls_root_certs"] = file.read()
        if url.username is not None:
            options |= {"username": url.username, "password": url.password or ""}
        unknown = [name for name in query if not name.startswith("adbc.")]
        if unknown:
            raise exc.ArgumentError(
                f"{unknown[0]!r} in the URL is unknown; there are tls, tls_root, and ADBC's options"
            )
        catalog, _, database = (url.database or "").rpartition(".")
        session = {_CATALOG_OPTION: catalog, _SCHEMA_OPTION: database}
        scheme = "grpc+tls" if tls == "true" else "grpc"
        uri = f"{scheme}://{url.host or '127.0.0.1'}:{url.port or _PORT}"
        return [uri], {
            "db_kwargs": options | query,
            "conn_kwargs": {option: value for option, value in session.items() if value},
            "autocommit": True,
        }

    def get_isolation_level_values(self, dbapi_conn: Any) -> Sequence[interfaces.IsolationLevel]:
        """AUTOCOMMIT alone."""
        return [_ISOLATION]

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        """AUTOCOMMIT: each INSERT is a transaction."""
        return _ISOLATION

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        """Nothing: SQLAlchemy has checked that it is AUTOCOMMIT."""

    def do_begin(self, dbapi_connection: Any) -> None:
        """Nothing: there are no transactions."""

    def do_commit(self, dbapi_connection: Any) -> None:
        """Nothing: an INSERT is committed when it returns."""

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Nothing, as the pool calls it after each use."""

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        """Whether the connection is lost, or its login."""
        return any(text in str(e) for text in _LOST)

    # ---- reflection -------------------------------------------------------------------------------------------------

    def _get_default_schema_name(self, connection: Any) -> Any:
        return connection.engine.url.database or None

    @reflection.cache
    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        """Databases: of the cluster by their names, of lakes as lake.database."""
        schemas = _objects(connection, "db_schemas")
        return [name if catalog == _LIVE else f"{catalog}.{name}" for catalog, name, _ in schemas]

    @reflection.cache
    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """The tables of a schema."""
        catalog, database = self._place(schema)
        if database is None:
            return []
        schemas = _objects(connection, "tables", catalog_filter=catalog, db_schema_filter=_escaped(database))
        return [table["table_name"] for _, name, tables in schemas if name == database for table in tables or ()]

    @reflection.cache
    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """None."""
        return []

    @reflection.cache
    def has_table(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> bool:
        """Whether a table exists."""
        return table_name in self.get_table_names(connection, schema, **kw)

    @reflection.cache
    def _columns(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> pa.Schema:
        catalog, database = self._place(schema)
        if not self.has_table(connection, table_name, schema):  # a cached answer may be too old
            raise exc.NoSuchTableError(table_name if database is None else f"{schema or database}.{table_name}")
        return connection.connection.driver_connection.adbc_get_table_schema(
            table_name, catalog_filter=catalog, db_schema_filter=database
        )

    @reflection.cache
    def get_columns(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        """The columns of a table."""
        return [_column(field) for field in self._columns(connection, table_name, schema, **kw)]

    @reflection.cache
    def get_pk_constraint(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        """The primary key of a table."""
        fields = self._columns(connection, table_name, schema, **kw)
        positions = [(field.metadata or {}).get(_KEY_SEQUENCE) for field in fields]
        key = sorted((int(place), field.name) for place, field in zip(positions, fields) if place)
        return {"constrained_columns": [name for _, name in key], "name": None}

    def get_table_comment(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        """The comment of a table."""
        metadata = self._columns(connection, table_name, schema, **kw).metadata or {}
        return {"text": metadata[_COMMENT].decode() if _COMMENT in metadata else None}

    def get_foreign_keys(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        """None. Raises `NoSuchTableError`, as all that is asked about a table."""
        return self._none_of(connection, table_name, schema, **kw)

    def get_indexes(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        """None."""
        return self._none_of(connection, table_name, schema, **kw)

    def get_unique_constraints(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """None."""
        return self._none_of(connection, table_name, schema, **kw)

    def get_check_constraints(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """None."""
        return self._none_of(connection, table_name, schema, **kw)

    def _none_of(self, connection: Any, table_name: str, schema: str | None, **kw: Any) -> list[Any]:
        self._columns(connection, table_name, schema, **kw)
        return []

    def _place(self, schema: str | None) -> tuple[str, str | None]:
        """The catalog and the database that a schema means."""
        catalog, _, database = (schema or self.default_schema_name or "").rpartition(".")
        return catalog or _LIVE, database or None


def _objects(connection: Any, depth: str, **filters: Any) -> Iterator[tuple[str, str, Any]]:
    """The catalog, the name and the tables of each database."""
    reader = connection.connection.driver_connection.adbc_get_objects(depth=depth, **filters)
    for catalog in reader.read_all().to_pylist():
        for schema in catalog["catalog_db_schemas"] or ():
            yield catalog["catalog_name"], schema["db_schema_name"], schema["db_schema_tables"]


def _escaped(name: str) -> str:
    """A pattern of LIKE that only this name matches."""
    return name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _column(field: pa.Field) -> dict[str, Any]:
    metadata = field.metadata or {}
    column = {
        "name": field.name,
        "type": _type_of(field),
        "nullable": field.nullable,
        "default": None,
        "comment": metadata.get(_REMARKS, b"").decode() or None,
    }
    if metadata.get(_IS_NUMBERED) == b"1":  # SQLAlchemy asks to leave it out where it is not so
        column["autoincrement"] = True
    return column


def _type_of(field: pa.Field) -> Any:
    t, is_ = field.type, pa.types
    named = ((field.metadata or {}).get(_TYPE_NAME) or str(t).encode()).decode()
    if (text := re.fullmatch(r"(VAR)?CHAR\((\d+)\)", named)) is not None:
        return (sql_types.VARCHAR if text[1] else sql_types.CHAR)(int(text[2]))
    if is_.is_decimal(t):
        return sql_types.Numeric(t.precision, t.scale)
    if is_.is_timestamp(t):
        return sql_types.DateTime(timezone=t.tz is not None)
    for test, sql_type in (
        (is_.is_boolean, sql_types.Boolean),
        (is_.is_int64, sql_types.BigInteger),
        (is_.is_int32, sql_types.Integer),
        (is_.is_integer, sql_types.SmallInteger),
        (is_.is_float64, sql_types.Double),
        (is_.is_floating, sql_types.REAL),
        (is_.is_string, sql_types.String),
        (is_.is_date, sql_types.Date),
        (is_.is_time, sql_types.Time),
        (is_.is_binary, sql_types.LargeBinary),
        (is_.is_fixed_size_binary, sql_types.LargeBinary),
    ):
        if test(t):
            return sql_type()
    return NestedType(named)
