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
import java.util.zip.CRC32C;
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

/** A Python task that reads ranges of logs, and what the JVM needs to read them itself. */
class ForebayLogTask extends PythonInputPartition {
    final byte[] source;
    final byte[] ranges;

    /** `source` and `ranges` are as `forebay.spark.reading.direct` writes them. */
    ForebayLogTask(PythonInputPartition task, byte[] source, byte[] ranges) {
        super(task.index(), task.pickedPartition());
        this.source = source;
        this.ranges = ranges;
    }
}

/** A range of a bucket's log: the offsets from `start` to before `stop`, and the server that has them. */
class ForebayRange {
    final String host;
    final int port;
    final byte[] bucket;
    final long start;
    final long stop;

    ForebayRange(DataInputStream in) throws IOException {
        host = new String(ForebayWire.readBytes(in), "UTF-8");
        port = in.readInt();
        bucket = ForebayWire.readBytes(in);
        start = in.readLong();
        stop = in.readLong();
    }
}

/**
 * Reads the logs of a task from the servers. The next answer is on its way while Spark reads the last one.
 *
 * <p>Whatever is not as expected (a server that does not answer, a leader that has moved, a log in remote storage, damage)
 * is left to the Python worker, which knows what to do: it reads the rest of the task.
 */
class ForebayLogReader implements PartitionReader {
    private static final Logger LOGGER = LoggerFactory.getLogger(ForebayLogReader.class);
    private static final int EMPTY_ANSWERS_MAX = 20;
    private static final int BATCH_BYTES_MAX = 1 << 26;
    private static final int[] HEADER_BYTES = new int[] {48, 52, 56};
    private static final int SIZE_AFTER = 12;

    private final PartitionReaderFactory python;
    private final StructType schema;
    private final ForebayLogTask task;
    private final ForebayWire wire;
    private final ForebayRange[] ranges;
    private final int schemaId;
    private final boolean checksCrc;
    private final boolean isFiltered;
    private final int[] order;
    private final ForebayArrow arrow;
    private final HashMap connections = new HashMap();
    private final CRC32C crc = new CRC32C();
    private int answerBytes;

    /** The range that is read, and how far. */
    private int range = 0;
    private long position;

    /** The request on its way: for which range, from which offset. */
    private ForebayConnection asked = null;
    private int askedRange;
    private long askedOffset;

    /** The answer that is read: its batches from `cursor` on. */
    private ByteBuffer data = null;
    private int cursor;
    private int end;
    private long reached;
    private int empty = 0;

    /** The batch at `cursor`. */
    private int batchBytes;
    private int records;
    private long base;
    private int body;

    private ColumnarBatch batch = null;
    private ForebayWorkerReader worker = null;

