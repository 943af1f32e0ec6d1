import java.util.ArrayList;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.V1ScanWrapper;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;

public class ForebayUnions extends Rule {
    public ForebayUnions() {}

    public TreeNode apply(TreeNode plan) { return united((LogicalPlan) plan); }

    private static LogicalPlan united(LogicalPlan plan) {
        if (plan instanceof DataSourceV2ScanRelation) {
            Object scan = ((DataSourceV2ScanRelation) plan).scan();
            if (!(scan instanceof V1ScanWrapper)) { return plan; }
            Object wrapped = ((V1ScanWrapper) scan).v1Scan();
            return wrapped instanceof Function ? (LogicalPlan) ((Function) wrapped).apply(plan) : plan;
        }
        Seq children = (Seq) plan.children();
        ArrayList made = new ArrayList();
        boolean isNew = false;
        for (int i = 0; i < children.size(); i++) {
            Object child = children.apply(i);
            LogicalPlan other = united((LogicalPlan) child);
            isNew = isNew || other != child;
            made.add(other);
        }
        return isNew ? (LogicalPlan) plan.withNewChildren(CollectionConverters.asScala(made).toSeq()) : plan;
    }
}
