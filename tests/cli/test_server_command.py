"""`forebay server`: its arguments and output. It runs in this process, and is stopped by a signal."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.garbage import GcFreezer
from forebay.cli.log_limit import LogLimit
from forebay.cli.main import main
from forebay.cli.server import when_told_to_stop
from tests.patience import PATIENCE

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the command changes in its process is put back."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    interval, limits, callbacks = sys.getswitchinterval(), resource.getrlimit(resource.RLIMIT_NOFILE), gc.callbacks[:]
    signals = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in signals.items():
        signal.signal(number, handler)
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    sys.setswitchinterval(interval)


def serve(folder: Path, look: Callable[[dict[str, Any]], object], *words: str, stops: bool = True) -> int:
    """Run the command until it serves and `look`, which is given its ready file, has returned; its exit code.

    Without `stops` it has to end by itself.
    """
    ready, ended = folder / "ready.json", threading.Event()

    def watch() -> None:
        while not ready.exists():
            if ended.wait(0.01):
                return
        try:
            look(json.loads(ready.read_text()))
        finally:
            if stops and not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return main(
            ["server", "--data-dir", str(folder / "data"), "--coordinator-port", "0", "--tablet-port", "0",
             "--ready-file", str(ready), *words]
        )  # fmt: skip
    finally:
        ended.set()
        watcher.join()
        ready.unlink(missing_ok=True)


def test_a_server_whose_store_was_taken_over_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    with ExitStack() as stack:

        def take_over(_ready: dict[str, Any]) -> None:
            stack.enter_context(forebay.embedded(tmp_path / "other", settings={"store": str(store)}))

        assert serve(tmp_path, take_over, "-D", f"store={store}", "-D", "store.lease=1 s", stops=False) == 1
    assert "another server has taken over the store" in capsys.readouterr().err


def test_a_server_serves_until_it_is_told_to_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    seen: dict[str, Any] = {}

    def look(ready: dict[str, Any]) -> None:
        with forebay.connect(ready["bootstrap.servers"]) as connection:
            seen["databases"] = connection.list_databases()
            if "fluss" in seen["databases"] and "more" not in seen["databases"]:
                connection.create_database("more")
        seen.update(
            ready=ready,
            interval=sys.getswitchinterval(),
            files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            filters=[type(f) for handler in logging.getLogger().handlers for f in handler.filters],
            rounds=[type(getattr(each, "__self__", None)) for each in gc.callbacks],
        )

    assert serve(tmp_path, look, "--host", "localhost", "--log-level", "info") == 0
    printed = capsys.readouterr()
    address = seen["ready"]["bootstrap.servers"]
    assert address.startswith("localhost:")
    assert (seen["ready"]["pid"], seen["ready"]["sasl.bootstrap.servers"]) == (os.getpid(), None)
    assert printed.out.splitlines()[:2] == [
        f"Forebay serves {tmp_path / 'data'}",
        f"  Python   forebay.connect('{address}')",
    ]
    assert "SASL" not in printed.out
    assert "INFO forebay.cli.server: stopped" in printed.err
    assert "other users of this machine" not in printed.err
    assert (seen["interval"], seen["files"]) == (0.001, min(65_536, hard) if hard > 0 else 65_536)
    assert seen["filters"] == [LogLimit]
    assert GcFreezer in seen["rounds"]
    (tmp_path / "data").chmod(0o755)
    assert serve(tmp_path, look, "--log-level", "warning") == 0, "the first one has let its files go"
    assert "more" in seen["databases"]
    printed = capsys.readouterr()
    assert f"chmod -R go= {tmp_path / 'data'}" in printed.err
    assert "INFO" not in printed.err


def test_a_server_with_passwords_and_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("max.bucket.num: 7\nmax.partition.num: 8\n")
    found: list[dict[str, str | None]] = []
    addresses: list[str] = []

    def look(ready: dict[str, Any]) -> None:
        for address, user in ((ready["bootstrap.servers"], None), (ready["sasl.bootstrap.servers"], "ann")):
            with forebay.connect(address, user, "secret" if user else None) as connection:
                found.append({each.key: each.value for each in connection.admin.describe_configs()})
        addresses.append(ready["sasl.bootstrap.servers"])

    words = ["--sasl", "--plain", "--config", str(config), "-D", "max.partition.num=9"]
    assert serve(tmp_path, look, *words, "-D", "security.sasl.plain.credentials=ann:secret") == 0
    assert [(f["max.bucket.num"], f["max.partition.num"]) for f in found] == [("7", "9"), ("7", "9")]
    printed = capsys.readouterr()
    assert f"  SASL     {addresses[0]}, with user= and password=" in printed.out
    assert "'security.sasl.plain.credentials' stands on the command line" in printed.err


def test_a_ready_file_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--coordinator-port", "0", "--tablet-port", "0", "--ready-file", str(tmp_path / "no" / "ready.json")]
    assert main(["server", "--data-dir", str(tmp_path / "data"), *words]) == 1
    assert "ready.json cannot be written: No such file or directory" in capsys.readouterr().err


def test_a_server_without_a_plain_listener_has_none(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    words = ["--sasl", "-D", "security.sasl.plain.credentials=ann:secret"]
    assert serve(tmp_path, seen.append, *words) == 0
    assert seen[0]["bootstrap.servers"] == seen[0]["sasl.bootstrap.servers"]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_another_thread_gets_ends_the_server(number: signal.Signals) -> None:
    async def told() -> None:
        stopping = asyncio.Event()
        when_told_to_stop(stopping.set)

        def other() -> None:
            SYSTEM_CLOCK.sleep(0.05)  # the loop sleeps
            signal.pthread_kill(threading.get_ident(), number)

        threading.Thread(target=other).start()
        await asyncio.wait_for(stopping.wait(), PATIENCE)

    asyncio.run(told())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the pipe is full, which is told
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_not_lost_where_many_threads_wake_the_loop(number: signal.Signals) -> None:
    async def told() -> None:
        stopping = asyncio.Event()
        when_told_to_stop(stopping.set)
        for _ in range(20_000):  # more wakes than the loop's pipe has room for
            asyncio.get_running_loop().call_soon_threadsafe(int)
        signal.raise_signal(number)
        await asyncio.wait_for(stopping.wait(), PATIENCE)

    asyncio.run(told())
