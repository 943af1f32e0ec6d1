import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.flink.tiering.LakeTieringJobBuilder;

/**
 * Fluss's own readers and tiering service of a released version, in Flink's mini cluster.
 *
 * <p>Arguments: the bootstrap server, the warehouse of the Paimon lake. Each line of standard input is answered by one
 * line: {@code tier} starts the tiering service; {@code sql QUERY} runs a batch query in the catalog of the cluster,
 * which is a union read for tables with a lake, and answers with its rows in order; {@code exit} ends. An answer that
 * begins with {@code ERROR} has the chain of causes, in one line.
 */
public final class FlussFlinkExam {
  private final String bootstrap;
  private final String warehouse;
  private TableEnvironment tables;
  private JobClient tiering;

  private FlussFlinkExam(String bootstrap, String warehouse) {
    this.bootstrap = bootstrap;
    this.warehouse = warehouse;
  }

  public static void main(String[] arguments) throws Exception {
    FlussFlinkExam exam = new FlussFlinkExam(arguments[0], arguments[1]);
    BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = requests.readLine(); line != null && !line.equals("exit"); line = requests.readLine()) {
      System.out.println(exam.answer(line));
      System.out.flush();
    }
    Runtime.getRuntime().halt(0);
  }

  private String answer(String request) {
    try {
      if (request.equals("tier")) {
        return tier();
      }
      return sql(request.substring("sql ".length()));
    } catch (Throwable failure) {
      StringBuilder said = new StringBuilder("ERROR");
      for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
        StackTraceElement[] trace = cause.getStackTrace();
        said.append(" | ").append(cause).append(" at ").append(trace.length == 0 ? "?" : trace[0]);
      }
      return said.toString().replace('\n', ' ');
    }
  }

  private String tier() throws Exception {
    StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
    environment.setParallelism(2);
    Configuration fluss = new Configuration();
    fluss.setString("bootstrap.servers", bootstrap);
    fluss.setString("tiering.poll.table.interval", "500 ms");
    Configuration lake = new Configuration();
    lake.setString("metastore", "filesystem");
    lake.setString("warehouse", warehouse);
    tiering =
        LakeTieringJobBuilder.newBuilder(environment, fluss, lake, new Configuration(), "paimon").build();
    return "tiering " + tiering.getJobID();
  }

  private String sql(String query) throws Exception {
    if (tables == null) {
      org.apache.flink.configuration.Configuration settings = new org.apache.flink.configuration.Configuration();
      settings.setString("parallelism.default", "1");
      tables = TableEnvironment.create(
          EnvironmentSettings.newInstance().inBatchMode().withConfiguration(settings).build());
      tables.executeSql(
          "CREATE CATALOG f WITH ('type' = 'fluss', 'bootstrap.servers' = '" + bootstrap + "')");
      tables.useCatalog("f");
    }
    List<String> rows = new ArrayList<>();
    try (CloseableIterator<Row> found = tables.executeSql(query).collect()) {
      while (found.hasNext()) {
        rows.add(found.next().toString());
      }
    }
    Collections.sort(rows);
    return String.join(";", rows);
  }
}
