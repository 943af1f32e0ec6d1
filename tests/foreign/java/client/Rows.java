import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalArray;
import org.apache.fluss.row.InternalMap;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.types.ArrayType;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.MapType;
import org.apache.fluss.types.RowType;

/** Rows from plain Java values, and back to values that {@link Report} can print. */
final class Rows {
  private Rows() {}

  /** A row of the given values; strings become Fluss strings. */
  static GenericRow of(Object... values) {
    Object[] fields = values.clone();
    for (int i = 0; i < fields.length; i++) {
      fields[i] = fields[i] instanceof String ? BinaryString.fromString((String) fields[i]) : fields[i];
    }
    return GenericRow.of(fields);
  }

  static List<Object> read(InternalRow row, RowType type) {
    List<Object> values = new ArrayList<>();
    for (int i = 0; i < type.getFieldCount(); i++) {
      values.add(plain(InternalRow.createFieldGetter(type.getTypeAt(i), i).getFieldOrNull(row), type.getTypeAt(i)));
    }
    return values;
  }

  private static Object plain(Object value, DataType type) {
    if (value == null) {
      return null;
    }
    if (value instanceof byte[]) {
      StringBuilder hex = new StringBuilder("0x");
      for (byte octet : (byte[]) value) {
        hex.append(String.format("%02x", octet));
      }
      return hex.toString();
    }
    if (value instanceof InternalArray) {
      return elements((InternalArray) value, ((ArrayType) type).getElementType());
    }
    if (value instanceof InternalMap) {
      MapType map = (MapType) type;
      List<Object> keys = elements(((InternalMap) value).keyArray(), map.getKeyType());
      List<Object> values = elements(((InternalMap) value).valueArray(), map.getValueType());
      // A map has no order: the writer's hash map shuffles it.
      Map<String, Object> pairs = new TreeMap<>();
      for (int i = 0; i < keys.size(); i++) {
        pairs.put(String.valueOf(keys.get(i)), values.get(i));
      }
      return pairs;
    }
    if (value instanceof InternalRow) {
      return read((InternalRow) value, (RowType) type);
    }
    return value;
  }

  private static List<Object> elements(InternalArray array, DataType type) {
    InternalArray.ElementGetter getter = InternalArray.createElementGetter(type);
    List<Object> values = new ArrayList<>();
    for (int i = 0; i < array.size(); i++) {
      values.add(plain(getter.getElementOrNull(array, i), type));
    }
    return values;
  }
}
