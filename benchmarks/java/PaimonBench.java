import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.serializer.InternalRowSerializer;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.options.Options;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.sink.BatchTableCommit;
import org.apache.paimon.table.sink.BatchTableWrite;
import org.apache.paimon.table.sink.BatchWriteBuilder;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.sink.StreamTableCommit;
import org.apache.paimon.table.sink.StreamTableWrite;
import org.apache.paimon.table.sink.StreamWriteBuilder;
import org.apache.paimon.table.source.DataSplit;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.types.RowType;

/**
 * Java Paimon's side of the benchmark: a request per line, as benchmarks/paimon_peer_program.py has them. The answer is
 * one line, {@code @} and a JSON object with {@code wall}, {@code cpu}, {@code kernel} (0: the JVM does not tell it) and
 * {@code rows}, or {@code error}. Rows are read and compacted by as many threads as the machine has cores.
 */
public final class PaimonBench {
  private static final int CORES = Runtime.getRuntime().availableProcessors();
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final OperatingSystemMXBean SYSTEM =
      (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

  private final ExecutorService threads = Executors.newFixedThreadPool(CORES);
  private final IOManager spill;
  private final Map<String, Catalog> catalogs = new HashMap<>();
  private final Map<String, Table> tables = new HashMap<>();
  private final Map<String, List<List<BinaryRow>>> loaded = new HashMap<>();
  private final Map<String, RowType> types = new HashMap<>();

  private PaimonBench(String scratch) {
    spill = IOManager.create(scratch);
  }

  public static void main(String[] args) throws Exception {
    // Output of libraries must not be mixed with the answers.
    PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
    System.setOut(System.err);
    PaimonBench bench = new PaimonBench(args[0]);
    answers.println("@ready");
    BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = requests.readLine(); line != null; line = requests.readLine()) {
      ObjectNode answer = JSON.createObjectNode();
      try {
        bench.run(JSON.readTree(line), answer);
      } catch (Throwable failure) { // whatever it fails with is reported, and the benchmark continues
        answer.removeAll();
        answer.put("error", failure.toString());
      }
      answers.println("@" + JSON.writeValueAsString(answer));
    }
    System.exit(0);
  }

  private void run(JsonNode request, ObjectNode answer) throws Exception {
    switch (request.get("do").asText()) {
      case "load":
        timed(answer, () -> load(request));
        break;
      case "write":
        if (request.has("definition")) {
          create(request);
        }
        timed(answer, () -> write(opened(request), loaded.get(request.get("data").asText())));
        break;
      case "ingest":
        create(request);
        timed(answer, () -> ingest(opened(request), loaded.get(request.get("data").asText())));
        break;
      case "read":
        timed(answer, () -> read(opened(request), request.get("key")));
        break;
      case "compact":
        timed(answer, () -> compact(opened(request)));
        break;
      case "plan":
        tables.remove(name(request));
        timed(answer, () -> opened(request).newReadBuilder().newScan().plan().splits().size());
        break;
      case "commit":
        tables.remove(name(request));
        commit(request, answer);
        break;
      default:
        throw new IllegalArgumentException("there is no " + request.get("do"));
    }
  }

  private static void timed(ObjectNode answer, Callable<Integer> work) throws Exception {
    long wall = System.nanoTime();
    long cpu = SYSTEM.getProcessCpuTime();
    answer.put("rows", work.call());
    answer.put("wall", (System.nanoTime() - wall) / 1e9);
    answer.put("cpu", (SYSTEM.getProcessCpuTime() - cpu) / 1e9);
    answer.put("kernel", 0.0);
  }

  private static String name(JsonNode request) {
    return request.get("warehouse").asText() + "/" + request.get("table").asText();
  }

  private Catalog catalog(JsonNode request) {
    return catalogs.computeIfAbsent(
        request.get("warehouse").asText(),
        warehouse -> {
          Options options = new Options();
          options.set("warehouse", warehouse);
          options.set("cache-enabled", "false");
          return CatalogFactory.createCatalog(CatalogContext.create(options));
        });
  }

  private static Identifier identifier(String table) {
    String[] parts = table.split("\\.", 2);
    return Identifier.create(parts[0], parts[1]);
  }

  private Table opened(JsonNode request) throws Exception {
    String name = name(request);
    Table table = tables.get(name);
    if (table == null) {
      table = catalog(request).getTable(identifier(request.get("table").asText()));
      tables.put(name, table);
    }
    return table;
  }

  /** Keep the rows of tables in memory, those of each table as one commit; instead of all earlier ones if told so. */
  private int load(JsonNode request) throws Exception {
    if (request.get("alone").asBoolean()) {
      loaded.clear();
    }
    List<List<BinaryRow>> parts = new ArrayList<>();
    int found = 0;
    for (JsonNode table : request.get("tables")) {
      Table source = catalog(request).getTable(identifier(table.asText()));
      types.put(request.get("name").asText(), source.rowType());
      InternalRowSerializer serializer = new InternalRowSerializer(source.rowType());
      List<BinaryRow> rows = new ArrayList<>();
      ReadBuilder builder = source.newReadBuilder();
      try (RecordReader<InternalRow> reader = builder.newRead().createReader(builder.newScan().plan())) {
        reader.forEachRemaining(row -> rows.add(serializer.toBinaryRow(row).copy()));
      }
      parts.add(rows);
      found += rows.size();
    }
    loaded.put(request.get("name").asText(), parts);
    return found;
  }

