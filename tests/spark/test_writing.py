"""The write functions of workers, without Spark."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from forebay.base.errors import ForebayError, InvalidRequest, StorageFailure, UnsupportedOperation
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.server.embedded import EmbeddedServer
from forebay.server.storage.replica import BucketReplica
from forebay.spark.datasource import ForebayDataSource
from forebay.spark.workers import MESSAGE_COLUMN
from forebay.spark.writing.live_deltas import DeltaFunction
from forebay.spark.writing.live_write import StagedWrite, WriteFunction, WrittenMessage, write_function
from tests.spark.releases import SPARK
from tests.spark.tables import make_table, rows


def run(function: WriteFunction, *tables: pa.Table) -> WrittenMessage:
    """Write as a worker does, from a pickle."""
    copy = pickle.loads(pickle.dumps(function))
    batches = iter([batch for table in tables for batch in table.to_batches(max_chunksize=100)])
    [answer] = list(copy(batches))
    message = pickle.loads(answer.column(MESSAGE_COLUMN)[0].as_py())
    assert isinstance(message, WrittenMessage)
    return message


def write_to(table: Table, columns: tuple[str, ...] | None = None) -> WriteFunction:
    return write_function(table.info, table.connection.settings, columns)


def state(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.scan().to_arrow().sort_by("id").to_pylist()
    return found


@pytest.mark.parametrize("key", [None, ["id"]])
def test_rows_are_appended_to_log_tables_and_upserted_into_others(
    connection: Connection, database: str, key: list[str] | None
) -> None:
    table = make_table(connection, f"{database}.t", key)
    assert run(write_to(table), rows(0, 250), rows(250, 300)).rows == 300
    assert run(write_to(table), rows(0, 10)).rows == 10
    assert [row["id"] for row in state(table)] == sorted([*range(300), *([] if key else range(10))])


def test_a_task_without_rows_reports_none(connection: Connection, database: str) -> None:
    assert run(write_to(make_table(connection, f"{database}.t")), rows(0, 0)).rows == 0


def test_a_partial_update_leaves_other_columns_alone(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    run(write_to(table), rows(1, 3))
    # Spark fills the columns that the user left out with nulls.
    partial = pa.table({"id": [1, 3], "name": ["one", "three"], "amount": pa.nulls(2, pa.float64())})
    run(write_to(table, ("id", "name")), partial)
    assert state(table) == [
        {"id": 1, "name": "one", "amount": 0.5},
        {"id": 2, "name": "n2", "amount": 1.0},
        {"id": 3, "name": "three", "amount": None},
    ]


def test_partial_updates_need_a_primary_key_and_all_of_it(connection: Connection, database: str) -> None:
    log = make_table(connection, f"{database}.l")
    with pytest.raises(InvalidRequest, match=r"only rows of tables with a primary key can be written in part"):
        write_to(log, ("id",))
    table = make_table(connection, f"{database}.t", ["id"])
    with pytest.raises(InvalidRequest, match=r"needs its whole primary key; id is missing"):
        write_to(table, ("name",))
    with pytest.raises(InvalidRequest, match=r"no column 'nope'"):
        write_to(table, ("id", "nope"))


def test_digits_of_a_second_that_the_column_has_not_are_cut_off_as_sql_does(
    connection: Connection, database: str
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("ms", "UTC"))])
    connection.create_table(f"{database}.t", schema)
    table = connection.table(f"{database}.t")
    run(write_to(table), pa.table({"id": [1], "at": pa.array([1_700_000_000_123_456], pa.timestamp("us", "UTC"))}))
    assert table.scan().to_arrow()["at"].cast(pa.int64()).to_pylist() == [1_700_000_000_123]


def test_numbered_columns_are_left_to_the_server(connection: Connection, database: str) -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), ("id", pa.int64()), ("v", pa.int32())])
    connection.create_table(f"{database}.t", schema, primary_key=["k"], auto_increment="id")
    table = connection.table(f"{database}.t")
    nothing = pa.nulls(2, pa.int64())
    run(write_to(table), pa.table({"k": ["a", "b"], "id": nothing, "v": pa.array([1, 2], pa.int32())}))
    assert all(row["id"] is not None for row in state(table))
    given = pa.table({"k": ["c"], "id": [7], "v": pa.array([1], pa.int32())})
    with pytest.raises(InvalidRequest, match=r"writing to table .*column 'id' of table .* is numbered by the server"):
        run(write_to(table), given)


def test_changed_rows_may_not_have_numbers_that_the_server_has_not_given(connection: Connection, database: str) -> None:
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), ("id", pa.int64()), ("v", pa.int32())])
    table = connection.create_table(f"{database}.t", schema, primary_key=["k"], auto_increment="id", buckets=1)
    table.upsert([{"k": "a", "v": 1}])
    number = state(table)[0]["id"]

    def change(kind: str, key: str, given: int | None) -> None:
        staged = StagedWrite.begin(connection.settings)
        function = DeltaFunction(table.info, staged)
        row = {"_change_type": [kind], "k": [key], "id": pa.array([given], pa.int64()), "v": pa.array([2], pa.int32())}
        written = function.write(pa.table(row).to_batches())
        ends = connection.admin.list_offsets(table.info)
        staged.commit_unchanged([written.upserts or ""], table.info, ends, "UPDATE")

    change("update_after", "a", number)
    change("insert", "b", None)
    assert [(row["k"], row["v"]) for row in state(table)] == [("a", 2), ("b", 2)]
    for kind, key, given in (("update_after", "a", None), ("update_after", "a", number + 1), ("insert", "c", 7)):
        with pytest.raises(InvalidRequest, match="column 'id' is numbered by the server: rows keep the number"):
            change(kind, key, given)
    with pytest.raises(UnsupportedOperation, match="cannot be deleted: the server numbers them in column 'id'"):
        change("delete", "a", None)


def test_writer_errors_must_surface(connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fluss's own Spark connector loses the error of a failed batch, and the query succeeds with rows missing."""
    table = make_table(connection, f"{database}.t", buckets=1)

    def refuse(self: BucketReplica, requests: Any) -> Any:
        raise StorageFailure("the disk is on fire")

    monkeypatch.setattr(BucketReplica, "_append_locked", refuse)
    settings = connection.settings
    quick = type(settings)(settings.bootstrap_servers, (("client.writer.retries", 0),))
    with pytest.raises(ForebayError, match=r"writing to table .*: .*the disk is on fire"):
        run(write_function(table.info, quick), rows(0, 10))


