import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Makes readers of columns for tasks whose Python worker sends its rows as messages of Arrow. Spark's own reader gives
 * one message in each row, as a text: Spark copies texts once on their way, and BINARY twice.
 */
public class ForebayColumnarFactory implements PartitionReaderFactory {
    private final PartitionReaderFactory python;
    private final StructType schema;

    /** `schema` is the schema of the batches in the messages. */
    public ForebayColumnarFactory(PartitionReaderFactory python, StructType schema) {
        this.python = python;
        this.schema = schema;
    }

    public boolean supportColumnarReads(InputPartition partition) { return true; }

    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException("this scan gives columns, and Spark asks for rows");
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        if (!(partition instanceof ForebayDirectTask)) {
            return new ForebayWorkerReader(python.createReader(partition), schema);
        }
        try {
            return ForebayDirectReader.of(python, schema, (ForebayDirectTask) partition);
        } catch (IOException e) {
            throw new IllegalStateException("a task that cannot be read: " + e.getMessage());
        }
    }

    /** `tasks`, where the JVM reads tasks that have `ranges`, and Python the others. */
    public InputPartition[] tasks(InputPartition[] tasks, byte[] source, byte[] ranges) throws IOException {
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(ranges));
        InputPartition[] made = new InputPartition[tasks.length];
        for (int i = 0; i < made.length; i++) {
            byte[] own = ForebayWire.readBytes(in);
            made[i] = own.length == 0 ? tasks[i] : new ForebayDirectTask((PythonInputPartition) tasks[i], source, own);
        }
        return made;
    }

    /** A scan of Parquet `files` and of tasks whose readers this factory makes (see `ForebayMixedScan`). */
    public ForebayMixedScan beside(
            StructType schema, String text, Scan[] files, Dataset marks, InputPartition[] tasks, Statistics statistics,
            CustomMetric[] metrics, CustomTaskMetric[] values) {
        return new ForebayMixedScan(schema, text, files, marks, tasks, this, statistics, metrics, values);
    }
}

/** Reads the messages of the worker of one task. Used by the thread of the task. */
class ForebayWorkerReader implements PartitionReader {
    private final PartitionReader messages;
    private final ForebayArrow arrow;
    private ColumnarBatch batch = null;

    ForebayWorkerReader(PartitionReader messages, StructType schema) {
        this.messages = messages;
        arrow = new ForebayArrow(schema, null);
    }

    public boolean next() throws IOException {
        batch = null;
        if (!messages.next()) { return false; }
        UTF8String message = ((InternalRow) messages.get()).getUTF8String(0);
        Object base = message.getBaseObject();
        if (base instanceof byte[]) {
            int from = (int) (message.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET);
            batch = arrow.read((byte[]) base, from, message.numBytes(), 0, -1);
        } else {
            byte[] copied = message.getBytes();
            batch = arrow.read(copied, 0, copied.length, 0, -1);
        }
        return true;
    }

    public Object get() { return batch; }

    public void close() throws IOException {
        batch = null;
        arrow.close();
        messages.close();
    }

    public void initMetricsValues(CustomTaskMetric[] values) { messages.initMetricsValues(values); }

    /** The byte counts of the Python worker. Spark counts the rows. */
    public CustomTaskMetric[] currentMetricsValues() { return messages.currentMetricsValues(); }
}
