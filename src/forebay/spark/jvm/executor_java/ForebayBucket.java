import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;

/**
 * The bucket of a row, by the bucket function of a table: a hash of the bytes of its key columns.
 *
 * <p>Types of columns are a letter and numbers: Z boolean, B tinyint, S smallint, I int and date, L bigint, F float, D
 * double (f and d: with one zero and one NaN), N4,2 decimal, U text, Y bytes, T6 timestamp, t3 time.
 *
 * <p>For a write, the result is not the bucket but a number that Spark's hash partitioning puts into the task of the
 * bucket: bucket 0 of a partition into one task, bucket 1 into the next.
 */
public class ForebayBucket implements ScalarFunction {
    private static final int SPARK_SEED = 42;
    private static final int VARINT_BYTES_MAX = 10;

    private final String name;
    private final String canonicalName;
    private final DataType[] inputTypes;
    private final String kind;
    private final char[] letters;
    private final int[] precisions;
    private final int[] scales;
    private final int keys;
    private final int total;
    private final int first;
    private final int[] places;
    private transient ByteBuffer bytes;

    /**
     * `kind` is fluss, paimon, iceberg, mod or hive. The first `keys` columns of `types` are the bucket key, the others
     * are partition columns. `total` is the number of buckets; 0: it is the first argument. `tasks` is the number of
     * tasks that write; 0: the result is the bucket.
     */
    public ForebayBucket(
            String name, String canonicalName, DataType[] inputTypes, String kind, String[] types, int keys, int total,
            int tasks) {
        this.name = name;
        this.canonicalName = canonicalName;
        this.inputTypes = inputTypes;
        this.kind = kind;
        this.keys = keys;
        this.total = total;
        first = total == 0 ? 1 : 0;
        letters = new char[types.length];
        precisions = new int[types.length];
        scales = new int[types.length];
        for (int i = 0; i < types.length; i++) {
            letters[i] = types[i].charAt(0);
            String[] numbers = types[i].substring(1).split(",");
            if (numbers[0].length() > 0) { precisions[i] = Integer.parseInt(numbers[0]); }
            if (numbers.length > 1) { scales[i] = Integer.parseInt(numbers[1]); }
        }
        places = new int[tasks];
        boolean[] isFound = new boolean[tasks];
        int found = 0;
        for (int number = 0; found < tasks; number++) {
            int task = Math.floorMod(Murmur3_x86_32.hashInt(number, SPARK_SEED), tasks);
            if (!isFound[task]) {
                isFound[task] = true;
                places[task] = number;
                found++;
            }
        }
    }

    public String name() { return name; }

    public String canonicalName() { return canonicalName; }

    public DataType[] inputTypes() { return inputTypes; }

    public DataType resultType() { return DataTypes.IntegerType; }

    public boolean isResultNullable() { return false; }

    public String toString() { return canonicalName; }

    public boolean equals(Object other) {
        return other instanceof ForebayBucket && canonicalName.equals(((ForebayBucket) other).canonicalName);
    }

    public int hashCode() { return canonicalName.hashCode(); }

    public Object produceResult(InternalRow row) {
        int count = total == 0 ? row.getInt(0) : total;
        if (count < 1) {
            throw new IllegalArgumentException(name + " needs a positive number of buckets, not " + count);
        }
        int bucket = bucket(row, count);
        if (places.length == 0) { return Integer.valueOf(bucket); }
        int shift = 0;
        if (letters.length > keys) {
            align(row, keys, letters.length);
            shift = Math.floorMod(hash(), places.length);
        }
        return Integer.valueOf(places[(int) (((long) bucket + shift) % places.length)]);
    }

    private int bucket(InternalRow row, int count) {
        if (kind.equals("paimon")) {
            align(row, 0, keys);
            return Math.abs(hash() % count);
        }
        if (kind.equals("mod")) {
            return row.isNullAt(first) ? 0 : (int) Math.floorMod(number(row, 0), (long) count);
        }
        if (kind.equals("hive")) {
            int hash = 0;
            for (int i = 0; i < keys; i++) { hash = hash * 31 + (row.isNullAt(first + i) ? 0 : hiveHash(row, i)); }
            return (hash & Integer.MAX_VALUE) % count;
        }
        for (int i = 0; i < keys; i++) {
            if (row.isNullAt(first + i)) { return 0; }
        }
        start(0);
        if (kind.equals("iceberg")) {
            addIceberg(row);
            return (murmur() & Integer.MAX_VALUE) % count;
        }
        for (int i = 0; i < keys; i++) { addCompacted(row, i); }
        int second = Math.abs(finished(mixed(0, hash()), 4));
        return (second < 0 ? 0 : second) % count;
    }

    // ---- values

    /** The value of an integer column. */
    private long number(InternalRow row, int i) {
        int at = first + i;
        switch (letters[i]) {
            case 'Z': return row.getBoolean(at) ? 1 : 0;
            case 'B': return row.getByte(at);
            case 'S': return row.getShort(at);
            case 'I': return row.getInt(at);
            case 'N': return row.getDecimal(at, precisions[i], scales[i]).toUnscaledLong();
            default: return row.getLong(at);
        }
    }

