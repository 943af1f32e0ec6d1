"""Table options as typed properties, with Paimon's names and defaults.

`CoreOptions({"bucket": "4"}).bucket == 4`. Only options that the engine uses are properties; all others are kept and
passed on. Sizes are in bytes, durations in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar, overload

from forebay.base import options as parsers
from forebay.base.errors import ErrorCode, UnsupportedOperation
from forebay.base.options import Option, Parser

T = TypeVar("T")

KB, MB = 1 << 10, 1 << 20
SECOND, HOUR = 1000, 3_600_000
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1

POSTPONE_BUCKET = -2
"""The bucket option of tables whose buckets are assigned later, by compaction."""


class CoreOption(Generic[T]):
    """A property of `CoreOptions`: an option by its key, or by older keys, and its default. It is read once."""

    def __init__(self, key: str, parse: Parser, default: T, fallback: tuple[str, ...] = ()) -> None:
        self.key, self.default, self.fallback = key, default, fallback
        self.options = tuple(Option(name, parse) for name in (key, *fallback))
        """The option by each of its keys. The first one that is set counts."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> CoreOption[T]: ...
    @overload
    def __get__(self, instance: CoreOptions, owner: type) -> T: ...
    def __get__(self, instance: CoreOptions | None, owner: type) -> CoreOption[T] | T:
        if instance is None:
            return self
        candidates = (option for option in self.options if instance.mapping.get(option.name) is not None)
        option = next(candidates, None)
        value: T = self.default if option is None else _read(option, instance.mapping)
        vars(instance)[self._name] = value  # Python does not call this property again
        return value


def _read(option: Option, mapping: Mapping[str, str]) -> Any:
    """The value of an option that is set. Raises `InvalidRequest`."""
    return option.read(mapping[option.name], code=ErrorCode.CLIENT_ERROR)


def _integer(key: str, default: int, *fallback: str) -> CoreOption[int]:
    return CoreOption(key, parsers.integer, default, fallback)


def _maybe_integer(key: str) -> CoreOption[int | None]:
    return CoreOption[int | None](key, parsers.integer, None)


def _number(key: str, default: float) -> CoreOption[float]:
    return CoreOption(key, parsers.number, default)


def _flag(key: str, default: bool, *fallback: str) -> CoreOption[bool]:
    return CoreOption(key, parsers.boolean, default, fallback)


def _size(key: str, default: int) -> CoreOption[int]:
    return CoreOption(key, parsers.size, default)


def _maybe_size(key: str) -> CoreOption[int | None]:
    return CoreOption[int | None](key, parsers.size, None)


def _duration(key: str, default: int) -> CoreOption[int]:
    return CoreOption(key, parsers.milliseconds, default)


def _maybe_duration(key: str) -> CoreOption[int | None]:
    return CoreOption[int | None](key, parsers.milliseconds, None)


def _text(key: str, default: str, *fallback: str) -> CoreOption[str]:
    return CoreOption(key, str, default, fallback)


def _maybe_text(key: str) -> CoreOption[str | None]:
    return CoreOption[str | None](key, str, None)


def _names(key: str, *fallback: str) -> CoreOption[tuple[str, ...]]:
    return CoreOption(key, parsers.names, (), fallback)


def _choice(key: str, *values: str, fallback: tuple[str, ...] = ()) -> CoreOption[str]:
    """One of `values`, of which the first is the default."""
    return CoreOption(key, parsers.one_of(*values), values[0], fallback)


def _by_level(text: str) -> dict[int, str]:
    """ "0:avro,3:parquet" -> {0: "avro", 3: "parquet"}."""
    pairs = (part.partition(":") for part in text.split(",") if part.strip())
    return {parsers.integer(level): value.strip() for level, _, value in pairs}


