"""Runs under pypaimon's interpreter, not ours: reads or writes a table according to `argv`, exchanging files.

read  <warehouse> <table> <out.arrow> <rust?> [<id>]     rows (with that id) as an Arrow file write <warehouse> <table>
<definition.json> <rust?> <in.arrow>...      creates the table; one commit for each file
"""

import json
import sys

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

command, warehouse, name, *rest = sys.argv[1:]
catalog = CatalogFactory.create({"warehouse": warehouse})


def with_rust(table, rust):
    """The table read and written by pypaimon's Rust engine, as far as that can (else pypaimon itself takes over)."""
    native = ("scan.native-plan.enabled", "read.native.enabled", "write.native.enabled", "commit.native.enabled")
    return table.copy(dict.fromkeys(native, "true")) if rust == "rust" else table


if command == "read":
    out, rust, *wanted = rest
    builder = with_rust(catalog.get_table(name), rust).new_read_builder()
    if wanted:
        builder = builder.with_filter(builder.new_predicate_builder().equal("id", int(wanted[0])))
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    with pa.OSFile(out, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    print(rows.num_rows)
else:
    definition, rust, *files = rest
    with open(definition) as f:
        keywords = json.load(f)
    parts = [pa.ipc.open_file(pa.memory_map(path)).read_all() for path in files]
    catalog.create_database(name.split(".")[0], True)
    catalog.create_table(name, Schema.from_pyarrow_schema(parts[0].schema, **keywords), True)
    for part in parts:
        table = with_rust(catalog.get_table(name), rust)
        builder = table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(part)
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()
    print(len(parts))
