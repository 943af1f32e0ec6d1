"""Epochs of logs: when they begin, and what belongs to them (docs/format/log_epochs.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock, SeededIds
from forebay.base.errors import InvalidRequest
from forebay.base.host import place_of_files
from forebay.fs import names
from forebay.fs.local import LocalFileSystem
from forebay.log.checkpoints import DataDirectory
from forebay.metadata.table import TableBucket
from forebay.server.metadata_store import LocalDatabaseFile, MetadataStore
from forebay.server.storage import log_epochs
from forebay.server.storage.log_epochs import (
    COPIED,
    CREATED,
    POWER_LOST,
    LogEpochs,
    begin_epoch_if_needed,
    mark_restored,
)

A, B = TableBucket(1, 0), TableBucket(1, 1)
FS = LocalFileSystem()


class Machine:
    """A data directory whose server starts again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.ids = SeededIds(1)
        self.store = MetadataStore(LocalDatabaseFile(f"{self.folder}/metadata.sqlite"))
        for counter in ("table", "partition"):
            self.store.take(counter, 7)

    def start(self, *witnesses: str, place: str | None = "here", clean: bool = False) -> LogEpochs:
        if clean:
            directory = DataDirectory.open(FS, self.folder)
            directory.mark_clean_shutdown()
            directory.close()
        epochs = LogEpochs(self.store, ManualClock(), self.ids)
        begin_epoch_if_needed(epochs, self.store, FS, self.folder, witnesses=frozenset(witnesses), place=place)
        Path(self.folder, names.CLEAN_SHUTDOWN_FILE).unlink(missing_ok=True)
        return epochs


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.store.close()


def test_an_epoch_begins_when_the_logs_may_have_gone_back_and_not_otherwise(machine: Machine) -> None:
    first = machine.start("boot 1").current
    assert (first.number, first.reason) == (1, CREATED)
    assert machine.start("boot 1").current == first  # kill -9
    assert machine.start("boot 2", clean=True).current == first  # the machine was shut down
    lost = machine.start("boot 3").current
    assert (lost.number, lost.reason) == (2, POWER_LOST)
    assert machine.start("boot 3", "mount 7").current == lost
    copied = machine.start("boot 3", place="there", clean=True).current
    assert (copied.number, copied.reason) == (3, COPIED)
    assert machine.start("boot 3", place=None, clean=True).current == copied
    mark_restored(FS, machine.folder, "a volume was put back")
    marked = machine.start("boot 3", place="there", clean=True).current
    assert (marked.number, marked.reason) == (4, "a volume was put back")
    assert machine.start("boot 3", place="there", clean=True).current == marked
    assert len({each.epoch for each in machine.store.log_epochs()}) == 4


def test_where_nothing_witnesses_the_page_cache_each_unclean_start_begins_an_epoch(machine: Machine) -> None:
    machine.start()
    assert machine.start().current.number == 2
    assert machine.start(clean=True).current.number == 2


def test_only_copies_leave_gaps_in_the_counters(machine: Machine) -> None:
    machine.start("boot 1")
    before = machine.store.take("writer")
    machine.start("boot 2")
    assert machine.store.take("writer") == before + 1
    machine.start("boot 2", place="there")
    assert machine.store.take("writer") > 1 << 30
    assert 1 << 10 <= machine.store.take("coordinator-epoch") < 1 << 12


def test_a_copied_or_replaced_file_has_another_place_and_a_moved_one_has_the_same(tmp_path: Path) -> None:
    folder, moved = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    for name in ("lock", "db"):
        (folder / name).write_text(name)

    def place(where: Path) -> str | None:
        return place_of_files(str(where / "lock"), str(where / "db"))

    before = place(folder)
    (folder / "db").write_text("changed in place")
    assert place(folder) == before
    folder.rename(moved)
    assert place(moved) == before
    assert place(folder) is None
    (moved / "new").write_text("from a copy")
    (moved / "new").rename(moved / "db")
    replaced = place(moved)
    assert replaced != before
    (moved / "lock").unlink()
    (moved / "lock").write_text("lock")
    assert place(moved) != replaced


