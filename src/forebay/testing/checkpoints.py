"""Checkpoints of Spark's streaming queries, as a crash leaves them."""

from __future__ import annotations

from pathlib import Path


def forget_last_batch(checkpoint: Path) -> int:
    """The number of the query's last micro-batch, of which Spark's record that it is done is removed.

    So a driver leaves it that dies between the commit of the table and Spark's: the batch is run again. Raises
    `ValueError` if no batch is done.
    """
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / f"{last}").unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last
