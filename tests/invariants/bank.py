"""Accounts, the transfers between them, and what a read at any time may find.

A *bank* is a bucket key: its accounts are in one bucket, so a transfer (one upsert of all accounts that it touches) is
visible completely or not at all. A writer has several banks, in different buckets, and writes them one after the other.
Every row has the number of the writer's operation that wrote it. So a read of one bank must equal the model's state
after one of its operations, and a read of all banks at one point in time the state of all of them after one operation.
"""

from __future__ import annotations

import bisect
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from forebay.client.table import Table
from tests.patience import PATIENCE

ACCOUNTS, EACH = 8, 100
TOTAL = ACCOUNTS * EACH
"""What every bank holds, always."""

BANKS_PER_WRITER = 2
PAUSE_SECONDS_MAX = 0.02
_STATE_EVERY = 64

Changes = Mapping[int, int | None]
"""New amounts by account; None: the account is closed (its row is deleted)."""

ACCOUNT_SCHEMA = pa.schema(
    [
        pa.field("bank", pa.int32(), nullable=False),
        pa.field("account", pa.int32(), nullable=False),
        ("amount", pa.int64()),
        ("operation", pa.int64()),
    ]
)
JOURNAL_SCHEMA = pa.schema(
    [("bank", pa.int32()), ("operation", pa.int64()), ("account", pa.int32()), ("moved", pa.int64())]
)


@dataclass
class Bank:
    """The model of one bank. One thread changes it, others read it meanwhile: lists only ever grow.

    `acknowledged` is the last operation that the server has confirmed, and `journaled` how many transfers of the
    journal it has.
    """

    number: int
    operations: list[int] = field(default_factory=list)
    changes: list[Changes] = field(default_factory=list)
    journal: list[int] = field(default_factory=list)
    acknowledged: int = -1
    journaled: int = 0
    _states: list[dict[int, int]] = field(default_factory=list)
    _now: dict[int, int] = field(default_factory=dict)

    @property
    def state(self) -> Mapping[int, int]:
        """Amounts by account after the last operation."""
        return self._now

    def begin(self, operation: int, changes: Changes) -> None:
        """Note an operation that is about to be written: from now on a read may find it."""
        if len(self.operations) % _STATE_EVERY == 0:
            self._states.append(dict(self._now))
        _apply(self._now, changes)
        self.changes.append(changes)
        self.operations.append(operation)

    def after(self, operation: int) -> dict[int, int]:
        """Amounts by account after all operations up to this one."""
        count = bisect.bisect_right(self.operations, operation)
        if count == 0:
            return {}
        first = (count - 1) // _STATE_EVERY
        state = dict(self._states[first])
        for changes in self.changes[first * _STATE_EVERY : count]:
            _apply(state, changes)
        return state

    def is_closing(self, operation: int) -> bool:
        """Whether the operation was begun, is this bank's, and deletes an account: it leaves no row that says so."""
        at = bisect.bisect_left(self.operations, operation)
        return at < len(self.operations) and self.operations[at] == operation and None in self.changes[at].values()


def _apply(state: dict[int, int], changes: Changes) -> None:
    for account, amount in changes.items():
        if amount is None:
            del state[account]
        else:
            state[account] = amount


class Writer(threading.Thread):
    """Moves amounts within its banks until it is told to stop. A write that fails ends it, and is raised by `end`."""

    def __init__(self, number: int, accounts: Table, journal: Table, seed: int) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        first = number * BANKS_PER_WRITER
        self.banks = [Bank(first + i) for i in range(BANKS_PER_WRITER)]
        self._accounts, self._journal = accounts, journal
        self._rng = random.Random(seed)
        self._operation = -1
        self._stop_asked = threading.Event()
        self._failure: BaseException | None = None

    def open(self) -> None:
        """Open all accounts, each with the same amount."""
        for bank in self.banks:
            self._put(bank, dict.fromkeys(range(ACCOUNTS), EACH))

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                self._transfer(self._rng.choice(self.banks))
                time.sleep(self._rng.uniform(0, PAUSE_SECONDS_MAX))
        except BaseException as e:  # noqa: BLE001 - `end` raises it
            self._failure = e

    def end(self) -> None:
        """Finish the transfer under way and stop."""
        self._stop_asked.set()
        self.join(PATIENCE)
        assert not self.is_alive(), "a write neither succeeded nor failed"
        if self._failure is not None:
            raise self._failure

    @property
    def operations(self) -> int:
        """How many were acknowledged."""
        return self._operation + 1

    def check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _transfer(self, bank: Bank) -> None:
        """From one account to one or two others; now and then all that it has, whereupon it is closed."""
        payer = self._rng.choice(list(bank.state))
        takers = self._rng.sample([a for a in range(ACCOUNTS) if a != payer], self._rng.randint(1, 2))
        has = bank.state[payer]
        closes = self._rng.random() < 0.1
        moved = {taker: self._rng.randrange(1, 50) for taker in takers}
        if closes:
            moved[takers[0]] += has - sum(moved.values())
        new = {taker: bank.state.get(taker, 0) + amount for taker, amount in moved.items()}
        self._put(bank, {payer: has - sum(moved.values()), **new})
        self._enter(bank, {payer: -sum(moved.values()), **moved})
        if closes:
            self._close(bank, payer)

    def _put(self, bank: Bank, amounts: Mapping[int, int]) -> None:
        operation = self._begin(bank, amounts)
        rows = {"bank": bank.number, "operation": operation}
        self._accounts.upsert([{"account": a, "amount": amount, **rows} for a, amount in amounts.items()])
        self._done(bank, operation)

    def _close(self, bank: Bank, account: int) -> None:
        operation = self._begin(bank, {account: None})
        self._accounts.delete([{"bank": bank.number, "account": account}])
        self._done(bank, operation)

    def _enter(self, bank: Bank, moved: Mapping[int, int]) -> None:
        bank.journal.append(self._operation)
        rows = {"bank": bank.number, "operation": self._operation}
        self._journal.append([{"account": a, "moved": amount, **rows} for a, amount in moved.items()])
        bank.journaled += 1

    def _begin(self, bank: Bank, changes: Changes) -> int:
        bank.begin(self._operation + 1, changes)
        return self._operation + 1

    def _done(self, bank: Bank, operation: int) -> None:
        bank.acknowledged = self._operation = operation


