"""A server that serves reads of what a standby has repeated, at addresses of its own.

It is a `ForebayServer` whose parts are others: the logs are those of the standby, which appends to them; the metadata
are a copy in memory, replaced as a whole; key-value state is made in a folder of its own, from the snapshots that the
standby has and the changelog. So nothing that is read here touches what a takeover needs, and after a takeover, or a
crash, the folder is removed.

What is read is what the journal had at the end of one of its objects (`Boundary`): `advance` goes to a later one. All
logs go on together; the states of the buckets of one table, too. A table with rows of a transaction that is decided and
not written whole is pinned by no table snapshot, as on the server itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from forebay.base.errors import ErrorCode, ForebayError, Unavailable, UnsupportedOperation
from forebay.base.thread_rules import any_thread, blocking
from forebay.fs import names
from forebay.kv.scanner import ScannerManager
from forebay.kv.table_snapshots import TableSnapshotManager
from forebay.log.checkpoints import DataDirectory
from forebay.metadata.table import TableBucket
from forebay.protocol.api import ApiKey
from forebay.server.config import ServerConfig
from forebay.server.context import HANDLERS, Handler, LakeParts, ServerCall, ServerContext
from forebay.server.flow.disk_reserve import DiskReserve
from forebay.server.flow.request_limits import RequestLimits
from forebay.server.journal.followed_logs import FollowedLogs
from forebay.server.lake.lake_snapshots import LakeSnapshots
from forebay.server.lake.lake_tiering import TieringManager
from forebay.server.metadata.catalog import TableCatalog
from forebay.server.metadata.lake_tables import LakeTables
from forebay.server.metadata_store import MetadataStore
from forebay.server.server import ForebayServer, Injected, counters_of
from forebay.server.standby.boundary import Boundary, MemoryDatabase
from forebay.server.standby.followed_log_store import FollowedLogStore, refuse_write
from forebay.server.storage.log_epochs import LogEpochs
from forebay.server.storage.progress_notifier import ProgressNotifier
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.replicas import ReplicaManager
from forebay.server.transactions.transaction import TransactionState
from forebay.store.objects import ObjectStore

_LOGGER = logging.getLogger(__name__)

READ_APIS = frozenset(
    {
        ApiKey.GET_METADATA, ApiKey.GET_CLUSTER_HEALTH, ApiKey.DESCRIBE_CLUSTER_CONFIGS, ApiKey.DESCRIBE_SERVER,
        ApiKey.LIST_DATABASES, ApiKey.DATABASE_EXISTS, ApiKey.GET_DATABASE_INFO, ApiKey.LIST_TABLES,
        ApiKey.TABLE_EXISTS, ApiKey.GET_TABLE_INFO, ApiKey.GET_TABLE_SCHEMA, ApiKey.LIST_PARTITION_INFOS,
        ApiKey.GET_TABLE_STATS, ApiKey.LIST_OFFSETS, ApiKey.CHECK_LOG_OFFSETS, ApiKey.FETCH_LOG, ApiKey.LOOKUP,
        ApiKey.PREFIX_LOOKUP, ApiKey.LIMIT_SCAN, ApiKey.SCAN_KV, ApiKey.OPEN_TABLE_SNAPSHOT,
        ApiKey.RENEW_TABLE_SNAPSHOT, ApiKey.RELEASE_TABLE_SNAPSHOT, ApiKey.LIST_TABLE_SNAPSHOTS,
        ApiKey.GET_LAKE_SNAPSHOT, ApiKey.LIST_TRANSACTIONS,
    }
)  # fmt: skip
"""What a standby answers. All else would change something, or asks for what is only right on the server itself."""


class FollowedDecisions:
    """The transactions that are decided and whose rows are not all written: a `DecidedWork` of others."""

    unfinished: frozenset[int] = frozenset()

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._found: frozenset[int] = frozenset()

    def reload(self) -> None:
        """Add what the store has, whose content was replaced; what it had stays until the logs are as new as that."""
        query = (
            "SELECT table_commits.* FROM table_commits JOIN transactions USING (transaction_id) "
            "WHERE transactions.state = ?"
        )
        self._found = frozenset(row[0] for row in self._metadata.rows(query, int(TransactionState.DECIDED)))
        self.unfinished |= self._found

    def logs_are_shown(self) -> None:
        """Forget the transactions whose rows are all there by now."""
        self.unfinished = self._found

    def writers(self, bucket: TableBucket) -> Collection[int]:
        return ()

    def write(self, replica: BucketReplica) -> None:
        refuse_write()


class StandbyServer(ForebayServer):
    """One server of reads. `start` and `stop` belong to one event loop, `advance` to another thread."""

    def __init__(
        self, config: ServerConfig, store: ObjectStore, logs: FollowedLogs, injected: Injected | None = None
    ) -> None:
        """`config`: of the standby, with the ports at which reads are served."""
        super().__init__(config, injected)
        self._objects, self._logs = store, logs
        self._standby_dir = str(Path(config.data_dir).absolute())
        self.current_at = -math.inf
        """Reads see all that the journal had then (monotonic seconds)."""
        self.boundary: Boundary | None = None
        """Up to where reads see the journal."""

    # ---- the parts --------------------------------------------------------------------------------------------------

    def _open_parts(self) -> None:
        config, injected = self.config, self._injected
        folder = self._reads_folder()
        injected.fs.remove_tree(folder)
        directory = self._directory = DataDirectory.open(injected.fs, folder)
        coordinator, writers = self._executor("forebay-coordinator", 1), self._executor("forebay-write", 1)
        io = self._executor("forebay-io", config.value("server.io-pool.size"))
        store_io = self._executor("forebay-store", 8)
        reserve = DiskReserve(
            injected.fs, folder, config.value("server.data-disk.reserve"),
            config.value("server.data-disk.write-limit-ratio"),
        )  # fmt: skip
        metadata = self._store = MetadataStore(MemoryDatabase())
        # Made while the copy of the metadata is empty: it has no transactions to finish, whatever is shown later.
        epochs = LogEpochs(metadata, injected.clock, injected.ids)
        tiering = TieringManager(injected.clock)
        snapshots = LakeSnapshots(injected.fs, self._standby_dir, metadata, injected.clock, injected.ids)
        tables = LakeTables(config.lake, create_storage=injected.create_lake_storage)
        catalog = TableCatalog(metadata, injected.clock, config.catalog_limits, tables)
        scanners = ScannerManager(config.scanner_limits, injected.clock, injected.ids)
        pinned = TableSnapshotManager(config.table_snapshot_limits, injected.clock, injected.ids)
        notifier = ProgressNotifier(asyncio.get_running_loop(), tiering)
        counters = counters_of(config)
        remote_logs = self._remote_logs(self._objects, metadata)
        self._log_store = FollowedLogStore(
            injected.fs, self._standby_dir, self._objects, self._logs, remote_logs, metadata
        )
        replicas = ReplicaManager(
            injected.fs, directory, catalog, metadata, scanners, pinned,
            epochs=epochs, log_config=config.log_config, reserve=reserve, engine=config.value("kv.engine"),
            open_max=config.open_buckets_max, checkpoint_records=config.value("kv.checkpoint.records"),
            engine_factory=injected.engine_factory, witnesses=injected.witnesses, clock=injected.clock,
            writers=writers, on_progress=notifier.progressed, counters=counters, log_store=self._log_store,
        )  # fmt: skip
        transactions = self._transactions(metadata, catalog, replicas, reserve, folder)
        self._decisions = replicas.decided = FollowedDecisions(metadata)
        self._context = ServerContext(
            config, catalog, metadata, replicas, scanners, pinned, transactions, notifier, injected.clock,
            LakeParts(tables, snapshots, tiering, 0), coordinator, io, store_io,
            RequestLimits(injected.clock, config.value("server.request.max-items"), config.answer_bytes_max),
            counters, epochs, remote_logs=remote_logs,
            handlers=_handlers(self.staleness_seconds, config.seconds("standby.max-staleness")),
            standby=lambda: (0 if self.boundary is None else self.boundary.at_ms, self.staleness_seconds()),
        )  # fmt: skip
        for bound in self._bound:
            self._context.nodes[bound.listener.name] = self._nodes_of(bound.listener.name)

    def _start_upkeep(self) -> None:
        context, config = self.context, self.config
        seconds = config.seconds("kv.scanner.expiration-interval")
        self._every(seconds, context.scanners.expire)
        self._every(seconds, context.table_snapshots.expire)
        self._every(config.seconds("log.replica.high-watermark.checkpoint-interval"), context.replicas.close_idle)
        self._every(config.seconds("kv.snapshot.interval"), context.replicas.checkpoint_grown)
        self._upkeep.append(asyncio.create_task(self._close_idle_connections()))

    async def stop(self) -> None:
        if self._connections is not None:  # which are not waited for: a takeover is under way, or the end
            self._connections.is_closing = True
            for connection in list(self._connections):
                connection.abort()
        await super().stop()
        self._injected.fs.remove_tree(self._reads_folder())

    @any_thread
    def staleness_seconds(self) -> float:
        """For how long it was not seen that reads see all that the journal has; infinite if they see nothing yet."""
        return math.inf if self.boundary is None else self._injected.clock.monotonic() - self.current_at

    # ---- going on ---------------------------------------------------------------------------------------------------

    @blocking
    def advance(self, boundary: Boundary) -> None:
        """Let reads see the journal up to a later boundary. Never at the same time as `stop`.

        A bucket whose state cannot be brought up to it is closed: who reads it opens it, or gets the error.
        """
        context = self.context
        replicas = context.replicas
        if boundary.metadata is not None:
            self._show_metadata(boundary.metadata)
        self._forget(boundary.cut)
        before = {} if self.boundary is None else self.boundary.ends
        grown = {bucket: end for bucket, end in boundary.ends.items() if before.get(bucket) != end}
        for table_id, of_table in groupby(sorted(grown), key=lambda bucket: bucket.table_id):
            table = context.catalog.table_by_id(table_id)
            if table is None:
                continue
            ends = {bucket: grown[bucket] for bucket in of_table}
            # A table snapshot waits for this, and is followed by all of its states (`ReplicaManager.pin`).
            with table.write_gate.passing():
                self._log_store.show(ends)
                self._follow(replicas, ends)
        self._log_store.show({}, gone=before.keys() - boundary.ends.keys())
        replicas.stored(grown)
        self._decisions.logs_are_shown()
        self.boundary = boundary

    def _show_metadata(self, content: bytes) -> None:
        context = self.context
        context.store.show(content)
        gone = context.catalog.reload()
        context.epochs.reload()
        assert context.remote_logs is not None
        context.remote_logs.reload(gone)
        context.lake.snapshots.reload()
        self._decisions.reload()
        context.replicas.drop(gone)
        for bucket, path in gone.items():
            self._injected.fs.remove_tree(self._reads_folder(names.tablet_folder("kv", path, bucket)))

    def _forget(self, cut: Collection[TableBucket]) -> None:
        """Close buckets whose logs have become shorter, with the states that are ahead of them."""
        context = self.context
        context.replicas.drop(cut)
        for bucket in cut:
            if context.replicas.find_table(bucket) is not None:
                path = context.replicas.physical_path(bucket)
                self._injected.fs.remove_tree(self._reads_folder(names.tablet_folder("kv", path, bucket)))

    def _reads_folder(self, *parts: str) -> str:
        return names.join(self._standby_dir, names.READS_FOLDER, *parts)

    @staticmethod
    def _follow(replicas: ReplicaManager, ends: Mapping[TableBucket, int]) -> None:
        for bucket, end in ends.items():
            replica = replicas.begin_if_open(bucket)
            if replica is None:
                continue
            try:
                replica.follow(end)
            except ForebayError as e:
                _LOGGER.error("bucket %s is closed, and opened again by who reads it: %s", bucket, e)
                replicas.drop([bucket])
            finally:
                replicas.end(replica)


def read_config(config: ServerConfig, port: int) -> ServerConfig:
    """The settings of a standby's reads: those of the standby, at `port` and the next one; 0: the system picks both.

    Raises `UnsupportedOperation` for named listeners.
    """
    if any(key.endswith("bind.listeners") for key in config.settings):
        raise UnsupportedOperation(
            "reads of a standby (--read-port) have no listeners of their own names yet: leave 'bind.listeners' out, "
            "and give --host, or --read-port (docs/limits.md)"
        )
    settings = {key: value for key, value in config.settings.items() if not key.startswith("metrics.report")}
    return replace(config, coordinator_port=port, tablet_port=port and port + 1, settings=settings)


def _handlers(staleness: Callable[[], float], seconds_max: float) -> Mapping[ApiKey, Handler]:
    """The handlers of a standby: those of `READ_APIS`, and a refusal of all others.

    `staleness`: for how many seconds it has not seen the end of the journal; what it has repeated is refused when that
    is more than `seconds_max`.
    """

    def refused(context: ServerContext, call: ServerCall) -> Any:
        refuse_write()

    def fresh(handler: Handler) -> Handler:
        def handle(context: ServerContext, call: ServerCall) -> Any:
            if (seconds := staleness()) > seconds_max:
                text = f"for {seconds:.1f} s" if math.isfinite(seconds) else "since it was started"
                raise Unavailable(
                    f"this standby has not seen the end of the journal {text}, and serves no reads after the "
                    f"{seconds_max:g} s of 'standby.max-staleness': read from the server that it follows",
                    ErrorCode.REQUEST_TIME_OUT,
                )
            return handler(context, call)

        return handle

    def list_offsets(context: ServerContext, call: ServerCall) -> Any:
        if call.message.HasField("startTimestamp"):
            raise UnsupportedOperation(
                "a standby gives no offsets by time, because records of that time may come later: ask the server that "
                "it follows (docs/limits.md)"
            )
        return HANDLERS[ApiKey.LIST_OFFSETS](context, call)

    handlers = {key: fresh(handler) if key in READ_APIS else refused for key, handler in HANDLERS.items()}
    return {
        **handlers,
        ApiKey.LIST_OFFSETS: fresh(list_offsets),
        ApiKey.DESCRIBE_SERVER: HANDLERS[ApiKey.DESCRIBE_SERVER],
    }
