"""ldconfig in its sandbox (specification 7): what it may reach, how it can fail, and what is left then."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from nvc import ldcache_process
from nvc.apply import apply
from nvc.container import HOST_LDCONFIG, Located
from nvc.errors import LdcacheError
from nvc.ldcache import open_program
from nvc.linux import syscalls
from nvc.log import Log
from nvc.operations import UpdateLdcache
from tests.support import injection
from tests.support.injection import container, isolated, locate, mountinfo, tree

root = pytest.mark.root
KINDS = ("ipc", "mnt", "net", "pid", "uts")
#: Lines of /proc/PID/limits and the most that each may say (specification 7.2; address space: see nvc.ldcache_sandbox).
LIMITS = {
    "Max cpu time": 10,
    "Max file size": 16 << 20,
    "Max core file size": 0,
    "Max open files": 64,
    "Max address space": 8 << 30,
}
PROBE = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
extern char **environ;
static void count(const char *path) {
    DIR *d = opendir(path); int n = 0; struct dirent *e;
    if (!d) { printf("%s=%s\n", path, strerror(errno)); return; }
    while ((e = readdir(d))) n += e->d_name[0] != '.';
    printf("%s=%d\n", path, n);
}
static void copy(const char *path, const char *tag) {
    char line[4096]; FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) printf("%s=%s", tag, line);
}
static void kind(const char *name) {
    char path[64], text[128] = ""; snprintf(path, sizeof path, "/proc/self/ns/%s", name);
    if (readlink(path, text, sizeof text - 1) > 0) printf("namespace=%s\n", text);
}
static void show(const char *path) {
    char line[4096]; FILE *f = fopen(path, "r");
    if (!f) { printf("%s=%s\n", path, strerror(errno)); return; }
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "Cap", 3) || !strncmp(line, "NoNewPrivs", 10) || !strncmp(line, "Seccomp:", 8))
            printf("%s", line);
    fclose(f);
}
int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc > 5 && !strcmp(argv[5], "/hang")) for (;;) pause();
    if (argc > 5 && !strcmp(argv[5], "/crash")) abort();
    if (argc > 5 && !strcmp(argv[5], "/noise")) for (int i = 0; i < 100000; i++) puts("noise noise noise noise");
    for (int i = 0; i < argc; i++) printf("arg=%s\n", argv[i]);
    char exe[128] = ""; readlink("/proc/self/exe", exe, sizeof exe - 1);
    int self = open("/proc/self/exe", O_RDONLY);
    printf("exe=%s %d\n", exe, fcntl(self, F_GET_SEALS));
    close(self);
    printf("pid=%d uid=%d gid=%d cwd=%s\n", getpid(), getuid(), getgid(), getcwd(NULL, 0));
    printf("environment=%d\n", environ[0] != NULL);
    printf("socket=%s\n", socket(AF_INET, SOCK_STREAM, 0) < 0 ? strerror(errno) : "made");
    printf("mount=%s\n", unlink("/host-marker") < 0 ? strerror(errno) : "unlinked");
    struct stat st;
    for (int fd = 0; fd < 64; fd++) if (!fstat(fd, &st)) printf("fd=%d\n", fd);
    count("/dev"); count("/sys"); count("/"); count("/.."); show("/proc/1/status");
    copy("/proc/self/limits", "limit"); copy("/proc/self/mountinfo", "mount-line");
    kind("ipc"); kind("mnt"); kind("net"); kind("pid"); kind("uts");
    return 0;
}
"""


class Kept(Log):
    """A log that keeps its warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def warn(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static program that tells what it sees instead of making a cache."""
    directory = tmp_path_factory.mktemp("probe")
    source = directory / "probe.c"
    source.write_text(PROBE)
    subprocess.run(["gcc", "-static", "-w", "-o", str(directory / "probe"), str(source)], check=True)
    return directory / "probe"


def run(
    located: Located,
    program: Path | str,
    *directories: str,
    limit: float = 20.0,
    no_pivot: bool = False,
    early: Path | str | None = None,
) -> list[str]:
    """early: what a process waits to be, started before anything is known of the container."""
    log = Kept()
    if early is not None:
        with open_program(str(early)) as waiting:
            pid = ldcache_process.in_advance(waiting)
        assert pid
    apply(located, "/", (UpdateLdcache(str(program), directories or ("/usr/lib64",), no_pivot, limit),), log)
    return log.lines


