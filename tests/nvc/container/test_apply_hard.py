"""Injection under attack, on an old kernel, and with a cgroup: what one run of ``apply`` must never do."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvc.base.errors import LdcacheError, MountError
from nvc.base.log import Log
from nvc.container.apply import MountNamespace, apply
from nvc.container.execute import with_content
from nvc.container.operations import AllowDevices, BindMount, Tmpfs
from nvc.linux import bpf, const, procfd, syscalls
from nvc.linux.cgroup import open_directory
from nvc.linux.fd import Fd
from nvc.model import CgroupRef, ProcFile
from tests.support import injection
from tests.support.cgroupview import device_rules
from tests.support.injection import container, isolated, locate, mountinfo, operations, tree

pytestmark = pytest.mark.root
LOG = Log.none()
BROKEN = BindMount("/usr/bin/nvidia-smi", "/etc/ld.so.conf/below-a-file", "regular", ("ro",))
NEW_CALLS = ("fsopen", "mount_setattr", "move_mount", "open_tree", "openat2")


@contextmanager
def swapping(path: Path, link: str) -> Iterator[None]:
    """Meanwhile a process exchanges the directory ``path`` and a link, as fast as it can."""
    other = path.with_name(path.name + "-swap")
    other.symlink_to(link)
    pid = os.fork()
    if pid == 0:
        try:
            # renameat2(RENAME_EXCHANGE): both names exist at every moment.
            while True:
                injection._libc.renameat2(-100, os.fsencode(path), -100, os.fsencode(other), 2)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("name", ["usr/lib64", "usr", "run"])
def test_links_swapped_meanwhile_never_reach_the_host(
    driver_root: Path, rootfs: Path, tmp_path: Path, name: str
) -> None:
    @isolated
    def run() -> None:
        (rootfs / name).mkdir(exist_ok=True)
        outside = tmp_path / "outside"
        (outside / "lib64").mkdir(parents=True)
        before = tree(outside)
        outcomes = set()
        with container(rootfs) as pid, swapping(rootfs / name, "../" * 12 + str(outside)):
            for _ in range(25):
                try:
                    located = locate(pid, rootfs)
                    apply(located, str(driver_root), operations(located, cache=False), LOG)
                    outcomes.add("done")
                except MountError as error:
                    outcomes.add(error.message.partition(":")[0])
                assert tree(outside) == before
                assert not [line for line in mountinfo(pid) if line.split(" ")[1].startswith(str(outside))]
            assert outcomes

    run()


@isolated
def test_a_kernel_without_the_new_calls(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        mounts = mountinfo(pid)
        located = locate(pid, rootfs)
        plan = operations(located)
        apply(located, str(driver_root), plan, LOG)
        expected = mountinfo(pid)
    with container(rootfs) as pid:
        syscalls.unavailable.update(NEW_CALLS)
        located = locate(pid, rootfs)
        apply(located, str(driver_root), plan, LOG)
        assert [line for line in mountinfo(pid) if line not in mounts] == [
            line for line in expected if line not in mounts
        ]
        assert mountinfo() == [line for line in mountinfo() if "nvc-tmpfs" not in line]


@pytest.mark.parametrize("position", [0, 3, 7, 11])
def test_a_failure_on_a_kernel_without_the_new_calls_is_undone(driver_root: Path, rootfs: Path, position: int) -> None:
    @isolated
    def run() -> None:
        syscalls.unavailable.update(NEW_CALLS)
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            plan = operations(located)
            mounts, files = mountinfo(pid), tree(rootfs)
            with pytest.raises(MountError):
                apply(located, str(driver_root), (*plan[:position], BROKEN, *plan[position:]), LOG)
            assert mountinfo(pid) == mounts
            assert tree(rootfs) == files

    run()


def _device_cgroup() -> tuple[int, Path]:
    """A cgroup of our own, as runtimes make one for a container: (version, directory)."""
    name = f"nvc-apply-{os.getpid()}"
    for version, path in ((1, "/sys/fs/cgroup/devices"), (2, "/sys/fs/cgroup")):
        if Path(path, "cgroup.procs").exists():
            Path(path, name).mkdir()
            return version, Path(path, name)
    raise AssertionError("no device cgroup on this machine")


def _deny_all(directory: Path) -> None:
    """The program of a runtime that allows no device: r0 = 0; exit."""
    with open_directory(str(directory)) as opened, bpf.load(bpf.instruction(0xB7) + bpf.instruction(0x95)) as program:
        bpf.attach(opened, program, const.BPF_F_ALLOW_MULTI)


def test_rules_are_taken_back_when_the_cache_fails(driver_root: Path, rootfs: Path) -> None:
    version, directory = _device_cgroup()

    @isolated
    def run() -> None:
        (rootfs / "etc/ld.so.cache").mkdir()
        (rootfs / "etc/ld.so.cache/full").touch()
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            located.container = located.container.replace(cgroup=CgroupRef(version, str(directory)))
            before = device_rules(version, directory)
            *plan, update = operations(located)
            rules = AllowDevices(((195, 255), (195, 0)))
            with pytest.raises(LdcacheError):
                apply(located, str(driver_root), (*plan, rules, update), LOG)
            assert device_rules(version, directory) == before
            assert apply(located, str(driver_root), (rules,), LOG) == 1
            assert device_rules(version, directory) != before
            assert apply(located, str(driver_root), (rules,), LOG) == 0

    try:
        if version == 1:
            (directory / "devices.deny").write_text("a")
            (directory / "devices.allow").write_text("c 1:3 rwm")
        else:
            _deny_all(directory)
        run()
    finally:
        directory.rmdir()


@isolated
def test_rules_without_a_cgroup_are_refused_before_anything_is_done(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        mounts = mountinfo(pid)
        with pytest.raises(MountError) as caught:
            apply(located, str(driver_root), (*operations(located), AllowDevices(((195, 0),))), LOG)

        assert "failed to add device rules" in caught.value.message
        assert mountinfo(pid) == mounts


@isolated
def test_a_cgroup_that_is_gone_is_named(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        located.container = located.container.replace(cgroup=CgroupRef(1, "/sys/fs/cgroup/devices/gone"))
        with pytest.raises(MountError) as caught:
            apply(located, str(driver_root), (AllowDevices(((195, 0),)),), LOG)

        assert caught.value.message == (
            "failed to add device rules: /sys/fs/cgroup/devices/gone: no such file or directory"
        )


@isolated
def test_a_distribution_whose_library_directory_is_read_only(driver_root: Path, rootfs: Path) -> None:
    # Fedora and its kin: /usr/lib64 is 0555. ldconfig makes links there with DAC_OVERRIDE alone.
    for path in ("usr/lib64", "etc", "usr/bin"):
        os.chmod(rootfs / path, 0o555)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        apply(located, str(driver_root), operations(located), LOG)

        assert (rootfs / "usr/lib64/libcuda.so.1").is_symlink()
        assert (rootfs / "etc/ld.so.cache").exists()


@isolated
def test_a_mount_with_fewer_restrictions_does_not_count(driver_root: Path, rootfs: Path) -> None:
    """The same file was bound before us, but writable."""
    (rootfs / "usr/bin/nvidia-smi").touch()
    wanted = BindMount("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", "regular", ("ro", "nodev", "nosuid"))
    injection.mount(str(rootfs), rootfs, None, injection.MS_BIND)
    injection.mount(str(driver_root / "usr/bin/nvidia-smi"), rootfs / "usr/bin/nvidia-smi", None, injection.MS_BIND)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        assert apply(located, str(driver_root), (wanted,), LOG) == 1
        with pytest.raises(OSError, match="Read-only file system"):
            injection.inside(pid, rootfs, "/usr/bin/nvidia-smi").write_text("")
        assert apply(located, str(driver_root), (wanted,), LOG) == 0


@isolated
def test_nothing_is_imported_in_the_container_and_everything_is_as_before_afterwards(rootfs: Path) -> None:
    with container(rootfs) as pid:
        namespace = locate(pid, rootfs).namespace
        assert namespace is not None
        procfd.pin()
        importers, home = list(sys.meta_path), os.stat("/proc/self/ns/mnt").st_ino
        os.chroot(rootfs)  # a caller whose root is not its namespace's, as in a chrooted engine
        ours = os.stat("/").st_ino
        with MountNamespace(namespace):
            assert sys.meta_path == []
            assert os.stat("/proc/self/ns/mnt").st_ino != home
        assert sys.meta_path == importers
        assert os.stat("/").st_ino == os.stat(".").st_ino == ours


@pytest.mark.parametrize("path", ["/proc/driver/../x", "/proc/driver", "/etc/x"])
def test_content_stays_in_its_file_system(path: str) -> None:
    content = Tmpfs("/proc/driver", 0o555, files=(ProcFile(path, 0o444, "text"),))
    with pytest.raises(MountError, match="is not below /proc/driver"):
        with_content(content, Fd(os.open("/", os.O_PATH | os.O_CLOEXEC), "/"))
