"""The contract of lake formats, for Iceberg."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from forebay.lake.formats import create_lake_storage
from forebay.lake.storage import LakeStorage
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.testing.lake_contract import LakeContract
from forebay.testing.lake_rounds import PATH
from tests.lake import rolling_back
from tests.lake.iceberg_tables import compact, expire, lake_table


class IcebergContract(LakeContract):
    """The contract, on an SQL catalog in a warehouse on the local disk."""

    bucket_format = "iceberg"
    sorts = False
    bucket_keys_max = 1
    has_nanoseconds = False
    option_prefix = "iceberg."
    reserved_options = ("iceberg.write.delete.mode", "iceberg.write.update.mode", "iceberg.write.merge.mode")
    many_splits = MappingProxyType({"iceberg.read.split.target-size": "1", "iceberg.read.split.open-file-cost": "1"})

    def open_storage(self, directory: Path) -> LakeStorage:
        return create_lake_storage("iceberg", {"warehouse": str(directory / "lake")})

    def stored_options(self, storage: LakeStorage) -> Mapping[str, str]:
        return lake_table(storage).properties

    def data_files(self, storage: LakeStorage) -> set[str]:
        assert isinstance(storage, IcebergLakeStorage)
        data = Path(storage.options["warehouse"]) / PATH.database / PATH.table / "data"
        return {str(p) for p in data.rglob("*.parquet")}

    def disturb(self, storage: LakeStorage) -> bool:
        return compact(storage) is not None

    def expire_old_snapshots(self, storage: LakeStorage) -> bool:
        return bool(expire(storage))

    def undo(self, storage: LakeStorage, to: int) -> bool:
        rolling_back.undo(storage, PATH, to)
        return True
