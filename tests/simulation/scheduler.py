"""Threads of which one runs at a time, chosen by a seed, on virtual time.

Terms: a *task* is a thread of control (a greenlet); a *process* owns tasks, is killed as a whole, and may be held (its
tasks do not run, as on a suspended machine); the *scheduler* runs one task until it waits or is made to yield, then
picks the next one at random. Time passes only when nothing can run, and a few microseconds with each step.

Rule: all randomness here comes from the seed, and nothing iterates over a set.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from itertools import count
from typing import Any

import greenlet

STEP_SECONDS = 20e-6
YIELD_SHARE = 0.06
"""How often a task that could go on is made to wait for its next turn, where it takes a lock or reads a file."""


class Stop(greenlet.GreenletExit):
    """The process of the task that gets this was killed."""


class Stuck(AssertionError):
    """Nothing can run, and no timer is set."""


class Process:
    """What is killed, held and cut off the network as a whole, and has a wall clock of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.held = False
        self.serves = False
        """Whether others wait for its event loop: not while a server starts or ends."""
        self.hold_seconds = 0.0
        """How long it was held, in all; minus the time at which a hold began that has not ended."""
        self.waiting: list[Task] = []
        self.tasks: dict[int, Task] = {}
        self.wall_offset_ms = 0
        self.on_kill: list[Callable[[], None]] = []


class Task:
    __slots__ = ("done", "error", "glet", "joiners", "name", "number", "process", "ready", "started", "token")

    def __init__(self, number: int, process: Process, name: str) -> None:
        self.number = number
        self.process = process
        self.name = name
        self.glet: Any = None
        self.done = False
        self.started = False
        self.ready = False
        self.token = 0
        self.error: BaseException | None = None
        self.joiners: list[Task] = []


class Timer:
    __slots__ = ("cancelled", "function")

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self.cancelled = False


