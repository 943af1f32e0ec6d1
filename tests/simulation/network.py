"""An in-memory network: connections with delay, cut, partitioned, and peers that vanish silently.

A connection has two pipes. Bytes of a pipe arrive in order, late, in pieces that are independent of how they were sent;
pipes of different connections are independent, so their bytes overtake one another. A *partition* between two processes
holds everything back until it heals (then it arrives, as TCP resends it) or until a connection is reset. A process that
is killed resets its connections; a machine that loses power sends nothing, and a peer that writes to it gets a reset
once it is back.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from forebay.protocol.api import BULK_REQUESTS
from tests.simulation.scheduler import Process, Scheduler, SimEvent, SimLoop, Stop

HIGH_WATER = 64 << 10
SEND_BUFFER = 256 << 10
_WRITES = tuple(int(key).to_bytes(2, "big") for key in BULK_REQUESTS)
"""How the frames of writes begin, behind their length."""


class _Pipe:
    """One direction of a connection."""

    def __init__(self) -> None:
        self.sent: deque[tuple[float, bytes | None]] = deque()
        """On its way: (when it may arrive, bytes or None for the end)."""
        self.held = 0
        self.last = 0.0
        self.arrived = bytearray()
        self.ended = False


class Connection:
    def __init__(self, network: Network, client: Process, server: Process) -> None:
        self.network, self.client, self.server = network, client, server
        self.to_server, self.to_client = _Pipe(), _Pipe()
        self.is_reset = False
        self.silent = False
        self.loses_answer = False
        """Whether what the server says next on this connection is lost."""
        self.socket = ClientSocket(self)
        self.transport: SimTransport | None = None
        network.numbers += 1
        self.number = network.numbers

    @property
    def blocked(self) -> bool:
        return self.silent or (self.client.name, self.server.name) in self.network.partitions

    def send(self, pipe: _Pipe, data: bytes | None) -> None:
        network = self.network
        if network.loses(self, pipe, data):
            network.sched.at(network.sched.now, self.reset)
            return
        if data is not None:
            pipe.held += len(data)
        latency = network.latency()
        pipe.last = max(pipe.last, network.sched.now + latency)
        pipe.sent.append((pipe.last, data))
        network.sched.at(pipe.last, lambda: self.deliver(pipe))

    def deliver(self, pipe: _Pipe) -> None:
        if self.is_reset or self.blocked:
            return
        news = False
        while pipe.sent and pipe.sent[0][0] <= self.network.sched.now:
            data = pipe.sent.popleft()[1]
            if data is None:
                pipe.ended = True
            else:
                pipe.arrived += data
            news = True
        if news:
            if pipe is self.to_client:
                self.socket.news.set()
            elif self.transport is not None:
                self.transport.arrived()

    def accept(self, loop: SimLoop, factory: Callable[[], Any]) -> None:
        if not self.is_reset:
            self.transport = SimTransport(self, loop, factory())

    def reset(self) -> None:
        """End it for both sides; what is on its way is lost."""
        if self.is_reset:
            return
        self.is_reset = True
        self.network.drop(self)
        self.socket.news.set()
        if self.transport is not None:
            self.transport.lost(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))


class ClientSocket:
    """What `forebay.client.cluster.rpc` uses of a socket."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sched = connection.network.sched
        self._timeout: float | None = None
        self._closed = False
        self._shut = False
        self.news = SimEvent(self._sched)
        self.room = SimEvent(self._sched)

    def getsockname(self) -> tuple[str, int]:
        return "client", 0

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def setsockopt(self, *_: Any) -> None:
        pass

    def sendall(self, data: Any) -> None:
        left = memoryview(data).cast("B")
        while len(left):
            left = left[self.sendmsg([left]) :]

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        network, connection = self._connection.network, self._connection
        self._check()
        self._sched.maybe_yield()
        self._check()
        pipe = connection.to_server
        while pipe.held >= SEND_BUFFER:
            self.room.clear()
            if not self.room.wait(self._timeout or 30.0):
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            self._check()
        data = b"".join(bytes(buffer) for buffer in buffers)
        if len(data) > 1 and network.rng.random() < 0.1:
            data = data[: network.rng.randint(1, len(data))]
        connection.send(pipe, data)
        return len(data)

    def _check(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self._connection.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if self._shut:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    def recv_into(self, room: Any) -> int:
        connection, pipe = self._connection, self._connection.to_client
        while True:
            if self._closed:
                raise OSError(errno.EBADF, "Bad file descriptor")
            if self._shut:
                return 0
            if pipe.arrived:
                most = len(room)
                if connection.network.rng.random() < 0.1:
                    most = connection.network.rng.randint(1, most)
                count = min(most, len(pipe.arrived))
                room[:count] = pipe.arrived[:count]
                del pipe.arrived[:count]
                pipe.held -= count
                if connection.transport is not None:
                    connection.transport.taken()
                return count
            if connection.is_reset:
                raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            if pipe.ended:
                return 0
            self.news.clear()
            if not self.news.wait(self._timeout):
                raise TimeoutError("timed out")

    def shutdown(self, _how: int) -> None:
        if self._connection.is_reset or self._closed:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        self._shut = True
        self.news.set()
        self._connection.send(self._connection.to_server, None)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.news.set()
            if not self._shut and not self._connection.is_reset:
                self._connection.send(self._connection.to_server, None)


class SimTransport(asyncio.Transport):
    """The server's side of a connection."""

    def __init__(self, connection: Connection, loop: SimLoop, protocol: Any) -> None:
        super().__init__()
        self._connection, self._loop, self._protocol = connection, loop, protocol
        self._reading = True
        self._closing = False
        self._finished = False
        self._writing_paused = False
        self._eof_told = False
        self._scheduled = False
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self.arrived)

    def arrived(self) -> None:
        if not self._scheduled and not self._finished:
            self._scheduled = True
            self._loop.call_soon(self._feed)

    def _feed(self) -> None:
        self._scheduled = False
        pipe = self._connection.to_server
        if self._closing or self._finished or not self._reading:
            return
        if pipe.arrived:
            buffer = self._protocol.get_buffer(-1)
            count = min(len(buffer), len(pipe.arrived))
            rng = self._connection.network.rng
            if rng.random() < 0.1:
                count = rng.randint(1, count)
            buffer[:count] = pipe.arrived[:count]
            del pipe.arrived[:count]
            pipe.held -= count
            self._connection.socket.room.set()
            self._protocol.buffer_updated(count)
            self.arrived()
        elif pipe.ended and not self._eof_told:
            self._eof_told = True
            if not self._protocol.eof_received():
                self.close()

    def lost(self, error: Exception | None) -> None:
        if not self._finished:
            self._finished = self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, error)

    # asyncio's interface

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.9", 50000) if name == "peername" else default

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.arrived()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self._connection.to_client.held

    def write(self, data: Any) -> None:
        if self._finished or self._closing or self._connection.is_reset:
            return
        self._connection.send(self._connection.to_client, bytes(data))
        if self._connection.to_client.held > HIGH_WATER and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def taken(self) -> None:
        if self._writing_paused and self._connection.to_client.held < HIGH_WATER // 4:
            self._writing_paused = False
            self._loop.call_soon(self._protocol.resume_writing)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._connection.send(self._connection.to_client, None)
            self._connection.network.drop(self._connection)
            if not self._finished:
                self._finished = True
                self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        if not self._connection.is_reset:
            self._closing = True
            self._connection.reset()


