import java.util.ArrayList;
import java.util.List;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TablePath;

/**
 * Reads a primary-key table of BIGINT and STRING in each way that there is, tries to change it, and prints each as one
 * line of {@link Report}.
 *
 * <p>Arguments: the bootstrap address, a database, a table, and the number of keys to look up (0, 1, 2 ...).
 */
public final class FlussStandbyReader {
  private FlussStandbyReader() {}

  public static void main(String[] args) throws Exception {
    Configuration configuration = new Configuration();
    configuration.setString("bootstrap.servers", args[0]);
    TablePath path = TablePath.of(args[1], args[2]);
    long keys = Long.parseLong(args[3]);
    try (Connection connection = ConnectionFactory.createConnection(configuration)) {
      Table table = connection.getTable(path);
      int buckets = table.getTableInfo().getNumBuckets();
      Exam exam = new Exam(connection, args[1], new Report("standby"));
      exam.report.step("tables", () -> exam.admin.listTables(args[1]).get());
      exam.report.step("ends", () -> exam.offsets(path, null, buckets, new OffsetSpec.LatestSpec()));
      exam.report.step(
          "lookups",
          () -> {
            List<Object> rows = new ArrayList<>();
            for (long key = 0; key < keys; key++) {
              rows.add(KvScenarios.lookup(table, key));
            }
            return rows;
          });
      exam.report.step(
          "limit scans",
          () -> {
            List<Object> rows = new ArrayList<>();
            for (int bucket = 0; bucket < buckets; bucket++) {
              TableBucket tableBucket = new TableBucket(table.getTableInfo().getTableId(), bucket);
              rows.addAll(
                  Exam.readBatches(
                      table.newScan().limit(1000).createBatchScanner(tableBucket), table.getTableInfo().getRowType()));
            }
            return rows;
          });
      exam.report.step(
          "upsert", () -> table.newUpsert().createWriter().upsert(Rows.of(1L, "changed")).get().getLogEndOffset());
      exam.report.step("drop", () -> exam.admin.dropTable(path, false).get());
    }
    System.out.println("{\"done\":true}");
  }
}
