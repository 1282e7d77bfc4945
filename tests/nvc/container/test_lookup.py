"""Looking a container up (libnvidia-container.md 2.4): directories, owner, cgroup, compat libraries, and everything
wrong."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from nvc.base.errors import ContainerError
from nvc.base.log import Log
from nvc.container import lookup as module
from nvc.container.compat import CompatLibrary
from nvc.container.ldcache.program import HOST_LDCONFIG
from nvc.container.lookup import inspect
from nvc.container.messages import ContainerConfig, InspectRequest
from nvc.model import CgroupRef
from tests.support import injection
from tests.support.injection import container, isolated, locate

root = pytest.mark.root
MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}.get(os.uname().machine, "")


def standalone(rootfs: Path | str, **changes: object) -> InspectRequest:
    config = ContainerConfig(None, str(rootfs)).replace(**changes)
    return InspectRequest(config, supervised=False, find_cgroup=False, find_compat=True)


@pytest.mark.parametrize(
    ("make", "libraries", "libraries32"),
    [
        pytest.param(
            ["etc/debian_version"],
            f"/usr/lib/{MULTIARCH}",
            "/usr/lib/i386-linux-gnu" if MULTIARCH.startswith("x86") else "/var/empty",
            id="Debian",
        ),
        pytest.param(["usr/lib32/"], "/usr/lib64", "/usr/lib32", id="lib32"),
        pytest.param(["usr/lib/"], "/usr/lib64", "/usr/lib", id="no lib32, but lib"),
        pytest.param([], "/usr/lib64", "/usr/lib32", id="neither"),
        pytest.param(["usr/lib -> lib64"], "/usr/lib64", "/usr/lib32", id="lib is lib64"),
        pytest.param(["usr/lib64 -> lib", "usr/lib/"], "/usr/lib64", "/usr/lib32", id="lib64 is lib (Arch)"),
    ],
)
def test_library_directories(rootfs: Path, make: list[str], libraries: str, libraries32: str) -> None:
    for entry in make:
        name, _, text = entry.partition(" -> ")
        path = rootfs / name
        if text:
            shutil.rmtree(path, ignore_errors=True)
            path.symlink_to(text)
        elif name.endswith("/"):
            path.mkdir()
        else:
            path.touch()
    found = inspect(standalone(rootfs), Log.none()).container

    assert (found.libraries_directory, found.libraries32_directory) == (libraries, libraries32)
    assert found.binaries_directory == "/usr/bin"


def test_given_directories_win(rootfs: Path) -> None:
    request = standalone(rootfs, binaries_directory="/b", libraries_directory="/l", libraries32_directory="/m")
    found = inspect(request, Log.none()).container

    assert ("/b", "/l", "/m") == (found.binaries_directory, found.libraries_directory, found.libraries32_directory)


def test_links_of_the_image_are_read_inside_it(rootfs: Path) -> None:
    # The host has /etc/debian_version or not: the image's link must not ask it.
    (rootfs / "etc/debian_version").symlink_to("/etc/missing-hostname")

    assert inspect(standalone(rootfs), Log.none()).container.libraries_directory == "/usr/lib64"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("@/opt/ldconfig", "/opt/ldconfig", id="of the host"),
        pytest.param("", None, id="default"),
        pytest.param("/sbin/ldconfig.image", None, id="of the image: the host's runs instead"),
    ],
)
def test_ldconfig_is_always_the_hosts(rootfs: Path, text: str, expected: str | None) -> None:
    default = next((path for path in HOST_LDCONFIG if os.path.exists(path)), HOST_LDCONFIG[-1])

    assert (expected or default) == inspect(standalone(rootfs, ldconfig=text), Log.none()).container.ldconfig


def test_standalone_stays_where_it_is(rootfs: Path) -> None:
    located = inspect(standalone(rootfs), Log.none())

    assert located.namespace is None
    assert located.container.mount_namespace == ""
    assert (located.container.owner_uid, located.container.owner_gid) == (os.geteuid(), os.getegid())


@root
@isolated
def test_supervised_is_looked_at_through_its_process(rootfs: Path) -> None:
    with container(rootfs) as pid:
        located = locate(pid, rootfs)

        assert located.container.mount_namespace == f"/proc/{pid}/ns/mnt"
        assert located.namespace is not None
        assert os.fstat(located.namespace.fileno()).st_ino == os.stat(f"/proc/{pid}/ns/mnt").st_ino
        assert located.container.supervised


@root
@isolated
def test_what_is_mounted_in_the_container_is_seen(rootfs: Path) -> None:
    with container(rootfs) as pid:
        # Only in the container's namespace: /dev is a tmpfs there.
        injection.inside(pid, rootfs, "/dev/marker").touch()
        located = locate(pid, rootfs, find_compat=True)
        assert located.container.libraries_directory == "/usr/lib64"
        assert not (rootfs / "dev/marker").exists()


COMPAT = "usr/local/cuda-12.9/compat"


def make_compat(rootfs: Path, name: str = "libcuda.so.575.51.03") -> None:
    (rootfs / COMPAT).mkdir(parents=True)
    (rootfs / COMPAT / name).write_bytes(b"\x7fELF but not really")
    (rootfs / COMPAT / "libcuda.so.1").symlink_to(name)
    (rootfs / "usr/local/cuda").symlink_to("cuda-12.9")


def test_compat_libraries_are_found_through_the_images_links(rootfs: Path) -> None:
    make_compat(rootfs)

    assert CompatLibrary(f"/{COMPAT}", "575.51.03", None) == inspect(standalone(rootfs), Log.none()).compat


def test_compat_libraries_outside_of_the_image_are_not_seen(rootfs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "compat"
    outside.mkdir()
    (outside / "libcuda.so.575.51.03").touch()
    (rootfs / "usr/local/cuda").mkdir(parents=True)
    (rootfs / "usr/local/cuda/compat").symlink_to(outside)

    assert inspect(standalone(rootfs), Log.none()).compat is None


@pytest.mark.parametrize("kind", ["fifo", "directory", "link out"])
def test_a_compat_library_that_is_no_file_is_ignored_without_waiting(rootfs: Path, kind: str) -> None:
    (rootfs / "usr/local/cuda/compat").mkdir(parents=True)
    path = rootfs / "usr/local/cuda/compat/libcuda.so.575.51.03"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/proc/self/mem")

    assert inspect(standalone(rootfs), Log.none()).compat is None


def test_compat_is_not_looked_for_unless_asked(rootfs: Path) -> None:
    make_compat(rootfs)

    assert inspect(standalone(rootfs).replace(find_compat=False), Log.none()).compat is None


@pytest.mark.parametrize(
    ("path", "message"),
    [
        pytest.param("/", "invalid rootfs directory: '/'", id="root"),
        pytest.param("//", "invalid rootfs directory: '//'", id="root in other words"),
        pytest.param("/..", "invalid rootfs directory: '/..'", id="above the root"),
        pytest.param("", "invalid rootfs directory: ''", id="empty"),
        pytest.param("rootfs", "invalid rootfs directory: 'rootfs'", id="relative"),
        pytest.param("/a\0b", "invalid rootfs directory: '/a\\x00b'", id="NUL"),
        pytest.param("/nowhere/at/all", "open failed: /nowhere/at/all: no such file or directory", id="missing"),
        pytest.param("/etc/passwd", "open failed: /etc/passwd: not a directory", id="a file"),
        pytest.param(
            "/etc/..", "invalid rootfs directory: /etc/.. is the root of the mount namespace", id="leads to /"
        ),
    ],
)
def test_bad_roots(path: str, message: str) -> None:
    with pytest.raises(ContainerError) as caught:
        inspect(standalone(path), Log.none())

    assert str(caught.value) == f"container error: {message}"
    assert caught.value.hint


def test_a_link_to_the_hosts_root_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "rootfs"
    link.symlink_to("/")
    with pytest.raises(ContainerError) as caught:
        inspect(standalone(link), Log.none())

    assert "is the root of the mount namespace" in caught.value.message


@pytest.mark.parametrize("pid", [None, 0, -1])
def test_supervised_needs_a_process(rootfs: Path, pid: int | None) -> None:
    request = InspectRequest(ContainerConfig(pid, str(rootfs)), supervised=True, find_cgroup=False, find_compat=False)
    with pytest.raises(ContainerError) as caught:
        inspect(request, Log.none())

    assert "needs the pid" in caught.value.message


def test_a_process_that_is_gone(rootfs: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(ContainerError) as caught:
        locate(pid, rootfs)

    assert caught.value.message == f"open failed: /proc/{pid}/root/: no such file or directory"
    assert "has ended" in caught.value.hint


@root
@isolated
def test_a_process_that_ends_after_it_was_pinned_is_not_mistaken_for_another(rootfs: Path) -> None:
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        assert located.process is not None
    # /proc/PID of the descriptor stays dead, although another process has the number now.
    with pytest.raises(ProcessLookupError):
        os.stat("ns/mnt", dir_fd=located.process.fileno())


@root
@isolated
def test_a_process_that_ends_while_it_is_looked_up_is_noticed(rootfs: Path) -> None:
    """Its cgroup is found by number: the number may be another's by then."""
    looked_up = module._cgroup

    def slow(pid: int | None) -> CgroupRef:
        found = looked_up(pid)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return found

    with pytest.MonkeyPatch.context() as patch, container(rootfs) as pid:
        patch.setattr(module, "_cgroup", slow)
        with pytest.raises(ContainerError, match=f"open failed: /proc/{pid}/ns/mnt") as caught:
            locate(pid, rootfs, find_cgroup=True)
    assert "has ended" in caught.value.hint


