"""nvc.linux.rights: what a phase holds, and what is given up for good."""

from __future__ import annotations

import errno
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.linux import const, rights, syscalls
from tests.support.isolation import in_namespaces

#: The reference's table (libnvidia-container.md 5.9).
REFERENCE = {
    "init": "KILL SETUID SETGID SYS_CHROOT",
    "init_kmods": "KILL SETUID SETGID SYS_CHROOT CHOWN FOWNER MKNOD SETPCAP",
    "container": "KILL DAC_READ_SEARCH SYS_PTRACE",
    "info": "KILL",
    "shutdown": "KILL",
    "mount": "KILL NET_ADMIN SETUID SETGID SYS_CHROOT SYS_ADMIN DAC_READ_SEARCH SYS_PTRACE DAC_OVERRIDE",
    "ldcache": "KILL SETUID SETGID SYS_CHROOT SYS_ADMIN DAC_READ_SEARCH SYS_PTRACE SETPCAP",
}
PERMITTED = " ".join(
    (
        "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER KILL MKNOD",
        "NET_ADMIN SETGID SETPCAP SETUID SYS_ADMIN SYS_CHROOT SYS_PTRACE",
    )
)
SYS_RESOURCE = 24


def named(words: str) -> frozenset[int]:
    return frozenset(getattr(rights, f"CAP_{word}") for word in words.split())


def status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1], 16)
    raise KeyError(field)


def in_child(function: Callable[[], Any]) -> Any:
    return in_namespaces(function)


@pytest.mark.parametrize("phase", REFERENCE)
def test_phase_holds_what_the_reference_gives_it(phase: str) -> None:
    assert named(REFERENCE[phase]) == rights.of_phase(phase)
    assert all(reason for _, reason in rights.RIGHTS[phase])


def test_tables_are_complete() -> None:
    assert set(REFERENCE) == set(rights.RIGHTS)
    assert named(PERMITTED) == rights.PERMITTED
    assert named("DAC_OVERRIDE SYS_MODULE") == rights.BOUNDING


def test_unknown_phase_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        rights.use("nonsense")


@pytest.mark.root
@pytest.mark.parametrize("phase", REFERENCE)
def test_phase_is_what_the_kernel_shows(phase: str) -> None:
    def run() -> None:
        rights.reduce_permitted()
        assert status("CapPrm") == rights.mask(rights.PERMITTED)
        assert status("CapBnd") == rights.mask(rights.BOUNDING)
        assert status("CapInh") == status("CapAmb") == 0
        rights.use(phase)
        assert status("CapEff") == rights.mask(rights.of_phase(phase))
        rights.use("mount")
        assert status("CapEff") == rights.mask(rights.of_phase("mount"))

    in_child(run)


@pytest.mark.root
def test_missing_capability_is_left_out() -> None:
    def run() -> None:
        effective, permitted, _ = syscalls.capget()
        without = ~(1 << rights.CAP_NET_ADMIN | 1 << SYS_RESOURCE | 1 << rights.CAP_SETPCAP)
        syscalls.capset(effective & without, permitted & without, 0)
        bounding = status("CapBnd")
        rights.reduce_permitted()
        rights.use("mount")
        expected = rights.of_phase("mount") - {rights.CAP_NET_ADMIN}
        assert status("CapEff") == rights.mask(expected)
        # SETPCAP is what the bounding set needs: without it, it stays.
        assert status("CapBnd") == bounding

    in_child(run)


@pytest.mark.root
def test_drop_all_leaves_nothing() -> None:
    def run() -> None:
        rights.set_inheritable(frozenset((rights.CAP_DAC_OVERRIDE,)), ambient=True)
        rights.drop_all()
        for field in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"):
            assert status(field) == 0, field
        with pytest.raises(syscalls.SyscallError) as caught:
            syscalls.unshare(const.CLONE_NEWNS)
        assert caught.value.errno == errno.EPERM
        rights.drop_all()

    in_child(run)


