import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.writer.UpsertResult;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.metadata.AggFunctions;
import org.apache.fluss.metadata.KvFormat;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.rpc.protocol.MergeMode;
import org.apache.fluss.types.DataTypes;
import org.apache.fluss.types.RowType;

/** Primary-key tables. */
final class KvScenarios {
  private KvScenarios() {}

  private static Schema.Builder people() {
    return Schema.newBuilder()
        .column("id", DataTypes.INT())
        .column("name", DataTypes.STRING())
        .column("age", DataTypes.INT())
        .primaryKey("id");
  }

  static Object lookup(Table table, Object... key) throws Exception {
    Lookuper lookuper = table.newLookup().createLookuper();
    InternalRow row = lookuper.lookup(Rows.of(key)).get().getSingletonRow();
    return row == null ? null : Rows.read(row, table.getTableInfo().getRowType());
  }

  private static Object prefix(Table table, String column, Object value) throws Exception {
    RowType type = table.getTableInfo().getRowType();
    List<Object> rows = new ArrayList<>();
    Lookuper lookuper = table.newLookup().lookupBy(column).createLookuper();
    for (InternalRow row : lookuper.lookup(Rows.of(value)).get().getRowList()) {
      rows.add(Rows.read(row, type));
    }
    return rows;
  }

  static void upsert(Exam exam) throws Exception {
    Table table = exam.create("upsert", TableDescriptor.builder().schema(people().build()).distributedBy(1));
    UpsertWriter writer = table.newUpsert().createWriter();
    exam.report.step("insert", () -> endOffset(writer.upsert(Rows.of(1, "ann", 30)).get()));
    exam.report.step("insert another", () -> endOffset(writer.upsert(Rows.of(2, "bob", null)).get()));
    exam.report.step("update", () -> endOffset(writer.upsert(Rows.of(1, "ann", 31)).get()));
    exam.report.step("update to the same", () -> endOffset(writer.upsert(Rows.of(1, "ann", 31)).get()));
    exam.report.step("lookup", () -> lookup(table, 1));
    exam.report.step("lookup of a missing key", () -> lookup(table, 77));
    exam.report.step("delete", () -> writer.delete(Rows.of(2, null, null)).get().getLogEndOffset());
    exam.report.step("delete again", () -> writer.delete(Rows.of(2, null, null)).get().getLogEndOffset());
    exam.report.step("lookup of the deleted", () -> lookup(table, 2));
    exam.report.step("insert after the delete", () -> endOffset(writer.upsert(Rows.of(2, "bo", 5)).get()));
    exam.report.step("changelog", () -> exam.readLog(table, null, 8));
    exam.report.step("changelog, projected", () -> exam.readLog(table, new int[] {2}, 8));
    exam.report.step("rows by table statistics", () -> exam.admin.getTableStats(exam.path("upsert")).get().getRowCount());
    exam.report.step("append to a table with a key", () -> table.newAppend().createWriter() == null);
    exam.report.step("insert by lookup", () -> {
      Table keysOnly = exam.create("insert_by_lookup", TableDescriptor.builder().schema(
          Schema.newBuilder().column("id", DataTypes.INT()).column("n", DataTypes.INT()).primaryKey("id").build())
          .distributedBy(1));
      Lookuper lookuper = keysOnly.newLookup().enableInsertIfNotExists().createLookuper();
      InternalRow row = lookuper.lookup(Rows.of(5)).get().getSingletonRow();
      return Arrays.asList(Rows.read(row, keysOnly.getTableInfo().getRowType()), lookup(keysOnly, 5));
    });
  }

  private static Long endOffset(UpsertResult result) {
    return result.getLogEndOffset();
  }

  static void partialUpdate(Exam exam) throws Exception {
    Table table = exam.create("partial", TableDescriptor.builder().schema(people().build()).distributedBy(1));
    UpsertWriter names = table.newUpsert().partialUpdate("id", "name").createWriter();
    UpsertWriter ages = table.newUpsert().partialUpdate(new int[] {0, 2}).createWriter();
    exam.report.step("insert of a part", () -> endOffset(names.upsert(Rows.of(1, "ann", null)).get()));
    exam.report.step("the other part", () -> endOffset(ages.upsert(Rows.of(1, null, 30)).get()));
    exam.report.step("lookup", () -> lookup(table, 1));
    exam.report.step("delete of a part", () -> names.delete(Rows.of(1, null, null)).get().getLogEndOffset());
    exam.report.step("what is left", () -> lookup(table, 1));
    exam.report.step("delete of the rest", () -> ages.delete(Rows.of(1, null, null)).get().getLogEndOffset());
    exam.report.step("nothing is left", () -> lookup(table, 1));
    exam.report.step("without the key", () -> table.newUpsert().partialUpdate("name").createWriter() == null);
    exam.report.step("changelog", () -> exam.readLog(table, null, 6));
  }

  static void prefixLookup(Exam exam) throws Exception {
    Schema schema =
        Schema.newBuilder()
            .column("customer", DataTypes.STRING())
            .column("order", DataTypes.BIGINT())
            .column("total", DataTypes.INT())
            .primaryKey("customer", "order")
            .build();
    Table table =
        exam.create("prefix", TableDescriptor.builder().schema(schema).distributedBy(3, "customer"));
    UpsertWriter writer = table.newUpsert().createWriter();
    for (int order = 0; order < 5; order++) {
      writer.upsert(Rows.of("a", (long) order, order * 10));
      writer.upsert(Rows.of("ab", (long) order, order * 100));
    }
    writer.flush();
    exam.report.step("rows of a", () -> prefix(table, "customer", "a"));
    exam.report.step("rows of ab", () -> prefix(table, "customer", "ab"));
    exam.report.step("rows of nobody", () -> prefix(table, "customer", "zz"));
    exam.report.step("full key", () -> lookup(table, "ab", 3L));
    exam.report.step("by a column that is no prefix", () -> prefix(table, "order", 1L));
  }

