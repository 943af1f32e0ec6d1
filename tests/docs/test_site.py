"""The documentation site: its navigation, its pictures, links, and the site itself where MkDocs is installed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tools.draw_pictures import FOLDER, PICTURES, THEMES, Drawing, drawn
from tools.site import NOTEBOOK, REFERENCE, linked_outside, lists_by_four, target, with_code

from tests.docs.anchors import anchors
from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"
NAVIGATION = re.findall(r"^ +- [^#\n]*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
LINK = re.compile(r"\]\((?P<path>[^()\s:#]*)(?:#(?P<anchor>[^()\s]*))?\)")


def test_each_page_is_in_the_navigation_once() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    made = {f"reference/{name}.md" for name in REFERENCE} | {NOTEBOOK.replace(".ipynb", ".md")}
    assert sorted(NAVIGATION) == sorted(pages | made)


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.relative_to(DOCS).as_posix())
def test_links_to_files_and_headings_hold(path: Path) -> None:
    text = "\n".join(line for line, is_code in with_code(path.read_text(encoding="utf-8")) if not is_code)
    for link in LINK.finditer(re.sub(r"`[^`\n]*`", "", text)):
        file = (path.parent / link["path"]) if link["path"] else path
        assert file.exists(), link[0]
        if link["anchor"] and file.suffix == ".md":
            assert link["anchor"] in anchors(file), link[0]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_as_tools_draw_pictures_draws_them(name: str, theme: str) -> None:
    assert (FOLDER / f"{name}-{theme}.svg").read_text(encoding="utf-8") == drawn(name, theme)


def test_labels_that_overlap_or_do_not_fit_are_errors() -> None:
    drawing = Drawing(100, "a test", "light")
    drawing.text(10, 20, "one label")
    with pytest.raises(ValueError, match="'another' overlaps 'one label'"):
        drawing.text(40, 22, "another")
    with pytest.raises(ValueError, match="does not fit"):
        drawing.box(10, 40, 60, 30, "a label that is too long")
    with pytest.raises(ValueError, match="leaves the picture"):
        drawing.text(700, 80, "a label at the edge")


def test_links_of_github_lead_to_the_same_things_in_the_site() -> None:
    assert target("client.md", "index.md") == "client.md"
    assert target("../client.md", "how-to/load.md") == "../client.md"
    assert target("../deploy/alerts.yml", "metrics.md") == "repository/deploy/alerts.yml"
    assert target("../tutorial.ipynb", "how-to/load.md") == "../tutorial.md"
    assert target("docs/client.md", "repository/CONTRIBUTING.md") == "../client.md"
    assert {"deploy/alerts.yml", "src/forebay/protocol/fluss.proto"} <= linked_outside()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("# Title\n* x\n\nend\n", "# Title\n\n* x\n\nend\n"),
        ("Steps\n* one,\n  in two lines\n* two\n", "Steps\n\n* one,\n    in two lines\n* two\n"),
        ("1. one\n\n   ```\n   * code\n   ```\n", "1. one\n\n    ```\n    * code\n    ```\n"),
        ("* one\n  1. inner\n\n  more\n* two\n\nend\n", "* one\n    1. inner\n\n    more\n\n* two\n\nend\n"),
    ],
)
def test_lists_get_the_indentation_that_python_markdown_wants(text: str, wanted: str) -> None:
    assert lists_by_four(text) == wanted


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    python = ROOT / "build" / "site-env" / "bin" / "python"
    if not python.exists():
        pytest.skip("needs MkDocs, which `make site` installs in an environment of its own")
    folder = tmp_path_factory.mktemp("site")
    command = [str(python), "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_is_built_without_warnings_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) >= len(NAVIGATION)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(
            r'<(?:script|img|link rel="(?:stylesheet|icon|preconnect)")[^>]+(?:src|href)="?(?:https?:)?//[^>]+>', text
        )
        assert fetched == [], page.name


def test_no_list_table_or_block_of_code_is_shown_as_text(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        shown = re.findall(r"^ *\|.*\| *$|^ *```.*|^ *<p>(?:[*-]|\d+\.) .*|^(?:[*-]|\d+\.) .*", text, re.MULTILINE)
        assert shown == [], page.name


def test_the_site_has_the_docstrings_and_what_the_notebook_prints(site: Path) -> None:
    assert 'id="forebay.Table.scan"' in (site / "reference/live-tables.html").read_text(encoding="utf-8")
    assert "union read of fluss.orders" in (site / "tutorial.html").read_text(encoding="utf-8")
