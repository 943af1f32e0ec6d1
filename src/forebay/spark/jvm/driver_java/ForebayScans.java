import java.util.ArrayList;
import java.util.HashSet;
import java.util.Set;
import java.util.function.BiFunction;
import org.apache.spark.sql.catalyst.expressions.DynamicPruningSubquery;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.internal.SQLConf$;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.math.BigInt;
import scala.math.BigInt$;

public class ForebayScans extends Rule {
    public ForebayScans() {}

    public TreeNode apply(TreeNode plan) { return chosen((LogicalPlan) plan, new HashSet()); }

    private static LogicalPlan chosen(LogicalPlan plan, Set filtered) {
        if (plan instanceof DataSourceV2ScanRelation) { return chosenFor((DataSourceV2ScanRelation) plan, filtered); }
        Set below = new HashSet();
        if (plan instanceof Filter) {
            below.addAll(filtered);
            addFiltered(((Filter) plan).condition(), below);
        } else if (plan instanceof Project) {
            below = filtered;
        }
        Seq children = (Seq) plan.children();
        ArrayList made = new ArrayList();
        boolean isNew = false;
        for (int i = 0; i < children.size(); i++) {
            Object child = children.apply(i);
            LogicalPlan other = chosen((LogicalPlan) child, below);
            isNew = isNew || other != child;
            made.add(other);
        }
        return isNew ? (LogicalPlan) plan.withNewChildren(CollectionConverters.asScala(made).toSeq()) : plan;
    }

    private static LogicalPlan chosenFor(DataSourceV2ScanRelation relation, Set filtered) {
        Object scan = relation.scan();
        Object other = scan instanceof BiFunction ? ((BiFunction) scan).apply(relation, filtered) : null;
        if (other == null) { return relation; }
        Object[] parts = new Object[relation.productArity()];
        for (int i = 0; i < parts.length; i++) {
            Object part = relation.productElement(i);
            parts[i] = part == scan ? other : part;
        }
        return (LogicalPlan) relation.makeCopy(parts);
    }

    private static void addFiltered(Expression condition, Set names) {
        if (condition instanceof DynamicPruningSubquery) {
            DynamicPruningSubquery pruning = (DynamicPruningSubquery) condition;
            Expression key = pruning.pruningKey();
            BigInt size = pruning.buildQuery().stats().sizeInBytes();
            long most = SQLConf$.MODULE$.get().autoBroadcastJoinThreshold();
            if (key instanceof NamedExpression && size.compare(BigInt$.MODULE$.apply(most)) <= 0) {
                names.add(((NamedExpression) key).name());
            }
            return;
        }
        Seq children = (Seq) condition.children();
        for (int i = 0; i < children.size(); i++) { addFiltered((Expression) children.apply(i), names); }
    }
}
