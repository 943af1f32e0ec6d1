"""Writers of Apache Fluss's Java client while their server fails: it keeps what it has acknowledged to them.

They run in one Java program (`tests/foreign/java/client/FlussLoad.java`), which says for each row whether it was
acknowledged. The outcome of other rows is unknown: they may be there, once.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import forebay
from tests.patience import PATIENCE
from tests.reliability.jobs import Killable
from tests.reliability.strangers import KEYED, LOG, SEED, Appender, Row, Upserter, check_keys, check_log

sys.path.append(str(Path(__file__).parents[1] / "foreign"))

import java_client

APPENDER, UPSERTER = 4, 5


class JavaWriters:
    """The running program, and what it has said."""

    def __init__(self, address: str) -> None:
        command = java_client.command_of("FlussLoad", [address, "fluss", str(SEED), str(APPENDER), str(UPSERTER)])
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.appender, self.upserter = Appender(address, APPENDER), Upserter(address, UPSERTER)
        self.errors: Counter[str] = Counter()
        self._is_done = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._note(json.loads(line))

    def _note(self, line: dict) -> None:
        if "error" in line:
            self.errors[line["error"][:120]] += 1
        elif "numbers" in line:
            self._count(self.appender, line["told"])
            self.appender.kept.update(n for n, kept in zip(line["numbers"], line["told"], strict=True) if kept)
        elif "keys" in line:
            self._count(self.upserter, line["told"])
            row = (line["version"], -line["version"]) if line["version"] else None
            for key, kept in zip(line["keys"], line["told"], strict=True):
                rows = self.upserter.may_be.get(key, [None])
                self.upserter.may_be[key] = [row] if kept else [*rows, row]
        else:
            self._is_done = line["done"]

    @staticmethod
    def _count(writer: Appender | Upserter, told: list[bool]) -> None:
        writer.sent += len(told)
        writer.acknowledged += sum(told)

    def wait_until_both_go_on(self) -> None:
        """Wait until both writers have got another acknowledgement."""
        writers = (self.appender, self.upserter)
        before, deadline = [w.acknowledged for w in writers], time.monotonic() + PATIENCE
        while any(w.acknowledged == b for w, b in zip(writers, before, strict=True)):
            assert time.monotonic() < deadline, f"a writer of Java does not go on: {self.errors}"
            assert self._process.poll() is None, "the writers of Java have ended"
            time.sleep(0.01)

    def stop(self) -> None:
        """Let both end their last group of rows."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._is_done

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def java_writers(address: str) -> Iterator[JavaWriters]:
    writers = JavaWriters(address)
    try:
        yield writers
    finally:
        writers.kill()


def check_java_writers(server: Killable, address: str, rounds: int) -> dict[str, int]:
    """Java writes while the server fails; return how many rows were acknowledged, and how many given up."""
    rng = random.Random(SEED)
    with forebay.connect(address) as connection:
        connection.create_table("fluss.log", LOG, buckets=3)
        connection.create_table("fluss.keys", KEYED, primary_key=["k"], buckets=3)
        with java_writers(address) as writers:
            for _ in range(rounds):
                writers.wait_until_both_go_on()
                time.sleep(rng.uniform(0.0, 0.3))
                server.kill()
                server.start(keep_ports=True)
            writers.wait_until_both_go_on()
            writers.stop()
        check_log(connection, [writers.appender])
        keys = connection.table("fluss.keys")

        def look_up(numbers: list[int]) -> list[Row | None]:
            found = {row["k"]: (row["a"], row["b"]) for row in keys.lookup(numbers, missing="drop").to_pylist()}
            return [found.get(number) for number in numbers]

        check_keys(connection, [writers.upserter], look_up)
    acknowledged = writers.appender.acknowledged + writers.upserter.acknowledged
    given_up = writers.appender.sent + writers.upserter.sent - acknowledged
    print(f"{acknowledged:,} rows were acknowledged and found, {given_up} given up; errors: {dict(writers.errors)}")
    return {"acknowledged_rows": acknowledged, "given_up_rows": given_up, "lost_or_doubled": 0}
