import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.TableScan;
import org.apache.spark.sql.types.StructType;

public class ForebayRelation extends BaseRelation implements TableScan {
    private final SQLContext context;
    private final StructType schema;
    private final RDD rows;

    public ForebayRelation(SQLContext context, StructType schema, RDD rows) {
        this.context = context;
        this.schema = schema;
        this.rows = rows;
    }

    public SQLContext sqlContext() { return context; }

    public StructType schema() { return schema; }

    public boolean needConversion() { return false; }

    public RDD buildScan() { return rows; }
}
