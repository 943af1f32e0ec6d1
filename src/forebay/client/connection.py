"""A connection to a cluster: the way in for everything else.

    conn = forebay.connect("127.0.0.1:9123")
    conn.admin.create_table("sales.orders", schema, primary_key=["id"])
    table = conn.table("sales.orders")

Rules: one connection serves all threads of a process. It pickles to its settings: what comes out at the other end, in
a Spark worker for instance, connects when it is first used. After a fork the child connects anew, too. `close` (or
the end of a `with` block) sends what buffered writers still hold; a connection that nobody refers to any more closes
itself without sending.

`shared_connection(settings)` gives every caller in a process the same connection, so that many short tasks need one
socket for each server and not one for each task.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forebay.base import threads
from forebay.client.options import LAKE_OPTIONS, Settings, make_settings
from forebay.client.session import Session
from forebay.metadata.table import TableBucket, TableInfo, TablePath
from forebay.protocol.convert import ServerNode

if TYPE_CHECKING:
    from forebay.client.admin import Admin
    from forebay.client.live_scan import BucketScan
    from forebay.client.log_reader import LogReader
    from forebay.client.table import Table


def connect(
    bootstrap_servers: str | None = None,
    user: str | None = None,
    password: str | None = None,
    *,
    lake_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Connection:
    """Connect to a Forebay server or an Apache Fluss cluster.

    `bootstrap_servers` is "host:port", or several of them with commas; any server of the cluster will do. `options`
    are Fluss's `client.*` options, with dots or underscores, with or without `client.` (docs/client.md).
    `lake_options` are the lake's own (`s3.access-key`, ...), for reading tables that have one: they go before those
    that the server tells, which are no secrets. Raises `Unavailable` if no server answers, `AccessDenied` for wrong
    credentials, `InvalidRequest` for unknown options.
    """
    given = {**options, LAKE_OPTIONS: lake_options or {}}
    connection = Connection(make_settings(bootstrap_servers, user, password, given))
    try:
        connection.cluster.bootstrap()
    except BaseException:
        connection.close()
        raise
    return connection


class Connection(Session):
    """A connection to a cluster. Thread-safe. Use `connect` to make one."""

    @property
    def admin(self) -> Admin:
        """Databases, tables, partitions, offsets, and the cluster itself."""
        from forebay.client.admin import Admin

        return Admin(self)

    def table(self, table: str | TablePath | TableInfo) -> Table:
        """A table, by its path "database.table".

        Raises `NotFound` if there is none. A `TableInfo` (as `Table.info` has it) is taken as it is, without asking.
        """
        from forebay.client.table import Table

        if not isinstance(table, TableInfo):
            table = self.cluster.table_info(TablePath.parse(table))
        return Table(self, table)

    def server_nodes(self) -> list[ServerNode]:
        """The servers of the cluster, as this client reaches them: the coordinator first."""
        return self.admin.server_nodes()

    def bucket_scan(
        self,
        table: str | TablePath | TableInfo,
        bucket: TableBucket | int,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> BucketScan:
        """A live scan of one bucket, as one task of a job reads it: see `forebay.client.live_scan.BucketScan`."""
        return self.table(table).bucket_scan(bucket, columns, limit)

    def bucket_log_reader(
        self,
        table: str | TablePath | TableInfo,
        bucket: TableBucket | int,
        start: Any,
        stop: Any = None,
        **options: Any,
    ) -> LogReader:
        """A reader of one bucket's log from offset `start` to before `stop`; `options` as in `Table.log`."""
        opened = self.table(table)
        resolved = opened.bucket(bucket)
        return opened.log({resolved: start}, stop if stop is None else {resolved: stop}, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return Connection, (self.settings,)

    def __repr__(self) -> str:
        return f"<forebay.Connection {self.settings!r}{' closed' if self.closed else ''}>"

    def _repr_html_(self) -> str:
        from forebay.client.display import grid, heading

        nodes = self.cluster.view.nodes
        rows = [(node.role.name.lower(), node.node_id, f"{node.host}:{node.port}") for node in nodes]
        state = "closed" if self.closed else f"{len(nodes)} servers known" if nodes else "not connected yet"
        return heading(repr(self.settings), f"Forebay connection, {state}") + grid(("role", "id", "address"), rows)


# ---- one connection a process ---------------------------------------------------------------------------------------

_shared: dict[Settings, Connection] = {}
_shared_lock = threads.lock()


def shared_connection(settings: Settings) -> Connection:
    """The connection of this process for `settings`; opened by whoever asks first, closed when the process ends."""
    with _shared_lock:
        connection = _shared.get(settings)
        if connection is None or connection.closed:
            connection = _shared[settings] = Connection(settings)
        return connection


def _after_fork_in_child() -> None:
    global _shared_lock
    _shared_lock = threads.lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
