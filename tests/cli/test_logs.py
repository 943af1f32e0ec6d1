"""Lines of a log as JSON: one object each, whatever is in them."""

from __future__ import annotations

import argparse
import io
import json
import logging

import pytest

from forebay.base.errors import InvalidRequest
from forebay.cli.logs import add_log_arguments, configure_logs


def _configured(*arguments: str, limits_lines: bool = False) -> None:
    parser = argparse.ArgumentParser()
    add_log_arguments(parser, "INFO")
    configure_logs(parser.parse_args(arguments), limits_lines=limits_lines)


def test_a_line_is_one_object_with_its_error_and_what_a_program_adds(capsys: pytest.CaptureFixture[str]) -> None:
    _configured("--log-format", "json")
    logger = logging.getLogger("forebay.test")
    logger.debug("not shown")
    logger.info("%d rows of '%s'\nin two lines", 3, "ä\u2028")
    try:
        raise InvalidRequest("no")
    except InvalidRequest:
        logger.exception("it failed", extra={"table": "fluss.t", "bucket": (1, 2)})
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["level"], first["logger"], first["thread"]) == ("INFO", "forebay.test", "MainThread")
    assert first["message"] == "3 rows of 'ä\u2028'\nin two lines"
    assert first["time"].endswith("Z")
    assert set(first) == {"time", "level", "logger", "message", "thread"}
    assert "InvalidRequest: no" in second["error"]
    assert second["table"] == "fluss.t"
    assert second["bucket"] == [1, 2]


def test_text_is_the_default_and_similar_lines_are_limited(capsys: pytest.CaptureFixture[str]) -> None:
    _configured(limits_lines=True)
    for number in range(100):
        logging.getLogger("forebay.test").info("line %d", number)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 20
    assert lines[0].endswith(" INFO forebay.test: line 0")


def test_lines_go_to_what_stderr_is_then_also_when_it_was_replaced_and_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with io.StringIO() as first, monkeypatch.context() as replaced:
        replaced.setattr("sys.stderr", first)
        _configured()
        logging.getLogger("forebay.test").warning("one")
        assert "one" in first.getvalue()
    logging.getLogger("forebay.test").warning("two")
    written = capsys.readouterr().err
    assert written.endswith(" WARNING forebay.test: two\n")
    assert "Logging error" not in written
