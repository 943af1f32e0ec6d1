"""Aggregate functions: names, supported types, and options. Their implementation is in `merge.folds`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.base.options import Option, boolean, names
from forebay.metadata.merge_engines import wraps_integers
from forebay.metadata.types import NESTED_ROOTS, DataType, TypeRoot
from forebay.paimon.format.schema import DataField

_NUMERIC = frozenset(
    {
        TypeRoot.DECIMAL,
        TypeRoot.TINYINT,
        TypeRoot.SMALLINT,
        TypeRoot.INT,
        TypeRoot.BIGINT,
        TypeRoot.FLOAT,
        TypeRoot.DOUBLE,
    }
)

RETRACTING = frozenset(
    {"sum", "product", "last_value", "last_non_null_value", "collect", "merge_map", "nested_update", "primary-key"}
)
"""Functions that support retraction. The others fail on -U and -D, unless `fields.<f>.ignore-retract` is set."""

_ANY_TYPE = frozenset({"last_value", "last_non_null_value", "first_value", "first_non_null_value", "primary-key"})

_NOT_BUILT = frozenset(
    {"hll_sketch", "theta_sketch", "rbm32", "rbm64", "merge_map_with_keytime", "nested_partial_update"}
)

_COUNT_LIMIT_DEFAULT = (1 << 31) - 1


@dataclass(frozen=True)
class Aggregator:
    """The function of one column with its options. `nested_key` etc. belong to `nested_update`."""

    column: str
    function: str
    data_type: DataType
    ignore_retract: bool = False
    distinct: bool = False
    delimiter: str = ","
    nested_key: tuple[str, ...] = ()
    nested_sequence: tuple[str, ...] = ()
    null_keys: str = "merge"
    count_limit: int = _COUNT_LIMIT_DEFAULT
    wraps: bool = False

    @property
    def is_limited(self) -> bool:
        return self.count_limit < _COUNT_LIMIT_DEFAULT


def boolean_option(options: Mapping[str, str], key: str) -> bool:
    """The value of a `true` or `false` option; false if it is not set."""
    return key in options and bool(Option(key, boolean).read(options[key], code=ErrorCode.CLIENT_ERROR))


def column_aggregator(column: DataField, function: str, options: Mapping[str, str]) -> Aggregator:
    """The function of a column, checked against the column's type. Raises like `merge_function`."""
    name = "first_non_null_value" if function == "first_not_null_value" else function
    if name in _NOT_BUILT:
        raise UnsupportedOperation(f"aggregate function '{name}' of column '{column.name}' is not built")
    prefix = f"fields.{column.name}."
    ignore_retract = boolean_option(options, prefix + "ignore-retract")
    if ignore_retract and boolean_option(options, "aggregation.remove-record-on-delete"):
        raise InvalidRequest(
            f"options '{prefix}ignore-retract' and 'aggregation.remove-record-on-delete' contradict each other"
        )
    _check_type(column, name)
    aggregator = Aggregator(
        column=column.name,
        function=name,
        data_type=column.type,
        ignore_retract=ignore_retract,
        distinct=boolean_option(options, prefix + "distinct"),
        delimiter=options.get(prefix + "list-agg-delimiter", ","),
        nested_key=names(options.get(prefix + "nested-key", "")),
        nested_sequence=names(options.get(prefix + "nested-sequence-field", "")),
        null_keys=options.get(prefix + "nested-key-null-strategy", "merge").lower(),
        count_limit=_integer(options, prefix + "count-limit"),
        wraps=wraps_integers(options),
    )
    if name == "nested_update":
        _check_nested(aggregator, prefix + "nested-key-null-strategy" in options)
    return aggregator


def _integer(options: Mapping[str, str], key: str) -> int:
    text = options.get(key)
    if text is None:
        return _COUNT_LIMIT_DEFAULT
    try:
        return int(text)
    except ValueError as e:
        raise InvalidRequest(f"option '{key}' is a whole number, not '{text}'") from e


def _check_type(column: DataField, function: str) -> None:
    t = column.type
    if function in _ANY_TYPE:
        return
    if function in ("sum", "product"):
        fits, required = t.root in _NUMERIC, "a number"
    elif function in ("max", "min"):
        # Paimon orders all plain types except this one, and fails when it merges.
        fits, required = t.root not in NESTED_ROOTS and t.root is not TypeRoot.BOOLEAN, "a type with an order"
    elif function in ("bool_and", "bool_or"):
        fits, required = t.root is TypeRoot.BOOLEAN, "BOOLEAN"
    elif function == "listagg":
        fits, required = t.root is TypeRoot.STRING and t.length is None, "a STRING without a limit of its length"
    elif function == "collect":
        fits, required = t.root is TypeRoot.ARRAY, "an ARRAY"
    elif function == "merge_map":
        # A MULTISET is a map with a marker (see the types' JSON); Paimon accepts only real maps.
        fits, required = t.root is TypeRoot.MAP and t.length is None, "a MAP"
    elif function == "nested_update":
        fits = t.root is TypeRoot.ARRAY and t.element is not None and t.element.root is TypeRoot.ROW
        required = "an ARRAY of ROW"
    elif function == "count":
        raise InvalidRequest(f"column '{column.name}': Paimon has no function 'count'; write 1 and take 'sum'")
    else:
        raise InvalidRequest(f"column '{column.name}': there is no aggregate function '{function}'")
    if not fits:
        raise InvalidRequest(f"column '{column.name}' is {t}, but '{function}' needs {required}")


def _check_nested(aggregator: Aggregator, has_strategy: bool) -> None:
    element = aggregator.data_type.element
    nested_names = {f.name for f in element.fields} if element is not None else set()
    for name in (*aggregator.nested_key, *aggregator.nested_sequence):
        if name not in nested_names:
            raise InvalidRequest(f"column '{aggregator.column}' has no nested field '{name}'")
    if aggregator.null_keys not in ("merge", "ignore", "error"):
        raise InvalidRequest(
            f"'fields.{aggregator.column}.nested-key-null-strategy' is merge, ignore or error, "
            f"not '{aggregator.null_keys}'"
        )
    if not aggregator.nested_key and (aggregator.nested_sequence or has_strategy):
        raise InvalidRequest(f"'fields.{aggregator.column}.nested-key' must be set for the other nested options")
