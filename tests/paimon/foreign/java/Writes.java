import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.paimon.append.AppendCompactCoordinator;
import org.apache.paimon.append.AppendCompactTask;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.deletionvectors.BitmapDeletionVector;
import org.apache.paimon.deletionvectors.DeletionVector;
import org.apache.paimon.deletionvectors.Bitmap64DeletionVector;
import org.apache.paimon.deletionvectors.append.AppendDeleteFileMaintainer;
import org.apache.paimon.deletionvectors.append.BaseAppendDeleteFileMaintainer;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.index.HashBucketAssigner;
import org.apache.paimon.index.IndexFileMeta;
import org.apache.paimon.io.CompactIncrement;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.io.DataIncrement;
import org.apache.paimon.manifest.FileKind;
import org.apache.paimon.manifest.IndexManifestEntry;
import org.apache.paimon.manifest.ManifestCommittable;
import org.apache.paimon.operation.BaseAppendFileStoreWrite;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.BucketMode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.table.sink.DynamicBucketRowKeyExtractor;
import org.apache.paimon.table.sink.TableCommitImpl;
import org.apache.paimon.table.sink.TableWriteImpl;
import org.apache.paimon.table.source.DataSplit;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.types.RowKind;

/** One write to a table, committed before the answer. */
final class Writes {
    private static final long BATCH_COMMIT_IDENTIFIER = Long.MAX_VALUE;

    private final FileStoreTable table;
    private final IOManager spill;

    private final Map<String, List<CommitMessage>> prepared;

    Writes(FileStoreTable table, IOManager spill, Map<String, List<CommitMessage>> prepared) {
        this.prepared = prepared;
        this.table = table;
        this.spill = spill;
    }

    Object run(String operation, JsonNode request) throws Exception {
        String user = request.has("user") ? request.get("user").asText() : "java-exam";
        long identifier =
                request.has("identifier") ? request.get("identifier").asLong() : BATCH_COMMIT_IDENTIFIER;
        switch (operation) {
            case "write":
                if (request.has("watermark")) {
                    return commitWithWatermark(
                            user, identifier, written(user, identifier, request, false),
                            request.get("watermark").asLong());
                }
                return commit(user, identifier, written(user, identifier, request, false), null);
            case "prepare":
                prepared.put(request.get("name").asText(), request.has("rows")
                        ? written(user, identifier, request, false)
                        : compacted(user, identifier, request));
                return null;
            case "commit":
                return commit(user, identifier, prepared.remove(request.get("name").asText()), null);
            case "overwrite":
                return commit(user, identifier, written(user, identifier, request, true),
                        Tables.strings(request.get("partition")));
            case "commit_again":
                return commitAgain(user, identifier, written(user, identifier, request, false));
            case "compact":
                return commit(user, identifier, compacted(user, identifier, request), null);
            case "delete_rows":
                return commit(user, identifier, withDeletionVectors(request), null);
            case "truncate":
                try (TableCommitImpl commit = table.newCommit(user)) {
                    commit.truncateTable();
                }
                return null;
            case "compact_manifests":
                try (TableCommitImpl commit = table.newCommit(user)) {
                    commit.compactManifests();
                }
                return null;
            default:
                throw new IllegalArgumentException("there is no operation " + operation);
        }
    }

    private Object commit(
            String user, long identifier, List<CommitMessage> messages, Map<String, String> overwritten)
            throws Exception {
        try (TableCommitImpl commit = table.newCommit(user)) {
            if (overwritten != null) {
                commit.withOverwrite(overwritten);
            }
            commit.commit(identifier, messages);
        }
        return table.snapshotManager().latestSnapshotId();
    }

    private Object commitWithWatermark(String user, long identifier, List<CommitMessage> messages, long watermark)
            throws Exception {
        ManifestCommittable committable = new ManifestCommittable(identifier, watermark);
        messages.forEach(committable::addFileCommittable);
        try (TableCommitImpl commit = table.newCommit(user)) {
            commit.commit(committable);
        }
        return table.snapshotManager().latestSnapshotId();
    }

    /** The number of commits that were new. */
    private Object commitAgain(String user, long identifier, List<CommitMessage> messages) throws Exception {
        Map<Long, List<CommitMessage>> commits = new HashMap<>();
        commits.put(identifier, messages);
        try (TableCommitImpl commit = table.newCommit(user)) {
            return commit.filterAndCommit(commits);
        }
    }

