"""`forebay verify` on tables with a lake: offsets, and lake and stream as one."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.codec.crc import crc32c
from forebay.server.metadata_store import LocalDatabaseFile, MetadataStore, OffsetsFile
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
    whole = offsets.read_bytes()
    assert whole.count(b"100") == 1
    beyond = whole.replace(b"100", b"900")
    offsets.write_bytes(beyond)
    (fault,) = verify_directory(data).faults
    assert (fault.place, "checksum" in fault.message) == (str(offsets), True)
    other = whole.replace(b'"table_id": 1', b'"table_id": 7').replace(b'"table_id":1', b'"table_id":7')
    for content, message in (
        (beyond, "up to offset 900, and its log ends at"),
        (other, "has the offsets of table 7, not of 1"),
    ):
        with closing(MetadataStore(LocalDatabaseFile(str(data / "metadata.sqlite")), is_new=False)) as store:
            ((table_id, (snapshot,)),) = store.lake_snapshots().items()
            known = OffsetsFile(snapshot.tiered.path, crc32c(content))
            store.put_lake_snapshots(table_id, [replace(snapshot, tiered=known, readable=known)])
        offsets.write_bytes(content)
        (fault,) = verify_directory(data).faults
        assert (fault.place, message in fault.message) == (str(offsets), True), fault
