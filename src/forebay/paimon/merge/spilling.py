"""Reducing the number of sorted runs on the local disk, so that memory and open files stay bounded.

Runs are combined a few at a time. Nothing is merged yet: all rows are kept, in merge order, so that this step is the
same for all merge engines. The resulting runs repeat keys.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence

import pyarrow as pa

from forebay.base.errors import StorageFailure
from forebay.paimon.io.closing import close_sources, closed_after
from forebay.paimon.merge.spec import MergeSpec
from forebay.paimon.merge.windows import Window, concatenated, ordered, windows

Run = Iterable[pa.RecordBatch]

_ROWS_MIN = 1024
"""The minimum number of rows in a batch."""


@contextlib.contextmanager
def few_runs(runs: Sequence[Run], spec: MergeSpec, unique_keys: bool = True) -> Iterator[tuple[Sequence[Run], bool]]:
    """`runs`, or at most `spec.runs_max` runs with the same rows; and whether each run has unique keys.

    `unique_keys`: the given runs have unique keys. Spilled files are deleted at the end of the block. Raises
    `StorageFailure` if the local disk fails.
    """
    if len(runs) <= spec.runs_max:
        yield runs, unique_keys
        return
    try:
        with _folder() as folder:
            number = itertools.count()
            remaining = list(runs)
            while len(remaining) > spec.runs_max:
                parts = [remaining[i : i + spec.runs_max] for i in range(0, len(remaining), spec.runs_max)]
                remaining = [_spilled(part, spec, f"{folder}/{next(number)}.arrow", unique_keys) for part in parts]
                unique_keys = False
            yield remaining, False
    finally:
        close_sources(runs)


def _folder() -> tempfile.TemporaryDirectory[str]:
    with _failures(tempfile.gettempdir()):
        return tempfile.TemporaryDirectory(prefix="forebay-merge-")


def _spilled(runs: Sequence[Run], spec: MergeSpec, path: str, unique_keys: bool) -> Run:
    """The rows of several runs as one run, in the file `path`."""
    writer: pa.ipc.RecordBatchFileWriter | None = None
    with contextlib.ExitStack() as opened:
        for window in opened.enter_context(closed_after(windows(runs, spec.key_columns, unique_keys))):
            batch = _in_order(window, spec)
            with _failures(path):
                if writer is None:
                    sink = opened.enter_context(pa.OSFile(path, "wb"))
                    options = pa.ipc.IpcWriteOptions(compression="lz4")
                    writer = pa.ipc.new_file(sink, batch.schema, options=options)
                    opened.callback(_close_quietly, writer)
                rows = max(_ROWS_MIN, batch.num_rows * spec.part_bytes(spec.runs_max) // max(1, batch.nbytes))
                for start in range(0, batch.num_rows, rows):
                    writer.write_batch(batch.slice(start, rows))
        if writer is None:
            return []
        with _failures(path):
            writer.close()
    return _read(path)


def _close_quietly(writer: pa.ipc.RecordBatchFileWriter) -> None:
    """Close a writer whose file will not be read, or that is already closed."""
    with contextlib.suppress(OSError, pa.ArrowInvalid):
        writer.close()


def _in_order(window: Window, spec: MergeSpec) -> pa.RecordBatch:
    batches, keys = window
    whole = concatenated(batches)
    if len(batches) == 1:
        return whole
    columns = dict(zip(whole.schema.names, whole.columns, strict=True))
    order, _ = ordered(columns, keys, [b.num_rows for b in batches], spec)
    return whole.take(pa.array(order))


def _read(path: str) -> Generator[pa.RecordBatch]:
    with _failures(path), pa.OSFile(path) as source:
        reader = pa.ipc.open_file(source)
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)


@contextlib.contextmanager
def _failures(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StorageFailure(f"cannot spill sorted rows to {path}: {e}; is the local disk full?") from e
