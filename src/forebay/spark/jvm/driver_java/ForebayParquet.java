import java.io.IOException;
import java.lang.reflect.Method;
import java.util.HashMap;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetScan;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetScanBuilder;
import org.apache.spark.sql.internal.connector.PredicateUtils;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Makes scans of Parquet files. Python makes a scan with one call; to make it from its parts would take dozens. */
public class ForebayParquet {
    private final String[] fields;
    private final Method copy;

    public ForebayParquet() throws NoSuchMethodException {
        Method[] methods = ParquetScan.class.getMethods();
        Method found = null;
        for (int i = 0; i < methods.length; i++) {
            if (methods[i].getName().equals("copy")) { found = methods[i]; }
        }
        if (found == null) { throw new NoSuchMethodException("ParquetScan.copy"); }
        copy = found;
        fields = new String[copy.getParameterTypes().length];
    }

    /**
     * Spark's scan of the files that `names` lists (see `ForebayFiles`), with the columns `numbers` at the end.
     *
     * `options` are alternating names and values, and so are `settings`, which are for Hadoop's file systems. Throws
     * FileNotFoundException with the name of a missing file, and other IOExceptions if a store does not answer.
     */
    public Scan scan(
            SparkSession session, String options, String settings, StructType schema, StructType numbers, String names,
            Predicate[] filters) throws Exception {
        HashMap all = new HashMap();
        HashMap ofStores = new HashMap();
        put(options, all);
        put(settings, ofStores);
        all.putAll(ofStores);
        ForebayFiles files = new ForebayFiles(session, names, numbers, ofStores);
        ParquetScan made = (ParquetScan) new ParquetScanBuilder(
            session, files, schema, schema.asNullable(), new CaseInsensitiveStringMap(all)).build();
        Object[] values = new Object[fields.length];
        for (int i = 0; i < values.length; i++) {
            String field = made.productElementName(i);
            values[i] = made.productElement(i);
            if (field.equals("readDataSchema")) { values[i] = schema; } // the builder makes every column nullable
            if (field.equals("readPartitionSchema")) { values[i] = numbers; }
            if (field.equals("pushedFilters")) { values[i] = PredicateUtils.toV1(filters); }
        }
        return (Scan) copy.invoke(made, values);
    }

    /** The scan `files`, whose files `tasks` selects by the values of a join for the columns `filtered`. */
    public Scan chosen(
            Scan files, SupportsRuntimeV2Filtering tasks, long rows, long bytes, String key, String filtered,
            CustomMetric[] metrics) {
        return new ForebayFileScan(
            files, tasks, new ForebaySize(rows, bytes), parts(key), parts(filtered), metrics);
    }

    private static void put(String pairs, HashMap found) {
        String[] parts = parts(pairs);
        for (int i = 0; i < parts.length; i += 2) { found.put(parts[i], parts[i + 1]); }
    }

    private static String[] parts(String joined) { return joined.isEmpty() ? new String[0] : joined.split("\0", -1); }
}
