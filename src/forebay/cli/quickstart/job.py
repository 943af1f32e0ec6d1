"""`forebay quickstart`: the main job on real data, explained step by step, and proven at the end.

A server with a lake starts in this process, Spark attaches to it, and a year of flights
(forebay.cli.quickstart.flights) streams into a primary-key table and a log table. Meanwhile Spark moves both into the
lake and answers questions, and a union read, a full scan and a model are repeatedly compared. At the end all ways to
read the rows must agree in every cell, including one that only opens the lake's files.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import UnsupportedOperation
from forebay.cli.output import text_table
from forebay.cli.quickstart import flights as flight_data
from forebay.cli.quickstart.checks import Checker
from forebay.cli.quickstart.lake import TABLES, QuickstartLake
from forebay.cli.quickstart.proof import Proof, Witness, changelog_state
from forebay.cli.quickstart.screen import BAR_CHARACTERS, draw_bar, indented, say, step
from forebay.cli.quickstart.stream import Stream
from forebay.client.connection import Connection, connect
from forebay.inprocess import embedded
from forebay.metadata.table import TablePath
from forebay.tiering.lag import table_lag
from forebay.tiering.now import tier_now
from forebay.tiering.service import TieringService
from forebay.tiering.status import TableStatus

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_TIERED = "'table.datalake.enabled' = 'true', 'table.datalake.freshness' = '2 s'"

CREATE_FLIGHTS = f"""CREATE TABLE forebay.nyc.flights (
    day DATE NOT NULL, carrier STRING NOT NULL, flight INT NOT NULL, origin STRING NOT NULL,
    dest STRING, tailnum STRING, distance INT, scheduled TIMESTAMP,
    status STRING, dep_delay INT, arr_delay INT, air_time INT)
TBLPROPERTIES ('primary.key' = 'day,carrier,flight,origin', 'bucket.num' = '4', 'bucket.key' = 'flight',
    {_TIERED})"""

CREATE_EVENTS = f"""CREATE TABLE forebay.nyc.events (
    at TIMESTAMP, kind STRING,
    day DATE, carrier STRING, flight INT, origin STRING, delay INT)
TBLPROPERTIES ('bucket.num' = '2', {_TIERED})"""

QUESTIONS = (
    (
        0.15,
        "How do the flights stand, at this moment?",
        "SELECT status, count(*) AS flights, round(avg(dep_delay), 1) AS delay_minutes\n"
        "FROM forebay.nyc.flights GROUP BY status ORDER BY status",
    ),
    (
        0.40,
        "Which airlines leave late, so far this year?",
        "SELECT carrier, count(*) AS departed, round(avg(dep_delay), 1) AS delay_minutes\n"
        "FROM forebay.nyc.flights WHERE status <> 'announced'\n"
        "GROUP BY carrier ORDER BY delay_minutes DESC LIMIT 5",
    ),
    (
        0.65,
        "What has been appended to the log of events?",
        "SELECT kind, count(*) AS events, max(at) AS latest FROM forebay.nyc.events GROUP BY kind ORDER BY kind",
    ),
)

PICTURE = """SELECT hour(from_utc_timestamp(scheduled, 'America/New_York')) AS hour, avg(dep_delay) AS delay
FROM forebay.nyc.flights GROUP BY 1 HAVING count(*) > 100 ORDER BY 1"""

_CHECK_SECONDS = 2.0
_POLL_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay quickstart`."""
    parser.add_argument(
        "--data-dir", default="quickstart-data", metavar="DIR",
        help="where the tables live: the server's in DIR/stream, the lake in DIR/lake (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--lake", choices=("iceberg", "paimon"), default="iceberg", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=0, help="the server's port (default: one that is free)")
    server = parser.add_mutually_exclusive_group()
    server.add_argument("--serve", action="store_true", help="keep serving the tables afterwards, until Ctrl-C")
    server.add_argument(
        "-b", "--bootstrap-servers", metavar="HOST:PORT",
        help="use this server, or Fluss cluster, whose lake is DIR/lake, instead of starting one",
    )  # fmt: skip
    parser.add_argument("--master", default="local[*]", metavar="URL", help="Spark's master (default: %(default)s)")
    parser.add_argument("--days", type=int, metavar="N", help="stream the first N days of the year only")


