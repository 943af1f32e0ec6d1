"""Paimon fulfils the lake contract, with system columns (the default) and without."""

from __future__ import annotations

from types import MappingProxyType

from forebay.lakes.paimon_tables import LAYOUT_OPTION
from tests.lake.paimon_contract import PaimonContract


class TestPaimonLake(PaimonContract):
    """The contract, on a warehouse on the local disk."""


class TestPaimonLakeWithoutSystemColumns(TestPaimonLake):
    """The same tables in the layout of Fluss's main branch."""

    lake_options = MappingProxyType({LAYOUT_OPTION: "false"})
