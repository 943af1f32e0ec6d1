"""The names of Paimon's options, to distinguish misspelt options from those of other software.

Tables may carry unknown options of other engines and users, which are kept. But a new option that is very similar to a
known one is rejected, because a setting that silently has no effect is worse than an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.base.arguments import did_you_mean
from forebay.base.errors import InvalidRequest

LIKENESS = 0.8
"""The minimum similarity to a known name for a name to count as a misspelling."""

_OPEN_PREFIXES = (
    "fields.",
    "file-index.",
    "parquet.",
    "orc.",
    "avro.",
    "commit.callback.",
    "tag.callback.",
    "fs.",
    "fluss.",
)
"""Names with these prefixes contain columns, formats or classes, or belong to a stream, so they cannot be listed."""


def option_texts(options: Mapping[str, Any] | None) -> dict[str, str]:
    """The options given by a user, as the text that tables store: True is `true`, 4 is `4`.

    Raises `InvalidRequest` for names that look like misspellings, and for values that are not scalars.
    """
    texts = {}
    for key, value in (options or {}).items():
        check_spelling(key)
        if isinstance(value, bool):
            value = "true" if value else "false"
        if not isinstance(value, str | int | float):
            raise InvalidRequest(f"option '{key}' is {value!r}: give a text, a number, True or False")
        texts[key] = str(value)
    return texts


def check_spelling(key: str) -> None:
    """Raise `InvalidRequest` if `key` is not an option of Paimon, but very similar to one."""
    if key in KNOWN or key.startswith(_OPEN_PREFIXES):
        return
    hint = did_you_mean(key.lower().replace("_", "-"), KNOWN, LIKENESS)
    if hint:
        raise InvalidRequest(f"there is no option '{key}'{hint}")


KNOWN = frozenset(
    """
