"""The pages whose examples need Spark."""

from __future__ import annotations

import re

from tests.docs.blocks import PAGES, blocks

TYPED_PAGES = [page for page in PAGES if any(block.is_typed for block in blocks(page))]

WITH_SPARK = (
    "README.md",
    "docs/how-to/spark-stream.md",
    *(page for page in TYPED_PAGES if re.match(r"docs/spark(-lake)?[./]", page)),
)
"""Pages that tests/spark/test_pages.py types."""
