import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.metadata.DatabaseDescriptor;
import org.apache.fluss.metadata.DatabaseInfo;
import org.apache.fluss.metadata.PartitionSpec;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.SchemaInfo;
import org.apache.fluss.metadata.TableChange;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.types.DataTypes;

/** Databases, table definitions, partitions, offsets, and changes of tables. */
final class AdminScenarios {
  private AdminScenarios() {}

  static void databases(Exam exam) {
    String name = exam.database + "_own";
    DatabaseDescriptor descriptor =
        DatabaseDescriptor.builder().comment("a comment").customProperty("owner", "exam").build();
    exam.report.step("create", () -> exam.admin.createDatabase(name, descriptor, false).get());
    exam.report.step("create again", () -> exam.admin.createDatabase(name, descriptor, false).get());
    exam.report.step("create again, ignoring", () -> exam.admin.createDatabase(name, descriptor, true).get());
    exam.report.step("exists", () -> exam.admin.databaseExists(name).get());
    exam.report.step("does not exist", () -> exam.admin.databaseExists("no_such_database").get());
    exam.report.step("listed", () -> exam.admin.listDatabases().get().contains(name));
    exam.report.step(
        "listed with summary",
        () ->
            exam.admin.listDatabaseSummaries().get().stream()
                .filter(summary -> summary.getDatabaseName().equals(name))
                .map(summary -> summary.getTableCount())
                .collect(Collectors.toList()));
    exam.report.step(
        "info",
        () -> {
          DatabaseInfo info = exam.admin.getDatabaseInfo(name).get();
          return Arrays.asList(
              info.getDatabaseDescriptor().getComment().orElse(null),
              info.getDatabaseDescriptor().getCustomProperties(),
              info.getCreatedTime() > 0);
        });
    exam.report.step("info of a missing one", () -> exam.admin.getDatabaseInfo("no_such_database").get());
    exam.report.step("tables of a missing one", () -> exam.admin.listTables("no_such_database").get());
    exam.report.step("drop", () -> exam.admin.dropDatabase(name, false, false).get());
    exam.report.step("drop again", () -> exam.admin.dropDatabase(name, false, false).get());
    exam.report.step("drop again, ignoring", () -> exam.admin.dropDatabase(name, true, false).get());
    exam.report.step("drop a full one", () -> {
      exam.admin.createDatabase(name, DatabaseDescriptor.EMPTY, false).get();
      Schema schema = Schema.newBuilder().column("id", DataTypes.INT()).build();
      TableDescriptor table = TableDescriptor.builder().schema(schema).build();
      exam.admin.createTable(TablePath.of(name, "t"), table, false).get();
      return exam.admin.dropDatabase(name, false, false).get();
    });
    exam.report.step("drop a full one with its tables", () -> exam.admin.dropDatabase(name, false, true).get());
  }

  static void tableInfo(Exam exam) throws Exception {
    Schema schema =
        Schema.newBuilder()
            .column("id", DataTypes.INT())
            .withComment("the key")
            .column("day", DataTypes.STRING())
            .column("amount", DataTypes.DECIMAL(10, 2))
            .column("tags", DataTypes.ARRAY(DataTypes.STRING()))
            .primaryKey("id", "day")
            .build();
    TablePath path = exam.path("info");
    TableDescriptor descriptor =
        TableDescriptor.builder()
            .schema(schema)
            .partitionedBy("day")
            .distributedBy(2, "id")
            .comment("a table")
            .property("table.log.arrow.compression.type", "LZ4_FRAME")
            .customProperty("owner", "exam")
            .build();
    exam.report.step("create", () -> exam.admin.createTable(path, descriptor, false).get());
    exam.report.step("create again", () -> exam.admin.createTable(path, descriptor, false).get());
    exam.report.step("create again, ignoring", () -> exam.admin.createTable(path, descriptor, true).get());
    exam.report.step("exists", () -> exam.admin.tableExists(path).get());
    exam.report.step("listed", () -> exam.admin.listTables(exam.database).get().contains("info"));
    exam.report.step("info", () -> describe(exam.admin.getTableInfo(path).get()));
    exam.report.step("schema", () -> describe(exam.admin.getTableSchema(path).get()));
    exam.report.step("schema 1", () -> describe(exam.admin.getTableSchema(path, 1).get()));
    exam.report.step("schema 7", () -> describe(exam.admin.getTableSchema(path, 7).get()));
    exam.report.step("info of a missing table", () -> exam.admin.getTableInfo(exam.path("missing")).get());
    exam.report.step("drop", () -> exam.admin.dropTable(path, false).get());
    exam.report.step("drop again", () -> exam.admin.dropTable(path, false).get());
    exam.report.step("drop again, ignoring", () -> exam.admin.dropTable(path, true).get());
    exam.report.step("exists no more", () -> exam.admin.tableExists(path).get());
    exam.report.step(
        "server nodes",
        () ->
            exam.admin.getServerNodes().get().stream()
                .map(node -> node.serverType().toString())
                .distinct()
                .sorted()
                .collect(Collectors.toList()));
  }

