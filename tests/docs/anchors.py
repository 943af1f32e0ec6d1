"""The anchors of a page's headings."""

from __future__ import annotations

import re
from pathlib import Path

from tools.site import with_code


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and our MkDocs make them."""
    lines = with_code(path.read_text(encoding="utf-8"))
    headings = [line.lstrip("#").strip() for line, is_code in lines if line.startswith("#") and not is_code]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
