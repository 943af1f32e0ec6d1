"""Hooks of MkDocs, which builds the documentation site from docs/ as it is.

Pages are written for GitHub and read in both places. What GitHub does and Python-Markdown does not is added here: links
to files outside docs/, the notebook, and lists that are indented by two or three spaces or follow a paragraph directly.
The pages of the API reference consist of the names in REFERENCE.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = "repository/"
"""Where the site keeps the files outside docs/ that pages link to."""
NOTEBOOK = "tutorial.ipynb"

ERRORS = (
    "ForebayError",
    "NotFound",
    "AlreadyExists",
    "InvalidRequest",
    "UnsupportedOperation",
    "Conflict",
    "OutcomeUnknown",
    "Unavailable",
    "AccessDenied",
    "LimitExceeded",
    "StorageFailure",
    "CorruptData",
    "InternalError",
)
REFERENCE = {
    "connections": (
        "Connections",
        [
            "forebay.connect",
            "forebay.embedded",
            "forebay.Connection",
            "forebay.client.transaction.Transaction",
            "forebay.client.admin.admin.Admin",
        ],
    ),
    "live-tables": ("Live tables", ["forebay.Table", "forebay.client.reading.table_snapshot.TableSnapshot"]),
    "lake-tables": ("Lake tables", ["forebay.paimon.Catalog", "forebay.paimon.Table"]),
    "reads-and-writes": (
        "Reads and writes",
        ["forebay.api.scan.Scan", "forebay.api.scan.RowReader", "forebay.api.results.WriteResult"],
    ),
    "values": (
        "Filters, types, errors",
        [
            "forebay.col",
            "forebay.types",
            *(f"forebay.errors.{name}" for name in ERRORS),
        ],
    ),
    "jobs": (
        "Spark, tiering, moving, verifying",
        [
            "forebay.spark.session",
            "forebay.spark.attach",
            "forebay.tiering.now.tier_now",
            "forebay.tiering.service.TieringService",
            "forebay.tiering.lag.table_lag",
            "forebay.moving.plan_move",
            "forebay.moving.move_table",
            "forebay.verify.verify_directory",
            "forebay.verify.verify_server",
        ],
    ),
}
"""The pages of the API reference: title, and the names whose docstrings are shown."""

LINK = re.compile(r"(?<=\]\()(?P<path>[^()\s:#]+)(?=(?:#[^()\s]*)?\))")
FENCE = re.compile(r" *(?:```|~~~)")
ITEM = re.compile(r"(?P<indent> *)(?P<marker>[-*]|\d+\.)(?P<space> +)\S")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference, the notebook as a page, and what pages link to outside docs/; called by MkDocs."""
    from mkdocs.structure.files import File

    for name, (title, names) in REFERENCE.items():
        text = f"# {title}\n\n" + "\n\n".join(f"::: {name}" for name in names) + "\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    notebook = json.loads((ROOT / "docs" / NOTEBOOK).read_text(encoding="utf-8"))
    files.append(File.generated(config, NOTEBOOK.replace(".ipynb", ".md"), content=notebook_page(notebook)))
    for path in sorted(linked_outside()):
        files.append(File.generated(config, OUTSIDE + path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page as Python-Markdown understands it, with links that hold in the site; called by MkDocs."""
    place = page.file.src_uri
    lines = []
    for line, is_code in with_code(markdown):
        lines.append(line if is_code else LINK.sub(lambda link: target(link["path"], place), line))
    return lists_by_four("\n".join(lines))


def target(path: str, place: str) -> str:
    """Where a link of a page leads in the site, relative to the page."""
    in_repository = _in_repository(path, place)
    if in_repository == f"docs/{NOTEBOOK}":
        found = NOTEBOOK.replace(".ipynb", ".md")
    elif in_repository.startswith("docs/"):
        found = in_repository.removeprefix("docs/")
    else:
        found = OUTSIDE + in_repository
    return posixpath.relpath(found, posixpath.dirname(place) or ".")


def _in_repository(path: str, place: str) -> str:
    """The file of the repository that a link of a page in the site means."""
    page = place.removeprefix(OUTSIDE) if place.startswith(OUTSIDE) else f"docs/{place}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))


def linked_outside() -> set[str]:
    """The files outside docs/ that pages link to, and those that these link to."""
    found: set[str] = set()
    new = [(path.relative_to(ROOT / "docs").as_posix(), path) for path in (ROOT / "docs").rglob("*.md")]
    while new:
        place, file = new.pop()
        text = "\n".join(line for line, is_code in with_code(file.read_text(encoding="utf-8")) if not is_code)
        for link in LINK.finditer(text):
            path = _in_repository(link["path"], place)
            if not path.startswith("docs/") and path not in found and (ROOT / path).is_file():
                found.add(path)
                if path.endswith(".md"):
                    new.append((OUTSIDE + path, ROOT / path))
    return found


def with_code(text: str) -> list[tuple[str, bool]]:
    """The lines of a page, each with whether it belongs to a block of code."""
    found, inside = [], False
    for line in text.split("\n"):
        fence = FENCE.match(line) is not None
        found.append((line, inside or fence))
        inside = inside != fence
    return found


def lists_by_four(text: str) -> str:
    """A page whose lists are indented by four spaces for each level and begin after an empty line."""
    levels: list[int] = []  # the column of the text of each list item around the line
    lines: list[str] = []
    for line, is_code in with_code(text):
        indent = len(line) - len(line.lstrip(" "))
        item = None if is_code else ITEM.match(line)
        if line.strip() and (item or is_code or not lines or not lines[-1].strip()):
            while levels and indent < levels[-1]:
                levels.pop()
        if item:
            paragraph = _paragraph(lines)
            if paragraph and not any(ITEM.match(found) for found in paragraph):
                lines.append("")
            lines.append(" " * 4 * len(levels) + item["marker"] + " " + line[item.end() - 1 :])
            levels.append(item.end() - 1)
        elif line.strip() and levels:
            lines.append(" " * 4 * len(levels) + line[min(indent, levels[-1]) :])
        else:
            lines.append(line)
    return "\n".join(lines)


def _paragraph(lines: list[str]) -> list[str]:
    """The lines since the last empty one."""
    found: list[str] = []
    for line in reversed(lines):
        if not line.strip():
            break
        found.append(line)
    return found


def notebook_page(notebook: dict[str, list[dict[str, object]]]) -> str:
    """A notebook as a page: its text, its code, and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])  # type: ignore[arg-type]
        if cell["cell_type"] == "markdown":
            parts.append(text)
        else:
            parts.append(f"```python\n{text}\n```")
            if printed := notebook_output(cell):
                parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def notebook_output(cell: dict[str, object]) -> str:
    """What a cell of a notebook printed, and the text of its last value."""
    printed = []
    for output in cell["outputs"]:  # type: ignore[attr-defined]
        text = output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
        printed.append("".join(text))
    return "".join(printed)
