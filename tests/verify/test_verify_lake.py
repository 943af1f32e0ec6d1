"""`forebay verify` on tables with a lake: offsets, and lake and stream as one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from forebay.verify import verify_directory, verify_server
from tests.tiering.running import lake_cluster, paimon_storage

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.mark.timeout(120)
def test_lake_and_stream_are_compared_and_damaged_lake_offsets_are_a_fault(tmp_path: Path) -> None:
    with lake_cluster(tmp_path, paimon_storage) as running:
        table = running.create("t", SCHEMA, primary_key=["k"], buckets=1)
        table.upsert(pa.table({"k": range(100), "v": ["x"] * 100}))
        running.tier(table)
        table.upsert(pa.table({"k": range(50, 150), "v": ["y"] * 100}))
        report = verify_server(running.connection)
        assert report.findings == []
        assert report.counts["lake snapshots"] == 1
        data = Path(running.server.server.config.data_dir)
    offline = verify_directory(data)
    assert offline.findings == []
    assert offline.counts["files of lake offsets"] == 1
    offsets = next(data.rglob("*.offsets"))
    offsets.write_bytes(offsets.read_bytes().replace(b"100", b"900"))
    (fault,) = verify_directory(data).faults
    assert (fault.place, "checksum" in fault.message) == (str(offsets), True)
