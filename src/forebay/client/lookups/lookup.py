"""Lookups by primary key, and by a prefix of it.

Flow: keys -> codec.casting.batches -> key bytes and buckets -> at most `client.lookup.max-batch-size` keys of a
bucket in a request, all requests in flight together -> values by position -> one decode -> rows in the order of the
keys.

Rules: the result of a lookup has one row per key, in order. A key without a row yields a row of nulls, including the
key columns, which are never null otherwise; `table["id"].is_null()` identifies these. A partition that does not exist
has no rows; that is not an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.api.data import Missing
from forebay.api.keys import check_missing, key_rows
from forebay.base.errors import CorruptData, ErrorCode, ForebayError, InvalidRequest, LimitExceeded, NotFound
from forebay.client.arrays import array_of
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.cluster.routing import PartitionRouter
from forebay.client.cluster.rpc import Call
from forebay.client.cluster.scatter import Scatter, pair_up
from forebay.client.row_view import RowView
from forebay.client.writing.encode import KeyRouter, group_rows
from forebay.codec.casting.batches import iter_record_batches
from forebay.codec.kv.value_batch import parse_values
from forebay.codec.rows.buckets import bucket_ids
from forebay.codec.rows.keys import KeyEncoder, bucket_key_encoder, prefix_encoder
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol._short import decode_values
from forebay.protocol.api import ApiKey, ServerNode

if TYPE_CHECKING:
    from forebay.client.session import Session

PREFIX_COLUMN = "_prefix_index"
"""The column of a prefix lookup's result with the index of the row's prefix, counted from 0."""

KEYS_AT_ONCE = 1 << 16
"""Maximum number of keys that are encoded and sent before the next ones."""

T = TypeVar("T")

_ROUTINGS = 3
"""The number of attempts to resolve partitions, in case one is dropped, or dropped and recreated, before the lookup."""


class KeyItem(NamedTuple):
    """The keys of one bucket, and their positions among all keys."""

    bucket: TableBucket
    keys: list[bytes]
    positions: npt.NDArray[np.int64]
    chunk: int


class Lookups(Scatter[KeyItem, Any]):
    """Lookup and PrefixLookup requests: a request has at most one item per bucket."""

    def __init__(self, cluster: ClusterClient, info: TableInfo, insert_missing: bool = False) -> None:
        self.in_flight_max = cluster.settings["client.lookup.max-inflight-requests"]
        self.retries_max = cluster.settings["client.lookup.max-retries"]
        self._cluster = cluster
        self._info = info
        self._insert_missing = insert_missing

    def requests(self, items: Sequence[KeyItem]) -> Iterable[Sequence[KeyItem]]:
        by_chunk: dict[int, list[KeyItem]] = {}
        for item in items:
            by_chunk.setdefault(item.chunk, []).append(item)
        return by_chunk.values()

    def send(self, node: ServerNode, items: Sequence[KeyItem]) -> Call:
        """Send the keys of one request to their leader. An insert of missing rows waits for all replicas (acks -1)."""
        request = pb.LookupRequest(table_id=self._info.table_id)
        if self._insert_missing:
            request.insert_if_not_exists = True
            request.acks = -1
            request.timeout_ms = int(self._cluster.request_seconds * 1000)
        _add_keys(request.buckets_req, items)
        return self._cluster.send(node, ApiKey.LOOKUP, request)

    def answers(self, call: Call, items: Sequence[KeyItem]) -> Iterable[tuple[KeyItem, Any | ForebayError]]:
        """Yield each item with its values, None for keys without a row, or with its error.

        A response for one bucket is decoded without protobuf objects if it has the usual fields only.
        """
        response = call.response()
        if len(items) == 1 and response.error is None:
            (item,) = items
            simple = decode_values(response.body)
            if simple is not None and simple[:2] == (item.bucket.bucket, item.bucket.partition_id):
                yield item, simple[2]
                return
        for item, message in pair_up(items, response.parse(pb.LookupResponse).buckets_resp):
            if isinstance(message, ForebayError):
                yield item, message
            else:
                yield item, [v.values if v.HasField("values") else None for v in message.values]


class PrefixLookups(Lookups):
    """PrefixLookup requests, whose answers have a list of values for each prefix."""

    def send(self, node: ServerNode, items: Sequence[KeyItem]) -> Call:
        request = pb.PrefixLookupRequest(table_id=self._info.table_id)
        _add_keys(request.buckets_req, items)
        return self._cluster.send(node, ApiKey.PREFIX_LOOKUP, request)

    def answers(self, call: Call, items: Sequence[KeyItem]) -> Iterable[tuple[KeyItem, Any | ForebayError]]:
        """Yield each item with a list of values for each prefix, or with its error."""
        response = call.response().parse(pb.PrefixLookupResponse)
        for item, message in pair_up(items, response.buckets_resp):
            if isinstance(message, ForebayError):
                yield item, message
            else:
                yield item, [list(value_list.values) for value_list in message.value_lists]


def _add_keys(buckets: Any, items: Sequence[KeyItem]) -> None:
    for item in items:
        buckets.add(partition_id=item.bucket.partition_id, bucket_id=item.bucket.bucket, keys=item.keys)


def _in_parts(ask: Callable[[pa.RecordBatch], list[T]], keys: pa.RecordBatch) -> list[T]:
    """What `ask` returns for all keys, asked with fewer at a time if it is too large for one response."""
    try:
        return ask(keys)
    except LimitExceeded:
        if keys.num_rows == 1:
            raise
    half = keys.num_rows // 2
    return [*_in_parts(ask, keys.slice(0, half)), *_in_parts(ask, keys.slice(half))]


class Lookup:
    """Lookups of selected columns of one table. Thread-safe; a table handle caches the most recent ones."""

    def __init__(self, session: Session, info: TableInfo, columns: Sequence[str] | None) -> None:
        if not info.has_primary_key:
            raise InvalidRequest(
                f"table {info.path} has no primary key to look up; scan it, or read its log",
                ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            )
        self._session = session
        self._info = info
        self._view = RowView(info, columns)
        self._decoder = self._view.decoder(session.cluster)
        self._router = KeyRouter(info)
        self._chunk: int = session.settings["client.lookup.max-batch-size"]
        self.nullable = pa.schema([field.with_nullable(True) for field in self._view.schema])
        """The schema of rows some of which are not found."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of rows that are found."""
        return self._view.schema

    @property
    def names(self) -> list[str]:
        """The columns of the rows."""
        return list(self._view.schema.names)

    @property
    def _cluster(self) -> ClusterClient:
        return self._session.cluster

    # ---- whole keys -------------------------------------------------------------------------------------------------

    def find(self, keys: Any, missing: Missing = "null", insert_missing: bool = False) -> pa.Table:
        """One row for each of `keys`; see the module. Raises `NotFound` for a key without a row if missing="error"."""
        check_missing(missing)
        names = self._info.schema.primary_key
        batches = []
        for batch in iter_record_batches(
            key_rows(keys, names, str(self._info.path)), self._info.schema, columns=names, max_rows=KEYS_AT_ONCE
        ):
            values = _in_parts(lambda part: self._values(part, insert_missing), batch)
            batches.append(self._rows(values, missing, batch))
        schema = self.nullable if missing == "null" else self._view.schema
        return pa.Table.from_batches(batches, schema=schema)

    def _values(self, batch: pa.RecordBatch, insert_missing: bool) -> list[bytes | None]:
        key_bytes, buckets = self._router.route(batch)
        values: list[bytes | None] = [None] * batch.num_rows
        question = Lookups(self._cluster, self._info, insert_missing)
        for item, item_values in self._ask(question, lambda: self._items(batch, key_bytes, buckets)):
            if len(item_values) != len(item.keys):
                raise CorruptData(f"the server returned {len(item_values)} values for {len(item.keys)} keys")
            for position, value in zip(item.positions.tolist(), item_values):
                values[position] = value
        self._cluster.counters.looked_up(len(values), len(values) - values.count(None))
        return values

    def _rows(self, values: list[bytes | None], missing: str, keys: pa.RecordBatch) -> pa.RecordBatch:
        matches = [value for value in values if value is not None]
        rows = self._view.show(self._decoder.decode(*parse_values(matches)))
        if len(matches) == len(values) or missing == "drop":
            return rows if missing != "null" else rows.cast(self.nullable)
        if missing == "error":
            first = values.index(None)
            row = keys.slice(first, 1).to_pylist()[0]
            raise NotFound(
                f"table {self._info.path} has no row for {len(values) - len(matches)} of {len(values)} keys; the first "
                f"is key {first}: {row}",
                ErrorCode.CLIENT_ERROR,
            )
        is_found = np.fromiter((value is not None for value in values), np.bool_, len(values))
        place = array_of(np.cumsum(is_found) - 1, is_found)
        return pa.RecordBatch.from_arrays([column.take(place) for column in rows.columns], schema=self.nullable)

    # ---- prefixes ---------------------------------------------------------------------------------------------------

    def find_prefixes(self, prefixes: Any) -> pa.Table:
        """All rows whose keys begin with one of `prefixes`, in the order of prefixes; `PREFIX_COLUMN` is the first
        column.
        """
        info = self._info
        descriptor = info.descriptor
        encoder = prefix_encoder(descriptor)
        if encoder is None:
            raise InvalidRequest(
                f"table {info.path} has no prefix to look up: its bucket key {list(descriptor.bucket_keys)} must be "
                f"the first, but not all, of its primary key columns {list(descriptor.physical_primary_key)} "
                "(partition keys left out)"
            )
        names = (*descriptor.partition_keys, *descriptor.bucket_keys)
        schema = pa.schema([pa.field(PREFIX_COLUMN, pa.int64(), nullable=False), *self._view.schema])
        batches, offset = [], 0
        for batch in iter_record_batches(
            key_rows(prefixes, names, str(info.path)), info.schema, columns=names, max_rows=KEYS_AT_ONCE
        ):
            try:
                lists = _in_parts(lambda part: self._lists(part, encoder), batch)
            except LimitExceeded as e:
                raise LimitExceeded(f"{e}; or read them by scan(filter=...), which has no such limit", e.code) from None
            self._cluster.counters.looked_up(len(lists), sum(map(bool, lists)))
            rows = self._view.show(self._decoder.decode(*parse_values([value for values in lists for value in values])))
            counts = np.fromiter(map(len, lists), np.int64, len(lists))
            index = array_of(np.repeat(np.arange(len(lists)) + offset, counts))
            batches.append(pa.RecordBatch.from_arrays([index, *rows.columns], schema=schema))
            offset += batch.num_rows
        return pa.Table.from_batches(batches, schema=schema)

    def _lists(self, batch: pa.RecordBatch, encoder: KeyEncoder) -> list[list[bytes]]:
        descriptor = self._info.descriptor
        bucket_encoder = bucket_key_encoder(descriptor)
        key_bytes = encoder.encode(batch)
        bucket_bytes = key_bytes if bucket_encoder is None else bucket_encoder.encode(batch)
        buckets = bucket_ids(bucket_bytes, self._info.bucket_count, descriptor.lake_format)
        lists: list[list[bytes]] = [[]] * batch.num_rows
        items = partial(self._items, batch, key_bytes, buckets)
        for item, item_lists in self._ask(PrefixLookups(self._cluster, self._info), items):
            if len(item_lists) != len(item.keys):
                raise CorruptData(f"the server returned {len(item_lists)} lists for {len(item.keys)} prefixes")
            for position, values in zip(item.positions.tolist(), item_lists):
                lists[position] = values
        return lists

    # ---- both -------------------------------------------------------------------------------------------------------

    def _items(self, batch: pa.RecordBatch, key_bytes: pa.BinaryArray, buckets: npt.NDArray[np.int32]) -> list[KeyItem]:
        """The keys by bucket, in chunks. Keys of partitions that do not exist are omitted."""
        info = self._info
        groups = group_rows(info, batch, buckets)
        order = np.arange(batch.num_rows) if groups.order is None else groups.order
        all_keys = (key_bytes if groups.order is None else key_bytes.take(array_of(order))).to_pylist()
        names = [partition for partition in dict.fromkeys(part[0] for part in groups.parts) if partition is not None]
        partitions = PartitionRouter(self._cluster).existing(info, names) if names else {}
        items = []
        for name, bucket, first, last in groups.parts:
            partition = None if name is None else partitions.get(name)
            if name is not None and partition is None:
                continue
            table_bucket = TableBucket(
                info.table_id, bucket or 0, None if partition is None else partition.partition_id
            )
            for chunk, begin in enumerate(range(first, last, self._chunk)):
                end = min(begin + self._chunk, last)
                items.append(KeyItem(table_bucket, all_keys[begin:end], order[begin:end], chunk))
        return items

    def _ask(self, question: Lookups, items: Callable[[], list[KeyItem]]) -> list[tuple[KeyItem, Any]]:
        """The results for all keys. A partition that was dropped, or dropped and recreated, is resolved again."""
        attempt = 1
        while True:
            try:
                return question.ask(self._cluster, self._info.path, items())
            except NotFound as e:
                if e.code != ErrorCode.PARTITION_NOT_EXISTS or attempt == _ROUTINGS:
                    raise
                self._cluster.forget_table(self._info.path)
            attempt += 1
