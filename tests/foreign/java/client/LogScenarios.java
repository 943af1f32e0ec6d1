import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.metadata.LogFormat;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.GenericArray;
import org.apache.fluss.row.GenericMap;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.TimestampLtz;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.types.DataTypes;
import org.apache.fluss.types.RowType;

/** Log tables: appending and reading in every log format. The client checks the CRC of every batch it reads whole. */
final class LogScenarios {
  private LogScenarios() {}

  static void log(Exam exam) throws Exception {
    for (LogFormat format : LogFormat.values()) {
      String name = format.name().toLowerCase();
      Schema schema =
          Schema.newBuilder()
              .column("id", DataTypes.INT())
              .column("name", DataTypes.STRING())
              .column("score", DataTypes.DOUBLE())
              .build();
      Table table =
          exam.create(
              "log_" + name, TableDescriptor.builder().schema(schema).logFormat(format).distributedBy(2, "id"));
      AppendWriter writer = table.newAppend().createWriter();
      for (int id = 0; id < 8; id++) {
        writer.append(Rows.of(id, id % 3 == 0 ? null : "name " + id, id / 4.0));
        if (id == 4) {
          writer.flush();
        }
      }
      writer.flush();
      exam.report.step(name + ": all", () -> exam.readLog(table, null, 8));
      exam.report.step(name + ": projected", () -> exam.readLog(table, new int[] {2, 0}, 8));
      exam.report.step(name + ": from an offset too far", () -> {
        try (var scanner = table.newScan().createLogScanner()) {
          scanner.subscribe(0, 1_000);
          return scanner.poll(java.time.Duration.ofSeconds(5)).count();
        }
      });
      exam.report.step(name + ": limit", () -> limited(table, 3));
      exam.report.step(name + ": batch scan without a limit", () -> {
        TableBucket bucket = new TableBucket(table.getTableInfo().getTableId(), 0);
        return Exam.readBatches(table.newScan().createBatchScanner(bucket), schema.getRowType());
      });
    }
  }

  private static List<Object> limited(Table table, int limit) throws Exception {
    TableBucket bucket = new TableBucket(table.getTableInfo().getTableId(), 0);
    return Exam.readBatches(
        table.newScan().limit(limit).createBatchScanner(bucket), table.getTableInfo().getRowType());
  }

  /** Every type, full, at its edges, and null; in a log table of each format. */
  static void types(Exam exam) throws Exception {
    for (LogFormat format : LogFormat.values()) {
      String name = format.name().toLowerCase();
      Schema schema = allTypes(Schema.newBuilder().column("id", DataTypes.INT())).build();
      Table table =
          exam.create(
              "types_" + name, TableDescriptor.builder().schema(schema).logFormat(format).distributedBy(1));
      AppendWriter writer = table.newAppend().createWriter();
      for (GenericRow row : allTypesRows()) {
        writer.append(row);
      }
      writer.flush();
      exam.report.step(name + ": all", () -> exam.readLog(table, null, allTypesRows().size()));
    }
  }

  static Schema.Builder allTypes(Schema.Builder schema) {
    return schema
        .column("boolean", DataTypes.BOOLEAN())
        .column("tinyint", DataTypes.TINYINT())
        .column("smallint", DataTypes.SMALLINT())
        .column("bigint", DataTypes.BIGINT())
        .column("float", DataTypes.FLOAT())
        .column("double", DataTypes.DOUBLE())
        .column("char", DataTypes.CHAR(4))
        .column("string", DataTypes.STRING())
        .column("binary", DataTypes.BINARY(3))
        .column("bytes", DataTypes.BYTES())
        .column("small_decimal", DataTypes.DECIMAL(10, 2))
        .column("big_decimal", DataTypes.DECIMAL(30, 4))
        .column("date", DataTypes.DATE())
        .column("time", DataTypes.TIME(3))
        .column("timestamp_millis", DataTypes.TIMESTAMP(3))
        .column("timestamp_micros", DataTypes.TIMESTAMP(6))
        .column("timestamp_nanos", DataTypes.TIMESTAMP(9))
        .column("local_millis", DataTypes.TIMESTAMP_LTZ(3))
        .column("local_micros", DataTypes.TIMESTAMP_LTZ(6))
        .column("numbers", DataTypes.ARRAY(DataTypes.INT()))
        .column("words", DataTypes.ARRAY(DataTypes.ARRAY(DataTypes.STRING())))
        .column("pairs", DataTypes.MAP(DataTypes.STRING(), DataTypes.BIGINT()))
        .column("nested", DataTypes.ROW(
            DataTypes.FIELD("x", DataTypes.INT()),
            DataTypes.FIELD("y", DataTypes.ROW(DataTypes.FIELD("z", DataTypes.STRING())))));
  }

