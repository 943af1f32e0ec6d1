# Made from fluss.proto by tools/generate_protocol.sh. Do not edit.
from forebay.protocol.messages import Message as _Message, RepeatedMessages, RepeatedScalars
from typing import Any as _Any, ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _Any

class ErrorResponse(_Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_message: str
    def __init__(self, error_code: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class PbKeyValue(_Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class PbTablePath(_Message):
    __slots__ = ("database_name", "table_name")
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    database_name: str
    table_name: str
    def __init__(self, database_name: _Optional[str] = ..., table_name: _Optional[str] = ...) -> None: ...

class PbPhysicalTablePath(_Message):
    __slots__ = ("database_name", "table_name", "partition_name")
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    database_name: str
    table_name: str
    partition_name: str
    def __init__(self, database_name: _Optional[str] = ..., table_name: _Optional[str] = ..., partition_name: _Optional[str] = ...) -> None: ...

class PbTableBucket(_Message):
    __slots__ = ("table_id", "partition_id", "bucket_id")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    partition_id: int
    bucket_id: int
    def __init__(self, table_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ...) -> None: ...

class PbPartitionSpec(_Message):
    __slots__ = ("partition_key_values",)
    PARTITION_KEY_VALUES_FIELD_NUMBER: _ClassVar[int]
    partition_key_values: RepeatedMessages[PbKeyValue]
    def __init__(self, partition_key_values: _Optional[_Iterable[_Union[PbKeyValue, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbAlterConfig(_Message):
    __slots__ = ("config_key", "config_value", "op_type")
    CONFIG_KEY_FIELD_NUMBER: _ClassVar[int]
    CONFIG_VALUE_FIELD_NUMBER: _ClassVar[int]
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    config_key: str
    config_value: str
    op_type: int
    def __init__(self, config_key: _Optional[str] = ..., config_value: _Optional[str] = ..., op_type: _Optional[int] = ...) -> None: ...

class ApiVersionsRequest(_Message):
    __slots__ = ("client_software_name", "client_software_version")
    CLIENT_SOFTWARE_NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    client_software_name: str
    client_software_version: str
    def __init__(self, client_software_name: _Optional[str] = ..., client_software_version: _Optional[str] = ...) -> None: ...

class ApiVersionsResponse(_Message):
    __slots__ = ("api_versions", "server_type")
    API_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SERVER_TYPE_FIELD_NUMBER: _ClassVar[int]
    api_versions: RepeatedMessages[PbApiVersion]
    server_type: int
    def __init__(self, api_versions: _Optional[_Iterable[_Union[PbApiVersion, _Mapping[str, _Any]]]] = ..., server_type: _Optional[int] = ...) -> None: ...

class PbApiVersion(_Message):
    __slots__ = ("api_key", "min_version", "max_version")
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSION_FIELD_NUMBER: _ClassVar[int]
    api_key: int
    min_version: int
    max_version: int
    def __init__(self, api_key: _Optional[int] = ..., min_version: _Optional[int] = ..., max_version: _Optional[int] = ...) -> None: ...

class AuthenticateRequest(_Message):
    __slots__ = ("protocol", "token")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    protocol: str
    token: bytes
    def __init__(self, protocol: _Optional[str] = ..., token: _Optional[bytes] = ...) -> None: ...

class AuthenticateResponse(_Message):
    __slots__ = ("challenge",)
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    challenge: bytes
    def __init__(self, challenge: _Optional[bytes] = ...) -> None: ...

class GetFileSystemSecurityTokenRequest(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetFileSystemSecurityTokenResponse(_Message):
    __slots__ = ("schema", "token", "expiration_time", "addition_info")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRATION_TIME_FIELD_NUMBER: _ClassVar[int]
    ADDITION_INFO_FIELD_NUMBER: _ClassVar[int]
    schema: str
    token: bytes
    expiration_time: int
    addition_info: RepeatedMessages[PbKeyValue]
    def __init__(self, schema: _Optional[str] = ..., token: _Optional[bytes] = ..., expiration_time: _Optional[int] = ..., addition_info: _Optional[_Iterable[_Union[PbKeyValue, _Mapping[str, _Any]]]] = ...) -> None: ...

class MetadataRequest(_Message):
    __slots__ = ("table_path", "partitions_path", "partitions_id")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_PATH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_ID_FIELD_NUMBER: _ClassVar[int]
    table_path: RepeatedMessages[PbTablePath]
    partitions_path: RepeatedMessages[PbPhysicalTablePath]
    partitions_id: RepeatedScalars[int]
    def __init__(self, table_path: _Optional[_Iterable[_Union[PbTablePath, _Mapping[str, _Any]]]] = ..., partitions_path: _Optional[_Iterable[_Union[PbPhysicalTablePath, _Mapping[str, _Any]]]] = ..., partitions_id: _Optional[_Iterable[int]] = ...) -> None: ...

class MetadataResponse(_Message):
    __slots__ = ("coordinator_server", "tablet_servers", "table_metadata", "partition_metadata")
    COORDINATOR_SERVER_FIELD_NUMBER: _ClassVar[int]
    TABLET_SERVERS_FIELD_NUMBER: _ClassVar[int]
    TABLE_METADATA_FIELD_NUMBER: _ClassVar[int]
    PARTITION_METADATA_FIELD_NUMBER: _ClassVar[int]
    coordinator_server: PbServerNode
    tablet_servers: RepeatedMessages[PbServerNode]
    table_metadata: RepeatedMessages[PbTableMetadata]
    partition_metadata: RepeatedMessages[PbPartitionMetadata]
    def __init__(self, coordinator_server: _Optional[_Union[PbServerNode, _Mapping[str, _Any]]] = ..., tablet_servers: _Optional[_Iterable[_Union[PbServerNode, _Mapping[str, _Any]]]] = ..., table_metadata: _Optional[_Iterable[_Union[PbTableMetadata, _Mapping[str, _Any]]]] = ..., partition_metadata: _Optional[_Iterable[_Union[PbPartitionMetadata, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbServerNode(_Message):
    __slots__ = ("node_id", "host", "port", "listeners", "rack")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    host: str
    port: int
    listeners: str
    rack: str
    def __init__(self, node_id: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., listeners: _Optional[str] = ..., rack: _Optional[str] = ...) -> None: ...

class PbTableMetadata(_Message):
    __slots__ = ("table_path", "table_id", "schema_id", "table_json", "bucket_metadata", "created_time", "modified_time", "remote_data_dir", "bucket_count_epoch")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_JSON_FIELD_NUMBER: _ClassVar[int]
    BUCKET_METADATA_FIELD_NUMBER: _ClassVar[int]
    CREATED_TIME_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_TIME_FIELD_NUMBER: _ClassVar[int]
    REMOTE_DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    BUCKET_COUNT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    table_id: int
    schema_id: int
    table_json: bytes
    bucket_metadata: RepeatedMessages[PbBucketMetadata]
    created_time: int
    modified_time: int
    remote_data_dir: str
    bucket_count_epoch: int
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., table_id: _Optional[int] = ..., schema_id: _Optional[int] = ..., table_json: _Optional[bytes] = ..., bucket_metadata: _Optional[_Iterable[_Union[PbBucketMetadata, _Mapping[str, _Any]]]] = ..., created_time: _Optional[int] = ..., modified_time: _Optional[int] = ..., remote_data_dir: _Optional[str] = ..., bucket_count_epoch: _Optional[int] = ...) -> None: ...

class PbPartitionMetadata(_Message):
    __slots__ = ("table_id", "partition_name", "partition_id", "bucket_metadata", "bucket_count")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_METADATA_FIELD_NUMBER: _ClassVar[int]
    BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    partition_name: str
    partition_id: int
    bucket_metadata: RepeatedMessages[PbBucketMetadata]
    bucket_count: int
    def __init__(self, table_id: _Optional[int] = ..., partition_name: _Optional[str] = ..., partition_id: _Optional[int] = ..., bucket_metadata: _Optional[_Iterable[_Union[PbBucketMetadata, _Mapping[str, _Any]]]] = ..., bucket_count: _Optional[int] = ...) -> None: ...

class PbBucketMetadata(_Message):
    __slots__ = ("bucket_id", "leader_id", "replica_id", "leader_epoch", "bucket_epoch", "isr")
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BUCKET_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    bucket_id: int
    leader_id: int
    replica_id: RepeatedScalars[int]
    leader_epoch: int
    bucket_epoch: int
    isr: RepeatedScalars[int]
    def __init__(self, bucket_id: _Optional[int] = ..., leader_id: _Optional[int] = ..., replica_id: _Optional[_Iterable[int]] = ..., leader_epoch: _Optional[int] = ..., bucket_epoch: _Optional[int] = ..., isr: _Optional[_Iterable[int]] = ...) -> None: ...

class GetClusterHealthRequest(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterHealthResponse(_Message):
    __slots__ = ("num_replicas", "in_sync_replicas", "num_leader_replicas", "active_leader_replicas", "status")
    NUM_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    NUM_LEADER_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_LEADER_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    num_replicas: int
    in_sync_replicas: int
    num_leader_replicas: int
    active_leader_replicas: int
    status: int
    def __init__(self, num_replicas: _Optional[int] = ..., in_sync_replicas: _Optional[int] = ..., num_leader_replicas: _Optional[int] = ..., active_leader_replicas: _Optional[int] = ..., status: _Optional[int] = ...) -> None: ...

class CreateDatabaseRequest(_Message):
    __slots__ = ("database_name", "ignore_if_exists", "database_json")
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    IGNORE_IF_EXISTS_FIELD_NUMBER: _ClassVar[int]
    DATABASE_JSON_FIELD_NUMBER: _ClassVar[int]
    database_name: str
    ignore_if_exists: bool
    database_json: bytes
    def __init__(self, database_name: _Optional[str] = ..., ignore_if_exists: bool = ..., database_json: _Optional[bytes] = ...) -> None: ...

class CreateDatabaseResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AlterDatabaseRequest(_Message):
    __slots__ = ("database_name", "ignore_if_not_exists", "config_changes", "comment")
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    IGNORE_IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_CHANGES_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    database_name: str
    ignore_if_not_exists: bool
    config_changes: RepeatedMessages[PbAlterConfig]
    comment: str
    def __init__(self, database_name: _Optional[str] = ..., ignore_if_not_exists: bool = ..., config_changes: _Optional[_Iterable[_Union[PbAlterConfig, _Mapping[str, _Any]]]] = ..., comment: _Optional[str] = ...) -> None: ...

class AlterDatabaseResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDatabaseInfoRequest(_Message):
    __slots__ = ("database_name",)
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    database_name: str
    def __init__(self, database_name: _Optional[str] = ...) -> None: ...

class GetDatabaseInfoResponse(_Message):
    __slots__ = ("database_json", "created_time", "modified_time")
    DATABASE_JSON_FIELD_NUMBER: _ClassVar[int]
    CREATED_TIME_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_TIME_FIELD_NUMBER: _ClassVar[int]
    database_json: bytes
    created_time: int
    modified_time: int
    def __init__(self, database_json: _Optional[bytes] = ..., created_time: _Optional[int] = ..., modified_time: _Optional[int] = ...) -> None: ...

class DropDatabaseRequest(_Message):
    __slots__ = ("database_name", "ignore_if_not_exists", "cascade")
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    IGNORE_IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    CASCADE_FIELD_NUMBER: _ClassVar[int]
    database_name: str
    ignore_if_not_exists: bool
    cascade: bool
    def __init__(self, database_name: _Optional[str] = ..., ignore_if_not_exists: bool = ..., cascade: bool = ...) -> None: ...

class DropDatabaseResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DatabaseExistsRequest(_Message):
    __slots__ = ("database_name",)
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    database_name: str
    def __init__(self, database_name: _Optional[str] = ...) -> None: ...

class DatabaseExistsResponse(_Message):
    __slots__ = ("exists",)
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    exists: bool
    def __init__(self, exists: bool = ...) -> None: ...

class ListDatabasesRequest(_Message):
    __slots__ = ("include_summary",)
    INCLUDE_SUMMARY_FIELD_NUMBER: _ClassVar[int]
    include_summary: bool
    def __init__(self, include_summary: bool = ...) -> None: ...

class ListDatabasesResponse(_Message):
    __slots__ = ("database_name", "database_summary")
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    DATABASE_SUMMARY_FIELD_NUMBER: _ClassVar[int]
    database_name: RepeatedScalars[str]
    database_summary: RepeatedMessages[PbDatabaseSummary]
    def __init__(self, database_name: _Optional[_Iterable[str]] = ..., database_summary: _Optional[_Iterable[_Union[PbDatabaseSummary, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbDatabaseSummary(_Message):
    __slots__ = ("database_name", "created_time", "table_count")
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_TIME_FIELD_NUMBER: _ClassVar[int]
    TABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    database_name: str
    created_time: int
    table_count: int
    def __init__(self, database_name: _Optional[str] = ..., created_time: _Optional[int] = ..., table_count: _Optional[int] = ...) -> None: ...

class CreateTableRequest(_Message):
    __slots__ = ("table_path", "table_json", "ignore_if_exists")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    TABLE_JSON_FIELD_NUMBER: _ClassVar[int]
    IGNORE_IF_EXISTS_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    table_json: bytes
    ignore_if_exists: bool
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., table_json: _Optional[bytes] = ..., ignore_if_exists: bool = ...) -> None: ...

class CreateTableResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AlterTableRequest(_Message):
    __slots__ = ("table_path", "ignore_if_not_exists", "config_changes", "add_columns", "drop_columns", "rename_columns", "modify_columns", "modify_bucket_count")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    IGNORE_IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_CHANGES_FIELD_NUMBER: _ClassVar[int]
    ADD_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DROP_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    RENAME_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MODIFY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MODIFY_BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    ignore_if_not_exists: bool
    config_changes: RepeatedMessages[PbAlterConfig]
    add_columns: RepeatedMessages[PbAddColumn]
    drop_columns: RepeatedMessages[PbDropColumn]
    rename_columns: RepeatedMessages[PbRenameColumn]
    modify_columns: RepeatedMessages[PbModifyColumn]
    modify_bucket_count: PbModifyBucketCount
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., ignore_if_not_exists: bool = ..., config_changes: _Optional[_Iterable[_Union[PbAlterConfig, _Mapping[str, _Any]]]] = ..., add_columns: _Optional[_Iterable[_Union[PbAddColumn, _Mapping[str, _Any]]]] = ..., drop_columns: _Optional[_Iterable[_Union[PbDropColumn, _Mapping[str, _Any]]]] = ..., rename_columns: _Optional[_Iterable[_Union[PbRenameColumn, _Mapping[str, _Any]]]] = ..., modify_columns: _Optional[_Iterable[_Union[PbModifyColumn, _Mapping[str, _Any]]]] = ..., modify_bucket_count: _Optional[_Union[PbModifyBucketCount, _Mapping[str, _Any]]] = ...) -> None: ...

class AlterTableResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PbAddColumn(_Message):
    __slots__ = ("column_name", "data_type_json", "comment", "column_position_type", "agg_function_type", "agg_function_params")
    COLUMN_NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_JSON_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    COLUMN_POSITION_TYPE_FIELD_NUMBER: _ClassVar[int]
    AGG_FUNCTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    AGG_FUNCTION_PARAMS_FIELD_NUMBER: _ClassVar[int]
    column_name: str
    data_type_json: bytes
    comment: str
    column_position_type: int
    agg_function_type: str
    agg_function_params: RepeatedMessages[PbKeyValue]
    def __init__(self, column_name: _Optional[str] = ..., data_type_json: _Optional[bytes] = ..., comment: _Optional[str] = ..., column_position_type: _Optional[int] = ..., agg_function_type: _Optional[str] = ..., agg_function_params: _Optional[_Iterable[_Union[PbKeyValue, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbDropColumn(_Message):
    __slots__ = ("column_name",)
    COLUMN_NAME_FIELD_NUMBER: _ClassVar[int]
    column_name: str
    def __init__(self, column_name: _Optional[str] = ...) -> None: ...

class PbRenameColumn(_Message):
    __slots__ = ("old_column_name", "new_column_name")
    OLD_COLUMN_NAME_FIELD_NUMBER: _ClassVar[int]
    NEW_COLUMN_NAME_FIELD_NUMBER: _ClassVar[int]
    old_column_name: str
    new_column_name: str
    def __init__(self, old_column_name: _Optional[str] = ..., new_column_name: _Optional[str] = ...) -> None: ...

class PbModifyColumn(_Message):
    __slots__ = ("column_name", "data_type_json", "comment", "column_position_type")
    COLUMN_NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_TYPE_JSON_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    COLUMN_POSITION_TYPE_FIELD_NUMBER: _ClassVar[int]
    column_name: str
    data_type_json: bytes
    comment: str
    column_position_type: int
    def __init__(self, column_name: _Optional[str] = ..., data_type_json: _Optional[bytes] = ..., comment: _Optional[str] = ..., column_position_type: _Optional[int] = ...) -> None: ...

class PbModifyBucketCount(_Message):
    __slots__ = ("new_bucket_count",)
    NEW_BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    new_bucket_count: int
    def __init__(self, new_bucket_count: _Optional[int] = ...) -> None: ...

class GetTableInfoRequest(_Message):
    __slots__ = ("table_path",)
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ...) -> None: ...

class GetTableInfoResponse(_Message):
    __slots__ = ("table_id", "schema_id", "table_json", "created_time", "modified_time", "remote_data_dir", "bucket_count_epoch")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_JSON_FIELD_NUMBER: _ClassVar[int]
    CREATED_TIME_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_TIME_FIELD_NUMBER: _ClassVar[int]
    REMOTE_DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    BUCKET_COUNT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    schema_id: int
    table_json: bytes
    created_time: int
    modified_time: int
    remote_data_dir: str
    bucket_count_epoch: int
    def __init__(self, table_id: _Optional[int] = ..., schema_id: _Optional[int] = ..., table_json: _Optional[bytes] = ..., created_time: _Optional[int] = ..., modified_time: _Optional[int] = ..., remote_data_dir: _Optional[str] = ..., bucket_count_epoch: _Optional[int] = ...) -> None: ...

class GetTableSchemaRequest(_Message):
    __slots__ = ("table_path", "schema_id")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    schema_id: int
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., schema_id: _Optional[int] = ...) -> None: ...

class GetTableSchemaResponse(_Message):
    __slots__ = ("schema_id", "schema_json")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    schema_id: int
    schema_json: bytes
    def __init__(self, schema_id: _Optional[int] = ..., schema_json: _Optional[bytes] = ...) -> None: ...

class ListTablesRequest(_Message):
    __slots__ = ("database_name",)
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    database_name: str
    def __init__(self, database_name: _Optional[str] = ...) -> None: ...

class ListTablesResponse(_Message):
    __slots__ = ("table_name",)
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    table_name: RepeatedScalars[str]
    def __init__(self, table_name: _Optional[_Iterable[str]] = ...) -> None: ...

class DropTableRequest(_Message):
    __slots__ = ("table_path", "ignore_if_not_exists")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    IGNORE_IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    ignore_if_not_exists: bool
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., ignore_if_not_exists: bool = ...) -> None: ...

class DropTableResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TableExistsRequest(_Message):
    __slots__ = ("table_path",)
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ...) -> None: ...

class TableExistsResponse(_Message):
    __slots__ = ("exists",)
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    exists: bool
    def __init__(self, exists: bool = ...) -> None: ...

class GetTableStatsRequest(_Message):
    __slots__ = ("table_id", "buckets_req", "target_columns")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_REQ_FIELD_NUMBER: _ClassVar[int]
    TARGET_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    buckets_req: RepeatedMessages[PbTableStatsReqForBucket]
    target_columns: RepeatedScalars[int]
    def __init__(self, table_id: _Optional[int] = ..., buckets_req: _Optional[_Iterable[_Union[PbTableStatsReqForBucket, _Mapping[str, _Any]]]] = ..., target_columns: _Optional[_Iterable[int]] = ...) -> None: ...

class GetTableStatsResponse(_Message):
    __slots__ = ("buckets_resp",)
    BUCKETS_RESP_FIELD_NUMBER: _ClassVar[int]
    buckets_resp: RepeatedMessages[PbTableStatsRespForBucket]
    def __init__(self, buckets_resp: _Optional[_Iterable[_Union[PbTableStatsRespForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbTableStatsReqForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "routing_bucket_count")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTING_BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    routing_bucket_count: int
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., routing_bucket_count: _Optional[int] = ...) -> None: ...

class PbTableStatsRespForBucket(_Message):
    __slots__ = ("error_code", "error_message", "partition_id", "bucket_id", "row_count", "log_bytes", "last_write_ms")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_WRITE_MS_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_message: str
    partition_id: int
    bucket_id: int
    row_count: int
    log_bytes: int
    last_write_ms: int
    def __init__(self, error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., row_count: _Optional[int] = ..., log_bytes: _Optional[int] = ..., last_write_ms: _Optional[int] = ...) -> None: ...

class CreatePartitionRequest(_Message):
    __slots__ = ("table_path", "partition_spec", "ignore_if_not_exists")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_SPEC_FIELD_NUMBER: _ClassVar[int]
    IGNORE_IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    partition_spec: PbPartitionSpec
    ignore_if_not_exists: bool
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., partition_spec: _Optional[_Union[PbPartitionSpec, _Mapping[str, _Any]]] = ..., ignore_if_not_exists: bool = ...) -> None: ...

class CreatePartitionResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DropPartitionRequest(_Message):
    __slots__ = ("table_path", "partition_spec", "ignore_if_not_exists")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_SPEC_FIELD_NUMBER: _ClassVar[int]
    IGNORE_IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    partition_spec: PbPartitionSpec
    ignore_if_not_exists: bool
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., partition_spec: _Optional[_Union[PbPartitionSpec, _Mapping[str, _Any]]] = ..., ignore_if_not_exists: bool = ...) -> None: ...

class DropPartitionResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPartitionInfosRequest(_Message):
    __slots__ = ("table_path", "partial_partition_spec", "include_system_partitions")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_PARTITION_SPEC_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_SYSTEM_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    partial_partition_spec: PbPartitionSpec
    include_system_partitions: bool
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., partial_partition_spec: _Optional[_Union[PbPartitionSpec, _Mapping[str, _Any]]] = ..., include_system_partitions: bool = ...) -> None: ...

class ListPartitionInfosResponse(_Message):
    __slots__ = ("partitions_info", "system_partitions_included")
    PARTITIONS_INFO_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_PARTITIONS_INCLUDED_FIELD_NUMBER: _ClassVar[int]
    partitions_info: RepeatedMessages[PbPartitionInfo]
    system_partitions_included: bool
    def __init__(self, partitions_info: _Optional[_Iterable[_Union[PbPartitionInfo, _Mapping[str, _Any]]]] = ..., system_partitions_included: bool = ...) -> None: ...

class PbPartitionInfo(_Message):
    __slots__ = ("partition_id", "partition_spec", "remote_data_dir", "bucket_count")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_SPEC_FIELD_NUMBER: _ClassVar[int]
    REMOTE_DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    partition_spec: PbPartitionSpec
    remote_data_dir: str
    bucket_count: int
    def __init__(self, partition_id: _Optional[int] = ..., partition_spec: _Optional[_Union[PbPartitionSpec, _Mapping[str, _Any]]] = ..., remote_data_dir: _Optional[str] = ..., bucket_count: _Optional[int] = ...) -> None: ...

class InitWriterRequest(_Message):
    __slots__ = ("table_path",)
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    table_path: RepeatedMessages[PbTablePath]
    def __init__(self, table_path: _Optional[_Iterable[_Union[PbTablePath, _Mapping[str, _Any]]]] = ...) -> None: ...

class InitWriterResponse(_Message):
    __slots__ = ("writer_id",)
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    writer_id: int
    def __init__(self, writer_id: _Optional[int] = ...) -> None: ...

class ProduceLogRequest(_Message):
    __slots__ = ("acks", "table_id", "timeout_ms", "buckets_req")
    ACKS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_REQ_FIELD_NUMBER: _ClassVar[int]
    acks: int
    table_id: int
    timeout_ms: int
    buckets_req: RepeatedMessages[PbProduceLogReqForBucket]
    def __init__(self, acks: _Optional[int] = ..., table_id: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., buckets_req: _Optional[_Iterable[_Union[PbProduceLogReqForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class ProduceLogResponse(_Message):
    __slots__ = ("buckets_resp",)
    BUCKETS_RESP_FIELD_NUMBER: _ClassVar[int]
    buckets_resp: RepeatedMessages[PbProduceLogRespForBucket]
    def __init__(self, buckets_resp: _Optional[_Iterable[_Union[PbProduceLogRespForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbProduceLogReqForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "records", "original_partition_name", "routing_bucket_count")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    ROUTING_BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    records: bytes
    original_partition_name: str
    routing_bucket_count: int
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., records: _Optional[bytes] = ..., original_partition_name: _Optional[str] = ..., routing_bucket_count: _Optional[int] = ...) -> None: ...

class PbProduceLogRespForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "error_code", "error_message", "base_offset", "original_partition_name")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    error_code: int
    error_message: str
    base_offset: int
    original_partition_name: str
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., base_offset: _Optional[int] = ..., original_partition_name: _Optional[str] = ...) -> None: ...

class PutKvRequest(_Message):
    __slots__ = ("acks", "table_id", "timeout_ms", "target_columns", "buckets_req", "agg_mode")
    ACKS_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TARGET_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_REQ_FIELD_NUMBER: _ClassVar[int]
    AGG_MODE_FIELD_NUMBER: _ClassVar[int]
    acks: int
    table_id: int
    timeout_ms: int
    target_columns: RepeatedScalars[int]
    buckets_req: RepeatedMessages[PbPutKvReqForBucket]
    agg_mode: int
    def __init__(self, acks: _Optional[int] = ..., table_id: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., target_columns: _Optional[_Iterable[int]] = ..., buckets_req: _Optional[_Iterable[_Union[PbPutKvReqForBucket, _Mapping[str, _Any]]]] = ..., agg_mode: _Optional[int] = ...) -> None: ...

class PutKvResponse(_Message):
    __slots__ = ("buckets_resp",)
    BUCKETS_RESP_FIELD_NUMBER: _ClassVar[int]
    buckets_resp: RepeatedMessages[PbPutKvRespForBucket]
    def __init__(self, buckets_resp: _Optional[_Iterable[_Union[PbPutKvRespForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbPutKvReqForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "records", "original_partition_name", "routing_bucket_count")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    ROUTING_BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    records: bytes
    original_partition_name: str
    routing_bucket_count: int
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., records: _Optional[bytes] = ..., original_partition_name: _Optional[str] = ..., routing_bucket_count: _Optional[int] = ...) -> None: ...

class PbPutKvRespForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "error_code", "error_message", "log_end_offset", "pressure", "original_partition_name")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    error_code: int
    error_message: str
    log_end_offset: int
    pressure: float
    original_partition_name: str
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., log_end_offset: _Optional[int] = ..., pressure: _Optional[float] = ..., original_partition_name: _Optional[str] = ...) -> None: ...

class FetchLogRequest(_Message):
    __slots__ = ("follower_server_id", "max_bytes", "tables_req", "max_wait_ms", "min_bytes", "read_preference", "log_epoch")
    FOLLOWER_SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLES_REQ_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_PREFERENCE_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    follower_server_id: int
    max_bytes: int
    tables_req: RepeatedMessages[PbFetchLogReqForTable]
    max_wait_ms: int
    min_bytes: int
    read_preference: int
    log_epoch: str
    def __init__(self, follower_server_id: _Optional[int] = ..., max_bytes: _Optional[int] = ..., tables_req: _Optional[_Iterable[_Union[PbFetchLogReqForTable, _Mapping[str, _Any]]]] = ..., max_wait_ms: _Optional[int] = ..., min_bytes: _Optional[int] = ..., read_preference: _Optional[int] = ..., log_epoch: _Optional[str] = ...) -> None: ...

class FetchLogResponse(_Message):
    __slots__ = ("tables_resp", "log_epoch")
    TABLES_RESP_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    tables_resp: RepeatedMessages[PbFetchLogRespForTable]
    log_epoch: str
    def __init__(self, tables_resp: _Optional[_Iterable[_Union[PbFetchLogRespForTable, _Mapping[str, _Any]]]] = ..., log_epoch: _Optional[str] = ...) -> None: ...

class PbFetchLogReqForTable(_Message):
    __slots__ = ("table_id", "projection_pushdown_enabled", "projected_fields", "buckets_req", "filter_predicate", "filter_schema_id")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_PUSHDOWN_ENABLED_FIELD_NUMBER: _ClassVar[int]
    PROJECTED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_REQ_FIELD_NUMBER: _ClassVar[int]
    FILTER_PREDICATE_FIELD_NUMBER: _ClassVar[int]
    FILTER_SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    projection_pushdown_enabled: bool
    projected_fields: RepeatedScalars[int]
    buckets_req: RepeatedMessages[PbFetchLogReqForBucket]
    filter_predicate: PbPredicate
    filter_schema_id: int
    def __init__(self, table_id: _Optional[int] = ..., projection_pushdown_enabled: bool = ..., projected_fields: _Optional[_Iterable[int]] = ..., buckets_req: _Optional[_Iterable[_Union[PbFetchLogReqForBucket, _Mapping[str, _Any]]]] = ..., filter_predicate: _Optional[_Union[PbPredicate, _Mapping[str, _Any]]] = ..., filter_schema_id: _Optional[int] = ...) -> None: ...

class PbFetchLogReqForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "fetch_offset", "max_fetch_bytes", "routing_bucket_count", "log_epoch")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    FETCH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_FETCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROUTING_BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    fetch_offset: int
    max_fetch_bytes: int
    routing_bucket_count: int
    log_epoch: str
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., fetch_offset: _Optional[int] = ..., max_fetch_bytes: _Optional[int] = ..., routing_bucket_count: _Optional[int] = ..., log_epoch: _Optional[str] = ...) -> None: ...

class PbFetchLogRespForTable(_Message):
    __slots__ = ("table_id", "buckets_resp")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_RESP_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    buckets_resp: RepeatedMessages[PbFetchLogRespForBucket]
    def __init__(self, table_id: _Optional[int] = ..., buckets_resp: _Optional[_Iterable[_Union[PbFetchLogRespForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbFetchLogRespForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "error_code", "error_message", "high_watermark", "log_start_offset", "remote_log_fetch_info", "records", "filtered_end_offset", "min_retain_offset", "log_epoch")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REMOTE_LOG_FETCH_INFO_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    FILTERED_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_RETAIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    error_code: int
    error_message: str
    high_watermark: int
    log_start_offset: int
    remote_log_fetch_info: PbRemoteLogFetchInfo
    records: bytes
    filtered_end_offset: int
    min_retain_offset: int
    log_epoch: str
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., remote_log_fetch_info: _Optional[_Union[PbRemoteLogFetchInfo, _Mapping[str, _Any]]] = ..., records: _Optional[bytes] = ..., filtered_end_offset: _Optional[int] = ..., min_retain_offset: _Optional[int] = ..., log_epoch: _Optional[str] = ...) -> None: ...

class PbRemoteLogFetchInfo(_Message):
    __slots__ = ("remote_log_tablet_dir", "partition_name", "remote_log_segments", "first_start_pos")
    REMOTE_LOG_TABLET_DIR_FIELD_NUMBER: _ClassVar[int]
    PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    REMOTE_LOG_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_START_POS_FIELD_NUMBER: _ClassVar[int]
    remote_log_tablet_dir: str
    partition_name: str
    remote_log_segments: RepeatedMessages[PbRemoteLogSegment]
    first_start_pos: int
    def __init__(self, remote_log_tablet_dir: _Optional[str] = ..., partition_name: _Optional[str] = ..., remote_log_segments: _Optional[_Iterable[_Union[PbRemoteLogSegment, _Mapping[str, _Any]]]] = ..., first_start_pos: _Optional[int] = ...) -> None: ...

class PbRemoteLogSegment(_Message):
    __slots__ = ("remote_log_segment_id", "remote_log_start_offset", "remote_log_end_offset", "segment_size_in_bytes", "max_timestamp")
    REMOTE_LOG_SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    REMOTE_LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REMOTE_LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_IN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    remote_log_segment_id: str
    remote_log_start_offset: int
    remote_log_end_offset: int
    segment_size_in_bytes: int
    max_timestamp: int
    def __init__(self, remote_log_segment_id: _Optional[str] = ..., remote_log_start_offset: _Optional[int] = ..., remote_log_end_offset: _Optional[int] = ..., segment_size_in_bytes: _Optional[int] = ..., max_timestamp: _Optional[int] = ...) -> None: ...

class ListOffsetsRequest(_Message):
    __slots__ = ("follower_server_id", "offset_type", "table_id", "partition_id", "bucket_id", "startTimestamp", "routing_bucket_count", "with_log_epoch")
    FOLLOWER_SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_TYPE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    STARTTIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    ROUTING_BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    WITH_LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    follower_server_id: int
    offset_type: int
    table_id: int
    partition_id: int
    bucket_id: RepeatedScalars[int]
    startTimestamp: int
    routing_bucket_count: int
    with_log_epoch: bool
    def __init__(self, follower_server_id: _Optional[int] = ..., offset_type: _Optional[int] = ..., table_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., bucket_id: _Optional[_Iterable[int]] = ..., startTimestamp: _Optional[int] = ..., routing_bucket_count: _Optional[int] = ..., with_log_epoch: bool = ...) -> None: ...

class ListOffsetsResponse(_Message):
    __slots__ = ("buckets_resp", "log_epoch")
    BUCKETS_RESP_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    buckets_resp: RepeatedMessages[PbListOffsetsRespForBucket]
    log_epoch: str
    def __init__(self, buckets_resp: _Optional[_Iterable[_Union[PbListOffsetsRespForBucket, _Mapping[str, _Any]]]] = ..., log_epoch: _Optional[str] = ...) -> None: ...

class PbListOffsetsRespForBucket(_Message):
    __slots__ = ("bucket_id", "error_code", "error_message", "offset", "log_epoch")
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    bucket_id: int
    error_code: int
    error_message: str
    offset: int
    log_epoch: str
    def __init__(self, bucket_id: _Optional[int] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., offset: _Optional[int] = ..., log_epoch: _Optional[str] = ...) -> None: ...

class ListRemoteLogManifestsRequest(_Message):
    __slots__ = ("table_id", "partition_id")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    partition_id: int
    def __init__(self, table_id: _Optional[int] = ..., partition_id: _Optional[int] = ...) -> None: ...

class ListRemoteLogManifestsResponse(_Message):
    __slots__ = ("manifests",)
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    manifests: RepeatedMessages[PbRemoteLogManifestEntry]
    def __init__(self, manifests: _Optional[_Iterable[_Union[PbRemoteLogManifestEntry, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbRemoteLogManifestEntry(_Message):
    __slots__ = ("table_bucket", "remote_log_manifest_path", "remote_log_end_offset")
    TABLE_BUCKET_FIELD_NUMBER: _ClassVar[int]
    REMOTE_LOG_MANIFEST_PATH_FIELD_NUMBER: _ClassVar[int]
    REMOTE_LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    table_bucket: PbTableBucket
    remote_log_manifest_path: str
    remote_log_end_offset: int
    def __init__(self, table_bucket: _Optional[_Union[PbTableBucket, _Mapping[str, _Any]]] = ..., remote_log_manifest_path: _Optional[str] = ..., remote_log_end_offset: _Optional[int] = ...) -> None: ...

class PbPredicate(_Message):
    __slots__ = ("type", "leaf", "compound")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    COMPOUND_FIELD_NUMBER: _ClassVar[int]
    type: int
    leaf: PbLeafPredicate
    compound: PbCompoundPredicate
    def __init__(self, type: _Optional[int] = ..., leaf: _Optional[_Union[PbLeafPredicate, _Mapping[str, _Any]]] = ..., compound: _Optional[_Union[PbCompoundPredicate, _Mapping[str, _Any]]] = ...) -> None: ...

class PbLeafPredicate(_Message):
    __slots__ = ("function", "field_id", "literals")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FIELD_ID_FIELD_NUMBER: _ClassVar[int]
    LITERALS_FIELD_NUMBER: _ClassVar[int]
    function: int
    field_id: int
    literals: RepeatedMessages[PbLiteralValue]
    def __init__(self, function: _Optional[int] = ..., field_id: _Optional[int] = ..., literals: _Optional[_Iterable[_Union[PbLiteralValue, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbCompoundPredicate(_Message):
    __slots__ = ("function", "children")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    function: int
    children: RepeatedMessages[PbPredicate]
    def __init__(self, function: _Optional[int] = ..., children: _Optional[_Iterable[_Union[PbPredicate, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbLiteralValue(_Message):
    __slots__ = ("literal_type", "is_null", "boolean_value", "int_value", "bigint_value", "float_value", "double_value", "string_value", "binary_value", "decimal_value", "timestamp_millis_value", "timestamp_nano_of_millis_value", "decimal_bytes")
    LITERAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    IS_NULL_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    BIGINT_VALUE_FIELD_NUMBER: _ClassVar[int]
    FLOAT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    BINARY_VALUE_FIELD_NUMBER: _ClassVar[int]
    DECIMAL_VALUE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MILLIS_VALUE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NANO_OF_MILLIS_VALUE_FIELD_NUMBER: _ClassVar[int]
    DECIMAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    literal_type: int
    is_null: bool
    boolean_value: bool
    int_value: int
    bigint_value: int
    float_value: float
    double_value: float
    string_value: str
    binary_value: bytes
    decimal_value: int
    timestamp_millis_value: int
    timestamp_nano_of_millis_value: int
    decimal_bytes: bytes
    def __init__(self, literal_type: _Optional[int] = ..., is_null: bool = ..., boolean_value: bool = ..., int_value: _Optional[int] = ..., bigint_value: _Optional[int] = ..., float_value: _Optional[float] = ..., double_value: _Optional[float] = ..., string_value: _Optional[str] = ..., binary_value: _Optional[bytes] = ..., decimal_value: _Optional[int] = ..., timestamp_millis_value: _Optional[int] = ..., timestamp_nano_of_millis_value: _Optional[int] = ..., decimal_bytes: _Optional[bytes] = ...) -> None: ...

class LookupRequest(_Message):
    __slots__ = ("table_id", "buckets_req", "insert_if_not_exists", "acks", "timeout_ms")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_REQ_FIELD_NUMBER: _ClassVar[int]
    INSERT_IF_NOT_EXISTS_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    buckets_req: RepeatedMessages[PbLookupReqForBucket]
    insert_if_not_exists: bool
    acks: int
    timeout_ms: int
    def __init__(self, table_id: _Optional[int] = ..., buckets_req: _Optional[_Iterable[_Union[PbLookupReqForBucket, _Mapping[str, _Any]]]] = ..., insert_if_not_exists: bool = ..., acks: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class LookupResponse(_Message):
    __slots__ = ("buckets_resp",)
    BUCKETS_RESP_FIELD_NUMBER: _ClassVar[int]
    buckets_resp: RepeatedMessages[PbLookupRespForBucket]
    def __init__(self, buckets_resp: _Optional[_Iterable[_Union[PbLookupRespForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbLookupReqForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "keys", "original_partition_name", "routing_bucket_count")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    ROUTING_BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    keys: RepeatedScalars[bytes]
    original_partition_name: str
    routing_bucket_count: int
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., original_partition_name: _Optional[str] = ..., routing_bucket_count: _Optional[int] = ...) -> None: ...

class PbLookupRespForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "error_code", "error_message", "values", "original_partition_name")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    error_code: int
    error_message: str
    values: RepeatedMessages[PbValue]
    original_partition_name: str
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., values: _Optional[_Iterable[_Union[PbValue, _Mapping[str, _Any]]]] = ..., original_partition_name: _Optional[str] = ...) -> None: ...

class PbValue(_Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    def __init__(self, values: _Optional[bytes] = ...) -> None: ...

class PbValueList(_Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: RepeatedScalars[bytes]
    def __init__(self, values: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PrefixLookupRequest(_Message):
    __slots__ = ("table_id", "buckets_req")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_REQ_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    buckets_req: RepeatedMessages[PbPrefixLookupReqForBucket]
    def __init__(self, table_id: _Optional[int] = ..., buckets_req: _Optional[_Iterable[_Union[PbPrefixLookupReqForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PrefixLookupResponse(_Message):
    __slots__ = ("buckets_resp",)
    BUCKETS_RESP_FIELD_NUMBER: _ClassVar[int]
    buckets_resp: RepeatedMessages[PbPrefixLookupRespForBucket]
    def __init__(self, buckets_resp: _Optional[_Iterable[_Union[PbPrefixLookupRespForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbPrefixLookupReqForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "keys", "routing_bucket_count")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ROUTING_BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    keys: RepeatedScalars[bytes]
    routing_bucket_count: int
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., routing_bucket_count: _Optional[int] = ...) -> None: ...

class PbPrefixLookupRespForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "error_code", "error_message", "value_lists")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VALUE_LISTS_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    error_code: int
    error_message: str
    value_lists: RepeatedMessages[PbValueList]
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., value_lists: _Optional[_Iterable[_Union[PbValueList, _Mapping[str, _Any]]]] = ...) -> None: ...

class LimitScanRequest(_Message):
    __slots__ = ("table_id", "partition_id", "bucket_id", "limit", "routing_bucket_count")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ROUTING_BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    partition_id: int
    bucket_id: int
    limit: int
    routing_bucket_count: int
    def __init__(self, table_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., limit: _Optional[int] = ..., routing_bucket_count: _Optional[int] = ...) -> None: ...

class LimitScanResponse(_Message):
    __slots__ = ("error_code", "error_message", "is_log_table", "records")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_LOG_TABLE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_message: str
    is_log_table: bool
    records: bytes
    def __init__(self, error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., is_log_table: bool = ..., records: _Optional[bytes] = ...) -> None: ...

class ScanKvRequest(_Message):
    __slots__ = ("scanner_id", "bucket_scan_req", "call_seq_id", "batch_size_bytes", "close_scanner", "table_snapshot_id", "resume_after", "as_arrow", "with_log_epoch")
    SCANNER_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_SCAN_REQ_FIELD_NUMBER: _ClassVar[int]
    CALL_SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOSE_SCANNER_FIELD_NUMBER: _ClassVar[int]
    TABLE_SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_AFTER_FIELD_NUMBER: _ClassVar[int]
    AS_ARROW_FIELD_NUMBER: _ClassVar[int]
    WITH_LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    scanner_id: bytes
    bucket_scan_req: PbScanReqForBucket
    call_seq_id: int
    batch_size_bytes: int
    close_scanner: bool
    table_snapshot_id: bytes
    resume_after: bytes
    as_arrow: PbArrowRows
    with_log_epoch: bool
    def __init__(self, scanner_id: _Optional[bytes] = ..., bucket_scan_req: _Optional[_Union[PbScanReqForBucket, _Mapping[str, _Any]]] = ..., call_seq_id: _Optional[int] = ..., batch_size_bytes: _Optional[int] = ..., close_scanner: bool = ..., table_snapshot_id: _Optional[bytes] = ..., resume_after: _Optional[bytes] = ..., as_arrow: _Optional[_Union[PbArrowRows, _Mapping[str, _Any]]] = ..., with_log_epoch: bool = ...) -> None: ...

class PbArrowRows(_Message):
    __slots__ = ("schema_id", "projected_fields", "filter_predicate", "compression")
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECTED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_PREDICATE_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    schema_id: int
    projected_fields: RepeatedScalars[int]
    filter_predicate: PbPredicate
    compression: int
    def __init__(self, schema_id: _Optional[int] = ..., projected_fields: _Optional[_Iterable[int]] = ..., filter_predicate: _Optional[_Union[PbPredicate, _Mapping[str, _Any]]] = ..., compression: _Optional[int] = ...) -> None: ...

class ScanKvResponse(_Message):
    __slots__ = ("error_code", "error_message", "scanner_id", "has_more_results", "records", "log_offset", "position", "arrow_rows", "log_epoch")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SCANNER_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_RESULTS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ARROW_ROWS_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_message: str
    scanner_id: bytes
    has_more_results: bool
    records: bytes
    log_offset: int
    position: bytes
    arrow_rows: int
    log_epoch: str
    def __init__(self, error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., scanner_id: _Optional[bytes] = ..., has_more_results: bool = ..., records: _Optional[bytes] = ..., log_offset: _Optional[int] = ..., position: _Optional[bytes] = ..., arrow_rows: _Optional[int] = ..., log_epoch: _Optional[str] = ...) -> None: ...

class PbScanReqForBucket(_Message):
    __slots__ = ("table_id", "partition_id", "bucket_id", "limit", "routing_bucket_count")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ROUTING_BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    partition_id: int
    bucket_id: int
    limit: int
    routing_bucket_count: int
    def __init__(self, table_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., limit: _Optional[int] = ..., routing_bucket_count: _Optional[int] = ...) -> None: ...

class OpenTableSnapshotRequest(_Message):
    __slots__ = ("table_id", "partition_id", "lease_ms", "name")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    partition_id: RepeatedScalars[int]
    lease_ms: int
    name: str
    def __init__(self, table_id: _Optional[int] = ..., partition_id: _Optional[_Iterable[int]] = ..., lease_ms: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class OpenTableSnapshotResponse(_Message):
    __slots__ = ("table_snapshot_id", "lease_ms", "buckets")
    TABLE_SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    table_snapshot_id: bytes
    lease_ms: int
    buckets: RepeatedMessages[PbTableSnapshotBucket]
    def __init__(self, table_snapshot_id: _Optional[bytes] = ..., lease_ms: _Optional[int] = ..., buckets: _Optional[_Iterable[_Union[PbTableSnapshotBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbTableSnapshotBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "log_offset", "row_count", "log_epoch")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    log_offset: int
    row_count: int
    log_epoch: str
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., log_offset: _Optional[int] = ..., row_count: _Optional[int] = ..., log_epoch: _Optional[str] = ...) -> None: ...

class RenewTableSnapshotRequest(_Message):
    __slots__ = ("table_snapshot_id", "lease_ms")
    TABLE_SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    table_snapshot_id: bytes
    lease_ms: int
    def __init__(self, table_snapshot_id: _Optional[bytes] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class RenewTableSnapshotResponse(_Message):
    __slots__ = ("lease_ms",)
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    lease_ms: int
    def __init__(self, lease_ms: _Optional[int] = ...) -> None: ...

class ReleaseTableSnapshotRequest(_Message):
    __slots__ = ("table_snapshot_id",)
    TABLE_SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    table_snapshot_id: bytes
    def __init__(self, table_snapshot_id: _Optional[bytes] = ...) -> None: ...

class ReleaseTableSnapshotResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTableSnapshotsRequest(_Message):
    __slots__ = ("table_id",)
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    def __init__(self, table_id: _Optional[int] = ...) -> None: ...

class ListTableSnapshotsResponse(_Message):
    __slots__ = ("table_snapshots",)
    TABLE_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    table_snapshots: RepeatedMessages[PbTableSnapshotInfo]
    def __init__(self, table_snapshots: _Optional[_Iterable[_Union[PbTableSnapshotInfo, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbTableSnapshotInfo(_Message):
    __slots__ = ("table_snapshot_id", "table_id", "name", "age_ms", "lease_left_ms", "bucket_count", "pages", "read_bytes")
    TABLE_SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    table_snapshot_id: bytes
    table_id: int
    name: str
    age_ms: int
    lease_left_ms: int
    bucket_count: int
    pages: int
    read_bytes: int
    def __init__(self, table_snapshot_id: _Optional[bytes] = ..., table_id: _Optional[int] = ..., name: _Optional[str] = ..., age_ms: _Optional[int] = ..., lease_left_ms: _Optional[int] = ..., bucket_count: _Optional[int] = ..., pages: _Optional[int] = ..., read_bytes: _Optional[int] = ...) -> None: ...

class BeginTransactionRequest(_Message):
    __slots__ = ("application", "version", "join")
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    application: str
    version: int
    join: bool
    def __init__(self, application: _Optional[str] = ..., version: _Optional[int] = ..., join: bool = ...) -> None: ...

class BeginTransactionResponse(_Message):
    __slots__ = ("transaction_id", "committed_ms")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    committed_ms: int
    def __init__(self, transaction_id: _Optional[int] = ..., committed_ms: _Optional[int] = ...) -> None: ...

class StageRowsRequest(_Message):
    __slots__ = ("transaction_id", "attempt", "sequence", "table_id", "target_columns", "buckets_req")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_REQ_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    attempt: str
    sequence: int
    table_id: int
    target_columns: RepeatedScalars[int]
    buckets_req: RepeatedMessages[PbStageRowsReqForBucket]
    def __init__(self, transaction_id: _Optional[int] = ..., attempt: _Optional[str] = ..., sequence: _Optional[int] = ..., table_id: _Optional[int] = ..., target_columns: _Optional[_Iterable[int]] = ..., buckets_req: _Optional[_Iterable[_Union[PbStageRowsReqForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbStageRowsReqForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "records")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    records: bytes
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., records: _Optional[bytes] = ...) -> None: ...

class StageRowsResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinishStageRequest(_Message):
    __slots__ = ("transaction_id", "attempt", "requests")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    attempt: str
    requests: int
    def __init__(self, transaction_id: _Optional[int] = ..., attempt: _Optional[str] = ..., requests: _Optional[int] = ...) -> None: ...

class FinishStageResponse(_Message):
    __slots__ = ("size_bytes",)
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    def __init__(self, size_bytes: _Optional[int] = ...) -> None: ...

class CommitTransactionRequest(_Message):
    __slots__ = ("transaction_id", "attempts", "unchanged_since", "operation")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_SINCE_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    attempts: RepeatedScalars[str]
    unchanged_since: RepeatedMessages[PbUnchangedSince]
    operation: str
    def __init__(self, transaction_id: _Optional[int] = ..., attempts: _Optional[_Iterable[str]] = ..., unchanged_since: _Optional[_Iterable[_Union[PbUnchangedSince, _Mapping[str, _Any]]]] = ..., operation: _Optional[str] = ...) -> None: ...

class PbUnchangedSince(_Message):
    __slots__ = ("table_id", "buckets")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    buckets: RepeatedMessages[PbUnchangedSinceForBucket]
    def __init__(self, table_id: _Optional[int] = ..., buckets: _Optional[_Iterable[_Union[PbUnchangedSinceForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbUnchangedSinceForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "log_offset", "log_epoch")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    log_offset: int
    log_epoch: str
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., log_offset: _Optional[int] = ..., log_epoch: _Optional[str] = ...) -> None: ...

class CommitTransactionResponse(_Message):
    __slots__ = ("committed_ms",)
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    committed_ms: int
    def __init__(self, committed_ms: _Optional[int] = ...) -> None: ...

class AbortTransactionRequest(_Message):
    __slots__ = ("transaction_id",)
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    def __init__(self, transaction_id: _Optional[int] = ...) -> None: ...

class AbortTransactionResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTransactionsRequest(_Message):
    __slots__ = ("application", "commits_of_table")
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    COMMITS_OF_TABLE_FIELD_NUMBER: _ClassVar[int]
    application: str
    commits_of_table: int
    def __init__(self, application: _Optional[str] = ..., commits_of_table: _Optional[int] = ...) -> None: ...

class ListTransactionsResponse(_Message):
    __slots__ = ("transactions", "commits")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    transactions: RepeatedMessages[PbTransactionInfo]
    commits: RepeatedMessages[PbTableCommit]
    def __init__(self, transactions: _Optional[_Iterable[_Union[PbTransactionInfo, _Mapping[str, _Any]]]] = ..., commits: _Optional[_Iterable[_Union[PbTableCommit, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbTableCommit(_Message):
    __slots__ = ("number", "committed_ms", "transaction_id", "application", "version", "user", "operation", "rows")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    number: int
    committed_ms: int
    transaction_id: int
    application: str
    version: int
    user: str
    operation: str
    rows: int
    def __init__(self, number: _Optional[int] = ..., committed_ms: _Optional[int] = ..., transaction_id: _Optional[int] = ..., application: _Optional[str] = ..., version: _Optional[int] = ..., user: _Optional[str] = ..., operation: _Optional[str] = ..., rows: _Optional[int] = ...) -> None: ...

class PbTransactionInfo(_Message):
    __slots__ = ("transaction_id", "application", "version", "state", "changed_ms", "stages", "staged_bytes")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_MS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    STAGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    transaction_id: int
    application: str
    version: int
    state: int
    changed_ms: int
    stages: int
    staged_bytes: int
    def __init__(self, transaction_id: _Optional[int] = ..., application: _Optional[str] = ..., version: _Optional[int] = ..., state: _Optional[int] = ..., changed_ms: _Optional[int] = ..., stages: _Optional[int] = ..., staged_bytes: _Optional[int] = ...) -> None: ...

class CheckLogOffsetsRequest(_Message):
    __slots__ = ("table_id", "log_epoch", "offsets")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    log_epoch: str
    offsets: RepeatedMessages[PbLogOffset]
    def __init__(self, table_id: _Optional[int] = ..., log_epoch: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[PbLogOffset, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbLogOffset(_Message):
    __slots__ = ("partition_id", "bucket_id", "log_offset")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    log_offset: int
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., log_offset: _Optional[int] = ...) -> None: ...

class CheckLogOffsetsResponse(_Message):
    __slots__ = ("log_epoch", "offsets")
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    log_epoch: str
    offsets: RepeatedMessages[PbCheckedLogOffset]
    def __init__(self, log_epoch: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[PbCheckedLogOffset, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbCheckedLogOffset(_Message):
    __slots__ = ("partition_id", "bucket_id", "error_code", "error_message", "log_end_offset", "shared_until")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHARED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    error_code: int
    error_message: str
    log_end_offset: int
    shared_until: int
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., log_end_offset: _Optional[int] = ..., shared_until: _Optional[int] = ...) -> None: ...

class DescribeServerRequest(_Message):
    __slots__ = ("list", "skip", "items_max")
    LIST_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    ITEMS_MAX_FIELD_NUMBER: _ClassVar[int]
    list: int
    skip: int
    items_max: int
    def __init__(self, list: _Optional[int] = ..., skip: _Optional[int] = ..., items_max: _Optional[int] = ...) -> None: ...

class DescribeServerResponse(_Message):
    __slots__ = ("started_ms", "now_ms", "version", "seconds_bounds", "apis", "syncs", "records_in", "bytes_in", "bytes_out", "refused_connections", "failed_logins", "tables", "buckets", "open_buckets", "offline_buckets", "disk_bytes", "disk_free_bytes", "accepts_writes", "resident_bytes", "request_bytes", "request_bytes_max", "answer_bytes", "answer_bytes_max", "queued_reads", "queued_writes", "waiting_fetches", "connection_count", "scan_count", "table_snapshot_count", "open_transactions", "decided_transactions", "staged_bytes", "tiered_tables", "pending_tables", "tiering_tables", "log_epoch", "log_epoch_since_ms", "log_epoch_reason", "list_total", "connections", "scans", "table_snapshots", "transactions", "tiering", "table_names", "damaged_buckets", "standby_as_of_ms", "standby_stale_ms")
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_BOUNDS_FIELD_NUMBER: _ClassVar[int]
    APIS_FIELD_NUMBER: _ClassVar[int]
    SYNCS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    FAILED_LOGINS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    OPEN_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_WRITES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    QUEUED_READS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_WRITES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FETCHES_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    SCAN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TABLE_SNAPSHOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    DECIDED_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    STAGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIERED_TABLES_FIELD_NUMBER: _ClassVar[int]
    PENDING_TABLES_FIELD_NUMBER: _ClassVar[int]
    TIERING_TABLES_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_REASON_FIELD_NUMBER: _ClassVar[int]
    LIST_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    SCANS_FIELD_NUMBER: _ClassVar[int]
    TABLE_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    TIERING_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAMES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    STANDBY_AS_OF_MS_FIELD_NUMBER: _ClassVar[int]
    STANDBY_STALE_MS_FIELD_NUMBER: _ClassVar[int]
    started_ms: int
    now_ms: int
    version: str
    seconds_bounds: RepeatedScalars[float]
    apis: RepeatedMessages[PbApiLoad]
    syncs: PbHistogram
    records_in: int
    bytes_in: int
    bytes_out: int
    refused_connections: int
    failed_logins: int
    tables: int
    buckets: int
    open_buckets: int
    offline_buckets: int
    disk_bytes: int
    disk_free_bytes: int
    accepts_writes: bool
    resident_bytes: int
    request_bytes: int
    request_bytes_max: int
    answer_bytes: int
    answer_bytes_max: int
    queued_reads: int
    queued_writes: int
    waiting_fetches: int
    connection_count: int
    scan_count: int
    table_snapshot_count: int
    open_transactions: int
    decided_transactions: int
    staged_bytes: int
    tiered_tables: int
    pending_tables: int
    tiering_tables: int
    log_epoch: str
    log_epoch_since_ms: int
    log_epoch_reason: str
    list_total: int
    connections: RepeatedMessages[PbConnectionInfo]
    scans: RepeatedMessages[PbScanInfo]
    table_snapshots: RepeatedMessages[PbTableSnapshotInfo]
    transactions: RepeatedMessages[PbTransactionInfo]
    tiering: RepeatedMessages[PbTieringInfo]
    table_names: RepeatedMessages[PbTableName]
    damaged_buckets: RepeatedMessages[PbDamagedBucket]
    standby_as_of_ms: int
    standby_stale_ms: int
    def __init__(self, started_ms: _Optional[int] = ..., now_ms: _Optional[int] = ..., version: _Optional[str] = ..., seconds_bounds: _Optional[_Iterable[float]] = ..., apis: _Optional[_Iterable[_Union[PbApiLoad, _Mapping[str, _Any]]]] = ..., syncs: _Optional[_Union[PbHistogram, _Mapping[str, _Any]]] = ..., records_in: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., refused_connections: _Optional[int] = ..., failed_logins: _Optional[int] = ..., tables: _Optional[int] = ..., buckets: _Optional[int] = ..., open_buckets: _Optional[int] = ..., offline_buckets: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., accepts_writes: bool = ..., resident_bytes: _Optional[int] = ..., request_bytes: _Optional[int] = ..., request_bytes_max: _Optional[int] = ..., answer_bytes: _Optional[int] = ..., answer_bytes_max: _Optional[int] = ..., queued_reads: _Optional[int] = ..., queued_writes: _Optional[int] = ..., waiting_fetches: _Optional[int] = ..., connection_count: _Optional[int] = ..., scan_count: _Optional[int] = ..., table_snapshot_count: _Optional[int] = ..., open_transactions: _Optional[int] = ..., decided_transactions: _Optional[int] = ..., staged_bytes: _Optional[int] = ..., tiered_tables: _Optional[int] = ..., pending_tables: _Optional[int] = ..., tiering_tables: _Optional[int] = ..., log_epoch: _Optional[str] = ..., log_epoch_since_ms: _Optional[int] = ..., log_epoch_reason: _Optional[str] = ..., list_total: _Optional[int] = ..., connections: _Optional[_Iterable[_Union[PbConnectionInfo, _Mapping[str, _Any]]]] = ..., scans: _Optional[_Iterable[_Union[PbScanInfo, _Mapping[str, _Any]]]] = ..., table_snapshots: _Optional[_Iterable[_Union[PbTableSnapshotInfo, _Mapping[str, _Any]]]] = ..., transactions: _Optional[_Iterable[_Union[PbTransactionInfo, _Mapping[str, _Any]]]] = ..., tiering: _Optional[_Iterable[_Union[PbTieringInfo, _Mapping[str, _Any]]]] = ..., table_names: _Optional[_Iterable[_Union[PbTableName, _Mapping[str, _Any]]]] = ..., damaged_buckets: _Optional[_Iterable[_Union[PbDamagedBucket, _Mapping[str, _Any]]]] = ..., standby_as_of_ms: _Optional[int] = ..., standby_stale_ms: _Optional[int] = ...) -> None: ...

class PbDamagedBucket(_Message):
    __slots__ = ("table_path", "table_id", "partition_id", "bucket_id", "message")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    table_id: int
    partition_id: int
    bucket_id: int
    message: str
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., table_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class PbTableName(_Message):
    __slots__ = ("table_id", "table_path")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    table_path: PbTablePath
    def __init__(self, table_id: _Optional[int] = ..., table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ...) -> None: ...

class PbHistogram(_Message):
    __slots__ = ("seconds", "counts")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    counts: RepeatedScalars[int]
    def __init__(self, seconds: _Optional[float] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class PbApiLoad(_Message):
    __slots__ = ("api_key", "bytes_in", "errors", "times")
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    api_key: int
    bytes_in: int
    errors: int
    times: PbHistogram
    def __init__(self, api_key: _Optional[int] = ..., bytes_in: _Optional[int] = ..., errors: _Optional[int] = ..., times: _Optional[_Union[PbHistogram, _Mapping[str, _Any]]] = ...) -> None: ...

class PbConnectionInfo(_Message):
    __slots__ = ("address", "user", "client", "client_version", "role", "listener", "open_requests", "open_bytes", "unsent_bytes", "opened_ms", "idle_ms")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    OPEN_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNSENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPENED_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    address: str
    user: str
    client: str
    client_version: str
    role: int
    listener: str
    open_requests: int
    open_bytes: int
    unsent_bytes: int
    opened_ms: int
    idle_ms: int
    def __init__(self, address: _Optional[str] = ..., user: _Optional[str] = ..., client: _Optional[str] = ..., client_version: _Optional[str] = ..., role: _Optional[int] = ..., listener: _Optional[str] = ..., open_requests: _Optional[int] = ..., open_bytes: _Optional[int] = ..., unsent_bytes: _Optional[int] = ..., opened_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ...) -> None: ...

class PbScanInfo(_Message):
    __slots__ = ("table_id", "partition_id", "bucket_id", "log_offset", "pages", "age_ms", "idle_ms")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    partition_id: int
    bucket_id: int
    log_offset: int
    pages: int
    age_ms: int
    idle_ms: int
    def __init__(self, table_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., log_offset: _Optional[int] = ..., pages: _Optional[int] = ..., age_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ...) -> None: ...

class PbTieringInfo(_Message):
    __slots__ = ("table_id", "table_path", "state", "epoch", "freshness_ms", "since_last_round_ms", "since_ms", "round_ms", "failures", "file_bytes", "rows", "untiered")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FRESHNESS_MS_FIELD_NUMBER: _ClassVar[int]
    SINCE_LAST_ROUND_MS_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    ROUND_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    UNTIERED_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    table_path: PbTablePath
    state: str
    epoch: int
    freshness_ms: int
    since_last_round_ms: int
    since_ms: int
    round_ms: int
    failures: int
    file_bytes: int
    rows: int
    untiered: int
    def __init__(self, table_id: _Optional[int] = ..., table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., freshness_ms: _Optional[int] = ..., since_last_round_ms: _Optional[int] = ..., since_ms: _Optional[int] = ..., round_ms: _Optional[int] = ..., failures: _Optional[int] = ..., file_bytes: _Optional[int] = ..., rows: _Optional[int] = ..., untiered: _Optional[int] = ...) -> None: ...

class GetLatestKvSnapshotsRequest(_Message):
    __slots__ = ("table_path", "partition_name")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    partition_name: str
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., partition_name: _Optional[str] = ...) -> None: ...

class GetLatestKvSnapshotsResponse(_Message):
    __slots__ = ("table_id", "partition_id", "latest_snapshots")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    LATEST_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    partition_id: int
    latest_snapshots: RepeatedMessages[PbKvSnapshot]
    def __init__(self, table_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., latest_snapshots: _Optional[_Iterable[_Union[PbKvSnapshot, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbKvSnapshot(_Message):
    __slots__ = ("bucket_id", "snapshot_id", "log_offset")
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    bucket_id: int
    snapshot_id: int
    log_offset: int
    def __init__(self, bucket_id: _Optional[int] = ..., snapshot_id: _Optional[int] = ..., log_offset: _Optional[int] = ...) -> None: ...

class GetKvSnapshotMetadataRequest(_Message):
    __slots__ = ("table_id", "partition_id", "bucket_id", "snapshot_id")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    partition_id: int
    bucket_id: int
    snapshot_id: int
    def __init__(self, table_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., snapshot_id: _Optional[int] = ...) -> None: ...

class GetKvSnapshotMetadataResponse(_Message):
    __slots__ = ("log_offset", "snapshot_files")
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FILES_FIELD_NUMBER: _ClassVar[int]
    log_offset: int
    snapshot_files: RepeatedMessages[PbRemotePathAndLocalFile]
    def __init__(self, log_offset: _Optional[int] = ..., snapshot_files: _Optional[_Iterable[_Union[PbRemotePathAndLocalFile, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbRemotePathAndLocalFile(_Message):
    __slots__ = ("remote_path", "local_file_name")
    REMOTE_PATH_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    remote_path: str
    local_file_name: str
    def __init__(self, remote_path: _Optional[str] = ..., local_file_name: _Optional[str] = ...) -> None: ...

class ListKvSnapshotsRequest(_Message):
    __slots__ = ("table_id", "partition_id")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    partition_id: int
    def __init__(self, table_id: _Optional[int] = ..., partition_id: _Optional[int] = ...) -> None: ...

class ListKvSnapshotsResponse(_Message):
    __slots__ = ("table_id", "partition_id", "active_snapshots")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    partition_id: int
    active_snapshots: RepeatedMessages[PbKvSnapshot]
    def __init__(self, table_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., active_snapshots: _Optional[_Iterable[_Union[PbKvSnapshot, _Mapping[str, _Any]]]] = ...) -> None: ...

class AcquireKvSnapshotLeaseRequest(_Message):
    __slots__ = ("lease_id", "lease_duration_ms", "snapshots_to_lease")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_TO_LEASE_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    lease_duration_ms: int
    snapshots_to_lease: RepeatedMessages[PbKvSnapshotLeaseForTable]
    def __init__(self, lease_id: _Optional[str] = ..., lease_duration_ms: _Optional[int] = ..., snapshots_to_lease: _Optional[_Iterable[_Union[PbKvSnapshotLeaseForTable, _Mapping[str, _Any]]]] = ...) -> None: ...

class AcquireKvSnapshotLeaseResponse(_Message):
    __slots__ = ("unavailable_snapshots",)
    UNAVAILABLE_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    unavailable_snapshots: RepeatedMessages[PbKvSnapshotLeaseForTable]
    def __init__(self, unavailable_snapshots: _Optional[_Iterable[_Union[PbKvSnapshotLeaseForTable, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbKvSnapshotLeaseForTable(_Message):
    __slots__ = ("table_id", "bucket_snapshots")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    bucket_snapshots: RepeatedMessages[PbKvSnapshotLeaseForBucket]
    def __init__(self, table_id: _Optional[int] = ..., bucket_snapshots: _Optional[_Iterable[_Union[PbKvSnapshotLeaseForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbKvSnapshotLeaseForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "snapshot_id")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    snapshot_id: int
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., snapshot_id: _Optional[int] = ...) -> None: ...

class ReleaseKvSnapshotLeaseRequest(_Message):
    __slots__ = ("lease_id", "buckets_to_release")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_TO_RELEASE_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    buckets_to_release: RepeatedMessages[PbTableBucket]
    def __init__(self, lease_id: _Optional[str] = ..., buckets_to_release: _Optional[_Iterable[_Union[PbTableBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class ReleaseKvSnapshotLeaseResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DropKvSnapshotLeaseRequest(_Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class DropKvSnapshotLeaseResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegisterProducerOffsetsRequest(_Message):
    __slots__ = ("producer_id", "table_offsets", "ttl_ms")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    table_offsets: RepeatedMessages[PbProducerTableOffsets]
    ttl_ms: int
    def __init__(self, producer_id: _Optional[str] = ..., table_offsets: _Optional[_Iterable[_Union[PbProducerTableOffsets, _Mapping[str, _Any]]]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class RegisterProducerOffsetsResponse(_Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: int
    def __init__(self, result: _Optional[int] = ...) -> None: ...

class GetProducerOffsetsRequest(_Message):
    __slots__ = ("producer_id",)
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    def __init__(self, producer_id: _Optional[str] = ...) -> None: ...

class GetProducerOffsetsResponse(_Message):
    __slots__ = ("producer_id", "expiration_time", "table_offsets")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRATION_TIME_FIELD_NUMBER: _ClassVar[int]
    TABLE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    expiration_time: int
    table_offsets: RepeatedMessages[PbProducerTableOffsets]
    def __init__(self, producer_id: _Optional[str] = ..., expiration_time: _Optional[int] = ..., table_offsets: _Optional[_Iterable[_Union[PbProducerTableOffsets, _Mapping[str, _Any]]]] = ...) -> None: ...

class DeleteProducerOffsetsRequest(_Message):
    __slots__ = ("producer_id",)
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    def __init__(self, producer_id: _Optional[str] = ...) -> None: ...

class DeleteProducerOffsetsResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PbProducerTableOffsets(_Message):
    __slots__ = ("table_id", "bucket_offsets")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    bucket_offsets: RepeatedMessages[PbBucketOffset]
    def __init__(self, table_id: _Optional[int] = ..., bucket_offsets: _Optional[_Iterable[_Union[PbBucketOffset, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbBucketOffset(_Message):
    __slots__ = ("partition_id", "bucket_id", "log_end_offset", "log_epoch")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    log_end_offset: int
    log_epoch: str
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., log_epoch: _Optional[str] = ...) -> None: ...

class GetLakeSnapshotRequest(_Message):
    __slots__ = ("table_path", "snapshot_id", "readable")
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    READABLE_FIELD_NUMBER: _ClassVar[int]
    table_path: PbTablePath
    snapshot_id: int
    readable: bool
    def __init__(self, table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., snapshot_id: _Optional[int] = ..., readable: bool = ...) -> None: ...

class GetLakeSnapshotResponse(_Message):
    __slots__ = ("table_id", "snapshotId", "bucket_snapshots", "offsets_name")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_NAME_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    snapshotId: int
    bucket_snapshots: RepeatedMessages[PbLakeSnapshotForBucket]
    offsets_name: str
    def __init__(self, table_id: _Optional[int] = ..., snapshotId: _Optional[int] = ..., bucket_snapshots: _Optional[_Iterable[_Union[PbLakeSnapshotForBucket, _Mapping[str, _Any]]]] = ..., offsets_name: _Optional[str] = ...) -> None: ...

class PbLakeSnapshotForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "log_offset", "partition_name")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    log_offset: int
    partition_name: str
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., log_offset: _Optional[int] = ..., partition_name: _Optional[str] = ...) -> None: ...

class LakeTieringHeartbeatRequest(_Message):
    __slots__ = ("tiering_tables", "finished_tables", "failed_tables", "request_table", "force_finished_tables")
    TIERING_TABLES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_TABLES_FIELD_NUMBER: _ClassVar[int]
    FAILED_TABLES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TABLE_FIELD_NUMBER: _ClassVar[int]
    FORCE_FINISHED_TABLES_FIELD_NUMBER: _ClassVar[int]
    tiering_tables: RepeatedMessages[PbHeartbeatReqForTable]
    finished_tables: RepeatedMessages[PbHeartbeatReqForTable]
    failed_tables: RepeatedMessages[PbHeartbeatReqForTable]
    request_table: bool
    force_finished_tables: RepeatedScalars[int]
    def __init__(self, tiering_tables: _Optional[_Iterable[_Union[PbHeartbeatReqForTable, _Mapping[str, _Any]]]] = ..., finished_tables: _Optional[_Iterable[_Union[PbHeartbeatReqForTable, _Mapping[str, _Any]]]] = ..., failed_tables: _Optional[_Iterable[_Union[PbHeartbeatReqForTable, _Mapping[str, _Any]]]] = ..., request_table: bool = ..., force_finished_tables: _Optional[_Iterable[int]] = ...) -> None: ...

class LakeTieringHeartbeatResponse(_Message):
    __slots__ = ("coordinator_epoch", "tiering_table", "tiering_table_resp", "finished_table_resp", "failed_table_resp")
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIERING_TABLE_FIELD_NUMBER: _ClassVar[int]
    TIERING_TABLE_RESP_FIELD_NUMBER: _ClassVar[int]
    FINISHED_TABLE_RESP_FIELD_NUMBER: _ClassVar[int]
    FAILED_TABLE_RESP_FIELD_NUMBER: _ClassVar[int]
    coordinator_epoch: int
    tiering_table: PbLakeTieringTableInfo
    tiering_table_resp: RepeatedMessages[PbHeartbeatRespForTable]
    finished_table_resp: RepeatedMessages[PbHeartbeatRespForTable]
    failed_table_resp: RepeatedMessages[PbHeartbeatRespForTable]
    def __init__(self, coordinator_epoch: _Optional[int] = ..., tiering_table: _Optional[_Union[PbLakeTieringTableInfo, _Mapping[str, _Any]]] = ..., tiering_table_resp: _Optional[_Iterable[_Union[PbHeartbeatRespForTable, _Mapping[str, _Any]]]] = ..., finished_table_resp: _Optional[_Iterable[_Union[PbHeartbeatRespForTable, _Mapping[str, _Any]]]] = ..., failed_table_resp: _Optional[_Iterable[_Union[PbHeartbeatRespForTable, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbLakeTieringTableInfo(_Message):
    __slots__ = ("table_id", "table_path", "tiering_epoch")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    TIERING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    table_path: PbTablePath
    tiering_epoch: int
    def __init__(self, table_id: _Optional[int] = ..., table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., tiering_epoch: _Optional[int] = ...) -> None: ...

class PbHeartbeatReqForTable(_Message):
    __slots__ = ("table_id", "coordinator_epoch", "tiering_epoch", "lake_tiering_stats")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIERING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAKE_TIERING_STATS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    coordinator_epoch: int
    tiering_epoch: int
    lake_tiering_stats: PbLakeTieringStats
    def __init__(self, table_id: _Optional[int] = ..., coordinator_epoch: _Optional[int] = ..., tiering_epoch: _Optional[int] = ..., lake_tiering_stats: _Optional[_Union[PbLakeTieringStats, _Mapping[str, _Any]]] = ...) -> None: ...

class PbLakeTieringStats(_Message):
    __slots__ = ("file_size", "record_count")
    FILE_SIZE_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    file_size: int
    record_count: int
    def __init__(self, file_size: _Optional[int] = ..., record_count: _Optional[int] = ...) -> None: ...

class PbHeartbeatRespForTable(_Message):
    __slots__ = ("table_id", "error")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    error: ErrorResponse
    def __init__(self, table_id: _Optional[int] = ..., error: _Optional[_Union[ErrorResponse, _Mapping[str, _Any]]] = ...) -> None: ...

class PrepareLakeTableSnapshotRequest(_Message):
    __slots__ = ("bucket_offsets", "ignore_previous_table_offsets")
    BUCKET_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_PREVIOUS_TABLE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    bucket_offsets: RepeatedMessages[PbTableOffsets]
    ignore_previous_table_offsets: bool
    def __init__(self, bucket_offsets: _Optional[_Iterable[_Union[PbTableOffsets, _Mapping[str, _Any]]]] = ..., ignore_previous_table_offsets: bool = ...) -> None: ...

class PrepareLakeTableSnapshotResponse(_Message):
    __slots__ = ("prepare_lake_table_resp",)
    PREPARE_LAKE_TABLE_RESP_FIELD_NUMBER: _ClassVar[int]
    prepare_lake_table_resp: RepeatedMessages[PbPrepareLakeTableRespForTable]
    def __init__(self, prepare_lake_table_resp: _Optional[_Iterable[_Union[PbPrepareLakeTableRespForTable, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbTableOffsets(_Message):
    __slots__ = ("table_id", "table_path", "bucket_offsets")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    BUCKET_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    table_path: PbTablePath
    bucket_offsets: RepeatedMessages[PbBucketOffset]
    def __init__(self, table_id: _Optional[int] = ..., table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ..., bucket_offsets: _Optional[_Iterable[_Union[PbBucketOffset, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbPrepareLakeTableRespForTable(_Message):
    __slots__ = ("error_code", "error_message", "table_id", "lake_table_offsets_path")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    LAKE_TABLE_OFFSETS_PATH_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_message: str
    table_id: int
    lake_table_offsets_path: str
    def __init__(self, error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., table_id: _Optional[int] = ..., lake_table_offsets_path: _Optional[str] = ...) -> None: ...

class CommitLakeTableSnapshotRequest(_Message):
    __slots__ = ("tables_req", "lake_table_snapshot_metadata")
    TABLES_REQ_FIELD_NUMBER: _ClassVar[int]
    LAKE_TABLE_SNAPSHOT_METADATA_FIELD_NUMBER: _ClassVar[int]
    tables_req: RepeatedMessages[PbLakeTableSnapshotInfo]
    lake_table_snapshot_metadata: RepeatedMessages[PbLakeTableSnapshotMetadata]
    def __init__(self, tables_req: _Optional[_Iterable[_Union[PbLakeTableSnapshotInfo, _Mapping[str, _Any]]]] = ..., lake_table_snapshot_metadata: _Optional[_Iterable[_Union[PbLakeTableSnapshotMetadata, _Mapping[str, _Any]]]] = ...) -> None: ...

class CommitLakeTableSnapshotResponse(_Message):
    __slots__ = ("table_resp",)
    TABLE_RESP_FIELD_NUMBER: _ClassVar[int]
    table_resp: RepeatedMessages[PbCommitLakeTableSnapshotRespForTable]
    def __init__(self, table_resp: _Optional[_Iterable[_Union[PbCommitLakeTableSnapshotRespForTable, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbLakeTableSnapshotMetadata(_Message):
    __slots__ = ("table_id", "snapshot_id", "tiered_bucket_offsets_file_path", "readable_bucket_offsets_file_path", "earliest_snapshot_id_to_keep", "replaces_offsets_name")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    TIERED_BUCKET_OFFSETS_FILE_PATH_FIELD_NUMBER: _ClassVar[int]
    READABLE_BUCKET_OFFSETS_FILE_PATH_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_SNAPSHOT_ID_TO_KEEP_FIELD_NUMBER: _ClassVar[int]
    REPLACES_OFFSETS_NAME_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    snapshot_id: int
    tiered_bucket_offsets_file_path: str
    readable_bucket_offsets_file_path: str
    earliest_snapshot_id_to_keep: int
    replaces_offsets_name: str
    def __init__(self, table_id: _Optional[int] = ..., snapshot_id: _Optional[int] = ..., tiered_bucket_offsets_file_path: _Optional[str] = ..., readable_bucket_offsets_file_path: _Optional[str] = ..., earliest_snapshot_id_to_keep: _Optional[int] = ..., replaces_offsets_name: _Optional[str] = ...) -> None: ...

class PbLakeTableSnapshotInfo(_Message):
    __slots__ = ("table_id", "snapshot_id", "buckets_req", "table_path")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_REQ_FIELD_NUMBER: _ClassVar[int]
    TABLE_PATH_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    snapshot_id: int
    buckets_req: RepeatedMessages[PbLakeTableOffsetForBucket]
    table_path: PbTablePath
    def __init__(self, table_id: _Optional[int] = ..., snapshot_id: _Optional[int] = ..., buckets_req: _Optional[_Iterable[_Union[PbLakeTableOffsetForBucket, _Mapping[str, _Any]]]] = ..., table_path: _Optional[_Union[PbTablePath, _Mapping[str, _Any]]] = ...) -> None: ...

class PbLakeTableOffsetForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "log_end_offset", "max_timestamp")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    log_end_offset: int
    max_timestamp: int
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., max_timestamp: _Optional[int] = ...) -> None: ...

class PbCommitLakeTableSnapshotRespForTable(_Message):
    __slots__ = ("error_code", "error_message", "table_id")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_message: str
    table_id: int
    def __init__(self, error_code: _Optional[int] = ..., error_message: _Optional[str] = ..., table_id: _Optional[int] = ...) -> None: ...

class ListAclsRequest(_Message):
    __slots__ = ("acl_filter",)
    ACL_FILTER_FIELD_NUMBER: _ClassVar[int]
    acl_filter: PbAclFilter
    def __init__(self, acl_filter: _Optional[_Union[PbAclFilter, _Mapping[str, _Any]]] = ...) -> None: ...

class ListAclsResponse(_Message):
    __slots__ = ("acl",)
    ACL_FIELD_NUMBER: _ClassVar[int]
    acl: RepeatedMessages[PbAclInfo]
    def __init__(self, acl: _Optional[_Iterable[_Union[PbAclInfo, _Mapping[str, _Any]]]] = ...) -> None: ...

class CreateAclsRequest(_Message):
    __slots__ = ("acl",)
    ACL_FIELD_NUMBER: _ClassVar[int]
    acl: RepeatedMessages[PbAclInfo]
    def __init__(self, acl: _Optional[_Iterable[_Union[PbAclInfo, _Mapping[str, _Any]]]] = ...) -> None: ...

class CreateAclsResponse(_Message):
    __slots__ = ("aclRes",)
    ACLRES_FIELD_NUMBER: _ClassVar[int]
    aclRes: RepeatedMessages[PbCreateAclRespInfo]
    def __init__(self, aclRes: _Optional[_Iterable[_Union[PbCreateAclRespInfo, _Mapping[str, _Any]]]] = ...) -> None: ...

class DropAclsRequest(_Message):
    __slots__ = ("acl_filter",)
    ACL_FILTER_FIELD_NUMBER: _ClassVar[int]
    acl_filter: RepeatedMessages[PbAclFilter]
    def __init__(self, acl_filter: _Optional[_Iterable[_Union[PbAclFilter, _Mapping[str, _Any]]]] = ...) -> None: ...

class DropAclsResponse(_Message):
    __slots__ = ("filter_results",)
    FILTER_RESULTS_FIELD_NUMBER: _ClassVar[int]
    filter_results: RepeatedMessages[PbDropAclsFilterResult]
    def __init__(self, filter_results: _Optional[_Iterable[_Union[PbDropAclsFilterResult, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbAclInfo(_Message):
    __slots__ = ("resource_name", "resource_type", "principal_name", "principal_type", "host", "operation_type", "permission_type")
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_NAME_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_TYPE_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    resource_name: str
    resource_type: int
    principal_name: str
    principal_type: str
    host: str
    operation_type: int
    permission_type: int
    def __init__(self, resource_name: _Optional[str] = ..., resource_type: _Optional[int] = ..., principal_name: _Optional[str] = ..., principal_type: _Optional[str] = ..., host: _Optional[str] = ..., operation_type: _Optional[int] = ..., permission_type: _Optional[int] = ...) -> None: ...

class PbAclFilter(_Message):
    __slots__ = ("resource_name", "resource_type", "principal_name", "principal_type", "host", "operation_type", "permission_type")
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_NAME_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_TYPE_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    resource_name: str
    resource_type: int
    principal_name: str
    principal_type: str
    host: str
    operation_type: int
    permission_type: int
    def __init__(self, resource_name: _Optional[str] = ..., resource_type: _Optional[int] = ..., principal_name: _Optional[str] = ..., principal_type: _Optional[str] = ..., host: _Optional[str] = ..., operation_type: _Optional[int] = ..., permission_type: _Optional[int] = ...) -> None: ...

class PbCreateAclRespInfo(_Message):
    __slots__ = ("acl", "error_code", "error_message")
    ACL_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    acl: PbAclInfo
    error_code: int
    error_message: str
    def __init__(self, acl: _Optional[_Union[PbAclInfo, _Mapping[str, _Any]]] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class PbDropAclsFilterResult(_Message):
    __slots__ = ("matching_acls", "error_code", "error_message")
    MATCHING_ACLS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    matching_acls: RepeatedMessages[PbDropAclsMatchingAcl]
    error_code: int
    error_message: str
    def __init__(self, matching_acls: _Optional[_Iterable[_Union[PbDropAclsMatchingAcl, _Mapping[str, _Any]]]] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class PbDropAclsMatchingAcl(_Message):
    __slots__ = ("acl", "error_code", "error_message")
    ACL_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    acl: PbAclInfo
    error_code: int
    error_message: str
    def __init__(self, acl: _Optional[_Union[PbAclInfo, _Mapping[str, _Any]]] = ..., error_code: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class DescribeClusterConfigsRequest(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeClusterConfigsResponse(_Message):
    __slots__ = ("configs",)
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    configs: RepeatedMessages[PbDescribeConfig]
    def __init__(self, configs: _Optional[_Iterable[_Union[PbDescribeConfig, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbDescribeConfig(_Message):
    __slots__ = ("config_key", "config_value", "config_source")
    CONFIG_KEY_FIELD_NUMBER: _ClassVar[int]
    CONFIG_VALUE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_SOURCE_FIELD_NUMBER: _ClassVar[int]
    config_key: str
    config_value: str
    config_source: str
    def __init__(self, config_key: _Optional[str] = ..., config_value: _Optional[str] = ..., config_source: _Optional[str] = ...) -> None: ...

class AlterClusterConfigsRequest(_Message):
    __slots__ = ("alter_configs",)
    ALTER_CONFIGS_FIELD_NUMBER: _ClassVar[int]
    alter_configs: RepeatedMessages[PbAlterConfig]
    def __init__(self, alter_configs: _Optional[_Iterable[_Union[PbAlterConfig, _Mapping[str, _Any]]]] = ...) -> None: ...

class AlterClusterConfigsResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddServerTagRequest(_Message):
    __slots__ = ("server_ids", "server_tag")
    SERVER_IDS_FIELD_NUMBER: _ClassVar[int]
    SERVER_TAG_FIELD_NUMBER: _ClassVar[int]
    server_ids: RepeatedScalars[int]
    server_tag: int
    def __init__(self, server_ids: _Optional[_Iterable[int]] = ..., server_tag: _Optional[int] = ...) -> None: ...

class AddServerTagResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AddServerTagByRackRequest(_Message):
    __slots__ = ("racks", "server_tag")
    RACKS_FIELD_NUMBER: _ClassVar[int]
    SERVER_TAG_FIELD_NUMBER: _ClassVar[int]
    racks: RepeatedScalars[str]
    server_tag: int
    def __init__(self, racks: _Optional[_Iterable[str]] = ..., server_tag: _Optional[int] = ...) -> None: ...

class AddServerTagByRackResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveServerTagRequest(_Message):
    __slots__ = ("server_ids", "server_tag")
    SERVER_IDS_FIELD_NUMBER: _ClassVar[int]
    SERVER_TAG_FIELD_NUMBER: _ClassVar[int]
    server_ids: RepeatedScalars[int]
    server_tag: int
    def __init__(self, server_ids: _Optional[_Iterable[int]] = ..., server_tag: _Optional[int] = ...) -> None: ...

class RemoveServerTagResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveServerTagByRackRequest(_Message):
    __slots__ = ("racks", "server_tag")
    RACKS_FIELD_NUMBER: _ClassVar[int]
    SERVER_TAG_FIELD_NUMBER: _ClassVar[int]
    racks: RepeatedScalars[str]
    server_tag: int
    def __init__(self, racks: _Optional[_Iterable[str]] = ..., server_tag: _Optional[int] = ...) -> None: ...

class RemoveServerTagByRackResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RebalanceRequest(_Message):
    __slots__ = ("goals",)
    GOALS_FIELD_NUMBER: _ClassVar[int]
    goals: RepeatedScalars[int]
    def __init__(self, goals: _Optional[_Iterable[int]] = ...) -> None: ...

class RebalanceResponse(_Message):
    __slots__ = ("rebalance_id",)
    REBALANCE_ID_FIELD_NUMBER: _ClassVar[int]
    rebalance_id: str
    def __init__(self, rebalance_id: _Optional[str] = ...) -> None: ...

class ListRebalanceProgressRequest(_Message):
    __slots__ = ("rebalance_id",)
    REBALANCE_ID_FIELD_NUMBER: _ClassVar[int]
    rebalance_id: str
    def __init__(self, rebalance_id: _Optional[str] = ...) -> None: ...

class ListRebalanceProgressResponse(_Message):
    __slots__ = ("rebalance_id", "rebalance_status", "table_progress")
    REBALANCE_ID_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_STATUS_FIELD_NUMBER: _ClassVar[int]
    TABLE_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    rebalance_id: str
    rebalance_status: int
    table_progress: RepeatedMessages[PbRebalanceProgressForTable]
    def __init__(self, rebalance_id: _Optional[str] = ..., rebalance_status: _Optional[int] = ..., table_progress: _Optional[_Iterable[_Union[PbRebalanceProgressForTable, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbRebalanceProgressForTable(_Message):
    __slots__ = ("table_id", "buckets_progress")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    buckets_progress: RepeatedMessages[PbRebalanceProgressForBucket]
    def __init__(self, table_id: _Optional[int] = ..., buckets_progress: _Optional[_Iterable[_Union[PbRebalanceProgressForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbRebalanceProgressForBucket(_Message):
    __slots__ = ("rebalance_plan", "rebalance_status")
    REBALANCE_PLAN_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_STATUS_FIELD_NUMBER: _ClassVar[int]
    rebalance_plan: PbRebalancePlanForBucket
    rebalance_status: int
    def __init__(self, rebalance_plan: _Optional[_Union[PbRebalancePlanForBucket, _Mapping[str, _Any]]] = ..., rebalance_status: _Optional[int] = ...) -> None: ...

class PbRebalancePlanForTable(_Message):
    __slots__ = ("table_id", "buckets_plan")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_PLAN_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    buckets_plan: RepeatedMessages[PbRebalancePlanForBucket]
    def __init__(self, table_id: _Optional[int] = ..., buckets_plan: _Optional[_Iterable[_Union[PbRebalancePlanForBucket, _Mapping[str, _Any]]]] = ...) -> None: ...

class PbRebalancePlanForBucket(_Message):
    __slots__ = ("partition_id", "bucket_id", "original_leader", "new_leader", "original_replicas", "new_replicas")
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_ID_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_LEADER_FIELD_NUMBER: _ClassVar[int]
    NEW_LEADER_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    NEW_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    partition_id: int
    bucket_id: int
    original_leader: int
    new_leader: int
    original_replicas: RepeatedScalars[int]
    new_replicas: RepeatedScalars[int]
    def __init__(self, partition_id: _Optional[int] = ..., bucket_id: _Optional[int] = ..., original_leader: _Optional[int] = ..., new_leader: _Optional[int] = ..., original_replicas: _Optional[_Iterable[int]] = ..., new_replicas: _Optional[_Iterable[int]] = ...) -> None: ...

class CancelRebalanceRequest(_Message):
    __slots__ = ("rebalance_id",)
    REBALANCE_ID_FIELD_NUMBER: _ClassVar[int]
    rebalance_id: str
    def __init__(self, rebalance_id: _Optional[str] = ...) -> None: ...

class CancelRebalanceResponse(_Message):
    __slots__ = ()
    def __init__(self) -> None: ...
