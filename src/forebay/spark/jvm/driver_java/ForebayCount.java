import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/**
 * A number in Spark's UI, the sum of the values of all tasks; also a value of it that the driver reports. Spark creates
 * another object by the name of the class, which adds the values up.
 */
public class ForebayCount extends CustomSumMetric implements CustomTaskMetric {
    private final String name;
    private final String description;
    private final long value;

    public ForebayCount() { this("", "", 0); }

    public ForebayCount(String name, String description, long value) {
        this.name = name;
        this.description = description;
        this.value = value;
    }

    public String name() { return name; }

    public String description() { return description; }

    public long value() { return value; }
}
