"""Hosts whose users put things where sockets of the driver's daemons are, for tests/nvc/driver/test_endpoints.py."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import injection

MALLORY, NVPD, MPS = 12345, 12346, 12347
PIPES, SOCKET = "/tmp/nvidia-mps", "/run/nvidia-persistenced/socket"
CANONICAL = "/var/run/nvidia-persistenced/socket"
OLD_KERNEL = {"fsopen", "mount_setattr", "move_mount", "open_tree", "openat2"}


def make_socket(path: Path, owner: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFSOCK | 0o666)
    os.chown(path, owner, owner)


def make_host(root: Path) -> Path:
    """A driver root with a secret of root's, a sticky /tmp, and accounts."""
    for name in ("etc", "run", "var", "srv", "home/mallory", "usr/bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    if not (root / "tmp").exists():
        (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    os.chown(root / "home/mallory", MALLORY, MALLORY)
    (root / "etc/shadow").write_text("secret\n")
    (root / "etc/shadow").chmod(0o600)
    make_socket(root / "etc/control")
    (root / "etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\nmallory:x:{MALLORY}:1::/:\nnvpd:x:{NVPD}:1::/:\n")
    (root / "var/run").symlink_to("/run")
    return root


def as_mallory(directory: Path, work: Callable[[], None], *, forever: bool = False) -> int:
    """A process of another user, which stands in ``directory``; it has ended unless it goes on forever."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.chdir(directory)
            os.setgroups([])
            os.setresgid(MALLORY, MALLORY, MALLORY)
            os.setresuid(MALLORY, MALLORY, MALLORY)
            while True:
                work()
                if not forever:
                    break
            status = 0
        finally:
            os._exit(status)
    if not forever:
        assert os.waitpid(pid, 0)[1] == 0
    return pid


@contextmanager
def meanwhile(directory: Path, work: Callable[[], None]) -> Iterator[None]:
    pid = as_mallory(directory, work, forever=True)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def link(host: Path) -> None:
    as_mallory(host / "tmp", lambda: os.symlink("/etc", "nvidia-mps"))


def relative_link(host: Path) -> None:
    as_mallory(host / "tmp", lambda: os.symlink("../../../etc", "nvidia-mps"))


def own_directory(host: Path) -> None:
    def make() -> None:
        os.mkdir("nvidia-mps", 0o777)
        os.mknod("nvidia-mps/control", stat.S_IFSOCK | 0o666)

    as_mallory(host / "tmp", make)


def own_socket_in_roots_directory(host: Path) -> None:
    (host / "tmp/nvidia-mps").mkdir()
    (host / "tmp/nvidia-mps").chmod(0o777)
    as_mallory(host / "tmp/nvidia-mps", lambda: os.mknod("control", stat.S_IFSOCK | 0o666))


def link_to_a_socket_in_roots_directory(host: Path) -> None:
    (host / "tmp/nvidia-mps").mkdir()
    (host / "tmp/nvidia-mps").chmod(0o777)
    as_mallory(host / "tmp/nvidia-mps", lambda: os.symlink("/etc/control", "control"))


def no_server(host: Path) -> None:
    (host / "tmp/nvidia-mps").mkdir()


def a_file_for_a_server(host: Path) -> None:
    (host / "tmp/nvidia-mps").mkdir()
    (host / "tmp/nvidia-mps/control").touch()


def roots_link_in_a_sticky_directory(host: Path) -> None:
    make_socket(host / "run/mps/control")
    (host / "tmp/nvidia-mps").symlink_to("/run/mps")


def mount_in_a_sticky_directory(host: Path) -> None:
    """As a user's FUSE, whose files have any owner that its server names."""
    (host / "tmp/nvidia-mps").mkdir()
    injection.mount("tmpfs", host / "tmp/nvidia-mps", "tmpfs", 0, "mode=0777")
    make_socket(host / "tmp/nvidia-mps/control")


def below_a_directory_that_all_may_write(host: Path) -> None:
    make_socket(host / "srv/all/mps/control")
    (host / "srv/all").chmod(0o777)


def below_a_directory_of_a_group(host: Path) -> None:
    make_socket(host / "srv/group/mps/control")
    (host / "srv/group").chmod(0o775)
    os.chown(host / "srv/group", 0, MALLORY)


def in_a_home(host: Path) -> None:
    make_socket(host / "home/mallory/mps/control")


def below_a_users_directory(host: Path) -> None:
    make_socket(host / "srv/mallory/mps/control")
    os.chown(host / "srv/mallory", MALLORY, MALLORY)


def link_of_a_user(host: Path) -> None:
    make_socket(host / "run/mps/control")
    (host / "srv/mps").symlink_to("/run/mps")
    os.lchown(host / "srv/mps", MALLORY, MALLORY)


def link_to_etc(host: Path) -> None:
    (host / "srv/mps").symlink_to("/etc")


def nothing(host: Path) -> None:
    pass


def users_socket(host: Path) -> None:
    make_socket(host / SOCKET[1:], MALLORY)


def link_in_a_users_directory(host: Path) -> None:
    make_socket(host / "run/docker.sock")
    (host / "run/nvidia-persistenced").mkdir()
    os.chown(host / "run/nvidia-persistenced", MALLORY, MALLORY)
    as_mallory(host / "run/nvidia-persistenced", lambda: os.symlink("../docker.sock", "socket"))


def link_in_the_daemons_directory(host: Path) -> None:
    make_socket(host / "run/docker.sock")
    (host / "run/nvidia-persistenced").mkdir()
    os.chown(host / "run/nvidia-persistenced", NVPD, NVPD)
    (host / SOCKET[1:]).symlink_to("../docker.sock")
    os.lchown(host / SOCKET[1:], NVPD, NVPD)


def directory_for_a_socket(host: Path) -> None:
    (host / SOCKET[1:]).mkdir(parents=True)


ATTACKS = [
    pytest.param(link, "", id="link"),
    pytest.param(relative_link, "", id="relative link"),
    pytest.param(own_directory, "", id="directory of a user"),
    pytest.param(own_socket_in_roots_directory, "", id="socket of a user"),
    pytest.param(link_to_a_socket_in_roots_directory, "", id="link to a socket"),
    pytest.param(no_server, "", id="no server"),
    pytest.param(a_file_for_a_server, "", id="file for a server"),
    pytest.param(roots_link_in_a_sticky_directory, "", id="root's link in a sticky directory"),
    pytest.param(mount_in_a_sticky_directory, "", id="mount in a sticky directory"),
    pytest.param(below_a_directory_that_all_may_write, "/srv/all/mps", id="directory that all may write"),
    pytest.param(below_a_directory_of_a_group, "/srv/group/mps", id="directory of a group"),
    pytest.param(in_a_home, "/home/mallory/mps", id="home"),
    pytest.param(below_a_users_directory, "/srv/mallory/mps", id="below a user's directory"),
    pytest.param(link_of_a_user, "/srv/mps", id="user's link"),
    pytest.param(link_to_etc, "/srv/mps", id="root's link to etc"),
    pytest.param(nothing, "/etc", id="etc"),
    pytest.param(nothing, "/srv/../etc", id="dots"),
    pytest.param(nothing, "/", id="the root"),
    pytest.param(users_socket, "", id="user's persistenced"),
    pytest.param(link_in_a_users_directory, "", id="user's link to another socket"),
    pytest.param(link_in_the_daemons_directory, "", id="daemon's link to another socket"),
    pytest.param(directory_for_a_socket, "", id="directory for a socket"),
]
