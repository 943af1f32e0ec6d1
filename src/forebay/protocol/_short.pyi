from typing import Any

from typing_extensions import Buffer

FRAME_BYTES_MAX: int
KEYS_MAX: int

class ShortRequest:
    api_key: int
    api_version: int
    request_id: int
    acks: int
    timeout_ms: int
    end: int
    bucket: tuple[int, int, int | None]
    records: bytes
    keys: list[bytes]
    targets: tuple[int, ...]
    client: Any

def decode(buffer: Buffer, start: int, end: int) -> ShortRequest | None: ...
def encode_written(request: ShortRequest, offset: int) -> bytes: ...
def encode_values(request: ShortRequest, values: list[bytes | None], first: int = 0, skipped: int = 0) -> bytes: ...
def decode_values(buffer: Buffer) -> tuple[int, int | None, list[bytes | None]] | None: ...
