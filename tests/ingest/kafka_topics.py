"""Topics of a Kafka broker, for tests: created, written and grown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic


class Topics:
    def __init__(self, servers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 20, "log_level": 0})

    def create(self, name: str, partitions: int = 1, **settings: str) -> str:
        self._done(self._admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))
        return name

    def grow(self, name: str, partitions: int) -> None:
        self._done(self._admin.create_partitions([NewPartitions(name, partitions)]))

    def delete_before(self, name: str, partition: int, offset: int) -> None:
        place = confluent_kafka.TopicPartition(name, partition, offset)
        self._done(self._admin.delete_records([place]))

    def send(self, name: str, messages: Iterable[tuple[int, bytes | None, bytes | None]]) -> None:
        """Send (partition, key, value) in their order."""
        for partition, key, value in messages:
            while True:
                try:
                    self._producer.produce(name, value, key, partition)
                    break
                except BufferError:
                    self._producer.poll(0.1)
                except confluent_kafka.KafkaException as e:  # it has not heard of a new partition
                    if e.args[0].code() != confluent_kafka.KafkaError._UNKNOWN_PARTITION:
                        raise
                    self._producer.list_topics(name, timeout=10)
        assert self._producer.flush(60) == 0

    @staticmethod
    def _done(futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(60)
