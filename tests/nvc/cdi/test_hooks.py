"""The hooks' work for real, as root in namespaces of their own: what they make, twice, and against hostile images."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nvc.base.errors import InputError, MountError
from nvc.base.log import Log
from nvc.cdi import hooks
from nvc.cdi.procfile import cover
from nvc.linux import syscalls
from nvc.linux.root import Root
from nvc.sim.create import create
from tests.nvc.cdi.conftest import enter
from tests.support import injection
from tests.support.injection import MS_BIND, MS_REC, isolated, mount, mountinfo, tree
from tests.support.isolation import in_namespaces
from tests.support.native import build

pytestmark = pytest.mark.root
LOG = Log.none()
REPOSITORY = Path(__file__).parents[3]
COMPAT = "/usr/local/cuda/compat"
#: A file of procfs that every kernel has, in place of the driver's.
PROC_FILE = "/proc/version"


@isolated
def test_links_are_made_with_their_parents_and_replace_what_is_there(rootfs: Path) -> None:
    target = enter(rootfs)
    (rootfs / "usr/lib/old.so").symlink_to("old.so.470")
    (rootfs / "usr/lib/file.so").write_text("an old library")
    links = [
        ("/usr/lib/new/libcuda.so", "libcuda.so.1"),
        ("/usr/lib/old.so", "old.so.580"),
        ("/usr/lib/file.so", "file.so.1"),
        ("relative/link", "../card0"),
    ]
    assert hooks.create_symlinks(target, links, LOG) == 4
    assert {path: os.readlink(rootfs / path.lstrip("/")) for path, _ in links} == dict(links)
    assert hooks.create_symlinks(target, links, LOG) == 0
    assert sorted(os.listdir(rootfs / "usr/lib")) == ["driver", "file.so", "new", "old.so"]


@isolated
def test_a_directory_or_a_mount_is_not_replaced_by_a_link(rootfs: Path) -> None:
    target = enter(rootfs)
    (rootfs / "usr/lib/mounted").touch()
    mount("/dev/null", rootfs / "usr/lib/mounted", None, MS_BIND)
    for path, text in (("/usr/lib/driver", "is a directory"), ("/usr/lib/mounted", "is a mount point")):
        with pytest.raises(MountError, match=text):
            hooks.create_symlinks(target, [(path, "x")], LOG)
    for path in ("/usr/lib/..", "/", "/usr/lib/"):
        with pytest.raises(InputError, match="does not name a file"):
            hooks.create_symlinks(target, [(path, "x")], LOG)
    assert sorted(os.listdir(rootfs / "usr/lib")) == ["driver", "mounted"]


def install(rootfs: Path, *directories: str, name: str = "libnvctest.so") -> None:
    for directory in directories:
        (rootfs / directory).mkdir(parents=True, exist_ok=True)
        injection.build_library(rootfs / directory / f"{name}.1", name)


@isolated
def test_the_cache_finds_the_folder_also_when_it_is_made_anew(rootfs: Path) -> None:
    install(rootfs, "usr/lib/driver")
    target = enter(rootfs)
    hooks.update_ldcache(target, ["/usr/lib/driver"], "", LOG)
    assert b"/usr/lib/driver/libnvctest.so.1" in (rootfs / "etc/ld.so.cache").read_bytes()
    files = tree(rootfs, skip=("etc/ld.so.cache", "proc", "dev", "var"))
    hooks.update_ldcache(target, ["/usr/lib/driver"], "", LOG)
    assert tree(rootfs, skip=("etc/ld.so.cache", "proc", "dev", "var")) == files
    # What a package's script does later, with the container's own configuration.
    (rootfs / "etc/ld.so.cache").unlink()
    assert os.spawnlp(os.P_WAIT, "ldconfig", "ldconfig", "-r", str(rootfs)) == 0
    assert b"/usr/lib/driver/libnvctest.so.1" in (rootfs / "etc/ld.so.cache").read_bytes()


def found(rootfs: Path, name: str) -> list[str]:
    """The paths of a library in the cache, in the loader's order."""
    from nvc.formats import ldcache

    cache = ldcache.parse((rootfs / "etc/ld.so.cache").read_bytes())
    return [entry.path for entry in cache.entries if entry.name == name]


