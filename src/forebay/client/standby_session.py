"""Reads at a standby while it answers, and at the server where it does not (`client.read.standby`, docs/store.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from forebay.api.scan import RowReader
from forebay.base import threads
from forebay.base.errors import ForebayError, Unavailable
from forebay.client.session import Session
from forebay.metadata.table import TableBucket

if TYPE_CHECKING:
    from forebay.client.cluster.rpc import Dial

A = TypeVar("A")

_LOGGER = logging.getLogger(__name__)

_CHECK_SECONDS = 5.0


class StandbySession(Session):
    """The connection to the standby of another one, its owner: whom that one asks for rows as they are now."""

    def __init__(self, owner: Session, dial: Dial | None = None) -> None:
        super().__init__(owner.settings.of_standby, clock=owner.clock, ids=owner.ids, dial=dial)
        self.owner = owner
        self._checking = threads.lock()
        self._checked_at = float("-inf")
        self._is_used: bool | None = None
        """Whether it answered when it was asked last; None before."""

    def answer(self, call: Callable[[Session], A]) -> A:
        if self._answers():
            try:
                return call(self)
            except ForebayError as e:  # it may be behind the server, or have lost what the server has
                self.failed(e)
        return call(self.owner)

    def reading(self, open_reader: Callable[[Session], RowReader]) -> RowReader:
        if not self._answers():
            return open_reader(self.owner)
        try:
            return _StandbyRowReader(self, open_reader(self), open_reader)
        except ForebayError as e:
            self.failed(e)
        return open_reader(self.owner)

    def failed(self, error: ForebayError) -> None:
        """Ask the server itself for a while, if the standby does not answer."""
        if not isinstance(error, Unavailable):
            return
        with self._checking:
            self._checked_at = self.clock.monotonic()
            was_used, self._is_used = self._is_used, False
        if was_used is not False:
            _LOGGER.warning("reading from the server itself, since its standby does not answer: %s", error.message)

    def _answers(self) -> bool:
        """Whether the standby answers, which it is asked every few seconds."""
        with self._checking:
            now = self.clock.monotonic()
            is_due = now >= self._checked_at + _CHECK_SECONDS
            if is_due:
                self._checked_at = now
        if is_due:
            try:
                self.cluster.bootstrap(retries=0)
            except ForebayError as e:
                self.failed(e if isinstance(e, Unavailable) else Unavailable(e.message))
            else:
                self._is_used = True
        return bool(self._is_used)

    def __reduce__(self) -> tuple[Any, ...]:
        return _standby_of, (self.owner,)


def _standby_of(owner: Session) -> Session:
    return owner.reads


class _StandbyRowReader(RowReader):
    """The rows that a standby has; where it fails before the first of them, those that the server has."""

    def __init__(self, session: StandbySession, reader: RowReader, open_reader: Callable[[Session], RowReader]) -> None:
        super().__init__(reader.schema)
        self._session, self._reader, self._open_reader = session, reader, open_reader

    @property
    def log_offsets(self) -> Mapping[TableBucket, int]:
        return self._reader.log_offsets

    def _described(self) -> str:
        return self._reader._described()

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        has_rows = False
        try:
            for each in self._reader.with_buckets():
                has_rows = True
                yield each
            return
        except ForebayError as e:
            self._session.failed(e)
            if has_rows:
                raise
        self._reader.close()
        self._reader = self._open_reader(self._session.owner)
        yield from self._reader.with_buckets()

    def close(self) -> None:
        super().close()
        self._reader.close()
