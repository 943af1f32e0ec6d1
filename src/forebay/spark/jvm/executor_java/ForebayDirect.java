import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A Python task that reads logs or buckets, with the description by which the JVM reads them. */
class ForebayDirectTask extends PythonInputPartition {
    final byte[] source;
    final byte[] ranges;

    /** `source` and `ranges` are as `forebay.spark.reading.direct` writes them. */
    ForebayDirectTask(PythonInputPartition task, byte[] source, byte[] ranges) {
        super(task.index(), task.pickedPartition());
        this.source = source;
        this.ranges = ranges;
    }
}

/**
 * Reads the logs or buckets of a task from the servers. It requests the next answer while Spark reads the last one.
 *
 * <p>In every unexpected case (a server does not answer, a leader has moved, a log is in remote storage, an answer is
 * damaged) the Python worker reads the rest of the task, and handles the case.
 */
abstract class ForebayDirectReader implements PartitionReader {
    private static final Logger LOGGER = LoggerFactory.getLogger(ForebayDirectReader.class);

    private final PartitionReaderFactory python;
    private final StructType schema;
    private final ForebayDirectTask task;
    private final int[] order;
    private final ForebayArrow arrow;
    private final HashMap connections = new HashMap();
    private final ForebayWire hello;
    private ForebayWorkerReader worker = null;

    /** Metrics for Spark's UI: requests, bytes received, and time spent waiting. */
    private long requests = 0;
    private long bytes = 0;
    private long waitedNanos = 0;
    private long left = 0;

    protected ColumnarBatch batch = null;

    /** The connection on which an answer is expected. */
    protected ForebayConnection asked = null;

    static ForebayDirectReader of(PartitionReaderFactory python, StructType schema, ForebayDirectTask task)
            throws IOException {
        DataInputStream source = new DataInputStream(new ByteArrayInputStream(task.source));
        DataInputStream ranges = new DataInputStream(new ByteArrayInputStream(task.ranges));
        return source.readBoolean()
            ? (ForebayDirectReader) new ForebayPageReader(python, schema, task, source, ranges)
            : (ForebayDirectReader) new ForebayLogReader(python, schema, task, source, ranges);
    }

    ForebayDirectReader(PartitionReaderFactory python, StructType schema, ForebayDirectTask task, DataInputStream source)
            throws IOException {
        this.python = python;
        this.schema = schema;
        this.task = task;
        hello = new ForebayWire(source);
        order = new int[source.readInt()];
        StructField[] fields = new StructField[order.length];
        long[] factors = new long[order.length];
        for (int i = 0; i < order.length; i++) {
            order[i] = source.readInt();
            fields[order[i]] = schema.apply(i);
            factors[order[i]] = source.readLong();
        }
        arrow = new ForebayArrow(new StructType(fields), factors);
    }

    /** Read the next batch; false at the end of the task. */
    abstract boolean advance() throws IOException;

    /** The number of splits of the task, and the number of those that have been read to their end. */
    abstract int splits();

    abstract int read();

    /** The rest of the task that Spark has not been given: the number of a split, and the position in it. */
    abstract String rest();

    public boolean next() throws IOException {
        batch = null;
        if (worker == null) {
            TaskContext context = TaskContext.get();
            if (context != null) { context.killTaskIfInterrupted(); }
            try {
                return advance();
            } catch (IOException e) {
                leaveToWorker(e);
            } catch (RuntimeException e) {
                leaveToWorker(e);
            }
        }
        return worker.next();
    }

    public Object get() { return worker == null ? batch : worker.get(); }

    public void close() throws IOException {
        batch = null;
        disconnect();
        arrow.close();
        if (worker != null) { worker.close(); }
    }

    public void initMetricsValues(CustomTaskMetric[] values) {}

    public CustomTaskMetric[] currentMetricsValues() {
        CustomTaskMetric[] own = new CustomTaskMetric[] {
            new ForebayMetric("forebayBytes", bytes),
            new ForebayMetric("forebayRequests", requests),
            new ForebayMetric("forebayWait", waitedNanos / 1000000),
            new ForebayMetric("forebayDirect", read()),
            new ForebayMetric("forebayLeft", left),
        };
        if (worker == null) { return own; }
        CustomTaskMetric[] others = worker.currentMetricsValues();
        CustomTaskMetric[] all = new CustomTaskMetric[own.length + others.length];
        System.arraycopy(own, 0, all, 0, own.length);
        System.arraycopy(others, 0, all, own.length, others.length);
        return all;
    }

