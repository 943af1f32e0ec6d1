from typing import Any

from forebay.protocol.api import Api

OPEN_REQUEST_BYTES: int

class Peer:
    is_plain: bool
    is_unread: bool
    state: int
    reading: int
    open_bytes: int
    open_bytes_max: int
    open_requests_max: int
    open: dict[int, Any]
    last_active: float
    @property
    def is_open(self) -> bool: ...
    def balance(self) -> None: ...
    def offer_short(self, api: Api, version_min: int, version_max: int) -> None: ...
