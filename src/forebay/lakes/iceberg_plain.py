"""The data files of an Iceberg table that any Parquet reader can read, finding columns by name.

Iceberg finds columns by id; by name, a reader finds the same ones if the name has always meant the same column, of the
same type. Files of other writers may lack the partition columns, or may have no ids at all (tables with a name
mapping): these do not qualify.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField

from forebay.lakes.iceberg_layout import LiveFile

_NAME_MAPPING = "schema.name-mapping.default"
_PARQUET = "PARQUET"


class PlainColumns:
    """The columns `fields` in the files of one table."""

    def __init__(self, metadata: TableMetadata, fields: Sequence[NestedField]) -> None:
        self._always = _NAME_MAPPING not in metadata.properties and _mean_the_same(metadata, fields)
        sources = {
            f.source_id
            for spec in metadata.specs().values()
            for f in spec.fields
            if isinstance(f.transform, IdentityTransform)
        }
        self._of_partitions = [f.field_id for f in fields if f.field_id in sources]

    def are_in(self, live: LiveFile) -> bool:
        """Whether any reader finds these columns, with exactly the live rows, in a file."""
        file = live.file
        if not self._always or live.deletes or file.file_format.value != _PARQUET:
            return False
        sizes = file.column_sizes or {}
        return all(field_id in sizes for field_id in self._of_partitions)


def _mean_the_same(metadata: TableMetadata, fields: Sequence[NestedField]) -> bool:
    """Whether these names are the same columns, with the same types, in every schema of the table."""
    if not all(f.field_type.is_primitive and getattr(f, "initial_default", None) is None for f in fields):
        return False
    by_name = {f.name.lower(): f for f in fields}
    ids = {f.field_id: f for f in fields}
    for schema in metadata.schemas:
        names = [f.name.lower() for f in schema.fields]
        if len(set(names)) != len(names):
            return False
        for field in schema.fields:
            mine = by_name.get(field.name.lower()) or ids.get(field.field_id)
            if mine is not None and (field.field_id, field.name, field.field_type) != (
                mine.field_id,
                mine.name,
                mine.field_type,
            ):
                return False
    return True
