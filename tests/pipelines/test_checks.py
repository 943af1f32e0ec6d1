"""The checks of the invariant detect the faults that they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.actors import Delivery
from tests.pipelines.lake import (
    AFTER,
    APPEND,
    BATCH_ROWS,
    BEFORE,
    DELETE,
    INSERT,
    KEYED,
    KEYS,
    Change,
    check_once,
    check_order,
    check_table,
    fold,
    key_of,
    newest,
    rows_of_batch,
)
from tests.pipelines.live_pipelines import assert_each_key_in_order, unique, without_repeats

ROWS = [row for batch in range(3) for row in rows_of_batch(batch)]
IN_ORDER: list[Change] = [(INSERT, row["k"], row["id"]) for row in ROWS]
ONE_BUCKET = dict.fromkeys(range(KEYS), 0)


def test_a_row_that_is_missing_doubled_or_unknown_is_found() -> None:
    check_once("t", [2, 0, 1], 3)
    for wrong, told in (([0, 2], "1 rows never"), ([0, 0, 1, 2], "more than once"), ([0, 1, 2, 3], "nobody wrote")):
        with pytest.raises(AssertionError, match=told):
            check_once("t", wrong, 3)


def test_a_table_must_have_whole_micro_batches_and_those_that_were_committed() -> None:
    assert check_table(APPEND, ROWS, 3) == 3
    for wrong, told in ((ROWS[:-1], "in part"), (ROWS[1:], "never came"), ([*ROWS, ROWS[5]], "more than once")):
        with pytest.raises(AssertionError, match=told):
            check_table(APPEND, wrong, 3)
    with pytest.raises(AssertionError, match="4 micro-batches were committed"):
        check_table(APPEND, ROWS, 4)
    with pytest.raises(AssertionError):
        check_table(APPEND, [*ROWS[:-1], {"k": ROWS[-1]["k"] + 1, "id": ROWS[-1]["id"]}], 3)


def test_a_table_with_a_key_must_have_the_newest_row_of_each() -> None:
    rows = [{"k": k, "id": i} for k, i in newest(len(ROWS)).items()]
    assert len(rows) == KEYS < len(ROWS)
    assert check_table(KEYED, rows, 3) == 3
    old = {"k": key_of(0), "id": 0}
    assert newest(len(ROWS))[old["k"]] != 0
    for wrong in ([old if row["k"] == old["k"] else row for row in rows], [*rows, rows[3]], [old, *rows]):
        with pytest.raises(AssertionError):
            check_table(KEYED, wrong, 3)


def test_rows_out_of_order_are_found_within_a_bucket_and_not_between_buckets() -> None:
    check_order("t", IN_ORDER, ONE_BUCKET)
    swapped = [*IN_ORDER[BATCH_ROWS:], *IN_ORDER[:BATCH_ROWS]]
    with pytest.raises(AssertionError, match="has batch 0 after 2"):
        check_order("t", swapped, ONE_BUCKET)
    within: list[Change] = [(INSERT, 4, 8), (INSERT, 4, 7)]
    with pytest.raises(AssertionError, match="key 4 has row 7 after 8"):
        check_order("t", within, ONE_BUCKET)
    check_order("t", [(INSERT, 1, BATCH_ROWS), (INSERT, 2, 0)], {1: 0, 2: 1})


def test_a_changelog_is_folded_and_every_change_must_fit() -> None:
    assert fold("t", [(INSERT, 1, 0), (BEFORE, 1, 0), (AFTER, 1, 5), (INSERT, 2, 1), (DELETE, 2, 1)]) == {1: 5}
    wrong: list[list[Change]] = [
        [(INSERT, 1, 0), (INSERT, 1, 5)],
        [(INSERT, 1, 0), (BEFORE, 1, 3), (AFTER, 1, 5)],
        [(BEFORE, 1, 0)],
        [(AFTER, 1, 0)],
        [(INSERT, 1, 5), (BEFORE, 1, 5), (AFTER, 1, 4)],
        [(INSERT, 1, 0), (BEFORE, 1, 0)],
        [(DELETE, 1, 0)],
    ]
    for changes in wrong:
        with pytest.raises(AssertionError):
            fold("t", changes)


def test_each_key_has_all_its_steps_in_the_changelog_in_order() -> None:
    steps = [(1, 10), (2, 11), (1, 12), (2, None), (2, None), (1, 13), (2, 14)]
    right = [
        ("insert", 1, 10), ("insert", 2, 11), ("update_before", 1, 10), ("update_after", 1, 12), ("delete", 2, 11),
        ("update_before", 1, 12), ("update_after", 1, 13), ("insert", 2, 14),
    ]  # fmt: skip
    assert_each_key_in_order(right, steps, is_once=True)
    repeated = [*right, ("update_before", 1, 13), ("update_after", 1, 12), ("update_before", 1, 12)]
    repeated.append(("update_after", 1, 13))
    assert_each_key_in_order(repeated, steps, is_once=False)
    lost_delete = [change for change in right if change[0] != "delete"]
    for wrong in (right[:-1], lost_delete, [*right, right[-1]], [*right[:2], *right[4:], *right[2:4]], repeated):
        with pytest.raises(AssertionError):
            assert_each_key_in_order(wrong, steps, is_once=True)
    for wrong in (right[:-1], repeated[:-1]):
        with pytest.raises(AssertionError):
            assert_each_key_in_order(wrong, steps, is_once=False)


def test_a_key_that_has_two_rows_and_a_row_that_is_lost_among_repeats_are_found() -> None:
    assert unique([(1, "a"), (2, "b")]) == {1: "a", 2: "b"}
    with pytest.raises(AssertionError, match="key 1 has two rows"):
        unique([(1, "a"), (1, "a")])
    assert without_repeats([{"n": 1}, {"n": 1}, {"n": 2}]) == [{"n": 1}, {"n": 2}]
    assert without_repeats([{"n": 1}, {"n": 2, "v": 1}, {"n": 2, "v": 2}]) != [{"n": 1}, {"n": 2, "v": 1}]


def test_a_micro_batch_that_comes_again_with_other_rows_is_found(tmp_path: Path) -> None:
    delivery = Delivery(tmp_path, "one", APPEND)
    delivery.deliver(0, IN_ORDER[:3])
    delivery.deliver(0, IN_ORDER[:3])
    delivery.deliver(1, IN_ORDER[3:5])
    assert delivery.changes() == IN_ORDER[:5]
    delivery.deliver(0, IN_ORDER[:2])
    with pytest.raises(AssertionError, match="came again"):
        delivery.changes()
