"""Replaces key-value states in RocksDB by states of the engines `hlog` and `lmdb`: `forebay convert-state`.

For each bucket of an unused data directory that has a database of RocksDB, as its state or as a checkpoint, a second
folder is written beside the first, and the two are exchanged. The *replacement* `kv-<bucket>.converted` gets

- the state, if the server would trust it (`forebay.kv.checkpoint`), closed durably and trusted in turn;
- the newest sound checkpoint, at the same changelog offset, for the log keeps what is needed from there on.

Files of other engines are linked. The server brings each state up to date from the changelog when it opens it. A state
that is not trusted is left out: the server would rebuild it, too. If nothing can be rebuilt either, the bucket is left
unchanged and the conversion fails.

Crashes: a replacement is complete and durable before the bucket's folder is renamed to `kv-<bucket>.rocksdb`, and that
is removed last. So where the bucket's folder is missing, its replacement is complete, and the next conversion puts it
in place. The server refuses to start as long as there is a folder of RocksDB or one with that suffix.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from forebay.base.errors import CorruptData, ErrorCode
from forebay.base.host import page_cache_witnesses
from forebay.base.locations import local_folder
from forebay.fs import names
from forebay.fs.interface import FileSystem, storage_failure
from forebay.fs.local import LocalFileSystem
from forebay.kv.checkpoint import KvFolder, PageCacheWitnesses, checkpoints, damage_of_checkpoint
from forebay.kv.engine import KvEngine
from forebay.kv.engines import AUTO, ENGINES, TableEngine, copy_rows
from forebay.kv.rocksdb_state import REPLACED_SUFFIX, RocksDbState, is_rocksdb
from forebay.metadata.table import TableBucket, TablePath
from forebay.server.metadata.catalog import LiveTable
from forebay.verify.directory import DirectoryCheck, locked_directory
from forebay.verify.logs import segment_sizes
from forebay.verify.report import OnStep, no_steps

_LOGGER = logging.getLogger(__name__)

_REPLACEMENT_SUFFIX = ".converted"


@dataclass(frozen=True, slots=True)
class ConvertedState:
    """The state of a bucket that was in RocksDB."""

    table: TablePath
    bucket: TableBucket
    engine: str
    """The engine of its files."""
    is_rebuilt: bool
    """Whether the server rebuilds the state from a checkpoint or the changelog, because its files were not trusted."""


def convert_states(
    path: str | Path,
    *,
    engine: str = AUTO,
    on_step: OnStep = no_steps,
    witnesses: PageCacheWitnesses = page_cache_witnesses,
) -> list[ConvertedState]:
    """Convert the states in the data directory `path` that are in RocksDB; return those that were converted.

    `engine`: that of tables that name none. Raises `NotFound` if there is no data directory, `Conflict` while a server
    uses it, `UnsupportedOperation` without the package rocksdict, `StorageFailure`, and `CorruptData` if the metadata
    or a state is damaged; buckets before that one are converted.
    """
    directory = local_folder(path, "the data directory")
    fs = LocalFileSystem()
    converted = []
    with locked_directory(directory), tempfile.TemporaryDirectory(prefix="forebay-convert-") as temporary:
        check = DirectoryCheck(fs, directory, Path(temporary), on_step, witnesses)
        for log_folder, bucket, _, table in check.buckets():
            if not table.info.has_primary_key:
                continue
            head, _, tail = log_folder.rpartition("/log-")
            factory = TableEngine(table.info.descriptor, engine, lambda: 0)
            conversion = _Conversion(
                fs, f"{head}/kv-{tail}", log_folder, table, factory.engine_for(Path(directory)), witnesses
            )
            try:
                conversion.finish_interrupted()
                if conversion.is_needed:
                    on_step(f"state {conversion.folder}", 0, 0)
                    is_rebuilt = conversion.run()
                    converted.append(ConvertedState(table.info.path, bucket, conversion.engine, is_rebuilt))
            except OSError as e:
                raise storage_failure("convert the key-value state in", conversion.folder, e) from e
    return converted


class _Conversion:
    """The conversion of one bucket."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        log_folder: str,
        table: LiveTable,
        engine: str,
        witnesses: PageCacheWitnesses,
    ) -> None:
        """`folder`: that of the state. `engine`: the name of the one that it gets."""
        self._fs = fs
        self.folder = folder
        self._log_folder = log_folder
        self._replacement = folder + _REPLACEMENT_SUFFIX
        self._replaced = folder + REPLACED_SUFFIX
        self.engine = engine
        self._keeps_digest = table.info.descriptor.has_full_changelog
        self._witnesses = witnesses

    def finish_interrupted(self) -> None:
        """Finish an exchange of folders that a crash has interrupted, and remove partial replacements."""
        if self._fs.exists(self._replaced):
            if not self._fs.exists(self.folder):
                self._put_in_place()
            self._fs.remove_tree(self._replaced)
        self._fs.remove_tree(self._replacement)

    @property
    def is_needed(self) -> bool:
        """Whether the bucket has a database of RocksDB."""
        return any(is_rocksdb(names.join(self.folder, name)) for name in ("db", *checkpoints(self._fs, self.folder)))

    def run(self) -> bool:
        """Convert the bucket; return whether its state is left to be rebuilt."""
        self._fs.make_directories(self._replacement)
        target = KvFolder(self._fs, self._replacement)
        has_checkpoint = self._convert_checkpoint(target)
        has_state = self._convert_state(target)
        first = min(segment_sizes(self._fs, self._log_folder), default=0)
        if first > 0 and not has_state and not has_checkpoint:
            self._fs.remove_tree(self._replacement)
            raise CorruptData(
                f"the key-value state in {self.folder} cannot be converted: neither it nor a checkpoint is sound, and "
                f"the changelog, which begins at offset {first}, cannot rebuild it. Restore the bucket from a backup, "
                "or drop the table",
                ErrorCode.KV_STORAGE_EXCEPTION,
            )
        self._fs.sync_directory(self._replacement)
        self._fs.rename(self.folder, self._replaced)
        self._put_in_place()
        self._fs.remove_tree(self._replaced)
        return not has_state

    def _put_in_place(self) -> None:
        self._fs.rename(self._replacement, self.folder)
        self._fs.sync_directory(os.path.dirname(self.folder))

    def _convert_checkpoint(self, target: KvFolder) -> bool:
        """Give the replacement the newest sound checkpoint; return whether there is one."""
        for name in reversed(checkpoints(self._fs, self.folder)):
            source = names.join(self.folder, name)
            if damage_of_checkpoint(self._fs, source) is not None:
                continue
            if not is_rocksdb(source):
                _link_files(source, names.join(self._replacement, name))
                return True
            copy = Path(self._replacement, f"rows{names.TEMPORARY_SUFFIX}")
            engine = self._copied(source, copy)
            if engine is None:
                continue
            try:
                target.write_checkpoint(engine)
            finally:
                engine.close()
                shutil.rmtree(copy)
            return True
        return False

    def _convert_state(self, target: KvFolder) -> bool:
        """Give the replacement the bucket's state; return whether there is one that the server trusts."""
        source = names.join(self.folder, "db")
        if not KvFolder(self._fs, self.folder).is_trusted(self._witnesses):
            return False
        if not is_rocksdb(source):
            _link_files(source, names.join(self._replacement, "db"))
            os.link(names.join(self.folder, "trust"), names.join(self._replacement, "trust"))
            return True
        engine = self._copied(source, Path(self._replacement, "db"))
        if engine is None:
            return False
        target.close_engine(engine)
        return True

    def _copied(self, source: str, target: Path) -> KvEngine | None:
        """Return an open engine with the rows and the state of a database; None if the database is damaged."""
        try:
            with closing(RocksDbState(source)) as rows:
                engine = ENGINES[self.engine](target)
                try:
                    digest = copy_rows(rows, engine, keeps_digest=self._keeps_digest)
                    if rows.state.digest not in (None, digest):
                        raise CorruptData(f"the rows in {source} do not match the digest of the writes")
                except BaseException:
                    engine.close()
                    raise
        except CorruptData as e:
            _LOGGER.warning("%s; it is not converted", e.message)
            shutil.rmtree(target, ignore_errors=True)
            return None
        return engine


def _link_files(source: str, target: str) -> None:
    """Give the files of the folder `source` second names in the new folder `target`."""
    os.mkdir(target, names.FOLDER_MODE)
    for entry in os.scandir(source):
        os.link(entry.path, os.path.join(target, entry.name))
