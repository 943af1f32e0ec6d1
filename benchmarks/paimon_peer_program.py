"""Runs under pypaimon's interpreter, not ours: does and times work on Paimon tables, one request per line.

A request is a JSON object with `do` (one of `_WORK`) and the arguments of that function; the answer is one line, `@`
and a JSON object with `wall`, `cpu` and `kernel` (seconds, without preparation), `rows`, or `error`. Tables are written
and read by pypaimon in Python, or, if `rust` is true, by its Rust engine as far as it supports that.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema  # type: ignore[import-not-found]

Answer = dict[str, Any]
_NATIVE = ("scan.native-plan.enabled", "read.native.enabled", "write.native.enabled", "commit.native.enabled")
_loaded: dict[str, list[pa.Table]] = {}
_tables: dict[tuple[str, str, bool], Any] = {}


def load(name: str, paths: list[str], alone: bool) -> Answer:
    """Keep the rows of Arrow files under a name: a list of tables; `alone`: instead of all earlier ones."""
    if alone:
        _loaded.clear()
    _loaded[name] = [pa.ipc.open_file(pa.OSFile(path)).read_all() for path in paths]
    return {"wall": 0, "cpu": 0, "kernel": 0, "rows": sum(part.num_rows for part in _loaded[name])}


def _table(warehouse: str, table: str, rust: bool) -> Any:
    if (warehouse, table, rust) not in _tables:
        found = CatalogFactory.create({"warehouse": warehouse}).get_table(table)
        _tables[warehouse, table, rust] = found.copy(dict.fromkeys(_NATIVE, "true")) if rust else found
    return _tables[warehouse, table, rust]


def _timed(work: Callable[[], int]) -> Answer:
    wall, cpu, kernel = time.perf_counter(), time.process_time(), getrusage(RUSAGE_SELF).ru_stime
    rows = work()
    return {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "kernel": getrusage(RUSAGE_SELF).ru_stime - kernel,
        "rows": rows,
    }


def write(warehouse: str, table: str, rust: bool, data: str, definition: dict[str, Any]) -> Answer:
    """Create the table; write and commit each part of loaded rows. Timed from the first writer to the last commit."""
    catalog = CatalogFactory.create({"warehouse": warehouse})
    catalog.create_database(table.split(".")[0], True)
    catalog.create_table(table, Schema.from_pyarrow_schema(_loaded[data][0].schema, **definition), False)
    target = _table(warehouse, table, rust)
    return _timed(lambda: sum(_commit(target, part) for part in _loaded[data]))


def _commit(table: Any, part: pa.Table) -> int:
    builder = table.new_batch_write_builder()
    writer, commit = builder.new_write(), builder.new_commit()
    writer.write_arrow(part)
    commit.commit(writer.prepare_commit())
    writer.close()
    commit.close()
    return int(part.num_rows)


def read(warehouse: str, table: str, rust: bool, key: int | None = None) -> Answer:
    """Plan and read the whole table, or the row of one key, into an Arrow table."""
    opened = _table(warehouse, table, rust)

    def work() -> int:
        builder = opened.new_read_builder()
        if key is not None:
            builder = builder.with_filter(builder.new_predicate_builder().equal("id", key))
        return int(builder.new_read().to_arrow(builder.new_scan().plan().splits()).num_rows)

    return _timed(work)


def plan(warehouse: str, table: str, rust: bool) -> Answer:
    """Plan a scan of the whole, reopened table; `rows` are splits."""
    _tables.pop((warehouse, table, rust), None)
    return _timed(lambda: len(_table(warehouse, table, rust).new_read_builder().new_scan().plan().splits()))


def commit(warehouse: str, table: str, rust: bool, data: str) -> Answer:
    """Commit rows that were written before: only the commit is timed, on a newly opened table."""
    _tables.pop((warehouse, table, rust), None)
    builder = _table(warehouse, table, rust).new_batch_write_builder()
    writer, committer = builder.new_write(), builder.new_commit()
    writer.write_arrow(_loaded[data][0])
    messages = writer.prepare_commit()

    def work() -> int:
        committer.commit(messages)
        return int(_loaded[data][0].num_rows)

    done = _timed(work)
    writer.close()
    committer.close()
    return done


_WORK: dict[str, Callable[..., Answer]] = {work.__name__: work for work in (load, write, read, plan, commit)}


def main() -> None:
    # Output of libraries must not be mixed with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("@ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = _WORK[request.pop("do")](**request)
        except Exception as e:  # noqa: BLE001 - whatever a peer fails with is told, and the benchmark goes on
            answer = {"error": f"{type(e).__name__}: {e}"[:300]}
        print("@" + json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
