"""Injection for real: flags, all or nothing, twice is once, links that lead out, propagation, bad roots."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nvc.apply import apply
from nvc.errors import ContainerError, LdcacheError, MountError
from nvc.log import Log
from nvc.operations import BindMount, Symlink, Tmpfs, UpdateLdcache
from tests.support import injection
from tests.support.injection import VERSION, container, isolated, locate, mountinfo, operations, tree

pytestmark = pytest.mark.root
LOG = Log.none()
BROKEN = BindMount("/usr/bin/nvidia-smi", "/etc/ld.so.conf/below-a-file", "regular", ("ro",))


@pytest.fixture(scope="module")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return injection.make_driver_root(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    return injection.make_rootfs(tmp_path / "rootfs")


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


@pytest.mark.parametrize("position", range(12))
def test_failure_at_any_step_leaves_the_container_as_it_was(driver_root: Path, rootfs: Path, position: int) -> None:
    @isolated
    def run() -> None:
        (rootfs / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.470")
        (rootfs / "etc/ld.so.cache").write_text("old cache")
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            plan = operations(located)
            assert position < len(plan)
            mounts, files = mountinfo(pid), tree(rootfs)
            with pytest.raises(MountError) as caught:
                apply(located, str(driver_root), (*plan[:position], BROKEN, *plan[position:]), LOG)

            assert caught.value.message == f"file creation failed: {rootfs}{BROKEN.container_path}: not a directory"
            assert mountinfo(pid) == mounts
            assert tree(rootfs) == files

    run()


@isolated
def test_failure_after_the_cache_was_updated_restores_it(driver_root: Path, rootfs: Path) -> None:
    (rootfs / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.470")
    (rootfs / "etc/ld.so.cache").write_text("old cache")
    (rootfs / "etc/ld.so.cache").chmod(0o640)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        mounts, files = mountinfo(pid), tree(rootfs)
        with pytest.raises(MountError):
            apply(located, str(driver_root), (*operations(located), BROKEN), LOG)

        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


@isolated
def test_a_signal_in_the_middle_takes_everything_back(driver_root: Path, rootfs: Path) -> None:
    class Interrupt(BaseException):
        pass

    class Interrupting(Log):
        def info(self, text: str) -> None:
            raise Interrupt

        @property
        def enabled(self) -> bool:
            return True

    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        mounts, files = mountinfo(pid), tree(rootfs)
        kept = Symlink("/etc/ld.so.conf", "x")  # in force already: that is what the log is told
        with pytest.raises(Interrupt):
            apply(located, str(driver_root), (*operations(located, cache=False), kept), Interrupting())

        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


LINKS = [
    pytest.param("dev", id="/dev"),
    pytest.param("usr", id="/usr"),
    pytest.param("usr/lib64", id="library directory"),
    pytest.param("usr/bin", id="binary directory"),
    pytest.param("lib", id="/lib"),
    pytest.param("run", id="/run"),
    pytest.param("etc/nvidia", id="/etc/nvidia"),
    pytest.param("etc/nvidia/nvidia-application-profiles-rc.d", id="profile directory"),
    pytest.param("run/nvidia-persistenced", id="socket directory"),
    pytest.param(f"usr/lib64/libcuda.so.{VERSION}", id="library name"),
    pytest.param("usr/lib64/libcuda.so", id="developer link name"),
    pytest.param("usr/lib64/libcuda.so.1", id="SONAME link name"),
    pytest.param("usr/bin/nvidia-smi", id="program name"),
    pytest.param("lib/fw/gsp.bin", id="firmware name"),
    pytest.param("etc/ld.so.cache", id="/etc/ld.so.cache"),
    pytest.param("etc/ld.so.cache~", id="temporary cache"),
    pytest.param("var/cache/ldconfig", id="auxiliary cache directory"),
]


@pytest.mark.parametrize("form", ["absolute", "relative"])
@pytest.mark.parametrize("name", LINKS)
def test_links_out_of_the_rootfs_never_reach_the_host(
    driver_root: Path, rootfs: Path, tmp_path: Path, name: str, form: str
) -> None:
    @isolated
    def run() -> None:
        outside = tmp_path / "host"
        outside.mkdir()
        (outside / "precious").write_text("host file")
        link = rootfs / name
        kind = "precious" if "." in link.name and "rc.d" not in link.name else ""
        if link.is_dir() and not link.is_symlink():
            for directory, _, _ in os.walk(link, topdown=False):
                os.rmdir(directory)
        link.parent.mkdir(parents=True, exist_ok=True)
        destination = str(outside / kind)
        link.symlink_to(destination if form == "absolute" else "../" * 12 + destination.lstrip("/"))
        before = tree(outside)
        with _container_without_dev(rootfs) as pid:
            try:
                located = locate(pid, rootfs)
                apply(located, str(driver_root), operations(located), LOG)
            except (MountError, LdcacheError):
                pass  # a clear error is as good as a link that was followed inside
            assert tree(outside) == before
            assert (outside / "precious").read_text() == "host file"
            assert not [line for line in mountinfo(pid) if line.split(" ")[1].startswith(str(outside))]
            assert not [line for line in mountinfo() if str(rootfs) in line]

    run()


def _container_without_dev(rootfs: Path) -> object:
    return container(rootfs, with_dev=not (rootfs / "dev").is_symlink())


@pytest.mark.parametrize("name", ["proc", "proc/driver"])
def test_proc_that_leads_out_is_refused(driver_root: Path, rootfs: Path, tmp_path: Path, name: str) -> None:
    @isolated
    def run() -> None:
        outside = tmp_path / "host/driver/nvidia"
        outside.mkdir(parents=True)
        if name == "proc":
            (rootfs / "proc").rmdir()
        (rootfs / name).symlink_to(tmp_path / "host" / name.partition("/")[2])
        with container(rootfs, with_proc=False, with_dev=False) as pid:
            located = locate(pid, rootfs)
            with pytest.raises(MountError) as caught:
                apply(located, str(driver_root), operations(located), LOG)
            assert f"mount operation failed: {rootfs}/proc/driver: no such file or directory" in caught.value.message
            assert list(outside.iterdir()) == []
            assert not [line for line in mountinfo(pid) if "/host/" in line.split(" ")[1]]

    run()


@isolated
def test_a_shared_rootfs_sends_no_mount_to_the_host(driver_root: Path, rootfs: Path) -> None:
    injection.mount(str(rootfs), rootfs, None, injection.MS_BIND)
    injection.mount(None, rootfs, None, injection.MS_SHARED)
    before = mountinfo()
    with container(rootfs, propagation=0, own_mount=False, with_proc=False, with_dev=False) as pid:
        located = locate(pid, rootfs)
        (rootfs / "proc/driver").mkdir()
        plan = operations(located)
        assert any("shared" in line for line in mountinfo(pid) if str(rootfs) in line)
        apply(located, str(driver_root), plan, LOG)

        assert len(mountinfo(pid)) >= len(before) + 10
        assert mountinfo() == before


@isolated
def test_standalone_works_in_the_namespace_it_is_called_in(driver_root: Path, rootfs: Path) -> None:
    injection.mount(str(rootfs), rootfs, None, injection.MS_BIND)
    injection.mount("proc", rootfs / "proc", "proc", 0)
    located = locate(None, rootfs)
    apply(located, str(driver_root), operations(located), LOG)

    assert (rootfs / "dev/nvidia0").is_char_device()
    assert (rootfs / "proc/driver/nvidia/version").read_text() == "NVRM version: test\n"


@isolated
def test_a_container_on_its_own_read_only_file_system_is_told_so(driver_root: Path, rootfs: Path) -> None:
    _make_read_only(rootfs)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        mounts = mountinfo(pid)
        with pytest.raises(MountError) as caught:
            apply(located, str(driver_root), operations(located, capabilities="utility"), LOG)

        assert "file creation failed: " in caught.value.message
        assert caught.value.message.endswith("read-only file system")
        assert "root.readonly" in caught.value.hint
        assert mountinfo(pid) == mounts


@isolated
def test_read_only_is_no_obstacle_where_the_targets_exist(driver_root: Path, rootfs: Path) -> None:
    for name in (f"usr/lib64/libnvidia-ml.so.{VERSION}", "usr/bin/nvidia-smi", "lib/fw/gsp.bin"):
        (rootfs / name).parent.mkdir(parents=True, exist_ok=True)
        (rootfs / name).touch()
    (rootfs / "run/nvidia-persistenced").mkdir(parents=True)
    _make_read_only(rootfs)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        plan = operations(located, capabilities="utility", cache=False)

        assert apply(located, str(driver_root), plan, LOG) == len(plan)
        with pytest.raises(LdcacheError) as caught:
            apply(located, str(driver_root), operations(located)[-1:], LOG)
        assert "root.readonly" in caught.value.hint


def _make_read_only(rootfs: Path) -> None:
    injection.mount(str(rootfs), rootfs, None, injection.MS_BIND)
    injection.mount(None, rootfs, None, injection.MS_BIND | 0x20 | 1)


@isolated
def test_a_full_disk_is_told_and_undone(driver_root: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    injection.mount("tmpfs", disk, "tmpfs", 0, "size=1m,nr_inodes=26")
    rootfs = injection.make_rootfs(disk / "rootfs")
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        mounts, files = mountinfo(pid), tree(rootfs)
        with pytest.raises((MountError, LdcacheError)) as caught:
            apply(located, str(driver_root), operations(located), LOG)

        assert "full" in caught.value.hint
        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


@isolated
def test_wrong_kinds_in_the_image_are_clear_errors(driver_root: Path, rootfs: Path) -> None:
    (rootfs / f"usr/lib64/libcuda.so.{VERSION}").mkdir()
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        with pytest.raises(MountError) as caught:
            apply(located, str(driver_root), operations(located), LOG)

        assert caught.value.message == f"file creation failed: {rootfs}/usr/lib64/libcuda.so.{VERSION}: is a directory"
        assert caught.value.hint == "the image has a directory where a file goes"


SOURCES = [
    pytest.param(
        BindMount("/dev/nvidia0", "/dev/x", "device", ("ro",), 195, 0), "invalid device node: /dev/nvidia0", id="number"
    ),
    pytest.param(
        BindMount("/usr/bin/nvidia-smi", "/dev/x", "device", ("ro",), 1, 3),
        "invalid device node: /usr/bin/nvidia-smi",
        id="file for a node",
    ),
    pytest.param(
        BindMount("/usr/lib", "/x", "regular", ("ro",)),
        "unexpected source file mode 40755 for /usr/lib",
        id="directory",
    ),
    pytest.param(
        BindMount("/usr/bin/nvidia-smi", "/x", "endpoint", ()),
        "unexpected source file mode 100755 for /usr/bin/nvidia-smi",
        id="file for a socket",
    ),
    pytest.param(
        BindMount("/dev/gone", "/x", "device", ("ro",), 1, 1),
        "stat failed: /dev/gone: no such file or directory",
        id="missing",
    ),
]


@pytest.mark.parametrize(("operation", "message"), SOURCES)
def test_sources_are_checked_before_anything_is_done(
    driver_root: Path, rootfs: Path, operation: BindMount, message: str
) -> None:
    @isolated
    def run() -> None:
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            mounts = mountinfo(pid)
            with pytest.raises(MountError) as caught:
                apply(located, str(driver_root), (*operations(located), operation), LOG)
            assert caught.value.message == message
            assert mountinfo(pid) == mounts

    run()


@isolated
def test_missing_optional_source_is_passed_over(driver_root: Path, rootfs: Path) -> None:
    gone = BindMount("/run/gone/socket", "/run/gone/socket", "endpoint", (), optional=True)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)

        assert apply(located, str(driver_root), (gone,), LOG) == 0
        assert not (rootfs / "run").exists()


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

        assert "another directory than a moment ago" in caught.value.message


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
