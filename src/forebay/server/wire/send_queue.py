"""The send queue of a connection: responses on their way to the client.

A transport copies whatever the peer does not read at once, and asyncio joins the buffers of a frame first. So large
responses are handed over in slices, each when the peer has read the one before, and waiting responses are not copied.
Slices also keep a fast peer from monopolizing the event loop.

Threads: all methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from forebay.base.thread_rules import loop_only
from forebay.protocol.messages import Buffer
from forebay.server.wire._peer import Peer

_SLICE_BYTES = 256 << 10
_ROUND_BYTES = 2 << 20
"""Bytes handed over in one iteration of the event loop."""


@loop_only
class SendQueue:
    """The queue of frames to send."""

    def __init__(self, changed: Callable[[], None], peer: Peer | None = None) -> None:
        """`changed` is called when slices were sent without a call by the transport; `peer` learns whether
        the client reads its responses."""
        self._peer = peer
        self.transport: asyncio.Transport | None = None
        """Set by the owner of the connection. Without it, or while it closes, nothing is sent."""
        self._waiting: deque[Buffer] = deque()
        self._waiting_bytes = 0
        self._unsent_before = 0
        self._is_paused = False
        self._changed = changed
        self._next_round: asyncio.Handle | None = None
        self.drained = asyncio.Event()
        """Set while the peer reads fast enough, and nothing waits."""
        self._note_drained(True)

    def _note_drained(self, is_drained: bool) -> None:
        if self._peer is not None:
            self._peer.is_unread = not is_drained
        (self.drained.set if is_drained else self.drained.clear)()

    @property
    def unsent_bytes(self) -> int:
        """Return how many bytes the peer has not read yet."""
        return 0 if self.transport is None else self._waiting_bytes + self.transport.get_write_buffer_size()

    def has_stalled(self) -> bool:
        """Return whether the peer has read nothing since the last call although data waits for it."""
        before, self._unsent_before = self._unsent_before, self.unsent_bytes
        return not self.drained.is_set() and self._unsent_before >= before > 0

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue a frame. Its buffers must not change from now on."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        size = sum(map(len, buffers))
        if size <= _SLICE_BYTES and not self._waiting:
            _write(transport, buffers)
            return
        self._waiting.extend(buffers)
        self._waiting_bytes += size
        if self._next_round is None:
            self._send_some()

    def pause(self) -> None:
        """Pause: the transport's buffer is full."""
        self._is_paused = True
        self._note_drained(False)

    def resume(self) -> None:
        """Resume: the transport accepts more."""
        self._is_paused = False
        self._send_some()

    def clear(self) -> None:
        """Drop the queue: the connection is closed."""
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._next_round is not None:
            self._next_round.cancel()

    def _send_some(self) -> None:
        self._next_round, sent, transport = None, 0, self.transport
        assert transport is not None
        while self._waiting and not self._is_paused and sent < _ROUND_BYTES and not transport.is_closing():
            sent += self._send_slice(transport)
        if self._waiting:
            self._note_drained(False)
            if not self._is_paused:
                self._next_round = asyncio.get_running_loop().call_soon(self._continue)
        elif not self._is_paused:
            self._note_drained(True)

    def _continue(self) -> None:
        self._send_some()
        self._changed()

    def _send_slice(self, transport: asyncio.Transport) -> int:
        """Hand over a part of a large buffer, or small ones together. Return their length."""
        parts, size = list[Buffer](), 0
        while self._waiting and (left := _SLICE_BYTES - size) > 0:
            first = self._waiting[0]
            if len(first) <= left:
                parts.append(self._waiting.popleft())
                size += len(first)
            elif parts:
                break
            else:
                rest = memoryview(first)
                parts.append(rest[:left])
                self._waiting[0] = rest[left:]
                size = left
        self._waiting_bytes -= size
        _write(transport, parts)
        return size


def _write(transport: asyncio.Transport, parts: Sequence[Buffer]) -> None:
    """Hand over a slice. `writelines` would not do: in Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 it asks for no pause,
    so that a peer that does not read takes all memory (CVE-2024-12254)."""
    transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
