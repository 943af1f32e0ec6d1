"""Tiering into a lake whose disk is full at some step, and has space again afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.base.errors import ForebayError
from forebay.lake.formats import create_lake_storage
from forebay.lake.tiering import OFFSETS_PROPERTY
from forebay.testing.lake_contract_base import people
from forebay.testing.lake_rounds import TieredTable, in_order
from tests.lake.iceberg_contract import IcebergContract
from tests.lake.paimon_contract import PaimonContract
from tests.small_disk import SmallDisk, mounted_tmpfs

LEFT_BYTES = [0, 16384, 65536]
UPKEEP = {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "true"}


def round_of(table: TieredTable, number: int) -> int:
    result = table.write(((), 0), [("+U", r) for r in people(number % 5, name=f"r{number} ")])
    committer = table.committer()
    committed = committer.commit([result], {OFFSETS_PROPERTY: str(number)})
    committer.maintain()
    return committed.snapshot_id


def again(table: TieredTable, number: int) -> None:
    """What the next round does: take what was committed, or do it again."""
    missing = table.committer().get_missing_lake_snapshot(table.base)
    if missing is not None:
        table.base = missing.snapshot_id
    if missing is None or missing.properties[OFFSETS_PROPERTY] != str(number):
        table.base = round_of(table, number)


def check_readable(table: TieredTable, model: dict[int, str]) -> None:
    assert table.read() == in_order({"id": k, "name": v} for k, v in model.items())


@pytest.mark.parametrize("lake", ["paimon", "iceberg"])
def test_a_round_on_a_full_disk_is_an_error_and_is_done_once_there_is_room(lake: str, tmp_path: Path) -> None:
    contract = PaimonContract() if lake == "paimon" else IcebergContract()
    with mounted_tmpfs(tmp_path / "disk", 16) as disk:
        storage = create_lake_storage(lake, {"warehouse": str(disk.path / "lake")})
        table = contract.keyed_table(storage, buckets=1, properties=UPKEEP)
        table.base = round_of(table, 0)
        model = {0: "r0 0"}
        failed = 0
        for number, left in enumerate(LEFT_BYTES, 1):
            failed += fails_when_full(disk, table, number, left, model)
            again(table, number)
            model[number % 5] = f"r{number} {number % 5}"
            check_readable(table, model)
        assert failed >= len(LEFT_BYTES) // 2


def fails_when_full(disk: SmallDisk, table: TieredTable, number: int, left: int, model: dict[int, str]) -> bool:
    """Whether a round on a disk with `left` bytes fails; the rows can be read meanwhile. There is room again then."""
    disk.fill(leave_bytes=left)
    try:
        table.base = round_of(table, number)
    except ForebayError as e:
        assert "o space left" in e.message or "disk is full" in e.message, e  # noqa: PT017
        if table.committer().get_missing_lake_snapshot(table.base) is None:
            check_readable(table, model)
        return True
    finally:
        disk.make_room()
    return False
