"""A rolling writer of data files in a local folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forebay.base.ambient import ManualClock
from forebay.paimon.files.writer import FileSettings, RollingWriter
from forebay.paimon.format.file_meta import FileSource
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.paths import PathFactory

IO = LocalFileIO(sync=False)


def writer_for(
    folder: Path, schema: TableSchema, options: Mapping[str, str], next_sequence: int = 0, level: int = 0
) -> RollingWriter:
    core = CoreOptions({**schema.options, **options})
    settings = FileSettings.of(schema, core, level, FileSource.COMPACT if level else FileSource.APPEND)
    names = PathFactory.of(str(folder), schema).data_file_names()
    return RollingWriter(IO, str(folder / "bucket-0"), settings, names, next_sequence, ManualClock())