    private BigDecimal decimal(InternalRow row, int i) {
        return row.getDecimal(first + i, precisions[i], scales[i]).toJavaBigDecimal().setScale(scales[i]);
    }

    private byte[] content(InternalRow row, int i) {
        int at = first + i;
        switch (letters[i]) {
            case 'U': return row.getUTF8String(at).getBytes();
            case 'Y': return row.getBinary(at);
            default: return decimal(row, i).unscaledValue().toByteArray();
        }
    }

    private boolean isSmallDecimal(int i) { return letters[i] == 'N' && precisions[i] <= 18; }

    /** Microseconds, rounded down to the digits of the column. */
    private long micros(InternalRow row, int i) {
        long value = row.getLong(first + i);
        if (letters[i] == 't') { value = Math.floorDiv(value, 1000L); }
        long unit = precisions[i] == 0 ? 1000000L : precisions[i] <= 3 ? 1000L : 1L;
        return Math.floorDiv(value, unit) * unit;
    }

    private int floatBits(InternalRow row, int i) {
        float value = row.getFloat(first + i);
        if (letters[i] == 'f') { value = value != value ? Float.NaN : value + 0.0f; }
        return Float.floatToRawIntBits(value);
    }

    private long doubleBits(InternalRow row, int i) {
        double value = row.getDouble(first + i);
        if (letters[i] == 'd') { value = value != value ? Double.NaN : value + 0.0; }
        return Double.doubleToRawLongBits(value);
    }

    // ---- bytes of keys

    private void start(int size) {
        if (bytes == null) { bytes = ByteBuffer.allocate(256).order(ByteOrder.LITTLE_ENDIAN); }
        bytes.clear();
        reserve(size);
        for (int i = 0; i < size; i++) { bytes.put((byte) 0); }
    }

    private void reserve(int more) {
        if (bytes.remaining() >= more) { return; }
        ByteBuffer larger = ByteBuffer.allocate(Math.max(bytes.capacity() * 2, bytes.position() + more));
        bytes.flip();
        larger.order(ByteOrder.LITTLE_ENDIAN).put(bytes);
        bytes = larger;
    }

    private void addVarint(long value) {
        reserve(VARINT_BYTES_MAX);
        long rest = value;
        while ((rest & ~0x7FL) != 0) {
            bytes.put((byte) (rest & 0x7F | 0x80));
            rest >>>= 7;
        }
        bytes.put((byte) rest);
    }

    private void addBytes(byte[] content) {
        reserve(content.length);
        bytes.put(content);
    }

    /** A field of Fluss's compacted key. */
    private void addCompacted(InternalRow row, int i) {
        reserve(8);
        switch (letters[i]) {
            case 'Z':
            case 'B':
                bytes.put((byte) number(row, i));
                return;
            case 'S':
                bytes.putShort((short) number(row, i));
                return;
            case 'I':
                addVarint(number(row, i) & 0xFFFFFFFFL);
                return;
            case 'L':
                addVarint(number(row, i));
                return;
            case 'F':
            case 'f':
                bytes.putInt(floatBits(row, i));
                return;
            case 'D':
            case 'd':
                bytes.putDouble(Double.longBitsToDouble(doubleBits(row, i)));
                return;
            case 't':
                addVarint(micros(row, i) / 1000);
                return;
            case 'T':
                long micros = micros(row, i);
                addVarint(Math.floorDiv(micros, 1000L));
                if (precisions[i] > 3) { addVarint(Math.floorMod(micros, 1000L) * 1000); }
                return;
            default:
                if (isSmallDecimal(i)) {
                    addVarint(number(row, i));
                    return;
                }
                byte[] content = content(row, i);
                addVarint(content.length);
                addBytes(content);
        }
    }

    /** Iceberg's serialization of a single value. */
    private void addIceberg(InternalRow row) {
        reserve(8);
        switch (letters[0]) {
            case 'I':
            case 'L':
                bytes.putLong(number(row, 0));
                return;
            case 'T':
            case 't':
                bytes.putLong(micros(row, 0));
                return;
            case 'F':
            case 'f':
                bytes.putInt(floatBits(row, 0));
                return;
            case 'D':
            case 'd':
                bytes.putLong(doubleBits(row, 0));
                return;
            default:
                addBytes(content(row, 0));
        }
    }

    /** The columns [from, to) as a BinaryRow: null bits from bit 8 on, a slot of 8 bytes each, and longer values. */
    private void align(InternalRow row, int from, int to) {
        int head = (to - from + 8 + 63) / 64 * 8;
        start(head + 8 * (to - from));
        for (int i = from; i < to; i++) {
            int bit = i - from + 8;
            if (row.isNullAt(first + i)) {
                bytes.put(bit / 8, (byte) (bytes.get(bit / 8) | 1 << bit % 8));
            } else {
                setSlot(row, i, head + 8 * (i - from));
            }
        }
    }

