"""A plan that is applied before its end is known: the container is as with all of it at once, or as it was."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nvc.base.errors import LdcacheError, MountError
from nvc.base.log import Log
from nvc.container import apply as module
from nvc.container import service
from nvc.container.apply import apply
from nvc.container.messages import ApplyRequest, ContainerConfig, InspectRequest
from nvc.container.namespace import MountNamespace
from nvc.container.operations import DEVICE, AllowDevices, BindMount, Tmpfs, UpdateLdcache, divide
from nvc.linux import syscalls
from rpc.errors import Stop
from tests.support import injection
from tests.support.injection import container, isolated, locate, mountinfo, operations, tree
from tests.support.leftovers import wait_until

if TYPE_CHECKING:
    from nvc.container.operations import Operation

pytestmark = pytest.mark.root
LOG = Log.none()
BELOW_A_FILE = BindMount("/usr/bin/nvidia-smi", "/etc/ld.so.conf/below-a-file", "regular", ("ro",))
MISSING_NODE = BindMount("/dev/nvidia7", "/dev/nvidia7", DEVICE, ("ro",), 195, 7)


@pytest.fixture(scope="module")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return injection.make_driver_root(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    return injection.make_rootfs(tmp_path / "rootfs")


def places(pid: int, rootfs: Path) -> set[str]:
    return {line.split(" ")[1].removeprefix(str(rootfs)) for line in mountinfo(pid)}


def raising(error: BaseException) -> Callable[[], Iterable[Operation]]:
    def rest() -> Iterable[Operation]:
        raise error

    return rest


def test_what_is_of_a_gpu_is_in_the_second_part() -> None:
    bind = BindMount("/lib/a.so", "/usr/lib/a.so", "regular", ("ro",))
    node = BindMount("/dev/nvidia0", "/dev/nvidia0", DEVICE, ("ro",), 195, 0)
    shown = BindMount("/proc/driver/nvidia/gpus/0", "/proc/driver/nvidia/gpus/0", "directory", ("ro",))
    proc, rules, cache = Tmpfs("/proc/driver/nvidia", 0o555), AllowDevices(((195, 0),)), UpdateLdcache("/l", ("/lib",))

    assert divide((proc, bind, node, shown, rules, cache)) == ((bind, cache), (proc, node, shown, rules))


def _both_ways(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        located, before, found = locate(pid, rootfs), places(pid, rootfs), tree(rootfs)
        first, rest = divide(operations(located))
        home, importers = os.stat("/proc/self/ns/mnt").st_ino, list(sys.meta_path)
        seen: list[set[str]] = []

        def later() -> Iterable[Operation]:
            assert os.stat("/proc/self/ns/mnt").st_ino == home
            assert sys.meta_path == importers
            seen.append(places(pid, rootfs) - before)
            return rest

        assert apply(located, str(driver_root), first, LOG, later) == len(first) + len(rest)
        (halfway,) = seen
        assert "/usr/bin/nvidia-smi" in halfway
        assert not {place for place in halfway if place.startswith(("/dev", "/proc"))}
        assert {"/dev/nvidia0", "/proc/driver", "/run/nvidia-persistenced"} <= places(pid, rootfs)
        assert b"libcuda.so.1" in (injection.inside(pid, rootfs, "/") / "etc/ld.so.cache").read_bytes()
        assert apply(located, str(driver_root), operations(located, cache=False), LOG) == 0, "all of it is there"
        assert found != tree(rootfs)


@isolated
def test_two_parts_are_the_whole(driver_root: Path, rootfs: Path) -> None:
    _both_ways(driver_root, rootfs)


@isolated
def test_two_parts_without_the_mount_calls_of_newer_kernels(driver_root: Path, rootfs: Path) -> None:
    syscalls.unavailable.update(("open_tree", "move_mount", "mount_setattr", "fsopen"))
    _both_ways(driver_root, rootfs)


@isolated
def test_a_host_without_ldconfig_gets_its_nodes_too(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        first, rest = divide(operations(located, cache=False))
        assert not [one for one in first if isinstance(one, UpdateLdcache)]
        apply(located, str(driver_root), first, LOG, lambda: rest)
        assert "/dev/nvidia0" in places(pid, rootfs)


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        pytest.param(raising(MountError("the plan was given up")), MountError, id="given-up"),
        pytest.param(raising(Stop()), Stop, id="stopped"),
        pytest.param(lambda: [MISSING_NODE], MountError, id="no-such-node"),
        pytest.param(lambda: [BindMount("/usr/bin/nvidia-smi", "/usr/bin/late", "regular", ())], MountError, id="file"),
        pytest.param(lambda: [UpdateLdcache("/sbin/ldconfig", ("/usr/lib",))], MountError, id="another-ldconfig"),
    ],
)
def test_nothing_is_left_without_the_second_part(
    driver_root: Path, rootfs: Path, rest: Callable[[], Iterable[Operation]], error: type[BaseException]
) -> None:
    _fails(driver_root=driver_root, rootfs=rootfs, rest=rest, error=error)


@isolated
def _fails(
    driver_root: Path, rootfs: Path, rest: Callable[[], Iterable[Operation]], error: type[BaseException]
) -> None:
    with container(rootfs) as pid:
        located, mounts, files = locate(pid, rootfs), mountinfo(pid), tree(rootfs)
        first, _ = divide(operations(located))
        home = os.stat("/proc/self/ns/mnt").st_ino
        with pytest.raises(error):
            apply(located, str(driver_root), first, LOG, rest)
        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files
        assert os.stat("/proc/self/ns/mnt").st_ino == home


@isolated
def test_a_stop_outside_of_the_container_undoes_what_is_in_it(
    driver_root: Path, rootfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kept(MountNamespace):
        def away(self, function: Callable[[], Any]) -> Any:
            self._leave()
            raise Stop  # between two steps of the way back

    monkeypatch.setattr(module, "MountNamespace", Kept)
    with container(rootfs) as pid:
        located, mounts, files = locate(pid, rootfs), mountinfo(pid), tree(rootfs)
        first, rest = divide(operations(located))
        with pytest.raises(Stop):
            apply(located, str(driver_root), first, LOG, lambda: rest)
        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


def begun(pid: int, rootfs: Path, driver_root: Path, *more: Operation) -> tuple[Any, Any, tuple[Operation, ...]]:
    client = service.start(deadline=60, log=LOG)
    config = ContainerConfig(pid, str(rootfs))
    client.inspect(InspectRequest(config, supervised=True, find_cgroup=False, find_compat=False))
    first, rest = divide(operations(locate(pid, rootfs)))
    return client, client.begin_apply(ApplyRequest(str(driver_root), (*more, *first)), deadline=60), rest


@isolated
def test_the_service_waits_for_the_second_part(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        client, applying, rest = begun(pid, rootfs, driver_root)
        wait_until(lambda: "/usr/bin/nvidia-smi" in places(pid, rootfs))
        assert applying.finish(rest, deadline=60) == len(operations(locate(pid, rootfs)))
        assert "/dev/nvidia0" in places(pid, rootfs)
        client.close()


@isolated
def test_a_plan_that_is_given_up_is_undone_and_another_can_follow(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        mounts, files = mountinfo(pid), tree(rootfs)
        client, applying, _ = begun(pid, rootfs, driver_root)
        wait_until(lambda: "/usr/bin/nvidia-smi" in places(pid, rootfs))
        applying.abandon(deadline=60)
        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files
        plan = operations(locate(pid, rootfs))
        assert client.apply(ApplyRequest(str(driver_root), plan), deadline=60) == len(plan)
        client.close()


@isolated
def test_what_failed_in_the_first_part_is_the_answer(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        mounts, files = mountinfo(pid), tree(rootfs)
        client, applying, rest = begun(pid, rootfs, driver_root, BELOW_A_FILE)
        with pytest.raises((MountError, LdcacheError), match="below-a-file"):
            applying.finish(rest, deadline=60)
        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files
        client.close()


def test_nothing_is_left_of_a_caller_that_is_killed(driver_root: Path, tmp_path: Path) -> None:
    for delay in (0, 0.003, 0.03):
        _killed(driver_root=driver_root, rootfs=injection.make_rootfs(tmp_path / f"rootfs{delay}"), delay=delay)


@isolated
def _killed(driver_root: Path, rootfs: Path, delay: float) -> None:
    with container(rootfs) as pid:
        mounts, files = mountinfo(pid), tree(rootfs)
        caller = os.fork()
        if caller == 0:
            kept = begun(pid, rootfs, driver_root)
            signal.pause()
            os._exit(len(kept))
        wait_until(lambda: mountinfo(pid) != mounts)
        time.sleep(delay)
        os.kill(caller, signal.SIGKILL)
        os.waitpid(caller, 0)
        wait_until(lambda: mountinfo(pid) == mounts and tree(rootfs) == files)
