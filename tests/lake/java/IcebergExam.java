import java.io.PrintStream;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.PartitionKey;
import org.apache.iceberg.RowDelta;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.GenericAppenderFactory;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.InternalRecordWrapper;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.deletes.EqualityDeleteWriter;
import org.apache.iceberg.encryption.EncryptedFiles;
import org.apache.iceberg.encryption.EncryptedOutputFile;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.types.TypeUtil;

/**
 * Java Iceberg on a table of ours, in the SQL catalog that pyiceberg has made.
 *
 * <p>Arguments: the database's file, the warehouse, the table, and what to do: {@code rows [snapshot]} prints each row
 * as a line of plain values, {@code spec} what the table is, and {@code delta UPSERTS DELETES} commits a round the way
 * Fluss's tiering does it, with equality deletes; rows are {@code id:name}, with commas between them.
 */
public final class IcebergExam {
    private static final OffsetDateTime EPOCH = OffsetDateTime.of(1970, 1, 1, 0, 0, 0, 0, ZoneOffset.UTC);

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        JdbcCatalog catalog = new JdbcCatalog();
        catalog.setConf(new Configuration());
        Map<String, String> properties = new HashMap<>();
        properties.put("uri", "jdbc:sqlite:" + arguments[0]);
        properties.put("warehouse", arguments[1]);
        catalog.initialize("fluss-iceberg-catalog", properties);
        Table table = catalog.loadTable(TableIdentifier.parse(arguments[2]));
        switch (arguments[3]) {
            case "rows":
                IcebergGenerics.ScanBuilder scan = IcebergGenerics.read(table);
                if (arguments.length > 4) {
                    scan = scan.useSnapshot(Long.parseLong(arguments[4]));
                }
                try (CloseableIterable<Record> rows = scan.build()) {
                    for (Record row : rows) {
                        // The stream's columns: without the three of the lake, and what a scan adds for itself.
                        List<String> values = new ArrayList<>();
                        for (int i = 0; i < table.schema().columns().size() - 3; i++) {
                            values.add(plain(row.get(i)));
                        }
                        out.println("(" + String.join("|", values) + ")");
                    }
                }
                break;
            case "spec":
                out.println("identifiers " + new TreeSet<>(table.schema().identifierFieldNames()));
                table.spec().fields().forEach(f -> out.println("partition " + f.name() + " " + f.transform()));
                table.sortOrder().fields().forEach(
                        f -> out.println("sort " + table.schema().findColumnName(f.sourceId()) + " " + f.direction()));
                new TreeSet<>(table.properties().keySet()).stream().filter(k -> k.startsWith("write.")).forEach(
                        k -> out.println("property " + k + " " + table.properties().get(k)));
                break;
            case "delta":
                delta(table, arguments[4], arguments[5]);
                out.println(table.currentSnapshot().snapshotId());
                break;
            default:
                throw new IllegalArgumentException(arguments[3]);
        }
        catalog.close();
    }

    // ---- a round as Fluss commits it ----

    private static void delta(Table table, String upserts, String deletes) throws Exception {
        Schema schema = table.schema();
        Schema keys = TypeUtil.select(schema, schema.identifierFieldIds());
        int[] ids = schema.identifierFieldIds().stream().mapToInt(i -> i).toArray();
        GenericAppenderFactory factory = new GenericAppenderFactory(schema, table.spec(), ids, keys, null);
        RowDelta change = table.newRowDelta();
        Map<PartitionKey, List<Record>> written = new LinkedHashMap<>();
        Map<PartitionKey, List<Record>> gone = new LinkedHashMap<>();
        for (String pair : upserts.isEmpty() ? new String[0] : upserts.split(",")) {
            Record row = row(table, pair);
            written.computeIfAbsent(place(table, row), k -> new ArrayList<>()).add(row);
            gone.computeIfAbsent(place(table, row), k -> new ArrayList<>()).add(row);
        }
        for (String pair : deletes.isEmpty() ? new String[0] : deletes.split(",")) {
            Record row = row(table, pair);
            gone.computeIfAbsent(place(table, row), k -> new ArrayList<>()).add(row);
        }
        for (Map.Entry<PartitionKey, List<Record>> entry : written.entrySet()) {
            DataWriter<Record> writer =
                    factory.newDataWriter(file(table, entry.getKey()), FileFormat.PARQUET, entry.getKey());
            entry.getValue().forEach(writer::write);
            writer.close();
            DataFile made = writer.toDataFile();
            change.addRows(made);
        }
        for (Map.Entry<PartitionKey, List<Record>> entry : gone.entrySet()) {
            EqualityDeleteWriter<Record> writer =
                    factory.newEqDeleteWriter(file(table, entry.getKey()), FileFormat.PARQUET, entry.getKey());
            for (Record row : entry.getValue()) {
                Record key = GenericRecord.create(keys);
                keys.columns().forEach(f -> key.setField(f.name(), row.getField(f.name())));
                writer.write(key);
            }
            writer.close();
            DeleteFile made = writer.toDeleteFile();
            change.addDeletes(made);
        }
        change.set("commit-user", "__fluss_lake_tiering");
        change.set("fluss-offsets", "of Java");
        change.commit();
        table.refresh();
    }

    private static Record row(Table table, String pair) {
        String[] parts = pair.split(":");
        Record row = GenericRecord.create(table.schema());
        row.setField("id", Integer.parseInt(parts[0]));
        row.setField("name", parts[1]);
        row.setField("__bucket", 0);
        row.setField("__offset", 0L);
        row.setField("__timestamp", EPOCH);
        row.setField("__bucket", place(table, row).get(0, Integer.class));
        return row;
    }

    private static PartitionKey place(Table table, Record row) {
        PartitionKey key = new PartitionKey(table.spec(), table.schema());
        key.partition(new InternalRecordWrapper(table.schema().asStruct()).wrap(row));
        return key;
    }

    private static EncryptedOutputFile file(Table table, PartitionKey place) {
        String path = table.locationProvider().newDataLocation(table.spec(), place, UUID.randomUUID() + ".parquet");
        return EncryptedFiles.plainAsEncryptedOutput(table.io().newOutputFile(path));
    }

    // ---- plain values ----

    private static String plain(Object value) {
        if (value == null) {
            return "null";
        } else if (value instanceof Record) {
            List<String> fields = new ArrayList<>();
            for (int i = 0; i < ((Record) value).size(); i++) {
                fields.add(plain(((Record) value).get(i)));
            }
            return "(" + String.join("|", fields) + ")";
        } else if (value instanceof List) {
            List<String> items = new ArrayList<>();
            ((List<?>) value).forEach(item -> items.add(plain(item)));
            return "[" + String.join("|", items) + "]";
        } else if (value instanceof Map) {
            TreeSet<String> items = new TreeSet<>();
            ((Map<?, ?>) value).forEach((k, v) -> items.add(plain(k) + "=" + plain(v)));
            return "{" + String.join("|", items) + "}";
        } else if (value instanceof byte[]) {
            return HexFormat.of().formatHex((byte[]) value);
        } else if (value instanceof ByteBuffer) {
            ByteBuffer buffer = ((ByteBuffer) value).duplicate();
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            return HexFormat.of().formatHex(bytes);
        } else if (value instanceof Float || value instanceof Double) {
            return Long.toHexString(Double.doubleToLongBits(((Number) value).doubleValue()));
        } else if (value instanceof BigDecimal) {
            return ((BigDecimal) value).toPlainString();
        } else if (value instanceof LocalDate) {
            return Long.toString(((LocalDate) value).toEpochDay());
        } else if (value instanceof LocalTime) {
            return Long.toString(((LocalTime) value).toNanoOfDay() / 1000);
        } else if (value instanceof LocalDateTime) {
            return Long.toString(ChronoUnit.MICROS.between(EPOCH.toLocalDateTime(), (LocalDateTime) value));
        } else if (value instanceof OffsetDateTime) {
            return Long.toString(ChronoUnit.MICROS.between(EPOCH, (OffsetDateTime) value));
        } else if (value instanceof CharSequence) {
            return HexFormat.of().formatHex(value.toString().getBytes(StandardCharsets.UTF_8));
        } else if (value instanceof Object[]) {
            return plain(Arrays.asList((Object[]) value));
        }
        return value.toString();
    }
}
