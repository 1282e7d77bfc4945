"""ldconfig in its sandbox (libnvidia-container.md 7): what it may reach, how it can fail, and what is left then."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from nvc.base.errors import LdcacheError
from nvc.container.ldcache.program import HOST_LDCONFIG, open_program
from nvc.linux import syscalls
from tests.support import injection
from tests.support.injection import container, isolated, locate, mountinfo, tree
from tests.support.ldconfig import EARLY, TWO, run

root = pytest.mark.root
IGNORED = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
KINDS = ("ipc", "mnt", "net", "pid", "uts")
#: Lines of /proc/PID/limits and the most that each may say (libnvidia-container.md 7.2; address space: see
#: nvc.container.ldcache.sandbox).
LIMITS = {
    "Max cpu time": 10,
    "Max file size": 16 << 20,
    "Max core file size": 0,
    "Max open files": 64,
    "Max address space": 8 << 30,
    "Max data size": 128 << 20,
}


@root
@pytest.mark.parametrize("way", ["now", "no pivot", "old kernel", *EARLY], indirect=True)
def test_what_the_program_sees(probe: Path, rootfs: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_pivot = way == "no pivot"
    if way == "old kernel":
        monkeypatch.setattr(syscalls, "unavailable", {"mount_setattr", "open_tree", "move_mount", "fsopen"})

    @isolated
    def check() -> None:
        # A descriptor that was not marked close-on-exec.
        os.set_inheritable(os.open("/", os.O_RDONLY), True)
        for _ in range(100):  # more than the program may have
            os.open("/", os.O_RDONLY)
        with container(rootfs) as pid:
            injection.inside(pid, rootfs, "/dev/device").touch()
            namespaces = {os.readlink(f"/proc/{own}/ns/{kind}") for own in ("self", pid) for kind in KINDS}
            seen = run(locate(pid, rootfs), probe, "/usr/lib64", "/usr/lib32", no_pivot=no_pivot, way=way)

        program, *arguments = [line[4:] for line in seen if line.startswith("arg=")]
        assert re.fullmatch("/etc/ld.so.cache.nvc-[0-9a-f]{16}/cache", arguments.pop(3))
        assert [program, *arguments] == [str(probe), "-f", "/etc/ld.so.conf", "-C", "/usr/lib64", "/usr/lib32"]
        assert "pid=1 uid=0 gid=0 cwd=/" in seen
        assert "environment=0" in seen
        # A copy in memory with all seals (15: seal, shrink, grow, write), never the host's file.
        assert "exe=/memfd:ldconfig (deleted) 15" in seen
        assert "socket=Operation not permitted" in seen
        # Its own three streams; opening a directory for count() takes the next number after they are listed.
        assert [line for line in seen if line.startswith("fd=")] == ["fd=0", "fd=1", "fd=2"]
        assert "/dev=0" in seen
        assert "/sys=0" in seen
        assert f"/={len(os.listdir(rootfs))}" in seen
        # The host's root is gone, not only covered: ".." of the root would lead up into what lies on top of it.
        assert f"/..={len(os.listdir(rootfs))}" in seen
        points = [line.split()[4] for line in seen if line.startswith("mount-line=")]
        assert points.count("/") == 1
        assert set(points) == {"/", "/dev", "/proc", "/sys"}
        assert not namespaces & {line.partition("=")[2] for line in seen if line.startswith("namespace=")}
        assert len([line for line in seen if line.startswith("namespace=")]) == len(KINDS)
        limits = {line[6:32].strip(): line[32:].split()[:2] for line in seen if line.startswith("limit=")}
        for name, limit in LIMITS.items():
            assert limits[name][0] == limits[name][1]  # hard as well as soft
            assert int(limits[name][0]) <= limit
        status = {line.split(":")[0]: line.split(":")[1].strip() for line in seen if ":\t" in line}
        # Bit 1 is CAP_DAC_OVERRIDE: distributions ship /usr/lib without write permission for its owner.
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0000000000000002"}
        assert status["CapBnd"] == "0000000000000000"
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert status.get("Seccomp_filters", "1") == "1"  # since Linux 5.9
        assert status["Uid"].split() == status["Gid"].split() == ["0"] * 4
        assert "dumpable-by=0" in seen
        # Nothing is handled or blocked; ignored: SIGPIPE and SIGXFSZ, as Python does, which answers EPIPE and EFBIG.
        assert {status[name] for name in ("SigCgt", "SigBlk", "SigPnd")} == {"0" * 16}
        assert int(status["SigIgn"], 16) & IGNORED == IGNORED

    check()


@root
@pytest.mark.parametrize("way", ["now", *TWO], indirect=True)
@isolated
def test_runs_as_the_containers_owner(probe: Path, rootfs: Path, way: str) -> None:
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        located.container = located.container.replace(owner_uid=100_000, owner_gid=100_001)
        os.setgroups([0, 4, 20])
        seen = run(located, probe, way=way)

        assert "pid=1 uid=100000 gid=100001 cwd=/" in seen
        status = {line.split(":")[0]: line.split(":")[1].split() for line in seen if ":\t" in line}
        assert (status["Uid"], status["Gid"]) == (["100000"] * 4, ["100001"] * 4)
        assert status["Groups"] == ["100001"]
        assert "dumpable-by=100000" in seen
        assert any(line.startswith("CapEff:") and line.endswith("0000000000000002") for line in seen)


@root
@pytest.mark.parametrize("way", ["now", *TWO], indirect=True)
@isolated
def test_nothing_is_left_behind(probe: Path, rootfs: Path, way: str) -> None:
    with container(rootfs) as pid:
        mounts, ours = mountinfo(pid), mountinfo()
        run(locate(pid, rootfs), probe, way=way)

        assert mountinfo(pid) == mounts
        assert mountinfo() == ours
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@root
@pytest.mark.parametrize("way", ["now", *TWO], indirect=True)
@isolated
def test_what_is_hidden_from_it_is_not_hidden_from_the_container(probe: Path, rootfs: Path, way: str) -> None:
    """Where the container's mounts are shared, a mount on a clone of one is a mount on that one too."""
    with container(rootfs) as pid:
        subprocess.run(["nsenter", "-t", str(pid), "-m", "mount", "--make-rshared", str(rootfs)], check=True)
        before = mountinfo(pid)
        assert any(" shared " in line for line in before)
        seen = run(locate(pid, rootfs), probe, way=way)

        assert "/dev=0" in seen
        assert mountinfo(pid) == before


