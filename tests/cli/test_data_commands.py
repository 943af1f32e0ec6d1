"""The commands that create, fill and query tables: `create`, `load`, `export`, `sql`, `history`, `lag`, `bench`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

import forebay
import forebay.paimon
from forebay.base.errors import InvalidRequest
from forebay.cli.create import parse_ddl
from forebay.cli.main import main
from forebay.client.reading.bucket_reader import TableReader
from forebay.tiering.now import tier_now
from forebay.tiering.runner import ThreadRunner

DDL = """CREATE TABLE IF NOT EXISTS cli.items (
    id BIGINT NOT NULL, name STRING COMMENT 'what, (it) is', price DECIMAL(10, 2), at TIMESTAMP_LTZ(3),
    local TIMESTAMP(6), clock TIME(3), day DATE, bytes BYTES, tags ARRAY<STRING>, PRIMARY KEY (id) NOT ENFORCED
) COMMENT 'it''s things' DISTRIBUTED BY (id) INTO 2 BUCKETS WITH ('a' = 'b')"""

ROWS = [
    {"id": 1, "name": "tea, \"green\"", "price": "3.50", "at": "2026-01-31 12:00:00+00:00",
     "local": "2026-01-31 12:00:00.000001", "clock": "12:00:00.500000", "day": "2026-01-31", "bytes": "00ff",
     "tags": ["x", None]},
    {"id": 2, "name": "", "price": None, "at": None, "local": None, "clock": None, "day": None, "bytes": "",
     "tags": []},
    {"id": 3, "name": None, "price": None, "at": None, "local": None, "clock": None, "day": None, "bytes": None,
     "tags": None},
]  # fmt: skip


class Shop(NamedTuple):
    """A server with a lake, and what a user types."""

    server: str
    folder: Path
    capsys: Any

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command; return what it prints, or the error of one that fails."""
        command, *rest = words
        assert main([command, "-b", self.server, *rest]) == code, self.capsys.readouterr().err
        printed = self.capsys.readouterr()
        return str(printed.err if code else printed.out)

    def rows(self, table: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.run("scan", table, "-o", "json").splitlines()]
        return sorted(found, key=lambda row: row["id"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("cli")
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(folder / "lake")}
    with forebay.embedded(folder / "data", settings=settings) as connection:
        yield connection


@pytest.fixture
def shop(place: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    for name in ("FOREBAY_BOOTSTRAP_SERVERS", "FOREBAY_WAREHOUSE", "FOREBAY_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
    return Shop(place.bootstrap_servers, tmp_path, capsys)


@pytest.fixture
def items(shop: Shop, place: Any) -> Shop:
    place.drop_table("cli.items", ignore_if_not_exists=True)
    assert shop.run("create", DDL) == "created cli.items\n"
    (shop.folder / "items.json").write_text("\n".join(map(json.dumps, ROWS)))
    assert shop.run("load", "cli.items", "items.json") == "loaded 3 rows of items.json into cli.items\n"
    return shop


def test_ddl_says_keys_buckets_comments_and_options(items: Shop, place: Any) -> None:
    info = place.table("cli.items").info
    assert (info.schema.primary_key, info.bucket_count, info.descriptor.comment) == (("id",), 2, "it's things")
    assert info.schema.column("name").comment == "what, (it) is"
    assert info.descriptor.custom_properties == {"a": "b"}
    spark = parse_ddl(
        "create table d.t (`a b` int, p string, m map<string, decimal(5,2)>, r row<x int, y array<int>>) "
        "partitioned by (p) tblproperties ('primary.key'='a b,p', 'bucket.num'='4', 'table.log.ttl'='1 d');"
    )
    assert (spark.name, spark.primary_key, spark.partition_keys, spark.buckets) == ("d.t", ["a b", "p"], ["p"], 4)
    assert spark.options == {"table.log.ttl": "1 d"}
    assert [str(column.data_type) for column in spark.columns][2:] == [
        "MAP<STRING NOT NULL, DECIMAL(5, 2)>", "ROW<`x` INT, `y` ARRAY<INT>>"
    ]  # fmt: skip
    inline = parse_ddl("CREATE TABLE d.t (id INT PRIMARY KEY NOT ENFORCED, v STRING)")
    assert inline.primary_key == ["id"]


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("CREATE TABLE d.t", "at its end: expected the columns"),
        ("CREATE TABEL d.t (a INT)", "at 'TABEL' in line 1, column 8: expected TABLE"),
        ("CREATE TABLE IF NOT EXIST d.t (a INT)", "at 'EXIST' in line 1, column 21: expected EXISTS"),
        ("CREATE TABLE d.t (a INT)\n PARTITONED BY (a)", "in line 2, column 2: expected .* mean 'PARTITIONED'"),
        ("CREATE TABLE d.t (a INT) PARTITIONED BT (a)", "at 'BT' in line 1, column 38: expected BY"),
        ("CREATE TABLE d.t (a INT) INTO 4 BUCKET", "at 'BUCKET' in line 1, column 33: expected BUCKETS"),
        ('CREATE TABLE d.t (a INT) COMMENT "x"', "expected a text in single quotes"),
        ("CREATE TABLE d.t (a INT, PRIMAY KEY (a))", "at 'PRIMAY' in line 1, column 26: .* mean 'PRIMARY'"),
        ("CREATE TABLE d.t (a BIGNT)", "column a: .* did you mean 'BIGINT'"),
        ("CREATE TABLE d.t (a INT CMMENT 'x')", "column a: .* did you mean 'COMMENT'"),
        ("CREATE TABLE d.t (a INT", "a parenthesis is not closed"),
        ("CREATE TABLE d.t (a)", "'a' is not NAME TYPE"),
        ("CREATE TABLE d.t (a NONSENSE)", "column a:.*NONSENSE"),
        ("CREATE TABLE d.t (a INT) STORED AS ORC", "at 'STORED' in line 1, column 26: expected COMMENT"),
        ("CREATE TABLE d.t (a INT) WITH (a)", "is not 'key' = 'value'"),
    ],
)
def test_ddl_that_is_not_understood_is_shown(ddl: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_ddl(ddl)


def test_arguments_say_what_a_list_of_columns_does_not(shop: Shop, place: Any) -> None:
    shop.run("create", "cli.listed", "--columns", "id BIGINT, v STRING, day STRING", "--primary-key", "id,day",
             "--partitioned-by", "day", "--bucket-key", "id", "--buckets", "3", "--comment", "mine",
             "-D", "team=blue")  # fmt: skip
    info = place.table("cli.listed").info
    assert (info.schema.primary_key, info.descriptor.partition_keys) == (("id", "day"), ("day",))
    assert (info.descriptor.bucket_keys, info.bucket_count, info.descriptor.comment) == (("id",), 3, "mine")
    assert info.descriptor.custom_properties == {"team": "blue"}


@pytest.mark.parametrize("ending", ["json", "parquet", "arrow", "csv"])
def test_a_table_survives_a_file_and_back(items: Shop, place: Any, ending: str) -> None:
    rows = ROWS
    if ending == "csv":  # which has no form for arrays
        rows = [{name: value for name, value in row.items() if name != "tags"} for row in ROWS]
    columns = [] if ending != "csv" else ["-c", ",".join(rows[0])]
    said = items.run("export", "cli.items", f"out.{ending}", *columns)
    assert said == f"exported 3 rows of cli.items to out.{ending}\n"
    place.table("cli.items").delete([1, 2, 3])
    items.run("load", "cli.items", f"out.{ending}")
    assert [{name: row[name] for name in rows[0]} for row in items.rows("cli.items")] == rows
    made = ["--create", "--primary-key", "id", "--buckets", "1"]
    assert f"created cli.of_{ending}" in items.run("load", f"cli.of_{ending}", f"out.{ending}", *made)
    assert [row["id"] for row in items.rows(f"cli.of_{ending}")] == [1, 2, 3]
    assert not (items.folder / f"out.{ending}.part").exists()


def test_files_of_other_programs_are_loaded_together_or_not_at_all(items: Shop, place: Any) -> None:
    pq.write_table(pa.table({"name": ["p"], "id": pa.array([10], pa.int32())}), "a.parquet")
    with ipc.new_stream("b.arrow", pa.schema([("id", pa.int64()), ("name", pa.string())])) as writer:
        writer.write_table(pa.table({"id": [11], "name": ["s"]}))
    items.run("load", "cli.items", "a.parquet", "b.arrow")
    assert [row["name"] for row in items.rows("cli.items")][3:] == ["p", "s"]
    Path("good.csv").write_text("id,name\n20,x\n")
    Path("bad.csv").write_text("id,name\n21,x\ny,z\n")
    assert "bad.csv: column 'id' (BIGINT), line 3: invalid value 'y'" in items.run(
        "load", "cli.items", "good.csv", "bad.csv", code=1
    )
    assert len(items.rows("cli.items")) == 5
    items.run("load", "cli.items", "good.csv", "bad.csv", "--no-transaction", code=1)
    assert [row["id"] for row in items.rows("cli.items")][5:] == [20]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "id,colour\n1,red\n", "the table has no column 'colour'; its columns are id, name"),
        ("a.json", '{"id": 1, "colour": 2}\n', "the table has no column 'colour'"),
        ("a.csv", "id,at\n1,soon\n", "a.csv: column at is TIMESTAMP"),
        ("a.csv", 'name,id\n"a\nb",1\nx,y\nz,y\n', "a.csv: column 'id' (BIGINT), line 4: invalid value 'y'"),
        ("a.csv", "id,price\n1,2.555\n", "a.csv: column 'price' (DECIMAL(10, 2)): Rescaling Decimal value"),
        ("a.csv", "id,bytes\n1,xyz\n", "column bytes is BYTES"),
        ("a.csv", "id,tags\n1,x\n", "column 'tags' is nested, which CSV has no form for"),
        ("a.json", '{"id": "x"}\n', "a.json: column 'id' is BIGINT, but the file has a string in row 0"),
        ("a.parquet", "nonsense", "a.parquet: "),
        ("a.arrow", "nonsense", "a.arrow: "),
        ("a.txt", "", "does not end like csv, json"),
    ],
)
def test_a_file_that_does_not_fit_is_named(items: Shop, name: str, text: str, said: str) -> None:
    Path(name).write_text(text)
    assert said in items.run("load", "cli.items", name, code=1)
    assert len(items.rows("cli.items")) == 3


