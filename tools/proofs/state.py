"""What has been run: a file for each chunk in build/proofs, so that a run that was killed goes on where it stopped."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


@dataclass(frozen=True)
class Ran:
    """A chunk that was run to its end. `code` is the digest of the code that it ran on (`history.Repository.code`)."""

    outcome: str
    commit: str
    code: str
    first: int
    count: int
    seconds: float
    date: str
    exit_code: int = 0
    reason: str = ""
    """Why it failed, or was not run."""
    figures: dict[str, Any] = field(default_factory=dict)
    failed_before: int = 0
    """How often it had failed before, on this code."""


class State:
    """The chunks of all trials, as they ran the last time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, trial: str, chunk: int) -> Path:
        """The folder of a chunk, with its log."""
        return self.folder / trial / f"{chunk:04}"

    def last(self, trial: str, chunk: int) -> Ran | None:
        """What a chunk has counted the last time, on whatever code."""
        try:
            return Ran(**json.loads((self.place(trial, chunk) / "ran.json").read_text()))
        except (FileNotFoundError, json.JSONDecodeError, TypeError):  # of another release of this tool
            return None

    def begin(self, trial: str, chunk: int) -> Path:
        """Empty the folder of a chunk, but for what it has counted the last time. Returns the folder."""
        place = self.place(trial, chunk)
        place.mkdir(parents=True, exist_ok=True)
        for path in place.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "ran.json":
                path.unlink()
        return place

    def keep(self, trial: str, chunk: int, ran: Ran) -> None:
        """Keep what a chunk has counted. The file is complete or absent, whenever this process is killed."""
        path = self.place(trial, chunk) / "ran.json"
        written = path.with_suffix(".new")
        written.write_text(json.dumps(asdict(ran), indent=1))
        os.replace(written, path)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs away. Raises `BlockingIOError` if there is one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
