from collections.abc import Sequence

from forebay.codec.arrow._arrow_message import MessageLayout

class PlainBatch:
    size_bytes: int
    writer_id: int
    magic: int
    last_offset_delta: int
    batch_sequence: int
    has_writer_id: bool

def read_plain(
    requests: list[bytes], layout: MessageLayout, schema_id: int, batch_bytes_max: int, decoded_bytes_max: int
) -> list[PlainBatch | None]: ...
def stamp_together(
    requests: list[bytes], batches: Sequence[PlainBatch], base_offset: int, timestamp_ms: int, leader_epoch: int
) -> tuple[bytes, list[tuple[int, int]], list[tuple[int, int]]]: ...