class CoreOptions:
    """A table's options. `mapping` holds all of them as text, including those without a property."""

    def __init__(self, mapping: Mapping[str, str] | None = None) -> None:
        self.mapping: Mapping[str, str] = dict(mapping or {})

    def with_overrides(self, overrides: Mapping[str, str]) -> CoreOptions:
        """These options with some replaced (dynamic options of one read or write)."""
        return CoreOptions({**self.mapping, **overrides})

    # buckets, paths, branches
    bucket = _integer("bucket", -1)
    bucket_key = _names("bucket-key")
    bucket_function_type = _choice("bucket-function.type", "default", "mod", "hive")
    bucket_append_ordered = _flag("bucket-append-ordered", True)
    branch = _text("branch", "main")
    partition_default_name = _text("partition.default-name", "__DEFAULT_PARTITION__")
    partition_legacy_name = _flag("partition.legacy-name", True)
    data_file_prefix = _text("data-file.prefix", "data-")
    data_file_path_directory = _maybe_text("data-file.path-directory")
    changelog_file_prefix = _text("changelog-file.prefix", "changelog-")
    file_suffix_include_compression = _flag("file.suffix.include.compression", False)
    index_file_in_data_file_dir = _flag("index-file-in-data-file-dir", False)

    # data files
    file_format = _text("file.format", "parquet")
    file_compression = _text("file.compression", "zstd")
    file_compression_zstd_level = _integer("file.compression.zstd-level", 1)
    file_block_size = _maybe_size("file.block-size")
    file_format_per_level = CoreOption[dict[int, str]]("file.format.per.level", _by_level, {})
    file_compression_per_level = CoreOption[dict[int, str]]("file.compression.per.level", _by_level, {})
    changelog_file_format = _maybe_text("changelog-file.format")
    changelog_file_compression = _maybe_text("changelog-file.compression")
    changelog_file_stats_mode = _maybe_text("changelog-file.stats-mode")
    data_file_thin_mode = _flag("data-file.thin-mode", False)
    stats_mode = _text("metadata.stats-mode", "truncate(16)")
    stats_mode_per_level = CoreOption[dict[int, str]]("metadata.stats-mode.per.level", _by_level, {})
    stats_dense_store = _flag("metadata.stats-dense-store", True)
    stats_keep_first_n_columns = _integer("metadata.stats-keep-first-n-columns", -1)

    # manifests
    manifest_compression = _text("manifest.compression", "zstd")
    manifest_target_file_size = _size("manifest.target-file-size", 8 * MB)
    manifest_full_compaction_threshold_size = _size("manifest.full-compaction-threshold-size", 16 * MB)
    manifest_merge_min_count = _integer("manifest.merge-min-count", 30)

    # commits
    commit_timeout_ms = _maybe_duration("commit.timeout")
    commit_max_retries = _integer("commit.max-retries", 10)
    commit_min_retry_wait_ms = _duration("commit.min-retry-wait", 10)
    commit_max_retry_wait_ms = _duration("commit.max-retry-wait", 10 * SECOND)
    commit_force_compact = _flag("commit.force-compact", False)
    commit_discard_duplicate_files = _flag("commit.discard-duplicate-files", False)
    commit_user_prefix = _maybe_text("commit.user-prefix")
    dynamic_partition_overwrite = _flag("dynamic-partition-overwrite", True)
    overwrite_upgrade = _flag("overwrite-upgrade", True)

    # writing
    write_only = _flag("write-only", False, "write.compaction-skip")
    write_buffer_size = _size("write-buffer-size", 256 * MB)
    sort_spill_threshold = _maybe_integer("sort-spill-threshold")
    sort_spill_buffer_size = _size("sort-spill-buffer-size", 64 * MB)
    target_file_row_num = _integer("target-file-row-num", LONG_MAX)
    rowkind_field = _maybe_text("rowkind.field")
    dynamic_bucket_target_row_num = _integer("dynamic-bucket.target-row-num", 2_000_000)
    dynamic_bucket_max_buckets = _integer("dynamic-bucket.max-buckets", -1)

    # merging
    merge_engine = _choice("merge-engine", "deduplicate", "partial-update", "aggregation", "first-row")
    ignore_delete = _flag(
        "ignore-delete",
        False,
        "first-row.ignore-delete",
        "deduplicate.ignore-delete",
        "partial-update.ignore-delete",
    )
    ignore_update_before = _flag("ignore-update-before", False)
    sequence_field = _names("sequence.field")
    sequence_field_sort_order = _choice("sequence.field.sort-order", "ascending", "descending")
    partial_update_remove_record_on_delete = _flag("partial-update.remove-record-on-delete", False)
    partial_update_remove_record_on_sequence_group = _names("partial-update.remove-record-on-sequence-group")
    aggregation_remove_record_on_delete = _flag("aggregation.remove-record-on-delete", False)
    changelog_producer = _choice("changelog-producer", "none", "input", "full-compaction", "lookup")
    changelog_producer_row_deduplicate = _flag("changelog-producer.row-deduplicate", False)
    changelog_producer_row_deduplicate_ignore_fields = _names("changelog-producer.row-deduplicate-ignore-fields")
    force_lookup = _flag("force-lookup", False)
    deletion_vectors_enabled = _flag("deletion-vectors.enabled", False)
    deletion_vectors_merge_on_read = _flag("deletion-vectors.merge-on-read", False)

    # compaction
    num_sorted_run_compaction_trigger = _integer("num-sorted-run.compaction-trigger", 5)
    compaction_max_size_amplification_percent = _integer("compaction.max-size-amplification-percent", 200)
    compaction_size_ratio = _integer("compaction.size-ratio", 1)
    compaction_min_file_num = _integer("compaction.min.file-num", 5)
    compaction_small_file_ratio = _number("compaction.small-file-ratio", 0.7)
    compaction_force_up_level_0 = _flag("compaction.force-up-level-0", False)
    compaction_force_rewrite_all_files = _flag("compaction.force-rewrite-all-files", False)
    compaction_optimization_interval_ms = _maybe_duration("compaction.optimization-interval")
    compaction_total_size_threshold = _maybe_size("compaction.total-size-threshold")
    compaction_incremental_size_threshold = _maybe_size("compaction.incremental-size-threshold")
    compaction_offpeak_start_hour = _integer("compaction.offpeak.start.hour", -1)
    compaction_offpeak_end_hour = _integer("compaction.offpeak.end.hour", -1)
    compaction_offpeak_ratio = _integer("compaction.offpeak-ratio", 0)
    full_compaction_delta_commits = _maybe_integer("full-compaction.delta-commits")
    lookup_compact = _choice("lookup-compact", "radical", "gentle")
    lookup_compact_max_interval = _maybe_integer("lookup-compact.max-interval")
    precommit_compact = _flag("precommit-compact", False, "changelog.precommit-compact")

    # reading
    scan_mode = _choice(
        "scan.mode",
        "default",
        "latest-full",
        "full",
        "latest",
        "latest-delta",
        "compacted-full",
        "from-timestamp",
        "from-creation-timestamp",
        "from-file-creation-time",
        "from-snapshot",
        "from-snapshot-full",
        "incremental",
        fallback=("log.scan",),
    )
    scan_snapshot_id = _maybe_integer("scan.snapshot-id")
    scan_timestamp_millis = _maybe_integer("scan.timestamp-millis")
    scan_timestamp = _maybe_text("scan.timestamp")
    scan_watermark = _maybe_integer("scan.watermark")
    scan_file_creation_time_millis = _maybe_integer("scan.file-creation-time-millis")
    scan_creation_time_millis = _maybe_integer("scan.creation-time-millis")
    scan_tag_name = _maybe_text("scan.tag-name")
    scan_version = _maybe_text("scan.version")
    scan_bounded_watermark = _maybe_integer("scan.bounded.watermark")
    scan_bucket = _maybe_integer("scan.bucket")
    scan_plan_sort_partition = _flag("scan.plan-sort-partition", False)
    streaming_read_snapshot_delay_ms = _maybe_duration("streaming.read.snapshot.delay")
    incremental_between_tag_to_snapshot = _flag("incremental-between-tag-to-snapshot", False)
    incremental_between = _maybe_text("incremental-between")
    incremental_between_timestamp = _maybe_text("incremental-between-timestamp")
    incremental_between_scan_mode = _choice("incremental-between-scan-mode", "auto", "delta", "changelog", "diff")
    incremental_to_auto_tag = _maybe_text("incremental-to-auto-tag")
    source_split_target_size = _size("source.split.target-size", 128 * MB)
    source_split_open_file_cost = _size("source.split.open-file-cost", 4 * MB)
    streaming_read_overwrite = _flag("streaming-read-overwrite", False)
    streaming_read_append_overwrite = _flag("streaming-read-append-overwrite", False)
    continuous_discovery_interval_ms = _duration("continuous.discovery-interval", 10 * SECOND)
    consumer_id = _maybe_text("consumer-id")
    consumer_ignore_progress = _flag("consumer.ignore-progress", False)
    consumer_expiration_time_ms = _maybe_duration("consumer.expiration-time")
    consumer_changelog_only = _flag("consumer.changelog-only", False)

    # upkeep
    snapshot_num_retained_min = _integer("snapshot.num-retained.min", 10)
    snapshot_num_retained_max = _integer("snapshot.num-retained.max", INT_MAX)
    snapshot_time_retained_ms = _duration("snapshot.time-retained", HOUR)
    snapshot_expire_limit = _integer("snapshot.expire.limit", 50)
    snapshot_clean_empty_directories = _flag(
        "snapshot.clean-empty-directories", False, "snapshot.expire.clean-empty-directories"
    )
    partition_expiration_time_ms = _maybe_duration("partition.expiration-time")
    partition_expiration_strategy = _text("partition.expiration-strategy", "values-time")
    partition_expiration_check_interval_ms = _duration("partition.expiration-check-interval", HOUR)
    end_input_check_partition_expire = _flag("end-input.check-partition-expire", False)
    partition_expiration_max_num = _integer("partition.expiration-max-num", 100)
    partition_timestamp_formatter = _maybe_text("partition.timestamp-formatter")
    partition_timestamp_pattern = _maybe_text("partition.timestamp-pattern")
    tag_automatic_creation = _choice("tag.automatic-creation", "none", "process-time", "watermark", "batch")
    tag_batch_customized_name = _maybe_text("tag.batch.customized-name")
    tag_automatic_completion = _flag("tag.automatic-completion", False)
    tag_creation_period = _choice("tag.creation-period", "daily", "hourly", "two-hours")
    tag_creation_period_duration_ms = _maybe_duration("tag.creation-period-duration")
    tag_creation_delay_ms = _duration("tag.creation-delay", 0)
    tag_period_formatter = _choice("tag.period-formatter", "with-dashes", "without-dashes", "without-dashes-and-spaces")
    sink_process_time_zone = _maybe_text("sink.process-time-zone")
    sink_watermark_time_zone = _text("sink.watermark-time-zone", "UTC")
    tag_num_retained_max = _maybe_integer("tag.num-retained-max")
    tag_default_time_retained_ms = _maybe_duration("tag.default-time-retained")
    tag_time_expire_enabled = _flag("tag.time-expire-enabled", True)
    lookup_cache_max_memory_size = _size("lookup.cache-max-memory-size", 256 * MB)
    lookup_cache_max_disk_size = _size("lookup.cache-max-disk-size", LONG_MAX)
    lookup_cache_file_retention_ms = _duration("lookup.cache-file-retention", HOUR)

    # schemas
    alter_column_null_to_not_null_disabled = _flag("alter-column-null-to-not-null.disabled", True)
    disable_explicit_type_casting = _flag("disable-explicit-type-casting", False)
    add_column_before_partition = _flag("add-column-before-partition", False)

    _target_file_size = _maybe_size("target-file-size")
    _num_sorted_run_stop_trigger = _maybe_integer("num-sorted-run.stop-trigger")
    _num_levels = _maybe_integer("num-levels")
    _changelog_num_retained_min = _maybe_integer("changelog.num-retained.min")
    _changelog_num_retained_max = _maybe_integer("changelog.num-retained.max")
    _changelog_time_retained_ms = _maybe_duration("changelog.time-retained")
    _snapshot_ignore_empty_commit: CoreOption[bool | None] = CoreOption(
        "snapshot.ignore-empty-commit", parsers.boolean, None
    )

    def target_file_size(self, has_primary_key: bool) -> int:
        """The target size of data files in bytes: by default 128 MB in primary-key tables, 256 MB in append tables."""
        return self._target_file_size or (128 * MB if has_primary_key else 256 * MB)

    def compaction_file_size(self, has_primary_key: bool) -> int:
        """The size in bytes below which files are small, and picked by compaction."""
        return int(self.target_file_size(has_primary_key) * self.compaction_small_file_ratio)

    @property
    def num_sorted_run_stop_trigger(self) -> int:
        """The number of sorted runs at which writers wait for compaction; at least the trigger of compaction."""
        trigger = self._num_sorted_run_stop_trigger
        stop = self.num_sorted_run_compaction_trigger + 3 if trigger is None else trigger
        return max(self.num_sorted_run_compaction_trigger, stop)

    @property
    def num_levels(self) -> int:
        """The number of levels of an LSM tree, including level 0."""
        levels = self._num_levels
        return self.num_sorted_run_compaction_trigger + 1 if levels is None else levels

    @property
    def changelog_num_retained_min(self) -> int:
        return self._changelog_num_retained_min or self.snapshot_num_retained_min

    @property
    def changelog_num_retained_max(self) -> int:
        return self._changelog_num_retained_max or self.snapshot_num_retained_max

    @property
    def changelog_time_retained_ms(self) -> int:
        retained_ms = self._changelog_time_retained_ms
        return self.snapshot_time_retained_ms if retained_ms is None else retained_ms

    @property
    def changelog_decoupled(self) -> bool:
        """Whether changelogs live longer than their snapshots."""
        return (
            self.changelog_num_retained_max > self.snapshot_num_retained_max
            or self.changelog_time_retained_ms > self.snapshot_time_retained_ms
            or self.changelog_num_retained_min > self.snapshot_num_retained_min
        )

    def ignore_empty_commit(self, default: bool) -> bool:
        """Whether a commit without changes creates no snapshot; by default true for batch writes, false for streams."""
        value = self._snapshot_ignore_empty_commit
        return default if value is None else value

    @property
    def needs_lookup(self) -> bool:
        """Whether new files are visible only after compaction out of level 0 (`CoreOptions.needLookup` in Java)."""
        return (
            self.merge_engine == "first-row"
            or self.changelog_producer == "lookup"
            or self.deletion_vectors_enabled
            or self.force_lookup
        )

    def field_option(self, column: str, name: str) -> str | None:
        """`fields.<column>.<name>`."""
        return self.mapping.get(f"fields.{column}.{name}")

    def stats_mode_of(self, column: str, level: int | None = None) -> str:
        """The statistics mode of a column: the column's, the level's, or the table's."""
        own = self.field_option(column, "stats-mode")
        if own is not None:
            return own
        if level is not None and level in self.stats_mode_per_level:
            return self.stats_mode_per_level[level]
        return self.stats_mode

    def check_values(self) -> None:
        """Raise `InvalidRequest`, naming the option, if an option's text is not a valid value."""
        declared = (o for o in vars(CoreOptions).values() if isinstance(o, CoreOption))
        for option in (*(each for core in declared for each in core.options), *_WITHOUT_EFFECT):
            if option.name in self.mapping:
                _read(option, self.mapping)

    def check_supported(self) -> None:
        """Raise `UnsupportedOperation`, naming the option, if an option would change results and is not implemented."""
        for key, harmless in _NOT_BUILT.items():
            value = self.mapping.get(key)
            if value is not None and value.strip().lower() not in harmless:
                raise UnsupportedOperation(
                    f"option '{key}' is {value!r}, a feature of Paimon that is not supported here; "
                    f"supported: {', '.join(harmless) or 'leaving it out'}"
                )


