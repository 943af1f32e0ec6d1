"""The functions of the merge engine `aggregation`, on the spans of two rows.

The result of a field is one of the two values, or a value that is built in a buffer of the field, valid until the next
row. Semantics are those of Fluss's `FieldAggregator`s: a DECIMAL that does not fit becomes null, but for sums of up to 18
digits, which are refused; of floating point numbers NaN is the greatest, and -0.0 is less than 0.0; `first_value` skips
nulls like `first_value_ignore_nulls`. Unlike theirs, sums and products of whole numbers that do not fit are refused,
unless the table wraps them around.

Merging needs no Python, but for bitmaps: it says by a number that and why it fails, of which `refuse` makes an error.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy

from forebay.codec.rows._layout cimport (
    FORMAT_INDEXED, KIND_BOOLEAN, KIND_BYTES, KIND_CHAR, KIND_DECIMAL, KIND_DECIMAL_COMPACT, KIND_DOUBLE, KIND_FLOAT, KIND_INT8,
    KIND_INT16, KIND_INT32, KIND_INT64, KIND_STRING, KIND_TIME, KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT, RowLayout,
)
from forebay.codec.rows._row_decode cimport Span
from forebay.codec._wire cimport write_varint
from forebay.kv._fields cimport INTEGER_BYTES_MAX, content, load_instant, load_integer, store_integer

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.metadata.merge_engines import INTEGER_OVERFLOW

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    typedef __int128 fb_i128;
    typedef unsigned __int128 fb_u128;

    static fb_u128 fb_power_of_ten(int digits) {
        fb_u128 power = 1;
        while (digits-- > 0) power *= 10;
        return power;
    }

    /* A big-endian two's complement number of 1 to 16 bytes. */
    static fb_i128 fb_load(const uint8_t* p, int size) {
        fb_u128 value = p[0] & 0x80 ? ~(fb_u128) 0 : 0;
        for (int i = 0; i < size; i++) value = value << 8 | p[i];
        return (fb_i128) value;
    }

    /* The same with as few bytes as possible; returns their number. */
    static int fb_store(uint8_t* out, fb_i128 value) {
        int size = 1;
        fb_i128 rest = value >> 7;
        while (rest != 0 && rest != -1) { rest >>= 8; size++; }
        for (int i = size - 1; i >= 0; i--) { out[i] = (uint8_t) value; value >>= 8; }
        return size;
    }

    static int fb_fits(fb_i128 value, int precision) {
        fb_u128 limit = fb_power_of_ten(precision);
        return (value < 0 ? -(fb_u128) value : (fb_u128) value) < limit;
    }

    /* The sum or product of two numbers, cut to `bits` bits; 0, or -1 if it has more. */
    static int fb_whole(int64_t a, int64_t b, int multiplies, int bits, int64_t* out) {
        int64_t result;
        int overflows = multiplies ? __builtin_mul_overflow(a, b, &result) : __builtin_add_overflow(a, b, &result);
        *out = (int64_t) ((uint64_t) result << (64 - bits)) >> (64 - bits);
        return overflows || *out != result ? -1 : 0;
    }

    /* 0, or -1 if the sum has more digits than `precision`. */
    static int fb_add(fb_i128 a, fb_i128 b, int precision, fb_i128* out) {
        return __builtin_add_overflow(a, b, out) || !fb_fits(*out, precision) ? -1 : 0;
    }

    /* The product of two numbers with `scale` decimals, rounded half away from zero; 0, or -1 as above. */
    static int fb_multiply(fb_i128 a, fb_i128 b, int precision, int scale, fb_i128* out) {
        int negative = (a < 0) != (b < 0);
        fb_u128 x = a < 0 ? -(fb_u128) a : (fb_u128) a, y = b < 0 ? -(fb_u128) b : (fb_u128) b, carry;
        uint64_t xs[2] = {(uint64_t) x, (uint64_t) (x >> 64)}, ys[2] = {(uint64_t) y, (uint64_t) (y >> 64)};
        uint64_t r[5] = {0, 0, 0, 0, 0};
        for (int i = 0; i < 2; i++) {
            carry = 0;
            for (int j = 0; j < 2; j++) {
                carry += (fb_u128) xs[i] * ys[j] + r[i + j];
                r[i + j] = (uint64_t) carry;
                carry >>= 64;
            }
            r[i + 2] = (uint64_t) carry;
        }
        if (scale > 0) {
            fb_u128 half = 5 * fb_power_of_ten(scale - 1);
            carry = 0;
            for (int i = 0; i < 5; i++) {
                carry += (fb_u128) r[i] + (i < 2 ? (uint64_t) (half >> (64 * i)) : 0);
                r[i] = (uint64_t) carry;
                carry >>= 64;
            }
        }
        while (scale > 0) {
            int digits = scale < 18 ? scale : 18;
            uint64_t divisor = (uint64_t) fb_power_of_ten(digits);
            carry = 0;
            for (int i = 4; i >= 0; i--) {
                carry = carry << 64 | r[i];
                r[i] = (uint64_t) (carry / divisor);
                carry %= divisor;
            }
            scale -= digits;
        }
        fb_u128 product = (fb_u128) r[1] << 64 | r[0];
        if (r[2] || r[3] || r[4] || product >= fb_power_of_ten(precision)) return -1;
        *out = negative ? -(fb_i128) product : (fb_i128) product;
        return 0;
    }
    """
    ctypedef long long i128 "fb_i128"  # wider than Cython believes; it never becomes a Python object
    i128 fb_load(const uint8_t* p, int size) nogil
    int fb_store(uint8_t* out, i128 value) nogil
    int fb_whole(int64_t a, int64_t b, int multiplies, int bits, int64_t* out) nogil
    int fb_add(i128 a, i128 b, int precision, i128* out) nogil
    int fb_multiply(i128 a, i128 b, int precision, int scale, i128* out) nogil

