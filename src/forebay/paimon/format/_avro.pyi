from collections.abc import Iterable
from typing import Literal, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

KINDS: dict[str, int]

class Program:
    slots: int
    def __init__(
        self,
        nodes: list[tuple[int, tuple[int, ...], int, int, bool]],
        root: int,
        slots: int,
        required: Iterable[int],
        items: dict[int, int],
    ) -> None: ...

class Records:
    body: bytes
    count: int
    values: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    @property
    def nbytes(self) -> int: ...
    def bytes_at(self, row: int, slot: int) -> bytes | None: ...
    def text_at(self, row: int, slot: int) -> str | None: ...
    def number_at(self, row: int, slot: int) -> int | None: ...
    @overload
    def array_at(self, row: int, slot: int, texts: Literal[False] = False) -> tuple[int | None, ...] | None: ...
    @overload
    def array_at(self, row: int, slot: int, texts: Literal[True]) -> tuple[str | None, ...] | None: ...
    def binary(self, rows: npt.NDArray[np.int64], slot: int, skip: int = 0, instead: bytes = b"") -> pa.BinaryArray: ...
    def item(self, rows: npt.NDArray[np.int64], slot: int, index: int, instead: int) -> npt.NDArray[np.int64]: ...

def decode(program: Program, body: bytes, blocks: list[tuple[int, int, int]]) -> Records: ...
