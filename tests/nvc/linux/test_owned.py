"""Sockets of the host that containers get: those that root, or the daemon's account, put where they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.linux import owned
from nvc.linux.fd import Fd

pytestmark = pytest.mark.root
DAEMON = 12345
PLACE = "/run/nvidia-persistenced"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Fd]:
    """A driver root with the directory of a daemon, which the daemon's account may write, and root's own socket."""
    place = tmp_path / PLACE[1:]
    place.mkdir(parents=True)
    os.chown(place, DAEMON, DAEMON)
    os.mknod(tmp_path / "run/docker.sock", stat.S_IFSOCK | 0o660)
    with Fd(os.open(tmp_path, os.O_PATH), "/") as opened:
        yield opened


@pytest.mark.parametrize(("path", "server"), [(f"{PLACE}/socket", ""), (PLACE, "socket")], ids=["socket", "server"])
def test_a_second_name_of_anothers_socket_is_not_given(root: Fd, tmp_path: Path, path: str, server: str) -> None:
    """Attack: ln /run/docker.sock /run/nvidia-persistenced/socket, where fs.protected_hardlinks is 0."""
    socket = tmp_path / PLACE[1:] / "socket"
    os.link(tmp_path / "run/docker.sock", socket)
    with pytest.raises(owned.Untrusted, match="is a socket with 2 names"):
        owned.endpoint(root, path, (DAEMON,), server)

    socket.unlink()
    os.mknod(socket, stat.S_IFSOCK | 0o666)
    os.chown(socket, DAEMON, DAEMON)
    with owned.endpoint(root, path, (DAEMON,), server).file as file:
        assert stat.S_IFMT(file.stat().st_mode) == (stat.S_IFDIR if server else stat.S_IFSOCK)


@pytest.mark.parametrize("server", ["", "socket"])
def test_what_is_no_socket_is_not_given(root: Fd, tmp_path: Path, server: str) -> None:
    (tmp_path / PLACE[1:] / "socket").write_text("")
    with pytest.raises(owned.Untrusted, match="is not a socket"):
        owned.endpoint(root, PLACE if server else f"{PLACE}/socket", (DAEMON,), server)
