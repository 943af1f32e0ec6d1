import com.github.luben.zstd.ZstdDecompressCtx;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import net.jpountz.lz4.LZ4FrameInputStream;
import org.apache.arrow.flatbuf.BodyCompressionMethod;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.CompressionType;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.NullType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads record batches, which are messages of Arrow's IPC format in a byte array, as columns over that array.
 *
 * <p>Spark reads columns without checking bounds. So everything that a column may access is checked here before the
 * column is created: the positions of all buffers, their lengths for the number of rows, and all offsets of texts and
 * lists. A damaged message is an IOException. Columns are in the heap, so reading a column after its task has ended
 * reads outdated bytes, but never unmapped memory.
 */
class ForebayArrow {
    /** Maximum size of a decompressed batch, which bounds the memory of a task. Larger batches are refused. */
    static final int UNPACKED_BYTES_MAX = 1 << 28;

    private static final int CONTINUATION = -1;
    private static final int PREFIX_BYTES = 8;
    private static final int PLACE_BYTES = 16;

    private final StructField[] fields;
    private final long[] factors;

    /** The message that is being read. */
    private byte[] bytes;
    private RecordBatch header;
    private int node;
    private int buffer;
    private String path;
    private long[] starts = new long[0];
    private long[] lengths = new long[0];
    private long start;
    private long length;
    private int rows;
    private final FieldNode nodeAt = new FieldNode();
    private final Buffer bufferAt = new Buffer();
    private byte[] unpacked = new byte[0];
    private ZstdDecompressCtx zstd = null;

    /**
     * `factors` convert the numbers of each column to Spark's: a positive factor multiplies, a negative one divides.
     * null: all factors are 1.
     */
    ForebayArrow(StructType schema, long[] factors) {
        fields = schema.fields();
        this.factors = factors;
    }

    void close() {
        if (zstd != null) { zstd.close(); }
        zstd = null;
    }

    /** The number of rows of the last batch, including rows that were not requested. */
    int rows() { return rows; }

    /** The rows of a batch from `first` to before `stop` (-1: all), valid until `data` changes or the next call. */
    ColumnarBatch read(byte[] data, int from, int size, int first, int stop) throws IOException {
        try {
            return checked(data, from, size, first, stop);
        } catch (IndexOutOfBoundsException e) {
            throw damaged("its header ends too early");
        }
    }

    private ColumnarBatch checked(byte[] data, int from, int size, int first, int stop) throws IOException {
        path = null;
        if (from < 0 || size < PREFIX_BYTES || from > data.length - size) {
            throw damaged(size + " bytes are too few");
        }
        ByteBuffer whole = ByteBuffer.wrap(data, from, size);
        whole.order(ByteOrder.LITTLE_ENDIAN);
        int metadata = whole.getInt(from + 4);
        if (whole.getInt(from) != CONTINUATION || metadata < 4 || metadata > size - PREFIX_BYTES) {
            throw damaged("it does not begin as a message");
        }
        whole.position(from + PREFIX_BYTES);
        whole.limit(from + PREFIX_BYTES + metadata);
        // A slice, whose positions begin at 0, so that bytes before the message cannot be read either.
        Message message = Message.getRootAsMessage((ByteBuffer) whole.slice());
        if (message.headerType() != MessageHeader.RecordBatch) {
            throw damaged("it is a message of type " + message.headerType() + " and no record batch");
        }
        header = (RecordBatch) message.header(new RecordBatch());
        if (header == null) { throw damaged("it has no header"); }
        if (header.length() < 0 || header.length() > Integer.MAX_VALUE) {
            throw damaged("it has " + header.length() + " rows");
        }
        rows = (int) header.length();
        int end = stop < 0 ? rows : stop;
        if (first < 0 || first > end || end > rows) {
            throw damaged("it has " + rows + " rows, of which those from " + first + " to " + end + " are wanted");
        }
        bytes = data;
        place(from + PREFIX_BYTES + metadata, size - PREFIX_BYTES - metadata, metadata);
        node = 0;
        buffer = 0;
        ColumnVector[] columns = new ColumnVector[fields.length];
        for (int i = 0; i < columns.length; i++) {
            path = fields[i].name();
            columns[i] = column(fields[i].dataType(), rows, true, first, factors == null ? 1 : factors[i]);
        }
        path = null;
        if (node != header.nodesLength() || buffer != header.buffersLength()) {
            throw damaged(
                "it has " + header.nodesLength() + " columns in " + header.buffersLength() + " buffers instead of "
                + node + " in " + buffer);
        }
        return new ColumnarBatch(columns, end - first);
    }

