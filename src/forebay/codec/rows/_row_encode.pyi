from typing import Any

from forebay.codec.rows._layout import RowLayout
from forebay.codec.rows._slices import RowSlices

def encode(layout: RowLayout, array_capsule_in: Any) -> Any: ...
def encodes_to(layout: RowLayout, array_capsule_in: Any, positions: tuple[int, ...], expected: RowSlices) -> bool: ...