    /** The pickled task, followed by the rest that has not been read. */
    private void leaveToWorker(Exception e) throws IOException {
        String of = asked == null ? "" : " (request " + asked.name() + ")";
        LOGGER.warn("a Python worker reads from split and place " + rest() + " on: " + e + of);
        disconnect();
        batch = null;
        left = splits() - read();
        byte[] rest = rest().getBytes("UTF-8");
        byte[] pickled = task.pickedPartition();
        byte[] both = Arrays.copyOf(pickled, pickled.length + rest.length);
        System.arraycopy(rest, 0, both, pickled.length, rest.length);
        worker = new ForebayWorkerReader(python.createReader(new PythonInputPartition(task.index(), both)), schema);
    }

    private void disconnect() {
        Iterator all = connections.values().iterator();
        while (all.hasNext()) { ((ForebayConnection) all.next()).close(); }
        connections.clear();
        asked = null;
    }

    /** Send a request to a server. Its answer is the next one that is read. */
    protected void ask(String host, int port, int api, byte[] request) throws IOException {
        String place = host + ":" + port;
        ForebayConnection connection = (ForebayConnection) connections.get(place);
        if (connection == null) {
            connection = new ForebayConnection(hello, host, port);
            connections.put(place, connection);
        }
        connection.send(api, request);
        requests++;
        asked = connection;
    }

    protected ByteBuffer answer() throws IOException {
        long began = System.nanoTime();
        try {
            ByteBuffer found = asked.receive();
            bytes += found.remaining();
            asked = null;
            return found;
        } finally {
            waitedNanos += System.nanoTime() - began;
        }
    }

    /** The rows from `first` to before `stop` of the message at `from`, which must have `rows`, as Spark's columns. */
    protected ColumnarBatch columns(byte[] data, int from, int size, int first, int stop, int rows) throws IOException {
        ColumnarBatch read = arrow.read(data, from, size, first, stop);
        if (arrow.rows() != rows) { throw new IOException(arrow.rows() + " rows instead of " + rows); }
        ColumnVector[] columns = new ColumnVector[order.length];
        for (int i = 0; i < columns.length; i++) { columns[i] = read.column(order[i]); }
        return new ColumnarBatch(columns, read.numRows());
    }

    protected boolean hasColumns() { return order.length > 0; }
}

/** A value of one of the metrics of scans (forebay.spark.jvm.scan_metrics). */
class ForebayMetric implements CustomTaskMetric {
    private final String name;
    private final long value;

    ForebayMetric(String name, long value) {
        this.name = name;
        this.value = value;
    }

    public String name() { return name; }

    public long value() { return value; }
}

/** The handshake, and the encoding of messages: protobuf, most of which the driver has written. */
class ForebayWire {
    static final int FRAME_BYTES_MAX = 100 * 1024 * 1024;

    final int connectMs;
    final int requestMs;
    final short[] helloKeys;
    final byte[][] hellos;

    ForebayWire(DataInputStream in) throws IOException {
        connectMs = in.readInt();
        requestMs = in.readInt();
        helloKeys = new short[in.readInt()];
        hellos = new byte[helloKeys.length][];
        for (int i = 0; i < hellos.length; i++) {
            helloKeys[i] = in.readShort();
            hellos[i] = readBytes(in);
        }
    }

    static byte[] readBytes(DataInputStream in) throws IOException {
        byte[] found = new byte[in.readInt()];
        in.readFully(found);
        return found;
    }

    static void putVarint(ByteArrayOutputStream out, long value) {
        long left = value;
        while ((left & ~127L) != 0) {
            out.write((int) (left & 127 | 128));
            left >>>= 7;
        }
        out.write((int) left);
    }

    static void putNumber(ByteArrayOutputStream out, int field, long value) {
        putVarint(out, field << 3);
        putVarint(out, value);
    }

    static void putBytes(ByteArrayOutputStream out, int field, byte[] value) {
        putVarint(out, field << 3 | 2);
        putVarint(out, value.length);
        out.write(value, 0, value.length);
    }
}

