import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.TablePath;

/**
 * Writes to two tables until its standard input ends: an appender to {@code log} (writer, n) and an upserter to {@code
 * keys} (k, a, b), each with a connection of its own, which it makes again after an error.
 *
 * <p>Prints a line of JSON for each group of rows, when the last of them was answered: what was written, and for each
 * row whether that was acknowledged.
 *
 * <p>Arguments: the bootstrap addresses, a database, a seed, the number of the appender, that of the upserter.
 */
public final class FlussLoad {
  private static final int ROWS_MAX = 60;
  private static final int KEYS = 200;

  private static volatile boolean stopped;

  private final String address;
  private final String database;
  private final long number;
  private final Random random;

  private FlussLoad(String address, String database, long seed, long number) {
    this.address = address;
    this.database = database;
    this.number = number;
    this.random = new Random(seed + number);
  }

  public static void main(String[] args) throws Exception {
    long seed = Long.parseLong(args[2]);
    FlussLoad appender = new FlussLoad(args[0], args[1], seed, Long.parseLong(args[3]));
    FlussLoad upserter = new FlussLoad(args[0], args[1], seed, Long.parseLong(args[4]));
    List<Thread> threads = Arrays.asList(new Thread(appender::append), new Thread(upserter::upsert));
    for (Thread thread : threads) {
      thread.start();
    }
    while (System.in.read() >= 0) {}
    stopped = true;
    for (Thread thread : threads) {
      thread.join();
    }
    say("{\"done\":true}");
    // Threads of the client may wait for servers that are gone.
    System.exit(0);
  }

  private static synchronized void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  private Connection connect() {
    Configuration configuration = new Configuration();
    configuration.setString("bootstrap.servers", address);
    configuration.setString("client.writer.acks", "all");
    configuration.setString("client.writer.batch-timeout", "5ms");
    configuration.setString("client.request-timeout", "5s");
    return ConnectionFactory.createConnection(configuration);
  }

  private void append() {
    long sent = 0;
    while (!stopped) {
      try (Connection connection = connect(); Table table = connection.getTable(TablePath.of(database, "log"))) {
        AppendWriter writer = table.newAppend().createWriter();
        boolean all = true;
        while (all && !stopped) {
          long first = sent;
          int count = 1 + random.nextInt(ROWS_MAX);
          List<CompletableFuture<?>> answers = new ArrayList<>();
          for (; sent < first + count; sent++) {
            answers.add(writer.append(Rows.of(number, sent)));
          }
          writer.flush();
          List<Boolean> told = told(answers);
          all = !told.contains(false);
          say("{\"writer\":" + number + ",\"numbers\":" + LongStream.range(first, sent).boxed().collect(Collectors.toList())
              + ",\"told\":" + told + "}");
        }
      } catch (Exception error) {
        failed(error);
      }
    }
  }

  private void upsert() {
    long version = 0;
    Set<Long> unknown = new HashSet<>();
    Set<Long> there = new HashSet<>();
    while (!stopped) {
      try (Connection connection = connect(); Table table = connection.getTable(TablePath.of(database, "keys"))) {
        UpsertWriter writer = table.newUpsert().createWriter();
        boolean all = true;
        while (all && !stopped) {
          version++;
          boolean deletes = random.nextInt(4) == 0;
          List<Long> keys = LongStream.range(number * KEYS, (number + 1) * KEYS).boxed().collect(Collectors.toList());
          if (deletes) {
            // A batch that changes nothing takes an offset without a row.
            keys.removeIf(key -> unknown.contains(key) || !there.contains(key));
          }
          Collections.shuffle(keys, random);
          keys = keys.subList(0, Math.min(keys.size(), 1 + random.nextInt(ROWS_MAX)));
          List<CompletableFuture<?>> answers = new ArrayList<>();
          for (long key : keys) {
            answers.add(
                deletes
                    ? writer.delete(Rows.of(key, null, null))
                    : writer.upsert(Rows.of(key, version, -version)));
          }
          writer.flush();
          List<Boolean> told = told(answers);
          all = !told.contains(false);
          for (int i = 0; i < keys.size(); i++) {
            if (!told.get(i)) {
              unknown.add(keys.get(i));
            } else {
              unknown.remove(keys.get(i));
              if (deletes) {
                there.remove(keys.get(i));
              } else {
                there.add(keys.get(i));
              }
            }
          }
          say("{\"writer\":" + number + ",\"keys\":" + keys + ",\"version\":" + (deletes ? 0 : version)
              + ",\"told\":" + told + "}");
        }
      } catch (Exception error) {
        failed(error);
      }
    }
  }

  /** Which of these writes were acknowledged. */
  private List<Boolean> told(List<CompletableFuture<?>> answers) {
    List<Boolean> told = new ArrayList<>();
    for (CompletableFuture<?> answer : answers) {
      try {
        answer.get();
        told.add(true);
      } catch (Exception error) {
        failed(error);
        told.add(false);
      }
    }
    return told;
  }

  private void failed(Exception error) {
    String text = String.valueOf(error.getMessage()).replaceAll("[^ -~]|[\"\\\\]", " ");
    say("{\"writer\":" + number + ",\"error\":\"" + error.getClass().getSimpleName() + ": " + text + "\"}");
    try {
      Thread.sleep(50); // there may be no server at this moment
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }
}
