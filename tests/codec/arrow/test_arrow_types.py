"""The Fluss type of each Arrow type, and arrays that need no pandas."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import arrow_name, from_arrow_schema, from_arrow_type, sql_name
from forebay.codec.arrow.small_arrays import int8_array, text_array
from forebay.metadata import types


@pytest.mark.parametrize(
    ("arrow", "fluss"),
    [
        (pa.bool_(), types.boolean()), (pa.int8(), types.tinyint()), (pa.uint8(), types.smallint()),
        (pa.int16(), types.smallint()), (pa.uint16(), types.int_()), (pa.int32(), types.int_()),
        (pa.uint32(), types.bigint()), (pa.int64(), types.bigint()), (pa.float16(), types.float_()),
        (pa.float32(), types.float_()), (pa.float64(), types.double()), (pa.string(), types.string()),
        (pa.large_string(), types.string()), (pa.string_view(), types.string()), (pa.binary(), types.bytes_()),
        (pa.large_binary(), types.bytes_()), (pa.binary(3), types.binary(3)), (pa.date32(), types.date()),
        (pa.date64(), types.date()), (pa.decimal128(12, 3), types.decimal(12, 3)), (pa.time32("s"), types.time(0)),
        (pa.time64("ns"), types.time(9)), (pa.timestamp("us"), types.timestamp(6)),
        (pa.timestamp("ms", "Asia/Tokyo"), types.timestamp_ltz(3)),
        (pa.dictionary(pa.int8(), pa.string()), types.string()),
        (pa.list_(pa.int32()), types.array(types.int_())), (pa.large_list(pa.int32()), types.array(types.int_())),
        (pa.list_(pa.field("item", pa.int8(), False), 2), types.array(types.tinyint().not_null())),
        (pa.map_(pa.string(), pa.field("v", pa.int64(), False)), types.map_(types.string(), types.bigint().not_null())),
        (
            pa.struct([pa.field("a", pa.int32(), False), pa.field("b", pa.string())]),
            types.row(types.field("a", types.int_().not_null()), types.field("b", types.string())),
        ),
    ],
    ids=str,
)  # fmt: skip
def test_each_arrow_type_becomes_the_fluss_type_that_holds_its_values(arrow, fluss) -> None:
    assert from_arrow_type(arrow) == fluss


def test_a_schema_keeps_names_nullability_comments_and_keys() -> None:
    note = pa.field("note", pa.string(), metadata={b"comment": "größer".encode()})
    fields = [pa.field("id", pa.int64(), False), note]
    schema = from_arrow_schema(pa.schema(fields), ["id"])
    assert [(c.name, c.data_type, c.comment) for c in schema.columns] == [
        ("id", types.bigint().not_null(), None),
        ("note", types.string(), "größer"),
    ]
    assert schema.primary_key == ("id",)
    assert from_arrow_schema(pa.schema(fields), ["id"], "id").auto_increment_column == "id"


def test_a_type_that_tables_do_not_have_is_refused_with_its_column() -> None:
    with pytest.raises(InvalidRequest, match=r"column 'wait': Arrow type duration\[s\] has no Fluss type"):
        from_arrow_schema(pa.schema([pa.field("id", pa.int64()), pa.field("wait", pa.duration("s"))]))


def test_arrays_of_modules_are_made_without_pandas() -> None:
    assert int8_array(1, -3).equals(pa.array([1, -3], pa.int8()))
    assert text_array("a", "", "é").equals(pa.array(["a", "", "é"]))
    assert text_array().equals(pa.array([], pa.string()))


def test_importing_forebay_imports_no_pandas() -> None:
    """It takes a fifth of a second, in each of Spark's Python processes."""
    names = "forebay.client.table, forebay.paimon.table, forebay.spark.datasource, forebay.spark.lake_datasource"
    program = f"import sys, {names}; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_messages_name_types_as_sql_does_and_arrows_own_beside_it() -> None:
    assert sql_name(pa.date32()) == "DATE"
    assert sql_name(pa.list_(pa.int32())) == "ARRAY<INT>"
    assert sql_name(pa.duration("s")) == "duration[s]"
    assert arrow_name(pa.timestamp("us", "UTC")) == "timestamp[us, tz=UTC] (TIMESTAMP_LTZ(6))"
    assert arrow_name(pa.null()) == "null"
