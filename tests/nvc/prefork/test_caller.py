"""Which callers the pre-fork server serves."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hook.warm import programs
from nvc.prefork import caller

ROOT = Path(__file__).parents[3]
PROGRAMS_OF_TESTS = Path(__file__).parent / "programs"
HEADER = struct.Struct("=8sIIII4Q")
SECONDS = 40
PROGRAMS = programs()
#: As an installation's lib/nvc-py/bin/nvc-warm does.
START = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from hook.warm import run; run()"]
LAST = 4194303  # no process has it

pytestmark = pytest.mark.root


#: Of one system call that the work does not make (syslog), and of mount.
FILTERED = [sys.executable, str(ROOT / "tests/support/programs/under_filter.py")]
AGENTS, OTHERS = [*FILTERED, "103"], [*FILTERED, "165"]


def other(*words: str) -> caller.Standing:
    """The standing of a process that is started with these words in front."""
    with subprocess.Popen([*words, "sleep", "60"], stdin=subprocess.PIPE) as process:
        try:
            until = time.monotonic() + SECONDS
            while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
                assert time.monotonic() < until
                time.sleep(0.005)
            return caller.standing(process.pid)
        finally:
            process.kill()


def test_a_child_stands_as_we_do() -> None:
    assert other() == caller.standing("self")


@pytest.mark.parametrize(
    "words",
    [
        ["unshare", "--mount"],
        ["unshare", "--cgroup"],
        ["unshare", "--user", "--map-root-user"],
        ["setpriv", "--no-new-privs"],
        [*FILTERED, "165"],
        ["setpriv", "--bounding-set=-sys_admin"],
        ["setpriv", "--regid=1", "--clear-groups"],
    ],
    ids=" ".join,
)
def test_a_caller_with_another_root_or_directory_is_seen(words: list[str]) -> None:
    assert other(*words) != caller.standing("self")


def admitted(ours: list[str], theirs: list[str]) -> bool:
    """Whether a server that was started with these words serves a caller that was started with those."""
    return not (other(*theirs).lacks(other(*ours)))


@pytest.mark.parametrize(
    ("ours", "theirs", "is_served"),
    [
        pytest.param([], [], True, id="neither"),
        pytest.param(["setpriv", "--no-new-privs"], [], True, id="the server has no_new_privs, as in its unit"),
        pytest.param([], ["setpriv", "--no-new-privs"], False, id="the caller has no_new_privs"),
        pytest.param(AGENTS, [], True, id="the server has a filter, as in its unit"),
        pytest.param([], OTHERS, False, id="the caller has a filter"),
        pytest.param(AGENTS, OTHERS, False, id="each has a filter"),
    ],
)
def test_no_caller_is_served_that_is_more_confined(ours: list[str], theirs: list[str], is_served: bool) -> None:
    """The number of filters tells nothing of what they refuse: a caller that may not mount had mounts made."""
    assert admitted(ours, theirs) == is_served


NICE, RESOURCE = 1 << 23, 1 << 24


@pytest.mark.parametrize(
    ("effective", "served"),
    [
        (0, "equal less"),
        (NICE, "equal less nicer"),
        (RESOURCE, "equal less more oom"),
        (NICE | RESOURCE, "equal less nicer more oom"),
    ],
)
def test_a_caller_is_served_whose_attributes_the_worker_can_take_over(effective: int, served: str) -> None:
    """Each by its own right: one with a better niceness was refused by a server that could take it over."""
    own = caller.ProcessAttributes(((0, 100, 200),), 0, 0)
    theirs = {
        "equal": own,
        "less": caller.ProcessAttributes(((0, 50, 100),), 7, 7),
        "nicer": own.replace(nice=-1),
        "more": own.replace(limits=((0, 100, -1),)),
        "oom": own.replace(oom_score=-1),
    }
    found = [word for word, one in theirs.items() if caller._is_attainable(one, own, effective)]
    assert found == served.split()
