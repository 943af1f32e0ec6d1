"""Pages and lists of stored values, for engines that yield these one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from forebay.codec.kv._records import join_value_batch
from forebay.codec.kv.value_batch import EMPTY_VALUE_BATCH, parse_value_batch
from forebay.kv.engine import KvPage, KvRows

NO_ROWS = KvPage(EMPTY_VALUE_BATCH, 0, None, False)


def page_of(values: Iterator[bytes], position: Callable[[], bytes], bytes_max: int, rows_max: int) -> KvPage:
    """Return a page of `values`; `position` returns that after the value that was taken last."""
    first = next(values, None)
    if first is None:
        return NO_ROWS
    records, rows, ended = join_value_batch(first, values, bytes_max, rows_max)
    after = position()
    return KvPage(records, rows, after, not ended and next(values, None) is not None)


def rows_of(page: KvPage) -> KvRows:
    """Return the rows in a page."""
    schema_ids, rows = parse_value_batch(page.records)
    return KvRows(schema_ids, rows, page.position, page.has_more)


def just_longer_than(bytes_max: int, values: Iterable[bytes]) -> list[bytes]:
    """Return the first of `values` that together exceed `bytes_max`; all of them if they do not."""
    result: list[bytes] = []
    left = bytes_max
    for value in values:
        result.append(value)
        left -= len(value)
        if left < 0:
            break
    return result
