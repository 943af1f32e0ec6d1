"""The worked example of docs/format/log_segment.md agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

from forebay.base.ambient import ManualClock
from forebay.log.config import LogConfig
from forebay.log.tablet import LogTablet
from tests.log.log_batches import faulty_fs, make_batch

PAGE = Path(__file__).parents[2] / "docs" / "format" / "log_segment.md"


def test_the_worked_example_of_the_format_page_is_true() -> None:
    fs = faulty_fs()
    clock = ManualClock(1_700_000_000_000)
    tablet = LogTablet.open(fs, "/data/sales/orders-7/log-0", config=LogConfig(index_interval_bytes=50), clock=clock)
    tablet.append_as_leader(make_batch(2, b"rows 0 and 1", writer_id=77, sequence=0))
    clock.advance(0.005)
    tablet.append_as_leader(make_batch(1, b"row 2", writer_id=77, sequence=1))
    tablet.close()
    examples = re.findall(r"^`(sales/[^`]+)`[^\n]*\n```hex\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert fs.content("/data/sales/orders-7/log-0/00000000000000000000.log_start") == b""
    assert len(examples) + 1 == len(fs.list_directory("/data/sales/orders-7/log-0")) == 5
    for path, dump in examples:
        assert bytes.fromhex(dump) == fs.content(f"/data/{path}"), path
