import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.options.ExpireConfig;
import org.apache.paimon.predicate.Predicate;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.schema.SchemaChange;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.source.DataSplit;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.table.source.StreamTableScan;
import org.apache.paimon.table.source.TableRead;
import org.apache.paimon.table.source.TableScan;
import org.apache.paimon.types.DataTypeJsonParser;
import org.apache.paimon.types.RowType;

/** Making, changing, reading and looking after tables of one warehouse. Writing is in {@link Writes}. */
final class Tables {
    private final Catalog catalog;
    private final IOManager spill;
    /** Streams that are under way, by the name that the request gave them. */
    private final Map<String, StreamTableScan> streams = new HashMap<>();
    /** Work that is prepared and not committed, by the name that the request gave it. */
    private final Map<String, List<CommitMessage>> prepared = new HashMap<>();

    Tables(String scratch) {
        this.spill = IOManager.create(scratch);
        this.catalog = null;
    }

    private Tables(Catalog catalog, IOManager spill) {
        this.catalog = catalog;
        this.spill = spill;
    }

    /** Each request names its `warehouse`; the operations on one of them share a catalog without a cache. */
    void register(Map<String, PaimonExam.Operation> operations) {
        Map<String, Tables> warehouses = new HashMap<>();
        String[] names = {
            "create", "alter", "schema", "write", "prepare", "commit", "commit_again", "compact", "delete_rows", "overwrite", "read", "plan", "stream",
            "expire", "tag", "branch", "rollback", "consumer", "lookup", "truncate", "compact_manifests"
        };
        for (String name : names) {
            operations.put(name, request -> {
                String warehouse = request.get("warehouse").asText();
                Tables tables = warehouses.get(warehouse);
                if (tables == null) {
                    org.apache.paimon.options.Options options = new org.apache.paimon.options.Options();
                    options.set("warehouse", warehouse);
                    options.set("cache-enabled", "false");
                    Catalog catalog = CatalogFactory.createCatalog(CatalogContext.create(options));
                    tables = new Tables(catalog, spill);
                    warehouses.put(warehouse, tables);
                }
                return tables.run(name, request);
            });
        }
    }

    private Object run(String operation, JsonNode request) throws Exception {
        switch (operation) {
            case "create":
                return create(request);
            case "alter":
                return alter(request);
            case "schema":
                return ((FileStoreTable) table(request)).schema().toString();
            case "read":
                return read(request);
            case "plan":
                return plan(request);
            case "stream":
                return stream(request);
            case "expire":
                return expire(request);
            case "tag":
            case "branch":
            case "rollback":
            case "consumer":
            case "lookup":
                return new Upkeep((FileStoreTable) table(request), spill).run(operation, request);
            default:
                return new Writes((FileStoreTable) table(request), spill, prepared).run(operation, request);
        }
    }

    private Identifier identifier(JsonNode request) {
        String[] parts = request.get("table").asText().split("\\.", 2);
        return Identifier.create(parts[0], parts[1]);
    }

    private Table table(JsonNode request) throws Exception {
        Table table = catalog.getTable(identifier(request));
        return request.has("options") ? table.copy(strings(request.get("options"))) : table;
    }

    static Map<String, String> strings(JsonNode json) {
        Map<String, String> map = new LinkedHashMap<>();
        if (json != null) {
            json.fields().forEachRemaining(e -> map.put(e.getKey(), e.getValue().isNull() ? null : e.getValue().asText()));
        }
        return map;
    }

    private static List<String> list(JsonNode json) {
        List<String> list = new ArrayList<>();
        if (json != null) {
            json.forEach(e -> list.add(e.asText()));
        }
        return list;
    }

    private Object create(JsonNode request) throws Exception {
        Schema.Builder schema = Schema.newBuilder();
        for (JsonNode field : request.get("fields")) {
            schema.column(field.get("name").asText(), DataTypeJsonParser.parseDataType(field.get("type")));
        }
        schema.primaryKey(list(request.get("primary_keys"))).partitionKeys(list(request.get("partition_keys")));
        schema.options(strings(request.get("options")));
        catalog.createDatabase(identifier(request).getDatabaseName(), true);
        catalog.createTable(identifier(request), schema.build(), false);
        return null;
    }

    private Object alter(JsonNode request) throws Exception {
        List<SchemaChange> changes = new ArrayList<>();
        for (JsonNode change : request.get("changes")) {
            String[] name = change.get(1).asText().split("/");
            switch (change.get(0).asText()) {
                case "add":
                    changes.add(SchemaChange.addColumn(
                            name, DataTypeJsonParser.parseDataType(change.get(2)), null, null));
                    break;
                case "rename":
                    changes.add(SchemaChange.renameColumn(name, change.get(2).asText()));
                    break;
                case "drop":
                    changes.add(SchemaChange.dropColumn(name));
                    break;
                case "type":
                    changes.add(SchemaChange.updateColumnType(
                            name, DataTypeJsonParser.parseDataType(change.get(2)), false));
                    break;
                case "option":
                    changes.add(SchemaChange.setOption(change.get(1).asText(), change.get(2).asText()));
                    break;
                case "remove option":
                    changes.add(SchemaChange.removeOption(change.get(1).asText()));
                    break;
                case "table comment":
                    changes.add(SchemaChange.updateComment(change.get(1).asText()));
                    break;
                case "nullable":
                    changes.add(SchemaChange.updateColumnNullability(name, change.get(2).asBoolean()));
                    break;
                case "comment":
                    changes.add(SchemaChange.updateColumnComment(name, change.get(2).asText()));
                    break;
                case "default":
                    changes.add(SchemaChange.updateColumnDefaultValue(
                            name, change.get(2).isNull() ? null : change.get(2).asText()));
                    break;
                case "first":
                    changes.add(SchemaChange.updateColumnPosition(SchemaChange.Move.first(name[0])));
                    break;
                case "after":
                    changes.add(SchemaChange.updateColumnPosition(
                            SchemaChange.Move.after(name[0], change.get(2).asText())));
                    break;
                default:
                    throw new IllegalArgumentException("there is no schema change " + change);
            }
        }
        catalog.alterTable(identifier(request), changes, false);
        return null;
    }