@root
@pytest.mark.parametrize("way", ["now", "no pivot", "old kernel", "in advance", "another in advance"])
def test_what_the_program_sees(probe: Path, rootfs: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_pivot = way == "no pivot"
    early = {"in advance": probe, "another in advance": "/sbin/ldconfig"}.get(way)
    if way == "old kernel":
        monkeypatch.setattr(syscalls, "unavailable", {"mount_setattr", "open_tree", "move_mount", "fsopen"})

    @isolated
    def check() -> None:
        # A descriptor that somebody forgot to mark close-on-exec.
        os.set_inheritable(os.open("/", os.O_RDONLY), True)
        with container(rootfs) as pid:
            injection.inside(pid, rootfs, "/dev/device").touch()
            namespaces = {os.readlink(f"/proc/{own}/ns/{kind}") for own in ("self", pid) for kind in KINDS}
            seen = run(locate(pid, rootfs), probe, "/usr/lib64", "/usr/lib32", no_pivot=no_pivot, early=early)

        arguments = ["-f", "/etc/ld.so.conf", "-C", "/etc/ld.so.cache", "/usr/lib64", "/usr/lib32"]
        assert [line[4:] for line in seen if line.startswith("arg=")] == [str(probe), *arguments]
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

    check()


@root
@isolated
def test_runs_as_the_containers_owner(probe: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        located.container = located.container.replace(owner_uid=100_000, owner_gid=100_001)
        seen = run(located, probe)

        assert "pid=1 uid=100000 gid=100001 cwd=/" in seen
        assert any(line.startswith("CapEff:") and line.endswith("0000000000000002") for line in seen)


@root
@isolated
def test_nothing_is_left_behind(probe: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        mounts, ours = mountinfo(pid), mountinfo()
        run(locate(pid, rootfs), probe)

        assert mountinfo(pid) == mounts
        assert mountinfo() == ours
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@root
@isolated
def test_what_is_hidden_from_it_is_not_hidden_from_the_container(probe: Path, rootfs: Path) -> None:
    """Where the container's mounts are shared, a mount on a clone of one is a mount on that one too."""
    with container(rootfs) as pid:
        subprocess.run(["nsenter", "-t", str(pid), "-m", "mount", "--make-rshared", str(rootfs)], check=True)
        before = mountinfo(pid)
        assert any(" shared " in line for line in before)
        seen = run(locate(pid, rootfs), probe)

        assert "/dev=0" in seen
        assert mountinfo(pid) == before


@root
@isolated
def test_one_that_died_while_it_waited_is_not_missed(rootfs: Path) -> None:
    with open_program("/sbin/ldconfig") as waiting:
        pid = ldcache_process.in_advance(waiting)
        assert pid == ldcache_process.in_advance(waiting)  # the same one
    os.kill(pid, 9)
    with container(rootfs) as first:
        run(locate(first, rootfs), "/sbin/ldconfig")
        assert injection.inside(first, rootfs, "/etc/ld.so.cache").exists()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@root
@pytest.mark.parametrize("missing", ["dev", "sys", "proc", "etc/ld.so.conf", "usr/lib64", "var/cache"])
def test_an_image_may_lack_directories(rootfs: Path, missing: str) -> None:
    @isolated
    def check() -> None:
        path = rootfs / missing
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
        with container(rootfs, with_proc=missing != "proc", with_dev=missing != "dev") as pid:
            run(locate(pid, rootfs), "/sbin/ldconfig")
            assert injection.inside(pid, rootfs, "/etc/ld.so.cache").exists()

    check()


FAILURES = [
    pytest.param("/hang", "did not end within 0.3 s", "--timeout", id="hangs"),
    pytest.param("/crash", "terminated with signal", "", id="crashes"),
]


@root
@pytest.mark.parametrize(("mode", "message", "hint"), FAILURES)
def test_a_program_that_fails(probe: Path, rootfs: Path, mode: str, message: str, hint: str) -> None:
    @isolated
    def check() -> None:
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            before, start = tree(rootfs), time.monotonic()
            with pytest.raises(LdcacheError) as caught:
                run(located, probe, mode, limit=0.3)

            assert f"process {probe} {message}" in caught.value.message
            assert hint in caught.value.hint
            assert time.monotonic() - start < 3
            assert tree(rootfs) == before
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)

    check()


@root
@isolated
def test_much_output_neither_blocks_nor_fills_memory(probe: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        seen = run(locate(pid, rootfs), probe, "/noise")

        assert 0 < sum(len(line) for line in seen) <= 256 << 10


@root
@isolated
def test_exit_status_and_last_words_are_told(rootfs: Path) -> None:
    # A directory where the cache goes: the rename fails after links were made. They are taken back.
    (rootfs / "etc/ld.so.cache").mkdir()
    (rootfs / "etc/ld.so.cache/full").touch()
    injection.build_library(rootfs / "usr/lib64/libx.so.1.2", "libx.so")
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        before = tree(rootfs)
        with pytest.raises(LdcacheError) as caught:
            run(located, "/sbin/ldconfig")

        assert caught.value.message == "process /sbin/ldconfig failed with error code: 1"
        assert "ld.so.cache" in caught.value.hint
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

        assert "failed with error code: 1" in caught.value.message
        assert "/etc/ld.so.cache" in caught.value.hint


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
