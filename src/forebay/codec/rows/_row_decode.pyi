from typing import Any

from forebay.codec.rows._layout import RowLayout
from forebay.codec.rows._slices import RowSlices

def decode(layout: RowLayout, rows: RowSlices) -> Any: ...
def is_plainly_sound(layout: RowLayout, array_capsule_in: Any, required: tuple[int, ...]) -> bool: ...
