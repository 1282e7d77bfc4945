"""What holds for every plan, whatever it is made of: drawn at random, merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from nvc.container.operations import AllowDevices, BindMount, Symlink, Tmpfs
from nvc.container.plan import (
    Scope,
    device_mig_caps,
    device_mount,
    driver_mount,
    ldcache_update,
    merge,
    mig_access,
    mig_config,
    mig_monitor,
)
from nvc.request.capabilities import WORDS, DriverCapabilities
from tests.nvc.container.test_plan import CONTAINER, DRIVER, PROC_FILES, gpu, nvcap, rules, targets

if TYPE_CHECKING:
    from nvc.container.operations import Operation


@st.composite
def plans(draw: st.DrawFn) -> tuple[Scope, list[Operation]]:
    words = draw(st.sets(st.sampled_from(WORDS)))
    chosen = Scope(CONTAINER, DriverCapabilities(words), devbind=draw(st.booleans()), cgroups=draw(st.booleans()))
    parts: list[tuple[Operation, ...]] = []
    if draw(st.booleans()):
        parts.append(driver_mount(chosen, DRIVER, PROC_FILES))
    for minor in draw(st.lists(st.integers(0, 80), max_size=3)):
        found = gpu(minor)
        parts.append(device_mount(chosen, found))
        parts += [mig_access(chosen, found.mig_devices[i]) for i in draw(st.lists(st.integers(0, 2), max_size=3))]
    if draw(st.booleans()):
        parts.append(mig_config(chosen, nvcap("mig/config", draw(st.sampled_from((1, None))))))
        parts.append(device_mig_caps(chosen, gpu(0)))
    if draw(st.booleans()):
        parts.append(mig_monitor(chosen, nvcap("mig/monitor", 2)))
    if draw(st.booleans()):
        parts.append(ldcache_update(CONTAINER))
    return chosen, [operation for part in draw(st.permutations(parts)) for operation in part]


@given(plans())
def test_merging_again_changes_nothing(drawn: tuple[Scope, list[Operation]]) -> None:
    merged = merge(drawn[1])

    assert merged == merge(merged)
    assert merged == merge((*merged, *merged))


@given(plans())
def test_no_target_twice_and_none_below_a_mounted_tree(drawn: tuple[Scope, list[Operation]]) -> None:
    merged = merge(drawn[1])
    paths = [o.container_path for o in merged if isinstance(o, BindMount | Symlink)]
    trees = [o.container_path + "/" for o in merged if isinstance(o, BindMount) and o.source == "directory"]

    assert len(paths) == len(set(paths))
    assert not any(path.startswith(tree) for path in paths for tree in trees)
    assert len([o for o in merged if isinstance(o, AllowDevices)]) <= 1


@given(plans())
def test_every_mounted_node_may_be_opened_and_every_rule_has_its_node(drawn: tuple[Scope, list[Operation]]) -> None:
    chosen, operations = drawn
    merged = merge(operations)
    mounted = {(o.major, o.minor) for o in merged if isinstance(o, BindMount) and o.source == "device"}
    allowed = set(rules(merged))
    # The directory of all nvcaps shows their nodes without a mount for each.
    whole_directory = "/dev/nvidia-caps" in targets(merged)

    assert not chosen.cgroups or mounted <= allowed
    if chosen.cgroups and chosen.devbind:
        assert {rule for rule in allowed if not (whole_directory or device_mig_only(rule))} <= mounted
    if not chosen.cgroups:
        assert not allowed


def device_mig_only(rule: tuple[int, int]) -> bool:
    return rule[0] == 237


@given(plans())
def test_every_proc_target_has_its_mount_point_in_the_tmpfs(drawn: tuple[Scope, list[Operation]]) -> None:
    merged = merge(drawn[1])
    points = {
        path for o in merged if isinstance(o, Tmpfs) for path in (*o.directories, *(file.path for file in o.files))
    }

    assert {path for path in targets(merged) if path.startswith("/proc/")} <= points
