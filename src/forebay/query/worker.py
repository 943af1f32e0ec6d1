"""A process that runs statements of others, one after the other, with a hard limit of memory.

`forebay.query.isolated` starts it and talks to it by its standard input and output (`forebay.query.frames`). It opens a
connection to the cluster of its own, with what it is sent. It ends with the process that started it.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import queue
import signal
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

import forebay.unionread.scan  # noqa: F401 - what a statement needs is loaded before the first one comes
from forebay.base import threads
from forebay.base.errors import ForebayError, InternalError, InvalidRequest, LimitExceeded
from forebay.base.host import anonymous_bytes, limit_memory, return_free_memory
from forebay.query.frames import CANCELLED, PARAMETERS, ArrivingStream, Kind, leaving_parts, receive, send
from forebay.query.run import Execution, SqlDatabase, imported_duckdb

_LOGGER = logging.getLogger(__name__)

_DATABASES_MAX = 8
"""So many users' connections are kept."""

_BATCH_ROWS = 16 << 10
_UNTRIMMED_BYTES = 32 << 20
_THREAD_BYTES = 9 << 20
"""Address space of a thread: its stack, and the heap that it allocates from."""

_OTHER_THREADS = 16


class _Statement:
    """One statement. `stop` and `put_rows` are for the thread that reads the pipe."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.request = request
        self._lock = threads.lock()
        self._rows: queue.Queue[bytes | bytearray | None] = (
            queue.Queue()
        )  # bounded: a part is asked for when one was used
        self._execution: Execution | None = None
        self.is_stopped = False

    def begin(self, execution: Execution) -> None:
        """Have `stop` end this execution."""
        with self._lock:
            self._execution = execution
        self.check()

    def check(self) -> None:
        """Raise `InvalidRequest` if the statement was stopped."""
        if self.is_stopped:
            raise InvalidRequest(CANCELLED)

    def stop(self) -> None:
        with self._lock:
            self.is_stopped = True
            if self._execution is not None:
                self._execution.cancel()
        self.put_rows(None)

    def put_rows(self, part: bytes | bytearray | None) -> None:
        self._rows.put(part)

    def wanted_rows(self, name: str, out: Callable[..., None]) -> pa.RecordBatchReader:
        """The rows that the statement was given as `name`, of which parts are asked for as they are read."""

        def next_part() -> bytes | bytearray | None:
            out(Kind.WANT, name.encode())
            return self._rows.get()

        return pa.ipc.open_stream(pa.PythonFile(ArrivingStream(next_part), "r"))


class _Databases:
    """What statements are about: connections and lakes, kept by the bytes that describe them."""

    def __init__(self) -> None:
        self._databases: OrderedDict[bytes, SqlDatabase] = OrderedDict()

    def database(self, described: bytes) -> SqlDatabase:
        found = self._databases.get(described)
        if found is None:
            found = self._databases[described] = pickle.loads(described)  # from the process that started this one
            if len(self._databases) > _DATABASES_MAX:
                self._databases.popitem(last=False)[1].close()
        self._databases.move_to_end(described)
        return found


def main() -> None:
    """Serve until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for the process that started this one
    with suppress(OSError):  # what takes too much of the machine's memory is this process, and not that one
        Path("/proc/self/oom_score_adj").write_text("1000")
    source, out = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)  # libraries may print
    imported_duckdb()
    jobs: queue.Queue[_Statement] = queue.Queue()  # bounded: the next statement comes when one has ended
    threads.thread(partial(_read, source, jobs), name="forebay-query-pipe").start()
    send(out, Kind.READY)
    databases, is_limited = _Databases(), False
    while True:
        job = jobs.get()
        if not is_limited:
            is_limited = True
            limit_memory(job.request["memory_bytes"] + _THREAD_BYTES * (2 * (os.cpu_count() or 1) + _OTHER_THREADS))
        try:
            _answer(job, databases, partial(send, out))
        except BrokenPipeError:
            os._exit(0)


def _read(source: IO[bytes], jobs: queue.Queue[_Statement]) -> None:
    job: _Statement | None = None
    try:
        while (frame := receive(source)) is not None:
            kind, payload = frame
            if kind == Kind.RUN:
                job = _Statement(pickle.loads(payload))  # from the process that started this one
                jobs.put(job)
            elif job is not None and kind == Kind.STOP:
                job.stop()
            elif job is not None:
                job.put_rows(payload if kind == Kind.ROWS else None)
    finally:
        os._exit(0)  # the process that started this one has gone: nothing is worth waiting for


def _answer(job: _Statement, databases: _Databases, out: Callable[..., None]) -> None:
    try:
        try:
            _run(job, databases.database(job.request["database"]), out)
        finally:
            gc.collect(0)
            if (anonymous_bytes() or 0) - _idle_bytes() > _UNTRIMMED_BYTES:
                pa.default_memory_pool().release_unused()
                return_free_memory()
    except BrokenPipeError:
        raise
    except BaseException as e:  # noqa: BLE001 - reported to the process that asked
        error = InvalidRequest(CANCELLED) if job.is_stopped else _reported(e, job.request["too_much"])
        report = {"kind": error.kind, "message": error.message, "code": error.__reduce__()[1][1]}
        out(Kind.FAILED, json.dumps(report).encode(errors="replace"))
    else:
        out(Kind.END)


_idle: list[int] = []


def _idle_bytes() -> int:
    """What this process takes after its first statement."""
    if not _idle:
        _idle.append(anonymous_bytes() or 0)
    return _idle[0]


def _reported(error: BaseException, too_much: str) -> ForebayError:
    if isinstance(error, MemoryError) or "Out of Memory Error" in str(error):
        return LimitExceeded(too_much)
    if isinstance(error, ForebayError):
        return error
    _LOGGER.error("a statement failed", exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")


def _run(job: _Statement, database: SqlDatabase, out: Callable[..., None]) -> None:
    request = job.request
    data = {name: job.wanted_rows(name, out) for name in request["inputs"]}
    parameters = data.pop(PARAMETERS, request["parameters"])
    execution = database.execution(data, request["settings"], request["namespace"])
    execution.batch_rows = _BATCH_ROWS
    execution.on_commit = partial(out, Kind.COMMITTING)
    try:
        job.begin(execution)
        if request["describe"]:
            description = execution.describe(request["text"], parameters)
            out(Kind.HEAD, json.dumps({"is_insert": description.is_insert}).encode())
            for schema in (description.schema, description.parameters):
                out(Kind.DATA, memoryview(schema.serialize()))
            return
        with execution.run(request["text"], parameters, insert=request["insert"]) as result:
            out(Kind.HEAD, json.dumps({"is_one_instant": result.is_one_instant}).encode())
            for part in leaving_parts(result.schema, result):
                job.check()
                out(Kind.DATA, part)
    finally:
        execution.close()


if __name__ == "__main__":
    main()
