"""Valid names of databases, tables and partition values (the rules of Apache Fluss)."""

from __future__ import annotations

import re

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.metadata.table import TablePath

NAME_LENGTH_MAX = 200
"""The maximum length of a name in characters."""

INTERNAL_PREFIX = "__"
"""The prefix of names reserved for the system."""

RESERVED_COLUMNS = ("__offset", "__timestamp", "__bucket", "_change_type", "_log_offset", "_commit_timestamp")
"""The columns that lake tables and changelog views add."""

_ALLOWED = re.compile(r"[A-Za-z0-9_-]+")


def name_problem(name: str) -> str | None:
    """Why `name` is invalid, or None."""
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return f"'{name}' is a folder's name"
    if len(name) > NAME_LENGTH_MAX:
        return f"it is longer than {NAME_LENGTH_MAX} characters"
    if not _ALLOWED.fullmatch(name):
        return "it may contain ASCII letters, digits, '_' and '-' only"
    return None


def _creation_problem(name: str) -> str | None:
    if name.startswith(INTERNAL_PREFIX):
        return f"names that begin with '{INTERNAL_PREFIX}' are internal"
    return name_problem(name)


def check_database_name(name: str) -> None:
    """Raise `InvalidRequest` (INVALID_DATABASE) unless a database may have this name."""
    problem = _creation_problem(name)
    if problem:
        raise InvalidRequest(f"database name '{name}' is not allowed: {problem}", ErrorCode.INVALID_DATABASE_EXCEPTION)


def check_table_path(path: TablePath) -> None:
    """Raise `InvalidRequest` (INVALID_DATABASE or INVALID_TABLE) unless a table may have this path."""
    check_database_name(path.database)
    problem = _creation_problem(path.table)
    if problem:
        raise InvalidRequest(f"table name '{path.table}' is not allowed: {problem}", ErrorCode.INVALID_TABLE_EXCEPTION)


def check_partition_value(key: str, value: str, creating: bool) -> None:
    """Raise `InvalidRequest` (PARTITION_SPEC_INVALID) unless a partition may have this value."""
    problem = _creation_problem(value) if creating else name_problem(value)
    if problem:
        raise InvalidRequest(
            f"partition value '{value}' of key '{key}' is not allowed: {problem}",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
