"""Arrow data with exactly the types that a reader wants, without a copy where only labels differ.

Spark accepts an Arrow batch only if its schema is its own to the last label: names of list items, nullability inside
nested types, time zones, units. `cast_batch` brings a batch there: buffers are shared, labels exchanged, and only
leaves of another width or unit are cast.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest
from forebay.codec.casting.arrays import in_unit, validity_of
from forebay.codec.casting.encodings import decoded

_is = pa.types


def cast_batch(batch: pa.RecordBatch, target: pa.Schema, *, truncate: bool = False) -> pa.RecordBatch:
    """`batch` with exactly the schema `target`; columns are matched by name, and others left out.

    Names inside nested types, nullability and zones are relabelled without a copy; a zone is attached, dropped or
    exchanged with the instant kept. Leaves of another type are cast without loss, except that `truncate` allows
    timestamps and times to lose digits. Raises `InvalidRequest` for a column that is missing, of another kind, or has
    nulls where the target is not nullable.
    """
    if batch.schema.equals(target, check_metadata=True):
        return batch
    arrays = []
    for field in target:
        positions = batch.schema.get_all_field_indices(field.name)
        if len(positions) != 1:
            raise InvalidRequest(
                f"the batch has {len(positions)} columns '{field.name}', but one is wanted; it has {batch.schema.names}"
            )
        array = conform_array(batch.column(positions[0]), field.type, field.name, truncate)
        _check_nullable(array, field, field.name)
        arrays.append(array)
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def conform_array(array: pa.Array, target: pa.DataType, path: str, truncate: bool) -> pa.Array:
    """`array` with exactly the type `target`: names, nullability and zones relabelled without a copy, leaves cast.

    A zone is attached, dropped or exchanged with the instant kept. `truncate` allows timestamps and times to lose
    digits. Raises `InvalidRequest` where a null stands in a non-nullable part, or a type differs in kind.
    """
    source = array.type
    if source.equals(target) and not _has_non_nullable(target):
        return array
    if (_is.is_list(target) and _is.is_list(source)) or (_is.is_map(target) and _is.is_map(source)):
        return _conform_list(array, target, path, truncate)
    if _is.is_struct(target) and _is.is_struct(source):
        return _conform_struct(array, target, path, truncate)
    if _is.is_timestamp(target) and _is.is_timestamp(source):
        return _conform_temporal(array, pa.timestamp(target.unit, source.tz), target, path, truncate)
    if _is.is_time(target) and _is.is_time(source):
        return _conform_temporal(array, target, target, path, truncate)
    if source.equals(target):
        return array
    try:
        return decoded(array).cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise InvalidRequest(f"column '{path}' of type {source} cannot become {target}: {e}") from e


def _conform_temporal(
    array: pa.Array, cast_to: pa.DataType, target: pa.DataType, path: str, truncate: bool
) -> pa.Array:
    try:
        return (in_unit(array, cast_to) if truncate else array.cast(cast_to)).view(target)
    except pa.ArrowInvalid as e:
        raise InvalidRequest(f"column '{path}' of type {array.type} does not fit {target}: {e}") from e


@lru_cache(maxsize=1024)
def _has_non_nullable(t: pa.DataType) -> bool:
    fields = [t.field(i) for i in range(t.num_fields)] if t.num_fields else []
    if _is.is_map(t):
        fields = [t.key_field, t.item_field]
    return any(not f.nullable or _has_non_nullable(f.type) for f in fields)


def _check_nullable(array: pa.Array, field: pa.Field, path: str, parents: pa.Array | None = None) -> None:
    """Raise `InvalidRequest` for a null in `array` where `field` is not nullable, unless its parent is null."""
    if field.nullable or not array.null_count:
        return
    nulls = pc.is_null(array)
    if parents is not None and parents.null_count:
        nulls = pc.and_(nulls, pc.is_valid(parents))
    count = nulls.true_count
    if count:
        first = pc.index(nulls, pa.scalar(True)).as_py()
        raise InvalidRequest(f"column '{path}' must not be null, but {count} values are, the first at {first}")


def _conform_list(array: pa.Array, target: pa.DataType, path: str, truncate: bool) -> pa.Array:
    if _is.is_map(target):
        keys = conform_array(array.keys, target.key_type, f"{path}.key", truncate)
        items = conform_array(array.items, target.item_type, f"{path}.value", truncate)
        _check_nullable(items, target.item_field, f"{path}.value")
        values = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
    else:
        values = conform_array(array.values, target.value_type, f"{path}.element", truncate)
        _check_nullable(values, target.value_field, f"{path}.element")
    return pa.Array.from_buffers(target, len(array), array.buffers()[:2], array.null_count, array.offset, [values])


def _conform_struct(array: pa.Array, target: pa.DataType, path: str, truncate: bool) -> pa.Array:
    children = []
    for i in range(target.num_fields):
        field = target.field(i)
        position = array.type.get_field_index(field.name)
        if position < 0:
            raise InvalidRequest(f"row '{path}' has no field '{field.name}'; it is {array.type}")
        values = conform_array(array.field(position), field.type, f"{path}.{field.name}", truncate)
        _check_nullable(values, field, f"{path}.{field.name}", array)
        children.append(values)
    return pa.Array.from_buffers(target, len(array), [validity_of(array)], array.null_count, 0, children)
