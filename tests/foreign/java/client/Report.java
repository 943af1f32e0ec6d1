import java.util.Collection;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.fluss.rpc.protocol.Errors;

/** Prints what each step of a scenario saw, one JSON object per line. */
final class Report {
  private static final long STEP_SECONDS = 30;

  private final String scenario;

  Report(String scenario) {
    this.scenario = scenario;
  }

  /**
   * Runs one step and prints {@code value} with its result, or {@code error} with the Fluss error code (-2 for an
   * error that the client made up itself) and {@code type} with the exception's name. A step that takes too long is
   * given up as a {@code TimeoutException}: several waits of the client have no limit of their own.
   */
  void step(String name, Callable<?> action) {
    StringBuilder line = new StringBuilder("{\"scenario\":");
    appendJson(line, scenario);
    line.append(",\"step\":");
    appendJson(line, name);
    try {
      Object value = withinTime(action);
      line.append(",\"value\":");
      appendJson(line, value);
    } catch (Throwable thrown) {
      Throwable cause = rootOf(thrown);
      if (codeOf(cause) < 0) {
        // Errors without a code of their own can be told apart by nothing else.
        cause.printStackTrace();
      }
      line.append(",\"error\":").append(codeOf(cause)).append(",\"type\":");
      appendJson(line, cause.getClass().getSimpleName());
      line.append(",\"message\":");
      appendJson(line, messages(cause));
    }
    System.out.println(line.append('}'));
    System.out.flush();
  }

  private static Object withinTime(Callable<?> action) throws Exception {
    ExecutorService worker =
        Executors.newSingleThreadExecutor(
            task -> {
              Thread thread = new Thread(task, "step");
              thread.setDaemon(true);
              return thread;
            });
    try {
      Future<?> result = worker.submit(action);
      return result.get(STEP_SECONDS, TimeUnit.SECONDS);
    } finally {
      worker.shutdownNow();
    }
  }

  private static Throwable rootOf(Throwable thrown) {
    Throwable cause = thrown;
    while ((cause instanceof ExecutionException || cause instanceof CompletionException)
        && cause.getCause() != null) {
      cause = cause.getCause();
    }
    return cause;
  }

  /** The first line of each message down the chain of causes. */
  private static String messages(Throwable thrown) {
    StringBuilder text = new StringBuilder();
    for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
      text.append(text.length() == 0 ? "" : " <- ").append(cause.getClass().getSimpleName()).append(": ");
      text.append(String.valueOf(cause.getMessage()).lines().findFirst().orElse(""));
    }
    return text.toString();
  }

  private static int codeOf(Throwable cause) {
    int code = Errors.forException(cause).code();
    boolean fromTheServer = cause.getClass().getName().startsWith("org.apache.fluss.exception.");
    return code == Errors.UNKNOWN_SERVER_ERROR.code() && !fromTheServer ? -2 : code;
  }

  static void appendJson(StringBuilder out, Object value) {
    if (value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long
        || value instanceof Short || value instanceof Byte) {
      out.append(value);
    } else if (value instanceof Float || value instanceof Double) {
      double number = ((Number) value).doubleValue();
      if (Double.isNaN(number) || Double.isInfinite(number)) {
        appendJson(out, value.toString());
      } else {
        out.append(value);
      }
    } else if (value instanceof Map) {
      String separator = "{";
      for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
        out.append(separator);
        appendJson(out, String.valueOf(entry.getKey()));
        out.append(':');
        appendJson(out, entry.getValue());
        separator = ",";
      }
      out.append(separator.equals("{") ? "{}" : "}");
    } else if (value instanceof Collection) {
      String separator = "[";
      for (Object element : (Collection<?>) value) {
        out.append(separator);
        appendJson(out, element);
        separator = ",";
      }
      out.append(separator.equals("[") ? "[]" : "]");
    } else {
      appendString(out, value.toString());
    }
  }

  private static void appendString(StringBuilder out, String text) {
    out.append('"');
    for (char character : text.toCharArray()) {
      if (character == '"' || character == '\\') {
        out.append('\\').append(character);
      } else if (character < ' ' || character > '~') {
        out.append(String.format("\\u%04x", (int) character));
      } else {
        out.append(character);
      }
    }
    out.append('"');
  }
}
