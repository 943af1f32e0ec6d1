"""The filters in requests for rows: FetchLog prunes batches by them, and ScanKv rows."""

from __future__ import annotations

import logging
from typing import Any

from forebay.base.errors import InvalidRequest, NotFound
from forebay.codec.filters import BoundPredicate, bind
from forebay.protocol.predicates import predicate_from_pb
from forebay.server.metadata.catalog import LiveTable

_LOGGER = logging.getLogger(__name__)

_FILTER_BYTES_MAX = 64 << 10
"""Longer filters are ignored: a filter is a hint, and each batch would be tested with all of it."""


def usable_filter(table: LiveTable, message: Any, schema_id: int) -> BoundPredicate | None:
    """The filter in a PbPredicate for columns of a schema; None for one that cannot be used.

    A filter is a hint: the client applies it to every row anyway, so it can be ignored, as Fluss does.
    """
    if message.ByteSize() > _FILTER_BYTES_MAX:
        return None
    try:
        schema = table.schema_by_id(schema_id)
        return bind(predicate_from_pb(message, schema), schema)
    except (InvalidRequest, NotFound) as e:
        _LOGGER.debug("ignoring a filter that does not fit %s: %s", table.info.path, e)
        return None
