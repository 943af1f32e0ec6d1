"""The actors of a history: writers and readers of some tables, and tiering workers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from forebay.base.errors import Conflict, CorruptData, ForebayError, InternalError, NotFound
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.client.transaction import Transaction
from forebay.metadata.predicate import Predicate, col
from forebay.metadata.table import TableBucket
from tests.simulation.drivers import Drivers
from tests.simulation.histories import NEVER, Op
from tests.simulation.merging import ENGINES, MERGED, Merging
from tests.simulation.one_writer import OneWriter
from tests.simulation.partitions import PARTS, Partitions
from tests.simulation.scheduler import Process, Stop
from tests.simulation.world import Damage, World

KV, LOG = "sim.kv", "sim.log"
KEYS = 8
EXTRA = "extra"
"""A column that is added to a table in the middle of a history."""

Row = dict[str, Any]


@dataclass
class View:
    """Rows that a reader took for the table's at these log offsets."""

    what: str
    rows: dict[int, str]
    offsets: dict[TableBucket, int]


@dataclass
class Staged:
    """The rows that a transaction has staged: values of keys, numbers of the log. `outcome`: committed, dropped, or
    unknown. `read`, if it watched the table, are the values that it has read and written over. `job` is the application
    and version, of which only one attempt may count."""

    who: str
    job: tuple[str, int]
    values: dict[int, str]
    numbers: list[int]
    read: dict[int, str | None] | None = None
    outcome: str = "unknown"


@dataclass
class Seen:
    """What all clients saw. `log_rows` are the changes that log readers got, by table, bucket and offset."""

    ops: dict[int, list[Op]] = field(default_factory=dict)
    log_rows: dict[tuple[str, int, int], tuple[str, Any, Any]] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    transactions: list[Staged] = field(default_factory=list)
    cuts: list[tuple[str, dict[str, dict[int, int]]]] = field(default_factory=list)
    """Offsets by table and bucket at one time each, and who asked for them."""
    committed: set[tuple[str, int]] = field(default_factory=set)
    """The applications and versions that a client was told are committed."""
    appended: dict[int, str] = field(default_factory=dict)
    """Numbers of rows that were given to the log table: acked, or unknown."""
    skipped: set[tuple[str, int, int]] = field(default_factory=set)
    """Offsets that a log reader has not given a row for."""
    lake_offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    rolled_back: set[str] = field(default_factory=set)
    """Tables whose lake tables another program has rolled back."""
    table_ids: dict[str, int] = field(default_factory=dict)
    extras: dict[tuple[str, Any], str | None] = field(default_factory=dict)
    """What the column that may be added must hold, by table and what tells a write from all others."""

    def check_extra(self, path: str, row: Row) -> None:
        """A row has of the added column what was written, and null where the writer did not know of it."""
        wanted = self.extras.get((path, row.get("name", row.get("n"))))
        if row.get(EXTRA, wanted) != wanted:
            raise Damage(f"{row} of {path}: column {EXTRA} should be {wanted!r}")


