"""What a hostile tenant may try: the words of the program in tests/system/attacks, and what must come of each.

One table for the simulated machine (tests/system/test_guard_attacks.py, which looks at more than the answers) and for a
real driver (tests/gpu/enforce/test_guard_attacks.py). An attack says NAME=NUMBER lines; those named here must be so.
"""

from __future__ import annotations

from tests.support.native import CHECKOUT

SOURCES = sorted((CHECKOUT / "tests/system/attacks").glob("*.c"))
FORBIDDEN, OWN, OVER = "forbidden-escape", "scheduling-control", "over-quota"
Answers = dict[str, int]
#: Name -> words after it, what must be answered, what must be counted at least. The attacker's quota is 10 GiB.
ATTACKS: dict[str, tuple[tuple[str, ...], Answers, set[str]]] = {
    "type": ((), {"done": 0}, {FORBIDDEN}),
    "wrapped": ((), {"status": 0xFFFF}, {FORBIDDEN}),
    "heap": ((), {"wrong": 0, "pieces": 10}, {OVER, FORBIDDEN}),
    "classes": ((), {"wrong": 0}, {"forbidden-class", "unknown-class"}),
    "duplicate": ((), {"memory": 0, "copies": 50, "freed": 0}, set()),
    "sizes": ((), {"wrong": 0}, {OVER}),
    "pointers": ((), {"wrong": 0}, set()),
    "params": ((), {"wrong": 0}, {"bad-size"}),
    "requests": (
        (),
        {"made": 0, "pieces": 0, "wrong": 0, "parameters": 0, "test": 22, "nobody": 22, "counters": 0, "other": 25},
        {FORBIDDEN, "unknown-escape"},
    ),
    "controls": (
        (),
        {"old": 0, "answered": 5, "debugger": 0, "zcull": 0, "boost": 0},
        {"unknown-control", "forbidden-class", "forbidden-control"},
    ),
    "scheduling": ((), {"answered": 9, "refused": 3, "made": 0}, {OWN, "forbidden-control"}),
    "foreign": (("CLIENT", "HANDLE"), {"wrong": 0}, set()),
    "size-race": (("500",), {}, {OVER}),
    "command-race": (("500",), {}, set()),
    "class-race": (("300",), {}, set()),
    "heir-race": (("200000",), {}, set()),
    "orphan-race": (("2048",), {"won": 1}, {OVER}),
    "race-free": (("60", "0"), {"beyond": 0}, set()),
    "phantom": ((), {"taken": 0x19, "kept": 10}, {OVER}),
    "uvm-batch": ((), {"kept": 1024, "freed": 0}, set()),
    "event-race": (("1000",), {}, set()),
    "storm": (("1000", "0"), {"bad": 0}, set()),
    "child": ((), {"parent": 0, "child": 9}, {OVER}),
    "passed": ((), {"sibling": 10}, {OVER}),
    "queued": ((), {"memory": 0, "pieces": 2}, {OVER}),
    "exec": ((), {"before": 0, "after": 8}, {OVER}),
    "bomb": (("50", "4"), {"bad": 0}, set()),
    "traced": ((), {"status": 0x51}, {OVER}),
    "entries": ((), {}, set()),
    "uring": ((), {}, set()),
    "flood": (("8",), {}, set()),
    "uvm": (("20",), {"kept": 10}, set()),
    "uvm-tree": ((), {"kept": 3, "freed": 0}, set()),
    "uvm-heir": (("4", "6"), {"kept": 10}, set()),
    "uvm-refused": (("4", "6"), {"kept": 10}, set()),
    "uvm-busy": ((), {"mapped": 0, "pieces": 8}, {OVER}),
    "uvm-thread": ((), {"memory": 0, "mapped": 0, "pieces": 6}, {OVER}),
    "stalled": ((), {}, set()),
    "group-race": ((), {"made": 0, "known": 0x1A, "later": 1}, {"unknown-outcome", "scheduling-control"}),
    "waits": ((), {"long": 0, "kept": 1}, set()),
    "shared": ((), {"memory": 0, "shared": 0, "duplicate": 0, "own": 0}, set()),
    "reused": ((), {"written": 0}, set()),
    "uvm-heap": ((), {"memory": 0, "map": 0, "other": 0, "freed": 0}, set()),
    "uvm-clone": ((), {"mapped": 0, "pieces": 8}, {OVER}),
    "uvm-exec": ((), {"mapped": 0, "pieces": 8}, {OVER}),
    "uvm-exec-thread": ((), {"mapped": 0, "pieces": 8}, {OVER}),
    "uvm-slow": ((), {"mapped": 0, "pieces": 8}, {OVER}),
    "uvm-path": ((), {"place": 511, "mapped": 0, "pieces": 8}, {OVER}),
    "uvm-zombies": ((), {"mapped": 0, "pieces": 8}, {OVER}),
    "unseen": ((), {"mapped": 0, "pieces": 8}, {OVER}),
}
#: Those that go on until they are killed, and those whose excess is seen afterwards, and then ends in a freeze.
HOLDS, LATE = ("flood", "stalled"), ("class-race", "heir-race", "orphan-race", "race-free")
#: Those that make calls, or clients, without end.
FLOODS = ("flood", "bomb", "storm", "command-race", "size-race", "scheduling", "type")
#: Those that the guard does not hold yet, and why: tests of them are expected to fail.
OPEN: dict[str, str] = {}
#: Words of the program that are tools of other tests.
TOOLS = (
    *("victim", "churn", "uvm-child", "uvm-tables", "unchanged", "idle", "fuse", "batch", "pids", "contexts"),
    *("keep-race", "keep-uvm"),
    *("lend", "borrow", "starts", "resets", "rests", "give", "take", "receive"),
)
