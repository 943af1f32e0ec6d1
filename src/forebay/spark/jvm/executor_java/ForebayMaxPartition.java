import java.util.function.Function;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;

/** max_pt: the last partition of the table that its argument names, which Spark asks for while it plans a query. */
public class ForebayMaxPartition implements ScalarFunction {
    private final transient Function ofTable;

    public ForebayMaxPartition(Function ofTable) { this.ofTable = ofTable; }

    public String name() { return "max_pt"; }

    public String canonicalName() { return "forebay.max_pt"; }

    public DataType[] inputTypes() { return new DataType[] {DataTypes.StringType}; }

    public DataType resultType() { return DataTypes.StringType; }

    public Object produceResult(InternalRow row) {
        if (ofTable == null) { throw new UnsupportedOperationException("max_pt: the name of the table must be a literal"); }
        Object found = row.isNullAt(0) ? null : ofTable.apply(row.getUTF8String(0).toString());
        return found == null ? null : UTF8String.fromString((String) found);
    }
}
