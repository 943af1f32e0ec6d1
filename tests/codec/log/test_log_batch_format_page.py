"""The worked example of docs/format/log_batch.md agrees with the code."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from forebay.codec.log.log_batch import build_arrow_batch

PAGE = Path(__file__).parents[3] / "docs" / "format" / "log_batch.md"


def test_the_worked_example_is_what_the_code_writes():
    section = PAGE.read_text().split("## Worked example")[1].split("```")[1]
    shown = bytes.fromhex("".join(line[:50] for line in section.strip().splitlines()))
    batch = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "name": pa.array(["a", None])})
    written = build_arrow_batch(batch, schema_id=1, change_types=b"\1\4", writer_id=77, batch_sequence=0,
                                statistics_columns=[0])  # fmt: skip
    assert shown.hex() == written.hex()