@isolated
def test_the_order_of_the_image_s_own_libraries_stays(rootfs: Path) -> None:
    (rootfs / "etc/debian_version").touch()
    multiarch = f"usr/lib/{os.uname().machine}-linux-gnu"
    install(rootfs, "extra/lib", multiarch)
    (rootfs / "etc/ld.so.conf.d/00-xxx.conf").write_text("/extra/lib\n")
    target = enter(rootfs)
    hooks.update_ldcache(target, [f"/{multiarch}"], "", LOG)
    assert found(rootfs, "libnvctest.so.1")[0] == "/extra/lib/libnvctest.so.1"
    assert not (rootfs / "etc/ld.so.conf.d/00-nvcr-nvc.conf").exists()


@isolated
def test_an_image_without_configuration_gets_one(rootfs: Path) -> None:
    shutil.rmtree(rootfs / "etc")
    install(rootfs, "usr/lib/driver")
    target = enter(rootfs)
    hooks.update_ldcache(target, ["/usr/lib/driver"], "", LOG)
    assert (rootfs / "etc/ld.so.conf").read_text() == "include /etc/ld.so.conf.d/*.conf\n"
    assert found(rootfs, "libnvctest.so.1") == ["/usr/lib/driver/libnvctest.so.1"]


@isolated
def test_a_configuration_that_includes_nothing_is_helped_along(rootfs: Path) -> None:
    install(rootfs, "usr/lib/driver", "usr/own")
    (rootfs / "etc/ld.so.conf").write_text("/usr/own\n")
    target = enter(rootfs)
    hooks.update_ldcache(target, ["/usr/lib/driver"], "", LOG)
    assert (rootfs / "etc/ld.so.conf").read_text() == "/usr/own\n"
    assert found(rootfs, "libnvctest.so.1")[0] == "/usr/lib/driver/libnvctest.so.1"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, "/lib\n/usr/local/lib\n/usr/lib\n/usr/lib/driver\n", id="default"),
        pytest.param("/lib:/own\n", "/lib\n/own\n/usr/lib/driver\n", id="configured"),
        pytest.param("/usr/lib/driver\n/lib", "/usr/lib/driver\n/lib", id="known"),
    ],
)
def test_alpine_s_loader_is_told_too(rootfs: Path, before: str | None, after: str) -> None:
    path = rootfs / f"etc/ld-musl-{os.uname().machine}.path"
    (rootfs / "etc/alpine-release").touch()
    if before is not None:
        path.write_text(before)

    @isolated
    def run() -> None:
        target = enter(rootfs)
        for _ in range(2):
            hooks.update_ldcache(target, ["/usr/lib/driver"], "", LOG)
            assert path.read_text() == after

    run()


@isolated
def test_other_images_get_no_file_of_alpine_s(rootfs: Path) -> None:
    hooks.update_ldcache(enter(rootfs), ["/usr/lib/driver"], "", LOG)
    assert [name for name in os.listdir(rootfs / "etc") if "musl" in name] == []


def compat_file(rootfs: Path) -> str:
    file = rootfs / "etc/ld.so.conf.d/00-compat-nvc.conf"
    return file.read_text() if file.exists() else ""


@isolated
def test_compat_libraries_come_first_where_they_fit(rootfs: Path) -> None:
    injection.build_library(rootfs / f"{COMPAT[1:]}/libcuda.so.575.51", "libcuda.so")
    injection.build_library(rootfs / "usr/lib/driver/libcuda.so.535.104", "libcuda.so")
    target = enter(rootfs)
    assert hooks.enable_cuda_compat(target, "535.104", "", COMPAT, LOG)
    assert compat_file(rootfs) == "/usr/local/cuda-12.9/compat\n"
    hooks.update_ldcache(target, ["/usr/lib/driver"], "", LOG)
    assert [path.rpartition("/")[0] for path in found(rootfs, "libcuda.so.1")] == [
        "/usr/local/cuda-12.9/compat",
        "/usr/lib/driver",
    ]
    # The container is started again after the driver was upgraded.
    assert not hooks.enable_cuda_compat(target, "580.1", "", COMPAT, LOG)
    assert compat_file(rootfs) == ""


