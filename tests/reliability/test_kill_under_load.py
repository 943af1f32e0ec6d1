"""`kill -9` under load: acknowledged rows are found again, once, in order.

Writers continue through the kills: their client resends unacknowledged batches, and the server recognises those that it
had written before (idempotent writing). Now and then a second server is started on the directory, and refused.
KILL_ROUNDS sets the number of kills with each engine (`make kill-trials`: 100).
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time

import pytest

import forebay
from forebay.base.errors import ForebayError
from forebay.testing.server import ServerProcess
from forebay.verify import verify_directory, verify_server
from tests import results
from tests.every_run import every_run
from tests.reliability.load import SEED, SETTINGS, KeyWriter, LogWriter, check_keys, check_log, create_tables, load
from tests.reliability.second_server import check_refused

ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))
ROUNDS_BETWEEN_CHECKS = 10


@pytest.mark.timeout(300 + 10 * ROUNDS)
@pytest.mark.parametrize("engine", every_run(["hlog", "lmdb"], lambda engine: engine == "hlog"))
def test_acknowledged_writes_survive_kills(tmp_path, engine):
    rng = random.Random(SEED)
    print(f"seed {SEED}, {ROUNDS} kills with {engine}")
    server = ServerProcess(tmp_path / "data", settings={**SETTINGS, "kv.engine": engine})
    with server, forebay.connect(server.bootstrap_servers) as connection:
        create_tables(connection)
        log_writers = [LogWriter(connection, number) for number in (0, 1)]
        key_writers = [KeyWriter(connection, number) for number in (2, 3)]
        for round_ in range(ROUNDS):
            with load([*log_writers, *key_writers]):
                time.sleep(rng.uniform(0.02, 0.6))
                server.kill()
                server.start(keep_ports=True)
            if round_ % ROUNDS_BETWEEN_CHECKS == ROUNDS_BETWEEN_CHECKS - 1 or round_ == ROUNDS - 1:
                check_refused(server.data_dir)
                check_log(connection.table("fluss.log"), log_writers)
                check_keys(connection.table("fluss.keys"), key_writers)
        assert all(writer.acknowledged for writer in (*log_writers, *key_writers))
        acknowledged = sum(w.acknowledged for w in (*log_writers, *key_writers))
        print(f"{acknowledged:,} rows were acknowledged, all were found")
        figures = {"kills": ROUNDS, "acknowledged_rows": acknowledged, "lost_or_doubled": 0, "seed": SEED}
        report = verify_server(connection)
        assert report.findings == []
        assert report.counts["buckets"] == 6
        server.kill()
    offline = verify_directory(tmp_path / "data")
    assert offline.faults == []
    assert offline.counts["key-value states"] == 3
    results.write_if_wanted(f"kill-trials.{engine}", figures)


@pytest.mark.slow
def test_a_kill_while_the_server_recovers_loses_nothing(tmp_path):
    rng = random.Random(SEED)
    server = ServerProcess(tmp_path / "data", settings=SETTINGS)
    with server, forebay.connect(server.bootstrap_servers) as connection:
        create_tables(connection)
        writers = [KeyWriter(connection, number) for number in (0, 1)]
        with load(writers):
            time.sleep(1.0)
        for _ in range(4):
            server.kill()
            server.start(keep_ports=True)
            touch = threading.Thread(target=_try_to_read, args=(server.bootstrap_servers,), daemon=True)
            touch.start()  # opening a bucket is what recovers it
            time.sleep(rng.uniform(0.0, 0.05))
        server.kill()
        server.start(keep_ports=True)
        check_keys(connection.table("fluss.keys"), writers)


def _try_to_read(bootstrap_servers: str) -> None:
    with (
        contextlib.suppress(ForebayError),
        forebay.connect(bootstrap_servers, retry_timeout="1 s", request_timeout="1 s") as connection,
    ):
        connection.table("fluss.keys").scan().to_arrow()
