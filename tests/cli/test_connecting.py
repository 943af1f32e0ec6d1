"""How commands find their server and log in."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from forebay.base.errors import InvalidRequest
from forebay.cli.connecting import add_connection_arguments, lake_options_of, password_of
from forebay.cli.main import main


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    return parser.parse_args(words)


def test_the_server_is_the_one_that_is_named_or_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_BOOTSTRAP_SERVERS", raising=False)
    assert parsed().bootstrap_servers == "127.0.0.1:9123"
    monkeypatch.setenv("FOREBAY_BOOTSTRAP_SERVERS", "there:1")
    assert parsed().bootstrap_servers == "there:1"
    assert parsed("-b", "here:2").bootstrap_servers == "here:2"


def test_a_password_comes_from_its_file_or_with_a_user_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("secret \n")
    monkeypatch.setenv("FOREBAY_PASSWORD", "known")
    assert password_of(parsed()) is None
    assert password_of(parsed("--user", "u")) == "known"
    assert password_of(parsed("--user", "u", "--password-file", str(file))) == "secret "
    monkeypatch.delenv("FOREBAY_PASSWORD")
    assert password_of(parsed("--user", "u")) is None
    with pytest.raises(InvalidRequest, match=r"password file .*missing cannot be read: No such file"):
        password_of(parsed("--user", "u", "--password-file", str(tmp_path / "missing")))


def test_options_of_the_lake_are_pairs_and_may_name_where_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "hidden")
    words = ["--lake-option", " a = b=c ", "--lake-option", "s3.key=${env:THE_KEY}", "--lake-option", "empty="]
    assert lake_options_of(parsed(*words)) == {"a": "b=c", "s3.key": "hidden", "empty": ""}
    for wrong in ("a", "=b"):
        with pytest.raises(InvalidRequest, match="--lake-option key=value"):
            lake_options_of(parsed("--lake-option", wrong))


def test_a_password_file_may_begin_with_a_byte_order_mark_and_has_to_be_text(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"\xef\xbb\xbfsecret\r\n")
    assert password_of(parsed("--user", "u", "--password-file", str(file))) == "secret"
    file.write_bytes(b"secret\xff\n")
    with pytest.raises(InvalidRequest, match=r"password file .* is not text in UTF-8: see byte 7") as refused:
        password_of(parsed("--user", "u", "--password-file", str(file)))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("command", ["sql", "flight", "create", "load", "export", "console"])
def test_the_help_promises_a_lake_alone_where_no_server_is_needed(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert ("without -b, only its tables are available" in shown) == (command != "console")
