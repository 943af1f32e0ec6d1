"""The Hive catalog's part in the commits of one table: its lock, and a description that follows the schema.

Both can be pickled, as they go to workers with the table.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import ForebayError, NotFound, OutcomeUnknown, Unavailable, UnsupportedOperation
from forebay.base.quantity import parse_bool
from forebay.hive.metastore import Metastore, current_user
from forebay.hive.tables import TableDescriber
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.store.lock import Check, CommitLock, create_exclusively
from forebay.paimon.store.paths import PathFactory
from forebay.paimon.store.schema_changes import SchemaChange
from forebay.paimon.store.schemas import SchemaManager

_EXCLUSIVE, _TABLE_LEVEL = 3, 2
_ACQUIRED, _WAITING = 1, 2
_FIRST_SLEEP_MS = 50
_HEARTBEAT_SECONDS = 60.0
"""The heartbeat interval of a held lock: well below `hive.txn.timeout`, 5 minutes, after which it is dropped."""

PARTITIONED = "metastore.partitioned-table"
TAG_TO_PARTITION = "metastore.tag-to-partition"


def check_supported(schema: TableSchema) -> None:
    """Raise `UnsupportedOperation` for a table whose partitions or tags would have to be registered, too."""
    if schema.options.get(TAG_TO_PARTITION):
        raise UnsupportedOperation(f"option '{TAG_TO_PARTITION}' is set, a feature that is not supported here")
    if schema.partition_keys and parse_bool(schema.options.get(PARTITIONED, "false")):
        raise UnsupportedOperation(
            f"option '{PARTITIONED}' is true: the metastore would have to know each partition, which is not supported "
            "here; such tables can be read"
        )


class HiveCommits:
    """Commits to one table. See `forebay.paimon.store.lock.CatalogCommits`."""

    owns_snapshots = False

    def __init__(
        self, metastore: Metastore, describer: TableDescriber, database: str, table: str, path: str,
        lock: CommitLock | None,
    ) -> None:  # fmt: skip
        self._metastore, self._describer, self._database, self._table = metastore, describer, database, table
        self._path, self._lock, self._checked = path, lock, False

    def create(self, io: FileIO, path: str, data: bytes, check: Check | None = None) -> bool:
        """Create a snapshot or schema file. The metastore follows a new schema; if it refuses, the file is deleted."""
        schemas = SchemaManager(io, PathFactory(self._path))
        if not self._checked:
            check_supported(schemas.latest())
            self._checked = True
        if not create_exclusively(io, path, data, self._lock, check):
            return False
        schema_id = self._schema_id(path)
        if schema_id is not None:
            try:
                self._describe(schemas, schema_id)
            except OutcomeUnknown:
                raise  # The metastore may have the new schema, so its file stays. The next change synchronizes both.
            except BaseException:
                # Not if another change has built on it meanwhile: that one updates the metastore, or removes both.
                if schemas.ids()[-1] == schema_id:
                    schemas.delete(schema_id)
                raise
        return True

    def change_schema(self, changes: Sequence[SchemaChange]) -> bool:
        """False: the schema file is created, and the metastore follows."""
        return False

    def _schema_id(self, path: str) -> int | None:
        """The id of a schema of the main branch; None for other files and branches, which the metastore ignores."""
        prefix = PathFactory(self._path).schema_directory + "/schema-"
        return int(path.removeprefix(prefix)) if path.startswith(prefix) else None

    def _describe(self, schemas: SchemaManager, schema_id: int) -> None:
        before, after = schemas.schema(schema_id - 1), schemas.latest()
        while True:
            request = self._metastore.new("GetTableRequest", dbName=self._database, tblName=self._table)
            table = self._metastore.call("get_table_req", request).table
            self._describer.update(table, before, after)
            context = {"CASCADE": "true", "DO_NOT_UPDATE_STATS": "false"}
            self._metastore.call(
                "alter_table_with_environment_context",
                self._database,
                self._table,
                table,
                self._metastore.new("EnvironmentContext", properties=context),
            )
            # Of two concurrent changes, the earlier one may be written last.
            latest = schemas.latest()
            if latest.id == after.id:
                return
            after = latest


class HiveLock:
    """An exclusive lock of one table in the metastore, compatible with Hive and Java Paimon."""

    def __init__(
        self,
        metastore: Metastore,
        database: str,
        table: str,
        wait_ms: int,
        max_sleep_ms: int,
        clock: Clock = SYSTEM_CLOCK,
        heartbeat_seconds: float = _HEARTBEAT_SECONDS,
    ) -> None:
        self._metastore, self._database, self._table, self._clock = metastore, database, table, clock
        self._wait_ms, self._max_sleep_ms, self._heartbeat_seconds = wait_ms, max_sleep_ms, heartbeat_seconds

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock: see `CommitLock.hold`. Raises `OutcomeUnknown` at the end if the metastore dropped it."""
        lock_id = self._acquire()
        done = threading.Event()
        heart = threading.Thread(target=self._beat, args=(lock_id, done), name="hive-lock-heartbeat", daemon=True)
        heart.start()
        try:
            yield
        except BaseException:
            self._stop(done, heart)
            with contextlib.suppress(ForebayError):  # the error inside the block is more useful
                self._unlock(lock_id)
            raise
        self._stop(done, heart)
        try:
            # Unlocking a lost lock is no error; a heartbeat for it is.
            self._metastore.call("heartbeat", self._metastore.new("HeartbeatRequest", lockid=lock_id))
            self._unlock(lock_id)
        except NotFound as e:
            raise OutcomeUnknown(
                f"the metastore dropped the lock on '{self._database}.{self._table}' while it was held: there was no "
                "sign of life for hive.txn.timeout, and others may have done the same meanwhile"
            ) from e

    def _acquire(self) -> int:
        new = self._metastore.new
        part = new("LockComponent", type=_EXCLUSIVE, level=_TABLE_LEVEL, dbname=self._database, tablename=self._table)
        request = new("LockRequest", component=[part], user=current_user(), hostname=socket.gethostname())
        began, sleep_ms = self._clock.monotonic(), _FIRST_SLEEP_MS
        answer = self._metastore.call("lock", request)
        lock_id = int(answer.lockid)
        try:
            while answer.state == _WAITING:
                waited_ms = (self._clock.monotonic() - began) * 1000
                if waited_ms >= self._wait_ms:
                    break
                sleep_ms = min(2 * sleep_ms, self._max_sleep_ms)
                self._clock.sleep(sleep_ms / 1000)
                answer = self._metastore.call("check_lock", new("CheckLockRequest", lockid=lock_id))
        except BaseException:
            with contextlib.suppress(ForebayError):
                self._unlock(lock_id)
            raise
        if answer.state != _ACQUIRED:
            with contextlib.suppress(ForebayError):  # nothing more to release
                self._unlock(lock_id)
            raise Unavailable(
                f"the lock on '{self._database}.{self._table}' was not free for {self._wait_ms} ms; another process "
                "holds it"
            )
        return lock_id

    def _beat(self, lock_id: int, done: threading.Event) -> None:
        """Send heartbeats until the lock is released. A failure shows when it is."""
        while not done.wait(self._heartbeat_seconds):
            with contextlib.suppress(ForebayError):
                self._metastore.call("heartbeat", self._metastore.new("HeartbeatRequest", lockid=lock_id))

    def _stop(self, done: threading.Event, heart: threading.Thread) -> None:
        done.set()
        heart.join()

    def _unlock(self, lock_id: int) -> None:
        self._metastore.call("unlock", self._metastore.new("UnlockRequest", lockid=lock_id))