def test_positions_belong_up_to_the_end_of_the_log_when_the_next_epoch_began(machine: Machine) -> None:
    epochs = machine.start("boot 1")
    one = epochs.current.epoch
    epochs.opened(A, 70, 0)
    epochs = machine.start("boot 2")
    two = epochs.current.epoch
    assert epochs.opened(A, 50, 70)
    assert machine.store.log_epoch_starts() == {}
    assert epochs.opened(A, 50, 50)  # closed and opened again, without a write
    epochs.save()
    assert not epochs.opened(A, 60, 60)  # after a write
    for each in (epochs, machine.start("boot 2")):
        each.check(A, 50, one)
        each.check(A, 60, two)
        each.check(A, 1000, "")
        with pytest.raises(InvalidRequest, match=r"below offset 50 only.*go on from offset 50"):
            each.check(A, 51, one)
        with pytest.raises(InvalidRequest, match=r"never had.*earliest"):
            each.check(A, 0, "elsewhere")
        assert [each.shared_until(name, A) for name in (one, two)] == [50, None]
        assert [each.epoch_at(A, offset) for offset in (0, 50, 51)] == [one, one, two]
    epochs = machine.start("boot 3")  # not opened in between: nothing was appended
    assert epochs.opened(A, 55, 0)
    assert [epochs.shared_until(each, A) for each in (one, two)] == [50, 55]
    assert [epochs.epoch_at(A, offset) for offset in (50, 55, 56)] == [one, two, epochs.current.epoch]


def test_buckets_that_are_younger_than_an_epoch_need_no_record_of_it(machine: Machine) -> None:
    one = machine.start("boot 1").current.epoch
    young = TableBucket(machine.store.take("table"), 0)
    epochs = machine.start("boot 2")
    epochs.opened(young, 4, 0)
    epochs.save()
    assert set(machine.store.log_epoch_starts()) == {young}
    younger = TableBucket(machine.store.take("table"), 0)
    of_partition = TableBucket(1, 0, machine.store.take("partition"))
    for bucket in (younger, of_partition):
        assert not epochs.opened(bucket, 0, 0)
        assert epochs.shared_until(one, bucket) == 0
        assert epochs.epoch_at(bucket, 9) == epochs.current.epoch
    assert set(machine.store.log_epoch_starts()) == {young}


def test_a_log_that_has_lost_what_clients_have_read_begins_an_epoch_for_itself(machine: Machine) -> None:
    epochs = machine.start("boot 1")
    one = epochs.current.epoch
    epochs.opened(A, 0, 0)
    epochs.opened(B, 0, 0)
    epochs.opened(A, 30, 40)  # after a failed write, in a server that goes on
    for each in (epochs, machine.start("boot 1")):
        assert each.current.epoch != one
        with pytest.raises(InvalidRequest, match="below offset 30 only"):
            each.check(A, 40, one)
        each.check(B, 1000, one)
        assert each.epoch_at(B, 1000) == one


def test_dropped_buckets_are_forgotten_and_old_epochs_too(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    first = machine.start("boot 1").current.epoch
    for boot, bucket in (("boot 2", A), ("boot 3", TableBucket(1, 0, 3))):
        epochs = machine.start(boot)
        epochs.opened(bucket, 5, 0)
        epochs.save()
    machine.store.delete_partition(3, "folder")
    assert set(machine.store.log_epoch_starts()) == {A}
    machine.store.delete_table(1, "folder")
    assert machine.store.log_epoch_starts() == {}
    monkeypatch.setattr(log_epochs, "EPOCHS_KEPT", 3)
    for boot in range(4, 9):
        epochs = machine.start(f"boot {boot}")
    assert len(machine.store.log_epochs()) == 3
    with pytest.raises(InvalidRequest, match="never had"):
        epochs.check(A, 0, first)
