"""Each cell of ``nvc.base.budgets``, exceeded: the process is held to it, and ends as the page says."""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hook import bundle, state
from nvc.base import budgets
from nvc.base.errors import InputError, LdcacheError, MountError, NvcError
from nvc.base.log import Log
from nvc.cdi import worker
from nvc.container import service
from nvc.container.apply import apply
from nvc.container.ldcache import sandbox
from nvc.container.ldcache.snapshot import Snapshot
from nvc.container.operations import BindMount
from nvc.driver import confine
from nvc.linux import memory
from nvc.linux.root import Root
from rpc import client, stop
from tests.support import injection
from tests.support.injection import SERVICE, container, isolated, kibibytes, locate, mount, mountinfo, operations
from tests.support.ldconfig import run

ROOT = Path(__file__).parents[2]
LOG = Log.none()
root = pytest.mark.root


def child(body: Callable[[], object]) -> int:
    """How a process ends that runs ``body``: 0, 12 after a MemoryError, 27 after an EFBIG, or minus a signal."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        except MemoryError:
            status = 12
        except OSError as error:
            status = error.errno or 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def take(size: int) -> None:
    """Fresh memory: what pytest has given back to its heap counts already."""
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def spin() -> None:
    while True:
        pass


def write(size: int, path: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(path, "wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))


def test_no_process_that_reads_an_image_has_more_than_128_mib() -> None:
    assert {budget.memory for budget in budgets.BUDGETS if budget is not budgets.DRIVER} == {128 << 20}


@root
def test_ldconfig_memory(rootfs: Path) -> None:
    """A line of 400 MiB in the configuration, twice what it may have."""
    with open(rootfs / "etc/ld.so.conf", "wb") as file:
        file.truncate(400 << 20)

    @isolated
    def check() -> None:
        with container(rootfs) as pid:
            try:
                run(locate(pid, rootfs), "/sbin/ldconfig")
            except LdcacheError:
                pass
        used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        # Pages of files that it maps are not its own; and the child had what this process has before the execve.
        assert used < max(budgets.LDCONFIG.memory + (64 << 20), (kibibytes("VmHWM") << 10) + (16 << 20))

    check()


@root
@pytest.mark.parametrize("way", ["now", "in Python", "standing by"], indirect=True)
def test_ldconfig_processor_time(probe: Path, rootfs: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = tuple((kind, 1 if kind == resource.RLIMIT_CPU else value) for kind, value in sandbox._LIMITS)
    assert (resource.RLIMIT_CPU, budgets.LDCONFIG.cpu) in sandbox._LIMITS
    monkeypatch.setattr(sandbox, "_LIMITS", limits)

    @isolated
    def check() -> None:
        with container(rootfs) as pid, pytest.raises(LdcacheError) as caught:
            run(locate(pid, rootfs), probe, "/spin", way=way, limit=60.0)
        assert "terminated with signal 9" in caught.value.message

    check()


@root
def test_ldconfig_wall_time(probe: Path, rootfs: Path) -> None:
    assert budgets.LDCONFIG.wall < budgets.CONTAINER.wall - budgets.UNDO_S

    @isolated
    def check() -> None:
        with container(rootfs) as pid, pytest.raises(LdcacheError) as caught:
            run(locate(pid, rootfs), probe, "/hang", limit=0.5)
        assert "did not end within 0.5 s" in caught.value.message

    check()


@root
def test_ldconfig_file_size(rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (resource.RLIMIT_FSIZE, budgets.LDCONFIG.file) in sandbox._LIMITS
    limits = tuple((kind, 1024 if kind == resource.RLIMIT_FSIZE else value) for kind, value in sandbox._LIMITS)
    monkeypatch.setattr(sandbox, "_LIMITS", limits)

    @isolated
    def check() -> None:
        for index in range(40):
            injection.build_library(rootfs / f"usr/lib64/libx{index}.so.1.2", f"libx{index}.so")
        with container(rootfs) as pid:
            before = sorted(os.listdir(rootfs / "etc"))
            with pytest.raises(LdcacheError):
                run(locate(pid, rootfs), "/sbin/ldconfig")
            assert sorted(os.listdir(rootfs / "etc")) == before

    check()


def test_driver_memory_and_file_size(tmp_path: Path) -> None:
    def limit() -> None:
        confine.limit_resources(memory.private_bytes())

    most = budgets.DRIVER.memory
    assert child(lambda: (limit(), take(most // 4))) == 0
    assert child(lambda: (limit(), take(most + (1 << 20)))) == 12
    # What the process that forks it has comes on top.
    large = mmap.mmap(-1, 2 * most, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    assert child(lambda: (limit(), take(most // 4))) == 0
    assert child(lambda: (limit(), take(most + (1 << 20)))) == 12
    large.close()
    file = tmp_path / "file"
    assert child(lambda: (limit(), write(budgets.DRIVER.file + (1 << 20), file))) == 27
    assert file.stat().st_size == budgets.DRIVER.file


def test_driver_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert budgets.DRIVER.cpu in [value for kind, value, _ in confine.LIMITS if kind == resource.RLIMIT_CPU]
    monkeypatch.setattr(confine, "LIMITS", ((resource.RLIMIT_CPU, 1, ""),))
    assert child(lambda: (confine.limit_resources(0), spin())) == -signal.SIGKILL


def test_container_memory_and_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    most = budgets.CONTAINER.memory
    assert child(lambda: (service.limit(), take(most // 4))) == 0
    assert child(lambda: (service.limit(), take(most + (16 << 20)))) == 12
    monkeypatch.setattr(budgets.CONTAINER, "cpu", 1)
    assert child(lambda: (service.limit(), spin())) == -signal.SIGXCPU


@root
def test_the_process_of_a_cdi_hook_has_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what ends it is said."""
    most = budgets.CONTAINER.memory
    undone = mmap.mmap(-1, 1)

    def wait() -> None:
        try:
            time.sleep(60)
        finally:
            undone[0] = 1

    @isolated
    def check() -> None:
        worker.run(lambda: take(most // 4), 60)
        with pytest.raises(MountError, match="cannot allocate memory"):
            worker.run(lambda: take(most + (16 << 20)), 60)
        with pytest.raises(MountError, match=r"no answer in 0\.55 s"):
            worker.run(wait, 0.5)
        assert undone[0] == 1
        monkeypatch.setattr(budgets.CONTAINER, "cpu", 1)
        with pytest.raises(MountError, match=f"signal {signal.SIGXCPU}"):
            worker.run(spin, 60)

    check()


def test_container_limits_of_the_caller_that_are_lower_stay() -> None:
    def body() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (1 << 26, 1 << 26))
        service.limit()
        assert resource.getrlimit(resource.RLIMIT_DATA) == (1 << 26, 1 << 26)

    assert child(body) == 0


@root
def test_container_memory_with_as_many_names_as_there_may_be(driver_root: Path, rootfs: Path) -> None:
    """Entries and bytes just below both limits, and a failure: all of it is remembered, and read again."""

    @isolated
    def check() -> None:
        before_kib = kibibytes("VmRSS")
        mount("tmpfs", rootfs.parent, "tmpfs", 0)
        injection.make_rootfs(rootfs)
        at = os.open(rootfs / "usr/lib64", os.O_RDONLY)
        for index in range(budgets.ENTRIES - 100):
            os.symlink("t" * 100, f"{index:07}{'n' * 100}", dir_fd=at)
        broken = BindMount("/usr/bin/nvidia-smi", "/etc/ld.so.conf/below-a-file", "regular", ("ro",))
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            before = mountinfo(pid)
            start = time.monotonic()
            with pytest.raises(NvcError):
                apply(located, str(driver_root), (*operations(located), broken), LOG)
            assert time.monotonic() - start < budgets.CONTAINER.wall
            assert mountinfo(pid) == before
        assert (kibibytes("VmHWM") - before_kib << 10) + SERVICE < budgets.CONTAINER.memory

    check()


@root
def test_container_file_size(rootfs: Path) -> None:
    """A table of libraries above the limit is not copied back: ldconfig makes it anew."""
    table = rootfs / "var/cache/ldconfig/aux-cache"
    table.parent.mkdir()

    for size in (budgets.TABLE_BYTES, budgets.TABLE_BYTES + 1):
        with open(table, "wb") as file:
            file.truncate(size)
        with Root.open(str(rootfs)) as opened:
            snapshot = Snapshot(opened, (), (0, 0))
            snapshot.begin()
        (table.parent / "new").write_text("ldconfig's")
        (table.parent / "new").rename(table)
        snapshot.restore()
        assert [path.name for path in table.parent.iterdir()] == ["aux-cache"] * (size == budgets.TABLE_BYTES)
    assert budgets.CONTAINER.file == budgets.TABLE_BYTES


def test_undo_has_its_time_and_so_has_the_end_of_the_service() -> None:
    assert stop.UNWIND_LIMIT_S == budgets.UNDO_S > budgets.RESTORE_S
    ends = budgets.CONTAINER.wall + client.UNWIND_TIMEOUT_S + client.EXIT_TIMEOUT_S
    assert ends < budgets.START_S
    left = budgets.CONTAINER.wall - budgets.LDCONFIG.wall
    assert left > budgets.UNDO_S
    assert budgets.TIMEOUT_S * budgets.RESERVE_TIMEOUTS > budgets.UNDO_S

    def body() -> None:
        stop.install()
        stop.limit_undo()
        time.sleep(30)

    start = time.monotonic()
    assert child(body) == -signal.SIGALRM
    assert time.monotonic() - start < budgets.UNDO_S + 1


#: As much memory as JSON of that size can be made into.
SHAPES = {"lists": b"[]", "objects": b'{"":{}}', "strings": b'"a"', "numbers": b"1.5", "texts": b'"\\u0416"'}


@pytest.mark.parametrize("shape", SHAPES)
def test_hook_memory(tmp_path: Path, shape: str) -> None:
    """A config.json that is as large as it may be."""
    one = SHAPES[shape] + b","
    head = b'{"ociVersion":"1.0","process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"root":{"path":"r"},"hooks":['
    body = one * ((budgets.CONFIG_BYTES - len(head) - 10) // len(one))
    (tmp_path / "config.json").write_bytes(head + body[:-1] + b"]}")
    text = json.dumps({"ociVersion": "1.0", "id": "a", "status": "creating", "pid": 1, "bundle": str(tmp_path)})
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from hook.__main__ import main\n"
        "main(['--sim', '/nonexistent', 'prestart'])\n"
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])\n"
    )
    assert _peak(script, text) << 10 < budgets.HOOK.memory


def _peak(script: str, text: str) -> int:
    done = subprocess.run([sys.executable, "-c", script], input=text, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def test_hook_refuses_what_is_larger(tmp_path: Path) -> None:
    assert (bundle.CONFIG_LIMIT, state.STATE_LIMIT) == (budgets.CONFIG_BYTES, budgets.STATE_BYTES)
    (tmp_path / "config.json").write_bytes(b" " * (budgets.CONFIG_BYTES + 1))
    with pytest.raises(InputError, match="larger than 3 MiB"):
        bundle.read(str(tmp_path))
