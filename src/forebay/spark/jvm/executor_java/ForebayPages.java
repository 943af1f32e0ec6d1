import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** A bucket of a table snapshot: its server, and the request for its first page. */
class ForebayPinnedBucket {
    final String host;
    final int port;
    final byte[] request;

    ForebayPinnedBucket(DataInputStream in) throws IOException {
        host = new String(ForebayWire.readBytes(in), "UTF-8");
        port = in.readInt();
        request = ForebayWire.readBytes(in);
    }
}

/** Reads the buckets of a task, of a table snapshot, page by page. */
class ForebayPageReader extends ForebayDirectReader {
    private static final int SCAN_KV = 1061;
    private static final int RESUME_AFTER = 20001;
    private static final int POSITION = 20000;
    private static final int ARROW_ROWS = 20001;

    private final ForebayPinnedBucket[] buckets;

    /** The limit on rows. */
    private long wanted;

    /** The bucket that is being read, and the position after the rows that Spark has been given; null: no rows yet. */
    private int bucket = 0;
    private byte[] position = null;

    ForebayPageReader(
            PartitionReaderFactory python, StructType schema, ForebayDirectTask task, DataInputStream source,
            DataInputStream in) throws IOException {
        super(python, schema, task, source);
        wanted = source.readLong();
        buckets = new ForebayPinnedBucket[in.readInt()];
        for (int i = 0; i < buckets.length; i++) { buckets[i] = new ForebayPinnedBucket(in); }
    }

    int splits() { return buckets.length; }

    int read() { return wanted > 0 ? bucket : buckets.length; }

    String rest() {
        StringBuilder text = new StringBuilder();
        text.append(bucket).append(' ');
        for (int i = 0; position != null && i < position.length; i++) {
            text.append(Character.forDigit(position[i] >> 4 & 15, 16)).append(Character.forDigit(position[i] & 15, 16));
        }
        return text.toString();
    }

    boolean advance() throws IOException {
        while (bucket < buckets.length && wanted > 0) {
            if (asked == null) { ask(bucket, position); }
            ByteBuffer records = null;
            byte[] place = null;
            long error = 0;
            long rows = -1;
            boolean hasMore = false;
            ForebayFields in = new ForebayFields(answer());
            while (in.more()) {
                if (in.field == 1 && in.kind == 0) { error = in.number; }
                if (in.field == 4 && in.kind == 0) { hasMore = in.number != 0; }
                if (in.field == 5 && in.kind == 2) { records = in.bytes(); }
                if (in.field == POSITION && in.kind == 2) { place = bytesOf(in.bytes()); }
                if (in.field == ARROW_ROWS && in.kind == 0) { rows = in.number; }
            }
            if (error != 0) { throw new IOException("error " + error + " of the server"); }
            if (records == null || rows < 0 || rows > Integer.MAX_VALUE) { throw new IOException("rows not in Arrow"); }
            if (place == null && (rows > 0 || hasMore)) { throw new IOException("a page without its position"); }
            int then = hasMore ? bucket : bucket + 1;
            if (!hasMore) { place = null; }
            if (then < buckets.length && wanted > rows) { ask(then, place); }
            if (rows > 0) {
                batch = columns(records.array(), records.position(), records.remaining(), 0, -1, (int) rows);
            }
            // Only after the page was read without error: the worker reads all rows that Spark has not been given.
            bucket = then;
            position = place;
            wanted -= rows;
            if (rows > 0) { return true; }
        }
        return false;
    }

    private static byte[] bytesOf(ByteBuffer found) {
        byte[] copied = new byte[found.remaining()];
        found.get(copied);
        return copied;
    }

    /** Request the rows of a bucket after the position `after`. */
    private void ask(int of, byte[] after) throws IOException {
        ForebayPinnedBucket wanted = buckets[of];
        ByteArrayOutputStream request = new ByteArrayOutputStream();
        request.write(wanted.request);
        if (after != null) { ForebayWire.putBytes(request, RESUME_AFTER, after); }
        ask(wanted.host, wanted.port, SCAN_KV, request.toByteArray());
    }
}