@isolated
def test_no_compat_libraries_no_file(rootfs: Path) -> None:
    target = enter(rootfs)
    for driver in ("535.104", "", "nonsense"):
        assert not hooks.enable_cuda_compat(target, driver, "", COMPAT, LOG)
    assert os.listdir(rootfs / "etc/ld.so.conf.d") == []
    with pytest.raises(InputError, match="not an absolute path"):
        hooks.enable_cuda_compat(target, "535", "", "usr/local/cuda", LOG)


@isolated
def test_compat_libraries_of_an_orin_have_a_directory_of_their_own(rootfs: Path) -> None:
    """NVIDIA's specifications of an Orin name it; every container with a GPU failed at it."""
    (rootfs / "usr/local/cuda-12.9/compat_orin").mkdir()
    injection.build_library(rootfs / "usr/local/cuda-12.9/compat_orin/libcuda.so.575.51", "libcuda.so")
    assert hooks.enable_cuda_compat(enter(rootfs), "535.104", "", f"{COMPAT}_orin", LOG)
    assert compat_file(rootfs) == "/usr/local/cuda-12.9/compat_orin\n"


@pytest.mark.parametrize("missing", [(), ("mount_setattr", "open_tree", "fsopen", "move_mount")], ids=["new", "old"])
def test_a_file_of_proc_is_covered_and_nothing_else_remains(rootfs: Path, missing: tuple[str, ...]) -> None:
    @isolated
    def run() -> None:
        mount("tmpfs", "/run", "tmpfs", 0)
        target = enter(rootfs)
        syscalls.unavailable.update(missing)
        before, files = mountinfo(), os.listdir(rootfs)
        with Root.open(target.rootfs) as root:
            assert cover(root, PROC_FILE, "ours\n", LOG)
            assert not cover(root, PROC_FILE, "ours\n", LOG)
        assert (rootfs / PROC_FILE[1:]).read_text() == "ours\n"
        new = [line.split(" ") for line in mountinfo() if line not in before]
        assert [line[1] for line in new] == [f"{rootfs}{PROC_FILE}"]
        assert {"ro", "nosuid", "nodev", "noexec"} <= set(new[0][2].split(","))
        assert len(os.listdir(rootfs / "proc")) > 10
        assert os.listdir(rootfs) == files

    run()


