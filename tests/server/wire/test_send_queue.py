"""SendQueue responses of a connection, sent in slices as the peer reads them."""

import asyncio
from typing import Any

import pytest

from forebay.server.wire.send_queue import SendQueue
from tests.patience import PATIENCE

HIGH_WATER = 64 << 10


class Peer(asyncio.Transport):
    """A transport whose peer takes `takes` bytes at once, and more when it is told to."""

    def __init__(self, queue: SendQueue, takes: int) -> None:
        self._send_queue = queue
        self.takes = takes
        self.taken = bytearray()
        self.buffer = bytearray()
        self.most_buffered = 0
        self.calls = 0
        self.closing = False
        self._is_paused = False

    def write(self, data: Any) -> None:
        self.calls += 1
        self.buffer += data
        self._move()
        self.most_buffered = max(self.most_buffered, len(self.buffer))
        if len(self.buffer) > HIGH_WATER and not self._is_paused:
            self._is_paused = True
            self._send_queue.pause()

    def read(self, size: int) -> None:
        """The peer takes so many bytes more."""
        self.takes += size
        self._move()
        while self._is_paused and not self.buffer:
            self._is_paused = False
            self._send_queue.resume()
            self._move()

    def _move(self) -> None:
        count = min(self.takes, len(self.buffer))
        self.taken += self.buffer[:count]
        del self.buffer[:count]
        self.takes -= count

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def is_closing(self) -> bool:
        return self.closing


def connected(takes: int, changed: Any = id) -> tuple[SendQueue, Peer]:
    queue = SendQueue(lambda: changed(queue))
    peer = Peer(queue, takes)
    queue.transport = peer
    return queue, peer


def pattern(size: int, seed: int = 1) -> bytes:
    return bytes((i * i + seed) % 251 for i in range(1000)) * (size // 1000)


def test_a_large_answer_is_handed_over_piece_by_piece_and_arrives_whole_and_in_order():
    async def run() -> None:
        queue, peer = connected(takes=0)
        large, small = pattern(3_000_000), pattern(1000, seed=7)
        queue.send([b"head", large])
        queue.send([small, b"tail"])
        assert queue.unsent_bytes == 4 + len(large) + len(small) + 4
        assert not queue.drained.is_set()
        while queue.unsent_bytes:
            peer.read(100_000)
        assert bytes(peer.taken) == b"head" + large + small + b"tail"
        assert peer.most_buffered < 500_000
        assert queue.drained.is_set()

    asyncio.run(run())


def test_many_small_buffers_are_sent_together():
    async def run() -> None:
        queue, peer = connected(takes=1 << 30)
        buffers = [b"%06d" % number for number in range(100_000)]
        queue.send(buffers)
        await asyncio.sleep(0)
        assert bytes(peer.taken) == b"".join(buffers)
        assert peer.calls < 10

    asyncio.run(run())


def test_a_peer_that_takes_everything_at_once_leaves_the_loop_to_others():
    async def run() -> None:
        sizes: list[int] = []
        queue, peer = connected(1 << 30, lambda each: sizes.append(each.unsent_bytes))
        large = pattern(10_000_000)
        queue.send([large])
        first = len(peer.taken)
        assert 0 < first < 5_000_000
        assert not queue.drained.is_set()
        await asyncio.wait_for(queue.drained.wait(), PATIENCE)
        assert bytes(peer.taken) == large
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] == 0

    asyncio.run(run())


def test_what_is_sent_meanwhile_waits_its_turn():
    async def run() -> None:
        queue, peer = connected(1 << 30)
        large = pattern(10_000_000)
        queue.send([large])
        queue.send([b"behind"])
        assert not peer.taken.endswith(b"behind")
        await asyncio.wait_for(queue.drained.wait(), PATIENCE)
        assert bytes(peer.taken) == large + b"behind"

    asyncio.run(run())


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_nothing_is_sent_where_there_is_no_connection_any_more(size):
    async def run() -> None:
        queue, peer = connected(1 << 30)
        peer.closing = True
        queue.send([bytes(size)])
        assert not peer.calls
        assert queue.unsent_bytes == 0
        unconnected = SendQueue(lambda: None)
        unconnected.send([bytes(size)])
        assert unconnected.unsent_bytes == 0

    asyncio.run(run())


def test_a_peer_that_takes_nothing_between_two_looks_has_stalled():
    async def run() -> None:
        queue, peer = connected(takes=0)
        assert not queue.has_stalled()
        queue.send([pattern(3_000_000)])
        assert not queue.has_stalled()
        assert queue.has_stalled()
        peer.read(1000)
        assert not queue.has_stalled()
        peer.read(3_000_000)
        assert not queue.has_stalled()
        await asyncio.wait_for(queue.drained.wait(), PATIENCE)
        assert not queue.has_stalled()
        assert not queue.has_stalled()

    asyncio.run(run())


def test_what_waits_is_gone_with_the_connection():
    async def run() -> None:
        told: list[Any] = []
        queue, peer = connected(1 << 30, told.append)
        queue.send([pattern(10_000_000)])
        queue.clear()
        sent, told_before = len(peer.taken), len(told)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (len(peer.taken), len(told)) == (sent, told_before)
        assert queue.unsent_bytes == 0

    asyncio.run(run())
