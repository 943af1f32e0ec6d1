"""The examples succeed on small data, and fail if something is wrong."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.releases import needs

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "story")
IN_EVERY_RUN = ("partial_update",)
"""The others take two minutes together, and run with `make nightly` and `make examples`."""


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.spark
@needs(4, 2, "streams of tables, INSERT that leaves columns out")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.slow) for name in EXAMPLES]
)
def test_an_example_holds_on_small_data(
    name: str, derived_session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = importlib.import_module(name).main(
        ["--rows", "400", "--directory", str(tmp_path / "example")], derived_session
    )
    told = capsys.readouterr().out
    assert code == 0, told
    assert "checks hold" in told
    assert "WRONG" not in told


@pytest.mark.spark
def test_an_example_whose_check_fails_ends_with_an_error(
    derived_session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    play = importlib.import_module("story").play
    code = play(lambda story: story.check("all is well", {"tea": 1}, {"tea": 2}), "Wrong", 100, [], derived_session)
    assert code == 1
    assert "WRONG: all is well\n     tea: found 1, and not 2" in capsys.readouterr().out


@pytest.mark.spark
def test_an_example_that_checks_nothing_has_shown_nothing(derived_session: Any) -> None:
    assert importlib.import_module("story").play(lambda story: None, "Nothing", 100, [], derived_session) == 1


def test_an_example_leaves_a_directory_with_files_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(SystemExit):
        importlib.import_module("story").play(lambda story: None, "Full", 100, ["--directory", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_rows_that_are_compared_by_key_have_each_key_once() -> None:
    keyed = importlib.import_module("story").keyed
    assert keyed(pa.table({"id": [1, 2], "n": [5, 6]}), "id") == {1: (1, 5), 2: (2, 6)}
    with pytest.raises(ValueError, match="2 rows, and 1 values of id"):
        keyed(pa.table({"id": [1, 1]}), "id")


def test_the_page_of_the_examples_names_each_of_them() -> None:
    for page in (ROOT / "docs" / "examples.md", FOLDER / "README.md"):
        text = page.read_text(encoding="utf-8")
        assert [name for name in EXAMPLES if f"{name}.py" not in text] == [], page