def test_a_cover_does_not_travel_to_the_host(rootfs: Path) -> None:
    def host() -> str:
        """As process 1; what it sees after a process in another mount namespace covered the file."""
        mount(str(rootfs), rootfs, None, MS_BIND | MS_REC)
        mount("proc", rootfs / "proc", "proc", 0)
        mount(None, rootfs / "proc", None, injection.MS_SHARED)
        child = os.fork()
        if child == 0:
            injection.unshare_mounts()
            hooks.prepare()
            with Root.open(str(rootfs)) as root:
                done = cover(root, PROC_FILE, "ours\n", LOG)
            os._exit(0 if done and (rootfs / PROC_FILE[1:]).read_text() == "ours\n" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return (rootfs / PROC_FILE[1:]).read_text()

    assert in_namespaces(host, pid=True).startswith("Linux version")


@isolated
def test_only_procfs_is_covered(rootfs: Path) -> None:
    (rootfs / "etc/motd").write_text("hello")
    target = enter(rootfs)
    before = mountinfo()
    with Root.open(target.rootfs) as root:
        with pytest.raises(MountError, match="not a file of procfs"):
            cover(root, "/etc/motd", "ours", LOG)
        assert not cover(root, "/proc/missing/params", "ours", LOG)
    assert mountinfo() == before


@isolated
def test_a_machine_without_driver_needs_no_cover(rootfs: Path) -> None:
    if os.path.exists("/proc/driver/nvidia"):
        pytest.skip("this machine has a driver")
    assert not hooks.disable_device_node_modification(enter(rootfs), "", LOG)


def test_a_simulated_machine_s_parameters_are_shown(rootfs: Path, tmp_path: Path) -> None:
    build()
    host = create(str(tmp_path / "machine"), "h200")

    @isolated
    def run() -> None:
        target = enter(rootfs)
        assert hooks.disable_device_node_modification(target, host.root, LOG)
        assert "ModifyDeviceFiles: 0\n" in (rootfs / "proc/driver/nvidia/params").read_text()
        assert not hooks.disable_device_node_modification(target, host.root, LOG)

    run()


@isolated
def test_the_application_profile_has_the_gpus_of_the_container(rootfs: Path) -> None:
    target = enter(rootfs, nvidia1=1, nvidia3=3, nvidiactl=255)
    (rootfs / "dev/nvidia2").touch()
    (rootfs / "dev/nvidia4").symlink_to("nvidia3")
    assert hooks.update_application_profile(target, LOG)
    profile = (rootfs / "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf").read_text()
    assert '"EGLVisibleDGPUDevices", 0xa]' in profile
    assert not hooks.update_application_profile(target, LOG)


@isolated
def test_no_gpu_no_profile(rootfs: Path) -> None:
    assert not hooks.update_application_profile(enter(rootfs, nvidiactl=255), LOG)
    assert not (rootfs / "etc/nvidia").exists()


@isolated
def test_a_read_only_root_goes_without_profile(rootfs: Path) -> None:
    target = enter(rootfs, nvidia0=0)
    mount(None, rootfs, None, 0x1 | 0x20 | MS_BIND)
    assert not hooks.update_application_profile(target, LOG)


@isolated
def test_chmod_changes_directories_of_the_container_only(rootfs: Path) -> None:
    (rootfs / "etc/secret").mkdir(mode=0o700)
    (rootfs / "etc/file").touch(mode=0o600)
    (rootfs / "etc/out").symlink_to("/proc/1/root")
    (rootfs / "tmp/host").mkdir()
    target = enter(rootfs)
    (rootfs / "dev/dri").mkdir(mode=0o700)
    mount("/dev", rootfs / "tmp/host", None, MS_BIND)
    before = os.stat("/dev").st_mode
    paths = ["/dev/dri", "/etc/secret", "/etc/file", "/etc/missing", "/tmp/host"]
    assert hooks.chmod(target, 0o755, paths, LOG) == 2
    assert stat.S_IMODE((rootfs / "dev/dri").stat().st_mode) == 0o755
    assert stat.S_IMODE((rootfs / "etc/file").stat().st_mode) == 0o600
    assert os.stat("/dev").st_mode == before
    with pytest.raises(MountError, match="chmod failed"):
        hooks.chmod(target, 0o755, ["/etc/out"], LOG)


def test_root_of_a_user_namespace_is_enough(rootfs: Path, tmp_path: Path) -> None:
    """Rootless engines start hooks as the container's root, which has no rights outside."""
    build()
    host = create(str(tmp_path / "machine"), "h200")
    install(rootfs, "usr/lib/driver")
    (tmp_path / "config.json").write_text('{"ociVersion":"1.0.2","process":{},"root":{"path":"rootfs"}}')
    launcher = tmp_path / "launch"
    launcher.write_text(f"import sys\nsys.path[:0] = [{str(REPOSITORY)!r}]\nfrom hook.cdi import run\nrun()\n")
    words = ["create-symlinks", "--link=a.so.1::/usr/lib/a.so", "then", "enable-cuda-compat", "then"]
    words += ["update-ldcache", "--folder=/usr/lib/driver", "then", "disable-device-node-modification"]
    words += [f"--sim={host.root}", "then", "chmod", "--mode=755", "--path=/dev"]
    script = f'mount --bind {rootfs} {rootfs} && mount -t proc proc /proc && mount -t proc proc {rootfs}/proc && "$@"'
    script += f" && cat {rootfs}/proc/driver/nvidia/params"
    command = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c", script, "sh"]
    state = f'{{"ociVersion":"1.0.2","id":"x","status":"creating","pid":1,"bundle":"{tmp_path}"}}'
    done = subprocess.run(
        [*command, sys.executable, "-I", "-S", str(launcher), *words],
        input=state,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "ModifyDeviceFiles: 0" in done.stdout
    assert os.readlink(rootfs / "usr/lib/a.so") == "a.so.1"
    assert found(rootfs, "libnvctest.so.1") == ["/usr/lib/driver/libnvctest.so.1"]
