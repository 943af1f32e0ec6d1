from collections.abc import Sequence

from typing_extensions import Buffer

CODECS: dict[int, str | None]

class MessageLayout:
    node_count: int
    buffer_count: int
    column_count: int
    names: tuple[str, ...]
    def __init__(self, nodes: Sequence[tuple[str, bool, int, int]], names: tuple[str, ...]) -> None: ...
    def column_nodes(self) -> list[int]: ...

def check_message(
    layout: MessageLayout, buffer: Buffer, start: int, end: int, rows: int, decoded_bytes_max: int
) -> tuple[int, int, int]: ...
