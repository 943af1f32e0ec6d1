"""Every public name of pyfluss's API is used by some test of this directory."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tests.pyfluss.conftest import fluss

pytestmark = pytest.mark.foreign

TEXT = "\n".join(path.read_text() for path in Path(__file__).parent.glob("*.py") if path != Path(__file__))


def public_names() -> set[str]:
    names = set()
    for name, thing in vars(fluss).items():
        if name.startswith("_") or inspect.ismodule(thing):
            continue
        names.add(name)
        if inspect.isclass(thing) and name != "ErrorCode":  # which codes there are is the server's matter
            names.update(member for member in vars(thing) if not member.startswith("_"))
    return names


def test_every_public_name_of_pyfluss_is_used():
    # Classes of which users only ever see objects that methods returned; their methods must be used all the same.
    returned = {"FlussAdmin", "FlussTable", "AppendWriter", "UpsertWriter", "WriteResultHandle", "Lookuper",
                "LogScanner",
                "PrefixLookuper", "BatchScanner", "RecordBatch", "ScanRecord", "ScanRecords", "Predicate", "TableScan",
                "TableAppend", "TableUpsert", "TableLookup", "TablePrefixLookup", "TableInfo", "PartitionInfo",
                "ServerNode", "DatabaseInfo"}  # fmt: skip
    assert {name for name in public_names() if not re.search(rf"\b{name}\b", TEXT)} - returned == set()