@root
@pytest.mark.parametrize("way", ["now", *EARLY], indirect=True)
def test_a_program_that_cannot_be_executed_is_told(rootfs: Path, tmp_path: Path, way: str) -> None:
    header = bytearray(
        Path("/sbin/ldconfig.real" if os.path.exists("/sbin/ldconfig.real") else "/sbin/ldconfig").read_bytes()[:64]
    )
    header[56:58] = b"\0\0"  # e_phnum
    (tmp_path / "empty").write_bytes(header)

    @isolated
    def check() -> None:
        with container(rootfs) as pid, pytest.raises(LdcacheError) as caught:
            run(locate(pid, rootfs), tmp_path / "empty", way=way)

        assert "exec: " in caught.value.message
        assert os.strerror(errno.ENOEXEC).lower() in caught.value.message.lower()
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)

    check()


@root
@pytest.mark.parametrize("way", ["now", *TWO], indirect=True)
@pytest.mark.parametrize("missing", ["dev", "sys", "proc", "etc/ld.so.conf", "usr/lib64", "var/cache"])
def test_an_image_may_lack_directories(rootfs: Path, missing: str, way: str) -> None:
    @isolated
    def check() -> None:
        path = rootfs / missing
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
        with container(rootfs, with_proc=missing != "proc", with_dev=missing != "dev") as pid:
            run(locate(pid, rootfs), "/sbin/ldconfig", way=way)
            assert injection.inside(pid, rootfs, "/etc/ld.so.cache").exists()

    check()


FAILURES = [
    pytest.param("/hang", "did not end within 0.3 s", "--timeout", id="hangs"),
    pytest.param("/crash", "terminated with signal", "", id="crashes"),
]


@root
@pytest.mark.parametrize("way", ["now", *TWO], indirect=True)
@pytest.mark.parametrize(("mode", "message", "hint"), FAILURES)
def test_a_program_that_fails(probe: Path, rootfs: Path, mode: str, message: str, hint: str, way: str) -> None:
    @isolated
    def check() -> None:
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            before, start = tree(rootfs), time.monotonic()
            with pytest.raises(LdcacheError) as caught:
                run(located, probe, mode, limit=0.3 if mode == "/hang" else 60, way=way)

            assert f"process {probe} {message}" in caught.value.message
            assert hint in caught.value.hint
            assert time.monotonic() - start < 50
            assert tree(rootfs) == before
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)

    check()