def test_a_value_that_does_not_fit_has_its_line_where_there_is_one_core(items: Shop) -> None:
    Path("a.csv").write_text("name,id\nx,1\nx,y\n")
    cores = pa.cpu_count()
    pa.set_cpu_count(1)
    try:
        said = items.run("load", "cli.items", "a.csv", code=1)
    finally:
        pa.set_cpu_count(cores)
    assert "a.csv: column 'id' (BIGINT), line 3: invalid value 'y'" in said


def test_a_missing_file_table_or_column_is_named(items: Shop) -> None:
    assert "nowhere.csv: " in items.run("load", "cli.items", "nowhere.csv", code=1)
    assert "no table cli.nothing" in items.run("load", "cli.nothing", "items.json", code=1)
    assert "colour" in items.run("export", "cli.items", "x.csv", "-c", "colour", code=1)
    assert "no/where" in items.run("export", "cli.items", "no/where.csv", code=1)
    Path("a.file").touch()
    assert "a.file/x.csv.part: Not a directory" in items.run("export", "cli.items", "a.file/x.csv", code=1)
    Path("folder.json").mkdir()
    assert "folder.json: Is a directory" in items.run("export", "cli.items", "folder.json", code=1)
    assert not Path("folder.json.part").exists()
    assert "name a file" in items.run("export", "cli.items", "-", "--file-format", "parquet", code=1)


