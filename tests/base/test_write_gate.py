"""A gate that many writers pass, or one closer keeps closed."""

from __future__ import annotations

import threading

from forebay.base.threads import WriteGate
from tests.patience import PATIENCE


def test_a_closer_that_waits_in_vain_leaves_the_gate_to_the_next_one() -> None:
    gate = WriteGate()
    may_leave, has_closed, may_open = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def write() -> None:
        with gate.passing():
            order.append("in")
            may_leave.wait(PATIENCE)

    def close() -> None:
        with gate.closed() as is_quiet:
            order.append(f"closed {is_quiet}")
            has_closed.set()
            may_open.wait(PATIENCE)
            order.append("opened")

    def write_late() -> None:
        with gate.passing():
            order.append("late")

    writer = threading.Thread(target=write)
    writer.start()
    while not order:
        threading.Event().wait(0.001)
    with gate.closed(0.02) as is_quiet:
        assert not is_quiet
        closer, late = threading.Thread(target=close), threading.Thread(target=write_late)
        closer.start()
        may_leave.set()
        assert has_closed.wait(PATIENCE)
    late.start()
    late.join(0.05)
    assert late.is_alive(), "the closer in vain has opened the gate of another one"
    may_open.set()
    for thread in (writer, closer, late):
        thread.join(PATIENCE)
    assert order == ["in", "closed True", "opened", "late"]
