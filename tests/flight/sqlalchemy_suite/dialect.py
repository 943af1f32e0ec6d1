"""The dialect, with tables that Forebay's client creates, empties and drops: its SQL has no such statements."""

from __future__ import annotations

from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.sql import compiler, ddl

import forebay
from forebay.metadata.table import Column, Schema, TablePath
from forebay.metadata.type_text import parse_type
from forebay.sqlalchemy import ForebayDialect


class _NamesOnly(compiler.DDLCompiler):
    """Texts of DDL for the log: the dialect below takes the statement itself."""

    def visit_create_table(self, create: Any, **kw: Any) -> str:
        return f"CREATE TABLE {create.element.fullname}"

    def visit_create_index(self, create: Any, *args: Any, **kw: Any) -> str:
        return f"CREATE INDEX {create.element.name}"

    def visit_create_view(self, create: Any, *args: Any, **kw: Any) -> str:
        return f"CREATE VIEW {create.element.name}"


class SuiteDialect(ForebayDialect):
    """The dialect that the suite gets. Only statements of DDL and a DELETE of all rows are not sent as SQL."""

    driver = "suite"
    ddl_compiler = _NamesOnly
    supports_statement_cache = True
    client: ClassVar[forebay.Connection]

    def do_execute(self, cursor: Any, statement: Any, parameters: Any, context: Any = None) -> None:
        """Run a statement, or do by the client what it says. There are no indexes and views: these are left out."""
        given = None if context is None or context.compiled is None else context.compiled.statement
        if isinstance(given, ddl.CreateTable):
            self._create(given.element)
        elif isinstance(given, ddl.DropTable):
            self.client.drop_table(self._path(given.element))
        elif isinstance(given, sa.Delete) and given.whereclause is None:
            self.client.drop_table(self._path(given.table))
            self._create(given.table)
        elif not isinstance(given, ddl.CreateIndex | ddl.DropIndex | ddl.CreateView | ddl.DropView):
            super().do_execute(cursor, statement, parameters, context)

    def _path(self, table: Any) -> TablePath:
        return TablePath(table.schema or self.default_schema_name, table.name)

    def _create(self, table: sa.Table) -> None:
        key = tuple(column.name for column in table.primary_key)
        columns = [
            Column(
                column.name,
                parse_type(_type(column.type, self, bool(key)) + ("" if column.nullable else " NOT NULL")),
                column.comment,
            )
            for column in table.columns
        ]
        schema = Schema.of(columns, key)
        self.client.create_table(self._path(table), schema, buckets=1, comment=table.comment)


def _type(declared: Any, dialect: Any, has_key: bool) -> str:
    """The type of a column, in the words of CREATE TABLE."""
    given = declared.dialect_impl(dialect)
    while isinstance(given, sa.TypeDecorator):
        given = given.impl_instance.dialect_impl(dialect)
    if isinstance(given, sa.ARRAY):
        nested = _type(given.item_type, dialect, has_key)
        for _ in range(given.dimensions or 1):
            nested = f"ARRAY<{nested}>"
        return nested
    if isinstance(given, sa.Numeric) and not isinstance(given, sa.Float):
        precision = 38 if given.precision is None else given.precision
        return f"DECIMAL({precision}, {given._effective_decimal_return_scale if given.scale is None else given.scale})"
    if isinstance(given, sa.DateTime):
        return "TIMESTAMP_LTZ(6)" if given.timezone else "TIMESTAMP(6)"
    if isinstance(given, sa.Time):
        return "TIME(3)" if has_key else "TIME(6)"
    if isinstance(given, sa.CHAR) and given.length:
        return f"CHAR({given.length})"
    for kind, name in (
        (sa.Boolean, "BOOLEAN"),
        (sa.BigInteger, "BIGINT"),
        (sa.SmallInteger, "SMALLINT"),
        (sa.Integer, "INT"),
        (sa.Float, "DOUBLE"),
        (sa.Date, "DATE"),
        (sa.types._Binary, "BYTES"),
        (sa.String, "STRING"),
        (sa.Uuid, "STRING"),
    ):
        if isinstance(given, kind):
            return name
    raise sa.exc.CompileError(f"{declared!r} is no type of a column")