cdef enum Function:
    KEEP_OLD = 0       # a column that the write leaves out
    LAST_VALUE = 1
    LAST_NOT_NULL = 2
    FIRST_NOT_NULL = 3
    SUM = 4
    PRODUCT = 5
    MAX = 6
    MIN = 7
    JOIN = 8
    AND = 9
    OR = 10
    UNITE = 11

cdef enum Failure:
    NO_MEMORY = 1
    DECIMAL_BYTES = 2
    SUM_OVERFLOW = 3
    NOT_NULL_OVERFLOW = 4
    TEXT_TOO_LONG = 5
    WHOLE_OVERFLOW = 6

cdef enum:
    DECIMAL_BYTES_MAX = 16
    RESULT_BYTES = 32

cdef int64_t VALUE_BYTES_MAX = 0x7FFFFFFF - INTEGER_BYTES_MAX

_FUNCTIONS = {
    None: KEEP_OLD, "last_value": LAST_VALUE, "last_value_ignore_nulls": LAST_NOT_NULL, "first_value": FIRST_NOT_NULL,
    "first_value_ignore_nulls": FIRST_NOT_NULL, "sum": SUM, "product": PRODUCT, "max": MAX, "min": MIN,
    "listagg": JOIN, "string_agg": JOIN, "bool_and": AND, "bool_or": OR, "rbm32": UNITE,
}
_WHOLE = {KIND_INT8: "TINYINT", KIND_INT16: "SMALLINT", KIND_INT32: "INT", KIND_INT64: "BIGINT"}
_NUMBERS = (*_WHOLE, KIND_FLOAT, KIND_DOUBLE, KIND_DECIMAL_COMPACT, KIND_DECIMAL)
_KINDS = {
    SUM: _NUMBERS,
    PRODUCT: _NUMBERS,
    MAX: (*_NUMBERS, KIND_STRING, KIND_CHAR, KIND_TIME, KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT),
    MIN: (*_NUMBERS, KIND_STRING, KIND_CHAR, KIND_TIME, KIND_TIMESTAMP, KIND_TIMESTAMP_COMPACT),
    JOIN: (KIND_STRING,),
    AND: (KIND_BOOLEAN,),
    OR: (KIND_BOOLEAN,),
    UNITE: (KIND_BYTES,),
}


