from collections.abc import Callable, Sequence

from forebay.codec.rows._layout import RowLayout

def bitmap_class() -> type: ...

class Aggregates:
    def __init__(
        self,
        layout: RowLayout,
        columns: Sequence[tuple[str, str | None, bytes, int, int]],
        row_name: Callable[[bytes], str],
        must_succeed: bool,
        wraps: bool,
    ) -> None: ...
