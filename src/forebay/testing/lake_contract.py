"""The contract of lake formats. Subclass `LakeContract` and provide `open_storage`.

    class TestMyLake(LakeContract):
        def open_storage(self, directory: Path) -> LakeStorage:
            return MyLakeStorage({"warehouse": str(directory)})

The attributes and hooks of `LakeContractBase` declare what a format can and cannot do. The rules are in the modules
`lake_contract_catalog`, `lake_contract_tiering`, `lake_contract_reading` and `lake_contract_random`.
"""

from __future__ import annotations

from forebay.testing.lake_contract_base import LakeContractBase
from forebay.testing.lake_contract_catalog import CatalogRules
from forebay.testing.lake_contract_random import RandomRounds
from forebay.testing.lake_contract_reading import ReadingRules
from forebay.testing.lake_contract_tiering import TieringRules

__all__ = ["LakeContract", "LakeContractBase"]


class LakeContract(CatalogRules, TieringRules, ReadingRules, RandomRounds):
    """All rules."""