/** The fields of a message, one after the other. */
class ForebayFields {
    private final ByteBuffer in;
    int field;
    int kind;
    long number;

    ForebayFields(ByteBuffer in) { this.in = in; }

    /** Advance to the next field; false at the end. */
    boolean more() throws IOException {
        if (!in.hasRemaining()) { return false; }
        long tag = varint();
        field = (int) (tag >>> 3);
        kind = (int) (tag & 7);
        number = kind == 0 || kind == 2 ? varint() : kind == 1 ? 8 : kind == 5 ? 4 : -1;
        if (kind != 0) {
            if (number < 0 || number > in.remaining()) { throw new IOException("an answer that is no message"); }
            in.position(in.position() + (int) number);
        }
        return true;
    }

    private long varint() throws IOException {
        long value = 0;
        for (int shift = 0; shift < 64 && in.hasRemaining(); shift += 7) {
            int next = in.get();
            value |= (next & 127L) << shift;
            if (next >= 0) { return value; }
        }
        throw new IOException("an answer with a number that does not end");
    }

    /** The bytes of a field of a type with a length. */
    ByteBuffer bytes() { return part(in, in.position() - (int) number, (int) number); }

    static ByteBuffer part(ByteBuffer whole, int from, int size) {
        ByteBuffer made = ByteBuffer.wrap(whole.array(), from, size);
        made.order(ByteOrder.LITTLE_ENDIAN);
        return made;
    }
}

/** A connection to a server after its handshake. It has one request at a time. */
class ForebayConnection {
    private static final int STEP_BYTES = 1 << 20;

    private final Socket socket = new Socket();
    private final InputStream in;
    private final OutputStream out;
    private int request = 0;
    private byte[] frame = new byte[STEP_BYTES];

    ForebayConnection(ForebayWire wire, String host, int port) throws IOException {
        try {
            socket.setTcpNoDelay(true);
            socket.connect(new InetSocketAddress(host, port), wire.connectMs);
            socket.setSoTimeout(wire.requestMs);
            in = socket.getInputStream();
            out = socket.getOutputStream();
            for (int i = 0; i < wire.hellos.length; i++) {
                send(wire.helloKeys[i], wire.hellos[i]);
                receive();
            }
        } catch (IOException e) {
            close();
            throw e;
        }
    }

    /** The last request as the server's log names it: the local address of the connection, and a number. */
    String name() {
        String host = socket.getLocalAddress().getHostAddress();
        return (host.indexOf(':') < 0 ? host : "[" + host + "]") + ":" + socket.getLocalPort() + "/" + request;
    }

    void send(int api, byte[] body) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(body.length + 12);
        DataOutputStream whole = new DataOutputStream(bytes);
        whole.writeInt(8 + body.length);
        whole.writeShort(api);
        whole.writeShort(0);
        whole.writeInt(++request);
        whole.write(body);
        out.write(bytes.toByteArray());
    }

    /** The body of the next answer, which must belong to the last request. It is valid until the next call. */
    ByteBuffer receive() throws IOException {
        read(4);
        int size = ByteBuffer.wrap(frame).getInt(0);
        if (size < 5 || size > ForebayWire.FRAME_BYTES_MAX) { throw new IOException("a frame of " + size + " bytes"); }
        read(size);
        ByteBuffer found = ByteBuffer.wrap(frame);
        if (frame[0] != 0) { throw new IOException("the server refused the request"); }
        if (found.getInt(1) != request) { throw new IOException("an answer to another request"); }
        return ByteBuffer.wrap(frame, 5, size - 5);
    }

    /** Read `size` bytes. The buffer grows as they arrive, so that a false length takes no memory. */
    private void read(int size) throws IOException {
        int found = 0;
        while (found < size) {
            if (found == frame.length) { frame = Arrays.copyOf(frame, (int) Math.min(2L * found, size)); }
            int more = in.read(frame, found, Math.min(size, frame.length) - found);
            if (more < 0) { throw new IOException("the server closed the connection"); }
            found += more;
        }
    }

    void close() {
        try {
            socket.close();
        } catch (IOException e) {
            return;
        }
    }
}
