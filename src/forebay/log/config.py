"""Settings of a bucket's log, named after Fluss's options where those exist."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.base.errors import ErrorCode, InvalidRequest

SEGMENT_BYTES_LIMIT = 2**31 - 1
"""Index entries hold positions in 31 bits."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The segment, index and size settings of one log. Raises `InvalidRequest` for invalid values."""

    segment_bytes: int = 1 << 30
    """`log.segment.file-size`: a segment rolls before it would become larger (one larger append may be alone in it)."""

    index_interval_bytes: int = 4096
    """`log.index.interval-size`: at most this many bytes of log between two index entries, rounded up to a batch."""

    batch_bytes_max: int = 100 << 20
    """The largest batch that a client may append. The default is Fluss's limit of a request frame."""

    writer_expiry_ms: int = 7 * 86_400_000
    """`server.writer-id.expiration-time`: a writer inactive for longer is forgotten."""

    writers_max: int = 10_000
    """`server.writer-id.max-per-bucket`: beyond that, those inactive the longest are forgotten."""

    writer_snapshots_retained: int = 3
    """Snapshots of the writers' state to keep: one in use, the others for a damaged newest one and for truncations."""

    scan_bytes: int = 1 << 20
    """How much recovery and `iterate_batches` read at once; a larger batch is read whole."""

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= SEGMENT_BYTES_LIMIT:
            raise _invalid(f"log.segment.file-size is {self.segment_bytes}: choose 1 to {SEGMENT_BYTES_LIMIT} bytes")
        if not 0 < self.batch_bytes_max <= SEGMENT_BYTES_LIMIT:
            raise _invalid(f"the largest batch is {self.batch_bytes_max}: choose 1 to {SEGMENT_BYTES_LIMIT} bytes")
        for name in (
            "index_interval_bytes",
            "writer_expiry_ms",
            "writers_max",
            "writer_snapshots_retained",
            "scan_bytes",
        ):
            if getattr(self, name) <= 0:
                raise _invalid(f"{name} is {getattr(self, name)}: choose a positive number")


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_CONFIG_EXCEPTION)