_NOT_BUILT: dict[str, tuple[str, ...]] = {
    "type": ("table", "materialized-table"),
    "data-file.external-paths": ("",),
    "data-evolution.enabled": ("false",),
    "row-tracking.enabled": ("false",),
    "chain-table.enabled": ("false",),
    "scan.fallback-branch": (),
    "scan.primary-branch": (),
    "sequence.snapshot-ordering": ("false",),
    "primary-key.nullable": ("false",),
    "pk-clustering-override": ("false",),
    "query-auth.enabled": ("false",),
    "record-level.expire-time": (),
    "blob-field": (),
    "blob-descriptor-field": (),
    "blob-view-field": (),
    "vector-field": (),
    "cross-partition-upsert.index-ttl": (),
    "commit.force-create-snapshot": ("false",),
    "commit.strict-mode.last-safe-snapshot": (),
    "compaction.delete-ratio-threshold": ("0.2",),
    "compaction.file-num-limit": ("100000",),
    "dynamic-bucket.initial-buckets": (),
    "manifest.delete-file-drop-stats": ("false",),
    "write-buffer-for-append": ("false",),
    "write-buffer-spillable": ("true",),
    "write.batch-size": ("1024",),
    "orc.write.batch-size": ("1024",),
}
"""Options that are not implemented, with their harmless values.

Creating, writing and compacting a table with another value is rejected; reading it is not.
"""

_WITHOUT_EFFECT = (
    Option("consumer.mode", parsers.one_of("exactly-once", "at-least-once")),
    Option("deletion-vectors.bitmap64", parsers.boolean),
    Option("read.batch-size", parsers.integer),
)
"""Options that change nothing here, and how their values are read: streams are exactly-once, deletion vectors of both
forms are read and new ones are not written, and batches have a size that suits Arrow."""
