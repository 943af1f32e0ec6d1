"""Descriptions of tables and views in a Hive Metastore, as Java Paimon writes and reads them.

A table's description is a copy for Hive and other engines. The schema file in the table's directory is authoritative:
of a description we only read that it is a Paimon table, its location, and whether it is external. Of a view there is
nothing but the description (`hive_views`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from forebay.base.locations import is_local, location
from forebay.hive.metastore import Metastore, current_user
from forebay.metadata.types import DataType, TypeRoot, child
from forebay.paimon.catalog.definition import COMMENT
from forebay.paimon.format.schema import DataField, TableSchema

_INPUT_FORMAT = "org.apache.paimon.hive.mapred.PaimonInputFormat"
_OUTPUT_FORMAT = "org.apache.paimon.hive.mapred.PaimonOutputFormat"
_SERDE = "org.apache.paimon.hive.PaimonSerDe"
_STORAGE_HANDLER = "org.apache.paimon.hive.PaimonStorageHandler"
_EXTERNAL_TABLE, _MANAGED_TABLE = "EXTERNAL_TABLE", "MANAGED_TABLE"
_HIVE_PREFIX = "hive."
_LOCATION_PARAMETER = "paimon_location"
_RETENTION_MAX = 2**31 - 1
_COLUMN_COMMENT_MAX = 255
"""Hive's column comments hold 256 characters, those of AWS Glue 255."""

_CHAR_MAX, _VARCHAR_MAX = 255, 65535

_TYPE_NAMES: dict[TypeRoot, str] = {
    TypeRoot.BOOLEAN: "boolean",
    TypeRoot.TINYINT: "tinyint",
    TypeRoot.SMALLINT: "smallint",
    TypeRoot.INT: "int",
    TypeRoot.BIGINT: "bigint",
    TypeRoot.FLOAT: "float",
    TypeRoot.DOUBLE: "double",
    TypeRoot.BINARY: "binary",
    TypeRoot.BYTES: "binary",
    TypeRoot.DATE: "date",
    TypeRoot.TIME: "string",
    TypeRoot.TIMESTAMP: "timestamp",
    TypeRoot.TIMESTAMP_LTZ: "timestamp",  # Hive 2 has no other; Hive 3 does, but accepts this one as well
}

_ALSO_WITHOUT_SYNC = ("partition.expiration-time", "data-file.path-directory")
"""Options that are table parameters even if `sync-all-properties` is false."""


def hive_type(t: DataType) -> str:
    """The name of the Hive type for a Paimon type."""
    match t.root:
        case TypeRoot.CHAR:
            return f"char({t.length})" if (t.length or 1) <= _CHAR_MAX else "string"
        case TypeRoot.STRING:
            return f"varchar({t.length})" if t.length is not None and t.length <= _VARCHAR_MAX else "string"
        case TypeRoot.DECIMAL:
            return f"decimal({t.precision},{t.scale})"
        case TypeRoot.ARRAY:
            return f"array<{hive_type(child(t.element))}>"
        case TypeRoot.MAP:
            return f"map<{hive_type(child(t.key))},{hive_type(child(t.value))}>"
        case TypeRoot.ROW:
            return f"struct<{','.join(f'{f.name}:{hive_type(f.data_type)}' for f in t.fields)}>"
    return _TYPE_NAMES[t.root]


def is_paimon(table: Any) -> bool:
    """Whether a table of a metastore is a Paimon table; views and tables of Hive's own formats are not."""
    return bool(table.sd) and (table.sd.inputFormat, table.sd.outputFormat) == (_INPUT_FORMAT, _OUTPUT_FORMAT)


def is_external(table: Any) -> bool:
    """Whether dropping the table keeps its files."""
    return bool(table.tableType == _EXTERNAL_TABLE)


def hive_location(path: str) -> str:
    """A location as Java writes it into a metastore: local ones as `file:/lake`, not encoded."""
    place = location(path)
    return f"file:{place}" if is_local(place) else place


def described_columns(metastore: Metastore, fields: Iterable[DataField]) -> list[Any]:
    """The columns of a description."""
    return [
        metastore.new("FieldSchema", name=f.name, type=hive_type(f.type), comment=_column_comment(f.description))
        for f in fields
    ]


