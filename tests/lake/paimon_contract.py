"""The contract of lake formats, for Paimon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from forebay.lake.formats import create_lake_storage
from forebay.lake.storage import LakeStorage
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.lakes.paimon_tables import open_catalog
from forebay.paimon.table import Table
from forebay.testing.lake_contract import LakeContract
from forebay.testing.lake_rounds import PATH
from tests.lake import rolling_back
from tests.paimon.lake import at_ms


def lake_table(storage: LakeStorage) -> Table:
    """The Paimon table of the contract, opened by the engine itself."""
    assert isinstance(storage, PaimonLakeStorage)
    return open_catalog(storage.options).table(str(PATH))


class PaimonContract(LakeContract):
    """The contract, on a warehouse on the local disk."""

    lake_options: Mapping[str, str] = MappingProxyType({})
    bucket_format = "paimon"
    option_prefix = "paimon."
    reserved_options = ("paimon.bucket", "bucket", "paimon.bucket-key", "paimon.partition.legacy-name")

    many_splits = MappingProxyType(
        {"paimon.source.split.target-size": "1 b", "paimon.source.split.open-file-cost": "1 b"}
    )

    def open_storage(self, directory: Path) -> LakeStorage:
        return create_lake_storage("paimon", {"warehouse": str(directory / "lake"), **self.lake_options})

    def stored_options(self, storage: LakeStorage) -> Mapping[str, str]:
        return lake_table(storage).schema.options

    def data_files(self, storage: LakeStorage) -> set[str]:
        assert isinstance(storage, PaimonLakeStorage)
        return {str(p) for p in Path(storage.options["warehouse"]).rglob("bucket-*/*") if p.is_file()}

    def disturb(self, storage: LakeStorage) -> bool:
        return lake_table(storage).compact(full=True) is not None

    def expire_old_snapshots(self, storage: LakeStorage) -> bool:
        lake_table(storage).expire_snapshots(retain_min=1, retain_max=1, older_than=at_ms(0))
        return True

    def undo(self, storage: LakeStorage, to: int) -> bool:
        rolling_back.undo(storage, PATH, to)
        return True