@root
@isolated
def test_a_zombie_is_a_clear_error(rootfs: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ContainerError) as caught:
        locate(pid, rootfs)

    assert f"/proc/{pid}/" in caught.value.message


def _in_user_namespace(ready: int) -> int:
    pid = os.fork()
    if pid == 0:
        injection.check(injection._libc.unshare(0x10000000 | 0x00020000), "unshare user")
        os.write(ready, b"1")
        signal.pause()
        os._exit(0)
    return pid


@root
@isolated
def test_owner_of_a_user_namespace_is_its_root(rootfs: Path) -> None:
    listen, tell = os.pipe()
    pid = _in_user_namespace(tell)
    try:
        os.read(listen, 1)
        Path(f"/proc/{pid}/uid_map").write_text("1 300000 65536\n0 100000 1\n")
        Path(f"/proc/{pid}/gid_map").write_text("0 200000 65536\n")
        found = locate(pid, rootfs).container

        assert (found.owner_uid, found.owner_gid) == (100_000, 200_000)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@root
@isolated
def test_a_foreign_user_namespace_is_refused_to_others_than_root(rootfs: Path) -> None:
    os.chmod(rootfs.parent, 0o755)
    for parent in rootfs.parents:
        if str(parent).startswith("/tmp/"):
            os.chmod(parent, 0o755)
    os.setgroups([])
    os.setresgid(4242, 4242, 4242)
    os.setresuid(4242, 4242, 4242)
    injection._libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: changing ids made /proc/self root's
    listen, tell = os.pipe()
    pid = _in_user_namespace(tell)
    try:
        os.read(listen, 1)
        with pytest.raises(ContainerError) as caught:
            locate(pid, rootfs)

        assert f"/proc/{pid}" in caught.value.message
        assert "not permitted" in caught.value.message or "permission denied" in caught.value.message
        assert "root" in caught.value.hint
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@root
@isolated
def test_cgroup_of_the_process(rootfs: Path) -> None:
    with container(rootfs) as pid:
        found = locate(pid, rootfs, find_cgroup=True).container.cgroup

        assert found is not None
        assert found.version in (1, 2)
        assert Path(found.path, "cgroup.procs").exists()


