"""`forebay quickstart`: the main job on real data, explained step by step, and proven at the end.

A server starts in this process, Spark attaches to it, and a year of flights (forebay.cli.flights) streams into a
primary-key table and a log table, while Spark SQL answers questions about the live state. In the end four witnesses
must agree to the row: Spark SQL, a live full scan, a replay of the changelog, and pandas on the source.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.base.clock import SYSTEM_CLOCK
from forebay.base.errors import UnsupportedOperation
from forebay.cli import flights as flight_data
from forebay.cli.output import text_table
from forebay.cli.proof import Witness, changelog_state, check_witnesses
from forebay.inprocess import EmbeddedConnection, embedded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from forebay.cli.flights import Moment

CREATE_FLIGHTS = """CREATE TABLE forebay.nyc.flights (
    day DATE NOT NULL, carrier STRING NOT NULL, flight INT NOT NULL, origin STRING NOT NULL,
    dest STRING, tailnum STRING, distance INT, scheduled TIMESTAMP,
    status STRING, dep_delay INT, arr_delay INT, air_time INT)
TBLPROPERTIES ('primary.key' = 'day,carrier,flight,origin', 'bucket.num' = '4')"""

CREATE_EVENTS = """CREATE TABLE forebay.nyc.events (
    at TIMESTAMP, kind STRING,
    day DATE, carrier STRING, flight INT, origin STRING, delay INT)