    private IOException damaged(String how) {
        String where = path == null ? "" : " in column '" + path + "'";
        return new IOException("a record batch in Arrow's format is damaged" + where + ": " + how);
    }

    // ---- buffers

    /** Find the addresses and lengths of all buffers in the body, and decompress them if necessary. */
    private void place(int body, int bodyLength, int metadata) throws IOException {
        int count = header.buffersLength();
        if (count < 0 || count > metadata / PLACE_BYTES) { throw damaged("it has " + count + " buffers"); }
        if (starts.length < count) {
            starts = new long[count];
            lengths = new long[count];
        }
        for (int i = 0; i < count; i++) {
            header.buffers(bufferAt, i);
            long at = bufferAt.offset();
            long size = bufferAt.length();
            if (at < 0 || size < 0 || at > bodyLength || size > bodyLength - at) {
                throw damaged("a buffer is at " + at + " with " + size + " bytes, of " + bodyLength);
            }
            starts[i] = body + at;
            lengths[i] = size;
        }
        if (header.compression() != null) { unpack(count); }
        for (int i = 0; i < count; i++) { starts[i] += Platform.BYTE_ARRAY_OFFSET; }
    }

    private void unpack(int count) throws IOException {
        int codec = header.compression().codec();
        if (header.compression().method() != BodyCompressionMethod.BUFFER) { throw damaged("how it is compressed"); }
        if (codec != CompressionType.ZSTD && codec != CompressionType.LZ4_FRAME) { throw damaged("codec " + codec); }
        ByteBuffer data = ByteBuffer.wrap(bytes);
        data.order(ByteOrder.LITTLE_ENDIAN);
        long total = 0;
        for (int i = 0; i < count; i++) {
            if (lengths[i] > 0 && lengths[i] < 8) { throw damaged("a buffer lacks its unpacked length"); }
            long size = lengths[i] == 0 ? 0 : data.getLong((int) starts[i]);
            if (size < -1 || size > UNPACKED_BYTES_MAX) { throw damaged("a buffer of " + size + " bytes"); }
            total += size == -1 ? lengths[i] - 8 : size;
            total = (total + 7) / 8 * 8;
        }
        if (total > UNPACKED_BYTES_MAX) { throw damaged("its buffers have " + total + " bytes when unpacked"); }
        if (unpacked.length < total) { unpacked = new byte[(int) Math.min(2 * total, UNPACKED_BYTES_MAX)]; }
        int at = 0;
        for (int i = 0; i < count; i++) {
            int size = 0;
            if (lengths[i] > 0) {
                int from = (int) starts[i] + 8;
                int packed = (int) lengths[i] - 8;
                long wanted = data.getLong((int) starts[i]);
                size = wanted == -1 ? packed : (int) wanted;
                if (wanted == -1) {
                    System.arraycopy(bytes, from, unpacked, at, packed);
                } else if (size > 0) {
                    unpackOne(codec, from, packed, at, size);
                }
            }
            starts[i] = at;
            lengths[i] = size;
            at += (size + 7) / 8 * 8;
        }
        bytes = unpacked;
    }

    private void unpackOne(int codec, int from, int packed, int at, int size) throws IOException {
        int found = 0;
        try {
            if (codec == CompressionType.ZSTD) {
                if (zstd == null) { zstd = new ZstdDecompressCtx(); }
                found = zstd.decompressByteArray(unpacked, at, size, bytes, from, packed);
            } else {
                LZ4FrameInputStream in = new LZ4FrameInputStream(new ByteArrayInputStream(bytes, from, packed));
                int more = 0;
                while (found < size && more >= 0) {
                    more = in.read(unpacked, at + found, size - found);
                    found += Math.max(more, 0);
                }
                if (in.read() >= 0) { throw damaged("a buffer has more than its " + size + " bytes"); }
            }
        } catch (RuntimeException e) {
            throw damaged("a buffer cannot be unpacked: " + e.getMessage());
        }
        if (found != size) { throw damaged("a buffer has " + found + " bytes instead of " + size); }
    }