  static void limitScan(Exam exam) throws Exception {
    Table table = exam.create("limit", TableDescriptor.builder().schema(people().build()).distributedBy(1));
    TableBucket bucket = new TableBucket(table.getTableInfo().getTableId(), 0);
    RowType type = table.getTableInfo().getRowType();
    exam.report.step("of nothing", () ->
        Exam.readBatches(table.newScan().limit(3).createBatchScanner(bucket), type));
    UpsertWriter writer = table.newUpsert().createWriter();
    for (int id : new int[] {300, 2, 1, 128, 127, -1}) {
      writer.upsert(Rows.of(id, "n" + id, id));
    }
    writer.delete(Rows.of(2, null, null));
    writer.flush();
    exam.report.step("first three", () ->
        Exam.readBatches(table.newScan().limit(3).createBatchScanner(bucket), type));
    exam.report.step("more than there are", () ->
        Exam.readBatches(table.newScan().limit(50).createBatchScanner(bucket), type));
    exam.report.step("projected", () ->
        Exam.readBatches(
            table.newScan().project(new int[] {2}).limit(50).createBatchScanner(bucket), type.project(new int[] {2})));
    exam.report.step("without a limit", () ->
        Exam.readBatches(table.newScan().createBatchScanner(bucket), type));
  }

  /** Every type as a value, in both formats of rows, read back by lookup and from the changelog. */
  static void types(Exam exam) throws Exception {
    for (KvFormat format : KvFormat.values()) {
      String name = format.name().toLowerCase();
      Schema schema =
          LogScenarios.allTypes(Schema.newBuilder().column("id", DataTypes.INT())).primaryKey("id").build();
      TableDescriptor.Builder descriptor =
          TableDescriptor.builder().schema(schema).kvFormat(format).distributedBy(1);
      Table table = exam.create("kv_types_" + name, descriptor);
      UpsertWriter writer = table.newUpsert().createWriter();
      for (GenericRow row : LogScenarios.allTypesRows()) {
        writer.upsert(row);
      }
      writer.flush();
      for (int id = 1; id <= 3; id++) {
        Object key = id;
        exam.report.step(name + ": row " + id, () -> lookup(table, key));
      }
      exam.report.step(name + ": changelog", () -> exam.readLog(table, null, 3));
    }
  }

  /** The merge engines and kinds of changelog that are not the default. */
  static void mergeEngines(Exam exam) throws Exception {
    exam.report.step("first row", () -> merged(exam, "first_row", "table.merge-engine", "first_row"));
    exam.report.step("versioned", () -> merged(exam, "versioned",
        "table.merge-engine", "versioned", "table.merge-engine.versioned.ver-column", "age"));
    exam.report.step("aggregation", () -> aggregated(exam));
    exam.report.step("changelog without old values", () -> merged(exam, "wal", "table.changelog.image", "wal"));
    exam.report.step("deletes are ignored", () -> merged(exam, "ignore", "table.delete.behavior", "ignore"));
    exam.report.step("deletes are refused", () -> merged(exam, "disable", "table.delete.behavior", "disable"));
  }

  /** Functions in the schema, a partial update, and writes that pass the engine by. */
  private static Object aggregated(Exam exam) throws Exception {
    Schema schema = Schema.newBuilder()
        .column("id", DataTypes.INT())
        .column("total", DataTypes.BIGINT(), AggFunctions.SUM())
        .column("best", DataTypes.DOUBLE(), AggFunctions.MAX())
        .column("names", DataTypes.STRING(), AggFunctions.LISTAGG("; "))
        .column("last", DataTypes.STRING())
        .primaryKey("id")
        .build();
    Table table = exam.create("merge_aggregation", TableDescriptor.builder().schema(schema).distributedBy(1)
        .property("table.merge-engine", "aggregation"));
    UpsertWriter writer = table.newUpsert().createWriter();
    writer.upsert(Rows.of(1, 5L, 1.5, "a", "x")).get();
    writer.upsert(Rows.of(1, 7L, -2.5, "b", null)).get();
    writer.upsert(Rows.of(1, null, null, null, "y")).get();
    table.newUpsert().partialUpdate("id", "total").createWriter().upsert(Rows.of(1, 100L, null, null, null)).get();
    writer.delete(Rows.of(1, null, null, null, null)).get();
    Object summed = lookup(table, 1);
    UpsertWriter over = table.newUpsert().mergeMode(MergeMode.OVERWRITE).createWriter();
    over.upsert(Rows.of(1, 1L, 1.0, "z", "z")).get();
    Object replaced = lookup(table, 1);
    over.delete(Rows.of(1, null, null, null, null)).get();
    return Arrays.asList(summed, replaced, lookup(table, 1), exam.readLog(table, null, 1));
  }

  private static Object merged(Exam exam, String name, String... properties) throws Exception {
    TableDescriptor.Builder descriptor =
        TableDescriptor.builder().schema(people().build()).distributedBy(1);
    for (int i = 0; i < properties.length; i += 2) {
      descriptor.property(properties[i], properties[i + 1]);
    }
    Table table = exam.create("merge_" + name, descriptor);
    UpsertWriter writer = table.newUpsert().createWriter();
    writer.upsert(Rows.of(1, "first", 5)).get();
    writer.upsert(Rows.of(1, "second", 3)).get();
    writer.upsert(Rows.of(1, "third", 7)).get();
    writer.delete(Rows.of(1, null, null)).get();
    return Arrays.asList(lookup(table, 1), exam.readLog(table, null, 1));
  }
}
