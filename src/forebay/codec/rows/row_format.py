"""The row formats."""

from __future__ import annotations

from enum import Enum


class RowFormat(Enum):
    """How a row lies in bytes.

    COMPACTED and INDEXED are the formats of values; KEY is compacted fields without null bits; ALIGNED has eight
    bytes a field and is what Paimon calls BinaryRow (keys of Paimon-format tables, batch statistics).
    """

    COMPACTED = "COMPACTED"
    INDEXED = "INDEXED"
    KEY = "KEY"
    ALIGNED = "ALIGNED"