  private static Map<String, Object> describe(TableInfo info) {
    Map<String, Object> found = new TreeMap<>();
    found.put("row type", info.getRowType().toString());
    found.put("primary keys", info.getPrimaryKeys());
    found.put("bucket keys", info.getBucketKeys());
    found.put("buckets", info.getNumBuckets());
    found.put("partition keys", info.getPartitionKeys());
    found.put("properties", new TreeMap<>(info.getProperties().toMap()));
    found.put("custom properties", new TreeMap<>(info.getCustomProperties().toMap()));
    found.put("comment", info.getComment().orElse(null));
    found.put("schema id", info.getSchemaId());
    found.put("column ids", info.getSchema().getColumnIds());
    found.put("comments", info.getSchema().getColumns().stream()
        .map(column -> column.getComment().orElse(null)).collect(Collectors.toList()));
    return found;
  }

  private static List<Object> describe(SchemaInfo info) {
    return Arrays.asList(
        info.getSchemaId(), info.getSchema().getRowType().toString(), info.getSchema().getHighestFieldId());
  }

  static void partitions(Exam exam) throws Exception {
    Schema schema =
        Schema.newBuilder()
            .column("id", DataTypes.INT())
            .column("region", DataTypes.STRING())
            .column("day", DataTypes.STRING())
            .build();
    Table table =
        exam.create(
            "by_region",
            TableDescriptor.builder().schema(schema).partitionedBy("region", "day").distributedBy(1));
    TablePath path = table.getTableInfo().getTablePath();
    PartitionSpec first = spec("region", "eu", "day", "2026-01-01");
    exam.report.step("none at first", () -> partitionNames(exam, path));
    exam.report.step("create", () -> exam.admin.createPartition(path, first, false).get());
    exam.report.step("create again", () -> exam.admin.createPartition(path, first, false).get());
    exam.report.step("create again, ignoring", () -> exam.admin.createPartition(path, first, true).get());
    exam.report.step(
        "create a second", () -> exam.admin.createPartition(path, spec("region", "us", "day", "1"), false).get());
    exam.report.step("listed", () -> partitionNames(exam, path));
    exam.report.step(
        "listed by part of the key",
        () ->
            exam.admin.listPartitionInfos(path, new PartitionSpec(Collections.singletonMap("region", "us"))).get()
                .stream().map(info -> info.getPartitionName()).collect(Collectors.toList()));
    exam.report.step(
        "listed by a column that is no key",
        () -> exam.admin.listPartitionInfos(path, new PartitionSpec(Collections.singletonMap("id", "1"))).get());
    exam.report.step(
        "create with a key missing",
        () ->
            exam.admin.createPartition(path, new PartitionSpec(Collections.singletonMap("region", "eu")), false)
                .get());
    exam.report.step(
        "create with a bad value",
        () -> exam.admin.createPartition(path, spec("region", "a$b", "day", "1"), false).get());
    exam.report.step(
        "append creates a partition",
        () -> {
          AppendWriter writer = table.newAppend().createWriter();
          writer.append(Rows.of(1, "asia", "2")).get();
          writer.append(Rows.of(2, "eu", "2026-01-01")).get();
          writer.flush();
          return partitionNames(exam, path);
        });
    exam.report.step(
        "offsets of a partition",
        () -> exam.offsets(path, "asia$2", 1, new OffsetSpec.LatestSpec()));
    exam.report.step(
        "offsets of a missing partition",
        () -> exam.offsets(path, "nowhere$0", 1, new OffsetSpec.LatestSpec()));
    exam.report.step("drop", () -> exam.admin.dropPartition(path, first, false).get());
    exam.report.step("drop again", () -> exam.admin.dropPartition(path, first, false).get());
    exam.report.step("drop again, ignoring", () -> exam.admin.dropPartition(path, first, true).get());
    exam.report.step("left", () -> partitionNames(exam, path));
    exam.create("unpartitioned", TableDescriptor.builder().schema(schema).distributedBy(1));
    exam.report.step(
        "create in a table without partitions",
        () -> exam.admin.createPartition(exam.path("unpartitioned"), first, false).get());
  }

  private static List<String> partitionNames(Exam exam, TablePath path) throws Exception {
    return exam.admin.listPartitionInfos(path).get().stream()
        .map(info -> info.getPartitionName())
        .sorted()
        .collect(Collectors.toList());
  }

  private static PartitionSpec spec(String... namesAndValues) {
    Map<String, String> values = new TreeMap<>(Collections.reverseOrder());
    for (int i = 0; i < namesAndValues.length; i += 2) {
      values.put(namesAndValues[i], namesAndValues[i + 1]);
    }
    return new PartitionSpec(values);
  }

