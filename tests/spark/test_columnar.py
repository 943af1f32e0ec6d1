"""Columns instead of rows from Python workers: the same values of all types, damaged messages, tasks that end early."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql.types import NullType, StringType, StructType

import forebay
from forebay.base.errors import UnsupportedOperation
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.server.embedded import EmbeddedServer
from forebay.spark.jvm import executor_classes
from forebay.spark.jvm.compiler import bytecodes, spark_class_loader
from forebay.spark.jvm.gateway import Jvm, once_per_jvm
from forebay.spark.jvm.spark_values import struct_type
from forebay.spark.reading import task_readers
from forebay.spark.reading.task_readers import messages_of
from forebay.spark.schemas import spark_arrow_schema
from tests.every_run import every_run
from tests.patience import PATIENCE
from tests.spark.columnar_rows import COLUMNS, both, row_of
from tests.spark.releases import SPARK
from tests.spark.tables import make_table, rows

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]

ROWS = 1000


@pytest.mark.one_in(2)
@pytest.mark.parametrize("key", ["", "id"], ids=["log", "key"])
def test_all_types_are_the_same_as_by_rows(spark: Any, connection: Connection, database: str, key: str) -> None:
    table = connection.create_table(f"{database}.t", COLUMNS, primary_key=key or (), buckets=2)
    given = [row_of(i) for i in range(ROWS)]
    (table.upsert if key else table.append)(given)
    query = f"SELECT * FROM forebay.{database}.t ORDER BY id"
    found = both(spark, query, direct=True)
    assert [row[0] for row in found] == list(range(ROWS))
    named = list(COLUMNS)
    for name in ("flag", "tiny", "small", "number", "double", "short_decimal", "long_decimal", "text", "day", "data"):
        assert [row[named.index(name)] for row in found] == [row[name] for row in given], name
    assert [row[named.index("moment")] for row in found] == [row["moment"] for row in given]
    for asked in (
        "SELECT get(part.c.e, 0), by_name['k0'], id FROM {} WHERE text LIKE '%7' ORDER BY id",
        "SELECT size(nested), get(get(nested, 2), 1), numbers FROM {} ORDER BY id, 1",
        "SELECT count(*) FROM {}",
        "SELECT count(*) FROM {} WHERE id < 0",
        "SELECT id, text FROM {} WHERE id < 0",
        "SELECT text, max(double), min(instant) FROM {} GROUP BY text ORDER BY 1, 2",
        "SELECT part, min_by(parts, id), max(text) FROM {} GROUP BY part ORDER BY max(id)",
        "SELECT data, id, flag FROM {} ORDER BY id LIMIT 7",
    ):
        both(
            spark,
            asked.format(f"forebay.{database}.t"),
            direct="count(*)" not in asked and "part.c" not in asked,
        )


@pytest.mark.skipif(SPARK < (4, 1), reason="Spark has TIME from 4.1 on")
def test_times_are_the_same_as_by_rows(spark: Any, connection: Connection, database: str) -> None:
    table = connection.create_table(f"{database}.t", {"id": "INT", "t": "TIME(6)"})
    column = pa.array([0, 86_399_999_000, None, 43_200_001_000], pa.time64("us"))
    table.append(pa.table({"id": pa.array([0, 1, 2, 3], pa.int32()), "t": column}))
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        found = both(spark, f"SELECT cast(t AS string) FROM forebay.{database}.t ORDER BY id")
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")
    assert found == [("00:00:00",), ("23:59:59.999",), (None,), ("12:00:00.001",)]


def test_changelogs_and_metadata_columns_are_the_same_as_by_rows(
    spark: Any, connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.t", ["id"], buckets=2)
    table.upsert(rows(0, 500))
    table.upsert(rows(100, 200))
    table.delete([{"id": i} for i in range(50)])
    name = f"forebay.{database}"
    kinds = both(spark, f"SELECT _change_type, count(*) FROM {name}.`t$changelog` GROUP BY 1 ORDER BY 1")
    assert kinds == [("delete", 50), ("insert", 500), ("update_after", 100), ("update_before", 100)]
    both(spark, f"SELECT * FROM {name}.`t$binlog` ORDER BY _log_offset, _change_type, after, before")
    both(spark, f"SELECT __bucket, id FROM {name}.t ORDER BY id")


def test_without_rows_or_without_columns_there_is_a_count(spark: Any, connection: Connection, database: str) -> None:
    make_table(connection, f"{database}.t")
    assert both(spark, f"SELECT count(*) FROM forebay.{database}.t", direct=True) == [(0,)]
    assert both(spark, f"SELECT * FROM forebay.{database}.t", direct=True) == []


def test_a_wide_table_is_read_without_generated_code(spark: Any, connection: Connection, database: str) -> None:
    columns = {f"c{i}": "STRING" if i % 2 else "INT" for i in range(150)}
    table = connection.create_table(f"{database}.t", columns)
    table.append([{f"c{i}": f"v{n}" if i % 2 else n for i in range(150)} for n in range(300)])
    assert len(both(spark, f"SELECT * FROM forebay.{database}.t ORDER BY c0")) == 300


# ---- messages -------------------------------------------------------------------------------------------------------


def test_large_batches_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"n": pa.array(range(1000), pa.int64()), "t": pa.array(["x" * 90] * 1000)})
    whole = list(messages_of(batch))
    assert [len(message) for message in whole] == [1]
    monkeypatch.setattr(task_readers, "MESSAGE_BYTES_MAX", 20_000)
    parts = list(messages_of(batch))
    assert len(parts) == 8
    found = [pa.ipc.read_record_batch(message.column(0).buffers()[2], batch.schema) for message in parts]
    assert pa.Table.from_batches(found).combine_chunks() == pa.Table.from_batches([batch]).combine_chunks()
    assert all(part.num_rows <= 125 for part in found)
    monkeypatch.setattr(task_readers, "_TEXT_BYTES_MAX", 100)
    with pytest.raises(UnsupportedOperation, match=r"a row of \d+ bytes is too large for Spark"):
        list(messages_of(batch))


READ_ALL = """
import java.io.IOException;
import java.util.Arrays;
import java.util.Random;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads messages that were changed, between bytes that are not theirs. */
public class ReadAll {
    private static final int MARGIN = 1 << 16;
    private static final int[] NUMBERS = new int[] {
        0, 1, -1, 7, 8, 64, 1000, 1 << 20, Integer.MAX_VALUE, Integer.MIN_VALUE, 0x7fffff00};
    private final StructType schema;
    private final byte[] message;
    private int sound = 0;
    private int damaged = 0;

