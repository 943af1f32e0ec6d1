import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Paths;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.execution.datasources.NoopCache$;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.PartitionDirectory$;
import org.apache.spark.sql.execution.datasources.PartitionSpec;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;
import scala.collection.mutable.LinkedHashMap;
import scala.jdk.javaapi.CollectionConverters;

/** An index of files with these paths or URIs, which lists no directory. */
class ForebayFiles extends PartitioningAwareFileIndex {
    private static final int BLOCK_BYTES = 1 << 27;
    private static final int REQUESTS = 16; // concurrent requests to remote stores

    private final String names;
    private final StructType columns;
    private final ArrayList paths = new ArrayList();
    private final ArrayList groups = new ArrayList();
    private final LinkedHashMap statuses = new LinkedHashMap();

    ForebayFiles(SparkSession session, String names, StructType columns, java.util.Map settings)
            throws IOException {
        super(session, Map$.MODULE$.from(CollectionConverters.asScala(settings)), Option.empty(), NoopCache$.MODULE$);
        this.names = names;
        this.columns = columns;
        String[] parts = names.split("\0\0");
        for (int i = 0; i < parts.length; i++) { groups.add(statusesOf(parts[i].split("\0"))); }
    }

    private FileStatus[] statusesOf(String[] group) throws IOException {
        FileStatus[] made = new FileStatus[group.length];
        List asked = new ArrayList();
        for (int i = 0; i < group.length; i++) {
            if (!group[i].startsWith("/")) {
                asked.add(new StatusOf(new Path(group[i]), hadoopConf()));
            }
        }
        Iterator answers = statusesOf(asked).iterator();
        for (int i = 0; i < group.length; i++) {
            if (group[i].startsWith("/")) {
                made[i] = statusOf(group[i], new Path("file", null, group[i]));
            } else {
                made[i] = (FileStatus) answers.next();
                if (made[i].getModificationTime() < 0) { throw new FileNotFoundException(group[i]); }
            }
            paths.add(made[i].getPath());
            statuses.put(made[i].getPath(), made[i]);
        }
        return made;
    }

    private List statusesOf(List asked) throws IOException {
        List found = new ArrayList();
        if (asked.isEmpty()) { return found; }
        ExecutorService threads = Executors.newFixedThreadPool(Math.min(REQUESTS, asked.size()));
        try {
            List answers = threads.invokeAll(asked);
            for (int i = 0; i < answers.size(); i++) { found.add(((Future) answers.get(i)).get()); }
        } catch (InterruptedException e) {
            throw new java.io.InterruptedIOException();
        } catch (ExecutionException e) {
            throw new IOException(String.valueOf(e.getCause()));
        } finally {
            threads.shutdownNow();
        }
        return found;
    }

    private static final class StatusOf implements Callable {
        private final Path path;
        private final Configuration conf;

        StatusOf(Path path, Configuration conf) {
            this.path = path;
            this.conf = conf;
        }

        /** The status of a file. The status of a missing file has a negative time. */
        public Object call() throws IOException {
            try {
                FileStatus found = path.getFileSystem(conf).getFileStatus(path);
                return new FileStatus(
                    found.getLen(), false, 1, BLOCK_BYTES, Math.max(0, found.getModificationTime()), path);
            } catch (FileNotFoundException e) {
                return new FileStatus(0, false, 1, BLOCK_BYTES, -1, path);
            }
        }
    }

    private static FileStatus statusOf(String name, Path path) throws IOException {
        try {
            BasicFileAttributes found = Files.readAttributes(Paths.get(name), BasicFileAttributes.class);
            return new FileStatus(found.size(), false, 1, BLOCK_BYTES, found.lastModifiedTime().toMillis(), path);
        } catch (NoSuchFileException e) {
            throw new FileNotFoundException(name);
        }
    }

    private static Seq seq(List items) { return CollectionConverters.asScala(items).toSeq(); }

    public Seq rootPaths() { return seq(paths); }

    public void refresh() {}

    public PartitionSpec partitionSpec() { return new PartitionSpec(columns, seq(new ArrayList())); }

    public LinkedHashMap leafFiles() { return statuses; }

    public Map leafDirToChildrenFiles() { throw new UnsupportedOperationException("files of directories"); }

    public Seq allFiles() { return seq(new ArrayList(CollectionConverters.asJava(statuses).values())); }

    public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
        ArrayList found = new ArrayList();
        for (int i = 0; i < groups.size(); i++) {
            FileStatus[] group = (FileStatus[]) groups.get(i);
            if (columns.length() == 0) {
                found.add(PartitionDirectory$.MODULE$.apply(InternalRow.empty(), group));
                continue;
            }
            for (int j = 0; j < group.length; j++) {
                InternalRow numbers = new GenericInternalRow(new Object[] {Integer.valueOf(i), Integer.valueOf(j)});
                found.add(PartitionDirectory$.MODULE$.apply(numbers, new FileStatus[] {group[j]}));
            }
        }
        return seq(found);
    }

    public boolean equals(Object other) {
        return other instanceof ForebayFiles && names.equals(((ForebayFiles) other).names)
            && columns.equals(((ForebayFiles) other).columns);
    }

    public int hashCode() { return names.hashCode(); }
}
