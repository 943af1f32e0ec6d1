"""What an endpoint says about types."""

from __future__ import annotations

from forebay.flight.sql_info import type_info


def test_decimals_alone_have_a_scale() -> None:
    rows = {row["type_name"]: row for row in type_info(None).to_pylist()}
    scales = {name: (row["minimum_scale"], row["maximum_scale"]) for name, row in rows.items()}
    assert scales.pop("DECIMAL") == (0, 38)
    assert set(scales.values()) == {(None, None)}
    assert rows["DECIMAL"]["create_params"] == ["precision", "scale"]


def test_types_are_asked_for_by_their_number() -> None:
    assert type_info(3).column("type_name").to_pylist() == ["DECIMAL"]
    assert type_info(4711).num_rows == 0