def test_a_value_that_does_not_fit_fails_with_column_and_table(connection: Connection, database: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("code", pa.binary(2))])
    connection.create_table(f"{database}.t", schema)
    table = connection.table(f"{database}.t")
    with pytest.raises(InvalidRequest, match=rf"writing to table {database}\.t: column 'code'"):
        run(write_to(table), pa.table({"id": [1], "code": [b"abc"]}))


# ---- the plain data source ------------------------------------------------------------------------------------------


def source(server: EmbeddedServer, table: Table, **more: str) -> ForebayDataSource:
    return ForebayDataSource({"bootstrap.servers": server.bootstrap_servers, "table": str(table.path), **more})


def test_the_data_source_writes(server: EmbeddedServer, connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    made = source(server, table)
    writer = pickle.loads(pickle.dumps(made.writer(made.schema(), False)))
    message = writer.write(iter(rows(0, 5).to_batches()))
    writer.commit([message])
    assert len(state(table)) == 5


def test_a_schema_of_some_columns_is_a_partial_update(
    server: EmbeddedServer, connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    table.upsert(rows(1, 2))
    made = source(server, table, columns="id,name")
    schema = made.schema()
    assert schema.names == ["id", "name"]
    writer = made.writer(schema, False)
    writer.commit([writer.write(iter(pa.table({"id": [1], "name": ["x"]}).to_batches()))])
    assert state(table) == [{"id": 1, "name": "x", "amount": 0.5}]


def test_what_the_data_source_cannot_write_it_refuses_by_name(
    server: EmbeddedServer, connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.t", ["id"])
    options = {"bootstrap.servers": server.bootstrap_servers}
    schema: StructType = source(server, table).schema()
    log = make_table(connection, f"{database}.log")
    with pytest.raises(UnsupportedOperation, match=rf"rows of log table {database}\.log cannot be replaced"):
        source(server, log).writer(schema, True)
    with pytest.raises(InvalidRequest, match=r"a write has no option 'filter'"):
        source(server, table, filter="id = 1").writer(schema, False)
    with pytest.raises(InvalidRequest, match=r"no format 'forebay' option 'colums'.*'columns'"):
        source(server, table, colums="id").writer(schema, False)
    with pytest.raises(InvalidRequest, match=r"changelog can only be read"):
        ForebayDataSource({**options, "table": f"{table.path}$changelog"}).writer(schema, False)
    told = "a stream has no option 'limit'" if SPARK >= (4, 2) else "readStream.* needs Spark 4.2"
    with pytest.raises(InvalidRequest if SPARK >= (4, 2) else UnsupportedOperation, match=told):
        source(server, table, limit="3").streamReader(schema).initialOffset()
    with pytest.raises(UnsupportedOperation, match=r"format 'forebay' has no 'write\.sequence\.field'"):
        source(server, table, **{"write.sequence.field": "id"}).writer(schema, False)