@pytest.mark.root
def test_inheritable_and_ambient_are_set_as_told() -> None:
    def run() -> None:
        rights.set_inheritable(frozenset((rights.CAP_DAC_OVERRIDE,)), ambient=True)
        assert status("CapInh") == status("CapAmb") == 1 << rights.CAP_DAC_OVERRIDE
        rights.reduce_permitted()
        assert status("CapInh") == status("CapAmb") == 0

    in_child(run)


@pytest.mark.root
@pytest.mark.parametrize("phase", ["mount", "info"])
def test_owner_makes_files_as_told_and_restores_the_phase(phase: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 5, 5)

    def run() -> None:
        rights.reduce_permitted()
        rights.use("mount")
        before = status("CapEff")
        with rights.Owner(1234, 1235):
            (theirs / "file").touch()
            # DAC_OVERRIDE stays in force, what else concerns files does not come.
            assert status("CapEff") == before
        after = (theirs / "file").stat()
        assert (after.st_uid, after.st_gid) == (1234, 1235)
        assert (syscalls.setfsuid(-1), syscalls.setfsgid(-1)) == (0, 0)
        # The kernel puts every permitted file capability into force on the way back; the phase has none of them.
        rights.use("ldcache")
        before = status("CapEff")
        with rights.Owner(1234, 1235):
            pass
        assert status("CapEff") == before
        rights.use(phase)
        assert status("CapEff") == rights.mask(rights.of_phase(phase))

    in_child(run)


@pytest.mark.root
def test_owner_that_may_not_be_taken_is_an_error() -> None:
    def run() -> None:
        rights.reduce_permitted()
        rights.use("info")
        with pytest.raises(syscalls.SyscallError, match="setfsuid"), rights.Owner(1234, 1235):
            pass
        assert (syscalls.setfsuid(-1), syscalls.setfsgid(-1)) == (0, 0)
        assert status("CapEff") == rights.mask(rights.of_phase("info"))

    in_child(run)


@pytest.mark.root
def test_owner_keeps_the_parent_death_signal() -> None:
    def run() -> int:
        rights.parent_death_signal(os.getppid(), signal.SIGTERM)
        with rights.Owner(1234, 1235):
            pass
        number = bytearray(4)
        syscalls.prctl_buffer(const.PR_GET_PDEATHSIG, number)
        return struct.unpack("i", number)[0]

    assert in_child(run) == signal.SIGTERM


def test_child_dies_with_its_parent() -> None:
    read_end, write_end = os.pipe()
    parent = os.fork()
    if parent == 0:
        me = os.getpid()
        if os.fork() == 0:
            rights.parent_death_signal(me)
            os.write(write_end, b"ready")
            time.sleep(60)
        time.sleep(60)
    os.close(write_end)
    assert os.read(read_end, 5) == b"ready"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    # The pipe ends when its last writer, the grandchild, is gone.
    signal.alarm(20)
    assert os.read(read_end, 1) == b""
    signal.alarm(0)
    os.close(read_end)


def test_parent_that_is_gone_already_is_told() -> None:
    def run() -> None:
        with pytest.raises(ProcessLookupError):
            rights.parent_death_signal(os.getpid())

    if os.geteuid() == 0:
        in_child(run)
    else:
        pid = os.fork()
        if pid == 0:
            try:
                run()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.root
def test_become_changes_every_id() -> None:
    def run() -> None:
        os.setgroups([7, 8])
        rights.become(1234, 1235)
        assert os.getresuid() == (1234,) * 3
        assert os.getresgid() == (1235,) * 3
        assert os.getgroups() == [1235]

    in_child(run)


@pytest.mark.root
def test_name_and_privileges_are_set() -> None:
    def run() -> None:
        rights.set_name("nvc:[a very long name]")
        assert Path("/proc/self/comm").read_text() == "nvc:[a very lon\n"
        assert syscalls.prctl(const.PR_GET_NO_NEW_PRIVS) == 0
        rights.no_new_privs()
        assert syscalls.prctl(const.PR_GET_NO_NEW_PRIVS) == 1

    in_child(run)


@pytest.mark.root
def test_user_namespace_is_noticed() -> None:
    def run() -> tuple[bool, bool]:
        outside = rights.in_user_namespace()
        syscalls.unshare(const.CLONE_NEWUSER)
        return outside, rights.in_user_namespace()

    assert in_child(run) == (False, True)