class Workload:
    def __init__(self, world: World, *, lake: bool, actors: int, steps: int) -> None:
        self.world, self.sched, self.rng = world, world.sched, world.rng
        self.seen = Seen()
        self.lake = lake
        self.steps = steps
        self.actors_left = actors
        self.actors = actors
        self.numbers = 0
        self.keys = KEYS
        self.partitions = Partitions(self, has_key=self.rng.random() < 0.5)
        self.merging = Merging(self, self.rng.choice((*ENGINES, "aggregation")))
        self.drivers = Drivers(self)
        self.writer = OneWriter(self, KV, LOG)
        self.ready = False
        self.processes: list[Process] = []
        self.workers: list[Process] = []
        world.processes = self.processes

    # ---- setting up -------------------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        process = Process(name)
        self.processes.append(process)
        return process

    def set_up(self) -> None:
        """Make the tables; called by an actor, and repeated until it is done."""
        process = self.process("setup")
        self.sched.spawn(process, self._make_tables, process, name="setup")

    def _make_tables(self, process: Process) -> None:
        connection = self.world.connect(process)
        tiered = {"table.datalake.enabled": "true", "table.datalake.freshness": "2 s"} if self.lake else {}
        log_format = self.rng.choice(("ARROW", "ARROW", "INDEXED"))
        while True:
            try:
                connection.create_database("sim", ignore_if_exists=True)
                connection.create_table(
                    KV, {"id": pa.int32(), "name": pa.string()}, primary_key=["id"], buckets=2, options=tiered,
                    ignore_if_exists=True,
                )  # fmt: skip
                connection.create_table(
                    LOG, {"n": pa.int64(), "who": pa.string()}, buckets=2,
                    options={**tiered, "table.log.format": log_format}, ignore_if_exists=True,
                )  # fmt: skip
                self.partitions.make_table(connection)
                self.merging.make_table(connection, tiered)
                for path in (KV, LOG, PARTS, MERGED):
                    self.seen.table_ids[path] = connection.admin.table_info(path).table_id
                break
            except ForebayError as e:
                self.judge(e, "setup")
                self.sched.sleep(0.5)
        try:
            connection.close(timeout=1)
        except ForebayError as e:
            self.judge(e, "setup")
        self.ready = True
        self.world.note("ready")

    def judge(self, error: BaseException, doing: str) -> None:
        """An error that a client got must be one that tells of what happened."""
        world = self.world
        world.count(f"errors: {type(error).__name__}")
        world.note(f"{doing}: {type(error).__name__} {str(error)[:160]}")
        if isinstance(error, Stop):
            raise error
        if isinstance(error, CorruptData) and not world.damaged:
            raise Damage(f"{doing}: data that nobody damaged is called damaged: {error}") from error
        if isinstance(error, InternalError) or not isinstance(error, ForebayError):
            raise Damage(f"{doing}: {type(error).__name__}: {error}") from error

    # ---- actors -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        for number in range(self.actors):
            process = self.process(f"client-{number}")
            self.sched.spawn(process, self.act, number, process, self.steps, name=f"actor-{number}")

    def act(self, number: int, process: Process, steps: int) -> None:
        """One client: a few dozen operations, one after the other."""
        sched, rng, world = self.sched, self.rng, self.world
        while not self.ready:
            sched.sleep(0.1)
        who = process.name
        options = {}
        if rng.random() < 0.3:
            options["client.writer.max-inflight-requests-per-bucket"] = str(rng.randint(1, 5))
        connection = world.connect(process, **options)
        reader = _Reader(self, connection, who)
        for step in range(steps):
            sched.sleep(rng.random() ** 2 * 0.8)
            action = rng.choices(
                (
                    self.upsert,
                    self.delete,
                    self.buffered,
                    self.append,
                    self.transact,
                    self.lookup,
                    self.scan,
                    self.snapshot,
                    self.union,
                    self.cut,
                    self.widen,
                    self.partitions.write,
                    self.partitions.change,
                    self.merging.write,
                    self.writer.twin,
                ),
                weights=(10, 3, 2, 6, 6, 9, 2, 1, 2 if self.lake else 0, 2, 0.5, 4, 1.5, 5, 2),
            )[0]
            world.count(action.__name__)
            try:
                action(connection, f"{who}.{step}")
                if rng.random() < 0.3:
                    reader.poll()
            except ForebayError as e:
                self.judge(e, f"{who}.{step} {action.__name__}")
        try:
            connection.close(timeout=5)
        except ForebayError as e:
            self.judge(e, f"{who} close")
        self.actors_left -= 1
        world.note(f"{who} done")

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _keys(self, most: int = 3) -> list[int]:
        return self.rng.sample(range(KEYS), self.rng.randint(1, most))

    def record(self, key: int, is_write: bool, value: Any, asked: float, answered: float, who: str) -> None:
        self.seen.ops.setdefault(key, []).append(Op(is_write, value, asked, answered, who))

    def _write(self, work: Any, values: dict[int, Any], who: str) -> None:
        """Write; whatever becomes of it is put into the history."""
        asked, answered = self.sched.now, NEVER
        try:
            work()
            answered = self.sched.now
            self.world.count("acknowledged")
        finally:
            for key, value in values.items():
                self.record(key, True, value, asked, answered, who)
            self.world.note(f"{who} wrote {sorted(values.items())} {answered < NEVER}")

    def upsert(self, connection: Connection, who: str) -> None:
        values = {key: f"{who}#{self.number()}" for key in self._keys()}
        table = connection.table(KV)
        rows = [self._widened(table, {"id": key, "name": value}) for key, value in values.items()]
        self._write(lambda: table.upsert(rows), values, who)

    def delete(self, connection: Connection, who: str) -> None:
        keys = self._keys(2)
        table = connection.table(KV)
        self._write(lambda: table.delete([{"id": key} for key in keys]), dict.fromkeys(keys), who)

    def buffered(self, connection: Connection, who: str) -> None:
        """Several rows through a buffered writer, each key once: flushed together."""
        values = {key: f"{who}#{self.number()}" for key in self._keys(5)}
        table = connection.table(KV)

        def write() -> None:
            with table.writer() as writer:
                for key, value in values.items():
                    writer.upsert(self._widened(table, {"id": key, "name": value}))
                    if self.rng.random() < 0.3:
                        self.sched.sleep(self.rng.random() * 0.1)

        self._write(write, values, who)

    def append(self, connection: Connection, who: str) -> None:
        numbers = [self.number() for _ in range(self.rng.randint(1, 4))]
        for n in numbers:
            self.seen.appended[n] = "unknown"
        table = connection.table(LOG)
        table.append([self._widened(table, {"n": n, "who": who}) for n in numbers])
        self.world.count("acknowledged")
        for n in numbers:
            self.seen.appended[n] = "acked"
        self.world.note(f"{who} appended {numbers}")

    def transact(self, connection: Connection, who: str) -> None:
        """A transaction of both tables: its job is repeated while its outcome is unknown."""
        application = self.rng.choice(("shared", who.partition(".")[0]))
        version = self.number()
        before: Staged | None = None
        for repetition in range(3):
            try:
                tx = connection.transaction(application, version).begin()
            except Conflict:
                return  # another driver was faster, with a later version: it says nothing of an earlier attempt
            if before is not None:
                before.outcome = "dropped" if tx.committed is None else "committed"
            if tx.committed is not None:
                self.seen.committed.add((application, version))
                self.world.count("transactions found committed")
                return
            before = self.stage_and_commit(connection, tx, f"{who}.{repetition}")
            if before.outcome != "unknown":
                return

    def stage_and_commit(
        self,
        connection: Connection,
        tx: Transaction,
        who: str,
        *,
        is_shared: Callable[[], bool] = lambda: False,
        before_commit: Callable[[], object] = lambda: None,
    ) -> Staged:
        """Stage rows and commit them. If it `is_shared`, those of another driver may count instead."""
        values = {key: f"{who}#{self.number()}" for key in self._keys()}
        numbers = [self.number() for _ in range(self.rng.randint(1, 3))]
        staged = Staged(who, (tx.application, tx.version), values, numbers)
        self.seen.transactions.append(staged)
        kv, log = connection.table(KV), connection.table(LOG)
        asked, answered = self.sched.now, NEVER
        try:
            if self.rng.random() < 0.5:
                tx.watch(kv)
                found = kv.lookup([{"id": key} for key in values]).to_pylist()
                staged.read = {key: row["name"] for key, row in zip(values, found, strict=True)}
            for key, value in values.items():
                tx.upsert(kv, [self._widened(kv, {"id": key, "name": value})])
            tx.append(log, [self._widened(log, {"n": n, "who": who}) for n in staged.numbers])
            tx.upsert(MERGED, self.merging.rows(self.rng.randint(1, 3), staged_by=who))
            if self.rng.random() < 0.3:
                self.sched.sleep(self.rng.random())
            if self.rng.random() < 0.1:
                tx.abort()
                staged.outcome = "dropped"
                return staged
            if self.rng.random() < 0.5:
                process = next(each for each in self.processes if who.startswith(f"{each.name}."))
                beside = self._upsert_soon if staged.read is not None else self._look_soon
                self.sched.spawn(process, beside, connection, f"{who} beside", name="beside")
            asked = self.sched.now
            before_commit()
            tx.commit()
            self.seen.committed.add(staged.job)
            if not is_shared():
                staged.outcome, answered = "committed", self.sched.now
            self.world.count("transactions committed")
            if staged.read is not None:
                self.world.count("transactions committed under a condition")
        except Conflict as e:
            staged.outcome = "dropped"
            if "other writers have changed" in e.message:
                self.world.count("transactions whose rows others have changed")
        except ForebayError as e:
            self.judge(e, f"{who} transaction")
        finally:
            if staged.outcome != "dropped":
                for key, value in values.items():
                    self.record(key, True, value, asked, answered, who)
            self.world.note(f"{who} transaction {sorted(values.items())} {staged.numbers} {staged.outcome}")
        return staged

    def _look_soon(self, connection: Connection, who: str) -> None:
        """A table snapshot, or cuts, while another thread commits."""
        look = self.rng.choice((self.snapshot, self.cut))
        for number in range(1 if look == self.snapshot else 3):
            self.sched.sleep(self.rng.random() ** 2 * 0.1)
            try:
                look(connection, f"{who}.{number}")
            except ForebayError as e:
                self.judge(e, f"{who} {look.__name__}")

    def _upsert_soon(self, connection: Connection, who: str) -> None:
        """Upserts while another thread commits under a condition."""
        for number in range(4):
            self.sched.sleep(self.rng.random() ** 2 * 0.05)
            try:
                self.upsert(connection, f"{who}.{number}")
            except ForebayError as e:
                self.judge(e, f"{who} upsert")

    def widen(self, connection: Connection, who: str) -> None:
        """Add a column unless it exists already."""
        path = self.rng.choice((KV, LOG))
        if not any(column.name == EXTRA for column in connection.table(path).info.schema.columns):
            connection.table(path).alter(add_columns={EXTRA: pa.string()})
            self.world.note(f"{who} widened {path}")

    def _widened(self, table: Table, row: Row) -> Row:
        """The row with a value for the added column, as a rule, where the writer knows of that."""
        if any(column.name == EXTRA for column in table.info.schema.columns) and self.rng.random() < 0.7:
            identity = row.get("name", row.get("n"))
            row[EXTRA] = self.seen.extras[str(table.path), identity] = f"extra of {identity}"
            self.world.count("rows with an added column")
        return row

    def lookup(self, connection: Connection, who: str) -> None:
        keys = self._keys()
        table = connection.table(KV)
        asked = self.sched.now
        found = table.lookup([{"id": key} for key in keys]).to_pylist()
        for key, row in zip(keys, found, strict=True):
            if row["id"] not in (None, key):
                raise Damage(f"{who}: looked up {key}, got {row}")
            self.seen.check_extra(KV, row)
            self.record(key, False, row["name"], asked, self.sched.now, who)
        self.world.note(f"{who} found {found}")

    def _record_rows(self, rows: list[Row], asked: float, who: str) -> dict[int, str]:
        for row in rows:
            self.seen.check_extra(KV, row)
        found = {row["id"]: row["name"] for row in rows}
        if len(found) != len(rows):
            raise Damage(f"{who}: a key comes twice: {rows}")
        for key in range(KEYS):
            self.record(key, False, found.get(key), asked, self.sched.now, who)
        return found

    def scan(self, connection: Connection, who: str) -> None:
        table = connection.table(KV)
        asked = self.sched.now
        scan = table.scan(filter=self._every_key()).reader()
        rows = scan.read_all().to_pylist()
        found = self._record_rows(rows, asked, f"{who} scan")
        self.seen.views.append(View(f"{who} scan", found, dict(scan.log_offsets)))

    def _every_key(self) -> Predicate | None:
        """A filter that leaves every row, in every second scan: these are answered in Arrow."""
        return col("id") >= 0 if len(self.seen.views) % 2 else None

    def union(self, connection: Connection, who: str) -> None:
        path = self.rng.choice((KV, KV, LOG))
        table = connection.table(path)
        asked = self.sched.now
        scan = table.scan(source="union").reader()
        rows = scan.read_all().to_pylist()
        if path == LOG:
            numbers = [row["n"] for row in rows]
            for row in rows:
                self.seen.check_extra(LOG, row)
            if len(set(numbers)) != len(numbers):
                raise Damage(f"{who} union: a row of the log comes twice: {sorted(numbers)}")
            return
        found = self._record_rows(rows, asked, f"{who} union")
        self.seen.views.append(View(f"{who} union", found, dict(scan.log_offsets)))

    def snapshot(self, connection: Connection, who: str) -> None:
        table = connection.table(KV)
        asked = self.sched.now
        with table.snapshot() as snapshot:
            opened = self.sched.now
            self.sched.sleep(self.rng.random() * 0.5)
            rows = snapshot.scan(filter=self._every_key()).to_arrow().to_pylist()
            offsets = dict(snapshot.log_offsets)
        for row in rows:
            self.seen.check_extra(KV, row)
        found = {row["id"]: row["name"] for row in rows}
        for key in range(KEYS):
            self.record(key, False, found.get(key), asked, opened, f"{who} snapshot")
        self.seen.views.append(View(f"{who} snapshot", found, offsets))

    def cut(self, connection: Connection, who: str) -> None:
        """The offsets of both tables at a time just past, as reads of earlier states take them."""
        admin = connection.admin
        at = admin.describe_server().now - dt.timedelta(milliseconds=self.rng.choice((0, 0, 1, 5, 50, 300)))
        offsets = {}
        for path in self.rng.sample((KV, LOG), 2):
            by_bucket = admin.list_offsets(path, at)
            offsets[path] = {bucket.bucket: int(offset) for bucket, offset in by_bucket.items()}
        self.seen.cuts.append((f"{who} cut at {at}", offsets))

    # ---- tiering ----------------------------------------------------------------------------------------------------

    def begin_tiering(self) -> None:
        process = self.process(f"tier-{len(self.processes)}")
        self.workers.append(process)
        self.sched.spawn(process, self._tier, process, name="tiering")

    def _tier(self, process: Process) -> None:
        while not self.ready:
            self.sched.sleep(0.2)
        connection = self.world.connect(process)
        service = self.world.tiering(process, connection)
        service.start()
        while not self.world.finished:
            self.sched.sleep(1.0)
            for status in service.status().tables:
                self.world.counts["tiering rounds"] = max(self.world.counts["tiering rounds"], status.rounds)
        service.stop(now=True)

    def watch_lake(self) -> None:
        """Snapshots that the cluster tells of go forward only."""
        process = self.process("watcher")
        self.sched.spawn(process, self._watch, process, name="watcher")

    def _watch(self, process: Process) -> None:
        while not self.ready:
            self.sched.sleep(0.2)
        connection = self.world.connect(process)
        while not self.world.finished:
            self.sched.sleep(0.7)
            for path in (KV, LOG):
                before = self.seen.lake_offsets.get(path, {})
                try:
                    known = connection.admin.lake_snapshot(path).log_offsets
                except NotFound:
                    if before and path not in self.seen.rolled_back:
                        raise Damage(f"the lake snapshot of {path} that was told of is gone") from None
                    continue
                except ForebayError as e:
                    self.judge(e, "watcher")
                    continue
                self.check_lake_offsets(path, {b.bucket: offset for b, offset in known.items()}, before)

    def check_lake_offsets(self, path: str, offsets: dict[int, int], before: dict[int, int]) -> None:
        """An answer is not behind what had been told to anyone when it was asked for (`before`)."""
        if path in self.seen.rolled_back:
            return
        for bucket, offset in before.items():
            if offsets.get(bucket, -1) < offset:
                raise Damage(f"lake snapshot of {path} goes back: {before} -> {offsets}")
        told = self.seen.lake_offsets.get(path, {})
        self.seen.lake_offsets[path] = {b: max(told.get(b, 0), offsets.get(b, 0)) for b in told | offsets}