    // ---- columns

    /** The next column, with `rows` rows, or more unless `isExact`. Its row 0 is the row at `first`. */
    private ForebayColumn column(DataType type, long rows, boolean isExact, int first, long factor)
            throws IOException {
        if (node >= header.nodesLength()) { throw damaged("it ends before"); }
        header.nodes(nodeAt, node++);
        long count = nodeAt.length();
        long nulls = nodeAt.nullCount();
        if (count < rows || (isExact && count != rows) || count > Integer.MAX_VALUE) {
            throw damaged("it has " + count + " rows instead of " + rows);
        }
        if (nulls < 0 || nulls > count) { throw damaged("it has " + nulls + " nulls in " + count + " rows"); }
        if (type instanceof NullType) { return new ForebayNullColumn(type, (int) count); }
        place();
        long validity = start;
        if (nulls == 0) {
            validity = 0;
        } else if (length < (count + 7) / 8) {
            throw damaged("the nulls of " + count + " rows are in " + length + " bytes");
        }
        ForebayColumn made = filled(type, count, first, factor);
        made.bytes = bytes;
        made.validity = validity;
        made.nulls = (int) nulls;
        made.first = first;
        return made;
    }

    private ForebayColumn filled(DataType type, long count, int first, long factor) throws IOException {
        if (type instanceof StructType) {
            StructField[] inner = ((StructType) type).fields();
            ForebayColumn[] parts = new ForebayColumn[inner.length];
            for (int i = 0; i < parts.length; i++) { parts[i] = column(inner[i].dataType(), count, false, first, 1); }
            return new ForebayStructColumn(type, parts);
        }
        if (type instanceof ArrayType) {
            long offsets = offsets(count);
            long last = last(offsets, count);
            ForebayColumn elements = column(((ArrayType) type).elementType(), last, false, 0, 1);
            return new ForebayArrayColumn(type, offsets + 4L * first, elements);
        }
        if (type instanceof MapType) {
            long offsets = offsets(count);
            long last = last(offsets, count);
            MapType map = (MapType) type;
            StructType entry = new StructType().add("key", map.keyType()).add("value", map.valueType());
            ForebayStructColumn entries = (ForebayStructColumn) column(entry, last, false, 0, 1);
            return new ForebayMapColumn(type, offsets + 4L * first, entries.parts[0], entries.parts[1]);
        }
        if (type instanceof StringType || type instanceof BinaryType) {
            long offsets = offsets(count);
            place();
            long last = last(offsets, count);
            if (last > length) { throw damaged("its values end at byte " + last + " of " + length); }
            return new ForebayTextColumn(type, offsets + 4L * first, start);
        }
        int width = width(type);
        place();
        if (width == 0 ? length < (count + 7) / 8 : length / width < count) {
            throw damaged(count + " values are in " + length + " bytes");
        }
        if (type instanceof BooleanType) { return new ForebayBooleanColumn(type, start); }
        long values = start + (long) width * first;
        if (type instanceof FloatType) { return new ForebayFloatColumn(type, values); }
        if (type instanceof DoubleType) { return new ForebayDoubleColumn(type, values); }
        if (type instanceof DecimalType) { return new ForebayDecimalColumn(type, values); }
        switch (width) {
            case 1: return new ForebayByteColumn(type, values);
            case 2: return new ForebayShortColumn(type, values);
            case 4: return new ForebayIntColumn(type, values);
            default: break;
        }
        return factor == 1 ? new ForebayLongColumn(type, values) : new ForebayScaledColumn(type, values, factor);
    }

    /** The number of bytes of a value of fixed width; 0: a value is a bit. */
    private static int width(DataType type) {
        if (type instanceof BooleanType) { return 0; }
        if (type instanceof ByteType) { return 1; }
        if (type instanceof ShortType) { return 2; }
        if (type instanceof DecimalType) { return 16; }
        return type.defaultSize() == 4 ? 4 : 8;
    }

    /** Move on to the next buffer: `start` is its address, `length` its bytes. */
    private void place() throws IOException {
        if (buffer >= header.buffersLength()) { throw damaged("it lacks a buffer"); }
        start = starts[buffer];
        length = lengths[buffer++];
    }

