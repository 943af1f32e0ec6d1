"""Having the server that writes to a store end, so that a standby takes over at once (`forebay takeover`)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import InvalidRequest, Unavailable
from forebay.base.progress import OnProgress, no_progress
from forebay.server.config import ServerConfig
from forebay.store.journal import JournalCursor, JournalObject, newest_object, open_journal
from forebay.store.journal_format import EpochBegan, EpochEnded
from forebay.store.objects import ObjectStore
from forebay.store.opening import open_store

POLL_SECONDS = 0.1


class Takeover(NamedTuple):
    """What `ask_for_takeover` has waited for."""

    holder: str
    """The new server, as it calls itself."""
    epoch: int
    seconds: float


def ask_for_takeover(
    config: ServerConfig, seconds: float, progress: OnProgress = no_progress, clock: Clock = SYSTEM_CLOCK
) -> Takeover:
    """Ask the server that writes to the store of these settings to end, and wait for the one that takes over.

    `progress` is in objects of the journal. Raises `InvalidRequest` if there is no store, or nothing in it, and
    `Unavailable` if no server has taken over in that time; the request is taken back in any case.
    """
    where = config.value("store")
    if where is None:
        raise InvalidRequest("no store is given: forebay takeover s3://bucket/shop, or --config with the setting store")
    store = open_store(where, config.store_options)
    last = newest_object(store)
    if last is None:
        raise InvalidRequest(f"no server has written to the store {store.location} yet")
    here, cursor = (JournalCursor.behind(last, store, open_journal(store)) for _ in range(2))
    began, ended = clock.monotonic(), _end_in(last)
    with ExitStack() as stack:
        if ended is None:
            here.request_takeover()
            stack.callback(here.forget_takeover)
        while clock.monotonic() < began + seconds:
            found = cursor.next()
            if found is None:
                clock.sleep(POLL_SECONDS)
            elif cursor.epoch > here.epoch:
                (holder,) = (each.entry.holder for each in found.index.entries if isinstance(each.entry, EpochBegan))
                return Takeover(holder, cursor.epoch, clock.monotonic() - began)
            else:
                ended = ended or _end_in(found)
            progress(cursor.number - here.number, 0)
    raise Unavailable(_why_not(store, ended, seconds))


def _end_in(found: JournalObject) -> str | None:
    """The reason, if the object ends an epoch."""
    return next((each.entry.reason for each in found.index.entries if isinstance(each.entry, EpochEnded)), None)


def _why_not(store: ObjectStore, ended: str | None, seconds: float) -> str:
    if ended is None:
        return (
            f"the server that writes to {store.location} has not ended in {seconds:g} s; the request was taken back. "
            "If it does not run any more, a standby takes over when its lease has ended"
        )
    return (
        f"the server that wrote to {store.location} has ended ({ended}), and none has taken over in {seconds:g} s: "
        "start one, or a standby before the next takeover"
    )
