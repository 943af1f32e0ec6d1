"""Table snapshots on clusters that have none: plain scans instead. An exam runs this against Apache Fluss."""

from __future__ import annotations

import pickle

import pytest

import forebay
from forebay.base.errors import UnsupportedOperation
from forebay.client.connection import connect
from forebay.protocol.api import ApiKey, NegotiatedVersions
from tests.client.reading.numbered_rows import numbered, replayed, rows_of, upsert
from tests.patience import PATIENCE


@pytest.fixture
def plain_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Apache Fluss cluster, or our server as if it were one: none of the additions is offered."""
    offers = NegotiatedVersions.offers
    monkeypatch.setattr(
        NegotiatedVersions, "offers", lambda self, key: key < ApiKey.OPEN_TABLE_SNAPSHOT and offers(self, key)
    )


@pytest.mark.usefixtures("plain_cluster")
def test_without_the_additions_a_snapshot_is_plain_scans_and_says_so(make_table):
    table = numbered(make_table, 100)
    with table.snapshot() as snapshot:
        assert (snapshot.is_exact, snapshot.snapshot_id, snapshot.expires) == (False, None, None)
        assert table.connection.admin.list_table_snapshots() == []
        snapshot.renew()
        upsert(table, range(50, 150), 1)
        rows = rows_of(snapshot.scan())
        assert len(rows) == 150
        assert replayed(table, rows, snapshot.log_offsets) == rows
        scan = snapshot.scan_bucket(0)
        upsert(table, range(150), 2)
        assert scan.log_offset == snapshot.log_offsets[table.bucket(0)]
        rows = rows_of(scan)
        assert set(rows.values()) == {2}
        assert scan.log_offset > snapshot.log_offsets[table.bucket(0)]
        assert scan.position is None
        assert len(rows_of(snapshot.scan_bucket(0, limit=3))) == 3
        assert len(rows_of(snapshot.scan_bucket(0, filter=forebay.col("v") == 2, limit=3))) == 3
        with pytest.raises(UnsupportedOperation, match="cannot be resumed"):
            snapshot.scan_bucket(0, resume_after=b"x")
        assert rows_of(pickle.loads(pickle.dumps(snapshot)).scan()) == dict.fromkeys(range(150), 2)


@pytest.mark.usefixtures("plain_cluster")
def test_a_plain_scan_that_is_left_early_is_ended_on_the_server(make_table, bootstrap):
    table = numbered(make_table, 2000)
    with connect(bootstrap, scanner_kv_fetch_max_bytes="4kb") as other, other.table(table.path).snapshot() as snapshot:
        scan = snapshot.scan_bucket(0)
        batches = iter(scan)
        assert 0 < next(batches).num_rows < 2000
        assert not scan.finished
        scan.close()
        assert (scan.finished, scan._closing) == (True, True)
        assert list(batches) == []


@pytest.mark.usefixtures("plain_cluster")
def test_a_plain_scan_with_a_filter_ends_with_its_limit(make_table, bootstrap):
    table = numbered(make_table, 2000, buckets=1, value=7)
    with connect(bootstrap, scanner_kv_fetch_max_bytes="4kb") as other, other.table(table.path).snapshot() as snapshot:
        matching = {"filter": forebay.col("v") == 7}
        page = next(iter(snapshot.scan_bucket(0, **matching))).num_rows
        scan = snapshot.scan_bucket(0, **matching, limit=page)
        scan.wait()
        assert (scan.take().num_rows, scan.finished) == (page, True)
        scan.close()
        scan = snapshot.scan_bucket(0, **matching, limit=page + 1)
        scan.wait()
        assert (scan.take().num_rows, scan.finished) == (page, False)
        scan.close()
        assert len(rows_of(snapshot.scan_bucket(0, **matching, limit=3000))) == 2000


@pytest.mark.usefixtures("plain_cluster")
def test_the_changes_after_the_current_rows_begin_where_each_bucket_was_read(make_table):
    table = numbered(make_table, 100, buckets=2)
    with table.changes("full", "latest") as reader:
        upsert(table, range(50, 150), 1)
        rows = {row["id"]: row["v"] for row in reader.to_arrow().to_pylist()}
    assert rows == {**dict.fromkeys(range(50), 0), **dict.fromkeys(range(50, 150), 1)}
    with table.changes("full") as reader:
        upsert(table, range(10), 2)
        seen = 0
        while seen < 150:
            seen += reader.poll(PATIENCE).num_rows
        assert reader.poll(0.2) is None
        assert reader.position == table.connection.admin.list_offsets(table.info)
