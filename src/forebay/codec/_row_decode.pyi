from typing import Any

from forebay.codec._layout import RowLayout
from forebay.codec._slices import RowSlices

def decode(layout: RowLayout, rows: RowSlices) -> Any: ...
