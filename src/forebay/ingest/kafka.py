"""From a topic of Apache Kafka into a live table, each message once.

Nouns: a *job* is the ingestion of one topic under a name; its *offsets* are, for each partition of the topic, the
offset of the next message. They are rows of a live table, and change in the transaction that writes the rows: a process
that is killed leaves both or neither. So Kafka's consumer groups are not used.

Flow: messages are polled until there are enough or the oldest has waited long enough; they become rows
(`forebay.ingest.messages`); one transaction writes the rows and the offsets.

Two processes with the same job: who begins a transaction ends that of the other one, and then reads the offsets again.
If these are not its own, the other one was faster, and this process ends with `Conflict`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import Conflict, InvalidRequest, NotFound, OutcomeUnknown, Unavailable, UnsupportedOperation
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.debezium.values import type_of
from forebay.ingest.messages import Message, MessageReading, MessageRows, RowRun, check_table, key_fields, read, runs
from forebay.metadata import types

_LOGGER = logging.getLogger("forebay")

FAIL, DROP = "fail", "drop"
"""What happens to messages that are wrong; or the name of a table, which takes them."""

IGNORE, ADD = "ignore", "add"
"""What happens to columns that the table does not have; or `FAIL`."""

EARLIEST, LATEST = "earliest", "latest"

OFFSETS_TABLE = "kafka_offsets"
_OFFSETS = {
    "job": "STRING NOT NULL", "topic": "STRING NOT NULL", "topic_partition": "INT NOT NULL", "next_offset": "BIGINT",
    "changed": "TIMESTAMP_LTZ(3)",
}  # fmt: skip
_WRONG = {
    "topic": "STRING", "topic_partition": "INT", "message_offset": "BIGINT", "reason": "STRING", "message_key": "BYTES",
    "message_value": "BYTES",
}  # fmt: skip

_POLL_SECONDS = 0.2
_PARTITIONS_SECONDS = 30.0
_FIRST_ANSWER_SECONDS = 30.0
_RETRY_SECONDS = 1.0


class Ending(Protocol):
    """A `threading.Event` that ends the job."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


