"""The known vulnerabilities of NVIDIA's container tools, each as an attack on ours.

docs/user/security.md has the table; tests/contract/test_cve_doc.py holds it to the tests.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvc.base.errors import NvcError
from nvc.base.log import Log
from nvc.cdi import hooks
from nvc.container.apply import apply
from nvc.container.messages import ContainerConfig
from nvc.container.operations import BindMount, Symlink, UpdateLdcache
from tests.nvc.cdi.conftest import enter
from tests.support import injection
from tests.support.injection import VERSION, container, isolated, locate, mountinfo, operations, tree
from tests.support.ldconfig import run

pytestmark = pytest.mark.root
LOG = Log.none()
COMPAT = "/usr/local/cuda/compat"
RENAME_EXCHANGE = 2
ROUNDS = 30


@contextmanager
def exchanging(one: Path, other: Path) -> Iterator[None]:
    """Meanwhile a process of the image exchanges two names, as fast as it can."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                injection._libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), RENAME_EXCHANGE)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def host_tree(place: Path) -> Path:
    """What the host has to lose, with names that our tools look for."""
    for name in ("lib64", "compat", "driver"):
        (place / name).mkdir(parents=True)
    for name in ("precious", f"compat/libcuda.so.{VERSION}", "ld.so.cache", "lib64/libx.so"):
        (place / name).write_text("of the host")
    return place


def fingerprint(place: Path) -> object:
    """Names, kinds, owners, contents and times of the host's files."""
    return tree(place), {str(path): path.lstat().st_mtime_ns for path in place.rglob("*")}


def test_cve_2024_0132(driver_root: Path, rootfs: Path, tmp_path: Path) -> None:
    """CVE-2024-0132: a compat library of the image becomes a link to the host's file system between check and mount."""
    outside = host_tree(tmp_path / "host")

    @isolated
    def check() -> None:
        compat = rootfs / COMPAT[1:]
        compat.mkdir(parents=True)
        injection.build_library(compat / "libcuda.so.1000.10.01", "libcuda.so")
        (rootfs / "trap").symlink_to("../" * 20 + str(outside / "compat")[1:])
        seen = set()
        for _ in range(ROUNDS):
            with container(rootfs) as pid, exchanging(compat, rootfs / "trap"):
                before = mountinfo(pid)
                try:
                    located = locate(pid, rootfs, find_compat=True)
                    seen.add(located.compat is not None)
                    *plan, update = operations(located)
                    assert isinstance(update, UpdateLdcache)
                    update = update.replace(directories=(COMPAT, *update.directories))
                    apply(located, str(driver_root), (*plan, update), LOG)
                except NvcError:
                    pass
                roots = {line.split(" ")[0] for line in mountinfo(pid) if line not in before}
                assert [root for root in roots if root != "/" and not root.startswith(str(driver_root))] == []
        assert True in seen

    before = fingerprint(outside)
    check()
    assert fingerprint(outside) == before


@pytest.mark.parametrize("name", ["usr/lib64/libcuda.so." + VERSION, "usr/bin/nvidia-smi", "dev/nvidia0"])
def test_cve_2024_0133(driver_root: Path, rootfs: Path, tmp_path: Path, name: str) -> None:
    """CVE-2024-0133: a mount point that is a dangling link has an empty file made on the host."""
    outside = host_tree(tmp_path / "host")

    @isolated
    def check() -> None:
        (rootfs / name).symlink_to("../" * 20 + str(outside / "made")[1:])
        with container(rootfs, with_dev=False) as pid:
            located = locate(pid, rootfs)
            try:
                apply(located, str(driver_root), operations(located), LOG)
            except NvcError:
                pass

    before = fingerprint(outside)
    check()
    assert fingerprint(outside) == before


def test_cve_2024_0134(rootfs: Path, tmp_path: Path) -> None:
    """CVE-2024-0134: directories and links that go into the container are made on the host, by a link on the way."""
    outside = host_tree(tmp_path / "host")

    @isolated
    def check() -> None:
        (rootfs / "usr/lib").mkdir()
        for name, text in (("one", str(outside)), ("two", "../" * 20 + str(outside)[1:])):
            (rootfs / "usr/lib" / name).symlink_to(text)
        with container(rootfs) as pid:
            for name in ("one", "two"):
                link = Symlink(f"/usr/lib/{name}/sub/libcuda.so", "libcuda.so.1")
                try:
                    apply(locate(pid, rootfs), "/", (link,), LOG)
                except NvcError:
                    pass
        target = enter(rootfs)
        for name in ("one", "two"):
            try:
                hooks.create_symlinks(target, [(f"/usr/lib/{name}/sub/libcuda.so", "libcuda.so.1")], LOG)
            except NvcError:
                pass

    before = fingerprint(outside)
    check()
    assert fingerprint(outside) == before


