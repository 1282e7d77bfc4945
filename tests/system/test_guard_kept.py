"""Memory won beyond the quota is not kept for longer than a second by processes that made no call."""

from __future__ import annotations

import select
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.attacking import LIMIT
from tests.support.attacks import SOURCES
from tests.support.firsts import FirstProcess
from tests.support.leftovers import wait_until
from tests.support.tenants import Tenants, build_static, guarded, prepare

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = prepare(tmp_path_factory.mktemp("machine"))
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    return directory


def begin(tenants: Tenants, *words: object, said: str = "won=1") -> subprocess.Popen[str]:
    """The attack in a container with a pid namespace, by which it can be ended; it has won."""
    first = tenants.firsts[1] = FirstProcess(pid=True)
    tenants.guard.add(1, tenants.wish(memory=LIMIT), 1, first=first.key)
    main = tenants.start(tenants.tools / "attack", *map(str, words))
    assert main.stdout and main.stdout.readline() == f"{said}\n"
    return main


def ends(main: subprocess.Popen[str]) -> None:
    """Every process of the container does, some of which may have ended before: each has the pipe."""
    began = time.monotonic()
    assert main.stdout
    assert select.select([main.stdout], [], [], 20)[0] and main.stdout.read() == ""
    assert 0.3 < time.monotonic() - began < 5


@pytest.mark.parametrize(("is_ended", "is_named"), [(1, 0), (0, 1), (0, 0)])
def test_where_the_memory_outlives_the_processes_that_are_found_the_container_ends(
    place: Path, is_ended: int, is_named: int
) -> None:
    """A freed client that was named in its place gives none of it back, nor a process if its children have its file."""

    def inside(tenants: Tenants) -> None:
        ends(begin(tenants, "keep-race", 2048, is_ended, is_named))

    guarded(place, inside)


def test_where_uvm_has_the_memory_which_no_answer_shows_the_container_ends(place: Path) -> None:
    guarded(place, lambda tenants: ends(begin(tenants, "keep-uvm", 2048, said="mapped=1")))


def test_where_it_goes_with_the_client_that_was_named_the_container_goes_on(place: Path) -> None:
    def inside(tenants: Tenants) -> None:
        main = begin(tenants, "keep-race", 2048, 1, 1)
        wait_until(lambda: tenants.of(1).driver_usage <= LIMIT, "the client is freed", seconds=2)
        time.sleep(2)
        assert main.poll() is None
        assert "toctou-killed" not in tenants.reasons(1)

    guarded(place, inside)