    private void setSlot(InternalRow row, int i, int slot) {
        switch (letters[i]) {
            case 'Z':
            case 'B':
                bytes.put(slot, (byte) number(row, i));
                return;
            case 'S':
                bytes.putShort(slot, (short) number(row, i));
                return;
            case 'I':
                bytes.putInt(slot, (int) number(row, i));
                return;
            case 'L':
                bytes.putLong(slot, number(row, i));
                return;
            case 'F':
            case 'f':
                bytes.putInt(slot, floatBits(row, i));
                return;
            case 'D':
            case 'd':
                bytes.putLong(slot, doubleBits(row, i));
                return;
            case 't':
                bytes.putInt(slot, (int) (micros(row, i) / 1000));
                return;
            case 'T':
                setTimestamp(micros(row, i), precisions[i], slot);
                return;
            default:
                if (isSmallDecimal(i)) {
                    bytes.putLong(slot, number(row, i));
                } else {
                    setContent(content(row, i), letters[i] == 'N', slot);
                }
        }
    }

    private void setTimestamp(long micros, int precision, int slot) {
        long millis = Math.floorDiv(micros, 1000L);
        if (precision <= 3) {
            bytes.putLong(slot, millis);
            return;
        }
        bytes.putLong(slot, (long) bytes.position() << 32 | Math.floorMod(micros, 1000L) * 1000);
        reserve(8);
        bytes.putLong(millis);
    }

    private void setContent(byte[] content, boolean isDecimal, int slot) {
        int length = content.length;
        if (length <= 7 && !isDecimal) {
            for (int i = 0; i < length; i++) { bytes.put(slot + i, content[i]); }
            bytes.put(slot + 7, (byte) (0x80 | length));
            return;
        }
        bytes.putLong(slot, (long) bytes.position() << 32 | length);
        addBytes(content);
        int padding = isDecimal ? 16 - length : -length & 7;
        reserve(padding);
        for (int i = 0; i < padding; i++) { bytes.put((byte) 0); }
    }

    // ---- hashes of bytes

    private static int mixed(int hash, int block) {
        int k = Integer.rotateLeft(block * 0xCC9E2D51, 15) * 0x1B873593;
        return Integer.rotateLeft(hash ^ k, 13) * 5 + 0xE6546B64;
    }

    private static int finished(int hash, int length) {
        int h = hash ^ length;
        h = (h ^ h >>> 16) * 0x85EBCA6B;
        h = (h ^ h >>> 13) * 0xC2B2AE35;
        return h ^ h >>> 16;
    }

    /** Murmur3 as in Fluss and Paimon: each byte after the last whole block is a block of its own, sign-extended. */
    private int hash() {
        int size = bytes.position();
        int whole = size & ~3;
        int h = 42;
        for (int i = 0; i < whole; i += 4) { h = mixed(h, bytes.getInt(i)); }
        for (int i = whole; i < size; i++) { h = mixed(h, bytes.get(i)); }
        return finished(h, size);
    }

    /** Murmur3 with seed 0, as in Iceberg. */
    private int murmur() {
        int size = bytes.position();
        int whole = size & ~3;
        int h = 0;
        for (int i = 0; i < whole; i += 4) { h = mixed(h, bytes.getInt(i)); }
        int tail = 0;
        for (int i = size - 1; i >= whole; i--) { tail = tail << 8 | bytes.get(i) & 0xFF; }
        if (size > whole) { h ^= Integer.rotateLeft(tail * 0xCC9E2D51, 15) * 0x1B873593; }
        return finished(h, size);
    }

    /** Hive's hash of a value. */
    private int hiveHash(InternalRow row, int i) {
        switch (letters[i]) {
            case 'L': return Long.hashCode(number(row, i));
            case 'F':
            case 'f': return hiveFloat(row.getFloat(first + i));
            case 'D':
            case 'd': return hiveDouble(row.getDouble(first + i));
            case 't': return (int) (micros(row, i) / 1000);
            case 'N': return hiveDecimal(decimal(row, i));
            case 'U':
            case 'Y':
                int h = 0;
                byte[] content = content(row, i);
                for (int j = 0; j < content.length; j++) { h = h * 31 + content[j]; }
                return h;
            default: return (int) number(row, i);
        }
    }

    private static int hiveFloat(float value) { return value == 0 ? 0 : Float.floatToIntBits(value); }

    private static int hiveDouble(double value) {
        return value == 0 ? 0 : Long.hashCode(Double.doubleToLongBits(value));
    }

    private static int hiveDecimal(BigDecimal value) {
        if (value.signum() == 0) { return 0; }
        BigDecimal shortened = value;
        BigInteger[] parts = shortened.unscaledValue().divideAndRemainder(BigInteger.TEN);
        while (shortened.scale() > 0 && parts[1].signum() == 0) {
            shortened = new BigDecimal(parts[0], shortened.scale() - 1);
            parts = parts[0].divideAndRemainder(BigInteger.TEN);
        }
        return shortened.hashCode();
    }
}
