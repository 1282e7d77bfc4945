"""Requests of nvc-runtime and of hooks in a container's namespaces: what is taken, and of which callers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.prefork import caller, runtimes
from nvc.prefork import request as prefork_request
from nvc.prefork.request import Refused, Request
from nvc.prefork.runtimes import FILTERS, Runtimes, parent_and_start
from tests.nvc.prefork.test_caller import AGENTS, PROGRAMS, SECONDS, other

pytestmark = pytest.mark.root
ONE_MORE = ["unshare", "--mount", *AGENTS]


def hook(*words: str, **more: object) -> Request:
    return Request("nvc-cdi-hook", words, {}, 0o22, ()).replace(**more)


@pytest.mark.parametrize("words", [("create-symlinks",), ("share", "--share=mem=1Gi", "then", "noop")])
def test_hooks_of_cdi_specs_are_taken(words: tuple[str, ...]) -> None:
    prefork_request.check(hook(*words), PROGRAMS)


def test_the_real_runtimes_variables_keep_no_edit_from_being_made() -> None:
    """containerd's own may have a directory of libraries."""
    prefork_request.check(hook("create", program="nvc-runtime", environment={"LD_LIBRARY_PATH": "/x"}), PROGRAMS)


@pytest.mark.parametrize(
    "asked",
    [
        hook(),
        hook("--help"),
        hook("apply-cuda-memory-limits"),
        hook("share", "then", "apply-cuda-memory-limits"),
        hook("share", "--container-spec=/state"),
        hook("share", "--debug=/dev/tty"),
        hook("share", environment={"PATH": "/bin"}),
        hook("share", program="nvidia-cdi-hook"),
        hook("create", program="nvc-runtime", environment={"LANG": "C.ISO-8859-1"}),
        hook("create", program="nvc-hook", environment={"LD_LIBRARY_PATH": "x"}),
        hook("create", program="nvidia-container-runtime.cdi"),
    ],
    ids=lambda asked: f"{asked.program} {asked.words} {asked.environment}",
)
def test_what_only_the_caller_can_do_is_refused(asked: Request) -> None:
    with pytest.raises(Refused):
        prefork_request.check(asked, PROGRAMS)


@pytest.mark.parametrize(
    ("words", "is_served"),
    [
        (["unshare", "--mount"], True),
        (["unshare", "--mount", "--cgroup"], True),
        (["unshare", "--mount", "--user", "--map-root-user"], False),
        (["unshare", "--mount", "setpriv", "--no-new-privs"], False),
        (["unshare", "--mount", "setpriv", "--bounding-set=-sys_admin"], False),
        (["unshare", "--mount", "setpriv", "--regid=1", "--clear-groups"], False),
    ],
    ids=str,
)
def test_a_hooks_namespaces_may_be_others_and_its_rights_not(words: list[str], is_served: bool) -> None:
    ours, theirs = caller.standing("self"), other(*words)

    assert theirs.lacks(ours)
    assert (not theirs.lacks(ours, inside=True)) == is_served


def test_a_hook_with_another_root_is_refused() -> None:
    ours = caller.standing("self")
    theirs = ours.replace(places=((0, 0), *ours.places[1:]))

    assert theirs.lacks(ours, inside=True)


def test_one_filter_more_is_taken_of_whom_nvc_runtime_started() -> None:
    """Attack: a confined caller, whose filter could be any."""
    ours, theirs = caller.standing("self"), other(*ONE_MORE).replace(no_new_privs=False)

    assert theirs.lacks(ours, inside=True) == "a caller with seccomp filters"
    assert not theirs.lacks(ours, inside=True, own=1)
    assert theirs.replace(filters=theirs.filters + 1).lacks(ours, inside=True, own=1)


# --- what is remembered of runtimes -----------------------------------------------------------------------------------


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process, and a child of its."""
    text = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            yield parent.pid, child
        finally:
            parent.kill()
            subprocess.run(["kill", str(child)], check=False)
    until = time.monotonic() + SECONDS
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_child_of_a_guarded_containers_runtime_has_its_filter(family: tuple[int, int]) -> None:
    known = Runtimes()
    assert known.filters(family[1]) == 0
    known.add(family[0], parent_and_start(family[0])[1])

    assert known.filters(family[1]) == FILTERS
    assert known.filters(family[0]) == 0  # itself asks for no hook


def test_another_process_of_its_number_is_none(family: tuple[int, int]) -> None:
    known = Runtimes()
    known.add(family[0], parent_and_start(family[0])[1] - 1)

    assert known.filters(family[1]) == 0


def test_no_more_are_remembered_than_there_is_room_for(
    family: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "MAX_RUNTIMES", 1)
    known = Runtimes()
    for pid in (family[0], family[1]):
        known.add(pid, parent_and_start(pid)[1])

    assert known.filters(family[1]) == 0
