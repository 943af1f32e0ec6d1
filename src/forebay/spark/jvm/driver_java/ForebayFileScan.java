import java.util.Arrays;
import java.util.Collections;
import java.util.OptionalLong;
import java.util.Set;
import java.util.function.BiFunction;
import java.util.function.Function;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.execution.datasources.v2.FileScan;
import org.apache.spark.sql.types.StructType;

class ForebayFileScan implements SupportsReportStatistics, SupportsRuntimeV2Filtering, BiFunction {
    private final Scan files;
    private final SupportsRuntimeV2Filtering tasks;
    private final Statistics statistics;
    private final String[] key;
    private final String[] filtered;
    private final CustomMetric[] metrics;
    private volatile Scan read;
    private final ThreadLocal chosen = new ThreadLocal();

    ForebayFileScan(
            Scan files, SupportsRuntimeV2Filtering tasks, Statistics statistics, String[] key, String[] filtered,
            CustomMetric[] metrics) {
        this.files = files;
        this.tasks = tasks;
        this.statistics = statistics;
        this.key = key;
        this.filtered = filtered;
        this.metrics = metrics;
        read = files;
    }

    public Object apply(Object relation, Object filtered) {
        return key.length > 0 && ((Set) filtered).containsAll(Arrays.asList(key)) ? tasks : null;
    }

    public StructType readSchema() { return files.readSchema(); }

    public String description() { return files.description(); }

    public Scan.ColumnarSupportMode columnarSupportMode() { return files.columnarSupportMode(); }

    public CustomMetric[] supportedCustomMetrics() { return metrics; }

    public CustomTaskMetric[] reportDriverMetrics() {
        Scan scan = read;
        if (!(scan instanceof FileScan)) { return new CustomTaskMetric[0]; }
        return new CustomTaskMetric[] {new ForebayFilesRead(((FileScan) scan).fileIndex().inputFiles().length)};
    }

    public Statistics estimateStatistics() { return statistics; }

    public NamedReference[] filterAttributes() {
        NamedReference[] columns = new NamedReference[filtered.length];
        for (int i = 0; i < columns.length; i++) { columns[i] = Expressions.column(filtered[i]); }
        return columns;
    }

    public void filter(Predicate[] predicates) { chosen.set(((Function) tasks).apply(predicates)); }

    public Batch toBatch() {
        Object scan = chosen.get();
        chosen.remove();
        read = scan == null ? files : (Scan) scan;
        return read.toBatch();
    }

    public boolean equals(Object other) {
        return other instanceof ForebayFileScan && files.equals(((ForebayFileScan) other).files);
    }

    public int hashCode() { return files.hashCode(); }
}

/** The number of files that were read, for the metric of this name (forebay.spark.jvm.scan_metrics). */
class ForebayFilesRead implements CustomTaskMetric {
    private final long count;

    ForebayFilesRead(long count) { this.count = count; }

    public String name() { return "forebayFiles"; }

    public long value() { return count; }
}

/** The estimated size of a scan, for Spark's choice of joins; -1 if it is unknown. */
class ForebaySize implements Statistics {
    private final long rows;
    private final long bytes;

    ForebaySize(long rows, long bytes) {
        this.rows = rows;
        this.bytes = bytes;
    }

    public OptionalLong numRows() { return rows < 0 ? OptionalLong.empty() : OptionalLong.of(rows); }

    public OptionalLong sizeInBytes() { return bytes < 0 ? OptionalLong.empty() : OptionalLong.of(bytes); }

    public java.util.Map columnStats() { return Collections.emptyMap(); }
}
