"""A table's definition as text: CREATE TABLE, which `forebay create` and Spark SQL understand, and roles of columns."""

from __future__ import annotations

from forebay.metadata.table import Column, Schema, TableDescriptor, TablePath


def create_statement(path: TablePath, descriptor: TableDescriptor) -> str:
    """The statement that creates such a table. What DDL does not say (functions that merge columns, the column that
    the server numbers) stands in comments behind it.
    """
    schema = descriptor.schema
    lines = [
        f"  {_name(column.name)} {column.data_type}" + (f" COMMENT {_text(column.comment)}" if column.comment else "")
        for column in schema.columns
    ]
    if schema.primary_key:
        lines.append(f"  PRIMARY KEY ({_names(schema.primary_key)}) NOT ENFORCED")
    parts = [f"CREATE TABLE {_name(path.database)}.{_name(path.table)} (\n" + ",\n".join(lines) + "\n)"]
    if descriptor.comment:
        parts.append(f"COMMENT {_text(descriptor.comment)}")
    if descriptor.partition_keys:
        parts.append(f"PARTITIONED BY ({_names(descriptor.partition_keys)})")
    options: dict[str, str] = {}
    if descriptor.bucket_keys:
        options["bucket.key"] = ",".join(descriptor.bucket_keys)
    if descriptor.bucket_count is not None:
        options["bucket.num"] = str(descriptor.bucket_count)
    options |= dict(sorted({**descriptor.properties, **descriptor.custom_properties}.items()))
    if options:
        pairs = ",\n".join(f"  {_text(key)} = {_text(value)}" for key, value in options.items())
        parts.append(f"WITH (\n{pairs}\n)")
    more = [f"column {c.name} is merged by {c.aggregate}" for c in schema.columns if c.aggregate is not None]
    if schema.auto_increment_column is not None:
        more.append(f"column {schema.auto_increment_column} is numbered by the server")
    return "\n".join(parts) + ";" + "".join(f"\n-- {line}" for line in more)


def column_role(schema: Schema, column: Column) -> str:
    """The role of a column in words: part of the primary key, numbered, merged by a function; "" for a plain column."""
    roles = ["primary key"] if column.name in schema.primary_key else []
    if column.name == schema.auto_increment_column:
        roles.append("numbered by the server")
    if column.aggregate is not None:
        roles.append(f"merged by {column.aggregate}")
    return ", ".join(roles)


def _name(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else f"`{name}`"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(map(_name, names))


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
