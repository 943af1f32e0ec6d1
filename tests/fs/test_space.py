"""The reserve of the data disk, to the byte."""

from __future__ import annotations

import pytest

from forebay.base.errors import ErrorCode
from forebay.fs.interface import RESERVE_BYTES, DiskFull
from forebay.server.flow.disk_reserve import DiskReserve


class Disk:
    """The two numbers of a disk that the reserve asks for."""

    def __init__(self, total: int, free: int) -> None:
        self.total, self.free = total, free

    def total_bytes(self, path: str) -> int:
        assert path == "/data"
        return self.total

    def free_bytes(self, path: str) -> int:
        assert path == "/data"
        return self.free


def reserve(total: int, free: int, **options: float) -> DiskReserve:
    return DiskReserve(Disk(total, free), "/data", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("total", "options", "kept"),
    [
        (1 << 40, {}, RESERVE_BYTES),
        (2000, {}, 100),
        (2000, {"reserve_bytes": 30}, 30),
        (2000, {"reserve_bytes": 30, "used_share_max": 0.9}, 200),
        (2000, {"used_share_max": 0.99}, 100),
    ],
)
def test_what_is_kept_free(total: int, options: dict[str, float], kept: int) -> None:
    assert reserve(total, 0, **options).kept_free() == kept
    assert reserve(total, kept, **options).is_free()
    assert not reserve(total, kept - 1, **options).is_free()


def test_a_write_may_take_what_is_above_the_reserve() -> None:
    reserve(2000, 150).require(50)
    reserve(2000, 100).require(0)
    with pytest.raises(DiskFull, match=r"has 150 B free, of which 100 B are .*; 51 B were not") as full:
        reserve(2000, 150).require(51)
    assert full.value.code == ErrorCode.DISK_WRITE_LOCKED
