"""Statements of others, in processes of their own: what one of them takes or breaks is not this process's.

A few processes are started before they are needed, and used again. Each statement has limits of memory and time: the
system refuses a process more memory (`forebay.base.host.limit_memory`), and one that reaches a limit here is ended. A
process that has kept memory is not used again.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from forebay.api.sql_result import Result
from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import (
    ForebayError,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    Unavailable,
)
from forebay.base.host import anonymous_bytes, reserved_bytes
from forebay.base.quantity import format_bytes
from forebay.query.frames import CANCELLED, PARAMETERS, ArrivingStream, Kind, leaving_parts, receive, send
from forebay.query.run import Description, SqlDatabase
from forebay.query.statement import Namespace

_WATCH_SECONDS = 0.05
_STOP_SECONDS = 2.0
"""So long a statement that is stopped may take to end, before its process is ended."""

_COMMIT_SECONDS = 10.0
"""So long what is being committed may take when all is closed."""

_DESCRIBE_SECONDS = 60.0
_IDLE_MAX = 3
_KEPT_BYTES = 100 << 20
_DUCKDB_SHARE = 0.75
"""Of the memory of a statement; the rest is for reading tables."""


@dataclass(frozen=True)
class StatementLimits:
    """Limits of statements, and the options that raise them, for errors."""

    processes_max: int
    memory_bytes: int = 1 << 30
    seconds: float = 60.0
    wait_seconds: float = 30.0
    """So long a statement waits for a process."""
    memory_option: str = "--query-memory"
    time_option: str = "--query-timeout"

    @property
    def too_much(self) -> str:
        """The error of a statement that needs more memory."""
        return (
            f"the statement needs more than its memory of {format_bytes(self.memory_bytes)} ({self.memory_option}) and "
            "was ended: ask for less at a time, or raise that"
        )

    def too_long(self, seconds: float) -> str:
        """The error of a statement that takes more time."""
        return f"the statement has taken more than {seconds:g} seconds ({self.time_option}) and was ended"


class _Process:
    """One process. `stop` and `end` are for any thread."""

    def __init__(self) -> None:
        environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}  # others reserve memory, which counts
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "forebay.query.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment,
        )  # fmt: skip
        self._sending = threads.lock()
        self._why: ForebayError | None = None
        self._taken: int | None = None
        self._reserved: int | None = None
        self.is_ready = self.is_committing = False
        self.end_at = float("inf")
        self.why_late: ForebayError | None = None

    def wait_until_ready(self) -> None:
        if not self.is_ready:
            self.receive()
            self._taken, self._reserved = anonymous_bytes(self._child.pid), reserved_bytes(self._child.pid)
            self.is_ready = True

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        with suppress(OSError), self._sending:  # of one that has ended, which `receive` reports
            assert self._child.stdin is not None
            send(self._child.stdin, kind, payload)

    def receive(self) -> tuple[Kind, bytes | bytearray]:
        """The next frame. Raises the error with which the process was ended."""
        assert self._child.stdout is not None
        frame = receive(self._child.stdout)
        if frame is None:
            self._raise_ended()
        return frame

    def _raise_ended(self) -> NoReturn:
        code = self._child.wait()
        if self.is_committing:
            raise OutcomeUnknown(
                "the process of the statement ended while it committed: look whether its rows are there"
            ) from self._why
        if self._why is not None:
            raise self._why
        how = f"by signal {-code}, as the system does when its memory is used up" if code < 0 else f"with code {code}"
        raise Unavailable(f"the process of the statement ended {how}: the log may say why")

    def grown_bytes(self) -> int:
        """How much more memory it takes than when it was started."""
        return _grown(self._taken, anonymous_bytes(self._child.pid))

    def lost_bytes(self) -> int:
        """How much more memory it has reserved than when it was started: what later statements cannot have."""
        return _grown(self._reserved, reserved_bytes(self._child.pid))

    def end(self, why: ForebayError | None = None) -> None:
        """End it, whatever it does. Idempotent."""
        self._why = self._why or why
        self._child.kill()

    def forget(self) -> None:
        """Release what is left of an ended one."""
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


class StatementProcesses:
    """The processes of an endpoint. Thread-safe."""

    def __init__(self, limits: StatementLimits, clock: Clock = SYSTEM_CLOCK) -> None:
        self.limits, self._clock = limits, clock
        self._changed = threads.condition()
        self._idle, self._busy = list[_Process](), list[_Process]()
        self._closed = threads.event()
        self._watcher: threads.Thread | None = None

    def start(self) -> None:
        """Start a process, unless one waits for a statement already."""
        with self._changed:
            if not self._idle and len(self._busy) < self.limits.processes_max and not self._closed.is_set():
                self._idle.insert(0, _Process())

    def execution(
        self,
        database: SqlDatabase,
        data: Mapping[str, pa.RecordBatchReader] | None = None,
        settings: Mapping[str, str] | None = None,
        namespace: Namespace = (None, None),
    ) -> IsolatedExecution:
        """Return an execution as `SqlDatabase.execution` does. Its memory is limited."""
        memory = {"memory_limit": f"{int(self.limits.memory_bytes * _DUCKDB_SHARE) // 1024}KiB"}
        request = {
            "database": database.described,
            "settings": {**memory, **(settings or {})},
            "namespace": namespace,
            "memory_bytes": self.limits.memory_bytes,
            "too_much": self.limits.too_much,
        }
        return IsolatedExecution(self, request, data or {})

    def take(self) -> _Process:
        """A process for one statement. Raises `Unavailable` if none gets free in time."""
        with self._changed:
            is_free = self._changed.wait_for(
                lambda: self._closed.is_set() or bool(self._idle) or len(self._busy) < self.limits.processes_max,
                self.limits.wait_seconds,
            )
            if self._closed.is_set():
                raise Unavailable("the endpoint is stopping")
            if not is_free:
                raise Unavailable(
                    f"{self.limits.processes_max} statements are running, and none has ended in "
                    f"{self.limits.wait_seconds:g} seconds: try later"
                )
            process = self._idle.pop() if self._idle else _Process()
            self._busy.append(process)
            if self._watcher is None:
                self._watcher = threads.thread(self._watch, name="forebay-query-limits")
                self._watcher.start()
            self._changed.notify_all()
        self.start()  # the next one
        return process

    def limit(self, process: _Process, seconds: float) -> None:
        """Have the process be ended if its statement takes longer."""
        process.why_late = LimitExceeded(self.limits.too_long(seconds))
        process.end_at = self._clock.monotonic() + seconds

    def give_back(self, process: _Process, *, is_usable: bool) -> None:
        """Have a process that ran a statement run another one; end it if it is not usable, or has kept memory."""
        is_usable = is_usable and process.grown_bytes() < _KEPT_BYTES
        is_usable = is_usable and process.lost_bytes() < self.limits.memory_bytes // 2
        with self._changed:
            process.is_committing, process.end_at = False, float("inf")
            self._busy.remove(process)
            is_kept = is_usable and not self._closed.is_set() and len(self._idle) < _IDLE_MAX
            if is_kept:
                self._idle.append(process)
            self._changed.notify_all()
        if not is_kept:
            process.end()
            process.forget()
            self.start()

    def stop(self, process: _Process) -> None:
        """Have the statement of a process end, or the process if it does not end soon."""
        process.end_at = min(process.end_at, self._clock.monotonic() + _STOP_SECONDS)
        process.why_late = InvalidRequest(CANCELLED)
        process.send(Kind.STOP)

    def close(self) -> None:
        """End all processes; what is being committed gets some time. Idempotent."""
        why = Unavailable("the endpoint is stopping")
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
            for process in [each for each in self._busy if not each.is_committing]:
                process.end(why)
            self._changed.wait_for(lambda: not self._busy, _COMMIT_SECONDS)
            idle, self._idle = self._idle, []
            for process in [*self._busy, *idle]:
                process.end(why)
        for process in idle:
            process.forget()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        """End the processes that have reached a limit."""
        while not self._closed.is_set():
            with self._changed:
                self._changed.wait_for(lambda: bool(self._busy) or self._closed.is_set())
                for process in self._busy:
                    if process.grown_bytes() > self.limits.memory_bytes:
                        process.end(LimitExceeded(self.limits.too_much))
                    elif process.end_at < self._clock.monotonic() and not process.is_committing:
                        process.end(process.why_late)
            self._closed.wait(_WATCH_SECONDS)


class IsolatedExecution:
    """One statement in another process: `run` or `describe` it once, as a `forebay.query.run.Execution`.

    `cancel` is for other threads.
    """

    def __init__(
        self, processes: StatementProcesses, request: dict[str, Any], inputs: Mapping[str, pa.RecordBatchReader]
    ) -> None:
        self._processes, self._request, self._inputs = processes, request, dict(inputs)
        self._lock = threads.lock()
        self._process: _Process | None = None
        self._has_ended = self._is_usable = self._is_cancelled = False

    def run(
        self,
        text: str,
        parameters: Sequence[Any] | Mapping[str, Any] | pa.RecordBatchReader = (),
        *,
        insert: bool = True,
    ) -> Result:
        """Its rows, as `Execution.run` returns them. Raises `LimitExceeded` where a limit is reached."""
        if isinstance(parameters, pa.RecordBatchReader):
            self._inputs[PARAMETERS], parameters = parameters, ()
        with ExitStack() as stack:
            stack.callback(self.close)
            head = self._begin(text, parameters, describe=False, insert=insert)
            rows = pa.ipc.open_stream(pa.PythonFile(ArrivingStream(self._next_part), "r"))
            result = Result(rows, _nothing, _nothing)
            result.is_one_instant = head["is_one_instant"]
            result._close = stack.pop_all().close
            return result
        raise AssertionError("unreachable")

    def describe(self, text: str, parameters: Sequence[Any] = ()) -> Description:
        """Its columns and parameters, as `Execution.describe` returns them."""
        try:
            head = self._begin(text, parameters, describe=True, insert=True)
            schemas = [pa.ipc.read_schema(pa.py_buffer(self._next_part() or b"")) for _ in range(2)]
            while self._next_part() is not None:
                pass
            return Description(schemas[0], schemas[1], head["is_insert"])
        finally:
            self.close()

    def cancel(self) -> None:
        """Have `run`, and whatever reads its rows, fail. An INSERT that is being committed is not stopped."""
        with self._lock:
            self._is_cancelled = True
            if self._process is not None:
                self._processes.stop(self._process)

    def close(self) -> None:
        """Release its process. Idempotent."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        try:
            if not self._has_ended:
                self._processes.stop(process)
            while not self._has_ended:
                with suppress(ForebayError):
                    self._received(process)
        finally:
            self._processes.give_back(process, is_usable=self._is_usable)

    def _begin(self, text: str, parameters: Any, *, describe: bool, insert: bool) -> dict[str, Any]:
        request = {
            **self._request,
            "text": text,
            "parameters": parameters,
            "inputs": list(self._inputs),
            "describe": describe,
            "insert": insert,
        }
        parts = {name: leaving_parts(reader.schema, reader) for name, reader in self._inputs.items()}
        process = self._processes.take()
        with self._lock:
            self._process = process
        process.wait_until_ready()
        with self._lock:  # `cancel` comes before, or finds a process that has the statement
            if self._is_cancelled:
                self._has_ended = self._is_usable = True
                raise InvalidRequest(CANCELLED)
            self._processes.limit(process, _DESCRIBE_SECONDS if describe else self._processes.limits.seconds)
            process.send(Kind.RUN, pickle.dumps(request))
        while True:
            kind, payload = self._received(process)
            if kind == Kind.HEAD:
                head: dict[str, Any] = json.loads(payload)
                return head
            if kind == Kind.COMMITTING:
                process.is_committing = True
            elif kind == Kind.WANT:
                part = next(parts[payload.decode()], None)
                process.send(Kind.ROWS_END if part is None else Kind.ROWS, part or b"")

    def _next_part(self) -> bytes | bytearray | None:
        """The next frame of rows; None at the end."""
        process = self._process
        if process is None or self._has_ended:
            return None
        kind, payload = self._received(process)
        return payload if kind == Kind.DATA else None

    def _received(self, process: _Process) -> tuple[Kind, bytes | bytearray]:
        """The next frame; END and errors are noted."""
        try:
            kind, payload = process.receive()
        except BaseException:
            self._has_ended = True
            raise
        if kind == Kind.END:
            self._has_ended = self._is_usable = True
        elif kind == Kind.FAILED:
            report = json.loads(payload)
            self._has_ended = self._is_usable = True
            raise _KINDS.get(report["kind"], InternalError)(report["message"], report["code"])
        return kind, payload


def _grown(before: int | None, now: int | None) -> int:
    return 0 if before is None or now is None else now - before


_KINDS = {kind.kind: kind for kind in ForebayError.__subclasses__()}


def _nothing() -> None:
    return
