"""Transactions: rows of any tables, staged by many tasks, that become visible together, once.

Nouns: an *application* is a job by its name, and the *version* of a transaction is the number of its run: the meaning
of Delta's `txnAppId` and `txnVersion`. An *attempt* of a task stages rows; the driver's *commit* names the attempts
that count. A transaction is *open*, then *decided*, then *committed*. The *ledger* is the last committed versions of
each application.

Rules:

- One transaction of an application at a time: who begins another one ends the one before, whose driver was replaced.
- A transaction without an application (an empty name) is none of these: no driver repeats it by its name.
- Versions of an application grow. The one that was committed last is answered as committed; older ones are refused.
- What is staged is seen by no client, and checked as thoroughly as a write, so that nothing is refused later.
- The decision is one row of the metadata store, durable before any row moves. What follows is repeated until it is
  done, by this process or the next one: a bucket of a decided transaction is not used before its rows are in it.
- A decided transaction writes with a writer id of its own, and numbers its batches in each bucket from 0. So the log
  of a bucket says how far an earlier attempt has come, and nothing is written twice.
- All rows of a transaction have the time of its decision in their logs: what the logs held at a time has all or none.
  Until they are written, the time of their logs stands still (`forebay.log.commit_times`), and a request for an offset
  by time waits. Decided transactions write to a bucket in the order of their decisions.
- While rows are written, the tables' commit gates are passed: a table snapshot has all of them or none. Rows of log
  tables become visible when all of them are durable.
- A commit has conditions (forebay.server.transactions.commit_conditions) if the client sets some, and for tables whose
  merges may be refused, such as sums that do not fit. It closes the gates of their tables and keeps the puts of its
  buckets waiting from the check to the last row, so nothing comes in between. It is decided after every transaction
  that it has seen and before those that it has not, and where its rows cannot be written, the bucket goes offline:
  opening it writes them first. So a crash, after which nothing is checked again, changes none of that.
- Rows for tables and partitions that were dropped since they were staged are dropped, too.

Threads: everything may be called from any thread, and blocks. Prior art: Delta's transaction identifiers, Kafka's
transaction coordinator (fencing), Paimon's commit user and identifier.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from math import inf

from forebay.base import threads
from forebay.base.ambient import Clock
from forebay.base.errors import (
    Conflict,
    CorruptData,
    ErrorCode,
    ForebayError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from forebay.base.quantity import format_bytes
from forebay.base.thread_rules import blocking
from forebay.base.threads import Executor, Future
from forebay.codec.log.header import iter_headers, verify_crc
from forebay.kv.merge_plans import may_refuse_merges
from forebay.kv.tablet import ChangelogCodec, PutRequest
from forebay.log.commit_times import HeldTime
from forebay.metadata.table import TableBucket
from forebay.server.flow.disk_reserve import DiskReserve
from forebay.server.metadata.catalog import LiveTable, TableCatalog
from forebay.server.metadata_store import (
    TRANSACTION_COUNTER,
    WRITER_COUNTER,
    MetadataStore,
    StoredCommit,
    StoredTransaction,
)
from forebay.server.storage.batch_check import check_log_batches
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.replicas import ReplicaManager
from forebay.server.storage.write_command import DecidedCommand
from forebay.server.transactions.commit_conditions import (
    KeysChanged,
    MergeablePuts,
    PutRefused,
    UnchangedKeys,
    UnchangedSince,
)
from forebay.server.transactions.history import RowCounter, commits_of
from forebay.server.transactions.stages import ENTRIES_MAX, Stage, StageFiles
from forebay.server.transactions.transaction import (
    NO_AUTHOR,
    CommitAuthor,
    CommittedBatch,
    ServerTransaction,
    TransactionDescription,
    TransactionLimits,
    TransactionState,
)

_LOGGER = logging.getLogger(__name__)

_APPLICATION_CHARS_MAX = 200
_ATTEMPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ENDED_REMEMBERED = 1000
"""Number of ended transactions whose reason is remembered."""


_STAGES_MAX = 100_000
"""Attempts of one transaction."""
_LEDGER_VERSIONS = 10
"""Versions of an application that are remembered, so that a late repetition of a commit gets its answer."""
_ANONYMOUS_REMEMBERED = 1000
"""Committed transactions without an application that are remembered, for the same reason."""
_EARLY_CHECKS = 3
"""Checks of a condition while others still write, so that little is left to be checked while they wait."""
_CODECS_MAX = 64
"""Tables whose rows can be checked without building what that needs."""


class TransactionManager:
    """All transactions of a server; a `forebay.server.storage.replicas.DecidedWork`."""

    def __init__(
        self,
        store: MetadataStore,
        files: StageFiles,
        catalog: TableCatalog,
        replicas: ReplicaManager,
        reserve: DiskReserve,
        limits: TransactionLimits,
        clock: Clock,
        commits: Executor,
        writers: Executor,
    ) -> None:
        """Take up the transactions that the store has. `commits` run one transaction each, `writers` one bucket each.

        Raises `CorruptData` if rows of a decided one cannot be read, `StorageFailure`.
        """
        self.limits = limits
        self._store = store
        self._files = files
        self._catalog = catalog
        self._replicas = replicas
        self._reserve = reserve
        self._clock = clock
        self._commits = commits
        self._writers = writers
        self._lock = threads.lock()
        self._beginning = threads.lock()
        self._deciding = threads.lock()
        """Held for each decision: their writer ids are in the order in which they become known."""
        self._by_id: dict[int, ServerTransaction] = {}
        self._ended: OrderedDict[int, str] = OrderedDict()
        self._running: dict[int, Future[int]] = {}
        self._codecs: OrderedDict[tuple[int, int], ChangelogCodec] = OrderedDict()
        self._staged_bytes = 0
        self.unfinished: frozenset[int] = frozenset()
        for stored in store.transactions():
            self._take_up(ServerTransaction(stored, clock.monotonic()))
        for transaction_id in files.transactions():
            transaction = self._by_id.get(transaction_id)
            if transaction is None or transaction.state is TransactionState.COMMITTED:
                files.remove(transaction_id)

    def _take_up(self, transaction: ServerTransaction) -> None:
        self._by_id[transaction.stored.transaction_id] = transaction
        if transaction.state is not TransactionState.COMMITTED:
            sizes = self._files.sizes(transaction.stored.transaction_id)
            transaction.stages_found = len(sizes)
            self._count(transaction, sum(sizes))
        if transaction.state is TransactionState.DECIDED:
            transaction.work = self._work_of(transaction)
            self._note_unfinished()

    # ---- beginning and ending ---------------------------------------------------------------------------------------

    def begin(self, application: str, version: int, join: bool = False) -> StoredTransaction:
        """Begin a version of an application, or return its transaction if it is committed. "" is no application.

        Ends an open transaction of the application, unless it is one of this version to `join`. Raises `Conflict` for
        a version that is older than one that was committed, `InvalidRequest`, `LimitExceeded`.
        """
        if not application:
            return self._begun(application, version)
        if not application.strip() or len(application) > _APPLICATION_CHARS_MAX or not application.isprintable():
            raise InvalidRequest(
                f"{application[:_APPLICATION_CHARS_MAX]!r} cannot be the name of an application: it has 1 to "
                f"{_APPLICATION_CHARS_MAX} printable characters",
                ErrorCode.INVALID_PRODUCER_ID_EXCEPTION,
            )
        with self._beginning:
            while True:
                # One look at all of them: no other one can begin, and a state that changes since means another look.
                decided, last, replaced = self._history_of(application)
                for transaction in decided:
                    self._finish(transaction)
                if decided:
                    continue
                if last is not None and version == last.version:
                    return last
                if last is not None and version < last.version:
                    raise Conflict(
                        f"version {version} of application {application!r} is older than version {last.version}, "
                        "which is committed: a version is written once, and versions grow",
                        ErrorCode.INVALID_UPDATE_VERSION_EXCEPTION,
                    )
                for transaction in replaced:
                    if join and transaction.stored.version == version:
                        return transaction.stored
                    # Waits for its decision, if that is under way, and then does not end it.
                    self._end(transaction, f"another driver has begun version {version} of the application since")
                if not replaced:
                    return self._begun(application, version)

    def _history_of(
        self, application: str
    ) -> tuple[list[ServerTransaction], StoredTransaction | None, list[ServerTransaction]]:
        """(decided, the committed one with the highest version, open) transactions of an application at one moment."""
        with self._lock:
            transactions = [(t.state, t) for t in self._by_id.values() if t.stored.application == application]
        committed = [t.stored for state, t in transactions if state is TransactionState.COMMITTED]
        return (
            [t for state, t in transactions if state is TransactionState.DECIDED],
            max(committed, key=lambda stored: stored.version, default=None),
            [t for state, t in transactions if state is TransactionState.OPEN],
        )

    def _begun(self, application: str, version: int) -> StoredTransaction:
        self._check_room()
        stored = StoredTransaction(
            self._store.take(TRANSACTION_COUNTER), application, version, TransactionState.OPEN, self._clock.now_ms()
        )
        self._store.put_transaction(stored)
        begun = ServerTransaction(stored, self._clock.monotonic())
        begun.stages = {}
        with self._lock:
            self._by_id[stored.transaction_id] = begun
        return stored

    def _of(self, application: str, state: TransactionState) -> list[ServerTransaction]:
        with self._lock:
            return [t for t in self._by_id.values() if t.stored.application == application and t.state is state]

    def _check_room(self) -> None:
        with self._lock:
            count = sum(t.state is TransactionState.OPEN for t in self._by_id.values())
        if count >= self.limits.open_max:
            raise LimitExceeded(
                f"the server has its {self.limits.open_max} transactions open already ('transaction.max-open'): commit "
                "or abort some; `forebay transactions` lists them",
                ErrorCode.TOO_MANY_SCANNERS,
            )

    def abort(self, transaction_id: int) -> None:
        """End an open transaction; unknown ids are fine. Raises `Conflict` for one that is decided or committed."""
        with self._lock:
            transaction = self._by_id.get(transaction_id)
        if transaction is None:
            return
        if not self._end(transaction, "it was aborted"):
            raise Conflict(
                f"{transaction} cannot be aborted: it is committed", ErrorCode.INVALID_UPDATE_VERSION_EXCEPTION
            )

    def _end(self, transaction: ServerTransaction, reason: str, used_before: float = inf) -> bool:
        """End a transaction with all that it has staged; True if it has ended already.

        Return False, and let it be, if it is decided, or was used later than at `used_before` (monotonic seconds).
        """
        transaction_id = transaction.stored.transaction_id
        with transaction.gate.closed():
            if transaction.state is not TransactionState.OPEN or transaction.used_at > used_before:
                return False
            with self._lock:
                if self._by_id.get(transaction_id) is not transaction:
                    return True
            self._store.forget_transactions([transaction_id])
            with self._lock:
                self._by_id.pop(transaction_id, None)
                self._ended[transaction_id] = reason
                while len(self._ended) > _ENDED_REMEMBERED:
                    self._ended.popitem(last=False)
            self._drop_stages(transaction)
        return True

    def _drop_stages(self, transaction: ServerTransaction) -> None:
        stages, transaction.stages, transaction.work = transaction.stages or {}, {}, {}
        self._count(transaction, -transaction.staged_bytes)
        self._files.remove(transaction.stored.transaction_id, list(stages.values()))

    def _count(self, transaction: ServerTransaction, size: int) -> None:
        with self._lock:
            transaction.staged_bytes += size
            self._staged_bytes += size

    # ---- staging ----------------------------------------------------------------------------------------------------

    def check(self, batches: Sequence[tuple[TableBucket, memoryview]], target_columns: tuple[int, ...] = ()) -> None:
        """Check rows before they are staged: one batch for each of some buckets. Raises as a write of them does."""
        for bucket, records in batches:
            try:
                table = self._replicas.table_of(bucket)
            except Unavailable as e:  # what this server does not have is nowhere
                raise NotFound(e.message, ErrorCode.TABLE_NOT_EXIST) from e
            self._check_batch(table, records, target_columns)

    @blocking
    def stage(
        self,
        transaction_id: int,
        attempt: str,
        request: int,
        batches: Sequence[tuple[TableBucket, memoryview]],
        target_columns: tuple[int, ...] = (),
    ) -> None:
        """Stage batches that `check` has passed. A request that was staged already is ignored.

        Raises `Conflict` and `NotFound` if the transaction or attempt has ended, `LimitExceeded` and `DiskFull` if
        there is no room.
        """
        size = sum(len(records) for _, records in batches)
        with self._using(transaction_id) as transaction:
            self._require_room(size)
            stage, lock = self._stage(transaction, attempt)
            with lock:
                added = self._files.append(stage, request, batches, target_columns)
            self._count(transaction, added)

    @blocking
    def finish(self, transaction_id: int, attempt: str, requests: int) -> int:
        """End an attempt that has sent so many requests; returns its bytes, which are durable.

        Raises `Conflict` if requests are missing, and as `stage` does.
        """
        with self._using(transaction_id) as transaction:
            stage, lock = self._stage(transaction, attempt)
            with lock:
                before = stage.size_bytes
                self._files.finish(stage, requests)
            self._count(transaction, stage.size_bytes - before)
            return stage.size_bytes

    @contextmanager
    def _using(self, transaction_id: int) -> Iterator[ServerTransaction]:
        """An open transaction, which does not end inside the block."""
        with self._lock:
            transaction = self._by_id.get(transaction_id)
        if transaction is None:
            raise self._gone(transaction_id)
        with transaction.gate.passing():
            with self._lock:
                is_there = self._by_id.get(transaction_id) is transaction
            if not is_there:
                raise self._gone(transaction_id)
            if transaction.state is not TransactionState.OPEN:
                raise Conflict(
                    f"{transaction} is committed, and takes no more rows", ErrorCode.INVALID_UPDATE_VERSION_EXCEPTION
                )
            transaction.used_at = self._clock.monotonic()
            yield transaction
            transaction.used_at = self._clock.monotonic()

    def _gone(self, transaction_id: int) -> ForebayError:
        reason = self._ended.get(transaction_id)
        if reason is None:
            return NotFound(
                f"there is no transaction {transaction_id}: it was aborted or idle for too long, or its server has "
                "lost its data; begin it again",
                ErrorCode.UNKNOWN_SCANNER_ID,
            )
        return Conflict(f"transaction {transaction_id} has ended: {reason}", ErrorCode.INVALID_UPDATE_VERSION_EXCEPTION)

    def _check_batch(self, table: LiveTable, records: memoryview, target_columns: tuple[int, ...]) -> None:
        if table.info.has_primary_key:
            self._codec_of(table).check(PutRequest(records, target_columns))
            return
        if target_columns:
            raise InvalidRequest(f"table {table.info.path} has no primary key: whole rows are appended to it")
        headers = list(iter_headers(records))
        if len(headers) != 1:
            raise InvalidRequest(
                f"{len(headers)} log batches were staged as one for table {table.info.path}",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        verify_crc(records, *headers[0])
        check_log_batches(table, records)

    def _codec_of(self, table: LiveTable) -> ChangelogCodec:
        info = table.info
        key = (info.table_id, info.schema_id)
        with self._lock:
            codec = self._codecs.pop(key, None)
        if codec is None or codec.info is not info:
            codec = ChangelogCodec(info, table.schema_by_id)
        with self._lock:
            self._codecs[key] = codec
            while len(self._codecs) > _CODECS_MAX:
                self._codecs.popitem(last=False)
        return codec

    def _require_room(self, size: int) -> None:
        staged = self._staged_bytes
        if staged + size > self.limits.staged_bytes_max:
            raise LimitExceeded(
                f"transactions have staged {format_bytes(staged)}, and {format_bytes(size)} more do not fit into "
                f"{format_bytes(self.limits.staged_bytes_max)} ('transaction.max-staged-size'): commit or abort "
                "some; `forebay transactions` lists them",
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
            )
        self._reserve.require(staged + 2 * size)  # what is staged has to be written once more

    def _stages_of(self, transaction: ServerTransaction) -> dict[str, Stage]:
        if transaction.stages is None:
            with transaction.lock:
                if transaction.stages is None:
                    transaction.stages = self._files.stages(transaction.stored.transaction_id)
        return transaction.stages

    def _stage(self, transaction: ServerTransaction, attempt: str) -> tuple[Stage, threads.Lock]:
        if _ATTEMPT.fullmatch(attempt) is None:
            raise InvalidRequest(
                f"{attempt[:100]!r} cannot be the name of an attempt: it has up to 100 letters, digits, '.', '_' and "
                "'-', and begins with a letter or digit",
                ErrorCode.INVALID_PRODUCER_ID_EXCEPTION,
            )
        stages = self._stages_of(transaction)
        with transaction.lock:
            if attempt not in stages:
                if len(stages) >= _STAGES_MAX:
                    raise LimitExceeded(
                        f"{transaction} has {len(stages)} attempts, and can have {_STAGES_MAX}",
                        ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
                    )
                stages[attempt] = self._files.begin(transaction.stored.transaction_id, attempt)
            return stages[attempt], transaction.stage_locks.setdefault(attempt, threads.lock())

    # ---- committing -------------------------------------------------------------------------------------------------

    def commit(
        self,
        transaction_id: int,
        attempts: Sequence[str],
        unchanged_since: UnchangedSince | None = None,
        author: CommitAuthor = NO_AUTHOR,
    ) -> Future[int]:
        """Begin to commit a transaction with the rows of these attempts, in this order. `author` is for histories.

        The future has the time of the decision in ms, when all rows are written. Repeated calls get the same. Its
        errors: `Conflict` and `NotFound` if the transaction has ended, also because a condition does not hold,
        `InvalidRequest` for attempts that are not finished, `DiskFull`. `Unavailable` says that the transaction is
        decided, and that writing its rows goes on.
        """
        with self._lock:
            running = self._running.get(transaction_id)
            if running is None:
                running = self._running[transaction_id] = self._commits.submit(
                    self._commit, transaction_id, tuple(attempts), unchanged_since or {}, author
                )
        running.add_done_callback(lambda ended: self._no_longer_running(transaction_id, ended))
        return running

    def _no_longer_running(self, transaction_id: int, ended: Future[int]) -> None:
        with self._lock:
            if self._running.get(transaction_id) is ended:  # not a later attempt
                del self._running[transaction_id]

    @blocking
    def _commit(
        self, transaction_id: int, attempts: tuple[str, ...], unchanged_since: UnchangedSince, author: CommitAuthor
    ) -> int:
        with self._lock:
            transaction = self._by_id.get(transaction_id)
        if transaction is None:
            raise self._gone(transaction_id)
        if transaction.state is TransactionState.OPEN:
            transaction.author = author
            self._decide_first(transaction, attempts, unchanged_since)
        if transaction.state is TransactionState.DECIDED:
            self._finish(transaction)
        return transaction.stored.changed_ms

    def _decide(
        self,
        transaction: ServerTransaction,
        attempts: tuple[str, ...],
        held: Sequence[BucketReplica] = (),
        unchanged: Sequence[UnchangedKeys] = (),
    ) -> bool:
        """Decide a transaction. Return False if another one has to write to a bucket whose puts are `held` before."""
        with transaction.gate.closed():
            if transaction.state is not TransactionState.OPEN:
                return True
            with self._lock:
                if self._by_id.get(transaction.stored.transaction_id) is not transaction:
                    raise self._gone(transaction.stored.transaction_id)
            self._check_attempts(transaction, attempts)
            rows = RowCounter(self._catalog)
            work = self._work_of(transaction, attempts, rows)
            with ExitStack() as opened:
                replicas = self._in_each(work, self._begin, opened)
                with self._deciding:
                    if any(self._decided_for(replica.bucket) for replica in held):
                        return False
                    for condition in unchanged:
                        condition.check(condition.replica.log.log_end_offset)
                    with self._time_held(transaction, replicas) as decided_ms:
                        decided = replace(
                            transaction.stored,
                            state=TransactionState.DECIDED,
                            changed_ms=decided_ms,
                            writer_id=self._store.take(WRITER_COUNTER),
                            attempts=attempts,
                        )
                        self._store.put_transaction(decided, commits=commits_of(decided, transaction.author, rows))
                        with self._lock:
                            transaction.stored, transaction.work = decided, work
                            self._note_unfinished()
            return True

    @contextmanager
    def _time_held(self, transaction: ServerTransaction, replicas: Sequence[BucketReplica]) -> Iterator[int]:
        """Let time stand still in these logs at a moment that all of them can still give to records, and yield it.

        It stands still until the transaction's rows are written, or, if the block fails, until its end.
        """
        held = transaction.held = HeldTime(self._clock.now_ms())
        try:
            earliest = [replica.log.hold_time(held) for replica in replicas]
            # Later than the answers about times that were given before all logs stood still: they are without the rows.
            held.at_ms = max([held.at_ms, self._clock.now_ms(), *earliest])
            yield held.at_ms
        except BaseException:
            for replica in replicas:
                replica.log.release_time(held)
            raise

    def _decide_first(
        self, transaction: ServerTransaction, attempts: tuple[str, ...], unchanged_since: UnchangedSince
    ) -> None:
        """Decide a transaction, and if it has conditions, write it. End it if they do not hold.

        Raises as the future of `commit`.
        """
        try:
            with ExitStack() as using:
                with self._using(transaction.stored.transaction_id):
                    self._check_attempts(transaction, attempts)
                    work = self._work_of(transaction, attempts)
                    unchanged, mergeable = self._conditions(work, unchanged_since, using)
                    for _ in range(_EARLY_CHECKS):
                        for condition in unchanged:
                            condition.check(condition.replica.log.high_watermark)
                if not unchanged and not mergeable:
                    self._decide(transaction, attempts)
                    return
                while not self._written_in_one(transaction, attempts, work, unchanged, mergeable):
                    for replica in _replicas(unchanged, mergeable):
                        for other, _ in self._decided_for(replica.bucket):
                            self._finish(other)
        except (KeysChanged, PutRefused) as e:
            self._end(transaction, e.message)
            raise

    def _conditions(
        self, work: Mapping[TableBucket, Sequence[CommittedBatch]], unchanged_since: UnchangedSince, using: ExitStack
    ) -> tuple[list[UnchangedKeys], list[MergeablePuts]]:
        unchanged, mergeable = list[UnchangedKeys](), list[MergeablePuts]()
        for bucket, batches in work.items():
            table = self._catalog.table_by_id(bucket.table_id)
            since = unchanged_since.get(bucket.table_id)
            is_merged = table is not None and may_refuse_merges(table.info)
            if since is None and not is_merged:
                continue
            replica = self._used(bucket, using)
            if replica is not None and since is not None:
                unchanged.append(UnchangedKeys(replica, self._codec_of(replica.table), batches, since.get(bucket, 0)))
            if replica is not None and is_merged:
                mergeable.append(MergeablePuts(replica, batches))
        return unchanged, mergeable

    def _used(self, bucket: TableBucket, using: ExitStack) -> BucketReplica | None:
        """The replica of a bucket, which stays open inside `using`; None if the bucket was dropped."""
        replica = self._begin(bucket)
        if replica is not None:
            using.callback(self._replicas.end, replica)
        return replica

    def _written_in_one(
        self,
        transaction: ServerTransaction,
        attempts: tuple[str, ...],
        work: Mapping[TableBucket, Sequence[CommittedBatch]],
        unchanged: Sequence[UnchangedKeys],
        mergeable: Sequence[MergeablePuts],
    ) -> bool:
        """Decide a transaction, and write it before anything else is written to the buckets of its conditions.

        Return False if another transaction has to write to them first.
        """
        replicas = _replicas(unchanged, mergeable)
        with transaction.finishing:
            with ExitStack() as inside:
                inside.enter_context(self._gates(work, closed={replica.bucket.table_id for replica in replicas}))
                for replica in replicas:
                    inside.enter_context(replica.puts_held())
                for puts in mergeable:
                    if self._decided_for(puts.replica.bucket):
                        return False
                    puts.check()
                if not self._decide(transaction, attempts, replicas, unchanged):
                    return False
                try:
                    self._complete(transaction)
                except Unavailable as e:
                    for replica in replicas:
                        replica.take_offline_unless_written(transaction.stored.writer_id, len(work[replica.bucket]), e)
                    raise
            self._drop_stages(transaction)
        return True

    def _check_attempts(self, transaction: ServerTransaction, attempts: tuple[str, ...]) -> None:
        stages = self._stages_of(transaction)
        unfinished = [a for a in attempts if a not in stages or not stages[a].is_finished]
        if unfinished or len(set(attempts)) != len(attempts):
            reason = f"attempt {unfinished[0]!r} is not finished" if unfinished else "an attempt is named twice"
            raise InvalidRequest(
                f"{transaction} cannot be committed: {reason}", ErrorCode.INVALID_PRODUCER_ID_EXCEPTION
            )
        if sum(stages[attempt].entries for attempt in attempts) > ENTRIES_MAX:
            raise LimitExceeded(
                f"{transaction} has more than {ENTRIES_MAX} batches: write larger ones",
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
            )
        self._reserve.require(sum(stages[attempt].size_bytes for attempt in attempts))

    def _work_of(
        self,
        transaction: ServerTransaction,
        attempts: Sequence[str] | None = None,
        count_rows: RowCounter | None = None,
    ) -> dict[TableBucket, list[CommittedBatch]]:
        """Return the batches that a transaction writes to each bucket, in order."""
        stages = self._stages_of(transaction)
        work: dict[TableBucket, list[CommittedBatch]] = {}
        for attempt in transaction.stored.attempts if attempts is None else attempts:
            stage = stages.get(attempt)
            if stage is None or not stage.is_finished:
                state = "lost" if stage is None else "damaged"
                raise CorruptData(
                    f"attempt {attempt!r} of {transaction}, which is decided, is {state}: its rows are in "
                    f"{self._files.path_of(transaction.stored.transaction_id, attempt)}. Restore that file from a "
                    "copy, and start the server again",
                    ErrorCode.CORRUPT_RECORD_EXCEPTION,
                )
            for entry in self._files.entries(stage, count_rows):
                work.setdefault(entry.bucket, []).append(CommittedBatch(self._files, entry))
        return work

    def commits(self, table_id: int) -> list[StoredCommit]:
        """The history of a table: what transactions have written to it."""
        return self._store.commits(table_id)

    def _finish(self, transaction: ServerTransaction) -> None:
        """Write what is decided, and remember that it is committed.

        Raises `Unavailable` if rows cannot be written now.
        """
        with transaction.finishing:
            if transaction.state is TransactionState.DECIDED:
                with self._gates(transaction.work):
                    self._complete(transaction)
                self._drop_stages(transaction)

    @contextmanager
    def _gates(self, buckets: Iterable[TableBucket], closed: Collection[int] = ()) -> Iterator[None]:
        """Pass the commit gates of the buckets' tables, or keep those of `closed` tables closed, during the block."""
        with ExitStack() as inside:
            for table_id in sorted({bucket.table_id for bucket in buckets}):
                table = self._catalog.table_by_id(table_id)
                if table is not None:
                    gate = table.commit_gate
                    inside.enter_context(gate.closed() if table_id in closed else gate.passing())
            yield

    @blocking
    def _complete(self, transaction: ServerTransaction) -> None:
        try:
            self._write(transaction)
            committed = replace(transaction.stored, state=TransactionState.COMMITTED)
            earlier = sorted(
                each.stored.transaction_id for each in self._of(committed.application, TransactionState.COMMITTED)
            )
            count_max = _LEDGER_VERSIONS if committed.application else _ANONYMOUS_REMEMBERED
            ids = earlier[: max(len(earlier) + 1 - count_max, 0)]
            self._store.put_transaction(committed, ids)
        except ForebayError as e:
            raise Unavailable(
                f"{transaction} is decided, but not all of its rows could be written: {e.message}. The server "
                "tries again; until then table snapshots wait",
                ErrorCode.REQUEST_TIME_OUT,
            ) from e
        buckets = list(transaction.work)
        with self._lock:
            for each in ids:
                self._by_id.pop(each, None)
            transaction.stored, transaction.work = committed, {}
            self._note_unfinished()
        for bucket in buckets:
            replica = self._replicas.begin_if_open(bucket)
            if replica is not None:
                self._keep_writers(replica)
                self._replicas.end(replica)

    def _write(self, transaction: ServerTransaction) -> None:
        with ExitStack() as inside:
            written = self._in_each(transaction.work, partial(self._write_bucket, transaction), inside)
            with self._replicas.showing:
                for replica in written:
                    replica.show_decided()
                    replica.log.release_time(transaction.held)

    def _in_each(
        self, buckets: Iterable[TableBucket], begin: Callable[[TableBucket], BucketReplica | None], uses: ExitStack
    ) -> list[BucketReplica]:
        """Call `begin` for each bucket, many at a time; return the replicas, which stay open inside `uses`.

        Raises the first error when all calls have ended.
        """
        beginning = [self._writers.submit(begin, bucket) for bucket in buckets]
        replicas: list[BucketReplica] = []
        error: ForebayError | None = None
        for future in beginning:
            try:
                replica = future.result()
            except ForebayError as e:
                error = error or e
                continue
            if replica is not None:
                replicas.append(replica)
                uses.callback(self._replicas.end, replica)
        if error is not None:
            raise error
        return replicas

    @blocking
    def _begin(self, bucket: TableBucket) -> BucketReplica | None:
        """Return the replica of a bucket, which stays open; None if the bucket was dropped."""
        try:
            return self._replicas.begin(bucket, counts=False)
        except Unavailable as e:
            if e.code != ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION:
                raise
            return None

    @blocking
    def _write_bucket(self, transaction: ServerTransaction, bucket: TableBucket) -> BucketReplica | None:
        """Write to one bucket, after what was decided before; return its replica as `_begin` does."""
        replica = self._begin(bucket)
        if replica is None:
            return None
        try:
            self._keep_writers(replica)
            for each, _ in self._decided_for(bucket):
                if each.stored.writer_id <= transaction.stored.writer_id:
                    self._write_decided(each, replica)
                    if replica.has_kv:  # the rows are visible
                        replica.log.release_time(each.held)
        except BaseException:
            self._replicas.end(replica)
            raise
        return replica

    def _write_decided(self, transaction: ServerTransaction, replica: BucketReplica) -> None:
        def batches() -> Iterator[CommittedBatch]:
            # Looked for when it is their turn: meanwhile the transaction may have ended, and its stages are gone.
            yield from transaction.work.get(replica.bucket, ())

        stored = transaction.stored
        replica.submit(DecidedCommand(stored.writer_id, stored.changed_ms, batches()))

    # ---- for buckets that are opened --------------------------------------------------------------------------------

    def writers(self, bucket: TableBucket) -> Collection[int]:
        return [transaction.stored.writer_id for transaction, _ in self._decided_for(bucket)]

    def _keep_writers(self, replica: BucketReplica) -> None:
        """Let a log never forget the writers of what is decided for it. The lock is held until the log knows them: a
        list of an earlier moment would take the place of a later one."""
        with self._lock:
            replica.log.keep_writers([t.stored.writer_id for t in self._by_id.values() if replica.bucket in t.work])

    def write(self, replica: BucketReplica) -> None:
        for transaction, _ in self._decided_for(replica.bucket):
            self._write_decided(transaction, replica)
        replica.show_decided()

    def _note_unfinished(self) -> None:
        """With the lock held, after a decision and after its end."""
        self.unfinished = frozenset(
            bucket.table_id for t in self._by_id.values() if t.state is TransactionState.DECIDED for bucket in t.work
        )

    def _decided_for(self, bucket: TableBucket) -> list[tuple[ServerTransaction, list[CommittedBatch]]]:
        """The decided transactions that write to a bucket, in the order of their decisions."""
        with self._lock:
            entries = [(t, t.work[bucket]) for t in self._by_id.values() if bucket in t.work]
        return sorted(entries, key=lambda each: each[0].stored.writer_id)

    # ---- upkeep -----------------------------------------------------------------------------------------------------

    @blocking
    def finish_decided(self) -> None:
        """Write what is decided and not written yet: after a start, and after a failure."""
        self._each(TransactionState.DECIDED, self._finish)

    @blocking
    def expire(self) -> None:
        """End transactions that are idle for too long, forget old versions, write what is decided."""
        now_ms = self._clock.now_ms()
        used_before = self._clock.monotonic() - self.limits.idle_seconds_max
        reason = f"it was idle for {self.limits.idle_seconds_max:g} s ('transaction.idle-timeout')"

        def end_if_idle(transaction: ServerTransaction) -> None:
            if transaction.used_at <= used_before:  # asked again when nothing of it is under way
                self._end(transaction, reason, used_before)

        self._each(TransactionState.OPEN, end_if_idle)
        self.finish_decided()
        with self._lock:
            old = [
                transaction_id
                for transaction_id, t in self._by_id.items()
                if t.state is TransactionState.COMMITTED and now_ms - t.stored.changed_ms >= self.limits.ledger_ms
            ]
        if old:
            self._store.forget_transactions(old)
            with self._lock:
                for transaction_id in old:
                    self._by_id.pop(transaction_id, None)

    def _each(self, state: TransactionState, work: Callable[[ServerTransaction], object]) -> None:
        with self._lock:
            transactions = [t for t in self._by_id.values() if t.state is state]
        for transaction in transactions:
            try:
                work(transaction)
            except ForebayError as e:
                _LOGGER.error("transaction %s: %s", transaction.stored.transaction_id, e)

    def describe(self, application: str | None = None) -> list[TransactionDescription]:
        """The transactions (of one application), in the order in which they were begun.

        Of those without an application only the ones that are not committed.
        """
        with self._lock:
            transactions = [
                t
                for t in self._by_id.values()
                if application in (None, t.stored.application)
                and (t.stored.application or t.state is not TransactionState.COMMITTED)
            ]
        return [
            TransactionDescription(
                t.stored.transaction_id,
                t.stored.application,
                t.stored.version,
                t.state,
                t.stored.changed_ms,
                t.stages_found if t.stages is None else len(t.stages),
                t.staged_bytes,
            )
            for t in sorted(transactions, key=lambda t: t.stored.transaction_id)
        ]

    def totals(self) -> list[tuple[TransactionState, int, int]]:
        """Return how many transactions are open and decided, and what they have staged."""
        with self._lock:
            transactions = [t for t in self._by_id.values() if t.state is not TransactionState.COMMITTED]
        totals = []
        for state in (TransactionState.OPEN, TransactionState.DECIDED):
            these = [t.staged_bytes for t in transactions if t.state is state]
            totals.append((state, len(these), sum(these)))
        return totals

    def close(self) -> None:
        """Close the files of stages."""
        self._files.close_all()


def _replicas(unchanged: Sequence[UnchangedKeys], mergeable: Sequence[MergeablePuts]) -> list[BucketReplica]:
    """The buckets with conditions, each once."""
    replicas = [condition.replica for condition in unchanged] + [puts.replica for puts in mergeable]
    return list({replica.bucket: replica for replica in replicas}.values())
