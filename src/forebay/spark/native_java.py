"""Java classes of our own for scans of Parquet files (forebay.spark.native), compiled by Janino.

They stay on the driver. Two are subclasses of classes of Spark, which no proxy of ours can be (the relation and the
index of files). The others could be proxies; in Java they save calls between JVM and Python, of which planning makes
many.
"""

from __future__ import annotations

from collections.abc import Sequence

from forebay.spark.jvm import JavaObject, Jvm
from forebay.unionread.overridden import gone

_RELATION = "ForebayRelation"
_RELATION_SOURCE = f"""
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.TableScan;
import org.apache.spark.sql.types.StructType;

public class {_RELATION} extends BaseRelation implements TableScan {{
    private final SQLContext context;
    private final StructType schema;
    private final RDD rows;

    public {_RELATION}(SQLContext context, StructType schema, RDD rows) {{
        this.context = context;
        this.schema = schema;
        this.rows = rows;
    }}

    public SQLContext sqlContext() {{ return context; }}

    public StructType schema() {{ return schema; }}

    public boolean needConversion() {{ return false; }}

    public RDD buildScan() {{ return rows; }}
}}
"""

_TABLE = "ForebayPlannedTable"
_TABLE_SOURCE = f"""
import java.util.Collections;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public class {_TABLE} implements SupportsRead, ScanBuilder {{
    private final StructType schema;
    private final Scan scan;

    public {_TABLE}(StructType schema, Scan scan) {{
        this.schema = schema;
        this.scan = scan;
    }}

    public String name() {{ return "forebay"; }}

    public StructType schema() {{ return schema; }}

    public Set capabilities() {{ return Collections.singleton(TableCapability.BATCH_READ); }}

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {{ return this; }}

    public Scan build() {{ return scan; }}
}}
"""

_TASKS = "ForebayTasks"
_TASKS_SOURCE = f"""
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.StructType;

public class {_TASKS} implements Scan, Batch {{
    private final StructType schema;
    private final String text;
    private final InputPartition[] partitions;
    private final PartitionReaderFactory factory;

    public {_TASKS}(
            StructType schema, String text, InputPartition[] partitions, PartitionReaderFactory factory) {{
        this.schema = schema;
        this.text = text;
        this.partitions = partitions;
        this.factory = factory;
    }}

    public StructType readSchema() {{ return schema; }}

    public String description() {{ return text; }}

    public Batch toBatch() {{ return this; }}

    public InputPartition[] planInputPartitions() {{ return partitions; }}

    public PartitionReaderFactory createReaderFactory() {{ return factory; }}
}}
"""

