"""Metadata columns of lake tables in Spark, which a scan can return besides the table's columns.

| column | rows of | value |
|---|---|---|
| `__paimon_partition` | partitioned tables | the partition, a struct of the partition keys |
| `__paimon_bucket` | all tables | the number of the bucket |
| `__paimon_file_path` | append tables | the data file |
| `__paimon_row_index` | append tables | the position of the row in its file, from 0 on |
| `__forebay_old_<column>` | primary-key tables with `sequence.field` | the same as <column>, one of these fields |

The names of the first four are Paimon's. By the file path Spark selects the files that a statement changes. The writer
of a MERGE gets the last ones with each row to delete: a delete takes effect only if its sequence fields are not less
than those of the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from forebay.codec.arrow.arrow_types import arrow_type
from forebay.paimon.files.reader import ROW_INDEX
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.split import DataSplit
from forebay.paimon.store.context import TableContext
from forebay.spark.schemas import columns_of, to_spark_type

PARTITION, BUCKET, FILE_PATH = "__paimon_partition", "__paimon_bucket", "__paimon_file_path"
_OF_SPLITS = (PARTITION, BUCKET, FILE_PATH)
"""Columns that have one value in all rows of a split."""

NOT_READ = (*_OF_SPLITS, ROW_INDEX)
"""The metadata columns that are not a copy of a table column."""

OLD_PREFIX = "__forebay_old_"


def sequence_columns(schema: TableSchema) -> tuple[str, ...]:
    """The columns that order the versions of a row."""
    names = schema.options.get("sequence.field", "")
    return tuple(name.strip() for name in names.split(",") if name.strip()) if schema.has_primary_key else ()


def metadata_fields(schema: TableSchema) -> StructType:
    """The metadata columns of a table, without those whose names its own columns have."""
    types = {column.name: to_spark_type(column.data_type) for column in columns_of(schema)}
    fields = [StructField(BUCKET, IntegerType(), False)]
    if schema.partition_keys:
        keys = StructType([StructField(name, types[name], False) for name in schema.partition_keys])
        fields.append(StructField(PARTITION, keys, False))
    if not schema.has_primary_key:
        fields += [StructField(FILE_PATH, StringType(), False), StructField(ROW_INDEX, LongType(), False)]
    fields += [StructField(OLD_PREFIX + name, types[name], True) for name in sequence_columns(schema)]
    return StructType([field for field in fields if is_metadata(schema, field.name)])


def is_metadata(schema: TableSchema, name: str) -> bool:
    """Whether `name` is a metadata column of a table, which may have a column of that name itself."""
    return (name in NOT_READ or name.startswith(OLD_PREFIX)) and name not in schema.names


def with_metadata(
    table: TableContext, split: DataSplit, batches: Iterable[pa.RecordBatch], names: list[str]
) -> Iterator[pa.RecordBatch]:
    """`batches` of a split, which is one file where its path is requested, with the metadata columns among `names`."""
    hidden = [name for name in names if is_metadata(table.schema, name)]
    made = {name: _of_split(table, split, name) for name in hidden if name in _OF_SPLITS}
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        arrays = [
            pa.repeat(made[name], batch.num_rows)
            if name in made
            else columns[name.removeprefix(OLD_PREFIX) if name in hidden else name]
            for name in names
        ]
        yield pa.RecordBatch.from_arrays(arrays, names)


def _of_split(table: TableContext, split: DataSplit, name: str) -> pa.Scalar:
    """The value of all rows of a split in the metadata column `name`."""
    if name == BUCKET:
        return pa.scalar(split.bucket, pa.int32())
    if name == FILE_PATH:
        return pa.scalar(table.paths.data_file(split.partition, split.bucket, split.files[0]), pa.string())
    keys = table.schema.partition_fields
    values = row_layout(keys).decode(split.partition)
    # Arrays first: they take all values that the layout decodes.
    arrays = [pa.array([value], arrow_type(key.type)) for key, value in zip(keys, values, strict=True)]
    return pa.StructArray.from_arrays(arrays, [key.name for key in keys])[0]