def _column_comment(comment: str | None) -> str | None:
    if comment is None:
        return None
    line = comment.replace("\n", " ").replace("\r", " ")
    return line if len(line) <= _COLUMN_COMMENT_MAX else line[: _COLUMN_COMMENT_MAX - 3] + "..."


class TableDescriber:
    """Creates and changes descriptions of tables. Can be pickled."""

    def __init__(self, metastore: Metastore, *, sync_all: bool, location_in_properties: bool) -> None:
        self._metastore, self._sync_all, self._in_properties = metastore, sync_all, location_in_properties

    # -- locations ----------------------------------------------------------------------------------------------------

    def database_location(self, database: Any) -> str | None:
        return self._location(database.parameters, database.locationUri)

    def table_location(self, table: Any) -> str | None:
        return self._location(table.parameters, table.sd.location)

    def _location(self, parameters: Mapping[str, str] | None, stored: str | None) -> str | None:
        parameter = (parameters or {}).get(_LOCATION_PARAMETER) if self._in_properties else None
        return parameter or stored

    def new_database(self, name: str, path: str, properties: Mapping[str, str]) -> Any:
        """The description of a database with `properties` whose tables are in directory `path`."""
        place = hive_location(path)
        parameters = {key: value for key, value in properties.items() if key != COMMENT}
        if self._in_properties:
            parameters[_LOCATION_PARAMETER] = place
        uri = None if self._in_properties else place
        return self._metastore.new(
            "Database", name=name, description=properties.get(COMMENT), locationUri=uri, parameters=parameters
        )

    def move(self, table: Any, path: str) -> None:
        """Set the location in `table` to directory `path`."""
        if self._in_properties:
            table.parameters[_LOCATION_PARAMETER] = hive_location(path)
        else:
            table.sd.location = hive_location(path)

    # -- tables -------------------------------------------------------------------------------------------------------

    def new_table(
        self, database: str, name: str, schema: TableSchema, path: str, *, external: bool, seconds: int
    ) -> Any:
        """The description of a new table in directory `path`, created at `seconds` since 1970."""
        parameters = self._parameters(schema)
        if not self._sync_all:
            parameters.update({key: schema.options[key] for key in _ALSO_WITHOUT_SYNC if key in schema.options})
        parameters.update({"table_type": "PAIMON", "storage_handler": _STORAGE_HANDLER})
        if external:
            parameters["EXTERNAL"] = "TRUE"
        new = self._metastore.new
        table = new(
            "Table",
            tableName=name,
            dbName=database,
            owner=current_user(),
            createTime=seconds,
            lastAccessTime=seconds,
            retention=_RETENTION_MAX,
            partitionKeys=[],
            parameters=parameters,
            tableType=_EXTERNAL_TABLE if external else _MANAGED_TABLE,
            sd=new(
                "StorageDescriptor",
                inputFormat=_INPUT_FORMAT,
                outputFormat=_OUTPUT_FORMAT,
                compressed=False,
                numBuckets=0,
                serdeInfo=new("SerDeInfo", serializationLib=_SERDE, parameters={}),
                bucketCols=[],
                sortCols=[],
                parameters={},
            ),
        )
        self._set_columns(table, schema)
        self.move(table, path)
        return table

    def update(self, table: Any, before: TableSchema, after: TableSchema) -> None:
        """Update the description after a change of the schema."""
        table.parameters = dict(table.parameters or {})
        for key in before.options.keys() - after.options.keys():
            table.parameters.pop(key, None)
        table.parameters.update(self._parameters(after))
        self._set_columns(table, after)

    def _parameters(self, schema: TableSchema) -> dict[str, str]:
        if not self._sync_all:
            return {
                key.removeprefix(_HIVE_PREFIX): value
                for key, value in schema.options.items()
                if key.startswith(_HIVE_PREFIX)
            }
        keys = {
            "primary-key": schema.primary_keys,
            "partition": schema.partition_keys,
            "bucket-key": schema.bucket_keys,
        }
        return {**schema.options, **{key: ",".join(names) for key, names in keys.items() if names}}

    def _set_columns(self, table: Any, schema: TableSchema) -> None:
        table.sd.cols = described_columns(self._metastore, schema.fields)
        if schema.comment is not None:
            table.parameters["comment"] = schema.comment