    public ReadAll(StructType schema, byte[] message) {
        this.schema = schema;
        this.message = message;
    }

    public int sound() { return sound; }

    public int damaged() { return damaged; }

    /** What is in all values; "damaged" and why. */
    public String read(byte[] changed, int length, int fill) {
        byte[] data = new byte[changed.length + 2 * MARGIN];
        Arrays.fill(data, (byte) fill);
        System.arraycopy(changed, 0, data, MARGIN, changed.length);
        long digest = 1;
        int count = 0;
        try {
            ColumnarBatch batch = new ForebayArrow(schema, null).read(data, MARGIN, length, 0, -1);
            UnsafeProjection copy = UnsafeProjection.create(schema);
            for (int i = 0; i < Math.min(batch.numRows(), 5000); i++) {
                UnsafeRow row = copy.apply((InternalRow) batch.getRow(i));
                digest = digest * 31 + row.hashCode();
                count++;
            }
        } catch (IOException e) {
            return "damaged: " + e.getMessage();
        } catch (ArithmeticException e) {
            return count + " rows " + digest + ", then a number that is too large";
        }
        return count + " rows " + digest;
    }

    /** Null; or what differs with other bytes around a changed message, so that it must have been read from there. */
    public String fuzz(long seed, int turns) {
        Random random = new Random(seed);
        for (int turn = 0; turn < turns; turn++) {
            byte[] changed = (byte[]) message.clone();
            int length = message.length;
            int changes = 1 + random.nextInt(3);
            for (int i = 0; i < changes; i++) {
                int within = random.nextInt(3) == 0 ? length : Math.min(length, 2000);
                int at = random.nextInt(within);
                if (random.nextInt(3) == 0) {
                    changed[at] = (byte) random.nextInt();
                } else {
                    int number = NUMBERS[random.nextInt(NUMBERS.length)];
                    int start = at / 4 * 4;
                    for (int j = 0; j < 4 && start + j < length; j++) { changed[start + j] = (byte) (number >> 8 * j); }
                }
            }
            if (random.nextInt(8) == 0) { length = random.nextInt(length); }
            String found = read(changed, length, 0);
            String other = read(changed, length, -1);
            if (!found.equals(other)) { return "seed " + seed + " turn " + turn + ": " + found + " <> " + other; }
            if (found.startsWith("damaged")) { damaged++; } else { sound++; }
        }
        return null;
    }
}
"""


@pytest.fixture(scope="session")
def read_all(spark: Any) -> Callable[[StructType, bytes], Any]:
    """Makes objects of the class `ReadAll`, which is compiled together with the readers of Arrow."""
    jvm = Jvm.of(spark)
    lines = [*READ_ALL.splitlines(), *executor_classes.executor_source("ForebayColumnarFactory").splitlines()]
    imports = dict.fromkeys(line for line in lines if line.startswith("import "))
    compiler = jvm.class_("org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(spark_class_loader(jvm))
    compiler.cook("\n".join([*imports, *(line for line in lines if line not in imports)]))
    made = compiler.getClassLoader().loadClass("ReadAll").getConstructors()[0]
    return lambda schema, message: made.newInstance(jvm.array("java.lang.Object", [struct_type(jvm, schema), message]))


def test_classes_compile_without_what_early_releases_lack(spark: Any) -> None:
    source = executor_classes.executor_source("ForebayColumnarFactory")
    without = executor_classes.without_later_method(source)
    assert len(source.splitlines()) - len(without.splitlines()) == 3
    assert "ForebayColumnarFactory" in bytecodes(Jvm.of(spark), without)


def batch_of_all_types(spark: Any, connection: Connection, database: str) -> tuple[Any, pa.RecordBatch]:
    table: Table = connection.create_table(f"{database}.t", COLUMNS)
    table.append([row_of(i) for i in range(200)])
    schema = spark.table(f"forebay.{database}.t").schema
    return schema, table.scan().to_arrow().cast(spark_arrow_schema(schema), safe=False).combine_chunks().to_batches()[0]


def sent(batch: pa.RecordBatch, compression: str | None) -> bytes:
    """The message of `batch`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    _, message, *_ = pa.ipc.MessageReader.open_stream(sink.getvalue())
    data: bytes = message.serialize().to_pybytes()
    return data


