"""A warehouse and its partitions are the same folders for Java Paimon, pypaimon and us, however they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.paimon import Catalog
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from tests.paimon.foreign.java_paimon import JavaError, JavaPaimon, JavaTable
from tests.paimon.partition_locations import COLUMNS, VALUES, fast, numbered, partitioned
from tests.paimon.pypaimon_tables import read_by_pypaimon

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

SPELLINGS: dict[str, Callable[[Path], str]] = {
    "path": str,
    "one slash": lambda folder: f"file:{folder}",
    "three slashes": lambda folder: f"file://{folder}",
    "doubled slashes": lambda folder: f"{folder.parent}//x/..//{folder.name}//",
}


def directories(table: Path) -> set[str]:
    return {path.name for path in table.glob("p=*")}


def rows_of(catalog: Catalog, name: str) -> list[list[object]]:
    return sorted(([r["p"], r["v"]] for r in catalog.table(name).scan().to_arrow().to_pylist()), key=repr)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_finds_the_rows_of_the_other_in_the_same_folders(tmp_path: Path, java: JavaPaimon, spelling: str) -> None:
    place, values = tmp_path / "50%20 of my ü lake", list(VALUES)
    where = SPELLINGS[spelling](place)
    catalog = fast(Catalog.open(where))
    ours = partitioned(catalog, values)
    theirs = JavaTable(java, where, "db.theirs")
    theirs.create(COLUMNS, partition_keys=["p"])
    theirs.write(ours.schema, numbered(values))
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
    assert directories(place / "db.db/t") == directories(place / "db.db/theirs") == {f"p={v}" for v in VALUES.values()}
    # Each adds to the table of the other, in existing partitions.
    JavaTable(java, where, "db.t").write(ours.schema, numbered(values[:3], 100))
    fast(Catalog.open(where)).table("db.theirs").append(numbered(values[:3], 100))
    assert directories(place / "db.db/t") == directories(place / "db.db/theirs") == {f"p={v}" for v in VALUES.values()}
    expected = rows_of(catalog, "db.t")
    assert len(expected) == len(values) + 3
    for other in SPELLINGS.values():
        for name in ("db.t", "db.theirs"):
            assert rows_of(Catalog.open(other(place)), name) == expected
            assert JavaTable(java, other(place), name).rows() == expected


def test_every_character_has_the_same_place_in_a_directory(tmp_path: Path, java: JavaPaimon) -> None:
    values = [f"x{chr(code)}y" for code in [*range(1, 128), 0x80, 0xA0, 0x2028, 0xFEFF, 0x1F600]]
    catalog = fast(Catalog.open(f"file:{tmp_path}/lake"))
    ours = partitioned(catalog, values)
    theirs = JavaTable(java, f"file:{tmp_path}/lake", "db.theirs")
    theirs.create(COLUMNS, partition_keys=["p"])
    theirs.write(ours.schema, numbered(values))
    assert directories(tmp_path / "lake/db.db/t") == directories(tmp_path / "lake/db.db/theirs")
    assert len(directories(tmp_path / "lake/db.db/t")) == len(values)
    assert theirs.rows() == JavaTable(java, str(tmp_path / "lake"), "db.t").rows() == rows_of(catalog, "db.theirs")


def test_what_java_refuses_we_refuse_or_take_for_this_machine(tmp_path: Path, java: JavaPaimon) -> None:
    """`file://localhost` is refused by Java alone: it is this machine's, as in RFC 8089."""
    for where in ("file://host/lake", "file:lake", "s3:/bucket/lake", "with:colon"):
        with pytest.raises(JavaError):
            JavaTable(java, where, "db.t").create(COLUMNS)
        with pytest.raises(ValueError, match="option 'warehouse'"):
            Catalog.open(where)
    with pytest.raises(JavaError, match="authority 'localhost'"):
        JavaTable(java, f"file://localhost{tmp_path}", "db.t").create(COLUMNS)


@pytest.mark.parametrize("spelling", ["path", "one slash", "three slashes"])
def test_pypaimon_finds_our_rows(tmp_path: Path, spelling: str) -> None:
    """It decodes the warehouse of a URI, and so takes one with a percent sign for another folder than Java does."""
    values = [value for value in VALUES if value.strip()]
    where = SPELLINGS[spelling](tmp_path / "my ü lake")
    catalog = fast(Catalog.open(where))
    assert isinstance(catalog, FileSystemCatalog)
    catalog.create_database("db")
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    table = catalog.create_table("db.t", schema, partition_keys=["p"])
    table.append(pa.table({"id": range(len(values)), "p": values}, schema))
    catalog.warehouse = where
    found = read_by_pypaimon(catalog, "db.t", tmp_path / "out", "python")
    assert [row["p"] for row in found] == values