def test_some_rows_and_columns_are_exported_to_standard_output(items: Shop) -> None:
    words = ["export", "cli.items", "-", "-c", "id,name", "--where", "id < 3"]
    assert items.run(*words) == items.run(*words, "--file-format", "csv")
    assert sorted(items.run(*words).splitlines()) == ['1,"tea, ""green"""', '2,""', "id,name"]
    assert len(items.run("export", "cli.items", "-", "--file-format", "json", "-n", "2").splitlines()) == 2


def test_an_export_that_fails_leaves_no_file(items: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Any) -> Any:
        raise InvalidRequest("no more")
        yield

    monkeypatch.setattr(TableReader, "_read", failing)
    assert "no more" in items.run("export", "cli.items", "x.parquet", code=1)
    assert [path.name for path in Path().iterdir() if path.name.startswith("x")] == []


def test_tables_of_a_lake_are_created_filled_and_exported(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    Path("items.csv").write_text("id,name\n1,tea\n2,rum\n")
    for words in (
        ["create", "-w", "own", "shop.items", "--like", "items.csv", "--primary-key", "id"],
        ["load", "-w", "own", "shop.items", "items.csv"],
        ["export", "-w", "own", "lake.shop.items", "out.json", "--where", "id = 2"],
        ["sql", "-w", "own", "INSERT INTO shop.items VALUES (3, 'gin')", "-o", "csv"],
        ["sql", "-w", "own", "SELECT count(*) AS n FROM shop.items", "-o", "csv"],
    ):
        assert main(words) == 0
    assert Path("out.json").read_text() == '{"id": 2, "name": "rum"}\n'
    assert capsys.readouterr().out.endswith("n\n3\n")


# ---- sql ------------------------------------------------------------------------------------------------------------


def test_a_statement_prints_its_rows(items: Shop) -> None:
    assert items.run("sql", "SELECT id, name FROM cli.items WHERE id = 2") == "id  name\n--  ----\n 2\n(1 row)\n"
    assert items.run("sql", "SELECT id FROM cli.items WHERE id > 5", "-o", "csv") == "id\n"
    assert items.run("sql", "FROM cli.items SELECT id ORDER BY id", "-n", "1", "-o", "json") == '{"id": 1}\n'
    assert "ARROW_SCAN" in items.run("sql", "EXPLAIN SELECT id FROM cli.items")
    assert "DELETE is not supported" in items.run("sql", "DELETE FROM cli.items", code=1)


def test_statements_come_from_standard_input(items: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 1 AS a; -- one\nSELECT ';' AS b"))
    assert items.run("sql", "-o", "csv") == "a\n1\nb\n;\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("SELEC"))
    assert "not SQL" in items.run("sql", code=1)


def test_a_prompt_takes_statements_until_it_is_left(items: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    typed = iter(["SELECT 1", "  AS a;", "SELEC;", r"\o csv", "", "SELECT 2 AS b;", r"\d cli.items", r"\x", r"\q"])
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda _prompt: next(typed))
    assert main(["sql", "-b", items.server]) == 0
    printed = items.capsys.readouterr()
    assert "a\n-\n1\n(1 row)\n" in printed.out
    assert "b\n2\n" in printed.out
    assert "id,BIGINT" in printed.out
    assert r"\o FORMAT" in printed.out
    assert "not SQL" in printed.err


# ---- history, lag, bench --------------------------------------------------------------------------------------------


def test_the_history_of_a_key_says_who_has_it_and_why(shop: Shop, place: Any) -> None:
    options = {"table.datalake.enabled": "true"}
    table = place.create_table("fluss.keyed", {"id": "BIGINT", "v": "STRING"}, primary_key="id", options=options)
    assert "there is no row: no record in the log; the lake has no readable snapshot yet" in shop.run(
        "history", "fluss.keyed", "1"
    )
    table.upsert([{"id": 1, "v": "a"}, {"id": 2, "v": "z"}])
    tier_now(place, ["fluss.keyed"], ThreadRunner(1))
    (lag,) = [json.loads(line) for line in shop.run("lag", "-o", "json").splitlines()]
    assert (lag["table"], lag["records behind"], lag["seconds behind"]) == ("fluss.keyed", 0, 0)
    said = shop.run("history", "fluss.keyed", "1")
    assert "key 1: the lake has the row: its newest record is at offset" in said
    table.upsert([{"id": 1, "v": "b"}])
    found = [json.loads(line) for line in shop.run("history", "fluss.keyed", "1", "-o", "json", "-c", "v").splitlines()]
    *events, now = found
    assert [(event["change"], event["v"]) for event in events] == [
        ("insert", "a"), ("has", "a"), ("update_before", "a"), ("update_after", "b")
    ]  # fmt: skip
    assert "the stream overrides the lake" in now["now"]
    table.delete([1])
    assert "deleted in the stream, which overrides the lake" in shop.run("history", "fluss.keyed", "id=1")
    assert shop.run("history", "fluss.keyed", "5", "-o", "csv") == "where,offset,time,change,id,v\n"
    assert json.loads(shop.run("lag", "fluss.keyed", "-o", "json"))["records behind"] == 3
    shop.run("lag", "fluss.keyed", "--fail-after", "1000")
    assert main(["lag", "-b", shop.server, "--fail-after", "0"]) == 1


def test_only_tables_with_keys_have_a_history(shop: Shop, place: Any) -> None:
    place.create_table("fluss.plain", {"id": "BIGINT"}, ignore_if_exists=True)
    assert "is a log table and has no keys" in shop.run("history", "fluss.plain", "1", code=1)


def test_a_table_without_a_lake_is_not_behind_one(shop: Shop, place: Any) -> None:
    place.create_table("fluss.plain", {"id": "BIGINT"}, ignore_if_exists=True).append([{"id": 1}])
    assert "fluss.plain has no lake" in shop.run("lag", "fluss.plain", "--fail-after", "1000", code=1)


@pytest.mark.slow
def test_a_quick_measurement_leaves_nothing_behind(shop: Shop, place: Any) -> None:
    found = [json.loads(line) for line in shop.run("bench", "--rows", "20000", "-o", "json").splitlines()]
    assert [row["what"] for row in found][:4] == ["append", "scan, log table", "upsert", "scan, primary-key table"]
    assert all(row["per second"] > 0 and row["count"] > 0 for row in found)
    assert "forebay_bench" not in place.list_databases()
    assert "give at least 20000" in shop.run("bench", "--rows", "5", code=1)


def test_a_lake_is_opened_by_path_in_each_command(items: Shop) -> None:
    shop = items  # the statement shows its table
    assert "--lake 'x' is not NAME=WHERE" in shop.run("sql", "SELECT 1", "--lake", "x", code=1)
    Path(shop.folder, "none").mkdir()
    assert shop.run("sql", "SHOW TABLES", "--lake", f"own={shop.folder}/none", "-o", "json")


def test_restore_writes_the_rows_of_a_commit_back(shop: Shop) -> None:
    with forebay.connect(shop.server) as conn:
        conn.create_database("restored")
        table = conn.create_table("restored.t", {"id": "BIGINT", "v": "INT"}, primary_key="id")
        for v in (1, 2):
            with conn.transaction() as tx:
                tx.upsert(table, [{"id": i, "v": v} for i in range(v, v + 2)])
    words = ("restore", "restored.t", "--version", "1")
    assert shop.run(*words, "--dry-run") == "restored.t: 1 rows would be written back, 1 would be deleted\n"
    assert shop.run(*words) == "restored.t: 1 rows written back, 1 deleted\n"
    assert shop.rows("restored.t") == [{"id": 1, "v": 1}, {"id": 2, "v": 1}]
    assert "did not exist as of" in shop.run("restore", "restored.t", "--at", "2020-01-01", code=1)
