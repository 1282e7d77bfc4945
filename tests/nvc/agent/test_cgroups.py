"""Memory of a tenant's own processes, together: a supervisor that is taken over takes no more, and no other's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.agent import cgroups
from nvc.guard.supervisors import Supervisors
from nvc.share.store import start_time
from tests.nvc.guard.test_confinement import containers, devices, share
from tests.support import cgroupview, leftovers
from tests.support.native import build

__all__ = ["containers", "devices"]

MIB = 1 << 20
#: own_cgroup.c: MEMORY_MOST.
LIMIT = 256 * MIB
V1 = Path("/sys/fs/cgroup/memory")


def files(place: Path, **contents: str) -> None:
    for name, text in contents.items():
        (place / name.replace("_", ".", 1)).write_text(text)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """An agent's, with its tree."""
    made = tmp_path / "agent"
    made.mkdir()
    assert (problem := cgroups.prepare(str(made))) == "" or pytest.skip(problem)
    yield made
    leftovers.until(lambda: cgroups.remove(str(made)) or not list(made.glob("cgroups*")), seconds=20)
    assert not cgroupview.directories(cgroups.tree_name(str(made)))


def cgroup(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line.split(":", 2)[2] for line in lines if "memory" in line.split(":")[1] or line.startswith("0::"))


@pytest.mark.root
def test_each_tenant_has_a_cgroup_with_a_limit_which_goes_with_it(
    directory: Path, devices: Path, containers: tuple[int, int]
) -> None:
    build("nvc-monitor", "nvc-supervisor")
    with Supervisors(str(devices), str(directory)) as made:
        for number, first in zip((1, 2), containers, strict=True):
            made.add(number, share(devices), 1, first=(first, start_time(first)))
        places = [{cgroup(pid) for pid in made.pids(number)} for number in (1, 2)]
        assert [len(one) for one in places] == [1, 1]
        assert places[0] != places[1]
        assert cgroup(os.getpid()) not in places[0] | places[1]
        cgroups.clean(str(directory))
        found = sorted((directory / "cgroups").glob("*/memory.limit_in_bytes"))
        assert [int(one.read_text()) for one in found or sorted((directory / "cgroups").glob("*/memory.max"))] == [
            LIMIT
        ] * 2
        made.remove(1)
        cgroups.clean(str(directory))
        assert [path.name for path in (directory / "cgroups").iterdir() if path.is_dir()] == [Path(*places[1]).name], (
            "of the other one"
        )
        made.remove(2)


@pytest.mark.root
def test_a_supervisor_that_fills_memory_in_all_its_processes_ends_its_own_tenant(
    directory: Path,
    devices: Path,
    containers: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A gigabyte without the limit."""
    build("nvc-monitor", "nvc-supervisor", "hostile-supervisor")
    own, other = containers
    report = tmp_path / "report"
    with Supervisors(str(devices), str(directory)) as made:
        made.add(2, share(devices), 1, first=(other, start_time(other)))
        monkeypatch.setenv("NVC_TEST_FILL", "1")
        monkeypatch.setenv("NVC_TEST_REPORT", str(report))
        made._supervisor = made._supervisor.replace("nvc-supervisor", "hostile-supervisor")
        before = set((directory / "cgroups").iterdir())
        with pytest.raises(OSError, match=r"supervisor|monitor"):
            made.add(1, share(devices), 1, first=(own, start_time(own)))
        (place,) = {path for path in (directory / "cgroups").iterdir() if path.is_dir()} - before
        peak = next(name for name in ("memory.max_usage_in_bytes", "memory.peak") if (place / name).exists())
        assert 200 * MIB < int((place / peak).read_text()) <= LIMIT
        assert report.read_text().count('"fill"') > 8, "some of its processes had their part"
        assert '"done"' not in report.read_text(), "it was ended"
        assert all(os.path.exists(f"/proc/{pid}") for pid in (other, *made.pids(2)))
        assert made.status(2).processes == 0
        made.remove(2)


def test_a_tree_of_version_2_has_its_limit_and_its_weight(tmp_path: Path) -> None:
    root, directory = tmp_path / "root", tmp_path / "run"
    tree = root / cgroups.tree_name(str(directory))
    for place in (root, directory, tree):
        place.mkdir()
    files(root, cgroup_controllers="cpuset cpu memory\n", cgroup_subtree_control="cpu\n")
    files(tree, cgroup_subtree_control="", cpu_weight="100\n")

    assert cgroups.prepare(str(directory), str(root)) == ""
    assert os.readlink(directory / "cgroups") == str(tree)
    assert (root / "cgroup.subtree_control").read_text() == "+memory"
    assert (tree / "cgroup.subtree_control").read_text() == "+memory"
    assert not os.path.lexists(directory / "cgroups-pids")
    assert (tree / "cpu.weight").read_text() == "1000"


def test_processes_are_counted_where_the_kernel_can(tmp_path: Path) -> None:
    both, one = tmp_path / "both", tmp_path / "one"
    for place in (both, both / cgroups.tree_name(str(both)), one, one / "memory", one / "pids"):
        place.mkdir()
    files(both, cgroup_controllers="memory pids\n", cgroup_subtree_control="cpu memory pids\n")
    files(both / cgroups.tree_name(str(both)), cgroup_subtree_control="")
    assert cgroups.prepare(str(both), str(both)) == ""
    assert (both / cgroups.tree_name(str(both)) / "cgroup.subtree_control").read_text() == "+pidsry"
    (one / "memory/memory.limit_in_bytes").touch()
    (one / "pids/cgroup.procs").touch()
    assert cgroups.prepare(str(one), str(one)) == ""
    assert {os.readlink(one / link) for link in ("cgroups", "cgroups-pids")} == {
        f"{one}/{name}/{cgroups.tree_name(str(one))}" for name in ("memory", "pids")
    }


@pytest.mark.parametrize("controllers", ["cpu io\n", None])
def test_without_a_memory_controller_the_reason_is_said(tmp_path: Path, controllers: str | None) -> None:
    if controllers is not None:
        files(tmp_path, cgroup_controllers=controllers)
    (tmp_path / "cgroups").symlink_to("/nonexistent")  # of an agent before

    assert cgroups.prepare(str(tmp_path), str(tmp_path)) == "no hierarchy has the memory controller"
    assert not os.path.lexists(tmp_path / "cgroups")
