import java.util.Locale;
import org.apache.spark.sql.connector.metric.CustomMetric;

/** Milliseconds in Spark's UI: the sum over all tasks, and the maximum of a task. */
public class ForebayTime implements CustomMetric {
    private final String name;
    private final String description;

    public ForebayTime() { this("", "", 0); }

    /** A constructor as `ForebayCount` has; the driver reports no values of this metric. */
    public ForebayTime(String name, String description, long value) {
        this.name = name;
        this.description = description;
    }

    public String name() { return name; }

    public String description() { return description; }

    public String aggregateTaskMetrics(long[] values) {
        long sum = 0;
        long most = 0;
        for (int i = 0; i < values.length; i++) {
            sum += values[i];
            most = Math.max(most, values[i]);
        }
        return shown(sum) + (values.length > 1 ? " (at most " + shown(most) + " in a task)" : "");
    }

    private static String shown(long milliseconds) {
        if (milliseconds < 1000) { return milliseconds + " ms"; }
        return String.format(Locale.ROOT, "%.1f s", new Object[] {Double.valueOf(milliseconds / 1000.0)});
    }
}
