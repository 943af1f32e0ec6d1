"""Metadata columns of lake tables in Spark: what the rows of a scan say besides the table's columns.

| column | rows of | value |
|---|---|---|
| `__paimon_file_path` | append tables | the data file; Paimon's name for it |
| `__forebay_old_<column>` | primary-key tables with `sequence.field` | the same as <column>, one of these fields |

The first tells Spark which files a statement changes. The others come to the writer of a MERGE with each row that is
to be deleted: a delete only counts if its sequence fields are not less than those of the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.split import DataSplit
from forebay.paimon.store.context import TableContext
from forebay.spark.schemas import columns_of, to_spark_type

FILE_PATH = "__paimon_file_path"
OLD_PREFIX = "__forebay_old_"


def sequence_columns(schema: TableSchema) -> tuple[str, ...]:
    """The columns that order the versions of a row."""
    names = schema.options.get("sequence.field", "")
    return tuple(name.strip() for name in names.split(",") if name.strip()) if schema.has_primary_key else ()


def metadata_fields(schema: TableSchema) -> StructType:
    """The metadata columns of a table."""
    if not schema.has_primary_key:
        return StructType([StructField(FILE_PATH, StringType(), False)])
    types = {column.name: to_spark_type(column.data_type) for column in columns_of(schema)}
    return StructType([StructField(OLD_PREFIX + name, types[name], True) for name in sequence_columns(schema)])


def is_metadata(name: str) -> bool:
    return name == FILE_PATH or name.startswith(OLD_PREFIX)


def with_metadata(
    table: TableContext, split: DataSplit, batches: Iterable[pa.RecordBatch], names: list[str]
) -> Iterator[pa.RecordBatch]:
    """`batches` of a split, which is one file where its path is wanted, with the metadata columns among `names`."""
    path = table.paths.data_file(split.partition, split.bucket, split.files[0]) if FILE_PATH in names else None
    for batch in batches:
        known = dict(zip(batch.schema.names, batch.columns, strict=True))
        arrays = []
        for name in names:
            if name == FILE_PATH:
                arrays.append(pa.repeat(pa.scalar(path, pa.string()), batch.num_rows))
            else:
                arrays.append(known[name.removeprefix(OLD_PREFIX)])
        yield pa.RecordBatch.from_arrays(arrays, names)
