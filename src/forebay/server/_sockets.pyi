import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

from forebay.base.ambient import Clock
from forebay.protocol._short import ShortRequest
from forebay.server.replica import BucketReplica

AVAILABLE: bool

class Peer:
    is_plain: bool
    is_queued: bool
    is_held: bool
    is_blocked: bool
    is_stopping: bool
    is_refused: bool
    is_unread: bool
    has_eof: bool
    open_bytes: int
    open_bytes_max: int
    open_requests_max: int
    open: dict[int, Any]
    last_active: float
    def offer_short(self, api_key: int, version_min: int, version_max: int) -> None: ...

class Group:
    replica: BucketReplica
    has_kv: bool
    lookups: list[ShortRequest]
    writes: list[ShortRequest]
    bytes: int
    left: int
    def __init__(self, replica: BucketReplica, has_kv: bool) -> None: ...

class ShortGroups:
    loop: asyncio.AbstractEventLoop
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def may_begin(self) -> bool: ...
    def may_begin_round(self) -> bool: ...
    def begin_group(self, bucket: tuple[int, int, int | None]) -> Group | None: ...
    def serve_groups(self, groups: list[Group]) -> None: ...
    def take(self, peer: Peer, request: ShortRequest) -> bool: ...
    def flush(self) -> None: ...
    def answer(self, request: ShortRequest, frame: bytes) -> None: ...
    def answer_written(
        self, requests: list[ShortRequest], results: Sequence[Any]
    ) -> list[tuple[ShortRequest, Any]]: ...

class Socket(asyncio.Transport):
    fd: int

class Sockets:
    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, short: ShortGroups) -> None: ...
    def __len__(self) -> int: ...
    @property
    def is_listening(self) -> bool: ...
    def listen(self, sock: socket.socket, factory: Callable[[], asyncio.BufferedProtocol]) -> None: ...
    def stop_listening(self) -> None: ...
    async def close(self) -> None: ...
