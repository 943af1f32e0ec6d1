"""Live scans whose filter fixes keys (forebay.client.reading.key_filter): by lookups, or of the buckets that keys can
be in.

Rule: the rows of a bucket are those of one point in time, as a scan's are. A server answers a few keys of a bucket at
one point in time. For more keys, and where a reader has a position (`log_offsets`), the end of the bucket's log is
compared before and after: if nothing was appended in between, then all lookups saw the rows of that offset; otherwise
the bucket is scanned. Apache Fluss answers all keys of a bucket at once, but its ends of logs say nothing exact about
its rows, so a reader with a position scans there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forebay.api.scan import RowReader, ScanRequest
from forebay.base.errors import CorruptData
from forebay.client.cluster.buckets import bucket_numbers, plan_buckets
from forebay.client.cluster.offsets import LATEST, LOG_END, list_offsets
from forebay.client.cluster.partitions import select_partitions
from forebay.client.lookups.lookup import KeyItem, Lookups
from forebay.client.reading.key_filter import KEYS_MAX, KeyFilter
from forebay.client.reading.live_scan import LiveReader
from forebay.client.views import RowView
from forebay.codec.kv.value_batch import ValueDecoder, parse_values
from forebay.metadata.table import PartitionInfo, TableBucket, TableInfo
from forebay.protocol.api import ApiKey

if TYPE_CHECKING:
    from forebay.client.cluster.cluster import ClusterClient
    from forebay.client.session import Session

AT_ONCE_MAX = 16
"""Keys of a bucket that a Forebay server reads at one point in time."""

_NO_POSITIONS = np.zeros(0, np.int64)

BucketKeys = Mapping[TableBucket, Sequence[bytes]]
"""The keys to look up in each bucket, as they are on the wire."""


@dataclass(frozen=True)
class KeyPlan:
    """The buckets that can have matching rows, out of `of` that a scan without the filter reads.

    `keys` are those to look up in them; None: the buckets are scanned.
    """

    buckets: Sequence[TableBucket]
    of: int
    keys: BucketKeys | None = None

    def __str__(self) -> str:
        """How rows are found: "lookup of 3 keys in 2 of 16 buckets", or "2 of 16 buckets"."""
        where = f"{len(self.buckets)} of {self.of} buckets"
        if self.keys is None:
            return where
        count = sum(map(len, self.keys.values()))
        if not count:
            return "nothing, as no row can match"
        return f"lookup of {count} key{'s' * (count != 1)} in {where}"

    @property
    def is_narrow(self) -> bool:
        """Whether it is of any use: rows are looked up, or buckets left out."""
        return self.keys is not None or len(self.buckets) < self.of


def plan_keys(cluster: ClusterClient, info: TableInfo, request: ScanRequest) -> KeyPlan | None:
    """What to read for `request`; None if its filter fixes neither keys nor buckets nor partitions.

    Sends no request if the filter cannot match. Raises what `plan_buckets` does.
    """
    found = KeyFilter.of(info, request.predicate)
    if found is None:
        return None
    if found.is_empty:
        return KeyPlan((), info.bucket_count, {})
    given = request.buckets
    if not info.is_partitioned or (given and request.partitions is None and _are_exact(given)):
        return choose(found, plan_buckets(cluster, info, request.partitions, given), ())
    partitions = select_partitions(cluster, info, request.partitions)
    numbers = bucket_numbers(info, given)
    return choose(
        found, [TableBucket(info.table_id, n, p.partition_id) for p in partitions for n in numbers], partitions
    )


def _are_exact(buckets: Sequence[Any]) -> bool:
    return all(isinstance(bucket, TableBucket) for bucket in buckets)


def choose(found: KeyFilter, buckets: Sequence[TableBucket], partitions: Sequence[PartitionInfo]) -> KeyPlan:
    """What to read of `buckets`. Of those in unknown partitions it reads all that the keys can be in."""
    known: dict[int | None, PartitionInfo] = {partition.partition_id: partition for partition in partitions}
    covered = {partition.partition_id for partition in found.partitions(partitions)}
    chosen = [
        bucket
        for bucket in buckets
        if (found.numbers is None or bucket.bucket in found.numbers)
        and (bucket.partition_id in covered or bucket.partition_id not in known)
    ]
    if found.keys is None:
        return KeyPlan(chosen, len(buckets))
    of_partition = {i: found.keys_of(known.get(i)) for i in {b.partition_id for b in chosen}}
    keys: dict[TableBucket, list[bytes]] = {}
    for bucket in chosen:
        candidates = of_partition[bucket.partition_id]
        # Several keys may have the same bytes: 0.0 and -0.0 for instance.
        of_bucket = dict.fromkeys(candidates.encoded[i] for i in np.flatnonzero(candidates.buckets == bucket.bucket))
        if of_bucket:
            keys[bucket] = list(of_bucket)
    if sum(map(len, keys.values())) > KEYS_MAX:
        return KeyPlan(list(keys), len(buckets))
    return KeyPlan(list(keys), len(buckets), keys)


# ---- reading --------------------------------------------------------------------------------------------------------


def knows_log_ends(cluster: ClusterClient, info: TableInfo, bucket: TableBucket) -> bool:
    """Whether the end of a bucket's log tells exactly which rows a lookup sees: on Forebay's servers."""
    versions = cluster.channel(cluster.leader(info.path, bucket)).versions
    return versions.offers(ApiKey.OPEN_TABLE_SNAPSHOT)


class RowsByBucket:
    """Rows that were looked up, by bucket, and the buckets whose lookups did not all see the same rows."""

    def __init__(self) -> None:
        self.rows: dict[TableBucket, pa.RecordBatch] = {}
        self.changed: list[TableBucket] = []


def look_up(
    session: Session,
    info: TableInfo,
    view: RowView,
    keys: BucketKeys,
    log_offsets: Mapping[TableBucket, int] | None = None,
    decoder: ValueDecoder | None = None,
) -> RowsByBucket:
    """The rows of `keys` that match the filter of `view`, each bucket as of one point in time.

    With `log_offsets`, which a Forebay server gave, it is that of these offsets. Buckets that have changed since, or
    meanwhile, are in `changed`, without rows.
    """
    cluster, found = session.cluster, RowsByBucket()
    chunk = KEYS_MAX if log_offsets is None else session.settings["client.lookup.max-batch-size"]
    items = [
        KeyItem(bucket, list(of_bucket[first : first + chunk]), _NO_POSITIONS, first // chunk)
        for bucket, of_bucket in keys.items()
        for first in range(0, len(of_bucket), chunk)
    ]
    values: dict[TableBucket, list[bytes]] = {bucket: [] for bucket in keys}
    for item, answer in Lookups(cluster, info).ask(cluster, info.path, items):
        if len(answer) != len(item.keys):
            raise CorruptData(f"the server returned {len(answer)} values for {len(item.keys)} keys")
        values[item.bucket] += [value for value in answer if value is not None]
    if log_offsets is not None:
        ends = list_offsets(cluster, info, list(keys), LOG_END)
        found.changed = [bucket for bucket in keys if ends[bucket] != log_offsets[bucket]]
        for bucket in found.changed:
            del values[bucket]
    decoder = decoder or view.decoder(cluster)
    for bucket, of_rows in values.items():
        if of_rows:
            found.rows[bucket] = view.show(decoder.decode(*parse_values(of_rows)))
    return found


class KeyReader(RowReader):
    """A reader of the rows of some keys of a primary-key table."""

    def __init__(
        self, session: Session, info: TableInfo, request: ScanRequest, keys: BucketKeys, *, with_position: bool
    ) -> None:
        self._session, self._info, self._request, self._keys = session, info, request, keys
        self._view = RowView(info, request.columns, request.predicate)
        self._with_position = with_position
        self.buckets: Sequence[TableBucket] = tuple(keys)
        self._log_offsets: dict[TableBucket, int] = {}
        self._finished: set[TableBucket] = set()
        super().__init__(self._view.schema, request.limit)

    @property
    def remaining(self) -> list[TableBucket]:
        """The buckets whose rows have not all been returned, as `LiveReader.remaining`."""
        return [bucket for bucket in self.buckets if bucket not in self._finished]

    @property
    def log_offsets(self) -> Mapping[TableBucket, int]:
        return dict(self._log_offsets)

    def _described(self) -> str:
        return f" of {self._info.path}, {sum(map(len, self._keys.values()))} keys"

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        if self._left == 0 or not self._keys:
            return
        session, info = self._session, self._info
        ours = knows_log_ends(session.cluster, info, next(iter(self._keys)))
        offsets = None
        if ours and (self._with_position or max(map(len, self._keys.values())) > AT_ONCE_MAX):
            offsets = list_offsets(session.cluster, info, list(self._keys), LATEST)
        rest: Sequence[TableBucket] = list(self._keys)
        if ours or not self._with_position:
            found = look_up(session, info, self._view, self._keys, offsets)
            rest = found.changed
            if offsets is not None:
                self._log_offsets = {bucket: offset for bucket, offset in offsets.items() if bucket not in rest}
            for bucket in self.buckets:
                if bucket in found.rows:
                    yield bucket, found.rows[bucket]
                if bucket not in rest:
                    self._finished.add(bucket)
        if rest:
            request = replace(self._request, partitions=None, buckets=rest, limit=self._left)
            with LiveReader(session, info, request) as scanned:
                for pair in scanned.with_buckets():
                    self._log_offsets |= scanned.log_offsets
                    yield pair
                self._log_offsets |= scanned.log_offsets
                self._finished.update(self.buckets)


def open_reader(session: Session, info: TableInfo, request: ScanRequest, *, with_position: bool) -> RowReader | None:
    """A reader of the rows that `request` asks for, if its filter fixes anything; `with_position`: `log_offsets`.

    None if all buckets have to be scanned.
    """
    plan = plan_keys(session.cluster, info, request)
    if plan is None or not plan.is_narrow:
        return None
    if plan.keys is not None:
        return KeyReader(session, info, request, plan.keys, with_position=with_position)
    return LiveReader(session, info, replace(request, partitions=None, buckets=plan.buckets))
