import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.DataGetters;
import org.apache.paimon.data.Decimal;
import org.apache.paimon.data.GenericArray;
import org.apache.paimon.data.GenericMap;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalArray;
import org.apache.paimon.data.InternalMap;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.types.ArrayType;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.types.DecimalType;
import org.apache.paimon.types.MapType;
import org.apache.paimon.types.MultisetType;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.InternalRowUtils;

/**
 * Paimon's values as JSON that loses nothing: floating point as the bits of a double and bytes in hexadecimal, decimals
 * as text, dates in days, times in milliseconds, timestamps in nanoseconds, maps and multisets as {"map": list of pairs},
 * rows as lists.
 */
final class Values {
    private static final BigInteger NANOS = BigInteger.valueOf(1_000_000L);

    private Values() {}

    static List<Object> rowToJson(InternalRow row, RowType type) {
        List<Object> cells = new ArrayList<>();
        List<DataField> fields = type.getFields();
        for (int i = 0; i < fields.size(); i++) {
            cells.add(cellToJson(row, i, fields.get(i).type()));
        }
        return cells;
    }

    private static Object cellToJson(DataGetters cells, int position, DataType type) {
        return toJson(InternalRowUtils.get(cells, position, type), type);
    }

    static Object toJson(Object value, DataType type) {
        if (value == null) {
            return null;
        }
        switch (type.getTypeRoot()) {
            case FLOAT:
                return HexFormat.of().toHexDigits(Double.doubleToLongBits((Float) value));
            case DOUBLE:
                return HexFormat.of().toHexDigits(Double.doubleToLongBits((Double) value));
            case DECIMAL:
                return ((Decimal) value).toBigDecimal().toPlainString();
            case BINARY:
            case VARBINARY:
                return HexFormat.of().formatHex((byte[]) value);
            case CHAR:
            case VARCHAR:
                return value.toString();
            case TIMESTAMP_WITHOUT_TIME_ZONE:
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                Timestamp moment = (Timestamp) value;
                return BigInteger.valueOf(moment.getMillisecond())
                        .multiply(NANOS)
                        .add(BigInteger.valueOf(moment.getNanoOfMillisecond()));
            case ARRAY:
                return arrayToJson((InternalArray) value, ((ArrayType) type).getElementType());
            case MAP:
                return mapToJson((InternalMap) value, ((MapType) type).getKeyType(), ((MapType) type).getValueType());
            case MULTISET:
                return mapToJson((InternalMap) value, ((MultisetType) type).getElementType(), DataTypes.INT());
            case ROW:
                return rowToJson((InternalRow) value, (RowType) type);
            default:
                return value;
        }
    }

    private static List<Object> arrayToJson(InternalArray array, DataType element) {
        List<Object> values = new ArrayList<>();
        for (int i = 0; i < array.size(); i++) {
            values.add(cellToJson(array, i, element));
        }
        return values;
    }

    private static Map<String, Object> mapToJson(InternalMap map, DataType key, DataType value) {
        List<Object> keys = arrayToJson(map.keyArray(), key);
        List<Object> values = arrayToJson(map.valueArray(), value);
        List<Object> pairs = new ArrayList<>();
        for (int i = 0; i < keys.size(); i++) {
            List<Object> pair = new ArrayList<>();
            pair.add(keys.get(i));
            pair.add(values.get(i));
            pairs.add(pair);
        }
        return Map.of("map", pairs);
    }

    static GenericRow rowFromJson(JsonNode cells, RowType type) {
        GenericRow row = new GenericRow(type.getFieldCount());
        for (int i = 0; i < type.getFieldCount(); i++) {
            row.setField(i, fromJson(cells.get(i), type.getTypeAt(i)));
        }
        return row;
    }

    static Object fromJson(JsonNode json, DataType type) {
        if (json == null || json.isNull()) {
            return null;
        }
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return json.asBoolean();
            case TINYINT:
                return (byte) json.asInt();
            case SMALLINT:
                return (short) json.asInt();
            case INTEGER:
            case DATE:
            case TIME_WITHOUT_TIME_ZONE:
                return json.asInt();
            case BIGINT:
                return json.asLong();
            case FLOAT:
                return (float) Double.longBitsToDouble(HexFormat.fromHexDigitsToLong(json.asText()));
            case DOUBLE:
                return Double.longBitsToDouble(HexFormat.fromHexDigitsToLong(json.asText()));
            case DECIMAL:
                DecimalType decimal = (DecimalType) type;
                return Decimal.fromBigDecimal(
                        new BigDecimal(json.asText()), decimal.getPrecision(), decimal.getScale());
            case BINARY:
            case VARBINARY:
                return HexFormat.of().parseHex(json.asText());
            case CHAR:
            case VARCHAR:
                return BinaryString.fromString(json.asText());
            case TIMESTAMP_WITHOUT_TIME_ZONE:
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                BigInteger nanos = json.bigIntegerValue();
                BigInteger rest = nanos.mod(NANOS);
                return Timestamp.fromEpochMillis(nanos.subtract(rest).divide(NANOS).longValue(), rest.intValue());
            case ARRAY:
                Object[] elements = new Object[json.size()];
                for (int i = 0; i < elements.length; i++) {
                    elements[i] = fromJson(json.get(i), ((ArrayType) type).getElementType());
                }
                return new GenericArray(elements);
            case MAP:
                return mapFromJson(json, ((MapType) type).getKeyType(), ((MapType) type).getValueType());
            case MULTISET:
                return mapFromJson(json, ((MultisetType) type).getElementType(), DataTypes.INT());
            case ROW:
                return rowFromJson(json, (RowType) type);
            default:
                throw new IllegalArgumentException("values of type " + type + " cannot be sent to this program");
        }
    }

    private static GenericMap mapFromJson(JsonNode json, DataType key, DataType value) {
        Map<Object, Object> map = new HashMap<>();
        for (JsonNode pair : json.get("map")) {
            map.put(fromJson(pair.get(0), key), fromJson(pair.get(1), value));
        }
        return new GenericMap(map);
    }
}
