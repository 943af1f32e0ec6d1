"""The quickstart's application: writes the year of flights, and keeps a model of the expected table contents."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.cli.quickstart import flights as flight_data

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from forebay.cli.quickstart.flights import Moment
    from forebay.client.connection import Connection


@dataclass(frozen=True)
class Totals:
    """Counts of the flights in the table; delays are sums, in minutes."""

    flights: int = 0
    departed: int = 0
    arrived: int = 0
    dep_delay: int = 0
    arr_delay: int = 0

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> Totals:
        """The totals of rows with the columns `COUNTED`, batch by batch."""
        totals = cls()
        for batch in batches:
            dep_delay, arr_delay = batch["dep_delay"], batch["arr_delay"]
            totals = cls(
                totals.flights + batch.num_rows,
                totals.departed + len(dep_delay) - dep_delay.null_count,
                totals.arrived + len(arr_delay) - arr_delay.null_count,
                totals.dep_delay + _sum(dep_delay),
                totals.arr_delay + _sum(arr_delay),
            )
        return totals

    def after(self, moment: Moment) -> Totals:
        """The model: these totals after the changes of a moment. It uses no table."""
        return replace(
            self,
            flights=self.flights + moment.announced.num_rows - moment.cancelled.num_rows,
            departed=self.departed + moment.departed.num_rows,
            arrived=self.arrived + moment.arrived.num_rows,
            dep_delay=self.dep_delay + _sum(moment.departed["dep_delay"]),
            arr_delay=self.arr_delay + _sum(moment.arrived["arr_delay"]),
        )


COUNTED = ["dep_delay", "arr_delay"]


def _sum(values: Any) -> int:
    return pc.sum(values).as_py() or 0


class Stream(threading.Thread):
    """Writes the year, moment by moment, like an application. Other threads may read its fields while it runs."""

    def __init__(self, connection: Connection, flights: pa.Table) -> None:
        super().__init__(name="flights", daemon=True)
        self._flights = connection.table("nyc.flights")
        self._events = connection.table("nyc.events")
        self._source = flights
        self._turn = threading.Condition()
        self._is_writing = False
        self._is_held = False
        self.total = flight_data.change_count(flights)
        self.done = 0
        self.day = ""
        self.seconds = 0.0
        self.model = Totals()
        self.error: Exception | None = None

    def run(self) -> None:
        """Write all flights. An error ends the thread and is stored in `error`."""
        began = SYSTEM_CLOCK.monotonic()
        try:
            for moment in flight_data.moments(self._source):
                with self._my_turn():
                    self._write(moment)
                    self.model = self.model.after(moment)
                self.done += moment.change_count
                self.seconds = SYSTEM_CLOCK.monotonic() - began
        except Exception as e:  # noqa: BLE001 - raised by the watcher
            self.error = e

    def _write(self, moment: Moment) -> None:
        for rows in (moment.announced, moment.departed, moment.arrived):
            if rows.num_rows:
                self._flights.upsert(rows, columns=rows.column_names)
        if moment.cancelled.num_rows:
            self._flights.delete(moment.cancelled)
        if moment.events.num_rows:
            self._events.append(moment.events)
            self.day = str(moment.events["at"][-1].as_py().date())

    @property
    def fraction(self) -> float:
        return self.done / max(self.total, 1)

    # ---- holding it between two moments -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _my_turn(self) -> Iterator[None]:
        with self._turn:
            self._turn.wait_for(lambda: not self._is_held)
            self._is_writing = True
        try:
            yield
        finally:
            with self._turn:
                self._is_writing = False
                self._turn.notify_all()

    @contextlib.contextmanager
    def held(self) -> Iterator[Totals]:
        """Hold all writes during the block, and yield the totals of everything written and acknowledged."""
        with self._turn:
            self._is_held = True
            self._turn.wait_for(lambda: not self._is_writing)
        try:
            yield self.model
        finally:
            with self._turn:
                self._is_held = False
                self._turn.notify_all()