cdef class Aggregates:
    """The functions of a table's columns. `columns` has for each (name, function or None, delimiter, precision, scale).

    None keeps the old value. `row_name` is called with a key and returns what its row is called in messages.
    `must_succeed`: a decimal sum that does not fit is null instead of an error, whole numbers wrap around, and bytes that
    are no bitmap lose against a bitmap, because the write is decided (a transaction). `wraps`: whole numbers that do not
    fit keep their lowest bits. Raises `UnsupportedOperation` if a column
    has bitmaps and pyroaring is not installed.
    """

    def __cinit__(self, RowLayout layout, columns, row_name, bint must_succeed, bint wraps):
        cdef int child = 1
        cdef int i
        cdef Field* field
        cdef bytes delimiter
        self.count = layout.field_count
        self.row_format = layout.format
        self.must_succeed = must_succeed
        self.wraps = wraps or must_succeed
        self.row_name = row_name
        self.names = tuple(name for name, *_ in columns)
        self.owners = []
        if len(self.names) != self.count:
            raise ValueError("each column needs a function")
        self.fields = <Field*> calloc(max(1, self.count), sizeof(Field))
        if self.fields == NULL:
            raise MemoryError()
        for i, (_, function, given, precision, scale) in enumerate(columns):
            field = &self.fields[i]
            field.function = _FUNCTIONS[function]
            field.kind = layout.nodes[child].kind
            field.nullable = layout.nodes[child].nullable
            field.precision = precision
            field.scale = scale
            if field.function in _KINDS and field.kind not in _KINDS[field.function]:
                raise ValueError(f"{function} does not take column {self.names[i]}")
            if field.function == UNITE and self.bitmaps is None:
                self.bitmaps = bitmap_class()
            delimiter = given
            self.owners.append(delimiter)
            field.delimiter = delimiter
            field.delimiter_size = <int32_t> len(delimiter)
            if reserve(field, RESULT_BYTES) != 0:
                raise MemoryError()
            child = layout.nodes[child].end

    def __dealloc__(self):
        cdef int i
        if self.fields != NULL:
            for i in range(self.count):
                free(self.fields[i].result)
        free(self.fields)

    cdef int merge(self, const Span* old, Span* new) noexcept nogil:
        """Turn the fields of a new row into those of the merged row, but for bitmaps; 0, or what `refuse` takes."""
        cdef int i, function, failure
        for i in range(self.count):
            function = self.fields[i].function
            if function == LAST_VALUE or function == UNITE:
                continue
            if function == KEEP_OLD:
                new[i] = old[i]
            elif new[i].size < 0:
                new[i] = old[i]
            elif old[i].size < 0 or function == LAST_NOT_NULL:
                continue
            elif function == FIRST_NOT_NULL:
                new[i] = old[i]
            else:
                failure = self.combine(i, &old[i], &new[i])
                if failure != 0:
                    self.failed = i
                    return failure
        return 0

    cdef int unite_all(self, const Span* old, Span* new, object key) except -1:
        """The rest of `merge`: bitmaps."""
        cdef int i
        for i in range(self.count):
            if self.fields[i].function != UNITE or old[i].size < 0:
                continue
            if new[i].size < 0:
                new[i] = old[i]
            else:
                self.unite(i, &old[i], &new[i], key)
        return 0

    cdef int refuse(self, int failure, object key) except -1:
        """Raise the error of a `merge` that failed for the row of `key`."""
        cdef Field* field = &self.fields[self.failed]
        if failure == NO_MEMORY:
            raise MemoryError()
        if failure == DECIMAL_BYTES:
            raise CorruptData(
                f"a decimal of a row does not have 1 to {DECIMAL_BYTES_MAX} bytes", ErrorCode.CORRUPT_RECORD_EXCEPTION
            )
        place = f"{self.row_name(key)}, column '{self.names[self.failed]}'"
        result = "sum" if field.function == SUM else "product"
        if failure == WHOLE_OVERFLOW:
            raise InvalidRequest(
                f"{place}: a {result} does not fit into {_WHOLE[field.kind]}; use a wider type, or set the table option "
                f"'{INTEGER_OVERFLOW}' to 'wrap', which keeps the lowest bits as a Fluss cluster does",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        if failure == SUM_OVERFLOW:
            raise InvalidRequest(
                f"{place}: a sum does not fit into DECIMAL({field.precision}, {field.scale})",
                ErrorCode.INVALID_TABLE_EXCEPTION,  # a Fluss cluster answers UNKNOWN_SERVER_ERROR
            )
        if failure == NOT_NULL_OVERFLOW:
            raise InvalidRequest(
                f"{place}: a {result} does not fit into "
                f"DECIMAL({field.precision}, {field.scale}), and the column is NOT NULL",
                ErrorCode.INVALID_TARGET_COLUMN,
            )
        raise InvalidRequest(
            f"{place}: the joined text would have more than {VALUE_BYTES_MAX} bytes, which no row can hold",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )

    cdef int combine(self, int position, const Span* old, Span* new) noexcept nogil:
        """Two values that are not null."""
        cdef Field* field = &self.fields[position]
        cdef int order = 0
        cdef int failure
        if field.function == SUM or field.function == PRODUCT:
            return self.add_or_multiply(position, old, new)
        if field.function == JOIN:
            return self.join(position, old, new)
        if field.function == AND:
            if old.data[0] == 0:
                new[0] = old[0]
        elif field.function == OR:
            if old.data[0] != 0:
                new[0] = old[0]
        else:
            failure = compare(field.kind, self.row_format, old, new, &order)
            if failure != 0:
                return failure
            if (order < 0) == (field.function == MIN):
                new[0] = old[0]
        return 0

    cdef int add_or_multiply(self, int position, const Span* old, Span* new) noexcept nogil:
        cdef Field* field = &self.fields[position]
        cdef int kind = field.kind
        cdef bint adds = field.function == SUM
        cdef float f, g
        cdef double d, e
        if kind == KIND_DECIMAL or kind == KIND_DECIMAL_COMPACT:
            return self.decimal(position, old, new)
        if kind == KIND_FLOAT:
            memcpy(&f, old.data, 4)
            memcpy(&g, new.data, 4)
            f = f + g if adds else f * g
            memcpy(field.result, &f, 4)
            new.data = field.result
        elif kind == KIND_DOUBLE:
            memcpy(&d, old.data, 8)
            memcpy(&e, new.data, 8)
            d = d + e if adds else d * e
            memcpy(field.result, &d, 8)
            new.data = field.result
        else:
            return self.whole(position, old, new)
        return 0

    cdef int whole(self, int position, const Span* old, Span* new) noexcept nogil:
        cdef Field* field = &self.fields[position]
        cdef int kind = field.kind
        cdef int bits = 8 if kind == KIND_INT8 else 16 if kind == KIND_INT16 else 32 if kind == KIND_INT32 else 64
        cdef int64_t a = load_integer(kind, self.row_format, old)
        cdef int64_t b = load_integer(kind, self.row_format, new)
        cdef int64_t result
        if fb_whole(a, b, field.function == PRODUCT, bits, &result) < 0 and not self.wraps:
            return WHOLE_OVERFLOW
        store_integer(kind, self.row_format, result, field.result, new)
        return 0

    cdef int decimal(self, int position, const Span* old, Span* new) noexcept nogil:
        cdef Field* field = &self.fields[position]
        cdef bint compact = field.kind == KIND_DECIMAL_COMPACT
        cdef i128 a, b, result
        cdef const uint8_t* p
        cdef int32_t size
        cdef int header
        if compact:
            a = load_integer(field.kind, self.row_format, old)
            b = load_integer(field.kind, self.row_format, new)
        else:
            p = content(field.kind, self.row_format, old, &size)
            if size < 1 or size > DECIMAL_BYTES_MAX:
                return DECIMAL_BYTES
            a = fb_load(p, size)
            p = content(field.kind, self.row_format, new, &size)
            if size < 1 or size > DECIMAL_BYTES_MAX:
                return DECIMAL_BYTES
            b = fb_load(p, size)
        if field.function == SUM:
            if fb_add(a, b, field.precision, &result) < 0:
                return self.overflowed(position, old, new, compact)
        elif fb_multiply(a, b, field.precision, field.scale, &result) < 0:
            return self.overflowed(position, old, new, False)
        if compact:
            store_integer(field.kind, self.row_format, <int64_t> result, field.result, new)
            return 0
        header = 0 if self.row_format == FORMAT_INDEXED else 1  # a length below 128 is one byte
        size = fb_store(field.result + header, result)
        if header:
            field.result[0] = <uint8_t> size
        new.data = field.result
        new.size = header + size
        return 0

    cdef int overflowed(self, int position, const Span* old, Span* new, bint is_error) noexcept nogil:
        if is_error and not self.must_succeed:
            return SUM_OVERFLOW
        if self.fields[position].nullable:
            new.size = -1
        elif self.must_succeed:
            new[0] = old[0]
        else:
            return NOT_NULL_OVERFLOW
        return 0

    cdef int join(self, int position, const Span* old, Span* new) noexcept nogil:
        """The old text, the delimiter, the new text."""
        cdef Field* field = &self.fields[position]
        cdef int32_t old_size, new_size
        cdef const uint8_t* before = content(field.kind, self.row_format, old, &old_size)
        cdef const uint8_t* after = content(field.kind, self.row_format, new, &new_size)
        cdef int64_t size = <int64_t> old_size + field.delimiter_size + new_size
        cdef uint8_t* p
        if size > VALUE_BYTES_MAX:
            return TEXT_TOO_LONG
        p = place(field, self.row_format, size, new)
        if p == NULL:
            return NO_MEMORY
        memcpy(p, before, old_size)
        memcpy(p + old_size, field.delimiter, field.delimiter_size)
        memcpy(p + old_size + field.delimiter_size, after, new_size)
        return 0

    cdef int unite(self, int position, const Span* old, Span* new, object key) except -1:
        """The union of two bitmaps in the portable format of Roaring bitmaps."""
        cdef Field* field = &self.fields[position]
        cdef int32_t size
        cdef const uint8_t* p = content(field.kind, self.row_format, old, &size)
        cdef bytes before = p[:size]
        p = content(field.kind, self.row_format, new, &size)
        cdef bytes after = p[:size]
        cdef bytes merged
        which = "the value in the table"
        try:
            united = self.bitmaps.deserialize(before)
            which = "the written value"
            united |= self.bitmaps.deserialize(after)
        except (ValueError, IndexError) as e:
            if not self.must_succeed:
                raise InvalidRequest(
                    f"{self.row_name(key)}, column '{self.names[position]}': {which} is not a bitmap of the portable Roaring format ({e}); "
                    "merge_mode='overwrite' replaces a value",
                    ErrorCode.INVALID_TABLE_EXCEPTION,  # a Fluss cluster answers UNKNOWN_SERVER_ERROR
                ) from e
            if which == "the written value":
                new[0] = old[0]
            return 0
        united.run_optimize()
        merged = united.serialize()
        cdef uint8_t* out = place(field, self.row_format, len(merged), new)
        if out == NULL:
            raise MemoryError()
        memcpy(out, PyBytes_AS_STRING(merged), len(merged))
        return 0


def bitmap_class():
    """pyroaring's `BitMap`, which reads and writes what Java's `RoaringBitmap` does."""
    try:
        from pyroaring import BitMap
    except ImportError as e:
        raise UnsupportedOperation(
            "the aggregate function 'rbm32' needs the package pyroaring on the server: pip install 'forebay[bitmaps]'",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        ) from e
    return BitMap


cdef int reserve(Field* field, Py_ssize_t size) noexcept nogil:
    cdef void* grown
    if size > field.capacity:
        size = max(size, 2 * field.capacity)
        grown = realloc(field.result, size)
        if grown == NULL:
            return NO_MEMORY
        field.result = <uint8_t*> grown
        field.capacity = size
    return 0


cdef uint8_t* place(Field* field, int row_format, int64_t size, Span* span) noexcept nogil:
    """Make `span` a value of `size` bytes with their length where the format has it; return where they belong, or NULL
    if there is no memory.
    """
    cdef uint8_t* p
    if reserve(field, size + INTEGER_BYTES_MAX) != 0:
        return NULL
    p = field.result
    if row_format != FORMAT_INDEXED:
        p += write_varint(p, <uint64_t> size)
    span.data = field.result
    span.size = <int32_t> (p + size - field.result)
    return p


cdef inline int ordered(int64_t a, int64_t b) noexcept nogil:
    return (a > b) - (a < b)


cdef inline int ordered_doubles(double a, double b) noexcept nogil:
    """As Java's `Double.compare`: NaN is the greatest, and -0.0 is less than 0.0."""
    cdef int64_t x, y
    if a < b:
        return -1
    if a > b:
        return 1
    if a != a or b != b:
        return (a != a) - (b != b)
    memcpy(&x, &a, 8)
    memcpy(&y, &b, 8)
    return ordered(x, y)


cdef int compare(int kind, int row_format, const Span* old, const Span* new, int* order) noexcept nogil:
    """Set `order`: below, at or above zero. 0, or a `Failure`."""
    cdef int64_t a, b
    cdef int32_t i, j
    cdef const uint8_t* p
    cdef const uint8_t* q
    cdef float f, g
    cdef double d, e
    if kind == KIND_FLOAT:
        memcpy(&f, old.data, 4)
        memcpy(&g, new.data, 4)
        order[0] = ordered_doubles(f, g)
    elif kind == KIND_DOUBLE:
        memcpy(&d, old.data, 8)
        memcpy(&e, new.data, 8)
        order[0] = ordered_doubles(d, e)
    elif kind == KIND_STRING or kind == KIND_CHAR or kind == KIND_DECIMAL:
        p = content(kind, row_format, old, &i)
        q = content(kind, row_format, new, &j)
        if kind == KIND_DECIMAL:
            if i < 1 or i > DECIMAL_BYTES_MAX or j < 1 or j > DECIMAL_BYTES_MAX:
                return DECIMAL_BYTES
            order[0] = (fb_load(p, i) > fb_load(q, j)) - (fb_load(p, i) < fb_load(q, j))
        else:
            order[0] = memcmp(p, q, min(i, j))
            if order[0] == 0:
                order[0] = ordered(i, j)
    else:
        load_instant(kind, row_format, old, &a, &i)
        load_instant(kind, row_format, new, &b, &j)
        order[0] = ordered(a, b) if a != b else ordered(i, j)
    return 0