@pytest.mark.one_in(3)
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("seed", every_run(range(20), lambda seed: seed == 0))
def test_damaged_messages_are_errors_and_no_byte_outside_is_read(
    spark: Any, connection: Connection, database: str, read_all: Any, seed: int, compression: str | None
) -> None:
    schema, batch = batch_of_all_types(spark, connection, database)
    message = sent(batch, compression)
    reader = read_all(schema, message)
    assert reader.read(message, len(message), 0).startswith("200 rows ")
    assert reader.fuzz(seed, 1000) is None
    assert reader.sound() > 50
    assert reader.damaged() > 500


@pytest.mark.parametrize(
    "column",
    [
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), ["a", "b"]),
        pa.nulls(3),
        pa.array([1, 2, 3], pa.int64()),
        pa.array(["a", "b", "c"], pa.large_string()),
        pa.array([["a"], ["b"], ["c"]]),
    ],
    ids=["dictionary", "null", "number", "large", "list"],
)
def test_columns_of_other_types_are_errors(read_all: Any, column: pa.Array) -> None:
    data = pa.record_batch([column], ["t"]).serialize().to_pybytes()
    found = read_all(StructType().add("t", StringType()), data).read(data, len(data), 0)
    assert found.startswith("damaged: a record batch in Arrow's format is damaged")


def test_nulls_and_no_columns_are_read(read_all: Any) -> None:
    nulls = sent(pa.record_batch([pa.nulls(3)], ["t"]), None)
    assert read_all(StructType().add("t", NullType()), nulls).read(nulls, len(nulls), 0).startswith("3 rows ")
    none = pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([]))).serialize().to_pybytes()
    assert read_all(StructType([]), none).read(none, len(none), 0).startswith("5 rows ")
    schema_message = pa.schema([("t", pa.null())]).serialize().to_pybytes()
    read = read_all(StructType().add("t", NullType()), schema_message)
    assert read.read(schema_message, len(schema_message), 0).endswith("and no record batch")


# ---- tasks ----------------------------------------------------------------------------------------------------------


def workers() -> list[psutil.Process]:
    """The Python workers below this process."""
    return [p for p in psutil.Process().children(recursive=True) if "python" in p.name()]