_FILES = "ForebayFiles"
_FILES_SOURCE = f"""
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Paths;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.List;
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

public class {_FILES} extends PartitioningAwareFileIndex {{
    private static final int BLOCK_BYTES = 1 << 27;

    private final String names;
    private final StructType columns;
    private final ArrayList paths = new ArrayList();
    private final ArrayList groups = new ArrayList();
    private final LinkedHashMap statuses = new LinkedHashMap();
    private String missing = null;

    public {_FILES}(SparkSession session, String names, StructType columns) throws IOException {{
        super(session, (Map) Map$.MODULE$.empty(), Option.empty(), NoopCache$.MODULE$);
        this.names = names;
        this.columns = columns;
        String[] parts = names.split("\\0\\0");
        for (int i = 0; i < parts.length; i++) {{ groups.add(statusesOf(parts[i].split("\\0"))); }}
    }}

    private FileStatus[] statusesOf(String[] group) throws IOException {{
        FileStatus[] made = new FileStatus[group.length];
        for (int i = 0; i < group.length; i++) {{
            Path path = new Path("file", null, group[i]);
            made[i] = statusOf(group[i], path);
            paths.add(path);
            statuses.put(path, made[i]);
        }}
        return made;
    }}

    private FileStatus statusOf(String name, Path path) throws IOException {{
        try {{
            BasicFileAttributes found = Files.readAttributes(Paths.get(name), BasicFileAttributes.class);
            return new FileStatus(found.size(), false, 1, BLOCK_BYTES, found.lastModifiedTime().toMillis(), path);
        }} catch (NoSuchFileException e) {{
            missing = name;
            return new FileStatus(0, false, 1, BLOCK_BYTES, 0, path);
        }}
    }}

    public String missing() {{ return missing; }}

    private static Seq seq(List items) {{ return CollectionConverters.asScala(items).toSeq(); }}

    public Seq rootPaths() {{ return seq(paths); }}

    public void refresh() {{}}

    public PartitionSpec partitionSpec() {{ return new PartitionSpec(columns, seq(new ArrayList())); }}

    public LinkedHashMap leafFiles() {{ return statuses; }}

    public Map leafDirToChildrenFiles() {{ throw new UnsupportedOperationException("files of directories"); }}

    public Seq allFiles() {{ return seq(new ArrayList(CollectionConverters.asJava(statuses).values())); }}

    public Seq listFiles(Seq partitionFilters, Seq dataFilters) {{
        ArrayList found = new ArrayList();
        for (int i = 0; i < groups.size(); i++) {{
            FileStatus[] group = (FileStatus[]) groups.get(i);
            if (columns.length() == 0) {{
                found.add(PartitionDirectory$.MODULE$.apply(InternalRow.empty(), group));
                continue;
            }}
            for (int j = 0; j < group.length; j++) {{
                InternalRow numbers = new GenericInternalRow(new Object[] {{Integer.valueOf(i), Integer.valueOf(j)}});
                found.add(PartitionDirectory$.MODULE$.apply(numbers, new FileStatus[] {{group[j]}}));
            }}
        }}
        return seq(found);
    }}

    public boolean equals(Object other) {{
        return other instanceof {_FILES} && names.equals((({_FILES}) other).names)
            && columns.equals((({_FILES}) other).columns);
    }}

    public int hashCode() {{ return names.hashCode(); }}
}}
"""


def relation(jvm: Jvm, sql_context: JavaObject, schema: JavaObject, rows: JavaObject) -> JavaObject:
    """A BaseRelation of the internal `rows`, an RDD."""
    return jvm.compiled(_RELATION, _RELATION_SOURCE)(sql_context, schema, rows)


def planned_table(jvm: Jvm, schema: JavaObject, scan: JavaObject) -> JavaObject:
    """A table that is one scan, which is there already: nothing can be pushed into it."""
    return jvm.compiled(_TABLE, _TABLE_SOURCE)(schema, scan)


def task_scan(jvm: Jvm, schema: JavaObject, text: str, partitions: JavaObject, factory: JavaObject) -> JavaObject:
    """A scan that is nothing but its tasks: an InputPartition[], read by `factory`. `text` describes it to people."""
    return jvm.compiled(_TASKS, _TASKS_SOURCE)(schema, text, partitions, factory)


def file_index(jvm: Jvm, session: JavaObject, groups: Sequence[Sequence[str]], columns: JavaObject) -> JavaObject:
    """A PartitioningAwareFileIndex of local files, by their paths; no directory is listed.

    `columns`: none, or two of type INT that tell of each row the number of its group, and of its file in the group.
    Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) for a file that is gone.
    """
    names = "\0\0".join("\0".join(group) for group in groups)  # one string, as every string is a call
    index = jvm.compiled(_FILES, _FILES_SOURCE)(session, names, columns)
    missing = index.missing()
    if missing is not None:
        raise gone(missing)
    return index


def compile_all(jvm: Jvm) -> None:
    """Compile what is not yet. Raises `UnsupportedOperation` where Spark looks different from what we know."""
    for name, source in (
        (_RELATION, _RELATION_SOURCE), (_TABLE, _TABLE_SOURCE), (_TASKS, _TASKS_SOURCE), (_FILES, _FILES_SOURCE),
    ):  # fmt: skip
        jvm.compiled(name, source)
