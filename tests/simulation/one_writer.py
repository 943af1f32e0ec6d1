"""Clients with one writer id in a history: a client that is still at work somewhere, and its copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.base.errors import ForebayError
from forebay.base.retrying import may_repeat
from forebay.client.connection import Connection
from forebay.client.writing.encode import APPEND, UPSERT, WriteEncoder, seal
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import error_of, table_path_to_pb
from tests.simulation.histories import NEVER
from tests.simulation.scheduler import SimEvent

if TYPE_CHECKING:
    from tests.simulation.workload import Workload

_TRIES = 6
_SEQUENCES = 4
"""Fewer batches than a server remembers of a writer, so that each repetition is recognized."""


@dataclass
class Batch:
    """An encoded batch with its writer id and sequence; `values` are those of keys, `numbers` those of log rows."""

    request: Any
    values: dict[int, str]
    numbers: list[int]
    asked: float = 0.0
    answered: float = NEVER


class OneWriter:
    """Clients that send the same batches under one writer id, at once: each batch is there once, whoever was first."""

    def __init__(self, load: Workload, kv: str, log: str) -> None:
        self.load, self.sched, self.rng = load, load.sched, load.rng
        self._kv, self._log = kv, log

    def twin(self, connection: Connection, who: str) -> None:
        """Write some batches over this connection, and over another one at the same time."""
        load = self.load
        batches = self._batches(connection, who)
        process = next(each for each in load.processes if who.startswith(f"{each.name}."))
        other = load.world.connect(process)
        done = SimEvent(self.sched)

        def send_beside() -> None:
            self._send(other, batches, f"{who} twin")
            done.set()

        try:
            self.sched.spawn(process, send_beside, name="twin")
            self._send(connection, batches, who)
            done.wait()
            other.close(timeout=1)
        finally:
            for batch in batches:
                if batch.asked:
                    self._note(batch, who)

    def _note(self, batch: Batch, who: str) -> None:
        for key, value in batch.values.items():
            self.load.record(key, True, value, batch.asked, batch.answered, who)
        for n in batch.numbers:
            self.load.seen.appended[n] = "unknown" if batch.answered == NEVER else "acked"

    def _batches(self, connection: Connection, who: str) -> list[Batch]:
        is_keyed = self.rng.random() < 0.5
        table = connection.table(self._kv if is_keyed else self._log)
        name = pb.InitWriterRequest(table_path=[table_path_to_pb(table.path)])
        writer_id = _ask(connection, ApiKey.INIT_WRITER, name, pb.InitWriterResponse).writer_id
        key, bucket = self.rng.randrange(self.load.keys), self.rng.randrange(2)
        encoder = WriteEncoder.of(connection.settings, table.info)
        made = []
        for sequence in range(self.rng.randint(1, _SEQUENCES)):
            n = self.load.number()
            value = f"{who}#{n}"
            row = {"id": key, "name": value} if is_keyed else {"n": n, "who": who}
            [rows] = encoder.batches(UPSERT if is_keyed else APPEND, [row], list(row))
            if is_keyed:
                _, target = encoder.columns_of(UPSERT, None)
                [piece] = encoder.kv_pieces([encoder.keyed(UPSERT, rows, target)])
            else:
                [piece] = encoder.log_pieces(rows)
            seal(piece.data, is_keyed, writer_id, sequence)
            request: Any = (pb.PutKvRequest if is_keyed else pb.ProduceLogRequest)(
                acks=-1, table_id=table.info.table_id, timeout_ms=3000
            )
            place = piece.bucket if piece.bucket is not None else bucket
            request.buckets_req.add(bucket_id=place, records=bytes(piece.data))
            made.append(Batch(request, {key: value} if is_keyed else {}, [] if is_keyed else [n]))
        return made

    def _send(self, connection: Connection, batches: list[Batch], who: str) -> None:
        """Send the batches in order; each is sent again until it is acknowledged, or there is no sense in it."""
        for number, batch in enumerate(batches):
            for _ in range(_TRIES):
                self.sched.sleep(self.rng.random() ** 3 * 0.2)
                batch.asked = batch.asked or self.sched.now
                for n in batch.numbers:
                    self.load.seen.appended.setdefault(n, "unknown")
                try:
                    self._send_one(connection, batch)
                except ForebayError as e:
                    self.load.judge(e, f"{who}, batch {number}")
                    if not may_repeat(e):
                        return
                    continue
                batch.answered = min(batch.answered, self.sched.now)
                self.load.world.count("batches of one writer id")
                break
            else:
                return

    def _send_one(self, connection: Connection, batch: Batch) -> None:
        is_keyed = bool(batch.values)
        response: Any = pb.PutKvResponse if is_keyed else pb.ProduceLogResponse
        key = ApiKey.PUT_KV if is_keyed else ApiKey.PRODUCE_LOG
        [answer] = _ask(connection, key, batch.request, response).buckets_resp
        error = error_of(answer)
        if error is not None:
            raise error


def _ask(connection: Connection, key: ApiKey, request: Any, response: Any) -> Any:
    cluster = connection.cluster
    nodes = list(cluster.view.tablet_servers.values()) or list(cluster.refresh().tablet_servers.values())
    return cluster.call(nodes[0], key, request, response)