  static List<GenericRow> allTypesRows() {
    RowType type = allTypes(Schema.newBuilder().column("id", DataTypes.INT())).build().getRowType();
    List<GenericRow> rows = new ArrayList<>();
    rows.add(Rows.of(1, true, (byte) -2, (short) -300, -1L, 1.5f, -2.25, "ab", "h\u00e9llo \ud83d\ude00",
        new byte[] {1, 2, 3}, new byte[] {0, (byte) 0xff},
        Decimal.fromBigDecimal(new BigDecimal("-123.45"), 10, 2),
        Decimal.fromBigDecimal(new BigDecimal("-12345678901234567890.1234"), 30, 4),
        19_737, 36_672_345,
        TimestampNtz.fromMillis(1_705_313_472_345L),
        TimestampNtz.fromMillis(1_705_313_472_345L, 678_000),
        TimestampNtz.fromMillis(1_705_313_472_345L, 678_901),
        TimestampLtz.fromEpochMillis(1_705_313_472_345L),
        TimestampLtz.fromEpochMillis(1_705_313_472_345L, 678_000),
        new GenericArray(new Object[] {1, null, -3}),
        new GenericArray(new Object[] {
            new GenericArray(new Object[] {BinaryString.fromString("a"), null}), null, new GenericArray(new Object[0])}),
        GenericMap.of(BinaryString.fromString("k"), 5L, BinaryString.fromString("n"), null),
        GenericRow.of(9, GenericRow.of(BinaryString.fromString("deep")))));
    rows.add(Rows.of(2, false, Byte.MIN_VALUE, Short.MAX_VALUE, Long.MIN_VALUE, Float.NaN,
        Double.NEGATIVE_INFINITY, "", "", new byte[] {9, 9, 9}, new byte[0],
        Decimal.fromBigDecimal(new BigDecimal("99999999.99"), 10, 2),
        Decimal.fromBigDecimal(new BigDecimal("99999999999999999999999999.9999"), 30, 4),
        -719_162, 86_399_999,
        // Before 1970 the 0.9.1 client can read whole milliseconds only: it takes the rest with the wrong sign.
        TimestampNtz.fromMillis(-1L), TimestampNtz.fromMillis(-1L), TimestampNtz.fromMillis(-1L),
        TimestampLtz.fromEpochMillis(-1L), TimestampLtz.fromEpochMillis(-1L),
        new GenericArray(new Object[0]), new GenericArray(new Object[0]), GenericMap.of(),
        GenericRow.of(null, null)));
    Object[] nothing = new Object[type.getFieldCount()];
    nothing[0] = 3;
    rows.add(GenericRow.of(nothing));
    return rows;
  }

  /** Enough rows for many batches and, on a server with small segments, for the remote tier. */
  static void volume(Exam exam) throws Exception {
    Schema schema =
        Schema.newBuilder().column("id", DataTypes.BIGINT()).column("text", DataTypes.STRING()).build();
    Table table = exam.create("volume", TableDescriptor.builder().schema(schema).distributedBy(1));
    AppendWriter writer = table.newAppend().createWriter();
    int count = 20_000;
    for (long id = 0; id < count; id++) {
      writer.append(Rows.of(id, "row number " + id));
    }
    writer.flush();
    exam.report.step("all in order", () -> {
      List<Object> lines = exam.readLog(table, null, count);
      long expected = 0;
      for (Object line : lines) {
        List<?> fields = (List<?>) line;
        List<?> row = (List<?>) fields.get(3);
        if (!fields.get(1).equals(expected) || !row.get(0).equals(expected)) {
          return Arrays.asList("out of order at", expected, fields);
        }
        expected++;
      }
      return expected;
    });
  }
}