# ---- what a read may find -------------------------------------------------------------------------------------------


def check_banks(rows: pa.Table, banks: Sequence[Bank], least: Mapping[int, int]) -> dict[int, int]:
    """Every bank is as it was after one of its operations, of which none before `least` is missing.

    Gives that operation of each bank; a read of a later moment may have no smaller ones.
    """
    found = by_bank(rows, banks)
    return {bank.number: _operation_of(bank, found[bank.number], least.get(bank.number, -1)) for bank in banks}


def check_instant(rows: pa.Table, writers: Sequence[Sequence[Bank]], least: Mapping[int, int]) -> None:
    """All banks of a writer are as they were after one and the same operation: no effect is there without its cause."""
    for banks in writers:
        found = by_bank(rows, banks)
        check_banks(rows, banks, least)
        newest = max((operation for bank in found.values() for _, operation in bank.values()), default=-1)
        possible = [newest] + [newest + 1] * any(bank.is_closing(newest + 1) for bank in banks)
        states = {number: {a: amount for a, (amount, _) in bank.items()} for number, bank in found.items()}
        assert states in [{bank.number: bank.after(o) for bank in banks} for o in possible], (
            f"banks {[bank.number for bank in banks]} were never so at one instant; operation {newest} is the newest"
        )


def by_bank(rows: pa.Table, banks: Sequence[Bank]) -> dict[int, dict[int, tuple[int, int]]]:
    """(amount, operation) by account, for each of the banks. Fails where an account is there twice."""
    found: dict[int, dict[int, tuple[int, int]]] = {bank.number: {} for bank in banks}
    for row in rows.to_pylist():
        if row["bank"] in found:
            accounts = found[row["bank"]]
            assert row["account"] not in accounts, f"account {row['account']} of bank {row['bank']} is there twice"
            accounts[row["account"]] = (row["amount"], row["operation"])
    return found


def _operation_of(bank: Bank, accounts: Mapping[int, tuple[int, int]], least: int) -> int:
    if not accounts:
        assert least < 0, f"bank {bank.number} is gone"
        return -1
    total = sum(amount for amount, _ in accounts.values())
    assert total == TOTAL, f"bank {bank.number} holds {total}, not {TOTAL}"
    newest = max(operation for _, operation in accounts.values())
    amounts = {account: amount for account, (amount, _) in accounts.items()}
    matching = [
        operation
        for operation in (newest, newest + 1)
        if (operation == newest or bank.is_closing(operation)) and bank.after(operation) == amounts
    ]
    assert matching, f"bank {bank.number} was never like this; its newest operation here is {newest}: {accounts}"
    assert matching[-1] >= least, f"bank {bank.number}: operation {least} was there, this read ends at {matching[-1]}"
    return matching[-1]


def check_journal(rows: pa.Table, banks: Sequence[Bank], least: Mapping[int, int]) -> dict[int, int]:
    """Every bank's entries are those of its first transfers, `least` of them or more, and each adds up to nothing.

    Gives their number for each bank.
    """
    grouped = rows.group_by(["bank", "operation"]).aggregate([("moved", "sum"), ("account", "count")]).to_pylist()
    wrong = [entry for entry in grouped if entry["moved_sum"] != 0 or entry["account_count"] not in (2, 3)]
    assert not wrong, f"entries that do not add up: {wrong[:5]}"
    found: dict[int, list[int]] = {bank.number: [] for bank in banks}
    for entry in grouped:
        found[entry["bank"]].append(entry["operation"])
    for bank in banks:
        operations = sorted(found[bank.number])
        assert operations == bank.journal[: len(operations)], f"transfers of bank {bank.number} are missing, or twice"
        missing = least.get(bank.number, 0) - len(operations)
        assert missing <= 0, f"the last {missing} transfers of bank {bank.number} are missing"
    return {number: len(operations) for number, operations in found.items()}