    /** What the read of a request is made of: the columns, the filter and the limit that it names. */
    private ReadBuilder reading(Table table, JsonNode request) {
        ReadBuilder reading = table.newReadBuilder();
        if (request.has("filter") && !request.get("filter").isNull()) {
            reading.withFilter(predicate(table.rowType(), request.get("filter")));
        }
        if (request.has("columns") && !request.get("columns").isNull()) {
            reading.withProjection(
                    list(request.get("columns")).stream().mapToInt(table.rowType()::getFieldIndex).toArray());
        }
        if (request.has("limit") && !request.get("limit").isNull()) {
            reading.withLimit(request.get("limit").asInt());
        }
        return reading;
    }

    /** A filter: `[column, comparison, value]`, or `["and"|"or", filter, filter]`. */
    private static Predicate predicate(RowType type, JsonNode json) {
        PredicateBuilder builder = new PredicateBuilder(type);
        String first = json.get(0).asText();
        if (first.equals("and") || first.equals("or")) {
            Predicate left = predicate(type, json.get(1));
            Predicate right = predicate(type, json.get(2));
            return first.equals("and") ? PredicateBuilder.and(left, right) : PredicateBuilder.or(left, right);
        }
        int column = type.getFieldIndex(first);
        Object value = json.size() > 2 ? Values.fromJson(json.get(2), type.getTypeAt(column)) : null;
        switch (json.get(1).asText()) {
            case "=":
                return builder.equal(column, value);
            case "!=":
                return builder.notEqual(column, value);
            case "<":
                return builder.lessThan(column, value);
            case "<=":
                return builder.lessOrEqual(column, value);
            case ">":
                return builder.greaterThan(column, value);
            case ">=":
                return builder.greaterOrEqual(column, value);
            case "is null":
                return builder.isNull(column);
            case "is not null":
                return builder.isNotNull(column);
            default:
                throw new IllegalArgumentException("there is no comparison " + json);
        }
    }

    private Object read(JsonNode request) throws Exception {
        Table table = table(request);
        ReadBuilder reading = reading(table, request);
        TableRead rows = reading.newRead().withIOManager(spill);
        if (request.has("filter") && !request.get("filter").isNull()) {
            rows = rows.executeFilter();
        }
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("columns", reading.readType().getFieldNames());
        answer.put("types", types(reading.readType()));
        answer.put("rows", rows(rows, reading.newScan().plan().splits(), reading.readType()));
        return answer;
    }

    private static List<String> types(RowType type) {
        List<String> types = new ArrayList<>();
        type.getFieldTypes().forEach(t -> types.add(t.asSQLString()));
        return types;
    }

    /** Rows, each with its kind in front. */
    private static List<List<Object>> rows(TableRead read, List<Split> splits, RowType type) throws Exception {
        List<List<Object>> rows = new ArrayList<>();
        try (RecordReader<InternalRow> reader = read.createReader(splits)) {
            reader.forEachRemaining(row -> {
                List<Object> cells = new ArrayList<>();
                cells.add(row.getRowKind().shortString());
                cells.addAll(Values.rowToJson(row, type));
                rows.add(cells);
            });
        }
        return rows;
    }

    /** The files that a read opens, split by split. */
    private Object plan(JsonNode request) throws Exception {
        Table table = table(request);
        List<Object> splits = new ArrayList<>();
        for (Split split : reading(table, request).newScan().plan().splits()) {
            DataSplit data = (DataSplit) split;
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("bucket", data.bucket());
            answer.put("total_buckets", data.totalBuckets());
            answer.put("raw_convertible", data.rawConvertible());
            List<Object> files = new ArrayList<>();
            for (DataFileMeta file : data.dataFiles()) {
                files.add(Arrays.asList(file.fileName(), file.level(), file.rowCount(), file.minSequenceNumber(),
                        file.maxSequenceNumber(), file.deleteRowCount().orElse(-1L)));
            }
            answer.put("files", files);
            splits.add(answer);
        }
        return splits;
    }

    /** Everything that a stream has to tell now: one list of rows for each plan. A stream goes on under its name. */
    private Object stream(JsonNode request) throws Exception {
        Table table = table(request);
        ReadBuilder reading = reading(table, request);
        StreamTableScan scan = streams.computeIfAbsent(request.get("stream").asText(), n -> {
            StreamTableScan made = reading.newStreamScan();
            if (request.has("restore")) {
                made.restore(request.get("restore").asLong());
            }
            return made;
        });
        List<Object> plans = new ArrayList<>();
        for (int empty = 0; empty < 2; ) {
            TableScan.Plan plan = scan.plan();
            if (plan.splits().isEmpty()) {
                empty++;
                continue;
            }
            plans.add(rows(reading.newRead().withIOManager(spill), plan.splits(), reading.readType()));
        }
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("plans", plans);
        answer.put("next", scan.checkpoint());
        return answer;
    }

    private Object expire(JsonNode request) throws Exception {
        ExpireConfig config = ExpireConfig.builder()
                .snapshotRetainMin(request.get("retain").asInt())
                .snapshotRetainMax(request.get("retain").asInt())
                .snapshotTimeRetain(Duration.ZERO)
                .build();
        return table(request).newExpireSnapshots().config(config).expire();
    }
}
