"""Whose threads wait for an answer of the guard, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvc.agent.waiting import Waiting, group_of

WAITS, SLEEPS = "seccomp_do_user_notification.isra.0", "do_epoll_wait"
HOST, BOX = "host", "box"


class Proc:
    def __init__(self, place: Path) -> None:
        self.place = place
        for name in (HOST, BOX, "other"):
            (place / name).touch()
        self.process("self", HOST, "/")

    def process(self, name: str, namespace: str, group: str, threads: dict[int, str] | None = None) -> None:
        directory = self.place / name
        (directory / "ns").mkdir(parents=True)
        os.link(self.place / namespace, directory / "ns/pid")
        (directory / "cgroup").write_text(f"11:devices:{group}\n1:name=systemd:/elsewhere\n0::/\n")
        for thread, where in (threads or {}).items():
            (directory / f"task/{thread}").mkdir(parents=True)
            (directory / f"task/{thread}/wchan").write_text(where)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    made = Proc(tmp_path)
    made.process("10", BOX, "/box/init", {10: SLEEPS, 11: WAITS, 12: WAITS})
    made.process("20", BOX, "/box/else", {20: WAITS})
    made.process("30", "other", "/box/init/inner", {30: WAITS})
    made.process("40", "other", "/box/initial", {40: WAITS})
    made.process("50", HOST, "/", {50: WAITS})
    return made


def test_a_cgroup_is_of_whole_lines(tmp_path: Path) -> None:
    for end in "\r\v\x1c\x85\u2028":
        (tmp_path / "9").mkdir(exist_ok=True)
        (tmp_path / "9/cgroup").write_text(f"7:cpu:/a{end}5:devices:/other\n5:devices:/mine\n1:x:/b{end}0::/other\n")
        assert group_of("9", str(tmp_path)) == "/mine"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param({10}, {(10, 11), (10, 12), (20, 20), (30, 30)}, id="its namespace and its group"),
        pytest.param({40}, {(40, 40), (30, 30)}, id="another container's"),
        pytest.param({50}, {(50, 50)}, id="in our namespace and the root's group only what is known"),
        pytest.param({99}, set(), id="one that ended"),
        pytest.param(set(), set(), id="none"),
    ],
)
def test_a_containers_threads_are_found(proc: Proc, known: set[int], expected: set[tuple[int, int]]) -> None:
    assert set(Waiting(str(proc.place)).of(known)) == expected