class _Reader:
    """A reader of a log that an actor polls now and then; opened where it was when it fails."""

    def __init__(self, load: Workload, connection: Connection, who: str) -> None:
        self._load, self._connection, self._who = load, connection, who
        self._path = load.rng.choice((KV, LOG))
        self._reader: Any = None
        self._positions: dict[TableBucket, int] | None = None

    def poll(self) -> None:
        load = self._load
        try:
            if self._reader is None:
                table = self._connection.table(self._path)
                self._reader = table.changes(self._positions or "earliest", new_partitions=False)
                self._positions = dict(self._reader.position)
            for _ in range(4):
                batch = self._reader.poll(0.2)
                if batch is None:
                    break
                self.take(batch.to_pylist())
        except ForebayError:
            self._reader = None
            raise
        finally:
            load.world.count("poll")

    def take(self, rows: list[Row]) -> None:
        assert self._positions is not None
        where = {bucket.bucket: bucket for bucket in self._positions}
        for row in rows:
            bucket, offset = row["__bucket"], row["_log_offset"]
            expected = self._positions[where[bucket]]
            if offset > expected and self._path == KV:
                # A change that changes nothing is an empty batch, which takes an offset; the checks at the end know.
                self._load.seen.skipped.update((self._path, bucket, skipped) for skipped in range(expected, offset))
            elif offset != expected:
                raise Damage(f"{self._who}: offset {offset} of bucket {bucket} of {self._path} after {expected - 1}")
            self._positions[where[bucket]] = offset + 1
            note_log_row(self._load.seen, self._path, row)


def note_log_row(seen: Seen, path: str, row: Row) -> None:
    """Take note of a change; one that another reader saw at the same place must be the same one."""
    seen.check_extra(path, row)
    place = (path, row["__bucket"], row["_log_offset"])
    what = (row["_change_type"], row.get("id", row.get("n")), row.get("name", row.get("who")))
    before = seen.log_rows.setdefault(place, what)
    if before != what:
        raise Damage(f"{place} was {before} and is {what}")
