import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.arrow.flatbuf.Buffer;
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
 * Reads record batches, as messages of Arrow's IPC format in an array of bytes, into columns over that array.
 *
 * <p>Spark reads columns without checking bounds. So all that a column may ever touch is checked here, before it is
 * made: the places of all buffers, their lengths for the number of rows, all offsets of texts and lists. A message that
 * is damaged is an IOException. Columns lie in the heap: whoever still reads one when its task has ended reads bytes.
 */
class ForebayArrow {
    private static final int CONTINUATION = -1;
    private static final int PREFIX_BYTES = 8;

    private final StructField[] fields;

    /** What is read now. */
    private byte[] bytes;
    private long body;
    private long bodyLength;
    private RecordBatch header;
    private int node;
    private int buffer;
    private String path;
    private long start;
    private long length;
    private final FieldNode nodeAt = new FieldNode();
    private final Buffer bufferAt = new Buffer();

    ForebayArrow(StructType schema) { fields = schema.fields(); }

    /** The batch in the `size` bytes of `data` from `from` on. It is good for as long as they are not written to. */
    ColumnarBatch read(byte[] data, int from, int size) throws IOException {
        try {
            return checked(data, from, size);
        } catch (IndexOutOfBoundsException e) {
            throw damaged("its header ends too early");
        }
    }

    private ColumnarBatch checked(byte[] data, int from, int size) throws IOException {
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
        // Of a slice, whose places begin at 0: what lies before the message is not read either.
        Message message = Message.getRootAsMessage((ByteBuffer) whole.slice());
        if (message.headerType() != MessageHeader.RecordBatch) {
            throw damaged("it is a message of type " + message.headerType() + " and no record batch");
        }
        header = (RecordBatch) message.header(new RecordBatch());
        bytes = data;
        body = (long) Platform.BYTE_ARRAY_OFFSET + from + PREFIX_BYTES + metadata;
        bodyLength = size - PREFIX_BYTES - metadata;
        if (header == null || header.compression() != null) {
            throw damaged(header == null ? "it has no header" : "it is compressed");
        }
        if (message.bodyLength() < 0 || message.bodyLength() > bodyLength) {
            throw damaged("its body of " + message.bodyLength() + " bytes ends after " + bodyLength);
        }
        if (header.length() < 0 || header.length() > Integer.MAX_VALUE) {
            throw damaged("it has " + header.length() + " rows");
        }
        int rows = (int) header.length();
        node = 0;
        buffer = 0;
        ColumnVector[] columns = new ColumnVector[fields.length];
        for (int i = 0; i < columns.length; i++) {
            path = fields[i].name();
            columns[i] = column(fields[i].dataType(), rows, true);
        }
        path = null;
        if (node != header.nodesLength() || buffer != header.buffersLength()) {
            throw damaged(
                "it has " + header.nodesLength() + " columns in " + header.buffersLength() + " buffers instead of "
                + node + " in " + buffer);
        }
        return new ColumnarBatch(columns, rows);
    }

    private IOException damaged(String how) {
        String where = path == null ? "" : " in column '" + path + "'";
        return new IOException("a record batch in Arrow's format is damaged" + where + ": " + how);
    }

    // ---- columns

    /** The next column, with `rows` rows or (unless `isExact`) more. */
    private ForebayColumn column(DataType type, long rows, boolean isExact) throws IOException {
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
        ForebayColumn made = filled(type, count);
        made.bytes = bytes;
        made.validity = validity;
        made.nulls = (int) nulls;
        return made;
    }

    private ForebayColumn filled(DataType type, long count) throws IOException {
        if (type instanceof StructType) {
            StructField[] inner = ((StructType) type).fields();
            ForebayColumn[] parts = new ForebayColumn[inner.length];
            for (int i = 0; i < parts.length; i++) { parts[i] = column(inner[i].dataType(), count, false); }
            return new ForebayStructColumn(type, parts);
        }
        if (type instanceof ArrayType) {
            long offsets = offsets(count);
            long last = last(offsets, count);
            return new ForebayArrayColumn(type, offsets, column(((ArrayType) type).elementType(), last, false));
        }
        if (type instanceof MapType) {
            long offsets = offsets(count);
            long last = last(offsets, count);
            MapType map = (MapType) type;
            StructType entry = new StructType().add("key", map.keyType()).add("value", map.valueType());
            ForebayStructColumn entries = (ForebayStructColumn) column(entry, last, false);
            return new ForebayMapColumn(type, offsets, entries.parts[0], entries.parts[1]);
        }
        if (type instanceof StringType || type instanceof BinaryType) {
            long offsets = offsets(count);
            place();
            long last = last(offsets, count);
            if (last > length) { throw damaged("its values end at byte " + last + " of " + length); }
            return new ForebayTextColumn(type, offsets, start);
        }
        int width = width(type);
        place();
        if (width == 0 ? length < (count + 7) / 8 : length / width < count) {
            throw damaged(count + " values are in " + length + " bytes");
        }
        if (type instanceof BooleanType) { return new ForebayBooleanColumn(type, start); }
        if (type instanceof FloatType) { return new ForebayFloatColumn(type, start); }
        if (type instanceof DoubleType) { return new ForebayDoubleColumn(type, start); }
        if (type instanceof DecimalType) { return new ForebayDecimalColumn(type, start); }
        switch (width) {
            case 1: return new ForebayByteColumn(type, start);
            case 2: return new ForebayShortColumn(type, start);
            case 4: return new ForebayIntColumn(type, start);
            default: return new ForebayLongColumn(type, start);
        }
    }

    /** The bytes of a value of a type of fixed width; 0: it has a bit. */
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
        header.buffers(bufferAt, buffer++);
        long at = bufferAt.offset();
        length = bufferAt.length();
        if (at < 0 || length < 0 || at > bodyLength || length > bodyLength - at) {
            throw damaged("a buffer is at " + at + " with " + length + " bytes, of " + bodyLength);
        }
        start = body + at;
    }

    /** The address of the next buffer, which has ascending offsets of `count` rows; 0: of none. */
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

/** A column whose values are in an array of bytes, in Arrow's layout. */
abstract class ForebayColumn extends ColumnVector {
    protected byte[] bytes;
    protected long validity;
    protected int nulls;

    ForebayColumn(DataType type) { super(type); }

    public void close() {}

    public boolean hasNull() { return nulls > 0; }

    public int numNulls() { return nulls; }

    public boolean isNullAt(int row) {
        return validity != 0 && (Platform.getByte(bytes, validity + (row >> 3)) >> (row & 7) & 1) == 0;
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

/** Each type has a class of its own: then the JVM compiles a query's calls into plain loads. */
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
        return (Platform.getByte(bytes, values + (row >> 3)) >> (row & 7) & 1) != 0;
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
