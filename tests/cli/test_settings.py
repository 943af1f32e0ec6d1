"""Settings from files and the environment, completion of shells, exit codes, and the version."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.errors import InvalidRequest
from forebay.cli.connecting import add_place_arguments, lakes_of
from forebay.cli.main import COMMANDS, main, whole_parser
from forebay.cli.settings import setting


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in ("BOOTSTRAP_SERVERS", "USER", "PASSWORD_FILE", "WAREHOUSE", "PAIMON_WAREHOUSE", "OUTPUT"):
        monkeypatch.delenv(f"FOREBAY_{name}", raising=False)
    (tmp_path / "home" / "forebay").mkdir(parents=True)
    return tmp_path / "home" / "forebay" / "config.toml"


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["config", "-o", "json", *words]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {row["setting"]: (row["value"], row["from"]) for row in rows}


def test_lakes_of_a_file_are_paths_or_options_and_the_command_line_adds_others(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "hidden")
    home.write_text('[lakes]\nold = "/old"\ncloud = {warehouse = "s3://b/w", "s3.key" = "${env:THE_KEY}"}\n')
    parser = argparse.ArgumentParser()
    add_place_arguments(parser)
    cloud = {"warehouse": "s3://b/w", "s3.key": "hidden"}
    assert lakes_of(parser.parse_args([])) == {"old": "/old", "cloud": cloud}
    words = ["-w", "/here", "--lake", "old=/new"]
    assert lakes_of(parser.parse_args(words)) == {"old": "/new", "cloud": cloud, "lake": "/here"}


def test_the_nearer_setting_counts(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(capsys)["bootstrap-servers"] == ("127.0.0.1:9123", "default")
    home.write_text(
        'bootstrap-servers = "home:1"\nuser = "ann"\nwarehouse = "/h"\n[lake-options]\n"s3.key" = "secret"\n'
    )
    Path("forebay.toml").write_text('bootstrap-servers = "here:2"\n[lakes]\nold = "/old"\n[lake-options]\nb = "c"\n')
    monkeypatch.setenv("FOREBAY_PAIMON_WAREHOUSE", "/p")
    found = shown(capsys)
    assert found["bootstrap-servers"] == ("here:2", "forebay.toml")
    assert found["user"] == ("ann", str(home))
    assert found["warehouse"] == ("/p", "$FOREBAY_PAIMON_WAREHOUSE")
    assert found["lakes.old"] == ("/old", "forebay.toml")
    assert found["lake-options.s3.key"][0] == "..."
    assert setting("lake-options") == {"s3.key": "secret", "b": "c"}
    monkeypatch.setenv("FOREBAY_BOOTSTRAP_SERVERS", "there:3")
    monkeypatch.setenv("FOREBAY_WAREHOUSE", "/w")
    assert shown(capsys)["bootstrap-servers"] == ("there:3", "$FOREBAY_BOOTSTRAP_SERVERS")
    assert shown(capsys)["warehouse"] == ("/w", "$FOREBAY_WAREHOUSE")
    options = whole_parser().parse_args(["tables", "-b", "typed:4"])
    assert (options.bootstrap_servers, options.user) == ("typed:4", "ann")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "Invalid"),
        ('colour = "red"', "there is no setting 'colour'; there are bootstrap-servers"),
        ("user = 5", "user = 5 is not text"),
        ('lakes = "x"', r"lakes is a table: [lakes]"),
        ('output = "xml"', "output = 'xml' is none of table, json, csv"),
    ],
)
def test_a_setting_that_is_wrong_is_named(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("forebay.toml").write_text(text)
    assert main(["config"]) == 1
    printed = capsys.readouterr().err
    assert "forebay.toml: " in printed
    assert said in printed


def test_the_output_of_all_commands_is_a_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_OUTPUT", "csv")
    assert main(["config"]) == 0
    assert capsys.readouterr().out.startswith("setting,value,from\n")
    parser = whole_parser()
    for words in (["tables"], ["scan", "d.t"], ["paimon", "scan", "/d/t"], ["doctor"], ["verify"], ["lag"]):
        assert parser.parse_args(words).output == "csv", words
        assert parser.parse_args([*words, "-o", "json"]).output == "json", words
    assert parser.parse_args(["scan", "d.t", "-f", "table"]).output == "table", "as before there was -o"
    given = parser.parse_args(["paimon", "describe", "-o", "metastore=jdbc", "-o", "json", "--option", "a=b"])
    assert (given.option, given.output, given.json) == (["metastore=jdbc", "a=b"], "json", True)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"forebay {forebay.__version__}\n"


def test_exit_codes_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert main(["tables", "-b", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("forebay: no bootstrap server responds")
    for wrong in (["tables", "--colour"], ["nonsense"], ["scan"]):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2


# ---- completion -----------------------------------------------------------------------------------------------------


def completed(script: str, *words: str) -> list[str]:
    """What bash completes for the last of the words."""
    typed = " ".join(f"'{word}'" for word in words)
    asked = f'{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _forebay; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


def test_bash_completes_commands_actions_options_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert set(completed(script, "forebay", "")) >= set(COMMANDS)
    assert completed(script, "forebay", "des") == ["describe"]
    assert completed(script, "forebay", "paimon", "sn") == ["snapshots"]
    assert "--warehouse" in completed(script, "forebay", "paimon", "scan", "--w")
    assert completed(script, "forebay", "scan", "d.t", "-o", "") == ["table", "csv", "json"]
    assert completed(script, "forebay", "completion", "z") == ["zsh"]
    Path("rows.csv").touch()
    assert completed(script, "forebay", "load", "d.t", "row") == ["rows.csv"]


@pytest.mark.parametrize(("shell", "check"), [("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])])
def test_other_shells_get_each_command_and_option(
    shell: str, check: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    assert "metastore" not in script.split("forebay")[0]
    for word in ("bootstrap-servers", "primary-key", "snapshots"):
        assert word in script
    if shutil.which(check[0]):
        (tmp_path / "script").write_text(script)
        subprocess.run([*check, str(tmp_path / "script")], check=True)


def test_a_file_that_an_editor_of_windows_wrote_is_read_and_one_that_is_no_text_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_bytes(b'\xef\xbb\xbfuser = "ann"\r\n')
    assert shown(capsys)["user"] == ("ann", str(home))
    home.write_bytes(b'user = "\xff"\n')
    with pytest.raises(InvalidRequest, match=rf"settings of {home}: 'utf-8' codec can't decode byte 0xff"):
        setting("user")


def test_a_misspelt_setting_is_refused_with_what_was_meant(home: Path) -> None:
    home.write_text('bootstrap-server = "x:1"\n')
    with pytest.raises(InvalidRequest, match=r"no setting 'bootstrap-server'; did you mean 'bootstrap-servers'\?"):
        setting("user")
