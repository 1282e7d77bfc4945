"""What must come of attacks with memory that UVM maps, or that cannot be read (tests/system/test_guard_attacks.py)."""

from __future__ import annotations

import time

from tests.support.attacking import GIB, LIMIT, Attack
from tests.support.leftovers import wait_until


def uvm_keeps(one: Attack) -> None:
    """Allocated, mapped in UVM, freed, for twice the quota: what UVM has is charged, and no more is given."""
    one.begin("uvm", 20)
    for key in ("gid", "initialize", "mm", "register", "space", "register-space", "map"):
        assert one.get(key) == 0, key
    assert one.get("kept") == 10, "what UVM has counts"
    assert one.memory() == LIMIT


def uvm(one: Attack) -> None:
    uvm_keeps(one)
    one.go()
    assert one.get("let-go") == 5
    wait_until(lambda: one.memory() == 5 * GIB, "what it lets go of is back")


def uvm_tree(one: Attack) -> None:
    one.begin("uvm-tree")
    assert one.get("kept") == 3
    assert one.memory() == 6 * GIB
    one.go()
    assert one.get("freed") == 0
    assert one.memory() == 3 * GIB, "what was not mapped is back at once"
    one.go()


def uvm_heir(one: Attack) -> None:
    one.begin("uvm-heir", 4, 6)
    assert one.get("kept") == 10, "a process that ended does not give back what UVM has"
    wait_until(lambda: one.memory() == LIMIT, "that is all")
    one.go()


def uvm_refused(one: Attack) -> None:
    one.begin("uvm-refused", 4, 6)
    assert one.get("kept") == 10, "a FREE that the driver refuses leaves what is known of UVM's duplicate"
    wait_until(lambda: one.memory() == LIMIT, "that is all")
    one.go()


def uvm_slow(one: Attack) -> None:
    """A call whose struct does not come (userfaultfd) fails at once, and delays no look at what the tenant mapped."""
    one.begin("uvm-slow")
    assert one.get("mapped") == 0
    one.go()
    one.seen()
    assert one.get("pieces") == 8, "of 10, less 1.5 GiB"
    one.go()


def stalled(one: Attack) -> None:
    """While its memory cannot be read, others do not wait for it."""
    one.begin("stalled")
    is_for_ever = one.get("page")
    before, longest = time.monotonic(), 0.0
    while time.monotonic() - before < 1:
        begin = time.monotonic()
        one.tenants.guard.freeze(1, 0, True)
        one.tenants.guard.freeze(1, 0, False)
        one.memory()
        longest = max(longest, time.monotonic() - begin)
    # It would wait for ever, or for each fork of two GiB.
    assert longest < 30, "the scheduler does not wait"
    # A busy machine may have let the two seconds pass that it is waited for.
    assert not one.tenants.of(1).frozen or time.monotonic() - before > 1.9
    # To /proc/PID/mem a page that a userfaultfd does not bring is an error, and nothing that is waited for.
    assert not is_for_ever or not one.tenants.of(1).frozen


def unseen(one: Attack) -> None:
    one.begin("unseen")
    mapped = one.get("mapped")
    assert mapped in (0, 38), "ENOSYS: a kernel without this entry"
    if mapped == 0:
        one.seen()
    assert one.get("pieces") == (8 if mapped == 0 else 10)
    one.go()
