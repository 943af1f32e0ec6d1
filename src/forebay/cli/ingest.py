"""`forebay ingest`: from a topic of Apache Kafka into a live table, each message once."""

from __future__ import annotations

import argparse
from typing import Any

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import InvalidRequest
from forebay.base.indirect import resolved, settings_of
from forebay.cli.connecting import add_connection_arguments, connected
from forebay.cli.create import CreatedTable, complete, create, definition_arguments
from forebay.cli.jobs import definitions, ended_by_signals, waiting_for_no_server
from forebay.metadata.merge_engines import VERSIONED

_EPILOG = """Messages are Debezium's change events in JSON, with their schema part or without, into a primary-key table;
or plain JSON objects, whose fields are the columns, into any table. Where the job stands is kept in the table
DATABASE.kafka_offsets, in the same transactions as the rows: after a crash of any process each message has been written
once. Stop it with Ctrl-C or SIGTERM, and start it again at any time.

examples:
  forebay ingest sales.orders --kafka 127.0.0.1:9092 --topic shop.public.orders
  forebay ingest sales.orders --kafka 127.0.0.1:9092 --topic shop.public.orders --create --new-columns add
  forebay ingest sales.orders --kafka kafka:9092 --topic orders --deleted-column gone --version-column lsn=source.lsn
  forebay ingest sales.clicks --kafka kafka:9092 --topic clicks --kafka-format json --wrong sales.wrong_clicks
  forebay ingest sales.orders --kafka kafka:9093 --topic orders --kafka-options-file sasl.properties

Exit codes: 0 stopped, or all was read (--until-end), 1 error, 2 wrong usage."""

_SECONDS_BETWEEN_LINES = 10.0


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay ingest`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("table", help="the table, as database.table")
    parser.add_argument("--kafka", metavar="HOST:PORT", required=True, help="the brokers, separated by commas")
    parser.add_argument("--topic", required=True, help="the topic")
    parser.add_argument(
        "--job", default="ingest",
        help="the name under which offsets are stored; a new name starts from the beginning (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--kafka-format", choices=("debezium", "json"), default="debezium", help="(default: debezium)")
    parser.add_argument(
        "--start", choices=("earliest", "latest"), default="earliest",
        help="where a job without stored offsets starts (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--until-end", action="store_true", help="exit when all messages have been read")
    parser.add_argument(
        "--wrong", metavar="fail|drop|TABLE", default="fail",
        help="what happens to messages that do not fit: the job ends, they are left out, or go to a log table, which "
        "is created (default: fail)",
    )  # fmt: skip
    parser.add_argument(
        "--new-columns", choices=("fail", "add", "ignore"), default="fail",
        help="what happens to columns that the table does not have (default: fail); add needs the schema part",
    )  # fmt: skip
    deletes = parser.add_mutually_exclusive_group()
    deletes.add_argument(
        "--deleted-column", metavar="COLUMN",
        help="a delete sets this BOOLEAN column to true and leaves the row; every other change sets it to false",
    )  # fmt: skip
    deletes.add_argument("--ignore-deletes", action="store_true", help="leave deletes out: their rows stay")
    parser.add_argument(
        "--version-column", metavar="COLUMN=FIELD",
        help="fill a column from a field of the event, by which a table with the merge engine 'versioned' keeps the "
        "latest row of a key: source.lsn, source.ts_ms, ts_ms, binlog (of MySQL), or kafka.offset",
    )  # fmt: skip
    parser.add_argument(
        "--time-unit", choices=("s", "ms", "us", "ns"),
        help="the unit of numeric times in messages without a schema part",
    )  # fmt: skip
    parser.add_argument(
        "--batch-rows", type=int, default=50_000, metavar="N", help="maximum number of messages in a transaction"
    )
    parser.add_argument(
        "--linger",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="how long to wait for further messages, in seconds (default: 1)",
    )
    parser.add_argument(
        "--kafka-option", action="append", default=[], metavar="key=value",
        help="a setting of librdkafka, such as security.protocol; a secret as '${env:NAME}'; may be repeated",
    )  # fmt: skip
    parser.add_argument("--kafka-options-file", metavar="FILE", help="a file with such settings, key=value in lines")
    parser.add_argument(
        "--create", action="store_true", help="create the table as Debezium's messages describe it, if there is none"
    )
    definition_arguments(parser)
    add_connection_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Ingest until the topic's end or until stopped; print progress; return the exit code."""
    from forebay.debezium.marks import VersionColumn
    from forebay.ingest.kafka import Handling, Ingested, KafkaIngest, KafkaSource
    from forebay.ingest.messages import VERSION_OPTION, MessageReading

    if options.batch_rows < 1 or options.linger < 0:
        raise InvalidRequest("--batch-rows is at least 1, and --linger at least 0")
    settings = settings_of(options.kafka_options_file) if options.kafka_options_file else {}
    settings |= definitions(options.kafka_option)
    version = None if options.version_column is None else VersionColumn.parse(options.version_column)
    reading = MessageReading(
        options.kafka_format, options.time_unit, options.deleted_column, version, options.ignore_deletes
    )
    source = KafkaSource(
        options.kafka, options.topic, reading, options.start,
        {key: resolved(key, value) for key, value in settings.items()},
    )  # fmt: skip
    handling = Handling(options.batch_rows, options.linger, options.wrong, options.new_columns)
    shown = SYSTEM_CLOCK.monotonic()

    def show(progress: Ingested, now: bool = False) -> None:
        nonlocal shown
        if now or SYSTEM_CLOCK.monotonic() - shown > _SECONDS_BETWEEN_LINES:
            shown = SYSTEM_CLOCK.monotonic()
            places = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(progress.offsets.items()))
            wrong = f", {progress.wrong:,} wrong" if progress.wrong else ""
            print(f"{options.table}: {progress.rows:,} rows{wrong}; next offsets {places}", flush=True)

    with connected(options) as connection, ended_by_signals() as ending, waiting_for_no_server(connection, ending):

        def create_table(columns: dict[str, Any], key: list[str]) -> None:
            definition = CreatedTable(options.table, columns, primary_key=key)
            complete(definition, options)
            if version is not None and "table.merge-engine" not in definition.options:
                definition.options |= {"table.merge-engine": VERSIONED, VERSION_OPTION: version.name}
            create(definition, connection, {})
            print(f"created {options.table}", flush=True)

        job = KafkaIngest(connection, options.table, source, options.job, handling)
        progress = job.run(
            ending, until_end=options.until_end, create=create_table if options.create else None, on_commit=show
        )
        show(progress, now=True)
    return 0
