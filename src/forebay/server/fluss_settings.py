"""Settings of a Fluss server, 0.5 to 1.0, that Forebay knows and does not use.

Source: ConfigOptions and config.sh of Apache Fluss. Names that Forebay uses are in `forebay.server.config`.
"""

from __future__ import annotations

_NO_EFFECT_NAMES = """
    acl.notification.expiration-time
    client.connect-timeout client.filesystem.security.token.renewal.backoff
    client.filesystem.security.token.renewal.time-ratio client.id client.lookup.batch-timeout
    client.lookup.max-batch-size client.lookup.max-inflight-requests client.lookup.max-retries
    client.lookup.queue-size client.metrics.enabled client.remote-file.download-thread-num client.request-timeout
    client.scanner.io.tmpdir client.scanner.kv.batch-strategy client.scanner.kv.fetch.max-bytes
    client.scanner.log.check-crc client.scanner.log.fetch.max-bytes client.scanner.log.fetch.max-bytes-for-bucket
    client.scanner.log.fetch.min-bytes client.scanner.log.fetch.wait-max-time client.scanner.log.max-poll-records
    client.scanner.log.read-preference client.scanner.remote-log.prefetch-num
    client.security.enable-plugin-discovery client.security.protocol client.security.sasl.jaas.config
    client.security.sasl.mechanism client.security.sasl.password client.security.sasl.username client.writer.acks
    client.writer.batch-size client.writer.batch-timeout client.writer.bucket.no-key-assigner
    client.writer.buffer.memory-size client.writer.buffer.page-size client.writer.buffer.per-request-memory-size
    client.writer.buffer.wait-timeout client.writer.dynamic-batch-size.enabled
    client.writer.dynamic-create-partition.enabled client.writer.enable-idempotence
    client.writer.kv-backpressure.max-throttle client.writer.legacy.batch-size
    client.writer.max-inflight-requests-per-bucket client.writer.request-max-size client.writer.retries
    config.providers
    coordinator.bind-host coordinator.bind-port coordinator.host coordinator.io-pool.size
    coordinator.lifecycle-throttler.inflight-timeout coordinator.lifecycle-throttler.timeout-check-interval
    coordinator.offline-leader.retry-delay coordinator.port coordinator.producer-offsets.cleanup-interval
    data.dir data.dirs
    env.java.home env.java.opts.all env.java.opts.coordinator-server env.java.opts.tablet-server env.log.dir
    env.log.level env.log.max env.pid.dir env.ssh.opts
    kv.backpressure.l0-slowdown-trigger kv.flush.thread-num kv.leader-replica.memory-reserved
    kv.recover.log-record-batch.max-size kv.recover.remote-log.download-threads kv.recover.remote-log.prefetch-num
    kv.rocksdb.block.blocksize kv.rocksdb.block.cache-index-and-filter-blocks
    kv.rocksdb.block.cache-index-and-filter-blocks-with-high-priority kv.rocksdb.block.cache-size
    kv.rocksdb.block.metadata-blocksize kv.rocksdb.block.pin-l0-filter-and-index-blocks-in-cache
    kv.rocksdb.block.pin-top-level-index-and-filter kv.rocksdb.bloom-filter.bits-per-key
    kv.rocksdb.bloom-filter.block-based-mode kv.rocksdb.compaction.level.max-size-level-base
    kv.rocksdb.compaction.level.target-file-size-base kv.rocksdb.compaction.level.use-dynamic-size
    kv.rocksdb.compaction.style kv.rocksdb.compression.per.level kv.rocksdb.files.open kv.rocksdb.log.dir
    kv.rocksdb.log.file-num kv.rocksdb.log.level kv.rocksdb.log.max-file-size
    kv.rocksdb.shared-rate-limiter-bytes-per-sec kv.rocksdb.shared-rate-limiter.bytes-per-sec kv.rocksdb.thread.num
    kv.rocksdb.use-bloom-filter kv.rocksdb.write-batch-size kv.rocksdb.writebuffer.count
    kv.rocksdb.writebuffer.number-to-merge kv.rocksdb.writebuffer.size kv.snapshot.lease-expiration-check-interval
    kv.snapshot.lease.expiration-check-interval kv.snapshot.num-retained kv.snapshot.scheduler-thread-num
    kv.snapshot.transfer-thread-num
    lake.tiering.auto-expire-snapshot lake.tiering.io.tmp.dirs
    lakehouse.storage
    log.fetch.max-bytes log.fetch.max-bytes-for-bucket log.file-preallocate log.flush.interval-messages
    log.flush.offset.checkpoint-interval log.index.file-size log.replica.fetch-backoff-interval
    log.replica.fetch-operation-purge-number log.replica.fetch.backoff-interval log.replica.fetch.max-bytes
    log.replica.fetch.max-bytes-for-bucket log.replica.fetch.min-bytes log.replica.fetch.wait-max-time
    log.replica.fetcher-number log.replica.max-lag-time log.replica.min-in-sync-replicas-number
    log.replica.write-operation-purge-number log.retention.check-interval log.retention.roll-active-segment.enabled
    netty.client.allocator.heap-buffer-first netty.client.num-network-threads
    netty.server.max-queued-historical-requests netty.server.num-network-threads netty.server.num-worker-threads
    plugin.classloader.parent-first-patterns.additional plugin.classloader.parent-first-patterns.default
    recovery.zookeeper.client.connection-timeout recovery.zookeeper.client.max-retry-attempts
    recovery.zookeeper.client.retry-wait recovery.zookeeper.client.session-timeout
    remote.fs.write-buffer-size remote.log-manager.thread-pool-size remote.log.data-transfer-thread-num
    security.acl.principal.ignore-case
    server.background.threads server.buffer.memory-size server.buffer.page-size
    server.buffer.per-request-memory-size server.buffer.wait-timeout server.data-disk.check-interval
    server.data-disk.write-recover-ratio server.historical-partition.lookup-cache.max-disk-ratio
    server.historical-partition.lookuper-cache.expire-after-access server.historical-partition.thread-pool.max-size
    server.io.tmpdir
    tablet-server.advertised-resource.cpu-cores tablet-server.advertised-resource.memory-size
    tablet-server.bind-host tablet-server.bind-port tablet-server.controlled-shutdown.max-retries
    tablet-server.controlled-shutdown.retry-interval tablet-server.host tablet-server.port tablet-server.rack
    zookeeper.address zookeeper.client.config-path zookeeper.client.connection-timeout
    zookeeper.client.ensemble-tracker zookeeper.client.max-buffer-size zookeeper.client.max-inflight-requests
    zookeeper.client.max-retry-attempts zookeeper.client.retry-wait zookeeper.client.session-timeout
    zookeeper.client.tolerate-suspended-connections zookeeper.path.root
"""
NO_EFFECT = frozenset(_NO_EFFECT_NAMES.split())
"""Settings that mean nothing on a single process, such as those of ZooKeeper, thread pools and RocksDB."""