def test_cve_2024_0135(probe: Path, rootfs: Path, tmp_path: Path) -> None:
    """CVE-2024-0135: the host's ldconfig is overwritten through /proc/PID/exe of the process that runs it."""
    program = tmp_path / "ldconfig"
    program.write_bytes(probe.read_bytes())
    program.chmod(0o755)
    digest, inode = hashlib.sha256(program.read_bytes()).digest(), program.stat().st_ino

    @isolated
    def check() -> None:
        with container(rootfs) as pid:
            attacker = os.fork()
            if attacker == 0:
                os._exit(_overwrite(inode))
            try:
                run(locate(pid, rootfs), program, "/hang", limit=1.5)
            except NvcError:
                pass
            _, status = os.waitpid(attacker, 0)
            assert os.waitstatus_to_exitcode(status) == 0

    check()
    assert hashlib.sha256(program.read_bytes()).digest() == digest


def _overwrite(inode: int) -> int:
    """0: what runs is not the host's file, and cannot be written, during or after. More than the container could do."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for name in os.listdir("/proc"):
            try:
                if not name.isdigit() or "memfd:ldconfig" not in os.readlink(f"/proc/{name}/exe"):
                    continue
                held = os.open(f"/proc/{name}/exe", os.O_RDONLY)
            except OSError:
                continue
            if os.fstat(held).st_ino == inode:
                return 2
            for _ in range(40):
                # ETXTBSY while it runs; the seals (EPERM) afterwards.
                try:
                    number = os.open(f"/proc/self/fd/{held}", os.O_RDWR)
                    os.pwrite(number, b"#!", 0)
                    return 3
                except OSError:
                    time.sleep(0.05)
            return 0
    return 4


@pytest.mark.parametrize("text", ["/sbin/ldconfig", "/trap/../sbin/ldconfig"])
def test_cve_2024_0136(rootfs: Path, tmp_path: Path, text: str) -> None:
    """CVE-2024-0136: the container's own ldconfig is run, with the host's devices in reach."""
    mark = _trap_ldconfig(rootfs, tmp_path)

    @isolated
    def check() -> None:
        with container(rootfs) as pid:
            located = locate(pid, rootfs, config=ContainerConfig(pid, str(rootfs), ldconfig=text))
            assert located.container.ldconfig in ("/sbin/ldconfig", "/sbin/ldconfig.real")
            apply(located, "/", (UpdateLdcache(located.container.ldconfig, ("/usr/lib64",)),), LOG)
            assert (rootfs / "etc/ld.so.cache").stat().st_size

    check()
    assert not mark.exists()
    assert not (rootfs / "mark").exists()


def _trap_ldconfig(rootfs: Path, tmp_path: Path) -> Path:
    """An image's ldconfig that leaves a mark wherever it runs."""
    mark = tmp_path / "mark"
    source = tmp_path / "trap.c"
    source.write_text(
        "#include <fcntl.h>\n#include <unistd.h>\n"
        f'int main(void) {{ close(open("{mark}", O_CREAT | O_WRONLY, 0644)); '
        'close(open("/mark", O_CREAT | O_WRONLY, 0644)); return 0; }\n'
    )
    for place in ("sbin", "trap", "usr/sbin"):
        (rootfs / place).mkdir(exist_ok=True)
        subprocess.run(["gcc", "-static", "-o", str(rootfs / place / "ldconfig"), str(source)], check=True)
    return mark


