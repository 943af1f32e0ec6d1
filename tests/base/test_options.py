"""Options: how values are read, and the words of errors."""

from __future__ import annotations

import datetime as dt

import pytest

from forebay.base import options
from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.base.options import Option


@pytest.mark.parametrize(
    ("parse", "value", "wanted"),
    [
        (options.boolean, True, True),
        (options.boolean, "FALSE", False),
        (options.integer, " 7 ", 7),
        (options.between(0, 5), "5", 5),
        (options.positive, "1", 1),
        (options.up_to(3), 3, 3),
        (options.share, "0.5", 0.5),
        (options.size, 10, 10),
        (options.size, "2kb", 2048),
        (options.milliseconds, "2 s", 2000),
        (options.milliseconds, dt.timedelta(seconds=1.5), 1500),
        (options.milliseconds, 40, 40),
        (options.seconds, "1 min", 60.0),
        (options.seconds, 500, 0.5),
        (options.one_of("lz4_frame", "none"), "LZ4-frame", "lz4_frame"),
        (options.one_of("lz4-frame", "none"), "LZ4_frame", "lz4-frame"),
        (options.number, "0.5", 0.5),
        (options.number, 2, 2.0),
        (options.positive_size, "1 kb", 1024),
        (options.names, "a, b,,c ", ("a", "b", "c")),
        (options.or_unset(options.integer), " ", None),
        (options.or_unset(options.integer), "4", 4),
    ],
)
def test_a_value_is_read_from_text_and_from_python(parse: options.Parser, value: object, wanted: object) -> None:
    assert parse(value) == wanted
    assert type(parse(value)) is type(wanted)


@pytest.mark.parametrize(
    ("parse", "value", "says"),
    [
        (options.integer, "x", "'x' is not an integer"),
        (options.number, "x", "'x' is not a number"),
        (options.number, None, "None is not a number"),
        (options.between(1, 5), 6, "6 is not between 1 and 5"),
        (options.positive, "0", "'0' is not a positive whole number"),
        (options.positive, "1_000", "'1_000' is not a positive whole number"),
        (options.positive, 1.5, "1.5 is not a positive whole number"),
        (options.up_to(3), "4", "4 is more than 3"),
        (options.share, "0", "'0' is not a share"),
        (options.share, 1.1, "1.1 is not a share"),
        (options.positive_size, "0", "'0' is not a size above 0"),
        (options.one_of("a", "b"), "c", "'c' is not one of a, b"),
        (options.size, True, "not a memory size"),
        (options.seconds, False, "not a duration"),
    ],
)
def test_a_value_that_is_none_is_refused_in_words(parse: options.Parser, value: object, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parse(value)


def test_an_error_names_the_option_and_its_kind() -> None:
    option = Option("log.size", options.size, "4kb")
    with pytest.raises(InvalidRequest, match=r"^setting 'log\.size': 'much' is not a memory size") as refused:
        option.read("much", "setting", ErrorCode.INVALID_CONFIG_EXCEPTION)
    assert refused.value.code is ErrorCode.INVALID_CONFIG_EXCEPTION


def test_a_default_that_is_text_is_read_as_a_value_would_be() -> None:
    assert Option("a", options.size, "4kb").default_value == 4096
    assert Option("a", options.seconds, 1.5).default_value == 1.5
    assert Option("a", options.size).default_value is None
    assert Option("a").read(5) == "5", "an option without effect keeps its text"
