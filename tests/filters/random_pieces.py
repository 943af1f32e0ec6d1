"""Random rows in several commits, and the kinds of columns that partition a table."""

from __future__ import annotations

import random

from tests.filters.conditions import Row, random_rows


def pieces(rng: random.Random) -> list[list[Row]]:
    """Rows as they are written, commit after commit."""
    made: list[list[Row]] = []
    for _ in range(rng.randint(1, 6)):
        made.append(random_rows(rng, rng.randint(1, 6), 100 * len(made)))
    return made


PARTITION_KINDS = ("bool", "int", "big", "float", "double", "dec4", "text", "bytes", "date", "micros")
