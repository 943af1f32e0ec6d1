from typing import Any

from forebay.codec._layout import RowLayout

def encode(layout: RowLayout, array_capsule_in: Any) -> Any: ...
