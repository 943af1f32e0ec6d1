import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.DatabaseDescriptor;

/**
 * Runs scenarios of the Java client of Apache Fluss against a server and prints what it saw as JSON lines.
 *
 * <p>Arguments: the bootstrap address, a word that makes names of this run unique, a scenario or {@code all}, then any
 * number of {@code key=value} client settings. The last line is {@code {"done":true}}; without it the run broke off.
 */
public final class FlussClientExam {
  private FlussClientExam() {}

  private interface Scenario {
    void run(Exam exam) throws Exception;
  }

  private static Map<String, Scenario> scenarios() {
    Map<String, Scenario> scenarios = new LinkedHashMap<>();
    scenarios.put("databases", AdminScenarios::databases);
    scenarios.put("table_info", AdminScenarios::tableInfo);
    scenarios.put("partitions", AdminScenarios::partitions);
    scenarios.put("offsets", AdminScenarios::offsets);
    scenarios.put("log", LogScenarios::log);
    scenarios.put("log_types", LogScenarios::types);
    scenarios.put("volume", LogScenarios::volume);
    scenarios.put("upsert", KvScenarios::upsert);
    scenarios.put("partial_update", KvScenarios::partialUpdate);
    scenarios.put("prefix_lookup", KvScenarios::prefixLookup);
    scenarios.put("limit_scan", KvScenarios::limitScan);
    scenarios.put("kv_types", KvScenarios::types);
    scenarios.put("merge_engines", KvScenarios::mergeEngines);
    scenarios.put("alter", AdminScenarios::alter);
    return scenarios;
  }

  public static void main(String[] args) throws Exception {
    Configuration configuration = new Configuration();
    configuration.setString("bootstrap.servers", args[0]);
    configuration.setString("client.scanner.log.check-crc", "true");
    configuration.setString("client.request-timeout", "10s");
    for (int i = 3; i < args.length; i++) {
      int equals = args[i].indexOf('=');
      configuration.setString(args[i].substring(0, equals), args[i].substring(equals + 1));
    }
    Map<String, Scenario> scenarios = scenarios();
    if (!args[2].equals("all")) {
      scenarios.keySet().retainAll(java.util.List.of(args[2].split(",")));
    }
    try (Connection connection = ConnectionFactory.createConnection(configuration)) {
      for (Map.Entry<String, Scenario> scenario : scenarios.entrySet()) {
        String database = "java_" + args[1] + "_" + scenario.getKey();
        Exam exam = new Exam(connection, database, new Report(scenario.getKey()));
        exam.admin.createDatabase(database, DatabaseDescriptor.EMPTY, false).get();
        try {
          scenario.getValue().run(exam);
        } catch (Exception broken) {
          exam.report.step("the scenario itself", () -> {
            throw broken;
          });
        }
        exam.report.step("(drop its database)", () -> exam.admin.dropDatabase(database, true, true).get());
      }
    }
    System.out.println("{\"done\":true}");
  }
}
