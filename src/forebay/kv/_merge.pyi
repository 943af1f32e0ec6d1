from collections.abc import Mapping
from typing import Protocol

from forebay.codec.rows._layout import RowLayout
from forebay.codec.rows._slices import RowSlices
from forebay.kv._aggregate import Aggregates

class _Sequence(Protocol):
    def next(self) -> int: ...

class MergePlan:
    reads_old_values: bool
    takes_whole_rows: bool
    needs_python: bool
    def __init__(
        self,
        layout: RowLayout,
        schema_id: int,
        full_image: bool,
        delete_behavior: str,
        key_mask: bytes,
        target_mask: bytes | None,
        auto_increment: int,
        engine: str | None = None,
        version: int = -1,
        aggregates: Aggregates | None = None,
    ) -> None: ...
    def merge(
        self, keys: list[bytes], rows: RowSlices, state: Mapping[bytes, bytes | None], sequence: _Sequence | None
    ) -> tuple[bytes, RowSlices, list[bytes], dict[bytes, bytes | None], int]: ...