class SimSocket:
    """A bound socket of a server."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self._network, self.host, self.port = network, host, port

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def close(self) -> None:
        self._network.listeners.pop(self.port, None)

    def setblocking(self, _flag: bool) -> None:
        pass


class _Server:
    def __init__(self, network: Network, port: int) -> None:
        self._network, self._port = network, port

    def close(self) -> None:
        self._network.listeners.pop(self._port, None)

    def is_serving(self) -> bool:
        return self._port in self._network.listeners

    async def wait_closed(self) -> None:
        return None


class Network:
    def __init__(self, sched: Scheduler) -> None:
        self.sched = sched
        self.rng = sched.rng
        self.listeners: dict[int, tuple[SimLoop, Process, Callable[[], Any]]] = {}
        self.connections: dict[int, Connection] = {}
        self.partitions: set[tuple[str, str]] = set()
        self.numbers = 0
        self.slow = 1.0
        self.lose_in = 0
        """How many messages from now one is lost, and its connection with it."""
        self.loses_answer_of_write = False
        """Whether the answer to the next write is lost: the server has done what the client does not know of."""
        self.down: set[str] = set()
        """Machines that are switched off: who connects to them hears nothing."""

    def latency(self) -> float:
        rng = self.rng
        seconds = rng.random() * 0.002 * self.slow
        return seconds + (rng.random() * 0.2 if rng.random() < 0.02 else 0.0)

    def loses(self, connection: Connection, pipe: _Pipe, data: bytes | None) -> bool:
        """Whether this message is one of those that are to be lost."""
        if pipe is connection.to_client and connection.loses_answer:
            return True
        if self.loses_answer_of_write and pipe is connection.to_server and data and data[4:6] in _WRITES:
            self.loses_answer_of_write = False
            connection.loses_answer = True
        if self.lose_in > 0:
            self.lose_in -= 1
            return not self.lose_in
        return False

    def bind(self, listener: Any) -> SimSocket:
        return SimSocket(self, listener.host, listener.port)

    def listen(self, loop: SimLoop, process: Process, sock: SimSocket, factory: Callable[[], Any]) -> _Server:
        self.listeners[sock.port] = (loop, process, factory)
        return _Server(self, sock.port)

    def dialler(self, client: Process) -> Callable[[Any, float], ClientSocket]:
        """The `dial` of the clients in a process."""

        def dial(address: Any, seconds: float) -> ClientSocket:
            self.sched.sleep(self.latency() * 2)
            listening = self.listeners.get(address.port)
            server = "server" if listening is None else listening[1].name
            if (client.name, server) in self.partitions or (listening is None and server in self.down):
                deadline = self.sched.now + seconds
                while self.sched.now < deadline:
                    self.sched.sleep(min(0.5, max(deadline - self.sched.now, 0.001)))
                    if (client.name, server) not in self.partitions and server not in self.down:
                        break
                else:
                    raise TimeoutError("timed out")
                listening = self.listeners.get(address.port)
            if listening is None or listening[1].dead:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            loop, process, factory = listening
            connection = Connection(self, client, process)
            self.connections[connection.number] = connection
            loop.call_soon(lambda: connection.accept(loop, factory))
            return connection.socket

        return dial

    def drop(self, connection: Connection) -> None:
        self.connections.pop(connection.number, None)

    # ---- faults

    def cut(self, connection: Connection) -> None:
        connection.reset()

    def partition(self, client: str, server: str) -> None:
        self.partitions.add((client, server))

    def heal(self) -> None:
        self.partitions.clear()
        for connection in list(self.connections.values()):
            connection.deliver(connection.to_server)
            connection.deliver(connection.to_client)

    def process_ended(self, process: Process, silently: bool) -> None:
        """A process was killed, or its machine lost power: then its peers hear nothing until `reset_silent`."""
        for port, listening in list(self.listeners.items()):
            if listening[1] is process:
                del self.listeners[port]
        for connection in list(self.connections.values()):
            if process in (connection.client, connection.server):
                if silently:
                    connection.silent = True
                else:
                    self.sched.at(self.sched.now + self.latency(), connection.reset)

    def reset_silent(self) -> None:
        for connection in list(self.connections.values()):
            if connection.silent and connection.server.dead:
                connection.reset()


__all__ = ["ClientSocket", "Connection", "Network", "SimSocket", "SimTransport", "Stop"]
