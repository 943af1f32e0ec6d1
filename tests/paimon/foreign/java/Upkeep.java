import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.paimon.consumer.Consumer;
import org.apache.paimon.consumer.ConsumerManager;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.query.LocalTableQuery;
import org.apache.paimon.table.sink.RowKeyExtractor;
import org.apache.paimon.table.source.DataSplit;

/** Tags, branches, consumers, rollback, and the lookup of single rows by key. */
final class Upkeep {
    private final FileStoreTable table;
    private final IOManager spill;

    Upkeep(FileStoreTable table, IOManager spill) {
        this.table = table;
        this.spill = spill;
    }

    Object run(String operation, JsonNode request) throws Exception {
        switch (operation) {
            case "tag":
                return tag(request);
            case "branch":
                return branch(request);
            case "rollback":
                if (request.has("tag")) {
                    table.rollbackTo(request.get("tag").asText());
                } else {
                    table.rollbackTo(request.get("snapshot").asLong());
                }
                return null;
            case "consumer":
                return consumer(request);
            case "lookup":
                return lookup(request);
            default:
                throw new IllegalArgumentException("there is no operation " + operation);
        }
    }

    private Object tag(JsonNode request) {
        String tag = request.get("tag").asText();
        String what = request.has("what") ? request.get("what").asText() : "create";
        Duration retained = request.has("retained_ms") ? Duration.ofMillis(request.get("retained_ms").asLong()) : null;
        switch (what) {
            case "create":
                if (!request.has("snapshot")) {
                    table.createTag(tag, retained);
                } else if (retained == null) {
                    table.createTag(tag, request.get("snapshot").asLong());
                } else {
                    table.createTag(tag, request.get("snapshot").asLong(), retained);
                }
                return null;
            case "replace":
                table.replaceTag(tag, request.get("snapshot").asLong(), retained);
                return null;
            case "rename":
                table.renameTag(tag, request.get("to").asText());
                return null;
            case "delete":
                table.deleteTag(tag);
                return null;
            case "expire":
                return table.newTagAutoManager().getTagTimeExpire().expire();
            default:
                throw new IllegalArgumentException("nothing to do with tag " + request);
        }
    }

    private Object branch(JsonNode request) {
        String branch = request.get("branch").asText();
        switch (request.get("what").asText()) {
            case "create":
                table.createBranch(branch);
                return null;
            case "create from tag":
                table.createBranch(branch, request.get("tag").asText());
                return null;
            case "fast forward":
                table.fastForward(branch);
                return null;
            case "rename":
                table.renameBranch(branch, request.get("to").asText());
                return null;
            case "delete":
                table.deleteBranch(branch);
                return null;
            default:
                throw new IllegalArgumentException("nothing to do with branch " + request);
        }
    }

    /** Sets a consumer if the request says where it goes on; all consumers. */
    private Object consumer(JsonNode request) throws Exception {
        ConsumerManager consumers = new ConsumerManager(table.fileIO(), table.location());
        if (request.has("next")) {
            consumers.resetConsumer(request.get("consumer").asText(), new Consumer(request.get("next").asLong()));
        }
        return consumers.consumers();
    }

    /** The rows of `keys` (values of the primary key), in this order; null for those that are not there. */
    private Object lookup(JsonNode request) throws Exception {
        Map<BinaryRow, Map<Integer, List<DataFileMeta>>> files = new LinkedHashMap<>();
        for (DataSplit split : table.newSnapshotReader().read().dataSplits()) {
            files.computeIfAbsent(split.partition().copy(), p -> new LinkedHashMap<>())
                    .computeIfAbsent(split.bucket(), b -> new ArrayList<>())
                    .addAll(split.dataFiles());
        }
        List<Object> found = new ArrayList<>();
        try (LocalTableQuery query = table.newLocalTableQuery().withIOManager(spill)) {
            files.forEach((partition, buckets) -> buckets.forEach(
                    (bucket, members) -> query.refreshFiles(partition, bucket, List.of(), members)));
            RowKeyExtractor extractor = table.createRowKeyExtractor();
            for (JsonNode key : request.get("keys")) {
                GenericRow row = new GenericRow(table.rowType().getFieldCount());
                for (int i = 0; i < table.primaryKeys().size(); i++) {
                    int column = table.rowType().getFieldIndex(table.primaryKeys().get(i));
                    row.setField(column, Values.fromJson(key.get(i), table.rowType().getTypeAt(column)));
                }
                extractor.setRecord(row);
                InternalRow value = null;
                for (int bucket : files.getOrDefault(extractor.partition(), Map.of()).keySet()) {
                    InternalRow here = query.lookup(extractor.partition(), bucket, extractor.trimmedPrimaryKey());
                    value = here == null ? value : here;
                }
                found.add(value == null ? null : Values.rowToJson(value, table.rowType()));
            }
        }
        return found;
    }
}
