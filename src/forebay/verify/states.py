"""One bucket's key-value state: its files, its digest, its checkpoints, and the fold of the changelog.

The fold is built in a scratch engine; the newest sound checkpoint is not needed if the whole log exists. It is compared
with the state by digest, and row by row if the digests differ: two encoders may encode the same row differently, in
which case the values decide.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Protocol

from forebay.base.errors import CorruptData, ForebayError
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.kv import _digest
from forebay.kv.checkpoint import PageCacheWitnesses, Trust, checkpoints, damage_of_checkpoint, trust_mark
from forebay.kv.engine import EngineState
from forebay.kv.engines import engine_in
from forebay.kv.file_checksums import first_difference
from forebay.kv.hlog.hlog_engine import HlogEngine
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from forebay.kv.lmdb.lmdb_file import DATA_FILE, LmdbFile
from forebay.kv.rocksdb_state import is_rocksdb, refusal
from forebay.kv.tablet import ChangelogCodec, TableView
from forebay.verify.logs import LogImage
from forebay.verify.report import OnStep, Report

_ROWS_AT_ONCE = 5000
_FOLD_ROWS = 200_000
_DIFFERENCES_SHOWN = 3

Pairs = Iterator[tuple[bytes, bytes]]


class ReadableState(Protocol):
    """The readable rows of a state."""

    state: EngineState
    digest: int
    row_count: int

    def items(self) -> Pairs: ...

    def close(self) -> None: ...


class _LmdbState:
    def __init__(self, fs: FileSystem, folder: str, on_step: OnStep) -> None:
        """Raises `CorruptData`."""
        self._file = LmdbFile(fs, folder)
        try:
            content = self._file.check(lambda done, total: on_step(f"state {folder}, pages", done, total))
        except BaseException:
            self._file.close()
            raise
        self.state, self.digest, self.row_count = content.state, content.digest, content.row_count

    def items(self) -> Pairs:
        return self._file.items()

    def close(self) -> None:
        self._file.close()


class _HlogState:
    """A copy of a state of `hlog`, because the engine writes into every folder that it opens."""

    def __init__(self, folder: str, scratch: Path) -> None:
        """Raises `CorruptData`."""
        copy = Path(tempfile.mkdtemp(dir=scratch)) / "copied"
        shutil.copytree(folder, copy)
        try:
            self._engine = HlogEngine(copy)
            try:
                self._count()
            except BaseException:
                self._engine.close()
                raise
        except ForebayError as e:
            shutil.rmtree(copy)
            raise CorruptData(e.message.replace(str(copy), folder), e.code) from e
        self._copy = copy

    def _count(self) -> None:
        self.state = self._engine.state
        self.digest = self.row_count = 0
        for key, value in self._engine.items():
            self.digest = _digest.added(self.digest, _digest.of_pairs([key], [value]))
            self.row_count += 1

    def items(self) -> Pairs:
        return self._engine.items()

    def close(self) -> None:
        self._engine.close()
        shutil.rmtree(self._copy)


class StateCheck:
    """The check of one bucket's state."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        log: LogImage,
        table: TableView | None,
        scratch: Path,
        report: Report,
        on_step: OnStep,
    ) -> None:
        """`table` is None if the metadata cannot be read: then nothing can be folded."""
        self._fs = fs
        self._folder = folder
        self._engine_folder = names.join(folder, "db")
        self._log = log
        self._table = table
        self._scratch = scratch
        self._report = report
        self._on_step = on_step

    def run(self, clean: bool, witnesses: PageCacheWitnesses) -> None:
        """Check everything; `clean`: the server closed the bucket."""
        self._report.count("key-value states")
        for name in ("db", *checkpoints(self._fs, self._folder)):
            path = names.join(self._folder, name)
            if is_rocksdb(path):
                self._report.fault(path, refusal(path).message)
                return
        base = self._check_checkpoints()
        if base is None and self._log.start > 0:
            self._report.fault(
                self._folder,
                f"{self._folder} has no sound checkpoint, and its log begins at {self._log.start}: should the state be "
                "lost, it cannot be rebuilt",
            )
        try:
            state = self.open_trusted(clean, witnesses)
        except (CorruptData, FileMissing) as e:
            self._report.fault(self._engine_folder, f"{e.message} (the server rebuilds the state)")
            state = None
        try:
            if state is not None:
                self._check_numbers(state, clean)
            if self._table is not None and self._log.is_whole:
                self._compare_with_fold(state, base)
        finally:
            if state is not None:
                state.close()

    # ---- files ------------------------------------------------------------------------------------------------------

    def _check_checkpoints(self) -> str | None:
        """The folder of the newest sound checkpoint."""
        newest = None
        for name in checkpoints(self._fs, self._folder):
            path = names.join(self._folder, name)
            self._report.count("checkpoints")
            damage = damage_of_checkpoint(self._fs, path)
            if damage is None:
                try:
                    self.open(path).close()
                except CorruptData as e:
                    damage = e.message
            if damage is not None:
                self._report.fault(path, f"{damage} (the checkpoint is not used)")
            else:
                newest = path
        return newest

    def open_trusted(self, clean: bool, witnesses: PageCacheWitnesses) -> ReadableState | None:
        """The state that the server would use; None if it will not use its files. Raises `CorruptData`."""
        mark = trust_mark(self._fs, self._folder)
        if not self._fs.exists(self._engine_folder) or mark.kind == Trust.MISSING:
            self._report.note(self._folder, "the state is missing or not trusted: the server rebuilds it")
            return None
        if mark.kind == Trust.DAMAGED:
            raise CorruptData(f"{names.join(self._folder, 'trust')} is damaged")
        if mark.kind == Trust.CLEAN:
            damage = first_difference(self._fs, self._engine_folder, mark.text)
            if damage is not None:
                raise CorruptData(damage)
        elif witnesses(self._engine_folder).isdisjoint(mark.text.splitlines()):
            self._report.note(
                self._folder,
                "the state was not closed, and may be incomplete: the server rebuilds it",
            )
            return None
        return self.open(self._engine_folder)

    def open(self, folder: str) -> ReadableState:
        """The state in a folder, whichever engine wrote it.

        Raises `CorruptData`, and `UnsupportedOperation` for files of RocksDB.
        """
        if engine_in(Path(folder)) == "lmdb":
            return _LmdbState(self._fs, folder, self._on_step)
        if is_rocksdb(folder):
            raise refusal(folder)
        return _HlogState(folder, self._scratch)

    def _check_numbers(self, state: ReadableState, clean: bool) -> None:
        report, applied = self._report, state.state.applied_offset
        report.count("rows of state", state.row_count)
        if state.state.digest not in (None, state.digest):
            report.fault(self._engine_folder, "its rows do not match the digest of the writes")
        if 0 <= state.state.row_count != state.row_count:
            report.fault(self._engine_folder, f"it has {state.row_count} rows and says {state.state.row_count}")
        if not self._log.is_whole:
            return
        if applied > self._log.end:
            text = f"the state is at changelog offset {applied}, and the log ends at {self._log.end}"
            (report.fault if clean else report.note)(self._engine_folder, f"{text}: the server rebuilds it")
        elif applied < self._log.start:
            report.fault(self._engine_folder, f"the state is at {applied}, and the log begins at {self._log.start}")
        elif clean and applied != self._log.end:
            report.fault(self._engine_folder, f"the state is at {applied}, and the log was closed at {self._log.end}")

    # ---- the fold ---------------------------------------------------------------------------------------------------

    def _compare_with_fold(self, state: ReadableState | None, checkpoint: str | None) -> None:
        """Fold the changelog up to the state's offset, or to its end without a state, and compare them."""
        end = self._log.end if state is None else min(state.state.applied_offset, self._log.end)
        folder = self._scratch / "fold"
        try:
            engine = self.begin_fold(folder, checkpoint, end)
            if engine is None:
                return
            try:
                self._fold(engine, end)
                if state is not None and state.state.applied_offset == end:
                    self._compare(state, engine, folder)
            finally:
                engine.close()
        except CorruptData as e:
            self._report.fault(self._log.folder, e.message)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def begin_fold(self, folder: Path, checkpoint: str | None, end: int) -> LmdbEngine | None:
        """An engine with the rows that the log no longer has."""
        if self._log.start == 0:
            return LmdbEngine(folder)
        if checkpoint is None:
            return None
        offset = int(checkpoint.rpartition("-")[2])
        if not self._log.start <= offset <= end:
            self._report.note(checkpoint, "the state was not compared with the changelog, whose beginning has expired")
            return None
        if self._fs.exists(names.join(checkpoint, DATA_FILE)):
            folder.mkdir()
            shutil.copyfile(names.join(checkpoint, DATA_FILE), folder / DATA_FILE)
            return LmdbEngine(folder)
        with closing(self.open(checkpoint)) as base:
            engine = LmdbEngine(folder)
            try:
                items = base.items()
                while chunk := dict(islice(items, _FOLD_ROWS)):
                    engine.apply(chunk, EngineState(offset, -1))
                engine.apply({}, EngineState(offset, -1))
            except BaseException:
                engine.close()
                raise
        return engine

    def _fold(self, engine: LmdbEngine, end: int) -> None:
        assert self._table is not None
        codec = ChangelogCodec(self._table.info, self._table.schema_by_id)
        writes: dict[bytes, bytes | None] = {}
        start = engine.state.applied_offset
        for header, data in self._log.batches(start, end):
            writes.update(codec.replay(header, data)[0])
            self._on_step(f"folding {self._log.folder}, offsets", header.next_offset - start, end - start)
            if len(writes) >= _FOLD_ROWS:
                engine.apply(writes, EngineState(header.next_offset, -1))
                writes = {}
        engine.apply(writes, EngineState(end, -1))
        self._report.count("changes folded", end - start)

    def _compare(self, state: ReadableState, engine: LmdbEngine, folder: Path) -> None:
        file = LmdbFile(self._fs, str(folder))
        try:
            folded = file.check()
        finally:
            file.close()
        if (folded.digest, folded.row_count) == (state.digest, state.row_count):
            return
        differences = list(islice(self._differences(state, engine), _DIFFERENCES_SHOWN))
        if folded.row_count != state.row_count:
            differences.append(f"it has {state.row_count} rows, and the changelog amounts to {folded.row_count}")
        if differences:
            text = "; ".join(differences)
            self._report.fault(self._engine_folder, f"the state is not the fold of its changelog: {text}")

    def _differences(self, state: ReadableState, engine: LmdbEngine) -> Iterator[str]:
        assert self._table is not None
        codec = ChangelogCodec(self._table.info, self._table.schema_by_id)
        items = state.items()
        while chunk := list(islice(items, _ROWS_AT_ONCE)):
            for (key, value), folded in zip(chunk, engine.multi_get([key for key, _ in chunk])):
                if value != folded and (folded is None or not same_row(codec, value, folded)):
                    what = "is not in the changelog" if folded is None else "has another row in the changelog"
                    yield f"the key {key.hex()} {what}"


def same_row(codec: ChangelogCodec, value: bytes, other: bytes) -> bool:
    """Whether two stored values are the same row, encoded differently or with another schema."""
    try:
        first, second = codec.upgrade([value, other])
    except (ForebayError, ValueError):
        return False
    return first == second