def test_tasks_that_need_few_rows_end_early_and_leave_no_memory(
    spark: Any, connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.t", buckets=2)
    for start in range(0, 400_000, 100_000):
        table.append(rows(start, start + 100_000))
    frame = spark.table(f"forebay.{database}.t")
    arrow = spark._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()
    before = arrow.getAllocatedMemory()
    for _ in range(5):
        assert len(frame.where("amount >= 0").limit(3).collect()) == 3
        assert len(frame.where("amount >= 0").take(2)) == 2
    count = len(workers())
    for _ in range(5):
        assert len(frame.where("amount >= 0").limit(3).collect()) == 3
    assert len(workers()) <= count
    assert arrow.getAllocatedMemory() == before
    assert frame.count() == 400_000


def test_an_attempt_that_fails_part_of_the_way_is_read_again(spark: Any, connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.t", buckets=1)
    table.append(rows(0, 100_000))

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            task = TaskContext.get()
            if number == 3 and task is not None and task.attemptNumber() == 0:
                raise RuntimeError("the first attempt fails")
            yield batch

    frame = spark.table(f"forebay.{database}.t")
    found = frame.mapInArrow(fail_once, frame.schema).selectExpr("count(*)", "sum(id)").collect()
    assert [tuple(row) for row in found] == [(100_000, 4_999_950_000)]


def test_spark_counts_rows_and_not_messages(spark: Any, connection: Connection, database: str) -> None:
    make_table(connection, f"{database}.t").append(rows(0, 5000))
    frame = spark.read.option("read.direct", "false").table(f"forebay.{database}.t")
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    scan = plan.collectLeaves().head()
    assert scan.metrics().apply("numOutputRows").value() == 5000
    assert scan.metrics().apply("pythonDataReceived").value() > 5000 * 16
    assert scan.metrics().apply("pythonDataSent").value() > 0


def test_where_java_cannot_be_compiled_rows_are_read(
    spark: Any, connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    table = make_table(connection, f"{database}.t")
    table.append(rows(0, 10))
    maker = task_readers._maker_for.__wrapped__
    monkeypatch.setattr(task_readers, "_maker_for", once_per_jvm(lambda jvm, artifacts: maker(jvm, artifacts)))

    def fail(*_: Any) -> Any:
        raise UnsupportedOperation("no compiler")

    monkeypatch.setattr(executor_classes, "executor_class", fail)
    frame = spark.table(f"forebay.{database}.t")
    assert "by rows: no compiler" in frame._jdf.queryExecution().executedPlan().toString()
    assert frame.count() == 10
    assert caplog.text.count("scans by Python tasks give rows") == 1


CLUSTER = """
import sys, threading, time
import forebay.spark as fb
from pyspark.sql import functions

conf = {"spark.ui.enabled": False, "spark.log.level": "OFF", "spark.executorEnv.PYTHONPATH": sys.argv[2]}
spark = fb.session("columns", "local-cluster[2,1,1024]", conf, bootstrap_servers=sys.argv[1])
frame = spark.table("forebay.db.t")
assert "by columns" in frame._jdf.queryExecution().executedPlan().toString()
log = spark.table("forebay.db.log")
assert "logs without Python" in log._jdf.queryExecution().executedPlan().toString()
for each in (frame, log):
    print(each.selectExpr("count(*)", "sum(id)", "max(name)").collect()[0])

def running():
    stages = [tracker.getStageInfo(n) for job in tracker.getActiveJobsIds() for n in tracker.getJobInfo(job).stageIds]
    return any(stage is not None and stage.numActiveTasks for stage in stages)

def cancel():
    while not running():
        time.sleep(0.05)
    time.sleep(1)
    spark.sparkContext.cancelAllJobs()

tracker = spark.sparkContext.statusTracker()
stopper = threading.Thread(target=cancel)
stopper.start()
slow = functions.udf(lambda n: time.sleep(0.01) or n, "bigint")
try:
    frame.select(functions.sum(slow("id"))).collect()
except Exception as e:
    assert "cancel" in str(e).lower(), e
    print("cancelled")
stopper.join()
print(frame.count())
session = spark.newSession()
fb.attach(session, "forebay", bootstrap_servers=sys.argv[1])
print(session.table("forebay.db.t").where("id = 7").collect()[0].name)
spark.stop()
"""


@pytest.mark.slow
def test_executors_of_their_own_give_columns_and_outlive_a_cancelled_job(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server:
        with forebay.connect(server.bootstrap_servers) as conn:
            conn.create_database("db")
            make_table(conn, "db.t", ["id"], buckets=4).upsert(rows(0, 50_000))
            make_table(conn, "db.log", buckets=4).append(rows(0, 50_000))
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
        path = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, "-c", CLUSTER, server.bootstrap_servers, path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    first, second, *rest = done.stdout.splitlines()
    assert first == second == "Row(count(1)=50000, sum(id)=1249975000, max(name)='n9999')"
    assert rest == ["cancelled", "50000", "n7"]
