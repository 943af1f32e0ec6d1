import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.StructType;

public class ForebayTasks implements Scan, Batch {
    private final StructType schema;
    private final String text;
    private final InputPartition[] partitions;
    private final PartitionReaderFactory factory;

    public ForebayTasks(
            StructType schema, String text, InputPartition[] partitions, PartitionReaderFactory factory) {
        this.schema = schema;
        this.text = text;
        this.partitions = partitions;
        this.factory = factory;
    }

    public StructType readSchema() { return schema; }

    public String description() { return text; }

    public Batch toBatch() { return this; }

    public InputPartition[] planInputPartitions() { return partitions; }

    public PartitionReaderFactory createReaderFactory() { return factory; }
}
