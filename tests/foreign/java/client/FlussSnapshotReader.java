import java.util.Arrays;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.metadata.KvSnapshots;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TablePath;

/**
 * Downloads the newest snapshot of each bucket of a table, and prints as one line of {@link Report} for each bucket:
 * the offset of the log that it contains, and all its rows.
 *
 * <p>Arguments: the bootstrap address, a database, a table.
 */
public final class FlussSnapshotReader {
  private FlussSnapshotReader() {}

  public static void main(String[] args) throws Exception {
    Configuration configuration = new Configuration();
    configuration.setString("bootstrap.servers", args[0]);
    TablePath path = TablePath.of(args[1], args[2]);
    try (Connection connection = ConnectionFactory.createConnection(configuration)) {
      Table table = connection.getTable(path);
      Report report = new Report("snapshots");
      KvSnapshots snapshots = connection.getAdmin().getLatestKvSnapshots(path).get();
      for (int bucket : snapshots.getBucketIds()) {
        TableBucket tableBucket = new TableBucket(table.getTableInfo().getTableId(), bucket);
        report.step(
            "bucket " + bucket,
            () ->
                Arrays.asList(
                    snapshots.getLogOffset(bucket).getAsLong(),
                    Exam.readBatches(
                        table.newScan().createBatchScanner(tableBucket, snapshots.getSnapshotId(bucket).getAsLong()),
                        table.getTableInfo().getRowType())));
      }
    }
    System.out.println("{\"done\":true}");
  }
}
