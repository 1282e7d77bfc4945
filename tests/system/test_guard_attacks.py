"""Programs that try to get round a guard: refused or charged, counted, and of no effect on a neighbour."""

from __future__ import annotations

import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.attacking import GIB, LIMIT, Attack, attack
from tests.support.attacking_uvm import stalled, unseen, uvm, uvm_heir, uvm_refused, uvm_slow, uvm_tree
from tests.support.attacks import ATTACKS, OPEN, SOURCES, TOOLS
from tests.support.leftovers import wait_until
from tests.support.repeated import good
from tests.support.tenants import build_static, prepare

pytestmark = pytest.mark.root
MIB = 1 << 20
INVALID_ARGUMENT = 0x1F
#: Those of which the table says everything.
TOLD = (
    "phantom",
    "group-race",
    "shared",
    "uvm-busy",
    "uvm-thread",
    "uvm-heap",
    "uvm-clone",
    "uvm-exec",
    "uvm-exec-thread",
    "reused",
    "uvm-path",
    "uvm-zombies",
)
#: Of those whose counters are compared with the table's, too.
COUNTED = ("requests", "controls", "group-race", "waits")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine, the tool that enters the filter, and the program with the attacks."""
    directory = prepare(tmp_path_factory.mktemp("machine"))
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    return directory


def reasons(one: Attack) -> set[str]:
    return set(one.tenants.reasons(1))


def other_types(one: Attack) -> None:
    one.begin("type")
    assert one.get("done") == 0
    assert one.tenants.reasons(1) == {"forbidden-escape": 36}


def wrapped(one: Attack) -> None:
    one.begin("wrapped")
    assert one.get("result") != 0
    assert one.get("status") == 0xFFFF
    assert reasons(one) == {"forbidden-escape"}


def heap(one: Attack) -> None:
    one.begin("heap")
    assert one.get("wrong") == 0
    assert one.get("pieces") == 10
    assert one.memory() == LIMIT
    assert reasons(one) == {"over-quota", "forbidden-escape"}


def classes(one: Attack) -> None:
    one.begin("classes")
    assert one.get("wrong") == 0
    assert one.get("system") == 0
    assert one.get("video-as-system") == 0
    assert one.memory() == 0
    assert reasons(one) == {"forbidden-class", "unknown-class"}


def duplicate(one: Attack) -> None:
    one.begin("duplicate")
    assert one.get("memory") == 0
    assert one.get("copies") == 50
    assert one.memory() == GIB
    one.go()
    assert one.get("freed") == 0
    assert one.memory() == GIB, "the copies keep it"
    one.go()


def sizes(one: Attack) -> None:
    one.begin("sizes")
    assert one.get("wrong") == 0
    assert one.memory() == one.get("small") * 2 * MIB
    assert "over-quota" in reasons(one)


def pointers(one: Attack) -> None:
    one.begin("pointers")
    one.get("read-only")
    assert one.get("wrong") == 0
    assert one.memory() in (0, 2 * MIB), "where the answer could not be written, the memory still counts"


def params(one: Attack) -> None:
    """No control leads the driver by what an earlier one left with the guard, nor by a pointer that is not replaced."""
    one.begin("params")
    for name in ("build-version", "bus-info", "bios-info", "fb-info", "encoder-caps"):
        assert one.get(f"{name}-whole") == 0
        assert one.get(f"{name}-none") == INVALID_ARGUMENT, name
        assert one.get(f"{name}-short") == INVALID_ARGUMENT, name
    assert one.get("descriptor-none") == INVALID_ARGUMENT
    assert one.get("wrong") == 0
    assert reasons(one) == {"bad-size"}


def scheduling(one: Attack) -> None:
    one.begin("scheduling")
    assert one.get("answered") == 9
    assert one.get("refused") == 3
    assert one.get("made") == 0
    assert one.tenants.reasons(1) == {"scheduling-control": 9, "forbidden-control": 4}


def foreign(one: Attack) -> None:
    one.begin("foreign", one.client, one.handle)
    assert one.get("wrong") == 0
    assert one.tenants.of(2).memory == 2 * GIB


def size_race(one: Attack) -> None:
    one.begin("size-race", 500)
    given = one.get("given")
    assert given >= 3
    assert one.memory() > 0 and one.tenants.of(1).driver_usage <= LIMIT
    wait_until(lambda: one.tenants.of(1).driver_usage == one.memory(), "the driver says the same")


def command_race(one: Attack) -> None:
    before = one.tenants.status(1).continued
    one.begin("command-race", 500)
    assert one.get("made") > 0
    # A client and a device with its own identity are the only calls that are left to the caller.
    assert one.tenants.status(1).continued - before <= 2
    assert reasons(one) <= {"scheduling-control", "bad-pointer"}


def class_race(one: Attack) -> None:
    """What was won by a race counts, and beyond the quota it costs the process its life."""
    one.begin("class-race", 300)
    assert one.main
    assert one.main.stdout
    said = one.main.stdout.readline()
    # What is charged can be more: a context for each call that may have made one.
    if said and one.is_within():
        one.go()
        said = one.main.stdout.readline()
    if said and one.is_within():
        wait_until(lambda: one.tenants.of(1).driver_usage <= one.memory(), "the driver's word counts")
        assert said == "more=0\n" or "over-quota" in reasons(one)
        one.go()
    else:  # by what was won before, or with what it asked for after that
        assert one.main.wait(30) == -signal.SIGKILL
        assert {"over-quota", "toctou-killed"} <= reasons(one)


def heir_race(one: Attack) -> None:
    """So it does when another process than the one that is counted won it, and a later call shows it to the guard."""
    one.begin("heir-race", 200000)
    assert one.main and one.main.wait(30) == -signal.SIGKILL
    wait_until(lambda: one.published() >= {"over-quota", "toctou-killed"}, "that is said")


def orphan_race(one: Attack) -> None:
    """What is counted for a process that has ended goes with its client: another one has the file, and made no call."""
    one.begin("orphan-race", 2048)
    assert one.get("won") == 1
    time.sleep(2)  # the driver is asked once a second at least
    assert one.is_within()
    one.go()


def race_free(one: Attack) -> None:
    """Whatever way memory goes that was won by a race: what UVM has of it counts."""
    for way, rounds in ((0, 60), (1, 60), (2, 60), (3, 600)):
        kept = 0
        one.begin("race-free", rounds, way)
        assert one.main and one.main.stdout
        for line in iter(one.main.stdout.readline, ""):
            if not line.startswith("kept="):
                break
            kept = int(line.removeprefix("kept="))
        else:
            assert one.main.wait(30) == -signal.SIGKILL
            assert {"over-quota", "toctou-killed"} <= reasons(one)
        # Of files that were closed it is found by the next look. A FREE is preceded by one.
        assert way == 2 or kept * GIB <= LIMIT + GIB, way
        if kept * GIB <= LIMIT:  # each piece may be charged twice, and end the program too
            least = kept * GIB
            wait_until(lambda least=least: one.is_gone() or one.memory() >= least, "what was won is charged")
            one.go()
        # A program that has won something, and goes on to make clients, gets EAGAIN: their files are held.
        ends = (0, 3) if way == 2 else (0,)
        assert one.main.wait(30) in (ends if kept * GIB <= LIMIT else ()) + (-signal.SIGKILL,)
        wait_until(lambda: one.memory() == 0, "what UVM had is back")


def uvm_batch(one: Attack) -> None:
    one.begin("uvm-batch")
    assert one.get("kept") == 1024
    assert one.get("freed") == 0
    assert one.memory() == 64 << 20, "all of them are looked at, or none"
    one.go()


def event_race(one: Attack) -> None:
    """An event is made for its process: what it is cannot change any more."""
    before = one.tenants.status(1).continued
    one.begin("event-race", 3000)
    assert one.get("given") > 0
    assert one.tenants.status(1).continued - before <= 2
    assert one.tenants.of(1).driver_usage <= min(LIMIT, one.memory())
    assert reasons(one) <= {"over-quota"}
    # How much of it was memory is a matter of how often the other thread had a processor.
    is_too_much = one.memory() + 9 * GIB > LIMIT
    one.go()
    assert (one.get("more") != 0) == is_too_much


def storm(one: Attack) -> None:
    for restart in (0, 1):
        one.begin("storm", 1500, restart)
        assert one.get("bad") == 0
        one.get("interrupted")
        assert one.get("rang") > 20
        assert one.memory() == 0
        one.go()


def child(one: Attack) -> None:
    one.begin("child")
    assert one.get("parent") == 0
    assert one.get("child") == 9
    one.get("ended")
    assert one.memory() == LIMIT, "the open file lives on in the parent"


def passed(one: Attack) -> None:
    one.begin("passed")
    assert one.get("sibling") == 10
    one.get("ended")
    assert one.memory() == LIMIT


def queued(one: Attack) -> None:
    one.begin("queued")
    assert one.get("memory") == 0
    one.get("queued")
    assert one.memory() == 8 * GIB
    one.go()
    assert one.get("pieces") == 2
    one.go()
    one.get("closed")
    wait_until(lambda: one.memory() == 2 * GIB or one.memory() == 0, "what is not held any more is back")
    one.go()


def execute(one: Attack) -> None:
    one.begin("exec")
    assert one.get("before") == 0
    assert one.get("after") == 8
    assert one.memory() == LIMIT


def bomb(one: Attack) -> None:
    one.begin("bomb", 200, 4)
    assert one.get("bad") == 0
    wait_until(lambda: one.memory() == 0, "two hundred dead processes are forgotten")


def traced(one: Attack) -> None:
    one.begin("traced")
    assert one.get("status") == 0x51
    one.get("done")
    assert reasons(one) == {"over-quota"}


def entries(one: Attack) -> None:
    one.begin("entries")
    assert one.get("int80") in (1, 38, 256 + 11), "EPERM by the guard; a kernel without these system calls"
    assert one.get("x32") != 0
    assert one.memory() == 0


def uring(one: Attack) -> None:
    one.begin("uring")
    if one.get("ring") != 0:
        return
    if one.get("opened"):
        assert one.get("command") in (22, 95)
        assert one.get("status") == 0xFFFF


def flood(one: Attack) -> None:
    def neighbour() -> int:
        process = one.start("churn", 300, tenant=2)
        assert one.said(process, "bad") == 0
        median = one.said(process, "median")
        process.wait(30)
        return median

    before = neighbour()
    one.begin("flood", 8)
    one.get("flooding")
    wait_until(lambda: one.tenants.status(1).notifications > 200, "it floods")
    good(neighbour, lambda during: during < 3 * before, f"{before} ns without the flood")


def answered(one: Attack, name: str) -> None:
    """As on a real driver: what the table says."""
    one.begin(name, *ATTACKS[name][0])
    for key, value in ATTACKS[name][1].items():
        assert one.get(key) == value, key
        if key == "mapped":
            one.seen()
    if name in COUNTED:
        assert reasons(one) == ATTACKS[name][2]
    one.go()


EVERY = {
    function.__name__: function
    for function in (
        other_types,
        wrapped,
        heap,
        classes,
        duplicate,
        sizes,
        pointers,
        params,
        scheduling,
        foreign,
        size_race,
        command_race,
        class_race,
        heir_race,
        orphan_race,
        race_free,
        uvm_batch,
        event_race,
        storm,
        child,
        passed,
        queued,
        execute,
        bomb,
        traced,
        entries,
        uring,
        flood,
        uvm,
        uvm_tree,
        uvm_heir,
        uvm_refused,
        stalled,
        uvm_slow,
        unseen,
    )
} | {name.replace("-", "_"): partial(answered, name=name) for name in (*TOLD, *COUNTED)}

#: Name of a function -> the program's word, where they are not the same.
WORDS = {"other_types": "type", "execute": "exec"}


def word(name: str) -> str:
    return WORDS.get(name, name.replace("_", "-"))


def test_here_and_on_a_real_driver_the_same_attacks_are_made() -> None:
    assert {word(name) for name in EVERY} == set(ATTACKS)
    program = "".join(source.read_text() for source in SOURCES)
    assert set(re.findall(r'\{ "([a-z-]+)", attack_', program)) == {*ATTACKS, *TOOLS}
    assert set(OPEN) <= set(ATTACKS)


def case(name: str) -> Any:
    why = OPEN.get(word(name))
    return pytest.param(name, marks=[pytest.mark.xfail(reason=why, strict=True)] if why else [])


@pytest.mark.parametrize("name", [case(name) for name in EVERY])
def test_nothing_gets_round_the_guard(place: Path, name: str) -> None:
    attack(place, EVERY[name])