  static void offsets(Exam exam) throws Exception {
    Schema schema = Schema.newBuilder().column("id", DataTypes.INT()).build();
    Table table = exam.create("offsets", TableDescriptor.builder().schema(schema).distributedBy(2, "id"));
    TablePath path = table.getTableInfo().getTablePath();
    exam.report.step("latest of nothing", () -> exam.offsets(path, null, 2, new OffsetSpec.LatestSpec()));
    long before = System.currentTimeMillis();
    Thread.sleep(20);
    AppendWriter writer = table.newAppend().createWriter();
    for (int id = 0; id < 10; id++) {
      writer.append(Rows.of(id));
    }
    writer.flush();
    Thread.sleep(20);
    long between = System.currentTimeMillis();
    Thread.sleep(20);
    for (int id = 10; id < 16; id++) {
      writer.append(Rows.of(id));
    }
    writer.flush();
    Thread.sleep(20);
    exam.report.step("earliest", () -> exam.offsets(path, null, 2, new OffsetSpec.EarliestSpec()));
    exam.report.step("latest", () -> exam.offsets(path, null, 2, new OffsetSpec.LatestSpec()));
    exam.report.step("before all", () -> exam.offsets(path, null, 2, new OffsetSpec.TimestampSpec(before)));
    exam.report.step("between", () -> exam.offsets(path, null, 2, new OffsetSpec.TimestampSpec(between)));
    exam.report.step(
        "now", () -> exam.offsets(path, null, 2, new OffsetSpec.TimestampSpec(System.currentTimeMillis() - 5)));
    exam.report.step(
        "in the future",
        () -> exam.offsets(path, null, 2, new OffsetSpec.TimestampSpec(System.currentTimeMillis() + 3_600_000)));
    exam.report.step(
        "rows by table statistics", () -> exam.admin.getTableStats(path).get().getRowCount());
  }

  static void alter(Exam exam) throws Exception {
    Schema schema =
        Schema.newBuilder()
            .column("id", DataTypes.INT())
            .column("name", DataTypes.STRING())
            .primaryKey("id")
            .build();
    Table table = exam.create("alter", TableDescriptor.builder().schema(schema).distributedBy(1));
    TablePath path = table.getTableInfo().getTablePath();
    UpsertWriter old = table.newUpsert().createWriter();
    old.upsert(Rows.of(1, "before"));
    old.upsert(Rows.of(2, "before"));
    old.flush();

    exam.report.step("set a property", () -> change(exam, path, TableChange.set("owner", "exam")));
    exam.report.step("set the time to live", () -> change(exam, path, TableChange.set("table.log.ttl", "5d")));
    exam.report.step("reset a property", () -> change(exam, path, TableChange.reset("owner")));
    exam.report.step("set a fixed property", () -> change(exam, path, TableChange.set("table.kv.format", "indexed")));
    exam.report.step(
        "set an unknown property", () -> change(exam, path, TableChange.set("table.no.such.property", "1")));
    exam.report.step("add a column", () -> change(exam, path,
        TableChange.addColumn("age", DataTypes.INT(), "years", TableChange.ColumnPosition.last())));
    exam.report.step("add it again", () -> change(exam, path,
        TableChange.addColumn("age", DataTypes.INT(), null, TableChange.ColumnPosition.last())));
    exam.report.step("add one that is not null", () -> change(exam, path,
        TableChange.addColumn("size", DataTypes.INT().copy(false), null, TableChange.ColumnPosition.last())));
    exam.report.step("add one at the front", () -> change(exam, path,
        TableChange.addColumn("size", DataTypes.INT(), null, TableChange.ColumnPosition.first())));
    exam.report.step("drop a column", () -> change(exam, path, TableChange.dropColumn("name")));
    exam.report.step("rename a column", () -> change(exam, path, TableChange.renameColumn("name", "title")));
    exam.report.step("alter a missing table", () -> change(exam, exam.path("missing"), TableChange.set("a", "b")));
    exam.report.step("schema 1", () -> describe(exam.admin.getTableSchema(path, 1).get()));
    exam.report.step("schema 2", () -> describe(exam.admin.getTableSchema(path, 2).get()));

    exam.report.step("old writer still writes", () -> {
      old.upsert(Rows.of(3, "old writer")).get();
      return null;
    });
    Table changed = exam.connection.getTable(path);
    UpsertWriter writer = changed.newUpsert().createWriter();
    writer.upsert(Rows.of(2, "after", 20));
    writer.upsert(Rows.of(4, "after", 40));
    writer.flush();
    exam.report.step("lookups", () -> Arrays.asList(
        KvScenarios.lookup(changed, 1), KvScenarios.lookup(changed, 2),
        KvScenarios.lookup(changed, 3), KvScenarios.lookup(changed, 4)));
    exam.report.step("changelog", () -> exam.readLog(changed, null, 6));
    exam.report.step("changelog, projected", () -> exam.readLog(changed, new int[] {2, 0}, 6));
  }

  private static Object change(Exam exam, TablePath path, TableChange... changes) throws Exception {
    exam.admin.alterTable(path, Arrays.asList(changes), false).get();
    TableInfo info = exam.admin.getTableInfo(path).get();
    return Arrays.asList(info.getRowType().toString(), info.getCustomProperties().toMap(),
        info.getProperties().toMap().get("table.log.ttl"), info.getSchemaId());
  }
}
