"""Lake tables read and written by pypaimon, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.paimon.catalog.filesystem import FileSystemCatalog
from tests.paimon.oracle import ask

PROGRAM = (Path(__file__).parent / "pypaimon_program.py").read_text()


def read_by_pypaimon(catalog: FileSystemCatalog, name: str, out: Path, rust: str, *where: str) -> list[dict[str, Any]]:
    ask(PROGRAM, "read", catalog.warehouse, name, str(out), rust, *where)
    with pa.OSFile(str(out)) as source:
        rows: list[dict[str, Any]] = pa.ipc.open_file(source).read_all().sort_by("id").to_pylist()
    return rows


def write_by_pypaimon(
    catalog: FileSystemCatalog, name: str, folder: Path, definition: dict[str, Any], rust: str, parts: list[pa.Table]
) -> None:
    theirs = {("primary_keys" if key == "primary_key" else key): value for key, value in definition.items()}
    (folder / "definition.json").write_text(json.dumps(theirs))
    paths = []
    for i, part in enumerate(parts):
        paths.append(str(folder / f"part{i}.arrow"))
        with pa.OSFile(paths[-1], "wb") as sink, pa.ipc.new_file(sink, part.schema) as writer:
            writer.write_table(part)
    ask(PROGRAM, "write", catalog.warehouse, name, str(folder / "definition.json"), rust, *paths)
