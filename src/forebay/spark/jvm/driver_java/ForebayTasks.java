import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.types.StructType;

public class ForebayTasks implements SupportsReportStatistics, Batch {
    private final StructType schema;
    private final String text;
    private final InputPartition[] partitions;
    private final PartitionReaderFactory factory;
    private final Statistics statistics;
    private final CustomMetric[] metrics;
    private final CustomTaskMetric[] values;

    public ForebayTasks(
            StructType schema, String text, InputPartition[] partitions, PartitionReaderFactory factory,
            Statistics statistics, CustomMetric[] metrics, CustomTaskMetric[] values) {
        this.schema = schema;
        this.text = text;
        this.partitions = partitions;
        this.factory = factory;
        this.statistics = statistics;
        this.metrics = metrics;
        this.values = values;
    }

    public StructType readSchema() { return schema; }

    public String description() { return text; }

    public Statistics estimateStatistics() { return statistics; }

    public CustomMetric[] supportedCustomMetrics() { return metrics; }

    public CustomTaskMetric[] reportDriverMetrics() { return values; }

    public Batch toBatch() { return this; }

    public InputPartition[] planInputPartitions() { return partitions; }

    public PartitionReaderFactory createReaderFactory() { return factory; }
}
