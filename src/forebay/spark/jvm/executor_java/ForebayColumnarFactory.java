import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Makes readers of columns for tasks whose Python worker sends its rows as messages of Arrow: one message in each row
 * that Spark's own reader gives, as a text, which Spark copies once on its way and not twice as it does BINARY.
 */
public class ForebayColumnarFactory implements PartitionReaderFactory {
    private final PartitionReaderFactory python;
    private final StructType schema;

    /** `schema` is that of the batches in the messages. */
    public ForebayColumnarFactory(PartitionReaderFactory python, StructType schema) {
        this.python = python;
        this.schema = schema;
    }

    public boolean supportColumnarReads(InputPartition partition) { return true; }

    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException("this scan gives columns, and Spark asks for rows");
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        return new ForebayWorkerReader(python.createReader(partition), schema);
    }
}

/** Reads what the worker of one task sends. Used by the thread of the task. */
class ForebayWorkerReader implements PartitionReader {
    private final PartitionReader messages;
    private final ForebayArrow arrow;
    private ColumnarBatch batch = null;

    ForebayWorkerReader(PartitionReader messages, StructType schema) {
        this.messages = messages;
        arrow = new ForebayArrow(schema);
    }

    public boolean next() throws IOException {
        batch = null;
        if (!messages.next()) { return false; }
        UTF8String message = ((InternalRow) messages.get()).getUTF8String(0);
        Object base = message.getBaseObject();
        if (base instanceof byte[]) {
            int from = (int) (message.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET);
            batch = arrow.read((byte[]) base, from, message.numBytes());
        } else {
            byte[] copied = message.getBytes();
            batch = arrow.read(copied, 0, copied.length);
        }
        return true;
    }

    public Object get() { return batch; }

    public void close() throws IOException {
        batch = null;
        messages.close();
    }

    public void initMetricsValues(CustomTaskMetric[] values) { messages.initMetricsValues(values); }

    /** The bytes of its Python worker; rows are counted by Spark. */
    public CustomTaskMetric[] currentMetricsValues() { return messages.currentMetricsValues(); }
}
