"""Files of an Iceberg table that fail at a chosen step: pyiceberg loads `FailingIO` by its name (`py-io-impl`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

NAME = f"{__name__}.FailingIO"


@dataclass
class Plan:
    """Fail at step `fail_at` (None: never), before or `after` it has its effect."""

    fail_at: int | None = None
    after: bool = False
    steps: int = 0

    def step(self, does: Any) -> Any:
        """Do something that counts as a step."""
        self.steps += 1
        fails = self.steps == self.fail_at
        if fails and not self.after:
            raise OSError(5, f"step {self.steps} fails")
        done = does()
        if fails:
            raise OSError(5, f"step {self.steps} fails after its effect")
        return done


PLAN = Plan()


def plan(fail_at: int | None = None, after: bool = False) -> Plan:
    """From now on fail as told."""
    global PLAN
    PLAN = Plan(fail_at, after)
    return PLAN


class _File(PyArrowFile):
    """A file whose opening and creation are steps."""

    def open(self, seekable: bool = True) -> Any:
        return PLAN.step(lambda: super(_File, self).open(seekable))

    def create(self, overwrite: bool = False) -> Any:
        return PLAN.step(lambda: super(_File, self).create(overwrite))


class FailingIO(PyArrowFileIO):
    """pyiceberg's own files, with failures."""

    def new_input(self, location: str) -> InputFile:
        return self._failing(super().new_input(location))

    def new_output(self, location: str) -> OutputFile:
        return self._failing(super().new_output(location))

    def delete(self, location: Any) -> None:
        PLAN.step(lambda: super(FailingIO, self).delete(location))

    def _failing(self, file: Any) -> _File:
        return _File(file.location, file._path, file._filesystem, buffer_size=file._buffer_size)
