"""nvc.linux.root while another process swaps directories for links to the host: nothing appears outside."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from pathlib import Path

import pytest

from nvc.base.undo import Undo
from nvc.linux import procfd
from nvc.linux.fd import Fd
from nvc.linux.root import Root
from nvc.linux.syscalls import SyscallError

ME = {"uid": os.geteuid(), "gid": os.getegid()}
SECONDS = 1.0
#: linux/fs.h; renameat2(RENAME_EXCHANGE) swaps two names in one step: the fastest race there is.
RENAME_EXCHANGE = 2
AT_FDCWD = -100


def start_swapping(one: Path, other: Path) -> int:
    """Fork a process that exchanges the two names until it is killed."""
    child = os.fork()
    if child:
        return child
    try:
        libc = ctypes.CDLL(None)
        names = os.fsencode(one), os.fsencode(other)
        signal.alarm(30)
        while True:
            libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)
    finally:
        os._exit(1)


def outside(host: Path) -> list[str]:
    return sorted(str(path.relative_to(host)) for path in host.rglob("*"))


@pytest.mark.parametrize("target", ["host", "..", "../../host"])
def test_creation_during_swaps_never_leaves_the_root(target: str, tmp_path: Path, resolver: str) -> None:
    rootfs, host = tmp_path / "c" / "rootfs", tmp_path / "host"
    (rootfs / "a/b/lib").mkdir(parents=True)
    (host / "b/lib").mkdir(parents=True)
    (rootfs / "evil").symlink_to(host if target == "host" else target)
    before = outside(host)
    swapper = start_swapping(rootfs / "a", rootfs / "evil")
    results = {"made": 0, "refused": 0}
    try:
        with Root.open(str(rootfs)) as root:
            deadline = time.monotonic() + SECONDS
            number = 0
            # The other one may have had all the processor until then.
            while (now := time.monotonic()) < deadline or (results["made"] <= 10 and now < deadline + 20):
                number += 1
                undo = Undo()
                try:
                    root.make_file(f"/a/b/lib/f{number}", undo=undo, **ME).close()
                    root.make_symlink(f"/a/b/lib/l{number}", "x", undo=undo, **ME)
                    root.make_directories(f"/a/b/d{number}/e", undo=undo, **ME).close()
                    root.resolve("/a/b/../b/lib").close()
                    results["made"] += 1
                except SyscallError:
                    results["refused"] += 1
                if number % 2:
                    undo.rollback()
    finally:
        os.kill(swapper, signal.SIGKILL)
        os.waitpid(swapper, 0)
    assert before == outside(host)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["rootfs"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "host"]
    assert results["made"] > 10, results


def test_file_made_by_somebody_else_meanwhile_is_not_ours(tmp_path: Path) -> None:
    """Both try to make the same names; what the other one made must not be taken for ours, nor be undone."""
    rounds = 3000
    shared = mmap.mmap(-1, 8 + rounds)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            seen = 0
            while seen < rounds:
                now = int.from_bytes(shared[:8], "little")
                if now == seen:
                    continue
                seen = now
                try:
                    os.close(os.open(tmp_path / f"f{now}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                    shared[8 + now - 1] = 1
                except FileExistsError:
                    pass
        finally:
            os._exit(0)
    ours = set()
    with Root.open(str(tmp_path)) as root:
        for number in range(1, rounds + 1):
            shared[:8] = number.to_bytes(8, "little")
            undo = Undo()
            root.make_file(f"f{number}", undo=undo, **ME).close()
            if len(undo):
                ours.add(number)
            undo.commit()
    os.waitpid(child, 0)
    theirs = {number for number in range(1, rounds + 1) if shared[8 + number - 1]}
    assert not ours & theirs
    assert ours | theirs == set(range(1, rounds + 1))
    shared.close()


def test_directory_moved_out_of_the_root_is_noticed(tmp_path: Path) -> None:
    from nvc.linux.walk import Walk

    rootfs, host = tmp_path / "rootfs", tmp_path / "host"
    (rootfs / "a/b").mkdir(parents=True)
    host.mkdir()
    with Root.open(str(rootfs)) as root:
        walk = Walk(root.fd)
        walk.enter("/a/b")
        walk.verify()
        os.rename(rootfs / "a", host / "a")
        with pytest.raises(SyscallError, match="temporarily unavailable"):
            walk.verify()


@pytest.mark.parametrize("kind", ["fifo", "file"])
def test_file_exchanged_between_look_and_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What is opened for reading is what was looked at, and nothing that took its name meanwhile."""
    (tmp_path / "file").write_bytes(b"old")
    if kind == "fifo":
        os.mkfifo(tmp_path / "other")
    else:
        (tmp_path / "other").write_bytes(b"new")
    reopen = procfd.reopen

    def exchange(pinned: Fd, flags: int) -> Fd:
        os.rename(tmp_path / "other", tmp_path / "file")
        return reopen(pinned, flags)

    monkeypatch.setattr(procfd, "reopen", exchange)
    with Root.open(str(tmp_path)) as root:
        assert root.read("/file", 100) == b"old"
    assert not (tmp_path / "other").exists()