class Scheduler:
    """Runs tasks. `note` adds to the trace, of which `digest` is kept; two runs of a seed have the same one."""

    def __init__(self, seed: int, keep_trace: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.ready: list[Task] = []
        self.timers: list[tuple[float, int, Timer]] = []
        self.current: Task | None = None
        self.steps = 0
        self.digest = 0
        self.trace: list[str] | None = [] if keep_trace else None
        self.fine = bool(os.environ.get("SIM_FINE"))
        self.failures: list[BaseException] = []
        self._numbers = 0
        self._hub = greenlet.getcurrent()
        self.longest_block = 0.0
        self.errors: list[str] = []

    def note(self, text: str) -> None:
        line = f"{self.now:.6f} {text}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        if self.trace is not None:
            self.trace.append(line)

    # ---- tasks ------------------------------------------------------------------------------------------------------

    def spawn(self, process: Process, function: Callable[..., Any], *args: Any, name: str = "") -> Task:
        self._numbers += 1
        task = Task(self._numbers, process, name)
        task.glet = greenlet.greenlet(lambda: self._body(task, function, args), self._hub)
        if process.dead:
            task.done = True
            return task
        process.tasks[task.number] = task
        self.make_ready(task)
        return task

    def _body(self, task: Task, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            function(*args)
        except Stop:
            pass
        except BaseException as e:  # noqa: BLE001 - the caller that runs the simulation inspects them
            if not task.process.dead:
                task.error = e
                self.failures.append(e)
        finally:
            task.done = True
            task.process.tasks.pop(task.number, None)
            for joiner in task.joiners:
                self.make_ready(joiner)

    def make_ready(self, task: Task) -> None:
        if task.ready or task.done or task.process.dead:
            return
        task.ready = True
        if task.process.held:
            task.process.waiting.append(task)
        else:
            self.ready.append(task)

    def hold(self, process: Process) -> None:
        """Let no task of `process` run until `release`."""
        if process.held:
            return
        process.held = True
        process.hold_seconds -= self.now
        process.waiting += [task for task in self.ready if task.process is process]
        self.ready = [task for task in self.ready if task.process is not process]

    def release(self, process: Process) -> None:
        if not process.held:
            return
        process.held = False
        process.hold_seconds += self.now
        waiting, process.waiting = process.waiting, []
        self.ready += [task for task in waiting if not task.process.dead]

    def kill(self, process: Process) -> None:
        """End all tasks of `process` where they are. What they still do when they unwind has no effect."""
        if process.dead:
            return
        process.dead = True
        for function in process.on_kill:
            function()
        self.ready = [task for task in self.ready if task.process is not process]
        if self.current is None:
            self._unwind(process)
        else:
            self.at(self.now, lambda: self._unwind(process))

    def _unwind(self, process: Process) -> None:
        for task in list(process.tasks.values()):
            if not task.started:
                task.done = True
                continue
            if task.done:
                continue
            self.current = task
            task.glet.parent = greenlet.getcurrent()
            try:
                task.glet.throw(Stop)
            finally:
                asyncio._set_running_loop(None)
                self.current = None
            if not task.glet.dead:
                raise AssertionError(f"task {task.name} of a killed process goes on")
        process.tasks.clear()

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def park(self, timeout: float | None = None) -> bool:
        """Wait until another task calls `make_ready`, at most `timeout` seconds; whether that was in time."""
        task = self.current
        if task is None:
            raise Stuck("the outside of the simulation cannot wait")
        if task.process.dead:
            raise Stop
        task.token += 1
        timer: Timer | None = None
        late = False
        if timeout is not None:
            token = task.token

            def expire() -> None:
                nonlocal late
                if task.token == token and not task.ready:
                    late = True
                    self.make_ready(task)

            timer = self.at(self.now + max(timeout, 0.0), expire)
        loop = asyncio._get_running_loop()
        began = self.now - task.process.hold_seconds
        if loop is not None:
            asyncio._set_running_loop(None)
        try:
            self._hub.switch()
        finally:
            if timer is not None:
                timer.cancelled = True
            if loop is not None:
                asyncio._set_running_loop(loop)
                if task.process.serves and not task.process.dead:
                    self.longest_block = max(self.longest_block, self.now - task.process.hold_seconds - began)
        if task.process.dead:
            raise Stop
        return not late

    def yield_(self) -> None:
        """Let others run."""
        task = self.current
        if task is None:
            return
        if task.process.dead:
            raise Stop
        self.make_ready(task)
        self.park()

    def maybe_yield(self) -> None:
        task = self.current
        if task is None:
            return
        if task.process.dead:
            raise Stop
        if self.rng.random() < YIELD_SHARE:
            self.make_ready(task)
            self.park()

    def sleep(self, seconds: float) -> None:
        self.park(max(seconds, 0.0))

    def at(self, when: float, function: Callable[[], None]) -> Timer:
        timer = Timer(function)
        self._numbers += 1
        heapq.heappush(self.timers, (when, self._numbers, timer))
        return timer

    # ---- the hub ----------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], steps_max: int = 2_000_000) -> None:
        """Run until `until()` holds, which is asked after each step. Raises `Stuck`, or what a task has failed with."""
        self._hub = greenlet.getcurrent()
        while not until():
            if self.failures:
                raise self.failures[0]
            self._fire_due()
            if not self.ready:
                while self.timers and self.timers[0][2].cancelled:
                    heapq.heappop(self.timers)
                if not self.timers:
                    raise Stuck("every task waits, and no timer is set")
                self.now = max(self.now, self.timers[0][0])
                continue
            ready = self.ready
            index = int(self.rng.random() * len(ready))
            ready[index], ready[-1] = ready[-1], ready[index]
            task = ready.pop()
            task.ready = False
            if task.process.dead or task.done:
                continue
            self.steps += 1
            if self.steps > steps_max:
                raise Stuck(f"no end after {steps_max} steps")
            self.now += STEP_SECONDS
            self.digest = (self.digest * 31 + task.number) & 0xFFFFFFFF
            if self.fine and self.trace is not None:
                self.trace.append(f"{self.now:.6f} step {task.number} {task.name} {hash(self.rng.getstate())}")
            self.current = task
            task.started = True
            try:
                task.glet.switch()
            finally:
                self.current = None

    def _fire_due(self) -> None:
        timers = self.timers
        while timers and timers[0][0] <= self.now:
            timer = heapq.heappop(timers)[2]
            if not timer.cancelled:
                timer.cancelled = True
                timer.function()


# ---- what threads wait with ----------------------------------------------------------------------------------------


class SimLock:
    """A lock; with `again`, one that its holder may take more than once."""

    def __init__(self, sched: Scheduler, again: bool = False) -> None:
        self._sched = sched
        self._again = again
        self._held = False
        self._holder: Task | None = None
        self._count = 0
        self._waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        sched = self._sched
        task = sched.current
        if task is not None:
            if task.process.dead:
                raise Stop
            if blocking and sched.rng.random() < YIELD_SHARE:
                sched.yield_()
        if self._again and self._held and self._holder is task:
            self._count += 1
            return True
        deadline = None if timeout is None or timeout < 0 else sched.now + timeout
        while self._held:
            if not blocking:
                return False
            left = None if deadline is None else deadline - sched.now
            if left is not None and left <= 0:
                return False
            assert task is not None, "the outside of the simulation cannot wait for a lock"
            self._waiters.append(task)
            if not sched.park(left):
                if task in self._waiters:
                    self._waiters.remove(task)
                if self._held:
                    return False
        self._held, self._holder, self._count = True, task, 1
        return True

    def release(self) -> None:
        task = self._sched.current
        if not self._held:
            if task is not None and task.process.dead:
                return
            raise RuntimeError("release of a lock that is not held")
        if self._again and self._count > 1:
            self._count -= 1
            return
        self._held, self._holder, self._count = False, None, 0
        if self._waiters:
            self._sched.make_ready(self._waiters.popleft())

    def locked(self) -> bool:
        return self._held

    def release_all(self) -> int:
        count, self._count = self._count, 1
        self.release()
        return count

    def acquire_again(self, count: int) -> None:
        self.acquire()
        self._count = count

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimCondition:
    def __init__(self, sched: Scheduler, lock: SimLock | None = None) -> None:
        self._sched = sched
        self._lock = lock or SimLock(sched, again=True)
        self._waiters: deque[Task] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        sched, task = self._sched, self._sched.current
        assert task is not None, "the outside of the simulation cannot wait for a condition"
        count = self._lock.release_all()
        self._waiters.append(task)
        try:
            in_time = sched.park(timeout)
        finally:
            if task in self._waiters:
                self._waiters.remove(task)
        self._lock.acquire_again(count)
        return in_time

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = None if timeout is None else self._sched.now + timeout
        result = predicate()
        while not result:
            left = None if deadline is None else deadline - self._sched.now
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiters))):
            self._sched.make_ready(self._waiters.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class SimEvent:
    def __init__(self, sched: Scheduler) -> None:
        self._sched = sched
        self._set = False
        self._waiters: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiters, self._waiters = self._waiters, []
        for task in waiters:
            self._sched.make_ready(task)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            self._sched.maybe_yield()
            return True
        task = self._sched.current
        assert task is not None
        self._waiters.append(task)
        try:
            in_time = self._sched.park(timeout)
        finally:
            if task in self._waiters:
                self._waiters.remove(task)
        return in_time or self._set


class SimThread:
    def __init__(
        self, sched: Scheduler, process: Process, target: Callable[..., object], args: Iterable[Any], name: str
    ) -> None:
        self._sched, self._process, self._target, self._args = sched, process, target, tuple(args)
        self.name = name
        self.task: Task | None = None

    def start(self) -> None:
        if self._process.dead:
            raise Stop
        self.task = self._sched.spawn(self._process, self._run, name=self.name)

    def _run(self) -> None:
        _threads_of(self._sched)[self._sched.current.number] = self  # type: ignore[union-attr]
        try:
            self._target(*self._args)
        finally:
            _threads_of(self._sched).pop(self._sched.current.number, None)  # type: ignore[union-attr]

    def join(self, timeout: float | None = None) -> None:
        task = self.task
        assert task is not None, "this thread was not started"
        if not task.done:
            waiting = self._sched.current
            assert waiting is not None
            task.joiners.append(waiting)
            self._sched.park(timeout)
            if waiting in task.joiners:
                task.joiners.remove(waiting)

    def is_alive(self) -> bool:
        return self.task is not None and not self.task.done


class _Outside:
    """The thread of whatever is no thread of the simulation's provider: an actor's own task, or the hub."""

    name = "outside"


def _threads_of(sched: Scheduler) -> dict[int, Any]:
    found: dict[int, Any] | None = getattr(sched, "_threads", None)
    if found is None:
        found = sched._threads = {}  # type: ignore[attr-defined]
    return found


class SimFuture(Future):  # type: ignore[type-arg]
    def __init__(self, sched: Scheduler) -> None:
        super().__init__()
        self._condition = SimCondition(sched)  # type: ignore[assignment]


class SimExecutor(Executor):
    """A pool: each job is a task, at most so many at a time, which begin in the order in which they were given."""

    def __init__(self, sched: Scheduler, process: Process, threads_max: int, name: str) -> None:
        self._sched, self._process, self._max, self._name = sched, process, threads_max, name
        self._queue: deque[tuple[SimFuture, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = deque()
        self._active = 0
        self._closed = False
        self._idle = SimEvent(sched)
        self._idle.set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._process.dead:
            raise Stop
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = SimFuture(self._sched)
        self._queue.append((future, fn, args, kwargs))
        self._idle.clear()
        if self._active < self._max:
            self._active += 1
            self._sched.spawn(self._process, self._work, name=self._name)
        return future

    def _work(self) -> None:
        while self._queue:
            future, function, args, kwargs = self._queue.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function(*args, **kwargs)
            except BaseException as e:
                if self._process.dead:
                    raise
                future.set_exception(e)
            else:
                future.set_result(result)
            self._sched.yield_()
        self._active -= 1
        if not self._active:
            self._idle.set()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        if wait and not self._process.dead:
            self._idle.wait()


class SimThreads:
    """The provider for `forebay.base.threads.use`. What a task asks for belongs to its process."""

    def __init__(self, sched: Scheduler) -> None:
        self._sched = sched
        self._outside = _Outside()
        self.outside_process = Process("outside")

    def _process(self) -> Process:
        task = self._sched.current
        return self.outside_process if task is None else task.process

    def lock(self) -> SimLock:
        return SimLock(self._sched)

    def rlock(self) -> SimLock:
        return SimLock(self._sched, again=True)

    def condition(self, lock: Any = None) -> SimCondition:
        return SimCondition(self._sched, lock)

    def event(self) -> SimEvent:
        return SimEvent(self._sched)

    def future(self) -> SimFuture:
        return SimFuture(self._sched)

    def thread(self, target: Callable[..., object], args: Iterable[Any], name: str, daemon: bool) -> SimThread:
        return SimThread(self._sched, self._process(), target, args, name)

    def current_thread(self) -> Any:
        task = self._sched.current
        return self._outside if task is None else _threads_of(self._sched).get(task.number, self._outside)

    def executor(self, threads_max: int, name: str) -> SimExecutor:
        return SimExecutor(self._sched, self._process(), threads_max, name)

    def first_completed(self, futures: Sequence[Future[Any]]) -> tuple[list[Future[Any]], list[Future[Any]]]:
        if not any(future.done() for future in futures):
            news = SimEvent(self._sched)
            for future in futures:
                future.add_done_callback(lambda _: news.set())
            news.wait()
        return [future for future in futures if future.done()], [future for future in futures if not future.done()]


class SimClock:
    """The clocks of one process: monotonic time is virtual time, the wall clock may be off and jump."""

    def __init__(self, sched: Scheduler, process: Process, start_ms: int = 1_700_000_000_000) -> None:
        self._sched, self._process, self._start_ms = sched, process, start_ms

    def now_ms(self) -> int:
        return self._start_ms + int(self._sched.now * 1000) + self._process.wall_offset_ms

    def monotonic(self) -> float:
        return 1000.0 + self._sched.now

    def sleep(self, seconds: float) -> None:
        self._sched.sleep(seconds)


# ---- asyncio -------------------------------------------------------------------------------------------------------


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task whose place in a set does not depend on where it lies in memory."""

    numbers: Iterator[int] = count(1)

    def __new__(cls, *_: Any, **__: Any) -> SimTask:
        task = super().__new__(cls)
        task.number = next(cls.numbers)
        return task

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.AbstractEventLoop):
    """An event loop that is a task of the scheduler, for one process."""

    def __init__(self, sched: Scheduler, process: Process, network: Any) -> None:
        self._sched, self._process, self._network = sched, process, network
        self._callbacks: deque[asyncio.Handle] = deque()
        self._idle = False
        self._default = SimExecutor(sched, process, 4, "default")
        self._task = sched.spawn(process, self._run, name="loop")
        self.problems: list[dict[str, Any]] = []

    def _run(self) -> None:
        sched = self._sched
        while True:
            if not self._callbacks:
                self._idle = True
                sched.park()
                self._idle = False
                continue
            handle = self._callbacks.popleft()
            if handle._cancelled:
                continue
            asyncio._set_running_loop(self)
            try:
                handle._run()
            finally:
                asyncio._set_running_loop(None)
            if self._process.dead:
                raise Stop
            if sched.rng.random() < 0.5:
                sched.yield_()

    def _add(self, handle: asyncio.Handle) -> None:
        self._callbacks.append(handle)
        if self._idle:
            self._sched.make_ready(self._task)

    # What asyncio's own classes call.

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._process.dead

    def time(self) -> float:
        return self._sched.now

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._process.dead:
            self._add(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self._sched.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def fire() -> None:
            if not handle._cancelled and not self._process.dead:
                self._add(handle)

        self._sched.at(when, fire)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        return SimTask(coro, loop=self, name=name)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        return asyncio.wrap_future((executor or self._default).submit(func, *args), loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._process.dead:
            self.problems.append(context)
            error = context.get("exception")
            self._sched.failures.append(
                error if isinstance(error, Exception) else AssertionError(f"the event loop reports {context}")
            )

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:
        return self._network.listen(self, self._process, kwargs["sock"], protocol_factory)

    def remove_reader(self, fd: Any) -> bool:
        """Nothing accepts connections in steps here: a server has all of them until it is closed."""
        return False

    def run(self, coroutine: Any) -> Any:
        """The result of `coroutine`, which runs on this loop; called by a task of the simulation."""
        outcome = SimFuture(self._sched)

        def begin() -> None:
            task = self.create_task(coroutine)

            def done(task: asyncio.Task[Any]) -> None:
                if task.cancelled():
                    outcome.cancel()
                elif task.exception() is not None:
                    outcome.set_exception(task.exception())
                else:
                    outcome.set_result(task.result())

            task.add_done_callback(done)

        self.call_soon(begin)
        return outcome.result()
