"""Goes on without what is damaged in the logs of an unused data directory: `forebay repair`.

For each bucket whose log is damaged in what was acknowledged, everything sound is kept, at its offsets; what is lost
becomes empty batches (`forebay.verify.log_repair`), and rows of primary-key tables are restored from the state if that
is sound (`forebay.verify.restored`), which is then rebuilt by the server from the repaired changelog.

Order, so that an interrupted repair can be repeated: the damaged bytes are kept aside, then the changes that restore
rows; the state goes, the log is replaced, and last the note of the changes. The marker of a clean shutdown goes before
all that: the server then takes the directory for that of a crash, and checks what it opens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forebay.base.errors import CorruptData, ErrorCode, NotFound
from forebay.base.host import page_cache_witnesses
from forebay.codec.log.header import parse_header
from forebay.fs import names
from forebay.fs.interface import FileSystem
from forebay.fs.local import LocalFileSystem
from forebay.kv.checkpoint import PageCacheWitnesses
from forebay.log.log_ends import LogEndEvidence
from forebay.metadata.table import TableBucket, TablePath
from forebay.server.metadata.catalog import LiveTable
from forebay.server.storage.log_epochs import mark_restored
from forebay.verify.directory import DirectoryCheck, locked_directory
from forebay.verify.log_repair import LogRepair, Loss
from forebay.verify.report import OnStep, no_steps
from forebay.verify.restored import StateRepair

KEYS_SHOWN = 20


@dataclass
class BucketRepair:
    """The damage of a bucket, and the outcome of its repair."""

    table: TablePath
    bucket: TableBucket
    folder: str
    losses: list[Loss] = field(default_factory=list)
    restored_rows: int = 0
    """Keys whose rows were restored from a sound state."""
    restored_keys: list[str] = field(default_factory=list)
    """Some of these keys, in words."""
    restored_up_to: int = -1
    """Lost changes below this offset cost no row."""
    is_done: bool = False

    @property
    def lost_records(self) -> int:
        """Log records that nothing brings back."""
        return sum(len(loss.offsets) for loss in self.losses if not loss.is_mended)


def repair_directory(
    path: str | Path,
    *,
    accept_loss: bool = False,
    tables: Sequence[str | TablePath] = (),
    scratch: str | Path | None = None,
    on_step: OnStep = no_steps,
    witnesses: PageCacheWitnesses = page_cache_witnesses,
) -> list[BucketRepair]:
    """Find the buckets whose logs are damaged, of these tables or all, and repair them if `accept_loss`.

    Without it nothing is changed, and the result says what would be lost. `scratch`: as for `verify_directory`. Raises
    `NotFound` if there is no data directory or no such table, `Conflict` while a server uses it, and `CorruptData` for
    damage that no repair mends: of the metadata, of the checkpoints of offsets, of a log that is gone.
    """
    directory = str(Path(path).absolute())
    requested = {TablePath.parse(table) for table in tables}
    with locked_directory(directory), tempfile.TemporaryDirectory(prefix="forebay-repair-", dir=scratch) as temporary:
        fs = LocalFileSystem()
        check = DirectoryCheck(fs, directory, Path(temporary), on_step, witnesses)
        repairs, checked_tables = [], set()
        for folder, bucket, evidence, table in check.buckets():
            checked_tables.add(table.info.path)
            if requested and table.info.path not in requested:
                continue
            on_step(f"log {folder}", 0, 0)
            repair = _LogAndState(fs, directory, folder, bucket, evidence, table, Path(temporary), witnesses)
            if repair.outcome.losses:
                repairs.append(repair.outcome)
            if accept_loss and repair.outcome.losses:
                # Clients may have read rows that are lost: their positions are of an earlier history.
                mark_restored(fs, directory, "`forebay repair` has replaced damaged rows")
                repair.make()
            elif accept_loss:
                repair.finish_interrupted()
        if requested - checked_tables:
            raise NotFound(
                f"{directory} has no table {sorted(map(str, requested - checked_tables))[0]}", ErrorCode.TABLE_NOT_EXIST
            )
        return repairs


class _LogAndState:
    """The repair of one bucket."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        folder: str,
        bucket: TableBucket,
        evidence: LogEndEvidence,
        table: LiveTable,
        scratch: Path,
        witnesses: PageCacheWitnesses,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._folder = folder
        self._note = names.join(folder, names.RESTORED_CHANGES_FILE)
        has_key = table.info.has_primary_key
        self._log = LogRepair(fs, folder, evidence, is_append_only=not has_key)
        self.outcome = BucketRepair(table.info.path, bucket, folder, self._log.losses)
        self._state: StateRepair | None = None
        self._added: list[bytes] = []
        lost = [loss for loss in self._log.losses if not loss.is_mended]
        if has_key and lost:
            head, _, tail = folder.rpartition("/log-")
            first = min(loss.offsets.start for loss in lost)
            place = Path(tempfile.mkdtemp(dir=scratch))
            state = StateRepair(fs, f"{head}/kv-{tail}", self._log.image, first, table, place, witnesses)
            self._restore(state)

    def _restore(self, state: StateRepair) -> None:
        if not state.can_be_rebuilt:
            raise CorruptData(
                f"the changelog in {self._folder} is damaged, its beginning has expired, and no checkpoint of the "
                "state is sound: it cannot be rebuilt. Restore the bucket from a backup, or drop the table",
                ErrorCode.KV_STORAGE_EXCEPTION,
            )
        self._state = state
        if self._fs.exists(self._note):  # by a repair that was interrupted behind that
            self._added = [self._fs.read_bytes(self._note)]
            return
        restored = state.restored()
        outcome = self.outcome
        outcome.restored_up_to = restored.up_to
        outcome.restored_rows = len(restored.changes)
        outcome.restored_keys = state.shown(restored.changes, KEYS_SHOWN)
        self._added = list(state.batches(restored.changes, self._log.end, self._log.last_time()))

    def finish_interrupted(self) -> None:
        """Finish the repair of a log that is whole again, and may lack the changes that restore rows."""
        if self._fs.exists(self._note):
            added = self._fs.read_bytes(self._note)
            if parse_header(added).base_offset == self._log.end:
                self._log.rewrite([added])
            self._remove_note()

    def _remove_note(self) -> None:
        self._fs.remove(self._note)
        self._fs.sync_directory(self._folder)

    def make(self) -> None:
        """Repair the bucket."""
        marker = names.join(self._directory, names.CLEAN_SHUTDOWN_FILE)
        if self._fs.exists(marker):
            self._fs.remove(marker)
            self._fs.sync_directory(self._directory)
        self._log.keep_damaged()
        if self._added and not self._fs.exists(self._note):
            self._fs.write_atomic(self._note, b"".join(self._added))
        if self._state is not None:
            self._state.discard()
        self._log.rewrite(self._added)
        if self._fs.exists(self._note):
            self._remove_note()
        self.outcome.is_done = True
