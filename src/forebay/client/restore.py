"""A primary-key table as it was: the rows that differ are written back, in one transaction (`Connection.restore`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import UnsupportedOperation
from forebay.client.transaction import Transaction
from forebay.codec.casting.batches import iter_record_batches
from forebay.codec.rows.keys import whole_key_encoder
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata.table import TableInfo

if TYPE_CHECKING:
    from forebay.client.table import Table


class RestoredRows(NamedTuple):
    """The numbers of rows that a restore wrote back, and that it deleted."""

    written: int
    deleted: int


def restore(table: Table, as_of: Any, *, dry_run: bool) -> RestoredRows:
    """What `Connection.restore` does. `table` has the current columns."""
    info, of, written = table.info, table.info.descriptor, 0
    if not info.has_primary_key or of.merge_engine or of.schema.auto_increment_column or of.delete_behavior != "allow":
        why = "with a merge engine, an auto-increment column or without deletes, it takes no rows as they were"
        raise UnsupportedOperation(f"{info.path} cannot be restored: {why if info.has_primary_key else 'a log grows'}")
    table.connection.cluster.forget_table(table.path)  # rows of a dropped partition create another one
    transaction = Transaction(table.connection).begin()
    try:
        with table.snapshot(name="restore") as snapshot:
            transaction.watch(table, snapshot.log_offsets)
            now = snapshot.scan().to_arrow()
        now_keys, now_rows = _encoded(info, now)
        is_new = np.ones(now.num_rows, np.bool_)
        for then in table.scan(as_of=as_of):
            keys, rows = _encoded(info, then)
            places = pc.index_in(keys, value_set=now_keys)
            is_new[places.drop_null()] = False
            is_same = pc.equal(rows, now_rows.take(places)).fill_null(False)
            written += then.num_rows - is_same.true_count
            if not dry_run:
                transaction.upsert(table, then.filter(pc.invert(is_same)))
        added = now.filter(pa.array(is_new)).select(list(info.schema.primary_key))
        if not dry_run:
            transaction.delete(table, added)
    except BaseException:
        transaction.abort()
        raise
    if dry_run or not written + added.num_rows:
        transaction.abort()
    else:
        transaction.commit(operation="RESTORE")
    return RestoredRows(written, added.num_rows)


def _encoded(info: TableInfo, data: pa.Table | pa.RecordBatch) -> list[pa.Array]:
    """The keys and the rows as bytes."""
    encoders = whole_key_encoder(info.descriptor), row_codec(info.schema.columns, RowFormat.COMPACTED)
    arrays = [[encoder.encode(batch) for encoder in encoders] for batch in iter_record_batches(data, info.schema)]
    columns = zip(*arrays, strict=True) if arrays else ((), ())
    return [pa.chunked_array(each, pa.binary()).cast(pa.large_binary()).combine_chunks() for each in columns]
