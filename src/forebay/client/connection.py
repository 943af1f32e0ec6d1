"""A connection to a cluster: the entry point to everything else.

    conn = forebay.connect("127.0.0.1:9123")
    table = conn.create_table("sales.orders", {"id": "BIGINT", "amount": "DOUBLE"}, primary_key="id")
    table = conn.table("sales.orders")

Rules: one connection serves all threads of a process. It pickles as its settings: the unpickled copy, in a Spark worker
for instance, connects on first use. A forked child reconnects, too. `close` (or the end of a `with` block) sends what
buffered writers still hold; an unreferenced connection closes without sending.

`shared_connection(settings)` returns the same connection to every caller in a process, so that many short tasks need
one socket per server rather than one per task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from forebay.base import threads
from forebay.base.arguments import did_you_mean_table
from forebay.base.completion import hidden_from_completion
from forebay.base.errors import ErrorCode, NotFound, UnsupportedOperation
from forebay.client.session import Session
from forebay.client.settings import LAKE_OPTIONS, Settings, make_settings
from forebay.metadata import json_serde
from forebay.metadata.table import DatabaseInfo, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, table_path_to_pb

if TYPE_CHECKING:
    from forebay.api.schemas import SchemaLike
    from forebay.api.sql_result import Result
    from forebay.client.admin.admin import Admin
    from forebay.client.restore import RestoredRows
    from forebay.client.table import Table
    from forebay.client.transaction import Transaction

M = TypeVar("M", bound=Message)


def connect(
    bootstrap_servers: str | None = None,
    user: str | None = None,
    password: str | None = None,
    *,
    lake_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Connection:
    """Connect to a Forebay server or an Apache Fluss cluster.

    `bootstrap_servers` is "host:port", or a comma-separated list; any server of the cluster will do. `options` are
    Fluss's `client.*` options, with dots or underscores, with or without `client.` (docs/client.md). `lake_options` are
    options of the lake (`s3.access-key`, ...), for reading tables that have one: they override those that the server
    sends, which never include secrets. Raises `Unavailable` if no server responds, `AccessDenied` for wrong
    credentials, `InvalidRequest` for unknown options.
    """
    all_options = {**options, LAKE_OPTIONS: lake_options or {}}
    connection = Connection(make_settings(bootstrap_servers, user, password, all_options))
    try:
        connection.cluster.bootstrap()
    except BaseException:
        connection.close()
        raise
    return connection


@hidden_from_completion(
    "attached", "buffered_bytes", "client_id", "clock", "cluster", "ids", "number", "sender", "settings"
)
class Connection(Session):
    """A connection to a cluster. Thread-safe. Open one with `connect`."""

    @property
    def admin(self) -> Admin:
        """Administration of the cluster: servers, settings, access rules, and table metadata."""
        from forebay.client.admin.admin import Admin

        return Admin(self)

    def table(self, table: str | TablePath | TableInfo) -> Table:
        """The table with the path "database.table".

        Raises `NotFound` if there is none. A `TableInfo` (such as `Table.info`) is used as it is, without a request.
        """
        from forebay.client.table import Table

        if not isinstance(table, TableInfo):
            path = TablePath.parse(table)
            with self._suggesting(path.database, path.table):
                table = self.cluster.table_info(path)
        return Table(self, table, may_read_standby=True)

    @property
    def reads(self) -> Session:
        """Whom to ask for rows as they are now: the standby of `client.read.standby` while that one answers."""
        if self.settings["client.read.standby"] is None:
            return self
        from forebay.client.standby_session import StandbySession

        with self._lock:
            if self._standby is None:
                self._standby = StandbySession(self, self._dial)
            return self._standby

    def transaction(self, application: str | None = None, version: int | None = None) -> Transaction:
        """A transaction: rows of any tables that become visible together, once.

        `application` names a job, and `version` one run of it; versions grow. Use it in a `with` block, which commits
        at its end. A version that is committed already adds nothing (`Transaction.committed` tells). Without these two
        it is all or nothing, too, but a job that is repeated adds its rows again.
        """
        from forebay.client.transaction import Transaction

        return Transaction(self, application, version)

    def restore(self, table: str | TablePath, as_of: Any, *, dry_run: bool = False) -> RestoredRows:
        """Write the rows of a primary-key table back as of then (as in `Table.scan`), in one transaction, a RESTORE.

        Returns how many rows differed; with `dry_run` nothing is written. Raises `Conflict` if others change such rows.
        """
        from forebay.client.restore import restore

        return restore(self.table(table).at_server, as_of, dry_run=dry_run)

    def sql(
        self,
        statement: str,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        *,
        warehouse: Any = None,
        lakes: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Result:
        """The result of an SQL statement over this cluster's tables and lakes, by DuckDB: see `forebay.sql`."""
        from forebay.api.sql_engine import sql_engine

        return sql_engine()(statement, self, warehouse, parameters=parameters, lakes=lakes, data=data)

    def metrics(self) -> dict[str, Any]:
        """Counters of this connection as plain values: requests by API, batches of writers, fetches of readers, lookups
        (docs/metrics.md). `forebay.metrics.collector` has the same for Prometheus.
        """
        from forebay.client.metrics import metrics_of

        return metrics_of(self)

    # ---- databases --------------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        """The names of the databases, sorted."""
        answer = self._ask(ApiKey.LIST_DATABASES, pb.ListDatabasesRequest(), pb.ListDatabasesResponse)
        return sorted(answer.database_name)

    def database_exists(self, name: str) -> bool:
        """Whether the database exists."""
        request = pb.DatabaseExistsRequest(database_name=name)
        return self._ask(ApiKey.DATABASE_EXISTS, request, pb.DatabaseExistsResponse).exists

    def create_database(
        self,
        name: str,
        *,
        comment: str | None = None,
        options: Mapping[str, Any] | None = None,
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a database; `options` are stored with it, but the server does not interpret them.

        Raises `AlreadyExists`, and `InvalidRequest` for a name that is not allowed.
        """
        from forebay.client.admin.definition import option_text

        request = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=ignore_if_exists)
        if comment is not None or options:
            info = DatabaseInfo(name, comment, {key: option_text(value) for key, value in (options or {}).items()})
            request.database_json = json_serde.dumps(json_serde.database_to_json(info))
        self._change(ApiKey.CREATE_DATABASE, request, pb.CreateDatabaseResponse, safe=ignore_if_exists)

    def drop_database(self, name: str, *, cascade: bool = False, ignore_if_not_exists: bool = False) -> None:
        """Drop a database. Raises `NotFound`, and `InvalidRequest` (DATABASE_NOT_EMPTY) if it has tables, unless
        `cascade` drops these too.
        """
        request = pb.DropDatabaseRequest(database_name=name, ignore_if_not_exists=ignore_if_not_exists, cascade=cascade)
        with self._suggesting(name):
            self._change(ApiKey.DROP_DATABASE, request, pb.DropDatabaseResponse, safe=ignore_if_not_exists)

    # ---- tables -----------------------------------------------------------------------------------------------------

    def list_tables(self, database: str) -> list[str]:
        """The names of the tables in a database, sorted. Raises `NotFound` if there is no such database."""
        request = pb.ListTablesRequest(database_name=database)
        with self._suggesting(database):
            return sorted(self._ask(ApiKey.LIST_TABLES, request, pb.ListTablesResponse).table_name)

    def table_exists(self, name: str | TablePath) -> bool:
        """Whether the table "database.table" exists."""
        request = pb.TableExistsRequest(table_path=table_path_to_pb(TablePath.parse(name)))
        return self._ask(ApiKey.TABLE_EXISTS, request, pb.TableExistsResponse).exists

    def create_table(
        self,
        name: str | TablePath,
        schema: SchemaLike,
        *,
        primary_key: Sequence[str] | str = (),
        partition_keys: Sequence[str] | str = (),
        bucket_keys: Sequence[str] | str = (),
        buckets: int | None = None,
        options: Mapping[str, Any] | None = None,
        comment: str | None = None,
        auto_increment: str | None = None,
        ignore_if_exists: bool = False,
    ) -> Table:
        """Create a table and return it, or the existing one with `ignore_if_exists`.

        `schema` is a pyarrow schema (a timestamp with a zone becomes TIMESTAMP_LTZ), a dict or a list of names and
        types such as [("id", "BIGINT")], or a data frame whose columns are used. Keys are column names, or one name.
        Without `primary_key` it is a log table. Rows are distributed by `bucket_keys`, by default the primary key
        without the partition keys. The server chooses `buckets` by default. `options` that begin with `table.`
        configure the server; it stores all others without interpreting them. `auto_increment` names the column that the
        server numbers. Raises `AlreadyExists`, `NotFound` (the database), `InvalidRequest` for an invalid definition.
        """
        from forebay.client.admin.definition import new_descriptor

        path = TablePath.parse(name)
        descriptor = new_descriptor(
            schema,
            primary_key=primary_key,
            partition_keys=partition_keys,
            bucket_keys=bucket_keys,
            buckets=buckets,
            options=options,
            comment=comment,
            auto_increment=auto_increment,
        )
        with self._suggesting(path.database):
            self.admin.create_table_as(path, descriptor, ignore_if_exists)
        return self.table(path)

    def drop_table(self, name: str | TablePath, *, ignore_if_not_exists: bool = False) -> None:
        """Drop a table and its rows. Raises `NotFound`."""
        path = TablePath.parse(name)
        request = pb.DropTableRequest(table_path=table_path_to_pb(path), ignore_if_not_exists=ignore_if_not_exists)
        with self._suggesting(path.database, path.table):
            self._change(ApiKey.DROP_TABLE, request, pb.DropTableResponse, safe=ignore_if_not_exists)
        self.cluster.forget_table(path)

    def rename_table(self, name: str | TablePath, new_name: str | TablePath) -> NoReturn:
        """Raise `UnsupportedOperation`: servers cannot rename tables."""
        raise UnsupportedOperation(
            f"table {TablePath.parse(name)} cannot be renamed to {TablePath.parse(new_name)}: live tables keep their "
            "names. Create a table of that name and write the rows of the old one to it"
        )

    @contextmanager
    def _suggesting(self, database: str, table: str | None = None) -> Iterator[None]:
        """In the block, an error that a table or database does not exist names one whose name resembles it."""
        try:
            yield
        except NotFound as e:
            if e.code not in (ErrorCode.TABLE_NOT_EXIST, ErrorCode.DATABASE_NOT_EXIST):
                raise
            hint = did_you_mean_table(database, table, self.list_databases, self.list_tables)
            if not hint:
                raise
            raise NotFound(f"{e.message}{hint}", e.code) from e

    def _ask(self, key: ApiKey, request: Message, response: type[M]) -> M:
        return self.cluster.coordinator_call(key, request, response, repeatable=True)

    def _change(self, key: ApiKey, request: Message, response: type[M], *, safe: bool) -> M:
        """Send a change; `safe` means that it is idempotent."""
        return self.cluster.coordinator_call(key, request, response, repeatable=safe)

    def __reduce__(self) -> tuple[Any, ...]:
        return Connection, (self.settings,)

    def __repr__(self) -> str:
        return f"<forebay.Connection {self.settings!r}{' closed' if self.closed else ''}>"

    def _repr_html_(self) -> str:
        from forebay.client.display import facts_html, grid, heading

        nodes = self.cluster.view.nodes
        rows = [(node.role.name.lower(), node.node_id, f"{node.host}:{node.port}") for node in nodes]
        state = "closed" if self.closed else f"{len(nodes)} servers known" if nodes else "not connected yet"
        calls = self.cluster.calls()[0]
        facts = {
            "requests": sum(counter.sent for counter in calls.values()),
            "of these failed": sum(sum(counter.errors.values()) for counter in calls.values()) or None,
            "rows written": self.cluster.counters.writes.rows or None,
            "bytes not acknowledged": self.buffered_bytes or None,
        }
        servers = grid(("role", "id", "address"), rows)
        return heading(repr(self.settings), f"Forebay connection, {state}") + servers + facts_html(facts)


# ---- one connection a process ---------------------------------------------------------------------------------------

_shared: dict[Settings, Connection] = {}
_shared_lock = threads.lock()


def shared_connection(settings: Settings) -> Connection:
    """The connection of this process for `settings`; opened by the first caller, closed when the process exits."""
    with _shared_lock:
        connection = _shared.get(settings)
        if connection is None or connection.cluster.closed:
            connection = _shared[settings] = Connection(settings)
        return connection


def _after_fork_in_child() -> None:
    global _shared_lock
    _shared_lock = threads.lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
