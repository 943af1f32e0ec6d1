import java.io.IOException;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;
import scala.reflect.ClassTag$;

/**
 * A scan with two kinds of tasks: some read Parquet files by Spark's own reader, the others read what their factory
 * reads. If there are `marks`, marked rows in the files of the last of `files` are left out. `marks` is a query that
 * runs with the scan; each of its rows has the marks of a group of these files, as
 * `forebay.spark.reading.live_read.marks_batch` writes them. The scan of such files has three more columns: the number
 * of the row in its file, the number of the group, and the number of the file in the group.
 */
class ForebayMixedScan implements SupportsReportStatistics, Batch {
    private final StructType schema;
    private final String text;
    private final Dataset marks;
    private final InputPartition[] partitions;
    private final PartitionReaderFactory tasks;
    private final PartitionReaderFactory[] files;
    private final boolean hasColumns;
    private final Statistics statistics;
    private final CustomMetric[] metrics;
    private final CustomTaskMetric[] values;
    private PartitionReaderFactory made = null;

    ForebayMixedScan(
            StructType schema, String text, Scan[] files, Dataset marks, InputPartition[] others,
            PartitionReaderFactory tasks, Statistics statistics, CustomMetric[] metrics, CustomTaskMetric[] values) {
        this.schema = schema;
        this.text = text;
        this.marks = marks;
        this.tasks = tasks;
        this.statistics = statistics;
        this.metrics = metrics;
        this.values = values;
        this.files = new PartitionReaderFactory[files.length];
        InputPartition[][] planned = new InputPartition[files.length][];
        int count = others.length;
        boolean areColumns = true;
        for (int i = 0; i < files.length; i++) {
            Batch batch = files[i].toBatch();
            this.files[i] = batch.createReaderFactory();
            planned[i] = batch.planInputPartitions();
            count += planned[i].length;
            for (int j = 0; j < planned[i].length; j++) {
                areColumns = areColumns && this.files[i].supportColumnarReads(planned[i][j]);
            }
        }
        hasColumns = areColumns;
        // Tasks that read files take longest, so they come first.
        partitions = new InputPartition[count];
        int place = 0;
        for (int i = 0; i < files.length; i++) {
            for (int j = 0; j < planned[i].length; j++) { partitions[place++] = new ForebayFileTask(planned[i][j], i); }
        }
        System.arraycopy(others, 0, partitions, place, others.length);
    }

    /** Whether Spark's reader gives columns. It does not if the session forbids it, or for very many columns. */
    public boolean hasColumns() { return hasColumns; }

    public StructType readSchema() { return schema; }

    public String description() { return text; }

    public Scan.ColumnarSupportMode columnarSupportMode() { return Scan.ColumnarSupportMode.SUPPORTED; }

    public Statistics estimateStatistics() { return statistics; }

    public CustomMetric[] supportedCustomMetrics() { return metrics; }

    public CustomTaskMetric[] reportDriverMetrics() { return values; }

    public Batch toBatch() { return this; }

    public InputPartition[] planInputPartitions() { return partitions; }

    /** Spark calls this when the query runs, so the marks are found here, by tasks of the same query. */
    public synchronized PartitionReaderFactory createReaderFactory() {
        if (made == null) {
            made = new ForebayMixedFactory(tasks, files, marks == null ? null : found(), schema.length());
        }
        return made;
    }

    private Broadcast found() {
        InternalRow[] rows = marks.queryExecution().executedPlan().executeCollect();
        long[][] groups = new long[rows.length][];
        for (int i = 0; i < rows.length; i++) { groups[i] = rows[i].getArray(0).toLongArray(); }
        return marks.queryExecution().sparkSession().sparkContext().broadcast(
            groups, ClassTag$.MODULE$.apply(groups.getClass()));
    }
}

/** A task that reads files, by the factory with this number. */
class ForebayFileTask implements InputPartition {
    final InputPartition files;
    final int factory;

    ForebayFileTask(InputPartition files, int factory) {
        this.files = files;
        this.factory = factory;
    }

    public String[] preferredLocations() { return files.preferredLocations(); }
}

/** Makes the readers of a `ForebayMixedScan`. `marks` belong to the files of the last factory. */
class ForebayMixedFactory implements PartitionReaderFactory {
    private final PartitionReaderFactory tasks;
    private final PartitionReaderFactory[] files;
    private final Broadcast marks;
    private final int columns;

    ForebayMixedFactory(PartitionReaderFactory tasks, PartitionReaderFactory[] files, Broadcast marks, int columns) {
        this.tasks = tasks;
        this.files = files;
        this.marks = marks;
        this.columns = columns;
    }

