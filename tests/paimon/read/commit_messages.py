"""Commit messages at a level, in a file format or in the postponed bucket; deletion vectors as bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from forebay.paimon.files.writer import FileSettings, RollingWriter
from forebay.paimon.format.commit_message import CommitMessage, DataIncrement
from forebay.paimon.format.file_meta import EMPTY_ROW
from forebay.paimon.options import POSTPONE_BUCKET
from forebay.paimon.table import Table

_AVRO_TYPES = {pa.int8(): "int", pa.int32(): "int", pa.int64(): "long", pa.float64(): "double", pa.string(): "string"}


def prepared(table: Table, data: pa.Table) -> CommitMessage:
    """The message of rows that are written but not committed yet: one bucket."""
    with table.with_options({"write-only": "true"}).new_write() as writer:
        writer.write(data)
        (message,) = writer.prepare_commit()
    return message


def at_level(message: CommitMessage, level: int) -> CommitMessage:
    """The same files, as if a compaction had written them."""
    files = tuple(f.upgrade(level) for f in message.data.new_files)
    return replace(message, data=replace(message.data, new_files=files))


def in_format(table: Table, message: CommitMessage, file_format: str) -> CommitMessage:
    """The same rows in ORC or Avro files, as other writers write them."""
    files = []
    for f in message.data.new_files:
        path = Path(table.context.paths.data_file(message.partition, message.bucket, f))
        name = f"{path.stem}.{file_format}"
        rows, other = pq.read_table(path), path.with_name(name)
        if file_format == "orc":
            orc.write_table(rows, other)
        else:
            fields = [{"name": c.name, "type": ["null", _AVRO_TYPES[c.type]]} for c in rows.schema]
            with other.open("wb") as out:
                fastavro.writer(out, {"type": "record", "name": "row", "fields": fields}, rows.to_pylist())
        path.unlink()
        files.append(replace(f, file_name=name, file_size=other.stat().st_size))
    return replace(message, data=replace(message.data, new_files=tuple(files)))


def postponed(table: Table, rows: pa.Table, kinds: Sequence[int]) -> CommitMessage:
    """The message of a file in the postponed bucket: changes in the order of their arrival, whatever their keys."""
    schema, paths = table.schema, table.context.paths
    stored = rows.add_column(0, "_VALUE_KIND", pa.array(kinds, pa.int8()))
    stored = stored.add_column(0, "_SEQUENCE_NUMBER", pa.array([0] * rows.num_rows, pa.int64()))
    for name in reversed(schema.trimmed_primary_keys):
        stored = stored.add_column(0, f"_KEY_{name}", rows[name])
    directory = paths.bucket_directory(EMPTY_ROW, POSTPONE_BUCKET)
    settings = FileSettings.of(schema, table.context.options)
    writer = RollingWriter(table.context.io, directory, settings, paths.data_file_names())
    writer.write(stored)
    files = DataIncrement(tuple(writer.close()))
    return CommitMessage(EMPTY_ROW, POSTPONE_BUCKET, POSTPONE_BUCKET, files)


def deletion_vector(positions: list[int]) -> bytes:
    """Paimon's first kind of deletion vector with a 32-bit roaring bitmap of one array container."""
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(positions) - 1, 16)
    bitmap += b"".join(struct.pack("<H", p) for p in sorted(positions))
    body = struct.pack(">i", 1581511376) + bitmap
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
