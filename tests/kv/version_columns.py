"""Types of version columns, with strategies for their values and their lowest value."""

from __future__ import annotations

import datetime as dt
from typing import Any

from hypothesis import strategies as st

from forebay.metadata import types

MOMENTS = st.none() | st.datetimes(dt.datetime(1960, 1, 1), dt.datetime(2030, 1, 1))

VERSIONS: dict[str, tuple[types.DataType, st.SearchStrategy[Any], Any]] = {
    "int": (types.int_(), st.none() | st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1]), -(2**31)),
    "bigint": (types.bigint(), st.none() | st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]), -(2**63)),
    "timestamp(3)": (types.timestamp(3), MOMENTS.map(lambda m: m and m.replace(microsecond=0)), dt.datetime.min),
    "timestamp(6)": (types.timestamp(6), MOMENTS, dt.datetime.min),
    "timestamp_ltz(6)": (types.timestamp_ltz(6), MOMENTS, dt.datetime.min),
}