@dataclass
class KafkaSource:
    """The source of a job: a topic, and how its messages are read."""

    servers: str
    topic: str
    reading: MessageReading = field(default_factory=MessageReading)
    start: str = EARLIEST
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of librdkafka, such as `security.protocol`."""


@dataclass
class Handling:
    """How much is taken at once, and what happens to what does not fit."""

    rows_max: int = 50_000
    linger_seconds: float = 1.0
    wrong: str = FAIL
    new_columns: str = FAIL


@dataclass
class Ingested:
    """The progress of a job since it began."""

    rows: int = 0
    wrong: int = 0
    commits: int = 0
    offsets: dict[int, int] = field(default_factory=dict)


class KafkaIngest:
    """The ingestion of a topic into a table; `run` does it. For one thread."""

    def __init__(
        self,
        connection: Connection,
        table: str,
        source: KafkaSource,
        job: str,
        handling: Handling | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.progress = Ingested()
        self._connection, self._source, self._job, self._clock = connection, source, job, clock
        self._handling = handling or Handling()
        self._kafka = _kafka()
        self._faults: list[str] = []
        self._table_name = table
        self._table: Table
        self._offsets_table: Table
        self._application = f"kafka/{job}/{source.topic}"
        self._version = 0
        self._partitions: list[int] = []
        self._next_look = 0.0
        self._ended: set[int] = set()

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def run(
        self,
        ending: Ending,
        *,
        until_end: bool = False,
        create: Callable[[dict[str, Any], list[str]], None] | None = None,
        on_commit: Callable[[Ingested], None] | None = None,
    ) -> Ingested:
        """Ingest until `ending` is set; with `until_end`, until there are no more messages.

        `create` creates a table that does not exist, given the columns and the primary key of the topic's rows. Raises
        `InvalidRequest` for a message that is wrong, `Conflict` if another process has the same job, and
        `UnsupportedOperation` on clusters without transactions.
        """
        consumer = self._consumer()
        try:
            self._open(consumer, create)
            self._seek(consumer)
            while not ending.is_set():
                self._look_for_partitions(consumer)
                messages = self._poll(consumer, ending)
                if messages:
                    self._take(consumer, messages, ending)
                    if on_commit is not None:
                        on_commit(self.progress)
                elif until_end and self._ended >= set(self._partitions):
                    break
            return self.progress
        finally:
            consumer.close()

    def _take(self, consumer: Any, messages: list[Message], ending: Ending) -> None:
        """Write messages; after an outage of the server go on from the offsets that it has."""
        try:
            self._write(messages)
        except (Unavailable, OutcomeUnknown) as e:
            _LOGGER.warning("forebay: %s. The messages since the last commit are read again.", e)
            while not ending.wait(_RETRY_SECONDS):
                try:
                    self._seek(consumer)
                except Unavailable:
                    continue
                break

    def _poll(self, consumer: Any, ending: Ending) -> list[Message]:
        messages: list[Message] = []
        deadline = None
        while not ending.is_set() and len(messages) < self._handling.rows_max:
            wait = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, deadline - self._clock.monotonic())
            if wait <= 0:
                break
            for message in consumer.consume(self._handling.rows_max - len(messages), wait):
                if message.error() is None:
                    self._ended.discard(message.partition())
                    messages.append(Message(message.partition(), message.offset(), message.key(), message.value()))
                else:
                    self._refuse_or_note(message)
            if messages and deadline is None:
                deadline = self._clock.monotonic() + self._handling.linger_seconds
            if self._ended >= set(self._partitions) and (not messages or self._handling.linger_seconds == 0):
                break
        return messages

    def _refuse_or_note(self, message: Any) -> None:
        error = message.error()
        if error.code() == self._kafka.KafkaError._PARTITION_EOF:
            self._ended.add(message.partition())
        elif error.code() == self._kafka.KafkaError._AUTO_OFFSET_RESET:
            raise InvalidRequest(
                f"partition {message.partition()} of topic {self._source.topic} does not have offset "
                f"{self.progress.offsets.get(message.partition())} any more, or not yet: messages were deleted before "
                "they were read, or the topic was created again. To load the topic from where it begins now, use "
                "another --job"
            )
        else:
            raise self._failure(f"partition {message.partition()} cannot be read: {error.str()}")

    def _failure(self, what: str) -> Unavailable:
        faults = f" ({self._faults[-1]})" if self._faults else ""
        return Unavailable(f"Kafka at {self._source.servers}, topic {self._source.topic}: {what}{faults}")

    # ---- beginning --------------------------------------------------------------------------------------------------

    def _consumer(self) -> Any:
        settings = {
            "bootstrap.servers": self._source.servers,
            "group.id": f"forebay-{self._job}",  # librdkafka wants one; nothing is committed to it
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "error_cb": self._note,
            "logger": _LOGGER,
            **self._source.settings,
        }
        try:
            return self._kafka.Consumer(settings)
        except self._kafka.KafkaException as e:
            raise InvalidRequest(f"Kafka's client refuses its settings: {e.args[0].str()}") from e

    def _note(self, error: Any) -> None:
        text = error.str()
        if text not in self._faults:
            _LOGGER.warning("forebay: Kafka at %s: %s", self._source.servers, text)
        self._faults = [text]

    def _open(self, consumer: Any, create: Callable[[dict[str, Any], list[str]], None] | None) -> None:
        self._partitions = self._topic_partitions(consumer)
        try:
            self._table = self._connection.table(self._table_name)
        except NotFound:
            if create is None:
                raise
            create(*self._first_columns(consumer))
            self._table = self._connection.table(self._table_name)
        check_table(self._table.info, self._source.reading)
        database = self._table.path.database
        self._offsets_table = self._connection.create_table(
            f"{database}.{OFFSETS_TABLE}", _OFFSETS, primary_key=["job", "topic", "topic_partition"], buckets=1,
            ignore_if_exists=True, comment="where forebay ingest continues: kept with the rows, in one transaction",
        ).at_server  # fmt: skip
        if self._handling.wrong not in (FAIL, DROP):
            self._connection.create_table(self._handling.wrong, _WRONG, ignore_if_exists=True)
        try:
            self._version = self._connection.admin.committed_version(self._application) or 0
        except UnsupportedOperation as e:
            raise UnsupportedOperation(
                f"the cluster at {self._connection.settings['bootstrap.servers']} has no transactions, so messages "
                "could be there twice: use Spark, whose upserts come out the same (docs/spark.md)"
            ) from e

    def _topic_partitions(self, consumer: Any) -> list[int]:
        try:
            topic = consumer.list_topics(self._source.topic, timeout=_FIRST_ANSWER_SECONDS).topics[self._source.topic]
        except self._kafka.KafkaException as e:
            raise self._failure(f"no answer: {e.args[0].str()}") from e
        if topic.error is not None:
            if topic.error.code() == self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise NotFound(f"Kafka at {self._source.servers} has no topic {self._source.topic}")
            raise self._failure(topic.error.str())
        return sorted(topic.partitions)

    def _first_columns(self, consumer: Any) -> tuple[dict[str, Any], list[str]]:
        """The columns that the first change event describes, and its key."""
        topic, begin = self._source.topic, self._kafka.OFFSET_BEGINNING
        consumer.assign([self._kafka.TopicPartition(topic, each, begin) for each in self._partitions])
        deadline = self._clock.monotonic() + _FIRST_ANSWER_SECONDS
        while self._clock.monotonic() < deadline:
            for each in consumer.consume(100, _POLL_SECONDS):
                if each.error() is None and each.value() is not None:
                    message = Message(each.partition(), each.offset(), each.key(), each.value())
                    rows = read([message], self._source.reading).rows
                    if not rows or not rows[0].fields or not key_fields(message):
                        raise InvalidRequest(
                            f"{self._at(message)} does not describe its columns and its key, so the table cannot be "
                            "created from it: create it (`forebay create`), or have Debezium send the schema part "
                            "(key.converter.schemas.enable, value.converter.schemas.enable)"
                        )
                    return self._columns_of(rows[0].fields, key_fields(message)), key_fields(message)
        raise NotFound(f"topic {topic} has no message yet that describes the columns of table {self._table_name}")

    def _columns_of(self, fields: Mapping[str, Any], key: Sequence[str]) -> dict[str, Any]:
        """The columns of a table for these fields. With a flag, deleted rows stay, and may lack all but their key."""
        reading = self._source.reading
        columns = {name: type_of(described) for name, described in fields.items()}
        if reading.deleted_column is not None:
            columns = {name: t if name in key else t.as_nullable() for name, t in columns.items()}
            columns[reading.deleted_column] = types.boolean().not_null()
        if reading.version_column is not None:
            columns[reading.version_column.name] = types.bigint().not_null()
        return columns

    def _seek(self, consumer: Any) -> None:
        """Read on from the offsets that the server has. Those where partitions begin are kept there at once."""
        self.progress.offsets = self._committed()
        self._version = max(self._version, self._connection.admin.committed_version(self._application) or 0)
        start = EARLIEST if self.progress.offsets else self._source.start  # partitions that were added since: all of it
        new = [partition for partition in self._partitions if partition not in self.progress.offsets]
        if new:
            first = {partition: self._first_offset(consumer, partition, start) for partition in new}
            self._commit(self.progress.offsets, first, MessageRows([], [], []), ())
        self._ended.clear()
        topic, at = self._source.topic, self.progress.offsets
        consumer.assign([self._kafka.TopicPartition(topic, each, at[each]) for each in self._partitions])

    def _first_offset(self, consumer: Any, partition: int, start: str) -> int:
        at = self._kafka.TopicPartition(self._source.topic, partition)
        try:
            low, high = consumer.get_watermark_offsets(at, timeout=_FIRST_ANSWER_SECONDS)
        except self._kafka.KafkaException as e:
            raise self._failure(f"partition {partition} has no offsets: {e.args[0].str()}") from e
        offset: int = high if start == LATEST else low
        return offset

    def _committed(self) -> dict[int, int]:
        place = {"job": self._job, "topic": self._source.topic}
        keys = [{**place, "topic_partition": partition} for partition in self._partitions]
        rows = self._offsets_table.lookup(keys).to_pylist()
        return {row["topic_partition"]: row["next_offset"] for row in rows if row["next_offset"] is not None}

    def _look_for_partitions(self, consumer: Any) -> None:
        """Notice partitions that were added to the topic."""
        if self._clock.monotonic() < self._next_look:
            return
        self._next_look = self._clock.monotonic() + _PARTITIONS_SECONDS
        try:
            partitions = self._topic_partitions(consumer)
        except Unavailable as e:
            _LOGGER.warning("forebay: %s", e)
            return
        if partitions != self._partitions:
            self._partitions = partitions
            self._seek(consumer)

    # ---- writing ----------------------------------------------------------------------------------------------------

    def _write(self, messages: Sequence[Message]) -> None:
        batch = read(messages, self._source.reading)
        self._fit(batch)
        rows = runs(batch, self._table.info, self._source.reading)
        if batch.wrong and self._handling.wrong == FAIL:
            message, reason = batch.wrong[0]
            raise InvalidRequest(
                f"{self._at(message)}: {reason}. Correct the table or the source, or set such messages aside with "
                "--wrong TABLE, or leave them out with --wrong drop"
            )
        ends = dict(self.progress.offsets)
        for each in messages:
            ends[each.partition] = max(ends[each.partition], each.offset + 1)
        begins = self.progress.offsets
        moved = {partition: end for partition, end in ends.items() if end != begins[partition]}
        self._commit(begins, moved, batch, rows)
        self.progress.commits += 1
        self.progress.rows += sum(run.rows.num_rows for run in rows)
        self.progress.wrong += len(batch.wrong)

    def _commit(
        self, begins: Mapping[int, int], moved: Mapping[int, int], batch: MessageRows, rows: Sequence[RowRun]
    ) -> None:
        """One transaction: the rows, and the offsets behind them."""
        with self._connection.transaction(self._application, self._version + 1) as tx:
            if tx.committed is not None:
                raise OutcomeUnknown(f"{tx} was committed, although its answer was lost")
            self._check_alone(begins)
            for run in rows:
                if self._table.has_primary_key:
                    tx.write_changes(self._table, run.rows, run.columns)
                else:
                    tx.append(self._table, run.rows)
            if batch.wrong and self._handling.wrong != DROP:
                tx.append(self._handling.wrong, [self._as_row(*each) for each in batch.wrong])
            tx.upsert(self._offsets_table, self._as_rows(moved))
        self._version += 1
        self.progress.offsets |= moved

    def _check_alone(self, begins: Mapping[int, int]) -> None:
        """No other process can commit the job's transactions now, so the offsets stay as they are."""
        for partition, offset in self._committed().items():
            if offset != begins.get(partition):
                raise Conflict(
                    f"another process has ingested partition {partition} of topic {self._source.topic} as job "
                    f"'{self._job}' up to offset {offset}, this one up to {begins.get(partition, 'nothing')}: a job "
                    "runs once"
                )

    def _fit(self, batch: MessageRows) -> None:
        """Add columns that rows have and the table lacks, or refuse them."""
        new_field = None if self._handling.new_columns == IGNORE else batch.new_field(self._table.info)
        if new_field is not None:
            raise InvalidRequest(
                f"messages of topic {self._source.topic} have the field '{new_field}', which the type of its column in "
                f"table {self._table.path} lacks: leave it out with --new-columns ignore, or create a table that has it"
            )
        strange = batch.strange(self._table.info)
        if strange and self._handling.new_columns != IGNORE:
            self._table = self._table.refresh()
            strange = batch.strange(self._table.info)
        if not strange or self._handling.new_columns == IGNORE:
            return
        if self._handling.new_columns == FAIL:
            raise InvalidRequest(
                f"messages of topic {self._source.topic} have the column '{min(strange)}', which table "
                f"{self._table.path} lacks: add it, or use --new-columns add, or leave it out with --new-columns ignore"
            )
        plain = [name for name, described in strange.items() if not described]
        if plain:
            raise InvalidRequest(
                f"messages of topic {self._source.topic} have the column '{plain[0]}', but no schema part that says of "
                f"which type: add it to table {self._table.path} with ALTER TABLE"
            )
        for name, described in strange.items():
            _LOGGER.warning("forebay: column '%s' is added to table %s", name, self._table.path)
            self._table.alter(add_columns={name: type_of(described).as_nullable()})
        self._table = self._table.refresh()

    def _as_rows(self, moved: Mapping[int, int]) -> pa.Table:
        now = self._clock.now_ms()
        place = {"job": self._job, "topic": self._source.topic, "changed": now}
        rows = [{**place, "topic_partition": partition, "next_offset": offset} for partition, offset in moved.items()]
        return pa.Table.from_pylist(rows, self._offsets_table.arrow_schema)

    def _as_row(self, message: Message, reason: str) -> dict[str, Any]:
        return {
            "topic": self._source.topic, "topic_partition": message.partition, "message_offset": message.offset,
            "reason": reason, "message_key": message.key, "message_value": message.value,
        }  # fmt: skip

    def _at(self, message: Message) -> str:
        return f"message {message.offset} of partition {message.partition} of topic {self._source.topic}"


def _kafka() -> Any:
    try:
        import confluent_kafka
    except ImportError as e:
        raise UnsupportedOperation("ingesting from Kafka needs confluent-kafka: pip install 'forebay[kafka]'") from e
    return confluent_kafka
