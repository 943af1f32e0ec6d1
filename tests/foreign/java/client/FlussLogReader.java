import java.util.Arrays;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.TablePath;

/**
 * Reads the log of a table from its beginning, and prints it as one line of {@link Report}.
 *
 * <p>Arguments: the bootstrap address, a database, a table, how many records there are, and the positions of the columns
 * to read with commas between them, or nothing for all of them.
 */
public final class FlussLogReader {
  private FlussLogReader() {}

  public static void main(String[] args) throws Exception {
    Configuration configuration = new Configuration();
    configuration.setString("bootstrap.servers", args[0]);
    configuration.setString("client.scanner.log.check-crc", "true");
    int[] columns =
        args[4].isEmpty() ? null : Arrays.stream(args[4].split(",")).mapToInt(Integer::parseInt).toArray();
    try (Connection connection = ConnectionFactory.createConnection(configuration)) {
      Table table = connection.getTable(TablePath.of(args[1], args[2]));
      Exam exam = new Exam(connection, args[1], new Report("reader"));
      exam.report.step(args[2], () -> exam.readLog(table, columns, Integer.parseInt(args[3])));
    }
    System.out.println("{\"done\":true}");
  }
}
