"""The live rows of data files, after position and equality deletes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.types import NestedField

from forebay.lakes.iceberg_files import live_rows, read_rows
from forebay.lakes.iceberg_keys import Deletes


def live_batches(
    io: FileIO, path: str, fields: Sequence[NestedField], deletes: Deletes, form: str = "PARQUET"
) -> Iterator[pa.RecordBatch]:
    """The columns `fields` of the rows of a data file that are not deleted. No batch is empty."""
    deleted_rows, deleted_keys = deletes.positions(path), deletes.deleted_keys(path)
    for start, batch in read_rows(io, path, [*fields, *deleted_keys.fields], form=form):
        mask = live_rows(start, batch.num_rows, deleted_rows)
        if deleted_keys.fields:
            every = mask if mask is not None else pa.repeat(pa.scalar(True), batch.num_rows)
            mask = deleted_keys.without_deleted(every, batch, len(fields))
            batch = batch.select(range(len(fields)))
        if mask is not None:
            batch = batch.filter(mask)
        if batch.num_rows:
            yield batch