def run(options: argparse.Namespace) -> int:
    """Run the quickstart; return exit code 0 if the proof holds."""
    folder = Path(options.data_dir).absolute()
    lake = QuickstartLake(options.lake, folder / "lake")
    _require_spark()
    lake.check_installed()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    print(
        "Forebay quickstart: a year of flights streams into live tables and on into a lake, and Spark SQL reads both "
        "as one.\n"
    )
    with contextlib.ExitStack() as stack:
        connection: Connection
        if options.bootstrap_servers:
            servers, where = options.bootstrap_servers, f"its lake is {lake.folder}"
            with step("1. Server", "connecting"):
                connection = stack.enter_context(connect(servers))
        else:
            with step("1. Server", "starting"):
                connection = stack.enter_context(
                    started := embedded(folder / "stream", port=options.port, settings=lake.settings)
                )
            servers, where = started.bootstrap_servers, f"its tables live in {options.data_dir}"
        print(f"   {servers} speaks the Apache Fluss protocol; {where}")
        with step("2. Spark", "starting (no jar: a catalog written in Python)"):
            spark = _spark(servers, options.master)
        stack.callback(spark.stop)
        print(f"   PySpark {spark.version}, catalog 'forebay' attached")
        good = _Job(connection, spark, lake).run(options.days)
        _say_how_to_go_on(servers, lake, options)
        return 0 if good else 1


def _require_spark() -> None:
    try:
        import pandas
        import pyspark
    except ImportError as e:
        raise UnsupportedOperation(f"the quickstart needs {e.name}: pip install 'forebay[quickstart]'") from e
    del pandas, pyspark


def _spark(servers: str, master: str) -> SparkSession:
    from forebay import spark as fb

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    quiet = Path(__file__).parents[1].joinpath("log4j2-quiet.properties").as_uri()
    conf = {
        "spark.driver.extraJavaOptions": f"-Dlog4j.configurationFile={quiet}",
        "spark.scheduler.mode": "FAIR",  # rounds of tiering and questions share the cores
        "spark.ui.enabled": False,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 4,
        "spark.ui.showConsoleProgress": False,
    }
    return fb.session("forebay-quickstart", master, conf, bootstrap_servers=servers)


