"""Plain English: the documents and sources do not use the words of the list in CONTRIBUTING.md."""

from __future__ import annotations

import pytest
from tools import plain_english

USUAL = {"nobody": "no client", "by itself": "alone", "is told": "is reported"}


def test_documents_and_sources_use_the_usual_words() -> None:
    found = [finding for finding in plain_english.all_findings() if not plain_english.is_excepted(finding.path)]
    assert found == [], "\n".join(map(str, found))


@pytest.mark.parametrize("exception", plain_english.NOT_YET)
def test_an_exception_is_taken_off_the_list_once_it_is_not_needed(exception: str) -> None:
    paths = [found.path for found in plain_english.all_findings()]
    assert any(path == exception or path.startswith(exception + "/") for path in paths)


def test_the_list_is_the_table_in_contributing() -> None:
    usual = plain_english.words("## Words\n\n| not | but |\n|---|---|\n| Anew, a new | again |\n\n## Next\n| x | y |\n")
    assert usual == {"anew": "again", "a new": "again"}
    assert "nobody" in plain_english.words((plain_english.ROOT / "CONTRIBUTING.md").read_text())


@pytest.mark.parametrize(
    ("text", "line", "phrase"),
    [
        ("Nobody asked.", 1, "nobody"),
        ("one\ntwo runs by\nitself here", 2, "by itself"),
        ("# it runs by\n    # itself here", 1, "by itself"),
        ("// the caller is\n// told", 1, "is told"),
        ("/** The caller is\n  * told. */", 1, "is told"),
        ("#: no one is\n#: told", 1, "is told"),
    ],
)
def test_phrases_are_found_in_any_case_and_across_the_lines_of_a_comment(text: str, line: int, phrase: str) -> None:
    (found,) = plain_english.findings("src/a.py", text, USUAL)
    assert found == plain_english.Finding("src/a.py", line, phrase, USUAL[phrase])


@pytest.mark.parametrize("text", ["nobody_else = 1", "this told", "by, itself", "is not told"])
def test_parts_of_other_words_are_no_phrases(text: str) -> None:
    assert list(plain_english.findings("src/a.py", text, USUAL)) == []


def test_the_table_in_contributing_may_name_the_words() -> None:
    text = "nobody\n## Words\n| nobody | no client |\n\n## Next\nnobody\n"
    assert [found.line for found in plain_english.findings("CONTRIBUTING.md", text, USUAL)] == [1, 6]


def test_the_command_names_file_line_and_usual_word(capsys: pytest.CaptureFixture[str]) -> None:
    finding = plain_english.Finding("docs/a.md", 7, "nobody", "no client")
    assert str(finding) == "docs/a.md:7: 'nobody': write no client"
    assert plain_english.main([]) == 0
    assert capsys.readouterr().out == ""
