"""The checks of the transfers' test detect the faults that they are for."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from tests.invariants.bank import (
    ACCOUNT_SCHEMA,
    ACCOUNTS,
    EACH,
    JOURNAL_SCHEMA,
    Bank,
    check_banks,
    check_instant,
    check_journal,
)
from tests.invariants.streams import ChangelogStream

Rows = list[dict[str, int]]


@pytest.fixture
def banks() -> list[Bank]:
    """Two banks of a writer: both opened (0, 1), a transfer in each (2, 3), an account of the second closed (4, 5)."""
    first, second = Bank(0), Bank(1)
    first.begin(0, dict.fromkeys(range(ACCOUNTS), EACH))
    second.begin(1, dict.fromkeys(range(ACCOUNTS), EACH))
    first.begin(2, {0: EACH - 10, 1: EACH + 10})
    second.begin(3, {0: EACH - 5, 1: EACH + 5})
    second.begin(4, {2: 0, 3: 2 * EACH})
    second.begin(5, {2: None})
    return [first, second]


def rows_of(bank: Bank, operation: int) -> Rows:
    """The rows of a bank as the table holds them after an operation."""
    found: dict[int, dict[str, int]] = {}
    for number, changes in zip(bank.operations, bank.changes):
        for account, amount in changes.items() if number <= operation else ():
            found.pop(account, None)
            if amount is not None:
                found[account] = {"bank": bank.number, "account": account, "amount": amount, "operation": number}
    return list(found.values())


def table(*parts: Rows) -> pa.Table:
    return pa.Table.from_pylist([row for part in parts for row in part], schema=ACCOUNT_SCHEMA)


def check(banks: list[Bank], *parts: Rows, least: Mapping[int, int] | None = None) -> dict[int, int]:
    return check_banks(table(*parts), banks, least or {})


def test_each_bank_may_be_as_it_was_after_any_of_its_operations(banks: list[Bank]) -> None:
    first, second = banks
    for i, operation in enumerate(second.operations):
        found = check(banks, rows_of(first, 2), rows_of(second, operation))
        assert found == {0: 2, 1: second.operations[i]}
    assert check(banks, [], []) == {0: -1, 1: -1}


def test_a_model_with_many_operations_knows_each_of_its_states() -> None:
    bank, states = Bank(0), []
    bank.begin(0, dict.fromkeys(range(ACCOUNTS), EACH))
    for operation in range(1, 300):
        payer, taker = operation % ACCOUNTS, (operation + 3) % ACCOUNTS
        bank.begin(2 * operation, {payer: bank.state[payer] - 1, taker: bank.state[taker] + 1})
        states.append(dict(bank.state))
    assert [bank.after(2 * operation) for operation in range(1, 300)] == states
    assert bank.after(401) == bank.after(400)


def test_half_a_transfer_is_found(banks: list[Bank]) -> None:
    first, second = banks
    half = [row for row in rows_of(first, 2) if row["account"] != 1] + [rows_of(first, 0)[1]]
    with pytest.raises(AssertionError, match="bank 0 holds 790, not 800"):
        check(banks, half, rows_of(second, 5))


def test_a_state_that_never_was_is_found_though_its_sum_is_right(banks: list[Bank]) -> None:
    first, second = banks
    wrong = rows_of(second, 3)
    wrong[-1] = {**wrong[-1], "operation": 4}
    with pytest.raises(AssertionError, match="bank 1 was never like this"):
        check(banks, rows_of(first, 2), wrong)


def test_an_account_that_is_there_twice_or_not_at_all_is_found(banks: list[Bank]) -> None:
    first, second = banks
    rows = rows_of(first, 2)
    with pytest.raises(AssertionError, match="account 0 of bank 0 is there twice"):
        check(banks, rows, rows_of(first, 0)[:1], rows_of(second, 5))
    with pytest.raises(AssertionError, match="bank 0 holds"):
        check(banks, rows[1:], rows_of(second, 5))


def test_a_deleted_row_that_comes_back_is_found(banks: list[Bank]) -> None:
    first, second = banks
    later = {3: 2 * EACH - 1, 1: EACH + 6}
    second.begin(6, later)
    back = [*rows_of(second, 6), {"bank": 1, "account": 2, "amount": 0, "operation": 4}]
    with pytest.raises(AssertionError, match="bank 1 was never like this"):
        check(banks, rows_of(first, 2), back)


def test_a_read_that_ends_before_what_was_acknowledged_is_found(banks: list[Bank]) -> None:
    first, second = banks
    assert check(banks, rows_of(first, 2), rows_of(second, 5), least={0: 2, 1: 5}) == {0: 2, 1: 5}
    with pytest.raises(AssertionError, match="bank 1: operation 5 was there, this read ends at 4"):
        check(banks, rows_of(first, 2), rows_of(second, 4), least={0: 2, 1: 5})
    with pytest.raises(AssertionError, match="bank 0 is gone"):
        check(banks, [], rows_of(second, 5), least={0: 0})


def test_at_one_instant_no_effect_is_there_without_its_cause(banks: list[Bank]) -> None:
    first, second = banks
    for operation in range(6):
        check_instant(table(rows_of(first, operation), rows_of(second, operation)), [banks], {})
    check(banks, rows_of(first, 0), rows_of(second, 3))  # where each bank has a moment of its own
    with pytest.raises(AssertionError, match="never so at one instant; operation 3 is the newest"):
        check_instant(table(rows_of(first, 0), rows_of(second, 3)), [banks], {})


def test_entries_of_the_journal_add_up_and_are_there_once_and_from_the_first_on(banks: list[Bank]) -> None:
    banks[0].journal, banks[1].journal = [2, 6], [3, 4]

    def entries(*operations: tuple[int, int], moved: int = 5) -> pa.Table:
        parts = [{"account": 0, "moved": -5}, {"account": 1, "moved": moved}]
        pairs = [{"bank": b, "operation": o, **part} for b, o in operations for part in parts]
        return pa.Table.from_pylist(pairs, schema=JOURNAL_SCHEMA)

    assert check_journal(entries((0, 2), (1, 3), (1, 4)), banks, {0: 1}) == {0: 1, 1: 2}
    with pytest.raises(AssertionError, match="do not add up"):
        check_journal(entries((0, 2), moved=4), banks, {})
    with pytest.raises(AssertionError, match="do not add up"):
        check_journal(entries((0, 2), (0, 2)), banks, {})
    with pytest.raises(AssertionError, match="transfers of bank 0 are missing"):
        check_journal(entries((0, 6)), banks, {})
    with pytest.raises(AssertionError, match="the last 1 transfers of bank 1 are missing"):
        check_journal(entries((1, 3)), banks, {1: 2})


def test_changes_that_do_not_fit_what_a_stream_has_delivered_are_found(banks: list[Bank]) -> None:
    def change(kind: str, amount: int, offset: int) -> dict[str, object]:
        log = {"_change_type": kind, "_log_offset": offset, "_commit_timestamp": None}
        return {**log, "bank": 0, "account": 1, "amount": amount, "operation": 0}

    def stream(*changes: tuple[str, int]) -> None:
        sink = ChangelogStream("fluss.accounts", banks, 0)
        for offset, (kind, amount) in enumerate(changes):
            sink.apply(change(kind, amount, offset))

    stream(("insert", 5), ("update_before", 5), ("update_after", 6), ("delete", 6), ("insert", 7))
    for wrong in ("update_before", 4), ("delete", 4), ("insert", 5):
        with pytest.raises(AssertionError, match="and the stream has"):
            stream(("insert", 5), wrong)
    with pytest.raises(AssertionError, match="and the stream has None"):
        stream(("delete", 5))
