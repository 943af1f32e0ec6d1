import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.zip.CRC32C;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

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

/** Reads the logs of a task. */
class ForebayLogReader extends ForebayDirectReader {
    private static final int FETCH_LOG = 1015;
    private static final int EMPTY_ANSWERS_MAX = 20;
    private static final int BATCH_BYTES_MAX = 1 << 26;
    private static final int[] HEADER_BYTES = new int[] {48, 52, 56};
    private static final int SIZE_AFTER = 12;

    private final byte[] request;
    private final byte[] table;
    private final ForebayRange[] ranges;
    private final int schemaId;
    private final boolean checksCrc;
    private final boolean isFiltered;
    private final CRC32C crc = new CRC32C();
    private int answerBytes;

    /** The range that is being read, and the position in it. */
    private int range = 0;
    private long position;

    /** The range and the offset of the request whose answer is expected. */
    private int askedRange;
    private long askedOffset;

    /** The answer that is being read: its batches from `cursor` on. */
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

    ForebayLogReader(
            PartitionReaderFactory python, StructType schema, ForebayDirectTask task, DataInputStream source,
            DataInputStream in) throws IOException {
        super(python, schema, task, source);
        request = ForebayWire.readBytes(source);
        table = ForebayWire.readBytes(source);
        answerBytes = source.readInt();
        schemaId = source.readInt();
        checksCrc = source.readBoolean();
        isFiltered = source.readBoolean();
        ranges = new ForebayRange[in.readInt()];
        for (int i = 0; i < ranges.length; i++) { ranges[i] = new ForebayRange(in); }
        position = ranges.length == 0 ? 0 : ranges[0].start;
    }

    int splits() { return ranges.length; }

    int read() { return range; }

    String rest() { return range + " " + position; }

    boolean advance() throws IOException {
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
        ask(wanted.host, wanted.port, FETCH_LOG, fetch(wanted.bucket, offset));
        askedRange = of;
        askedOffset = offset;
    }

    /** A FetchLogRequest. */
    private byte[] fetch(byte[] bucket, long offset) throws IOException {
        ByteArrayOutputStream ofBucket = new ByteArrayOutputStream();
        ofBucket.write(bucket);
        ForebayWire.putNumber(ofBucket, 3, offset);
        ForebayWire.putNumber(ofBucket, 4, answerBytes);
        ByteArrayOutputStream ofTable = new ByteArrayOutputStream();
        ofTable.write(table);
        ForebayWire.putBytes(ofTable, 4, ofBucket.toByteArray());
        ByteArrayOutputStream made = new ByteArrayOutputStream();
        made.write(request);
        ForebayWire.putNumber(made, 2, answerBytes);
        ForebayWire.putBytes(made, 3, ofTable.toByteArray());
        return made.toByteArray();
    }

    /** Read a FetchLogResponse into `data`; returns the offset up to which the server has filtered, or -1. */
    private long take(ByteBuffer answer) throws IOException {
        data = ForebayFields.part(answer, 0, 0);
        ForebayFields found = new ForebayFields(only(only(answer, 1), 2));
        long filteredEnd = -1;
        long error = 0;
        boolean isRemote = false;
        while (found.more()) {
            if (found.field == 3 && found.kind == 0) { error = found.number; }
            if (found.field == 7) { isRemote = true; }
            if (found.field == 8 && found.kind == 2) { data = found.bytes(); }
            if (found.field == 9 && found.kind == 0) { filteredEnd = found.number; }
        }
        if (error != 0) { throw new IOException("error " + error + " of the server"); }
        if (isRemote) { throw new IOException("the log is in remote storage"); }
        return filteredEnd;
    }

    /** The message in field `wanted`, which a message has once. */
    private static ByteBuffer only(ByteBuffer whole, int wanted) throws IOException {
        ForebayFields in = new ForebayFields(whole);
        ByteBuffer found = null;
        while (in.more()) {
            if (in.field == wanted && in.kind == 2) {
                if (found != null) { throw new IOException("an answer for more than one bucket"); }
                found = in.bytes();
            }
        }
        if (found == null) { throw new IOException("an answer without the bucket"); }
        return found;
    }

    private void receive() throws IOException {
        long filteredEnd = take(answer());
        cursor = data.position();
        end = data.limit();
        // The next request needs the end of this answer, before its batches are read.
        reached = Math.max(position, filteredEnd);
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

    /** Read the header of the batch at `cursor`; false if there is none, or if the end of the answer cuts it off. */
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
            batch = hasColumns()
                ? columns(data.array(), body, at + batchBytes - body, first, stop, records)
                : new ColumnarBatch(new ColumnVector[0], stop - first);
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