    ForebayLogReader(PartitionReaderFactory python, StructType schema, ForebayLogTask task) throws IOException {
        this.python = python;
        this.schema = schema;
        this.task = task;
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(task.source));
        wire = new ForebayWire(in);
        answerBytes = in.readInt();
        schemaId = in.readInt();
        checksCrc = in.readBoolean();
        isFiltered = in.readBoolean();
        order = new int[in.readInt()];
        StructField[] fields = new StructField[order.length];
        long[] factors = new long[order.length];
        for (int i = 0; i < order.length; i++) {
            order[i] = in.readInt();
            fields[order[i]] = schema.apply(i);
            factors[order[i]] = in.readLong();
        }
        arrow = new ForebayArrow(new StructType(fields), factors);
        in = new DataInputStream(new ByteArrayInputStream(task.ranges));
        ranges = new ForebayRange[in.readInt()];
        for (int i = 0; i < ranges.length; i++) { ranges[i] = new ForebayRange(in); }
        position = ranges.length == 0 ? 0 : ranges[0].start;
    }

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
        return worker == null ? new CustomTaskMetric[0] : worker.currentMetricsValues();
    }

    /** The task, as Python sees it, with the ranges that are not read yet behind it. */
    private void leaveToWorker(Exception e) throws IOException {
        LOGGER.warn("a Python worker reads the log from offset " + position + " on: " + e);
        disconnect();
        data = null;
        byte[] rest = (range + " " + position).getBytes("UTF-8");
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

    // ---- answers

    /** Make the next batch; false at the end of the last range. */
    private boolean advance() throws IOException {
        while (true) {
            if (data != null) {
                if (nextOfAnswer()) { return true; }
                position = Math.max(position, Math.min(reached, ranges[range].stop));
                data = null;
            }
            while (range < ranges.length && position >= ranges[range].stop) {
                range++;
                if (range < ranges.length) { position = ranges[range].start; }
            }
            if (range == ranges.length) { return false; }
            if (asked == null) { ask(range, position); }
            if (askedRange != range || askedOffset != position) { throw new IOException("the log has moved"); }
            receive();
        }
    }

    private void ask(int of, long offset) throws IOException {
        ForebayRange wanted = ranges[of];
        String place = wanted.host + ":" + wanted.port;
        ForebayConnection connection = (ForebayConnection) connections.get(place);
        if (connection == null) {
            connection = new ForebayConnection(wire, wanted.host, wanted.port);
            connections.put(place, connection);
        }
        connection.send(ForebayWire.FETCH_LOG, wire.fetch(wanted.bucket, offset, answerBytes));
        asked = connection;
        askedRange = of;
        askedOffset = offset;
    }

    private void receive() throws IOException {
        ByteBuffer answer = asked.receive();
        asked = null;
        wire.take(answer);
        data = wire.records;
        cursor = data.position();
        end = data.limit();
        // How far it goes has to be known at once, for the next request.
        reached = Math.max(position, wire.filteredEnd);
        int first = cursor;
        while (header()) {
            reached = Math.max(reached, base + Math.max(records, 1));
            cursor += batchBytes;
        }
        cursor = first;
        if (reached == position) {
            if (end > first) {
                if (answerBytes >= BATCH_BYTES_MAX) { throw new IOException("a batch of more than " + answerBytes); }
                answerBytes *= 2;
            } else if (++empty > EMPTY_ANSWERS_MAX) {
                throw new IOException("the server has no records there");
            }
        } else {
            empty = 0;
        }
        int next = range;
        long offset = reached;
        while (next < ranges.length && offset >= ranges[next].stop) {
            next++;
            if (next < ranges.length) { offset = ranges[next].start; }
        }
        if (next < ranges.length) { ask(next, offset); }
    }

    /** Read the header of the batch at `cursor`; false if there is none, or the end of the answer cuts it off. */
    private boolean header() throws IOException {
        if (end - cursor < HEADER_BYTES[0]) { return false; }
        long size = (long) data.getInt(cursor + 8) + SIZE_AFTER;
        int magic = data.get(cursor + 12);
        if (magic < 0 || magic >= HEADER_BYTES.length) { throw new IOException("a log batch of magic " + magic); }
        if (size > end - cursor) { return false; }
        if (size < HEADER_BYTES[magic]) { throw new IOException("a log batch of " + size + " bytes"); }
        batchBytes = (int) size;
        int checked = cursor + (magic == 2 ? 29 : 25);
        base = data.getLong(cursor);
        int schemaOf = data.getShort(checked);
        int attributes = data.get(checked + 2);
        records = data.getInt(checked + 19);
        int delta = data.getInt(checked + 3);
        int statistics = magic == 0 ? 0 : data.getInt(checked + 23);
        if (base < 0 || records < 0 || delta != Math.max(records - 1, 0) || base > Long.MAX_VALUE - Integer.MAX_VALUE) {
            throw new IOException("a log batch of " + records + " records at " + base + " that ends after " + delta);
        }
        int rest = batchBytes - HEADER_BYTES[magic];
        if (statistics < 0 || statistics > rest) { throw new IOException(statistics + " bytes of statistics"); }
        body = cursor + HEADER_BYTES[magic] + statistics;
        if (schemaId >= 0 && schemaOf != schemaId) { throw new IOException("a log batch of schema " + schemaOf); }
        if ((attributes & 1) == 0) {
            if (records > rest - statistics) { throw new IOException("a log batch without its change types"); }
            for (int i = 0; i < records; i++) {
                if (data.get(body + i) > 1) { throw new IOException("a log batch with changes of rows"); }
            }
            body += records;
        }
        return true;
    }

    private boolean nextOfAnswer() throws IOException {
        ForebayRange now = ranges[range];
        while (position < now.stop && header()) {
            int at = cursor;
            cursor += batchBytes;
            long next = base + Math.max(records, 1);
            if (next <= position) { continue; }
            if (base > position && !isFiltered) { throw new IOException("the log goes on at " + base); }
            if (base >= now.stop) {
                cursor = end;
                return false;
            }
            if (checksCrc && schemaId >= 0) { check(at); }
            if (records == 0) {
                position = next;
                continue;
            }
            int first = (int) Math.max(position - base, 0);
            int stop = (int) Math.min(now.stop - base, records);
            batch = new ColumnarBatch(new ColumnVector[0], stop - first);
            if (order.length > 0) {
                ColumnarBatch read = arrow.read(data.array(), body, at + batchBytes - body, first, stop);
                if (arrow.rows() != records) { throw new IOException(arrow.rows() + " rows instead of " + records); }
                ColumnVector[] columns = new ColumnVector[order.length];
                for (int i = 0; i < columns.length; i++) { columns[i] = read.column(order[i]); }
                batch = new ColumnarBatch(columns, read.numRows());
            }
            position = Math.min(next, now.stop);
            return true;
        }
        return false;
    }

    private void check(int at) throws IOException {
        int magic = data.get(at + 12);
        int from = at + (magic == 2 ? 29 : 25);
        crc.reset();
        crc.update(data.array(), from, at + batchBytes - from);
        if ((int) crc.getValue() != data.getInt(from - 4)) { throw new IOException("a log batch with another checksum"); }
    }
}

