"""The engine `hlog` on the simulated disk: the real one, on a folder of this machine that the disk follows.

A store into a map is no call that can fail or be cut off, so what the engine has stored reaches the simulated page
cache sector by sector, each a moment at which the process may be killed, and the file `head`, which makes a group
count, last. A power loss then leaves any subset of the sectors, as of every `PagedFile`. When the engine is opened
again, the folder is filled with what the disk has.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

from forebay.base.errors import CorruptData, StorageFailure
from forebay.fs import names
from forebay.kv.engine import EngineState
from forebay.kv.hlog.hlog_engine import HEAD_FILE, HlogEngine, HlogWrites
from tests.fs.disk_model import Truncate, Write
from tests.simulation.disk import SECTOR, RandomFile, SimFileSystem

_GARBAGE_BYTES = 8 << 10
_FILLER = b"\xff a row that comes and goes"
_FILLER_BYTES = 30_000
"""The rows of a history would not fill one segment: now and then a group has a large one, which it deletes again."""


class SimHlogEngine(HlogEngine):
    def __init__(self, fs: SimFileSystem, directory: Path) -> None:
        self._fs = fs
        self._simulated = directory
        self._copies = 0
        self._last_checkpoint: Path | None = None
        self._real = Path(tempfile.mkdtemp(prefix="forebay-sim-"))
        self._files: dict[str, RandomFile] = {}
        weakref.finalize(self, shutil.rmtree, self._real, ignore_errors=True)
        fs.make_directories(str(directory))
        real = self._real / "db"
        real.mkdir()
        for entry in fs.list_directory(str(directory)):
            file = self._simulated_file(entry.name)
            (real / entry.name).write_bytes(file.read(0, file.size()))
        try:
            super().__init__(real, garbage_min=_GARBAGE_BYTES)
        except CorruptData as e:
            raise CorruptData(e.message.replace(str(real), str(directory)), e.code) from e
        self._follow()

    def _simulated_file(self, name: str) -> RandomFile:
        if name not in self._files:
            self._files[name] = self._fs.open_random(names.join(str(self._simulated), name))
        return self._files[name]

    def _follow(self) -> None:
        """Bring what the engine has stored since the last time into the simulated page cache."""
        real = {path.name: path for path in self._directory.iterdir()}
        for name in sorted(real, key=lambda name: (name == HEAD_FILE, name)):
            self._follow_file(self._simulated_file(name), real[name].read_bytes())
        for name in [name for name in self._files if name not in real]:
            try:
                self._fs.remove(names.join(str(self._simulated), name))
            except StorageFailure:
                continue  # it lies before the log's beginning, and is removed when the log is opened
            del self._files[name]

    def _follow_file(self, file: RandomFile, content: bytes) -> None:
        seen = file._file.seen
        if seen == content:
            return
        if len(seen) != len(content):
            self._step(file, Truncate(len(content)))
        for start in range(0, len(content), SECTOR):
            data = content[start : start + SECTOR]
            if seen[start : start + SECTOR] != data:
                self._step(file, Write(start, data))

    def _step(self, file: RandomFile, change: Write | Truncate) -> None:
        fs = self._fs
        if fs._sched.current is not None:
            fs._sched.maybe_yield()
            fs.count += 1
            if fs.count >= fs.fails_at > 0:
                fs.fails_at = -1
                fs.on_call()
        fs._check_alive(file.path)
        file._file.change(change)
        if fs._rng.random() < 0.02:
            file._file.write_back(fs._rng)

    # ---- what the engine does ---------------------------------------------------------------------------------------

    def _make_room(self, needed: int) -> None:
        with self._fs._operation("append", str(self._simulated)):  # which a full disk refuses
            super()._make_room(needed)

    def begin(self, keeps_digest: bool) -> HlogWrites:
        group = super().begin(keeps_digest)
        if self._fs._rng.random() < 0.3:
            try:
                group.put({_FILLER: bytes(_FILLER_BYTES)})
                group.put({_FILLER: None})
            except StorageFailure:
                group.log.rollback(0)
        return group

    def commit(self, state: EngineState, written: int) -> None:
        super().commit(state, written)
        self._follow()

    def clean(self) -> bool:
        try:
            return super().clean()
        finally:
            self._follow()

    def sync(self) -> None:
        self._follow()
        for file in self._files.values():
            file.sync()

    def checkpoint(self, directory: Path, previous: Path | None = None) -> None:
        self._copies += 1
        made = self._real / f"checkpoint-{self._copies}"
        super().checkpoint(made, self._last_checkpoint if previous is not None else None)
        self._last_checkpoint = made
        self._fs.make_directories(str(directory))
        for path in sorted(made.iterdir()):
            file = self._fs.open_random(names.join(str(directory), path.name))
            file.write(0, path.read_bytes())
            file.sync()

    def close(self) -> None:
        super().close()
        self._follow()


def engine_on(fs: SimFileSystem, other: Callable[[SimFileSystem, Path], object]) -> Callable[[Path], object]:
    """Opens every second bucket with `hlog`, and the others with `other`."""

    def opened(directory: Path) -> object:
        bucket = directory.parent.name.rpartition("-")[2]
        return SimHlogEngine(fs, directory) if int(bucket) % 2 == 0 else other(fs, directory)

    return opened
