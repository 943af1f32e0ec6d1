from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer

from forebay.codec.arrow._arrow_message import MessageLayout

class Projector:
    def __init__(
        self, layout: MessageLayout, nodes: list[tuple[int, bool]], buffers: list[tuple[int, bool, int, int]]
    ) -> None: ...

def project_batches(
    buffer: Buffer,
    start: int,
    end: int,
    projector_of: Callable[[int], Projector],
    positions: Any,
    bytes_max: int,
    take_first: bool,
) -> tuple[bytes, int, int]: ...
