"""A standby takes over under load: acknowledged rows are found again, once, in order.

The serving machine is lost with its disk, suspended for longer than its lease, cut off from the store, stopped, or
asked to end by `forebay takeover`. What had failed has to end by itself when it can. Writers know the addresses of all
machines, and go on. TAKEOVER_ROUNDS sets the number of takeovers (`make takeover-kills`).
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
import forebay.paimon
from forebay.tiering.lag import newest_lake_snapshot
from forebay.tiering.now import tier_table
from forebay.tiering.service import TieringService
from forebay.verify import verify_server
from tests import results
from tests.patience import until
from tests.reliability import jobs
from tests.reliability.failover import Failover
from tests.reliability.load import SEED, SETTINGS, KeyWriter, LogWriter, check_keys, check_log, create_tables, load

ROUNDS = int(os.environ.get("TAKEOVER_ROUNDS", "2"))
ROUNDS_BETWEEN_CHECKS = 10
TIERED = ("fluss.log", "fluss.keys")


def _tiered(connection: forebay.Connection) -> list[int]:
    """The lake snapshots of both tables; 0 for none."""
    found = [newest_lake_snapshot(connection.admin, connection.table(name).info) for name in TIERED]
    return [0 if snapshot is None else snapshot.snapshot_id for snapshot in found]


def comparable(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_acknowledged_writes_survive_takeovers(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}, {ROUNDS} takeovers")
    with Failover(tmp_path, SEED, SETTINGS) as server, forebay.connect(server.bootstrap_servers) as connection:
        create_tables(connection)
        log_writers = [LogWriter(connection, number) for number in (0, 1)]
        key_writers = [KeyWriter(connection, number) for number in (2, 3)]
        for round_ in range(ROUNDS):
            with load([*log_writers, *key_writers]):
                time.sleep(rng.uniform(0.02, 0.6))
                server.kill()
                server.start(keep_ports=True)
            if round_ % ROUNDS_BETWEEN_CHECKS == ROUNDS_BETWEEN_CHECKS - 1 or round_ == ROUNDS - 1:
                check_log(connection.table("fluss.log"), log_writers)
                check_keys(connection.table("fluss.keys"), key_writers)
                assert verify_server(connection).findings == []
        assert all(writer.acknowledged for writer in (*log_writers, *key_writers))
        acknowledged = sum(w.acknowledged for w in (*log_writers, *key_writers))
        print(f"{acknowledged:,} rows were acknowledged, all were found; {dict(server.failures)}")
    figures = {"takeovers": ROUNDS, "acknowledged_rows": acknowledged, "lost_or_doubled": 0, "seed": SEED}
    results.write_if_wanted("takeover-kills.rows", figures)


@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_versions_of_jobs_are_there_once_and_whole_after_takeovers(tmp_path: Path) -> None:
    print(f"seed {jobs.SEED}, {ROUNDS} takeovers")
    with (
        Failover(tmp_path, jobs.SEED, jobs.SETTINGS) as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="10 s") as connection,
    ):
        versions = jobs.check_versions_of_jobs(server, connection, ROUNDS)
        assert verify_server(connection).findings == []
    figures = {"takeovers": ROUNDS, "versions": versions, "lost_or_doubled": 0, "seed": jobs.SEED}
    results.write_if_wanted("takeover-kills.transactions", figures)


@pytest.mark.foreign
@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_what_pyfluss_was_told_survives_takeovers(tmp_path: Path) -> None:
    strangers = pytest.importorskip("tests.reliability.strangers", exc_type=ImportError)
    print(f"seed {strangers.SEED}, {ROUNDS} takeovers")
    with Failover(tmp_path, strangers.SEED, SETTINGS) as server:
        figures = strangers.check_strangers(server, server.bootstrap_servers, ROUNDS)
    results.write_if_wanted("takeover-kills.pyfluss", {"takeovers": ROUNDS, **figures, "seed": strangers.SEED})


@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_tiering_goes_on_after_takeovers(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}, {ROUNDS} takeovers")
    settings = {**SETTINGS, "datalake.format": "paimon", "datalake.paimon.warehouse": str(tmp_path / "lake")}
    options = {"table.datalake.enabled": "true", "table.datalake.freshness": "100 ms"}
    with Failover(tmp_path, SEED, settings) as server, forebay.connect(server.bootstrap_servers) as connection:
        create_tables(connection, options)
        log_writer, key_writer = LogWriter(connection, 0), KeyWriter(connection, 1)
        with TieringService(connection, poll_seconds=0.1) as service:
            for _ in range(ROUNDS):
                before = _tiered(connection)
                with load([log_writer, key_writer]):
                    until(
                        lambda before=before: all(map(int.__gt__, _tiered(connection), before)),
                        "both tables are tiered",
                    )
                    time.sleep(rng.uniform(0.02, 0.6))
                    server.kill()
                    server.start(keep_ports=True)
            rounds = sum(table.rounds for table in service.status().tables)
        for name in TIERED:
            tier_table(connection, name)
        check_log(connection.table("fluss.log"), [log_writer])
        check_keys(connection.table("fluss.keys"), [key_writer])
        lake = forebay.paimon.Catalog.open(tmp_path / "lake")
        for name in TIERED:
            table = connection.table(name)
            rows = table.scan(source="live" if table.has_primary_key else "log").to_arrow()
            in_lake = lake.table(name).scan(columns=rows.column_names).to_arrow()
            assert comparable(in_lake) == comparable(rows)
            assert comparable(table.scan(source="union").to_arrow()) == comparable(rows)
        assert verify_server(connection).findings == []
        acknowledged = log_writer.acknowledged + key_writer.acknowledged
        print(f"{acknowledged:,} rows are in the lake after {rounds} rounds; {dict(server.failures)}")
    figures = {"takeovers": ROUNDS, "rows": acknowledged, "lost_or_doubled": 0, "seed": SEED}
    results.write_if_wanted("takeover-kills.tiering", figures)


@pytest.mark.foreign
@pytest.mark.slow
@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_what_java_was_told_survives_takeovers(tmp_path: Path) -> None:
    java_strangers = pytest.importorskip("tests.reliability.java_strangers", exc_type=ImportError)
    print(f"seed {java_strangers.SEED}, {ROUNDS} takeovers")
    with Failover(tmp_path, java_strangers.SEED, SETTINGS) as server:
        figures = java_strangers.check_java_writers(server, server.bootstrap_servers, ROUNDS)
        print(dict(server.failures))
    results.write_if_wanted("takeover-kills.java", {"takeovers": ROUNDS, **figures, "seed": java_strangers.SEED})


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900 + 60 * ROUNDS)
def test_a_stream_of_spark_goes_on_after_takeovers(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    import forebay.spark

    rng = random.Random(SEED)
    print(f"seed {SEED}, {ROUNDS} takeovers")
    conf = {"spark.ui.enabled": False, "spark.sql.session.timeZone": "UTC"}
    with Failover(tmp_path, SEED, SETTINGS) as server, forebay.connect(server.bootstrap_servers) as connection:
        create_tables(connection)
        connection.create_table("fluss.copy", {"writer": "BIGINT", "n": "BIGINT", "text": "STRING"}, buckets=2)
        writers = [LogWriter(connection, number) for number in (0, 1)]
        spark = forebay.spark.session("takeovers", "local[2]", conf, bootstrap_servers=server.bootstrap_servers)
        try:
            stream = spark.readStream.option("scan.startup.mode", "full").table("forebay.fluss.log").writeStream
            query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("forebay.fluss.copy")
            for _ in range(ROUNDS):
                with load(writers):
                    time.sleep(rng.uniform(0.5, 3))
                    server.kill()
                    server.start(keep_ports=True)
                assert query.isActive, query.exception()
            query.processAllAvailable()
            query.stop()
        finally:
            spark.stop()
        check_log(connection.table("fluss.log"), writers)
        check_log(connection.table("fluss.copy"), writers)
        acknowledged = sum(writer.acknowledged for writer in writers)
        print(f"{acknowledged:,} rows went through; {dict(server.failures)}")
    figures = {"takeovers": ROUNDS, "rows": acknowledged, "lost_or_doubled": 0, "seed": SEED}
    results.write_if_wanted("takeover-kills.spark", figures)