    /** Rows are `[kind, cell...]`. */
    private List<CommitMessage> written(String user, long identifier, JsonNode request, boolean replace)
            throws Exception {
        try (TableWriteImpl<?> write = table.newWrite(user).withIOManager(spill).withIgnorePreviousFiles(replace)) {
            boolean dynamic = table.bucketMode() == BucketMode.HASH_DYNAMIC;
            HashBucketAssigner assigner = dynamic ? assigner(user) : null;
            DynamicBucketRowKeyExtractor keys = dynamic ? new DynamicBucketRowKeyExtractor(table.schema()) : null;
            for (JsonNode cells : request.get("rows")) {
                List<JsonNode> values = new ArrayList<>();
                cells.forEach(values::add);
                GenericRow row = new GenericRow(table.rowType().getFieldCount());
                row.setRowKind(RowKind.fromShortString(values.get(0).asText()));
                for (int i = 0; i < row.getFieldCount(); i++) {
                    row.setField(i, Values.fromJson(values.get(i + 1), table.rowType().getTypeAt(i)));
                }
                if (dynamic) {
                    keys.setRecord(row);
                    write.write(row, assigner.assign(keys.partition(), keys.trimmedPrimaryKey().hashCode()));
                } else {
                    write.write(row);
                }
            }
            boolean wait = request.has("wait_compaction") && request.get("wait_compaction").asBoolean();
            return write.prepareCommit(wait, identifier);
        }
    }

    private HashBucketAssigner assigner(String user) {
        return new HashBucketAssigner(
                table.snapshotManager(), user, table.store().newIndexFileHandler(), 1, 1, 0,
                table.coreOptions().dynamicBucketTargetRowNum(), table.coreOptions().dynamicBucketMaxBuckets());
    }

    private List<CommitMessage> compacted(String user, long identifier, JsonNode request) throws Exception {
        if (table.bucketMode() == BucketMode.BUCKET_UNAWARE) {
            List<CommitMessage> messages = new ArrayList<>();
            BaseAppendFileStoreWrite write =
                    (BaseAppendFileStoreWrite) (Object) table.store().newWrite(user);
            for (AppendCompactTask task : new AppendCompactCoordinator(table, false).run()) {
                messages.add(task.doCompact(table, write));
            }
            return messages;
        }
        try (TableWriteImpl<?> write = table.newWrite(user).withIOManager(spill)) {
            Map<BinaryRow, Set<Integer>> buckets = new LinkedHashMap<>();
            table.newSnapshotReader().readFileIterator().forEachRemaining(entry ->
                    buckets.computeIfAbsent(entry.partition().copy(), p -> new LinkedHashSet<>()).add(entry.bucket()));
            for (Map.Entry<BinaryRow, Set<Integer>> entry : buckets.entrySet()) {
                for (int bucket : entry.getValue()) {
                    write.compact(entry.getKey(), bucket, request.get("full").asBoolean());
                }
            }
            return write.prepareCommit(true, identifier);
        }
    }

    /** Marks the rows at `positions` of each file as deleted: what DELETE does in an append table. */
    private List<CommitMessage> withDeletionVectors(JsonNode request) throws Exception {
        boolean wide = table.coreOptions().deletionVectorBitmap64();
        Map<BinaryRow, List<DataFileMeta>> partitions = new LinkedHashMap<>();
        for (Split split : table.newReadBuilder().newScan().plan().splits()) {
            DataSplit data = (DataSplit) split;
            partitions.computeIfAbsent(data.partition(), p -> new ArrayList<>()).addAll(data.dataFiles());
        }
        List<CommitMessage> messages = new ArrayList<>();
        for (Map.Entry<BinaryRow, List<DataFileMeta>> entry : partitions.entrySet()) {
            AppendDeleteFileMaintainer maintainer = BaseAppendDeleteFileMaintainer.forUnawareAppend(
                    table.store().newIndexFileHandler(), table.snapshotManager().latestSnapshot(), entry.getKey());
            for (DataFileMeta file : entry.getValue()) {
                DeletionVector vector = wide ? new Bitmap64DeletionVector() : new BitmapDeletionVector();
                for (JsonNode position : request.get("positions")) {
                    if (position.asLong() < file.rowCount()) {
                        vector.delete(position.asLong());
                    }
                }
                maintainer.notifyNewDeletionVector(file.fileName(), vector);
            }
            List<IndexFileMeta> added = new ArrayList<>();
            List<IndexFileMeta> removed = new ArrayList<>();
            for (IndexManifestEntry index : maintainer.persist()) {
                (index.kind() == FileKind.ADD ? added : removed).add(index.indexFile());
            }
            messages.add(new CommitMessageImpl(
                    entry.getKey(), 0, null,
                    new DataIncrement(List.of(), List.of(), List.of(), added, removed),
                    CompactIncrement.emptyIncrement()));
        }
        return messages;
    }
}
