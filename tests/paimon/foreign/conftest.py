"""The fixture of the exams with Java Paimon."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from forebay.paimon.catalog.filesystem import FileSystemCatalog
from tests.paimon.foreign.java_paimon import ExamUnavailable, JavaPaimon, JavaTable

JavaTableOf = Callable[[FileSystemCatalog, str], JavaTable]


@pytest.fixture(scope="session")
def java() -> Iterator[JavaPaimon]:
    """A JVM with Java Paimon; skips with the reason where there can be none."""
    try:
        paimon = JavaPaimon()
    except ExamUnavailable as reason:
        pytest.skip(f"no Java Paimon here: {reason}")
    yield paimon
    paimon.close()


@pytest.fixture
def java_table(java: JavaPaimon) -> JavaTableOf:
    """A table of a catalog of ours, as Java Paimon sees it."""
    return lambda catalog, name: JavaTable(java, catalog.warehouse, name)
