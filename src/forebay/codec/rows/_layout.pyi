from collections.abc import Sequence

class RowLayout:
    node_count: int
    format: int
    field_count: int
    def __init__(self, nodes: Sequence[tuple[str, bool, int, int, bool]], row_format: str) -> None: ...
