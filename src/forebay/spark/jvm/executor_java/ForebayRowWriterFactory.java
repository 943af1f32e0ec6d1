import java.io.IOException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Makes writers for tasks of UPDATE, DELETE and MERGE. Spark pushes rows one by one, and a Python writer pulls them
 * from an iterator. Between the two is a thread with a short queue of chunks of rows.
 *
 * <p>A delta is written as rows of `written`: the kind of change, followed by all columns of the table. For deleted
 * rows, `idColumns` and `oldColumns` are the positions in `written` of the fields of the row's id and metadata.
 */
public class ForebayRowWriterFactory implements DeltaWriterFactory {
    private final DataWriterFactory python;
    private final StructType written;
    private final int[] idColumns;
    private final int[] oldColumns;
    private final String movedKeys;

    /** `movedKeys` is the error for an update that changes a row's id; null: it becomes a delete and an insert. */
    public ForebayRowWriterFactory(
            DataWriterFactory python, StructType written, int[] idColumns, int[] oldColumns, String movedKeys) {
        this.python = python;
        this.written = written;
        this.idColumns = idColumns;
        this.oldColumns = oldColumns;
        this.movedKeys = movedKeys;
    }

    public DeltaWriter createWriter(int partitionId, long taskId) {
        DataWriter writer = python.createWriter(partitionId, taskId);
        return new ForebayRowWriter(writer, written, idColumns, oldColumns, movedKeys);
    }
}

/** Projects rows and passes them to the Python writer. Used by the thread of its task. */
class ForebayRowWriter implements DeltaWriter {
    static final int CHUNK_ROWS = 1024;

    private final DataWriter python;
    private final DataType[] types;
    private final int[] idColumns;
    private final int[] oldColumns;
    private final String movedKeys;
    private final UnsafeProjection projection;
    private final GenericInternalRow kind = new GenericInternalRow(1);
    private final JoinedRow joined = new JoinedRow();
    private final GenericInternalRow deleted;
    private final UTF8String insertKind = UTF8String.fromString("insert");
    private final UTF8String updateKind = UTF8String.fromString("update_after");
    private final UTF8String deleteKind = UTF8String.fromString("delete");
    private InternalRow[] chunk = new InternalRow[CHUNK_ROWS];
    private int rows = 0;
    private ForebayRowFeed feed = null;

    ForebayRowWriter(DataWriter python, StructType written, int[] idColumns, int[] oldColumns, String movedKeys) {
        this.python = python;
        this.idColumns = idColumns;
        this.oldColumns = oldColumns;
        this.movedKeys = movedKeys;
        types = new DataType[written.length()];
        for (int i = 0; i < types.length; i++) { types[i] = written.apply(i).dataType(); }
        projection = UnsafeProjection.create(written);
        deleted = new GenericInternalRow(types.length);
    }

    /** A row of a table whose files are replaced. It has no kind. */
    public void write(Object row) throws IOException { put(projection.apply((InternalRow) row)); }

    public void write(Object metadata, Object row) throws IOException { write(row); }

    public void insert(Object row) throws IOException { put(withKind(insertKind, row)); }

    public void reinsert(Object metadata, Object row) throws IOException { insert(row); }

    public void update(Object metadata, Object id, Object row) throws IOException {
        if (keepsId((InternalRow) id, (InternalRow) row)) {
            put(withKind(updateKind, row));
            return;
        }
        if (movedKeys != null) { throw new UnsupportedOperationException(movedKeys); }
        delete(metadata, id);
        insert(row);
    }

    public void delete(Object metadata, Object id) throws IOException {
        deleted.update(0, deleteKind);
        if (metadata != null) { fill((InternalRow) metadata, oldColumns); }
        fill((InternalRow) id, idColumns);
        put(projection.apply(deleted));
    }

    private void fill(InternalRow from, int[] columns) {
        for (int i = 0; i < columns.length; i++) { deleted.update(columns[i], from.get(i, types[columns[i]])); }
    }

    private InternalRow withKind(UTF8String name, Object row) {
        kind.update(0, name);
        return projection.apply(joined.apply(kind, (InternalRow) row));
    }

    private boolean keepsId(InternalRow id, InternalRow row) {
        for (int i = 0; i < idColumns.length; i++) {
            DataType type = types[idColumns[i]];
            Object before = id.get(i, type);
            Object after = row.get(idColumns[i] - 1, type);
            boolean isSame = before instanceof byte[]
                ? after instanceof byte[] && Arrays.equals((byte[]) before, (byte[]) after)
                : before.equals(after);
            if (!isSame) { return false; }
        }
        return true;
    }

