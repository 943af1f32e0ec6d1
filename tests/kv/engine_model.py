"""What Fluss's merge engines make of puts and deletes, in plain Python; and a bucket to compare it with."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from forebay.fs.local import LocalFileSystem
from forebay.kv.tablet import KvTablet
from forebay.log.tablet import LogTablet
from tests.kv.memory_engine import MemoryEngine
from tests.kv.tables import FakeTable, Row

Merge = Callable[[Row | None, Row, Sequence[str]], Row | None]
"""The row of a key from the old row, a new one and the columns that are written; None to keep the old one as it is."""


def replace(old: Row | None, new: Row, columns: Sequence[str]) -> Row | None:
    if old is not None and set(columns) == {"id"} != set(new):
        return None
    return (old or dict.fromkeys(new)) | {name: new[name] for name in columns}


def first_row(old: Row | None, new: Row, columns: Sequence[str]) -> Row | None:
    return new if old is None else None


def versioned(column: str, least: Any) -> Merge:
    def merge(old: Row | None, new: Row, columns: Sequence[str]) -> Row | None:
        def version(row: Row) -> Any:
            return least if row[column] is None else row[column]

        return new if old is None or version(old) <= version(new) else None

    return merge


Function = Callable[[Any, Any], Any]


def aggregation(functions: Mapping[str, Function]) -> Merge:
    """Columns combined by their functions; others take the last value that is not null."""

    def merge(old: Row | None, new: Row, columns: Sequence[str]) -> Row | None:
        if old is None:
            return {name: new[name] if name in columns else None for name in new}
        return {
            name: functions.get(name, last_not_null)(old[name], new[name]) if name in columns else old[name]
            for name in new
        }

    return merge


def last(_old: Any, new: Any) -> Any:
    return new


def last_not_null(old: Any, new: Any) -> Any:
    return old if new is None else new


def first_not_null(old: Any, new: Any) -> Any:
    return new if old is None else old


def of_two(function: Function) -> Function:
    """The function where both values are there; otherwise the one that is."""

    def merge(old: Any, new: Any) -> Any:
        return function(old, new) if old is not None and new is not None else first_not_null(old, new)

    return merge


def wrapped(bits: int, function: Function) -> Function:
    return of_two(lambda old, new: (function(old, new) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1))


def single(function: Function) -> Function:
    """As of 32-bit floating point numbers."""

    def merge(old: Any, new: Any) -> Any:
        with np.errstate(all="ignore"):
            return float(function(np.float32(old), np.float32(new)))

    return of_two(merge)


def rounded(precision: int, scale: int, function: Function) -> Function:
    """Null if the result has too many digits."""

    def merge(old: Any, new: Any) -> Any:
        with decimal.localcontext(prec=200):
            result = function(old, new).quantize(decimal.Decimal(1).scaleb(-scale), decimal.ROUND_HALF_UP)
        return result if abs(int(result.scaleb(scale, decimal.Context(prec=200)))) < 10**precision else None

    return of_two(merge)


def rank(value: Any) -> Any:
    """What values are ordered by: text by its bytes; NaN is the greatest, and -0.0 is less than 0.0."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value, math.copysign(1, value))
    return value.encode() if isinstance(value, str) else value


GREATEST: Function = of_two(lambda old, new: max(old, new, key=rank))
LEAST: Function = of_two(lambda old, new: min(old, new, key=rank))


def plain(found: Any) -> Any:
    """Rows with floating point numbers as text, which compares NaNs and zeros exactly."""
    if isinstance(found, float):
        return repr(found)
    if isinstance(found, dict):
        return {key: plain(value) for key, value in found.items()}
    return type(found)(map(plain, found)) if isinstance(found, list | tuple) else found


@dataclass
class Model:
    """Rows by key, and the changelog."""

    merge: Merge
    full_image: bool = True
    deletes: str = "ignore"
    rows: dict[int, Row] = field(default_factory=dict)
    changelog: list[tuple[int, str, Row]] = field(default_factory=list)
    offset: int = 0

    def put(
        self,
        rows: Sequence[Row],
        deleted: Sequence[bool],
        columns: Sequence[str] = (),
        overwrite: bool = False,
    ) -> None:
        """One batch: a put of each row, or a delete of its key."""
        before = self.offset
        for row, gone in zip(rows, deleted, strict=True):
            self._one(row, gone, columns or tuple(row), overwrite)
        self.offset += self.offset == before  # an empty batch takes one offset

    def _one(self, row: Row, gone: bool, columns: Sequence[str], overwrite: bool) -> None:
        key = row["id"]
        old = self.rows.get(key)
        new: Row | None
        if gone:
            if old is None or (self.deletes == "ignore" and not overwrite):
                return
            new = None
            if len(columns) < len(old) and any(old[name] is not None for name in old if name not in columns):
                new = {name: None if name in columns and name != "id" else old[name] for name in old}
        else:
            new = (replace if overwrite else self.merge)(old, row, columns)
            if new is None:
                return
        self._change(
            key, old, new, is_blind=overwrite and not gone and not self.full_image and len(columns) == len(row)
        )

    def _change(self, key: int, old: Row | None, new: Row | None, *, is_blind: bool) -> None:
        if new is None:
            self._log("-D", self.rows.pop(key))
            return
        if old is not None and self.full_image:
            self._log("-U", old)
        self._log("+U" if old is not None or is_blind else "+I", new)
        self.rows[key] = new

    def _log(self, kind: str, row: Row) -> None:
        self.changelog.append((self.offset, kind, row))
        self.offset += 1


class Bucket:
    """A real bucket of a table, in a folder of its own."""

    def __init__(self, table: FakeTable, folder: Path) -> None:
        self.table = table
        self._fs = LocalFileSystem()
        self.log = LogTablet.open(self._fs, str(folder / "log"))
        self.tablet = self._open()

    def _open(self) -> KvTablet:
        tablet = KvTablet(self.table, self.log, MemoryEngine(), lambda count: 1)
        tablet.recover()
        return tablet

    def rebuild(self) -> None:
        """Lose the key-value state, and restore it from the changelog."""
        self.tablet = self._open()

    def put(self, rows: Sequence[Row], deleted: Sequence[bool], **how: Any) -> None:
        (result,) = self.tablet.put_group([self.table.request(rows, deleted, acks=1, **how)])
        if result.error is not None:
            raise result.error

    @property
    def rows(self) -> dict[int, Row]:
        """The current rows by key."""
        values = [value[4:] for value in self.tablet.first_values(10_000)]
        return {row["id"]: row for row in self.table.rows_of_values(values)}

    def check(self, model: Model) -> None:
        """Rows and changelog are those of the model, also after the state is rebuilt from the changelog."""
        assert plain(self.table.changelog(self.log)) == plain(model.changelog)
        assert self.log.log_end_offset == model.offset
        assert plain(self.rows) == plain(model.rows)
        self.rebuild()
        assert plain(self.rows) == plain(model.rows)
        assert self.tablet.row_count == (len(model.rows) if model.full_image else None)

    def close(self) -> None:
        self.log.close()