    /** The address of the next buffer, which has ascending offsets of `count` rows; 0 for no rows. */
    private long offsets(long count) throws IOException {
        place();
        if (count == 0) { return 0; }
        if (length / 4 < count + 1) { throw damaged("the offsets of " + count + " rows are in " + length + " bytes"); }
        byte[] in = bytes;
        long at = start;
        int before = Platform.getInt(in, at);
        int falls = before;
        for (long i = 0; i < count; i++) {
            at += 4;
            int next = Platform.getInt(in, at);
            falls |= next - before | next;
            before = next;
        }
        if (falls < 0) { throw damaged("its offsets do not ascend"); }
        return start;
    }

    private long last(long offsets, long count) {
        return count == 0 ? 0 : Platform.getInt(bytes, offsets + 4 * count);
    }
}

/** A column whose values are in a byte array, in Arrow's layout. */
abstract class ForebayColumn extends ColumnVector {
    protected byte[] bytes;
    protected long validity;
    protected int nulls;
    protected int first;

    ForebayColumn(DataType type) { super(type); }

    public void close() {}

    public boolean hasNull() { return nulls > 0; }

    public int numNulls() { return nulls; }

    public boolean isNullAt(int row) {
        int at = first + row;
        return validity != 0 && (Platform.getByte(bytes, validity + (at >> 3)) >> (at & 7) & 1) == 0;
    }

    private UnsupportedOperationException other() {
        return new UnsupportedOperationException("a column of type " + dataType().simpleString());
    }

    public boolean getBoolean(int row) { throw other(); }

    public byte getByte(int row) { throw other(); }

    public short getShort(int row) { throw other(); }

    public int getInt(int row) { throw other(); }

    public long getLong(int row) { throw other(); }

    public float getFloat(int row) { throw other(); }

    public double getDouble(int row) { throw other(); }

    public ColumnarArray getArray(int row) { throw other(); }

    public ColumnarMap getMap(int row) { throw other(); }

    public Decimal getDecimal(int row, int precision, int scale) { throw other(); }

    public UTF8String getUTF8String(int row) { throw other(); }

    public byte[] getBinary(int row) { throw other(); }

    public ColumnVector getChild(int number) { throw other(); }
}

/** Each type has its own class, so that the JVM compiles a query's calls into plain loads. */
class ForebayNullColumn extends ForebayColumn {
    ForebayNullColumn(DataType type, int rows) {
        super(type);
        nulls = rows;
    }

    public boolean isNullAt(int row) { return true; }
}

class ForebayBooleanColumn extends ForebayColumn {
    private final long values;

    ForebayBooleanColumn(DataType type, long values) {
        super(type);
        this.values = values;
    }

    public boolean getBoolean(int row) {
        int at = first + row;
        return (Platform.getByte(bytes, values + (at >> 3)) >> (at & 7) & 1) != 0;
    }
}

class ForebayByteColumn extends ForebayColumn {
    private final long values;

    ForebayByteColumn(DataType type, long values) {
        super(type);
        this.values = values;
    }

    public byte getByte(int row) { return Platform.getByte(bytes, values + row); }
}

class ForebayShortColumn extends ForebayColumn {
    private final long values;

    ForebayShortColumn(DataType type, long values) {
        super(type);
        this.values = values;
    }

    public short getShort(int row) { return Platform.getShort(bytes, values + 2L * row); }
}

class ForebayIntColumn extends ForebayColumn {
    private final long values;

    ForebayIntColumn(DataType type, long values) {
        super(type);
        this.values = values;
    }

    public int getInt(int row) { return Platform.getInt(bytes, values + 4L * row); }
}

class ForebayLongColumn extends ForebayColumn {
    private final long values;

    ForebayLongColumn(DataType type, long values) {
        super(type);
        this.values = values;
    }

    public long getLong(int row) { return Platform.getLong(bytes, values + 8L * row); }
}

/** Timestamps in another unit than Spark's. */
class ForebayScaledColumn extends ForebayColumn {
    private final long values;
    private final long factor;

    ForebayScaledColumn(DataType type, long values, long factor) {
        super(type);
        this.values = values;
        this.factor = factor;
    }

