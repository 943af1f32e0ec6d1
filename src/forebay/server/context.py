"""What handlers work with: the server's parts, and one call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from forebay.base.clock import Clock
from forebay.base.errors import ForebayError
from forebay.kv.scanner import ScannerManager
from forebay.metadata.table import TableBucket
from forebay.protocol.api import ApiKey, ServerRole
from forebay.protocol.convert import PerBucketAnswer, ServerNode, error_to_wire
from forebay.protocol.messages import Buffer, Message
from forebay.server.catalog import Catalog
from forebay.server.config import ServerConfig
from forebay.server.metadata_store import MetadataStore
from forebay.server.notifier import ProgressNotifier
from forebay.server.replica import BucketReplica
from forebay.server.replicas import ReplicaManager

_LOGGER = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class ServerContext:
    """The parts of a running server. Handlers run on the event loop and leave it for anything that may block."""

    config: ServerConfig
    catalog: Catalog
    store: MetadataStore
    replicas: ReplicaManager
    scanners: ScannerManager
    notifier: ProgressNotifier
    clock: Clock
    coordinator: Executor
    """One thread, for changes of metadata."""
    io: Executor
    """Threads for reads that may touch the disk."""
    nodes: dict[str, tuple[ServerNode, ServerNode]] = field(default_factory=dict)
    """(coordinator, tablet server) as the clients of each listener see them."""

    async def in_coordinator(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a change of metadata, one at a time with all others."""
        return await asyncio.get_running_loop().run_in_executor(self.coordinator, function, *arguments)

    async def in_io(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that reads files."""
        return await asyncio.get_running_loop().run_in_executor(self.io, function, *arguments)

    async def replica(self, bucket: TableBucket) -> BucketReplica:
        """The open replica of a bucket. Raises `Unavailable` (UNKNOWN_TABLE_OR_BUCKET)."""
        opened = self.replicas.opened(bucket)
        if opened is not None:
            return opened
        self.replicas.table_of(bucket)
        return await self.in_io(self.replicas.open, bucket)


@dataclass(frozen=True, slots=True)
class Call:
    """One request: its message, the `records` payloads cut out of it, and who sent it by which door."""

    message: Any
    payloads: Sequence[memoryview]
    api_version: int
    role: ServerRole
    listener: str
    principal: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A response message with payloads that fill its empty `records` fields, in order."""

    message: Message
    payloads: Sequence[Buffer] = ()


Handler = Callable[[ServerContext, Call], "Answer | Message | Awaitable[Answer | Message]"]

HANDLERS: dict[ApiKey, Handler] = {}
"""Every API that this server implements; filled by the modules of forebay.server.handlers."""


def serves(key: ApiKey) -> Callable[[Handler], Handler]:
    """Register a handler for one API."""

    def register(handler: Handler) -> Handler:
        HANDLERS[key] = handler
        return handler

    return register


def put_error(answer: PerBucketAnswer, error: BaseException) -> None:
    """Put an error into the answer for one bucket; a bug of ours is logged with its trace."""
    if not isinstance(error, ForebayError):
        _LOGGER.error("internal error", exc_info=error)
    answer.error_code, answer.error_message = error_to_wire(error)