def test_cve_2024_0137(probe: Path, rootfs: Path, tmp_path: Path) -> None:
    """CVE-2024-0137: code of the container runs in the host's network namespace."""
    mark = _trap_ldconfig(rootfs, tmp_path)

    @isolated
    def check() -> None:
        with container(rootfs) as pid:
            ours = {os.readlink(f"/proc/{one}/ns/{kind}") for one in ("self", pid) for kind in ("net", "ipc", "uts")}
            for way in ("now", "in Python"):
                seen = run(locate(pid, rootfs), probe, way=way)
                theirs = {line.partition("=")[2] for line in seen if line.startswith("namespace=")}
                assert len(theirs) == 5
                assert not ours & theirs
                assert "socket=Operation not permitted" in seen

    check()
    assert not mark.exists()
    assert not (rootfs / "mark").exists()


@pytest.mark.parametrize("name", ["usr/lib64", "usr/bin"])
def test_cve_2025_23359(driver_root: Path, rootfs: Path, tmp_path: Path, name: str) -> None:
    """CVE-2025-23359: the remedy of CVE-2024-0132 checked a path and used it by name: a directory is exchanged."""
    outside = host_tree(tmp_path / "host")
    (outside / "nvidia-smi").touch()

    @isolated
    def check() -> None:
        (rootfs / "trap").symlink_to("../" * 20 + str(outside)[1:])
        done = 0
        with container(rootfs) as pid, exchanging(rootfs / name, rootfs / "trap"):
            for _ in range(ROUNDS):
                try:
                    located = locate(pid, rootfs)
                    smi = BindMount("/usr/bin/nvidia-smi", f"/{name}/nvidia-smi", "regular", ("ro",))
                    apply(located, str(driver_root), (smi, *operations(located, cache=False)), LOG)
                    done += 1
                except NvcError:
                    pass
                assert [line for line in mountinfo(pid) if line.split(" ")[1].startswith(str(outside))] == []

    before = fingerprint(outside)
    check()
    assert fingerprint(outside) == before


@pytest.mark.parametrize("name", ["etc/ld.so.cache", "etc/ld.so.cache~", "etc", "var/cache/ldconfig"])
@pytest.mark.parametrize("form", ["absolute", "dots", "/proc/1/root", "/proc/self/root"])
def test_cve_2025_23267(rootfs: Path, tmp_path: Path, name: str, form: str) -> None:
    """CVE-2025-23267: ldconfig writes the cache through a link of the image's, over a file of the host."""
    outside = host_tree(tmp_path / "host")

    @isolated
    def check() -> None:
        place = rootfs / name
        if place.is_dir():
            place.rename(rootfs / "aside")
        place.parent.mkdir(parents=True, exist_ok=True)
        where = str(outside / "ld.so.cache" if "ld.so" in name else outside)
        texts = {"absolute": where, "dots": "../" * 20 + where[1:]}
        place.symlink_to(texts.get(form, form + where))
        with container(rootfs) as pid:
            try:
                run(locate(pid, rootfs), "/sbin/ldconfig")
            except NvcError:
                pass

    before = fingerprint(outside)
    check()
    assert fingerprint(outside) == before


@pytest.mark.parametrize("name", ["usr/lib/driver", "etc/ld.so.conf.d", "usr/local/cuda/compat", "etc"])
def test_cve_2026_24260(rootfs: Path, tmp_path: Path, name: str) -> None:
    """CVE-2026-24260: hooks that make links and compat entries resolved a path, and used it by name afterwards."""
    outside = host_tree(tmp_path / "host")
    (outside / "ld.so.conf").write_text("/of/the/host\n")

    @isolated
    def check() -> None:
        injection.build_library(_made(rootfs / COMPAT[1:]) / "libcuda.so.1000.1", "libcuda.so")
        _made(rootfs / name)
        (rootfs / "trap").symlink_to("../" * 20 + str(outside)[1:])
        target = enter(rootfs).replace(timeout=3.0)
        with exchanging(rootfs / name, rootfs / "trap"):
            for turn in range(ROUNDS):
                for step in (
                    lambda turn=turn: hooks.create_symlinks(target, [(f"/usr/lib/driver/l{turn}", "x")], LOG),
                    lambda: hooks.enable_cuda_compat(target, "535.104", "", COMPAT, LOG),
                    lambda turn=turn: turn % 10 or hooks.update_ldcache(target, ["/usr/lib/driver"], "", LOG),
                    lambda: hooks.chmod(target, 0o700, [f"/{name}"], LOG),
                ):
                    try:
                        step()
                    except NvcError:
                        pass

    before = fingerprint(outside)
    check()
    assert fingerprint(outside) == before


def _made(place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    return place