@root
@isolated
def test_a_missing_cgroup_hierarchy_names_the_way_out(rootfs: Path) -> None:
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        if " - cgroup" in line:
            injection.check(injection._libc.umount2(os.fsencode(line.split(" ")[4]), 2), "umount")
    with pytest.raises(ContainerError) as caught:
        inspect(standalone(rootfs).replace(find_cgroup=True), Log.none())

    assert caught.value.message.startswith("failed to get device cgroup mount path: no cgroup")
    assert "--no-cgroups" in caught.value.hint


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ValueError("no devices or unified cgroup entries found"),
            "version: no devices or unified cgroup entries found",
        ),
        (ValueError("malformed cgroup entry: x"), "version: malformed cgroup entry: x"),
        (OSError(2, "failed to open cgroup path for pid '7': x"), "version: failed to open cgroup path for pid '7': x"),
        (ValueError("malformed mountinfo entry: x"), "mount path: malformed mountinfo entry: x"),
        (
            OSError(2, "failed to open mountinfo path for pid '7'"),
            "mount path: failed to open mountinfo path for pid '7'",
        ),
    ],
)
def test_cgroup_errors_have_the_references_words(
    rootfs: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def find(**_: object) -> tuple[int, str]:
        raise error

    monkeypatch.setattr(module.cgroup, "find", find)
    with pytest.raises(ContainerError) as caught:
        inspect(standalone(rootfs).replace(find_cgroup=True), Log.none())
    assert caught.value.message == f"failed to get device cgroup {message}"
