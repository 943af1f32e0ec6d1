import java.util.ArrayList;
import java.util.HashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.HasPartitionKey;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;

/** Makes input partitions that each have rows of one bucket of a table, and report the bucket's key. */
public class ForebayBucketPartitions {
    public ForebayBucketPartitions() {}

    /** The partitions of Python tasks. The partition at each index has the key at the same index. */
    public InputPartition[] tasks(InputPartition[] planned, InternalRow[] keys) {
        InputPartition[] made = new InputPartition[planned.length];
        for (int i = 0; i < made.length; i++) {
            made[i] = new ForebayBucketTask((PythonInputPartition) planned[i], keys[i]);
        }
        return made;
    }

    /** The partitions of `planned`, divided by bucket. `paths` are separated by zeros; their keys are at `places`. */
    public InputPartition[] files(InputPartition[] planned, String paths, int[] places, InternalRow[] keys) {
        HashMap placeOf = new HashMap();
        String[] names = paths.split("\0");
        for (int i = 0; i < names.length; i++) { placeOf.put(names[i], Integer.valueOf(places[i])); }
        ArrayList made = new ArrayList();
        for (int i = 0; i < planned.length; i++) {
            PartitionedFile[] files = ((FilePartition) planned[i]).files();
            ArrayList[] byKey = new ArrayList[keys.length];
            for (int j = 0; j < files.length; j++) {
                int key = ((Integer) placeOf.get(files[j].toPath().toUri().getPath())).intValue();
                if (byKey[key] == null) { byKey[key] = new ArrayList(); }
                byKey[key].add(files[j]);
            }
            for (int key = 0; key < keys.length; key++) {
                if (byKey[key] == null) { continue; }
                PartitionedFile[] ofKey = (PartitionedFile[]) byKey[key].toArray(new PartitionedFile[0]);
                made.add(new ForebayBucketFiles(made.size(), ofKey, keys[key]));
            }
        }
        return (InputPartition[]) made.toArray(new InputPartition[0]);
    }
}

/** A Python task with rows of one bucket. */
class ForebayBucketTask extends PythonInputPartition implements HasPartitionKey {
    private final InternalRow key;

    ForebayBucketTask(PythonInputPartition task, InternalRow key) {
        super(task.index(), task.pickedPartition());
        this.key = key;
    }

    public InternalRow partitionKey() { return key; }
}

/** Files with rows of one bucket. */
class ForebayBucketFiles extends FilePartition implements HasPartitionKey {
    private final InternalRow key;

    ForebayBucketFiles(int index, PartitionedFile[] files, InternalRow key) {
        super(index, files);
        this.key = key;
    }

    public InternalRow partitionKey() { return key; }
}
