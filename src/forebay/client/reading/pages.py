"""The pages of ScanKv: what is requested of a server, and how its responses are decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from forebay.client.row_view import RowView
from forebay.codec.arrow.arrow_message import message_codec
from forebay.codec.kv.value_batch import parse_value_batch
from forebay.protocol import fluss_pb2 as pb

if TYPE_CHECKING:
    from forebay.client.cluster.cluster import ClusterClient
    from forebay.client.settings import Settings
    from forebay.protocol.api import ServerNode


class Pages:
    """Requests the pages of ScanKv and decodes them, with the columns `read` of a view.

    If less than whole rows is read, a server that supports it decodes the rows and sends these columns in Arrow,
    without rows that the filter excludes. Whole rows are decoded here: that takes as long, and there are more clients
    than servers.
    """

    def __init__(self, view: RowView, cluster: ClusterClient) -> None:
        self._view = view
        self._cluster = cluster
        self._decoder = view.decoder(cluster)
        self._request = arrow_rows(view, view.positions, cluster.settings)

    def arrow_request(self, node: ServerNode) -> pb.PbArrowRows | None:
        """The columns and the filter to request of a server in Arrow; None: whole rows, as they are stored."""
        is_less = self._view.is_projected or self._view.predicate is not None
        return self._request if is_less and self._cluster.channel(node).versions.scans_in_arrow else None

    def page(self, response: pb.ScanKvResponse, payloads: Sequence[memoryview]) -> Page:
        """The page in a response. Raises `CorruptData`."""
        if not payloads:
            return Page(0, self._nothing)
        data = payloads[0]
        if not response.HasField("arrow_rows"):
            schema_ids, rows = parse_value_batch(data)
            return Page(len(rows), lambda: self._decoder.decode(schema_ids, rows))
        count = response.arrow_rows
        return Page(count, lambda: message_codec(self._view.read).decode(data, 0, len(data), count))

    def _nothing(self) -> pa.RecordBatch:
        return self._decoder.schema.empty_table().to_batches()[0]


class Page(NamedTuple):
    """A page of rows: their number, and a function that decodes them to the storage schema."""

    rows: int
    decode: Callable[[], pa.RecordBatch]


_COMPRESSIONS = {"none": 0, "lz4": 1, "zstd": 2}


def arrow_rows(view: RowView, positions: Sequence[int], settings: Settings) -> pb.PbArrowRows:
    """The request for the columns at `positions`, without rows that the filter of `view` excludes."""
    request = pb.PbArrowRows(
        schema_id=view.info.schema_id, projected_fields=positions, filter_predicate=view.wire_filter()
    )
    compression = _COMPRESSIONS[settings["client.scanner.kv.compression"]]
    if compression:
        request.compression = compression
    return request