/** The messages of the protocol, as far as they are needed here: protobuf, of which the driver has written most. */
class ForebayWire {
    static final int FETCH_LOG = 1015;
    static final int FRAME_BYTES_MAX = 100 * 1024 * 1024;

    final int connectMs;
    final int requestMs;
    final short[] helloKeys;
    final byte[][] hellos;
    private final byte[] request;
    private final byte[] table;

    /** What an answer says of the only bucket that was asked for. */
    ByteBuffer records;
    long filteredEnd;

    private ByteBuffer in;
    private int field;
    private int kind;
    private long number;

    ForebayWire(DataInputStream in) throws IOException {
        connectMs = in.readInt();
        requestMs = in.readInt();
        helloKeys = new short[in.readInt()];
        hellos = new byte[helloKeys.length][];
        for (int i = 0; i < hellos.length; i++) {
            helloKeys[i] = in.readShort();
            hellos[i] = readBytes(in);
        }
        request = readBytes(in);
        table = readBytes(in);
    }

    static byte[] readBytes(DataInputStream in) throws IOException {
        byte[] found = new byte[in.readInt()];
        in.readFully(found);
        return found;
    }

    /** A FetchLogRequest. */
    byte[] fetch(byte[] bucket, long offset, int bytesMax) throws IOException {
        ByteArrayOutputStream ofBucket = new ByteArrayOutputStream();
        ofBucket.write(bucket);
        putNumber(ofBucket, 3, offset);
        putNumber(ofBucket, 4, bytesMax);
        ByteArrayOutputStream ofTable = new ByteArrayOutputStream();
        ofTable.write(table);
        putBytes(ofTable, 4, ofBucket.toByteArray());
        ByteArrayOutputStream made = new ByteArrayOutputStream();
        made.write(request);
        putNumber(made, 2, bytesMax);
        putBytes(made, 3, ofTable.toByteArray());
        return made.toByteArray();
    }

    private static void putVarint(ByteArrayOutputStream out, long value) {
        long left = value;
        while ((left & ~127L) != 0) {
            out.write((int) (left & 127 | 128));
            left >>>= 7;
        }
        out.write((int) left);
    }

    private static void putNumber(ByteArrayOutputStream out, int field, long value) {
        putVarint(out, field << 3);
        putVarint(out, value);
    }

    private static void putBytes(ByteArrayOutputStream out, int field, byte[] value) {
        putVarint(out, field << 3 | 2);
        putVarint(out, value.length);
        out.write(value, 0, value.length);
    }

    /** Read a FetchLogResponse, into `records` and `filteredEnd`. */
    void take(ByteBuffer answer) throws IOException {
        records = part(answer, 0, 0);
        filteredEnd = -1;
        ByteBuffer ofBucket = only(only(answer, 1), 2);
        in = ofBucket;
        long error = 0;
        boolean isRemote = false;
        while (more()) {
            if (field == 3 && kind == 0) { error = number; }
            if (field == 7) { isRemote = true; }
            if (field == 8 && kind == 2) { records = part(in, in.position() - (int) number, (int) number); }
            if (field == 9 && kind == 0) { filteredEnd = number; }
        }
        if (error != 0) { throw new IOException("error " + error + " of the server"); }
        if (isRemote) { throw new IOException("the log is in remote storage"); }
    }

    /** The message in field `wanted` of a message that has it once. */
    private ByteBuffer only(ByteBuffer whole, int wanted) throws IOException {
        in = whole;
        ByteBuffer found = null;
        while (more()) {
            if (field == wanted && kind == 2) {
                if (found != null) { throw new IOException("an answer for more than one bucket"); }
                found = part(in, in.position() - (int) number, (int) number);
            }
        }
        if (found == null) { throw new IOException("an answer without the bucket"); }
        return found;
    }

    private static ByteBuffer part(ByteBuffer whole, int from, int size) {
        ByteBuffer made = ByteBuffer.wrap(whole.array(), from, size);
        made.order(ByteOrder.LITTLE_ENDIAN);
        return made;
    }

    /** Go on to the next field of `in`; false at its end. The bytes of one that has bytes are behind it then. */
    private boolean more() throws IOException {
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
}

/** A connection to a server, behind the handshake. One request at a time. */
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

    /** The body of the next answer, which must be that of the last request. It is good until the next call. */
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

    /** Read `size` bytes. The room for them grows as they come: a length alone takes no memory. */
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