    public long getLong(int row) {
        long value = Platform.getLong(bytes, values + 8L * row);
        return factor > 0 ? Math.multiplyExact(value, factor) : Math.floorDiv(value, -factor);
    }
}

class ForebayFloatColumn extends ForebayColumn {
    private final long values;

    ForebayFloatColumn(DataType type, long values) {
        super(type);
        this.values = values;
    }

    public float getFloat(int row) { return Platform.getFloat(bytes, values + 4L * row); }
}

class ForebayDoubleColumn extends ForebayColumn {
    private final long values;

    ForebayDoubleColumn(DataType type, long values) {
        super(type);
        this.values = values;
    }

    public double getDouble(int row) { return Platform.getDouble(bytes, values + 8L * row); }
}

class ForebayDecimalColumn extends ForebayColumn {
    private static final int BYTES = 16;

    private final long values;

    ForebayDecimalColumn(DataType type, long values) {
        super(type);
        this.values = values;
    }

    public Decimal getDecimal(int row, int precision, int scale) {
        if (isNullAt(row)) { return null; }
        long at = values + (long) BYTES * row;
        long low = Platform.getLong(bytes, at);
        long high = Platform.getLong(bytes, at + 8);
        if (precision <= Decimal.MAX_LONG_DIGITS() && high == low >> 63) {
            return Decimal.createUnsafe(low, precision, scale);
        }
        byte[] unscaled = new byte[BYTES];
        for (int i = 0; i < 8; i++) {
            unscaled[i] = (byte) (high >> 56 - 8 * i);
            unscaled[8 + i] = (byte) (low >> 56 - 8 * i);
        }
        return Decimal.apply(new BigDecimal(new BigInteger(unscaled), scale), precision, scale);
    }
}

class ForebayTextColumn extends ForebayColumn {
    private final long offsets;
    private final long values;

    ForebayTextColumn(DataType type, long offsets, long values) {
        super(type);
        this.offsets = offsets;
        this.values = values;
    }

    public UTF8String getUTF8String(int row) {
        if (isNullAt(row)) { return null; }
        long at = offsets + 4L * row;
        int from = Platform.getInt(bytes, at);
        return UTF8String.fromAddress(bytes, values + from, Platform.getInt(bytes, at + 4) - from);
    }

    public byte[] getBinary(int row) {
        if (isNullAt(row)) { return null; }
        long at = offsets + 4L * row;
        int from = Platform.getInt(bytes, at);
        byte[] value = new byte[Platform.getInt(bytes, at + 4) - from];
        Platform.copyMemory(bytes, values + from, value, Platform.BYTE_ARRAY_OFFSET, value.length);
        return value;
    }
}

class ForebayArrayColumn extends ForebayColumn {
    private final long offsets;
    private final ForebayColumn elements;

    ForebayArrayColumn(DataType type, long offsets, ForebayColumn elements) {
        super(type);
        this.offsets = offsets;
        this.elements = elements;
    }

    public ColumnarArray getArray(int row) {
        if (isNullAt(row)) { return null; }
        int from = Platform.getInt(bytes, offsets + 4L * row);
        return new ColumnarArray(elements, from, Platform.getInt(bytes, offsets + 4L * row + 4) - from);
    }

    public ColumnVector getChild(int number) { return elements; }
}

class ForebayMapColumn extends ForebayColumn {
    private final long offsets;
    private final ForebayColumn keys;
    private final ForebayColumn values;

    ForebayMapColumn(DataType type, long offsets, ForebayColumn keys, ForebayColumn values) {
        super(type);
        this.offsets = offsets;
        this.keys = keys;
        this.values = values;
    }

    public ColumnarMap getMap(int row) {
        if (isNullAt(row)) { return null; }
        int from = Platform.getInt(bytes, offsets + 4L * row);
        return new ColumnarMap(keys, values, from, Platform.getInt(bytes, offsets + 4L * row + 4) - from);
    }

    public ColumnVector getChild(int number) { return number == 0 ? keys : values; }
}

class ForebayStructColumn extends ForebayColumn {
    final ForebayColumn[] parts;

    ForebayStructColumn(DataType type, ForebayColumn[] parts) {
        super(type);
        this.parts = parts;
    }

    public ColumnVector getChild(int number) { return parts[number]; }
}