  private void create(JsonNode request) throws Exception {
    Schema.Builder schema = Schema.newBuilder();
    types.get(request.get("data").asText()).getFields().forEach(f -> schema.column(f.name(), f.type()));
    JsonNode definition = request.get("definition");
    List<String> keys = new ArrayList<>();
    definition.path("primary_keys").forEach(key -> keys.add(key.asText()));
    schema.primaryKey(keys);
    List<String> partitions = new ArrayList<>();
    definition.path("partition_keys").forEach(key -> partitions.add(key.asText()));
    schema.partitionKeys(partitions);
    definition.path("options").fields().forEachRemaining(e -> schema.option(e.getKey(), e.getValue().asText()));
    Identifier table = identifier(request.get("table").asText());
    catalog(request).createDatabase(table.getDatabaseName(), true);
    catalog(request).createTable(table, schema.build(), false);
  }

  private int write(Table table, List<List<BinaryRow>> parts) throws Exception {
    int written = 0;
    for (List<BinaryRow> part : parts) {
      BatchWriteBuilder builder = table.newBatchWriteBuilder();
      try (BatchTableWrite write = builder.newWrite();
          BatchTableCommit commit = builder.newCommit()) {
        write.withIOManager(spill);
        for (BinaryRow row : part) {
          write.write(row);
        }
        commit.commit(write.prepareCommit());
      }
      written += part.size();
    }
    return written;
  }

  /** One writer that lives through all commits, as of a stream. */
  private int ingest(Table table, List<List<BinaryRow>> parts) throws Exception {
    int written = 0;
    StreamWriteBuilder builder = table.newStreamWriteBuilder();
    try (StreamTableWrite write = builder.newWrite();
        StreamTableCommit commit = builder.newCommit()) {
      write.withIOManager(spill);
      for (int number = 0; number < parts.size(); number++) {
        for (BinaryRow row : parts.get(number)) {
          write.write(row);
        }
        commit.commit(number, write.prepareCommit(false, number));
        written += parts.get(number).size();
      }
    }
    return written;
  }

  private int read(Table table, JsonNode key) throws Exception {
    ReadBuilder builder = table.newReadBuilder();
    if (key != null) {
      PredicateBuilder predicates = new PredicateBuilder(table.rowType());
      builder.withFilter(predicates.equal(predicates.indexOf("id"), key.asLong()));
    }
    List<Callable<Integer>> work = new ArrayList<>();
    for (Split split : builder.newScan().plan().splits()) {
      work.add(
          () -> {
            int[] found = {0};
            try (RecordReader<InternalRow> reader = builder.newRead().executeFilter().createReader(split)) {
              reader.forEachRemaining(row -> found[0]++);
            }
            return found[0];
          });
    }
    int rows = 0;
    for (Future<Integer> found : threads.invokeAll(work)) {
      rows += found.get();
    }
    return rows;
  }

  /** Full compaction of all buckets, shared between threads, in one commit. */
  private int compact(Table table) throws Exception {
    Table compacting = table.copy(Map.of("write-only", "false"));
    TreeSet<Integer> buckets = new TreeSet<>();
    for (Split split : table.newReadBuilder().newScan().plan().splits()) {
      buckets.add(((DataSplit) split).bucket());
    }
    BatchWriteBuilder builder = compacting.newBatchWriteBuilder();
    List<Callable<List<CommitMessage>>> work = new ArrayList<>();
    for (int bucket : buckets) {
      work.add(
          () -> {
            try (BatchTableWrite write = builder.newWrite()) {
              write.withIOManager(spill);
              write.compact(BinaryRow.EMPTY_ROW, bucket, true);
              return write.prepareCommit();
            }
          });
    }
    List<CommitMessage> messages = new ArrayList<>();
    for (Future<List<CommitMessage>> done : threads.invokeAll(work)) {
      messages.addAll(done.get());
    }
    try (BatchTableCommit commit = builder.newCommit()) {
      commit.commit(messages);
    }
    return messages.size();
  }

  private void commit(JsonNode request, ObjectNode answer) throws Exception {
    BatchWriteBuilder builder = opened(request).newBatchWriteBuilder();
    List<BinaryRow> rows = loaded.get(request.get("data").asText()).get(0);
    try (BatchTableWrite write = builder.newWrite();
        BatchTableCommit commit = builder.newCommit()) {
      for (BinaryRow row : rows) {
        write.write(row);
      }
      List<CommitMessage> messages = write.prepareCommit();
      timed(
          answer,
          () -> {
            commit.commit(messages);
            return rows.size();
          });
    }
  }
}
