import java.util.Collections;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public class ForebayPlannedTable implements SupportsRead, ScanBuilder {
    private final StructType schema;
    private final Scan scan;

    public ForebayPlannedTable(StructType schema, Scan scan) {
        this.schema = schema;
        this.scan = scan;
    }

    public String name() { return "forebay"; }

    public StructType schema() { return schema; }

    public Set capabilities() { return Collections.singleton(TableCapability.BATCH_READ); }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) { return this; }

    public Scan build() { return scan; }
}
