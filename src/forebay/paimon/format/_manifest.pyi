import numpy as np
import numpy.typing as npt

from forebay.paimon.format._avro import Records
from forebay.paimon.format.file_meta import ManifestEntry

Rows = npt.NDArray[np.int64]

ENTRY_FIELDS: tuple[tuple[str, str, bool], ...]

def build_entries(records: Records, rows: Rows) -> list[ManifestEntry]: ...
def partition_codes(records: Records) -> tuple[npt.NDArray[np.int32], list[bytes]]: ...
def merge_rows(parts: list[tuple[Records, Rows]], with_deletions: bool = False) -> list[Rows]: ...
