"""The Java client reads at a standby what the server has, and is refused when it changes something there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("fluss", reason="pyfluss has no wheel for this Python")

import java_client

import forebay
from tests.server.standby.reading_standby import reading

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(600)]

KEYS = 200


def test_the_java_client_reads_at_a_standby(tmp_path: Path) -> None:
    settings = {
        "store": str(tmp_path / "store"), "store.interval": "10 ms", "store.lease": "1 h",
        "log.segment.file-size": "2kb", "remote.log.task-interval-duration": "50 ms",
    }  # fmt: skip
    with (
        forebay.embedded(tmp_path / "primary", settings=settings) as primary,
        reading(tmp_path / "standby", settings) as standby,
    ):
        table = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id", buckets=2)
        for turn in range(4):
            table.upsert(pa.table({"id": range(KEYS), "v": [f"row {n} of turn {turn}" for n in range(KEYS)]}))
        table.delete([{"id": n} for n in range(0, KEYS, 10)])
        standby.await_all(primary)
        address = standby.reads.addresses.bootstrap_servers
        found = {line["step"]: line for line in java_client.read_standby(address, "fluss", "kv", KEYS)}
        rows = [None if n % 10 == 0 else [n, f"row {n} of turn 3"] for n in range(KEYS)]
        assert found["tables"]["value"] == ["kv"]
        ends = primary.admin.list_offsets("fluss.kv")
        assert found["ends"]["value"] == {str(bucket.bucket): end for bucket, end in ends.items()}
        assert found["lookups"]["value"] == rows
        assert sorted(found["limit scans"]["value"]) == [row for row in rows if row]
        for change in ("upsert", "drop"):
            assert "standby" in found[change]["message"]
        records = table.changes("earliest", "latest").to_arrow().num_rows
        assert len(java_client.read_log(address, "fluss", "kv", records)) == records
        assert table.lookup([1])["v"].to_pylist() == ["row 1 of turn 3"]
