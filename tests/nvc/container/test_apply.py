"""Injection for real: what is there afterwards, with which attributes and owners; twice is once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nvc.base.errors import ContainerError, LdcacheError, MountError
from nvc.base.log import Log
from nvc.container.apply import _interleaved, apply
from nvc.container.operations import DEVICE, ENDPOINT, REGULAR, AllowDevices, BindMount, Symlink, Tmpfs, UpdateLdcache
from tests.support import injection
from tests.support.injection import VERSION, container, isolated, locate, mountinfo, operations, tree

pytestmark = pytest.mark.root
LOG = Log.none()
BROKEN = BindMount("/usr/bin/nvidia-smi", "/etc/ld.so.conf/below-a-file", "regular", ("ro",))


@isolated
def test_everything_is_there_with_its_attributes(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        before = mountinfo(pid)
        located = locate(pid, rootfs)
        plan = operations(located)
        assert apply(located, str(driver_root), plan, LOG) == len(plan)
        new = [line.split(" ") for line in mountinfo(pid) if line not in before]
        shown = {line[1].removeprefix(str(rootfs)): set(line[2].split(",")) - {"relatime"} for line in new}

        assert shown == {
            "/proc/driver": {"ro", "nosuid", "nodev", "noexec"},
            "/proc/driver/nvidia/gpus/0000:00:06.0": {"ro", "nosuid", "nodev", "noexec"},
            "/etc/nvidia/nvidia-application-profiles-rc.d": {"ro", "nosuid", "nodev", "noexec"},
            "/usr/bin/nvidia-smi": {"ro", "nosuid", "nodev"},
            f"/usr/lib64/libcuda.so.{VERSION}": {"ro", "nosuid", "nodev"},
            f"/usr/lib64/libnvidia-ml.so.{VERSION}": {"ro", "nosuid", "nodev"},
            "/lib/fw/gsp.bin": {"ro", "nosuid", "nodev"},
            "/run/nvidia-persistenced": {"rw", "nosuid", "nodev", "noexec"},
            "/dev/nvidiactl": {"ro", "nosuid", "noexec"},
            "/dev/nvidia0": {"ro", "nosuid", "noexec"},
        }
        inside = injection.inside(pid, rootfs, "/")
        assert (inside / "proc/driver/nvidia/params").read_text() == "ModifyDeviceFiles: 0\n"
        assert (inside / "proc/driver/nvidia/gpus/0000:00:06.0/information").read_text() == "Model: test\n"
        profile = (inside / "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf").read_text()
        assert profile == (
            '{ "profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", 0x1]}], '
            '"rules": [{"pattern": [], "profile": "_container_"}]}'
        )
        assert (inside / "dev/nvidia0").open("rb").read(1) == b"\0"
        assert os.readlink(inside / "usr/lib64/libcuda.so") == "libcuda.so.1"
        assert os.readlink(inside / "usr/lib64/libcuda.so.1") == f"libcuda.so.{VERSION}"
        assert b"libcuda.so.1" in (inside / "etc/ld.so.cache").read_bytes()
        for path in ("usr/bin/nvidia-smi", "proc/driver/nvidia/params", "dev/nvidia0"):
            with pytest.raises(OSError, match=r"Read-only file system"):
                os.chmod(inside / path, 0o777)
        assert mountinfo() == [line for line in mountinfo() if str(rootfs) not in line]


@isolated
def test_files_of_a_user_namespace_belong_to_its_root(driver_root: Path, rootfs: Path) -> None:
    for directory, _, _ in os.walk(rootfs):
        os.chown(directory, 100_000, 100_000)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        located.container = located.container.replace(owner_uid=100_000, owner_gid=100_000)
        apply(located, str(driver_root), operations(located), LOG)
        inside = injection.inside(pid, rootfs, "/")

        made = ("lib/fw", "usr/lib64/libcuda.so", "usr/lib64/libcuda.so.1", "etc/ld.so.cache", "etc/nvidia")
        assert {path: (inside / path).lstat().st_uid for path in made} == dict.fromkeys(made, 100_000)
        ours = ("proc/driver", "proc/driver/nvidia/params", "etc/nvidia/nvidia-application-profiles-rc.d")
        assert {path: (inside / path).stat().st_uid for path in ours} == dict.fromkeys(ours, 100_000)
        assert (inside / "usr/bin/nvidia-smi").stat().st_uid == 0


def _give_away(rootfs: Path, owner: int) -> None:
    for path in (rootfs, *rootfs.rglob("*")):
        os.chown(path, owner, owner, follow_symlinks=False)
    for parent in rootfs.parents:
        if len(parent.parts) > 2:
            parent.chmod(0o755)


@isolated
def test_a_container_with_a_user_namespace_of_its_own(driver_root: Path, rootfs: Path) -> None:
    _give_away(rootfs, 100_000)
    with injection.user_namespace_container(rootfs, 100_000) as pid:
        located = locate(pid, rootfs)
        assert located.container.owner_uid == 100_000
        mounts = mountinfo(pid)
        plan = operations(located)
        assert apply(located, str(driver_root), plan, LOG) == len(plan)
        assert len(mountinfo(pid)) == len(mounts) + 10
        inside = injection.inside(pid, rootfs, "/")
        assert (inside / "etc/ld.so.cache").stat().st_uid == 100_000
        assert os.readlink(inside / "usr/lib64/libcuda.so.1") == f"libcuda.so.{VERSION}"


@isolated
def test_standalone_as_root_of_a_user_namespace(driver_root: Path, rootfs: Path) -> None:
    # As LXC's hook runs us: in the container's user and mount namespaces, without privilege outside.
    _give_away(rootfs, 4242)
    for parent in (driver_root, *driver_root.parents):
        if len(parent.parts) > 2:
            parent.chmod(0o755)
    os.setgroups([])
    os.setresgid(4242, 4242, 4242)
    os.setresuid(4242, 4242, 4242)
    injection.check(injection._libc.prctl(4, 1, 0, 0, 0), "dumpable")
    injection.check(injection._libc.unshare(injection.CLONE_NEWUSER | injection.CLONE_NEWNS), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text("0 4242 1")
    Path("/proc/self/gid_map").write_text("0 4242 1")
    injection.mount(str(rootfs), rootfs, None, injection.MS_BIND)
    injection.mount("/proc", rootfs / "proc", None, injection.MS_BIND | injection.MS_REC)
    located = locate(None, rootfs)
    plan = operations(located)

    assert apply(located, str(driver_root), plan, LOG) == len(plan)
    assert (rootfs / "proc/driver/nvidia/version").read_text() == "NVRM version: test\n"
    assert (rootfs / "etc/ld.so.cache").exists()


@isolated
def test_twice_is_once(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        plan = operations(located)
        apply(located, str(driver_root), plan, LOG)
        mounts, files = mountinfo(pid), tree(rootfs, skip=("etc/ld.so.cache", "var/"))

        assert apply(located, str(driver_root), plan[:-1], LOG) == 0
        apply(locate(pid, rootfs), str(driver_root), plan, LOG)
        assert mountinfo(pid) == mounts
        assert tree(rootfs, skip=("etc/ld.so.cache", "var/")) == files


@isolated
def test_another_gpu_later_gets_a_new_cover(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        apply(located, str(driver_root), operations(located, cache=False), LOG)
        more = Tmpfs("/proc/driver", 0o555, ("/proc/driver/nvidia/gpus/other",), injection.PROC_FILES)

        assert apply(located, str(driver_root), (more,), LOG) == 1
        assert injection.inside(pid, rootfs, "/proc/driver/nvidia/gpus/other").is_dir()


@isolated
def test_standalone_works_in_the_namespace_it_is_called_in(driver_root: Path, rootfs: Path) -> None:
    injection.mount(str(rootfs), rootfs, None, injection.MS_BIND)
    injection.mount("proc", rootfs / "proc", "proc", 0)
    located = locate(None, rootfs)
    apply(located, str(driver_root), operations(located), LOG)

    assert (rootfs / "dev/nvidia0").is_char_device()
    assert (rootfs / "proc/driver/nvidia/version").read_text() == "NVRM version: test\n"


@isolated
def test_files_of_the_hosts_own_proc(rootfs: Path) -> None:
    # What a real driver root has: directories and files of procfs, shown inside the tmpfs on the container's procfs.
    read_only = ("ro", "nodev", "nosuid", "noexec")
    place = "/proc/driver/nvidia"
    plan = (
        Tmpfs("/proc/driver", 0o555, (f"{place}/gpus/0",), (injection.ProcFile(f"{place}/access", 0o444, ""),)),
        BindMount("/proc/sys/kernel", f"{place}/gpus/0", "directory", read_only),
        BindMount("/proc/version", f"{place}/access", "regular", read_only),
        BindMount("/dev/null", "/dev/nvidia-caps/nvidia-cap1", "device", ("ro", "nosuid", "noexec"), 1, 3),
    )
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        assert apply(located, "/", plan, LOG) == len(plan)
        assert apply(located, "/", plan, LOG) == 0
        inside = injection.inside(pid, rootfs, place)

        assert (inside / "access").read_text() == Path("/proc/version").read_text()
        assert (inside / "gpus/0/ostype").read_text() == "Linux\n"
        with pytest.raises(OSError, match=r"Read-only file system"):
            (inside / "gpus/0/hostname").write_text("x")
        assert injection.inside(pid, rootfs, "/dev/nvidia-caps/nvidia-cap1").is_char_device()


@isolated
def test_a_socket_on_a_socket(driver_root: Path, rootfs: Path) -> None:
    # The host's /run bind-mounted into the container: the target is the socket itself (libnvidia-container 187).
    (driver_root / "run/socket").unlink(missing_ok=True)
    os.mknod(driver_root / "run/socket", stat.S_IFSOCK | 0o666)
    (rootfs / "run").mkdir()
    os.mknod(rootfs / "run/socket", stat.S_IFSOCK | 0o666)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        endpoint = BindMount("/run/socket", "/run/socket", "endpoint", ("nodev", "nosuid", "noexec"))

        assert apply(located, str(driver_root), (endpoint,), LOG) == 1
        assert apply(located, str(driver_root), (endpoint,), LOG) == 0


@isolated
def test_a_container_that_ended_is_told_so(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        plan = operations(located)
    # Our descriptor holds its namespace: it can still be entered, or the error is clear.
    try:
        apply(located, str(driver_root), plan, LOG)
    except (MountError, ContainerError, LdcacheError) as error:
        assert str(rootfs) in error.message or "namespace" in error.message
    assert mountinfo() == [line for line in mountinfo() if str(rootfs) not in line]


@isolated
def test_a_root_that_was_replaced_is_refused(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        located.rootfs = (0, 0)
        with pytest.raises(MountError) as caught:
            apply(located, str(driver_root), operations(located), LOG)

        assert "replaced by another directory" in caught.value.message


@isolated
def test_we_return_to_where_we_were(driver_root: Path, rootfs: Path) -> None:
    home = os.stat("/proc/self/ns/mnt").st_ino
    importers = list(__import__("sys").meta_path)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        apply(located, str(driver_root), operations(located), LOG)
        with pytest.raises(MountError):
            apply(located, str(driver_root), (BROKEN,), LOG)

        assert os.stat("/proc/self/ns/mnt").st_ino == home
        assert importers == list(__import__("sys").meta_path)


def test_ldconfig_runs_last(driver_root: Path, rootfs: Path) -> None:
    @isolated
    def run() -> None:
        with container(rootfs) as pid:
            assert isinstance(operations(locate(pid, rootfs))[-1], UpdateLdcache)

    run()


def test_what_ldconfig_does_not_look_at_is_done_while_it_runs() -> None:
    """In the plan's order otherwise; what comes after an update waits for its end."""
    library = BindMount("/l", "/usr/lib/libcuda.so.1", REGULAR, ())
    late = [
        Tmpfs("/proc/driver/nvidia", 0o555),
        BindMount("/s", "/run/nvidia-persistenced/socket", ENDPOINT, ()),
        BindMount("/d", "/dev/nvidia0", DEVICE, (), 195, 0),
        AllowDevices(((195, 0),)),
    ]
    link, update, after = Symlink("/usr/lib/libcuda.so", "libcuda.so.1"), UpdateLdcache("/l", ()), late[2]

    told = list(_interleaved([(one, None) for one in (late[0], library, *late[1:], link, update, after)]))

    assert [one for one, _, _ in told] == [library, link, update, *late, update, after]
    assert [index for index, (_, _, beginning) in enumerate(told) if beginning] == [2]
    assert [one for one, _, _ in _interleaved([(late[0], None), (library, None)])] == [late[0], library]