    public boolean supportColumnarReads(InputPartition partition) { return true; }

    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException("this scan gives columns, and Spark asks for rows");
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        if (!(partition instanceof ForebayFileTask)) { return tasks.createColumnarReader(partition); }
        ForebayFileTask task = (ForebayFileTask) partition;
        PartitionReader reader = files[task.factory].createColumnarReader(task.files);
        boolean isMarked = marks != null && task.factory == files.length - 1;
        return isMarked ? new ForebayKeptReader(reader, (long[][]) marks.value(), columns) : reader;
    }
}

/** The rows of files that are not marked. Used by the thread of the task. */
class ForebayKeptReader implements PartitionReader {
    private final PartitionReader files;
    private final long[][] groups;
    private final int columns;
    private int[] places = new int[0];
    private ColumnarBatch batch = null;

    /** The files' reader gives `columns` columns, and then the numbers of the row, of its group, and of its file. */
    ForebayKeptReader(PartitionReader files, long[][] groups, int columns) {
        this.files = files;
        this.groups = groups;
        this.columns = columns;
    }

    public boolean next() throws IOException {
        batch = null;
        while (files.next()) {
            ColumnarBatch whole = (ColumnarBatch) files.get();
            int found = whole.numRows() == 0 ? 0 : keep(whole);
            if (found > 0) {
                batch = keptOf(whole, found);
                return true;
            }
        }
        return false;
    }

    /** Record the rows that are not marked; returns their number. The marks have a bit for each row of each file. */
    private int keep(ColumnarBatch whole) {
        int rows = whole.numRows();
        ColumnVector numbers = whole.column(columns);
        long[] marks = groups[whole.column(columns + 1).getInt(0)];
        int file = whole.column(columns + 2).getInt(0);
        int files = (int) marks[0];
        int from = (int) marks[file];
        long end = 64L * ((file + 1 < files ? (int) marks[file + 1] : marks.length) - from);
        if (numbers.hasNull()) {
            throw new IllegalStateException("this Spark does not number the rows of Parquet files");
        }
        if (places.length < rows) { places = new int[rows]; }
        int found = 0;
        for (int i = 0; i < rows; i++) {
            long row = numbers.getLong(i);
            if (row < 0 || row >= end) {
                throw new IllegalStateException("row " + row + " of a file that had " + end + " rows at most");
            }
            if ((marks[from + (int) (row >> 6)] >>> (int) (row & 63) & 1) == 0) { places[found++] = i; }
        }
        return found;
    }

    private ColumnarBatch keptOf(ColumnarBatch whole, int found) {
        ColumnVector[] kept = new ColumnVector[columns];
        for (int i = 0; i < columns; i++) {
            ColumnVector column = whole.column(i);
            kept[i] = found == whole.numRows() ? column : new ForebayKeptColumn(column, places);
        }
        return new ColumnarBatch(kept, found);
    }

    public Object get() { return batch; }

    public void close() throws IOException {
        batch = null;
        files.close();
    }

    public void initMetricsValues(CustomTaskMetric[] values) { files.initMetricsValues(values); }

    public CustomTaskMetric[] currentMetricsValues() { return files.currentMetricsValues(); }
}

/** Selected rows of a column. The reader that has made the column closes it. */
class ForebayKeptColumn extends ColumnVector {
    private final ColumnVector whole;
    private final int[] places;
    private final boolean hasNull;

    ForebayKeptColumn(ColumnVector whole, int[] places) {
        super(whole.dataType());
        this.whole = whole;
        this.places = places;
        hasNull = whole.hasNull();
    }

    public void close() {}

    public void closeIfFreeable() {}

    public boolean hasNull() { return hasNull; }

    /** An upper bound: rows that are left out are included. */
    public int numNulls() { return whole.numNulls(); }

    public boolean isNullAt(int row) { return hasNull && whole.isNullAt(places[row]); }

    public boolean getBoolean(int row) { return whole.getBoolean(places[row]); }

    public byte getByte(int row) { return whole.getByte(places[row]); }

    public short getShort(int row) { return whole.getShort(places[row]); }

    public int getInt(int row) { return whole.getInt(places[row]); }

    public long getLong(int row) { return whole.getLong(places[row]); }

    public float getFloat(int row) { return whole.getFloat(places[row]); }

    public double getDouble(int row) { return whole.getDouble(places[row]); }

    public ColumnarArray getArray(int row) { return whole.getArray(places[row]); }

    public ColumnarMap getMap(int row) { return whole.getMap(places[row]); }

    public Decimal getDecimal(int row, int precision, int scale) {
        return whole.getDecimal(places[row], precision, scale);
    }

    public UTF8String getUTF8String(int row) { return whole.getUTF8String(places[row]); }

    public byte[] getBinary(int row) { return whole.getBinary(places[row]); }

    public ColumnVector getChild(int ordinal) { return new ForebayKeptColumn(whole.getChild(ordinal), places); }
}