@root
@pytest.mark.parametrize("way", ["now", *TWO], indirect=True)
@isolated
def test_much_output_neither_blocks_nor_fills_memory(probe: Path, rootfs: Path, way: str) -> None:
    with container(rootfs) as pid:
        seen = run(locate(pid, rootfs), probe, "/noise", way=way)

        assert 0 < sum(len(line) for line in seen) <= 256 << 10


@root
@pytest.mark.parametrize("way", ["now", *TWO], indirect=True)
@isolated
def test_exit_status_and_last_words_are_told(rootfs: Path, way: str) -> None:
    # A directory where the cache goes: the rename fails after links were made. They are taken back.
    (rootfs / "etc/ld.so.cache").mkdir()
    (rootfs / "etc/ld.so.cache/full").touch()
    injection.build_library(rootfs / "usr/lib64/libx.so.1.2", "libx.so")
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        before = tree(rootfs)
        with pytest.raises(LdcacheError) as caught:
            run(located, "/sbin/ldconfig", way=way)

        assert caught.value.message == f"{rootfs}/etc/ld.so.cache cannot be replaced: is a directory"
        assert tree(rootfs) == before


@root
@isolated
def test_no_etc_is_a_clear_error(rootfs: Path) -> None:
    for path in ("etc/ld.so.conf", "etc/ld.so.conf.d", "etc"):
        (rootfs / path).unlink() if (rootfs / path).is_file() else (rootfs / path).rmdir()
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        with pytest.raises(LdcacheError) as caught:
            run(located, "/sbin/ldconfig")

        assert caught.value.message == f"{rootfs}/etc/ld.so.cache cannot be made: no such file or directory"


@root
@isolated
def test_the_compat_directory_comes_first(rootfs: Path) -> None:
    for directory in ("usr/lib64", "usr/local/cuda/compat"):
        (rootfs / directory).mkdir(parents=True, exist_ok=True)
        injection.build_library(rootfs / directory / "libcuda.so.1.0", "libcuda.so")
    with container(rootfs) as pid:
        run(locate(pid, rootfs), "/sbin/ldconfig", "/usr/local/cuda/compat", "/usr/lib64")
    shown = subprocess.run(
        ["/sbin/ldconfig", "-p", "-C", str(rootfs / "etc/ld.so.cache")], check=True, capture_output=True, text=True
    ).stdout
    found = [line.split("=> ")[1] for line in shown.splitlines() if "libcuda.so.1 " in line]

    assert found[0] == "/usr/local/cuda/compat/libcuda.so.1"


def test_a_missing_program_is_named() -> None:
    with pytest.raises(LdcacheError) as caught:
        open_program("/nowhere/ldconfig")

    assert str(caught.value) == "ldcache error: open failed: /nowhere/ldconfig: no such file or directory"
    assert "--ldconfig=@PATH" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"#!/bin/sh\nexec /sbin/ldconfig.real\n", "not a script", id="script"),
        pytest.param(b"", "not a script", id="empty"),
        pytest.param(b"\x7fELF\x01\x01" + b"\0" * 60, "32-bit", id="32-bit"),
    ],
)
def test_programs_that_would_need_the_image_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "ldconfig"
    path.write_bytes(content)
    with pytest.raises(LdcacheError) as caught:
        open_program(str(path))

    assert f"unsupported file format: {path}" in caught.value.message
    assert message in caught.value.hint


def test_a_dynamically_linked_program_is_refused() -> None:
    with pytest.raises(LdcacheError) as caught:
        open_program("/usr/bin/env")

    assert "dynamically linked" in caught.value.message


def test_a_script_before_the_program_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "ldconfig").write_bytes(b"#!/bin/sh\n")
    # On Ubuntu /sbin/ldconfig is such a script itself.
    real = next(path for path in HOST_LDCONFIG if os.path.exists(path))
    (tmp_path / "ldconfig.real").write_bytes(Path(real).read_bytes())

    with open_program(str(tmp_path / "ldconfig")) as program:
        assert os.pread(program.fileno(), 4, 0) == b"\x7fELF"
