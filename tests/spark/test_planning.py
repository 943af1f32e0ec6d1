"""Grouping splits into tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.metadata.table import TableBucket
from forebay.spark.reading import live_plan, plan
from forebay.spark.reading.live_plan import cut_logs, cut_logs_for_limit, plan_kv
from forebay.spark.reading.plan import ROWS_PER_TASK_MIN, spread, task_count
from forebay.unionread.splits import KvBucketSplit, LogSplit

BIG = ROWS_PER_TASK_MIN


def bucket(number: int) -> TableBucket:
    return TableBucket(1, number)


def test_a_scan_has_as_many_tasks_as_its_rows_are_worth_and_at_most_two_for_each_core() -> None:
    assert [task_count(rows, 4) for rows in (0, 1, BIG, BIG + 1, 5 * BIG, 100 * BIG)] == [1, 1, 1, 2, 5, 8]
    assert task_count(None, 4) == 8
    assert task_count(None, 4, pieces=3) == 3
    assert task_count(100 * BIG, 0) == 1


_ranges = st.dictionaries(
    st.integers(0, 30).map(bucket),
    st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)).map(lambda r: (min(r), max(r))),
    max_size=20,
)


@given(_ranges, st.integers(1, 16), st.none() | st.integers(10_000, 10**7))
def test_logs_are_cut_into_equal_tasks_that_cover_every_offset_once(
    offsets: dict[TableBucket, tuple[int, int]], cores: int, most: int | None
) -> None:
    tasks = cut_logs(offsets, cores, most)
    covered: dict[TableBucket, int] = {b: start for b, (start, _) in offsets.items()}
    for split in (split for task in tasks for split in task):
        assert isinstance(split, LogSplit)
        assert split.start == covered[split.bucket] < split.stop  # in order, without gap
        covered[split.bucket] = split.stop
    assert covered == {b: stop if start < stop else start for b, (start, stop) in offsets.items()}
    sizes = [sum(split.rows for split in task) for task in tasks]
    assert len(set(sizes[:-1])) <= 1
    assert all(size <= sizes[0] for size in sizes)
    if most is not None:
        assert all(size <= most for size in sizes)
    else:
        assert len(tasks) <= 2 * cores


@given(_ranges, st.integers(0, 10**7))
def test_a_limit_on_logs_takes_the_first_offsets_and_no_more(
    offsets: dict[TableBucket, tuple[int, int]], limit: int
) -> None:
    tasks = cut_logs_for_limit(offsets, limit)
    assert len(tasks) <= 1
    taken = sum(split.rows or 0 for task in tasks for split in task)
    assert taken == min(limit, sum(stop - start for start, stop in offsets.values()))


_counts = st.dictionaries(st.integers(0, 300).map(bucket), st.none() | st.integers(0, 10**7), max_size=40)


@given(_counts, st.integers(1, 16), st.none() | st.integers(1, 10**6))
def test_every_bucket_is_scanned_by_exactly_one_task(
    counts: dict[TableBucket, int | None], cores: int, limit: int | None
) -> None:
    tasks = plan_kv(counts, cores, limit)
    assert sorted(split.bucket.bucket for task in tasks for split in task) == sorted(b.bucket for b in counts)
    assert all(tasks)
    assert len(tasks) <= 2 * cores
    if limit is not None and limit <= plan.LIMIT_ONE_TASK_MAX:
        assert len(tasks) <= 1


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60), st.integers(1, 8))
def test_a_task_has_at_most_the_average_before_its_last_split(sizes: list[int], tasks: int) -> None:
    """What dealing out the largest first guarantees: a split goes to the task that has the least."""
    splits = [KvBucketSplit(bucket(number), rows) for number, rows in enumerate(sizes)]
    for task in spread(splits, tasks):
        rows = [split.rows or 0 for split in task]
        last = min(rows, default=0)
        assert (sum(rows) - last) * tasks <= sum(sizes) - last


def test_buckets_of_unknown_size_count_as_much_as_the_average() -> None:
    tasks = spread([KvBucketSplit(bucket(n), rows) for n, rows in enumerate([100, None, 100, None])], 2)
    assert sorted(len(task) for task in tasks) == [2, 2]


def test_a_table_of_few_rows_is_read_by_one_task_however_many_buckets_it_has() -> None:
    assert len(plan_kv({bucket(n): 10 for n in range(200)}, 8)) == 1


def test_rows_are_estimated_unless_some_bucket_does_not_count() -> None:
    tasks = plan_kv({bucket(0): 10, bucket(1): 20}, 4)
    assert live_plan.estimated_rows(tasks) == 30
    assert live_plan.estimated_rows(tasks, limit=7) == 7
    assert live_plan.estimated_rows(plan_kv({bucket(0): None}, 4)) is None
    assert live_plan.estimated_rows([]) == 0
