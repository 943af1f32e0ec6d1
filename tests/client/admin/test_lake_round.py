"""Rounds of tiering by hand: our server, the client's calls, and a Paimon lake that the server publishes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import Conflict, ErrorCode
from forebay.client.connection import Connection
from forebay.lake.offsets import BucketOffsets
from forebay.lake.tiering import OFFSETS_PROPERTY
from forebay.metadata.table import TableBucket
from forebay.server.embedded import EmbeddedServer
from tests.client.conftest import own_server
from tests.client.lake_worker import PATH, SCHEMA, Worker, lake_rows, rows

pytestmark = own_server

PROPERTIES = {"table.datalake.enabled": "true", "table.datalake.freshness": "0 ms"}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(tmp_path / "lake")}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings) as server,
        forebay.connect(server.bootstrap_servers) as connected,
    ):
        connected.create_table(PATH, SCHEMA, primary_key=["id"], options=PROPERTIES)
        yield connected


def test_rounds_bring_rows_into_the_lake_and_the_server_knows_how_far(connection: Connection) -> None:
    base = None
    for number in range(3):
        new = rows(2 * number, 2 * number + 1)
        connection.table(PATH).upsert(new)  # tables without news are not handed out
        worker = Worker(connection)
        result, path = worker.commit_in_lake([worker.write(new, 0)], 2 * number + 2, base)
        worker.tell(result, path)
        worker.done()
        snapshot = connection.admin.lake_snapshot(PATH, readable=True)
        assert snapshot.snapshot_id == result.snapshot_id
        assert list(snapshot.log_offsets.values()) == [2 * number + 2]
        assert [row["id"] for row in lake_rows(worker, snapshot.snapshot_id)] == list(range(2 * number + 2))
        base = result.snapshot_id


def test_a_round_that_died_after_its_lake_commit_is_finished_by_the_next_worker(connection: Connection) -> None:
    connection.table(PATH).upsert(rows(1, 2))
    first = Worker(connection)
    committed, _ = first.commit_in_lake([first.write(rows(1, 2), 0)], 2, None)
    first.calls.heartbeat(failed=[first.table])

    second = Worker(connection)
    missing = second.committer(None).get_missing_lake_snapshot(None)
    assert missing is not None
    assert missing.snapshot_id == committed.snapshot_id
    path = missing.properties[OFFSETS_PROPERTY]
    assert list(BucketOffsets.from_json(Path(path).read_bytes()).offsets.values()) == [2]
    second.calls.commit(second.info, missing.snapshot_id, path, readable_path=path, earliest_to_keep=-1)
    assert list(connection.admin.lake_snapshot(PATH).log_offsets.values()) == [2]
    second.done()


def test_a_zombie_is_refused_by_the_lake_and_by_the_server(connection: Connection) -> None:
    connection.table(PATH).upsert(rows(1, 2))
    zombie = Worker(connection)
    written = zombie.write(rows(1), 0)
    late = zombie.calls.prepare(zombie.info, {TableBucket(zombie.info.table_id, 0): 1})
    zombie.calls.heartbeat(failed=[zombie.table])  # as if the server had given it up
    heir = Worker(connection)
    heir.tell(*heir.commit_in_lake([heir.write(rows(1, 2), 0)], 2, None))

    with pytest.raises(Conflict, match="fenced off"):
        zombie.committer(None).commit([written], {OFFSETS_PROPERTY: late})
    with pytest.raises(Conflict) as refused:
        zombie.calls.commit(zombie.info, 99, late, readable_path=late)
    assert refused.value.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
    errors = zombie.calls.heartbeat([zombie.table]).errors
    assert errors[zombie.info.table_id].code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
    heir.done()


def test_a_column_that_is_added_and_a_table_switched_off_and_on_again_fit_their_lake_table(
    connection: Connection,
) -> None:
    connection.table(PATH).upsert(rows(1, 2))
    first = Worker(connection)
    result, path = first.commit_in_lake([first.write(rows(1), 0)], 1, None)
    first.tell(result, path)
    first.done()
    connection.table(PATH).alter(set={"table.datalake.enabled": "false"})
    connection.table(PATH).alter(add_columns=pa.schema([("more", pa.int32())]))
    connection.table(PATH).alter(set={"table.datalake.enabled": "true", "paimon.snapshot.num-retained.max": "20"})
    second = Worker(connection)
    second.storage.create_tiering_factory().validate(second.info)
    wider = pa.RecordBatch.from_pylist(
        [{"id": 2, "name": "b", "more": 5}], schema=SCHEMA.append(pa.field("more", pa.int32()))
    )
    result, path = second.commit_in_lake([second.write(wider, 1)], 2, result.snapshot_id)
    second.tell(result, path)
    assert [row["more"] for row in lake_rows(second, result.snapshot_id)] == [None, 5]