class _Job:
    """The steps from 3 on. Prints its progress."""

    def __init__(self, connection: Connection, spark: SparkSession, lake: QuickstartLake) -> None:
        self._connection, self._spark, self._lake = connection, spark, lake

    def run(self, days: int | None) -> bool:
        """Run the steps; return whether the proof holds. `days`: only the first days of the year; None: all."""
        from forebay.spark.tiering import SparkRunner

        self._make_tables()
        with step("4. Stream", "reading the source"):
            flights = flight_data.load_flights()
            if days is not None:
                flights = flight_data.first_days(flights, days)
        stream = Stream(self._connection, flights)
        checker = Checker(self._connection.table("nyc.flights"), stream)
        say(
            f"   {flights.num_rows:,} flights: each announced, then updated when it leaves and lands, deleted if "
            "cancelled.",
            f"   Meanwhile Spark tiers both tables: it moves them into {self._lake.format.capitalize()} tables, round "
            "after round.",
        )
        runner = SparkRunner(self._spark.sparkContext)
        with TieringService(self._connection, runner, poll_seconds=_POLL_SECONDS) as service:
            stream.start()
            self._watch(stream, checker)
        say(
            f"   {stream.done:,} changes in {stream.seconds:.1f} s: {stream.done / stream.seconds:,.0f} a second into "
            "the primary-key table, and again into the log table, each durable when acknowledged",
            f"   checks: {len(checker.checks)}; each read an instant of the tables while they went on changing",
            *_tiering_lines(service),
        )
        self._draw_picture()
        return self._prove(flights, checker)

    def _make_tables(self) -> None:
        print(f"3. Tables   made by Spark SQL, in the server and in the lake ({self._lake.format.capitalize()})")
        self._spark.sql("DROP DATABASE IF EXISTS forebay.nyc CASCADE")
        self._lake.drop_tables()
        self._spark.sql("CREATE DATABASE forebay.nyc")
        for statement in (CREATE_FLIGHTS, CREATE_EVENTS):
            say(*indented(statement))
            self._spark.sql(statement)
        self._lake.check_is_of(self._connection.admin.table_info(TABLES[0]))
        empty = self._spark.sql("SELECT count(*) FROM forebay.nyc.flights").collect()[0][0]  # wakes Spark's workers
        print(f"   SELECT count(*) FROM forebay.nyc.flights  ->  {empty}")

    # ---- while the stream runs --------------------------------------------------------------------------------------

    def _watch(self, stream: Stream, checker: Checker) -> None:
        """Show the progress of the stream, run checks every few seconds, and ask Spark a question now and then."""
        questions, pending_answer = list(QUESTIONS), None
        next_check = SYSTEM_CLOCK.monotonic() + _CHECK_SECONDS
        with ThreadPoolExecutor(1, thread_name_prefix="question") as asker:
            while stream.is_alive():
                draw_bar(stream.fraction, _speed(stream))
                if SYSTEM_CLOCK.monotonic() >= next_check:
                    checker.check()
                    next_check = SYSTEM_CLOCK.monotonic() + _CHECK_SECONDS
                if (
                    questions
                    and stream.fraction >= questions[0][0]
                    and (pending_answer is None or pending_answer.done())
                ):
                    if pending_answer is not None:
                        pending_answer.result()
                    _, question, query = questions.pop(0)
                    pending_answer = asker.submit(self._ask, stream, question, query)
                stream.join(0.2)
            if stream.error is not None:
                raise stream.error
            checker.check()
            if pending_answer is not None:
                pending_answer.result()
        draw_bar(stream.fraction, _speed(stream), last=True)

    def _ask(self, stream: Stream, question: str, query: str) -> None:
        began = SYSTEM_CLOCK.monotonic()
        done_before = stream.done
        rows = self._spark.sql(query).collect()
        seconds = SYSTEM_CLOCK.monotonic() - began
        header = list(rows[0].asDict()) if rows else ["(nothing yet)"]
        cells = [[_value_text(value) for value in row] for row in rows]
        say(
            "",
            f"   {question}",
            *indented(query, 5),
            *(f"       {line}" for line in text_table(header, cells, set(range(1, len(header))))),
            f"     answered in {seconds:.1f} s, from lake and stream; {stream.done - done_before:,} more changes came "
            "in meanwhile\n",
        )

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _draw_picture(self) -> None:
        print("5. Picture  average delay by the hour of departure, from the live table")
        rows = self._spark.sql(PICTURE).collect()
        most = max((row.delay for row in rows), default=0)
        for row in rows:
            length = round(BAR_CHARACTERS * max(row.delay, 0) / most) if most > 0 else 0
            print(f"   {row.hour:>2} h {'█' * length:<{BAR_CHARACTERS}} {row.delay:5.1f} min")

    def _prove(self, flights: pa.Table, checker: Checker) -> bool:
        behind = table_lag(self._connection, "nyc.flights").records
        print(f"6. Proof    many ways to the same rows; the lake is {behind:,} changelog records behind now")
        spark, table = self._spark, self._connection.table("nyc.flights")
        sources: list[tuple[str, Callable[[], Any]]] = [
            ("pandas on the source", lambda: flight_data.expected_state(flights)),
            (
                "Spark SQL: lake + stream",
                lambda: flight_data.comparable(spark.table("forebay.nyc.flights").toArrow()),
            ),
            ("union read in Python", lambda: flight_data.comparable(table.scan(source="union").to_arrow())),
            ("full scan of the stream", lambda: flight_data.comparable(table.scan().to_arrow())),
            ("changelog replayed", lambda: flight_data.comparable(changelog_state(table))),
        ]
        witnesses = []
        for name, rows in sources:
            with step(f"   {name:<24}", "..."):
                witnesses.append(Witness.of(name, rows()))
        sums = spark.sql(
            "SELECT count(*), sum(dep_delay), sum(arr_delay), sum(distance), sum(air_time) FROM forebay.nyc.flights"
        ).collect()[0]
        counts = spark.sql("SELECT kind, count(*) FROM forebay.nyc.events GROUP BY kind").collect()
        lake_flights, lake_events = self._lake_alone()
        name = f"lake alone: {self._lake.reader_name}"
        witnesses.append(Witness.of(name, flight_data.comparable(lake_flights)))
        logs = {
            "Spark SQL": {row[0]: row[1] for row in counts},
            name: {row["values"]: row["counts"] for row in lake_events["kind"].value_counts().to_pylist()},
        }
        disagreeing = sum(not check.agrees for check in checker.checks)
        proof = Proof(witnesses, tuple(sums), logs, flight_data.expected_events(flights))
        return proof.show(len(checker.checks), disagreeing)

    def _lake_alone(self) -> tuple[pa.Table, pa.Table]:
        """Both tables from the lake's files, after tiering the rest, read by a process without a server."""
        from forebay.spark.tiering import SparkRunner

        with step("   the rest into the lake  ", "..."):
            for outcome in tier_now(self._connection, TABLES, SparkRunner(self._spark.sparkContext)):
                if outcome.error is not None:
                    raise outcome.error
        with step(f"   {self._lake.reader_name} on the lake's files", "..."):
            tables = self._lake.read_alone()
        print("   in a process of its own, which knows of no server:")
        say(*indented(self._lake.program, 7))
        return tables


