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

    public ForebayTasks(
            StructType schema, String text, InputPartition[] partitions, PartitionReaderFactory factory,
            Statistics statistics) {
        this.schema = schema;
        this.text = text;
        this.partitions = partitions;
        this.factory = factory;
        this.statistics = statistics;
    }

    public StructType readSchema() { return schema; }

    public String description() { return text; }

    public Statistics estimateStatistics() { return statistics; }

    public Batch toBatch() { return this; }

    public InputPartition[] planInputPartitions() { return partitions; }

    public PartitionReaderFactory createReaderFactory() { return factory; }
}