_UNSERVED_NAMES = {
    "access control lists": """
        authorizer.enabled authorizer.type super.users
    """,
    "the Kafka protocol": """
        kafka.connection.max-idle-time kafka.database kafka.enabled kafka.listener.names
    """,
    "other metrics reporters": """
        metrics.reporter.influxdb.bucket metrics.reporter.influxdb.database metrics.reporter.influxdb.host-url
        metrics.reporter.influxdb.org metrics.reporter.influxdb.push-interval metrics.reporter.influxdb.token
        metrics.reporter.influxdb.version metrics.reporter.jmx.port metrics.reporter.prometheus-push.delete-on-shutdown
        metrics.reporter.prometheus-push.grouping-key metrics.reporter.prometheus-push.host-url
        metrics.reporter.prometheus-push.job-name metrics.reporter.prometheus-push.password
        metrics.reporter.prometheus-push.push-interval metrics.reporter.prometheus-push.random-job-name-suffix
        metrics.reporter.prometheus-push.username
    """,
    "remote log storage": """
        remote.data.dir remote.data.dirs remote.data.dirs.strategy remote.data.dirs.weights
    """,
}
UNSERVED = {name: feature for feature, names in _UNSERVED_NAMES.items() for name in names.split()}
"""Settings of features that Forebay does not have, with the feature in words."""