    private void put(InternalRow row) throws IOException {
        chunk[rows++] = row.copy();
        if (rows == CHUNK_ROWS) { flush(); }
    }

    private void flush() {
        if (feed == null) { feed = new ForebayRowFeed(python, TaskContext.get()); }
        feed.put(rows == CHUNK_ROWS ? chunk : (InternalRow[]) Arrays.copyOf(chunk, rows));
        chunk = new InternalRow[CHUNK_ROWS];
        rows = 0;
    }

    /** The message of the Python writer; null for a task without rows, for which no Python worker is started. */
    public WriterCommitMessage commit() throws IOException {
        if (rows > 0) { flush(); }
        if (feed == null) { return null; }
        feed.finish();
        return python.commit();
    }

    public void abort() throws IOException {
        if (feed != null) { feed.stop(); }
        python.abort();
    }

    public void close() throws IOException {
        if (feed != null) { feed.stop(); }
        python.close();
    }

    public CustomTaskMetric[] currentMetricsValues() { return python.currentMetricsValues(); }
}

/** The thread in which the Python writer runs, and the queue of its rows. */
class ForebayRowFeed implements Runnable, Iterator {
    static final int CHUNKS_WAITING = 4;
    static final long LOOK_MS = 100;
    static final long STOP_MS = 10000;
    static final InternalRow[] END = new InternalRow[0];

    private final DataWriter python;
    private final TaskContext task;
    private final ArrayBlockingQueue chunks = new ArrayBlockingQueue(CHUNKS_WAITING);
    private final Thread thread;
    private InternalRow[] current = null;
    private int next = 0;
    private volatile boolean hasEnded = false;
    private volatile boolean isStopped = false;
    private volatile Throwable failure = null;

    ForebayRowFeed(DataWriter python, TaskContext task) {
        this.python = python;
        this.task = task;
        thread = new Thread(this, "forebay row writer of task " + task.taskAttemptId());
        thread.setDaemon(true);
        thread.start();
    }

    public void run() {
        // Python runners need the task's context, and read settings from its properties.
        TaskContext$.MODULE$.setTaskContext(task);
        try {
            python.writeAll(this);
        } catch (Throwable e) {
            failure = e;
        } finally {
            hasEnded = true;
            TaskContext$.MODULE$.unset();
        }
    }

    // ---- the task's side

    void put(InternalRow[] rows) {
        boolean isTaken = false;
        while (!isTaken) {
            throwFailure();
            if (hasEnded) { throw new IllegalStateException("the Python writer has ended before its rows"); }
            task.killTaskIfInterrupted();
            try {
                isTaken = chunks.offer(rows, LOOK_MS, TimeUnit.MILLISECONDS);
            } catch (InterruptedException e) {
                throw interrupted(e);
            }
        }
    }

    void finish() {
        put(END);
        while (thread.isAlive()) {
            task.killTaskIfInterrupted();
            try {
                thread.join(LOOK_MS);
            } catch (InterruptedException e) {
                throw interrupted(e);
            }
        }
        throwFailure();
    }

    private RuntimeException interrupted(InterruptedException e) {
        Thread.currentThread().interrupt();
        task.killTaskIfInterrupted();
        return new RuntimeException(e);
    }

    private void throwFailure() {
        if (failure != null) { Platform.throwException(failure); }
    }

    /** End the thread, if it has not ended. Rows that Python has got so far are discarded. */
    void stop() {
        isStopped = true;
        if (!thread.isAlive()) { return; }
        thread.interrupt();
        boolean wasInterrupted = false;
        try {
            thread.join(STOP_MS);
        } catch (InterruptedException e) {
            wasInterrupted = true;
        }
        if (wasInterrupted) { Thread.currentThread().interrupt(); }
    }

    // ---- the Python writer's side

    public boolean hasNext() {
        while (current == null || (next == current.length && current != END)) {
            try {
                current = (InternalRow[]) chunks.poll(LOOK_MS, TimeUnit.MILLISECONDS);
            } catch (InterruptedException e) {
                throw new IllegalStateException("the task has ended before its rows", e);
            }
            next = 0;
            if (isStopped) { throw new IllegalStateException("the task has ended before its rows"); }
        }
        return current != END;
    }

    public Object next() {
        if (!hasNext()) { throw new NoSuchElementException("no rows are left"); }
        return current[next++];
    }

    public void remove() { throw new UnsupportedOperationException("remove"); }
}