def _tiering_lines(service: TieringService) -> list[str]:
    """A line for each table, also for one whose first round a loaded machine has not begun by now."""
    begun = {str(status.path): status for status in service.status().tables}
    return [
        f"   tiering on Spark: {path}: {table.rounds} rounds, {table.rows:,} rows"
        + (f"; {table.failures} failed, at last with: {table.last_error}" if table.failures else "")
        for path in TABLES
        for table in [begun.get(path) or TableStatus(TablePath.parse(path), "waiting")]
    ]


def _speed(stream: Stream) -> str:
    rate = stream.done / stream.seconds if stream.seconds else 0
    return f"{stream.done:>9,} changes  {rate:>7,.0f}/s  {stream.day}"


def _value_text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def _say_how_to_go_on(address: str, lake: QuickstartLake, options: argparse.Namespace) -> None:
    if not options.serve and not options.bootstrap_servers:
        address = "127.0.0.1:9123"
        settings = " ".join(f"-D {key}={value}" for key, value in lake.settings.items())
        folder = Path(options.data_dir) / "stream"
        say("", "Serve the same tables again:", f"   forebay server --data-dir {folder} {settings}")
    print(f"""
Connect with
   Python    conn = forebay.connect("{address}")
             conn.table("nyc.flights").scan(["carrier", "dep_delay"], source="union").to_pandas()
   Spark     forebay.spark.attach(spark, bootstrap_servers="{address}")
             spark.sql("SELECT * FROM forebay.nyc.`flights$changelog` LIMIT 10").show()
   pyfluss   conn = await fluss.FlussConnection.create(fluss.Config({{"bootstrap.servers": "{address}"}}))
             table = await conn.get_table(fluss.TablePath("nyc", "flights"))
   Terminal  forebay scan nyc.flights -b {address} --where "carrier = 'HA'" -n 5
             forebay tiering -b {address}""")
    if options.serve:
        print("\nServing until Ctrl-C ...", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