add-column-before-partition aggregation.remove-record-on-delete allow-upper-case
alter-column-null-to-not-null.disabled alter-table-cascade async-file-write auto-create batch-scan-mode
blob-as-descriptor blob-compaction.enabled blob-descriptor-field blob-field blob-view-field blob-view.resolve.enabled
blob-write-null-on-fetch-failure blob-write-null-on-missing-file blob.copy-buffer-size blob.split-by-file-size
blob.stored-descriptor-fields blob.target-file-size branch bucket bucket-append-ordered bucket-function.type
bucket-key cache-enabled cache-page-size cache.deletion-vectors.max-num cache.expiration-interval
cache.expire-after-access cache.expire-after-write cache.manifest.max-memory cache.manifest.small-file-memory
cache.manifest.small-file-threshold cache.manifest.soft-values cache.partition.max-num
cache.snapshot.max-num-per-table case-sensitive catalog-key catalog-options-table.enabled
catalog.create-underlying-session-catalog chain-table.chain-partition-keys chain-table.enabled
chain-table.split.key-range-enabled chain-table.streaming.merge-snapshot changelog-file.compression
changelog-file.format changelog-file.prefix changelog-file.stats-mode changelog-producer
changelog-producer.compaction-interval changelog-producer.lookup-wait changelog-producer.row-deduplicate
changelog-producer.row-deduplicate-ignore-fields changelog.num-retained.max changelog.num-retained.min
changelog.precommit-compact changelog.precommit-compact.buffer-size changelog.precommit-compact.thread-num
changelog.time-retained client-pool-cache.eviction-interval-ms client-pool-cache.keys client-pool-size
clustering.columns clustering.history-partition.idle-to-full-sort clustering.history-partition.limit
clustering.incremental clustering.incremental.mode clustering.incremental.optimize-write clustering.strategy
commit.callback.#.param commit.callbacks commit.custom-listeners commit.discard-duplicate-files commit.force-compact
commit.force-create-snapshot commit.max-retries commit.max-retry-wait commit.min-retry-wait
commit.strict-mode.last-safe-snapshot commit.timeout commit.user-prefix compaction.bucket-distribution-strategy
compaction.delete-ratio-threshold compaction.file-num-limit compaction.force-rewrite-all-files
compaction.force-up-level-0 compaction.incremental-size-threshold compaction.max-size-amplification-percent
compaction.min.file-num compaction.offpeak-ratio compaction.offpeak.end.hour compaction.offpeak.start.hour
compaction.optimization-interval compaction.size-ratio compaction.skip-expired-partitions compaction.small-file-ratio
compaction.total-size-threshold consumer-id consumer.changelog-only consumer.expiration-time consumer.ignore-progress
consumer.mode continuous.discovery-interval cross-partition-upsert.bootstrap-parallelism
cross-partition-upsert.index-ttl data-evolution.compaction.rewrite-row-ids data-evolution.enabled
data-evolution.merge-into.file-pruning data-evolution.merge-into.source-persist
data-evolution.reassign.skip-contiguous-row-count data-evolution.row-id-conflict-rewrite.max-size
data-evolution.row-sidecar.enabled data-evolution.row-sidecar.max-selected-rows
data-evolution.row-sidecar.max-selection-ratio data-file.external-paths data-file.external-paths.specific-fs
data-file.external-paths.strategy data-file.external-paths.weights data-file.path-directory data-file.prefix
data-file.thin-mode deduplicate.ignore-delete default-database defaultDatabase delete-file.thread-num
delete.force-produce-changelog deletion-vector.index-file.target-size deletion-vectors.bitmap64
deletion-vectors.enabled deletion-vectors.merge-on-read deletion-vectors.modifiable disable-create-table-in-default-db
disable-explicit-type-casting dlf.access-key-id dlf.access-key-secret dlf.oss-endpoint dlf.region dlf.security-token
dlf.signing-algorithm dlf.token-ecs-metadata-url dlf.token-ecs-role-name dlf.token-loader dlf.token-path
dynamic-bucket.assigner-parallelism dynamic-bucket.initial-buckets dynamic-bucket.max-buckets
dynamic-bucket.target-row-num dynamic-partition-overwrite end-input.check-partition-expire end-input.watermark
file-index.in-manifest-threshold file-index.read.enabled file-io.allow-cache file-operation.thread-num
file-reader-async-threshold file.block-size file.compression file.compression.per.level file.compression.zstd-level
file.format file.format.per.level file.suffix.include.compression filesystem.job-level-settings.enabled
first-row.ignore-delete force-lookup forebay.integer-overflow
format-table.commit-hive-sync-url format-table.enabled
format-table.file.compression format-table.implementation format-table.partition-path-only-value
format-table.repair.collect-statistics format-table.scan.list-parallelism format-table.statistics.parallelism
full-compaction.delta-commits full-text-index.search-mode global-index.build.max-parallelism
global-index.build.max-shard global-index.column-update-action global-index.enabled global-index.external-path
global-index.row-count-per-shard global-index.search-mode global-index.thread-num hadoop-conf-dir header.User-Agent
hive-conf-dir hive.skip-update-stats ignore-delete ignore-update-before incremental-between
incremental-between-scan-mode incremental-between-tag-to-snapshot incremental-between-timestamp
incremental-to-auto-tag index-file-in-data-file-dir io-cache.enabled io-cache.policy io-cache.whitelist-path
key-value.sequence_number.enabled legacy-timestamp-mapping.enabled lineage-use-catalog-key-as-identifier
local-cache.block-size local-cache.dir local-cache.enabled local-cache.max-size local-cache.whitelist
local-kv-db.block-size local-merge-buffer-size local-sort.max-num-file-handles location-in-properties
lock-acquire-timeout lock-check-max-sleep lock-key-max-length lock.enabled lock.type log.scan
log.scan.remove-normalize log.scan.timestamp-millis lookup-compact lookup-compact.max-interval lookup-wait
lookup.async lookup.async-thread-number lookup.blob-as-descriptor lookup.bootstrap-parallelism lookup.cache
lookup.cache-file-retention lookup.cache-max-disk-size lookup.cache-max-memory-size lookup.cache-rows
lookup.cache-spill-compression lookup.cache.bloom.filter.enabled lookup.cache.bloom.filter.fpp
lookup.cache.high-priority-pool-ratio lookup.continuous.discovery-interval lookup.dynamic-partition
lookup.dynamic-partition.refresh-interval lookup.dynamic-partition.refresh.async lookup.hash-load-factor
lookup.merge-buffer-size lookup.merge-records-threshold lookup.refresh.async
lookup.refresh.async.pending-snapshot-count lookup.refresh.full-load-threshold lookup.refresh.time-periods-blacklist
lookup.remote-file.enabled lookup.remote-file.level-threshold manifest-sort.enabled manifest-sort.max-rewrite-size
manifest-sort.partition-field manifest.compression manifest.delete-file-drop-stats
manifest.full-compaction-threshold-size manifest.merge-min-count manifest.merge-optimize.enabled
manifest.target-file-size materialized-table.definition-query materialized-table.interval-freshness
materialized-table.interval-freshness.time-unit materialized-table.logical-refresh-mode
materialized-table.refresh-handler-bytes materialized-table.refresh-handler-description
materialized-table.refresh-mode materialized-table.refresh-status merge-engine metadata.stats-dense-store
metadata.stats-keep-first-n-columns metadata.stats-mode metadata.stats-mode.per.level metastore metastore.client.class
metastore.partitioned-table metastore.tag-to-partition metastore.tag-to-partition.preview num-levels
num-sorted-run.compaction-trigger num-sorted-run.stop-trigger orc.column.encoding.direct orc.dictionary.key.threshold
orc.timestamp-ltz.legacy.type orc.write.batch-size overwrite-upgrade page-size paimon.respect.minmaxsplitsize.enabled
paimon.split.openfilecost parquet.enable.dictionary parquet.variant.shreddingSchema partial-update.ignore-delete
partial-update.remove-record-on-delete partial-update.remove-record-on-sequence-group partition partition.default-name
partition.end-input-to-done partition.expiration-batch-size partition.expiration-check-interval
partition.expiration-max-num partition.expiration-strategy partition.expiration-time partition.idle-time-to-done
partition.idle-time-to-report-statistic partition.legacy-name partition.mark-done-action
partition.mark-done-action.custom.class partition.mark-done-action.http.params partition.mark-done-action.http.url
partition.mark-done-action.mode partition.mark-done.recover-from-state partition.sink-strategy partition.time-interval
partition.timestamp-format.strict partition.timestamp-formatter partition.timestamp-pattern path
pk-bitmap.index.columns pk-btree.index.columns pk-clustering-override pk-full-text.index.columns
pk-multivalue.index.columns pk-vector.index.columns postpone.batch-write-fixed-bucket
postpone.batch-write-fixed-bucket.max-parallelism postpone.batch-write-fixed-bucket.rescale-load-factor
postpone.default-bucket-num postpone.merge-on-read postpone.target-row-num-per-bucket postpone.target-size-per-bucket
precommit-compact primary-key primary-key.nullable query-auth.enabled read.allow.fullScan read.batch-size
read.changelog read.shuffle-bucket-with-partition read.stream.maxBytesPerTrigger read.stream.maxFilesPerTrigger
read.stream.maxRowsPerTrigger read.stream.maxTriggerDelayMs read.stream.minRowsPerTrigger record-level.expire-time
record-level.time-field requiredSparkConfsCheck.enabled resolving-file-io.enabled row-tracking.enabled
row-tracking.partition-group-on-commit rowkind.field scalar-index.search-mode scan.bounded scan.bounded.watermark
scan.bucket scan.creation-time-millis scan.dedicated-split-generation scan.fallback-branch
scan.fallback-branch.read-fail-fast scan.fallback-delta-branch scan.fallback-snapshot-branch
scan.file-creation-time-millis scan.ignore-corrupt-files scan.ignore-lost-files scan.infer-parallelism
scan.infer-parallelism.max scan.manifest.parallelism scan.max-snapshot.count scan.max-splits-per-task scan.mode
scan.parallelism scan.partitions scan.plan-auto-tag-for-read.time-retained scan.plan-sort-partition
scan.primary-branch scan.remove-normalize scan.snapshot-id scan.split-enumerator.batch-size scan.split-enumerator.mode
scan.tag-name scan.timestamp scan.timestamp-millis scan.version scan.watermark scan.watermark.alignment.group
scan.watermark.alignment.max-drift scan.watermark.alignment.update-interval scan.watermark.emit.strategy
scan.watermark.idle-timeout sequence.field sequence.field.sort-order sequence.snapshot-ordering
sink.clustering.by-columns sink.clustering.sample-factor sink.clustering.sort-in-cluster sink.clustering.strategy
sink.committer-cpu sink.committer-memory sink.committer-operator-chaining sink.coordinator-commit.enabled
sink.cross-partition.managed-memory sink.key-only-deletes.enabled sink.managed.writer-buffer-memory
sink.operator-uid.suffix sink.parallelism sink.process-time-zone sink.savepoint.auto-tag
sink.use-managed-memory-allocator sink.watermark-time-zone sink.writer-coordinator.cache-expire-after-access
sink.writer-coordinator.cache-memory sink.writer-coordinator.cache-soft-values sink.writer-coordinator.enabled
sink.writer-coordinator.page-size sink.writer-coordinator.prefetch-manifests sink.writer-cpu sink.writer-memory
sink.writer-refresh-detectors snapshot.clean-empty-directories snapshot.expire.clean-empty-directories
snapshot.expire.execution-mode snapshot.expire.limit snapshot.ignore-empty-commit snapshot.num-retained.max
snapshot.num-retained.min snapshot.time-retained snapshot.watermark-idle-timeout
sort-compaction.local-sample.magnification sort-compaction.range-strategy sort-engine sort-spill-buffer-size
sort-spill-threshold source.checkpoint-align.enabled source.checkpoint-align.timeout source.operator-uid.suffix
source.split.open-file-cost source.split.target-size source.split.target-size-with-column-pruning spill-compression
spill-compression.zstd-level stream-scan-mode streaming-read-append-overwrite streaming-read-overwrite
streaming-read.shuffle-bucket-with-partition streaming.read.snapshot.delay sync-all-properties
table-read.sequence-number.enabled table.type tag.automatic-completion tag.automatic-creation
tag.batch.customized-name tag.callback.#.param tag.callbacks tag.create-success-file tag.creation-delay
tag.creation-period tag.creation-period-duration tag.default-time-retained tag.num-retained-max tag.period-formatter
tag.time-expire-enabled target-file-row-num target-file-size token token.provider type
unaware-bucket.compaction.parallelism unaware-bucket.no-shuffle uri v1Function.enabled variant.inferShreddingSchema
variant.shredding.adaptive.maxInferBufferRow variant.shredding.adaptive.retentionRatio variant.shredding.inferenceMode
variant.shredding.maxInferBufferRow variant.shredding.maxSchemaDepth variant.shredding.maxSchemaWidth
variant.shredding.minFieldCardinalityRatio variant.shreddingSchema vector-field vector-index.search-mode
vector-search.distribute.enabled vector-search.lateral-join.batch-size vector-search.lateral-join.parallelism
vector.file.format vector.target-file-size visibility-callback.check-interval visibility-callback.enabled
visibility-callback.timeout warehouse write-buffer-for-append write-buffer-size write-buffer-spill.max-disk-size
write-buffer-spillable write-max-writers-to-spill write-only write.batch-memory write.batch-size write.compaction-skip
write.data-evolution.update-conflict-retry.max-attempts write.data-evolution.update-conflict-retry.wait-ms
write.hive-style-dynamic-partition.enabled write.merge-schema write.merge-schema.explicit-cast
write.merge-schema.type-widening write.sequence-number-init-mode write.use-v2-write zorder.var-length-contribution
""".split()  # noqa: SIM905 - a list of 500 literals would take 500 lines
)
"""The options of tables, and those that Flink, Spark and Hive store in tables (apache/paimon, version 2)."""
