"""Every check on a tree where it is quiet and on trees where it speaks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.doctor import cgroup, table
from nvc.engines.config import EngineConfig
from nvc.engines.table import ENGINES, places
from nvc.formats import mountinfo
from tests.nvc.engines.samples import Memory
from tests.support.doctor_cases_machine import MACHINE_QUIET, MACHINE_SPEAKS
from tests.support.doctor_cases_software import SOFTWARE_QUIET, SOFTWARE_SPEAKS
from tests.support.doctor_tree import Tree

QUIET = {**MACHINE_QUIET, **SOFTWARE_QUIET}
SPEAKS = {**MACHINE_SPEAKS, **SOFTWARE_SPEAKS}


@pytest.fixture
def tree(make_tree: Callable[[str], Tree]) -> Tree:
    return make_tree("h200")


def test_every_check_has_a_quiet_tree_and_one_where_it_speaks() -> None:
    names = [check.name for check in table.CHECKS]

    assert list(QUIET) == names
    assert {check for check, *_ in SPEAKS.values()} == set(names)


@pytest.mark.root
@pytest.mark.parametrize("name", QUIET)
def test_quiet(name: str, tree: Tree) -> None:
    change = QUIET[name]
    if change is not None:
        change(tree)
    found = tree.examine(name)

    assert [finding for finding in found if finding.level not in ("ok", "skipped")] == []
    assert found != []


@pytest.mark.root
@pytest.mark.parametrize("case", SPEAKS)
def test_speaks(case: str, tree: Tree) -> None:
    name, change, level, words = SPEAKS[case]
    change(tree)
    found = tree.examine(name)

    assert [finding for finding in found if finding.level == level and words in finding.what + finding.why] != [], found
    check = next(check for check in table.CHECKS if check.name == name)
    for finding in found:
        assert (finding.check, finding.area) == (name, check.area)
        assert finding.level in ("ok", "skipped") or finding.why
        assert finding.level not in ("warning", "error") or finding.fix
        # A fix is a command, or a comment that a shell ignores.
        assert subprocess.run(["bash", "-n", "-c", finding.fix], check=False, timeout=20).returncode == 0, finding.fix
    assert "the check failed" not in str([finding.what for finding in found])


@pytest.mark.root
def test_divided_gpus_are_quiet(make_tree: Callable[[str], Tree]) -> None:
    tree = make_tree("a100-mig-dev")

    for name in ("mig-nodes", "mig-devices", "nodes-present", "nodes-numbers"):
        assert {finding.level for finding in tree.examine(name)} == {"ok"}


@pytest.mark.root
def test_a_divided_gpu_whose_devices_changed(make_tree: Callable[[str], Tree]) -> None:
    tree = make_tree("a100-mig-dev").spec(device="1:0")

    assert "offers devices that are gone" not in str(tree.examine("cdi-devices"))
    assert "lacks GPU" in str(tree.examine("cdi-devices"))
    assert "has devices that do not exist: 1:42" in str(tree.spec(device="1:42").examine("cdi-devices"))


@pytest.mark.root
def test_the_broken_machine(make_tree: Callable[[str], Tree]) -> None:
    tree = make_tree("broken")

    assert "libnvidia-allocator" in str(tree.examine("ldcache-stale"))
    assert "there are libraries of another driver" in str(tree.examine("libraries-version"))
    assert "built for EM_AARCH64" in str(tree.examine("libraries-needed"))


@pytest.mark.root
def test_the_running_kernel_can_be_asked_for_filters() -> None:
    """On this computer's own cgroup2 mount, wherever it is."""
    mounts = mountinfo.parse(Path("/proc/self/mountinfo").read_text())
    place = next((mount.point for mount in mounts if mount.kind == "cgroup2"), "")
    if not place:
        pytest.skip("no cgroup2 is mounted")
    cgroup.ask_filters(place)
    with pytest.raises(OSError, match="no such file"):
        cgroup.ask_filters("/no/where")


#: Engine -> its program.
ENGINE_PROGRAMS = {"docker": "dockerd", "podman": "podman", "containerd": "containerd", "crio": "crio"}


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ("podman version 4.5.0-rc1\n", "warning"),
        ("podman version 4.5.1\n", "ok"),
        ("podman version 5.0\n", "ok"),
        ("", "ok"),
    ],
)
def test_a_podman_that_gives_containers_their_images_annotations(tree: Tree, said: str, level: str) -> None:
    (found,) = tree.program("podman").says(said).examine("engine-podman")
    assert found.level == level
    assert level == "ok" or found.what.startswith("Podman 4.5.0 gives containers the annotations of their image")


@pytest.mark.root
@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_runtime_configure_wrote_is_well(engine: str, hooks: bool, tree: Tree) -> None:
    """N9: it warned of one."""
    row = ENGINES[engine]
    if hooks and not row.hooks_dir:
        pytest.skip("it has no hooks of its own")
    main_file, drop_in, hooks_dir = places(row, 0, {})
    memory = Memory()
    memory.carry_out(
        row.plan(
            EngineConfig(main_file=main_file, drop_in=drop_in, hooks_dir=hooks_dir, hooks=hooks, default=not hooks),
            memory,
        )
    )
    assert memory.texts
    tree.program(ENGINE_PROGRAMS[engine], "nvc-runtime", "nvc-hook", "runc", "crun")
    for path, text in memory.texts.items():
        tree.write(path, text)
    found = [
        finding for check in table.CHECKS if check.area in ("engines", "hooks") for finding in tree.examine(check.name)
    ]
    assert [one for one in found if one.level in ("warning", "error")] == []
    assert [one.what for one in found if one.check == f"engine-{engine}" and one.level == "ok"], found