TBLPROPERTIES ('bucket.num' = '2')"""

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

_BAR_CHARACTERS = 40


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    parser.add_argument(
        "--data-dir", default="quickstart-data", metavar="DIR", help="where the tables live (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="the server's port (default: one that is free)")
    parser.add_argument("--days", type=int, metavar="N", help="stream the first N days of the year only")
    parser.add_argument("--serve", action="store_true", help="go on serving the tables afterwards, until Ctrl-C")


def run(options: argparse.Namespace) -> int:
    """Exit code 0 if the proof holds."""
    _require_spark()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    print("Forebay quickstart: a year of flights streams into live tables, and Spark SQL asks about them meanwhile.\n")
    with contextlib.ExitStack() as stack:
        with _step("1. Server", "starting"):
            connection = stack.enter_context(embedded(options.data_dir, port=options.port))
        print(
            f"   {connection.bootstrap_servers} speaks the Apache Fluss protocol; its tables live in {options.data_dir}"
        )
        with _step("2. Spark", "starting (no jar, no cluster: a catalog written in Python)"):
            spark = _spark(connection)
        stack.callback(spark.stop)
        print(f"   PySpark {spark.version}, catalog 'forebay' attached")
        return _main_job(connection, spark, options)


def _require_spark() -> None:
    try:
        import pandas
        import pyspark
    except ImportError as e:
        raise UnsupportedOperation(f"the quickstart needs {e.name}: pip install 'forebay[quickstart]'") from e
    del pandas, pyspark


def _main_job(connection: EmbeddedConnection, spark: SparkSession, options: argparse.Namespace) -> int:
    print("3. Tables   made by Spark SQL")
    spark.sql("DROP DATABASE IF EXISTS forebay.nyc CASCADE")
    spark.sql("CREATE DATABASE forebay.nyc")
    for statement in (CREATE_FLIGHTS, CREATE_EVENTS):
        print("\n".join("   " + line for line in statement.splitlines()))
        spark.sql(statement)
    empty = spark.sql("SELECT count(*) FROM forebay.nyc.flights").collect()[0][0]  # wakes Spark's workers, too
    print(f"   SELECT count(*) FROM forebay.nyc.flights  ->  {empty}")
    with _step("4. Stream", "reading the source"):
        flights = flight_data.load_flights()
        if options.days is not None:
            flights = flight_data.first_days(flights, options.days)
    stream = Stream(connection, flights)
    print(
        f"   {flights.num_rows:,} flights: each announced, then updated when it leaves and lands, deleted if cancelled"
    )
    stream.start()
    _watch(stream, spark)
    print(
        f"   {stream.done:,} changes in {stream.seconds:.1f} s: {stream.done / stream.seconds:,.0f} a second into the "
        f"primary-key table, and again into the log table, each durable when acknowledged"
    )
    _draw_picture(spark)
    good = _prove(connection, spark, flights)
    _say_how_to_go_on(connection, options)
    return 0 if good else 1


def _spark(connection: EmbeddedConnection) -> SparkSession:
    from forebay import spark as fb

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    quiet = Path(__file__).with_name("log4j2-quiet.properties").as_uri()
    conf = {
        "spark.driver.extraJavaOptions": f"-Dlog4j.configurationFile={quiet}",
        "spark.ui.enabled": False,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 4,
        "spark.ui.showConsoleProgress": False,
    }
    return fb.session("forebay-quickstart", "local[*]", conf, bootstrap_servers=connection.bootstrap_servers)


# ---- streaming ------------------------------------------------------------------------------------------------------


class Stream(threading.Thread):
    """Writes the year, moment by moment, as an application would. Others may read its fields while it runs."""

    def __init__(self, connection: EmbeddedConnection, flights: pa.Table) -> None:
        super().__init__(name="flights", daemon=True)
        self._flights = connection.table("nyc.flights")
        self._events = connection.table("nyc.events")
        self._source = flights
        self.total = flight_data.change_count(flights)
        self.done = 0
        self.day = ""
        self.seconds = 0.0
        self.error: Exception | None = None

    def run(self) -> None:
        began = SYSTEM_CLOCK.monotonic()
        try:
            for moment in flight_data.moments(self._source):
                self._write(moment)
                self.done += moment.change_count
                self.seconds = SYSTEM_CLOCK.monotonic() - began
        except Exception as e:  # noqa: BLE001 - whoever watches raises it
            self.error = e

    def _write(self, moment: Moment) -> None:
        for rows in (moment.announced, moment.departed, moment.arrived):
            if rows.num_rows:
                self._flights.upsert(rows, columns=rows.column_names)
        if moment.cancelled.num_rows:
            self._flights.delete(moment.cancelled)
        if moment.events.num_rows:
            self._events.append(moment.events)
            self.day = str(moment.events["at"][-1].as_py().date())

    @property
    def fraction(self) -> float:
        return self.done / max(self.total, 1)


def _watch(stream: Stream, spark: SparkSession) -> None:
    """Show how far the stream is, and ask Spark a question now and then; the stream goes on meanwhile."""
    questions = list(QUESTIONS)
    while stream.is_alive():
        _draw_progress(stream)
        if questions and stream.fraction >= questions[0][0]:
            _, question, query = questions.pop(0)
            _ask(stream, spark, question, query)
        stream.join(0.2)
    _draw_progress(stream, last=True)
    if stream.error is not None:
        raise stream.error


def _draw_progress(stream: Stream, last: bool = False) -> None:
    terminal = sys.stdout.isatty()
    if not terminal and not last:
        return
    filled = round(_BAR_CHARACTERS * stream.fraction)
    rate = stream.done / stream.seconds if stream.seconds else 0
    bar = "█" * filled + "·" * (_BAR_CHARACTERS - filled)
    line = f"   {bar} {stream.fraction:4.0%}  {stream.done:>9,} changes  {rate:>7,.0f}/s  {stream.day}"
    print(f"\r{line}\033[K" if terminal else line, end="\n" if last else "", flush=True)


def _ask(stream: Stream, spark: SparkSession, question: str, query: str) -> None:
    began = SYSTEM_CLOCK.monotonic()
    done_before = stream.done
    rows = spark.sql(query).collect()
    seconds = SYSTEM_CLOCK.monotonic() - began
    _clear_line()
    print(f"   {question}")
    print("\n".join("     " + line for line in query.splitlines()))
    header = list(rows[0].asDict()) if rows else ["(nothing yet)"]
    cells = [[_shown(value) for value in row] for row in rows]
    for line in text_table(header, cells, set(range(1, len(header)))):
        print(f"       {line}")
    print(f"     answered in {seconds:.1f} s; {stream.done - done_before:,} more changes came in meanwhile\n")


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def _clear_line() -> None:
    if sys.stdout.isatty():
        print("\r\033[K", end="")


# ---- the end --------------------------------------------------------------------------------------------------------


def _draw_picture(spark: SparkSession) -> None:
    print("5. Picture  average delay by the hour of departure, from the live table")
    rows = spark.sql(PICTURE).collect()
    most = max((row.delay for row in rows), default=0)
    for row in rows:
        length = round(_BAR_CHARACTERS * max(row.delay, 0) / most) if most > 0 else 0
        print(f"   {row.hour:>2} h {'█' * length:<{_BAR_CHARACTERS}} {row.delay:5.1f} min")


def _prove(connection: EmbeddedConnection, spark: SparkSession, flights: pa.Table) -> bool:
    print("6. Proof    four ways to the same rows")
    table = connection.table("nyc.flights")
    sources: list[tuple[str, Callable[[], Any]]] = [
        ("pandas on the source", lambda: flight_data.expected_state(flights)),
        ("Spark SQL", lambda: flight_data.comparable(spark.table("forebay.nyc.flights").toArrow())),
        ("live full scan", lambda: flight_data.comparable(table.scan().to_arrow())),
        ("changelog replayed", lambda: flight_data.comparable(changelog_state(table))),
    ]
    witnesses = []
    for name, rows in sources:
        with _step(f"   {name}", "..."):
            witnesses.append(Witness.of(name, rows()))
    sums = spark.sql(
        "SELECT count(*), sum(dep_delay), sum(arr_delay), sum(distance), sum(air_time) FROM forebay.nyc.flights"
    ).collect()[0]
    log_rows = spark.sql("SELECT kind, count(*) FROM forebay.nyc.events GROUP BY kind").collect()
    counted = {row[0]: row[1] for row in log_rows}
    return check_witnesses(witnesses, tuple(sums), counted, flight_data.expected_events(flights))


def _say_how_to_go_on(connection: EmbeddedConnection, options: argparse.Namespace) -> None:
    address = connection.bootstrap_servers
    if not options.serve:
        address = "127.0.0.1:9123"
        print(f"\nServe the same tables again:\n   forebay server --data-dir {options.data_dir}")
    print(f"""
Connect with
   Python    conn = forebay.connect("{address}")
             conn.table("nyc.flights").scan(columns=["carrier", "dep_delay"]).to_pandas()
   Spark     forebay.spark.attach(spark, bootstrap_servers="{address}")
             spark.sql("SELECT * FROM forebay.nyc.`flights$changelog` LIMIT 10").show()
   pyfluss   conn = await fluss.FlussConnection.create(fluss.Config({{"bootstrap.servers": "{address}"}}))
             table = await conn.get_table(fluss.TablePath("nyc", "flights"))
   Terminal  forebay scan nyc.flights -b {address} -w "carrier = HA" -n 5""")
    if options.serve:
        print("\nServing until Ctrl-C ...", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


@contextlib.contextmanager
def _step(name: str, what: str) -> Iterator[None]:
    """A line that says what is going on, and how long it took once it is done."""
    print(f"{name:<11} {what}", end=" ", flush=True)
    began = SYSTEM_CLOCK.monotonic()
    yield
    print(f"({SYSTEM_CLOCK.monotonic() - began:.1f} s)")
