"""NVML behind the driver service: what it may still do, and every way in which it can be missing or fail.

Each NVML here is a small library compiled for the test (fake_nvml.c) in a driver root of its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.base.errors import DetectionError, InitializationError, NvcError
from nvc.base.log import Log
from nvc.driver import confine
from nvc.driver.facts import NvmlGpu, NvmlSystem
from nvc.driver.service import start
from nvc.linux import seccomp, syscalls
from nvc.model import Host
from tests.support.demo_service import is_reaped, open_descriptors
from tests.support.isolation import in_namespaces
from tests.support.launchers import interpreter
from tests.support.readable import search_path

SOURCE = Path(__file__).with_name("fake_nvml.c")
PROGRAMS = Path(__file__).parent / "programs"

pytestmark = pytest.mark.root


@pytest.fixture
def driver_root(tmp_path: Path) -> Callable[..., Host]:
    """A driver root with an NVML compiled with these definitions."""

    def make(*definitions: str) -> Host:
        libraries = tmp_path / "root/usr/lib"
        libraries.mkdir(parents=True)
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1", "-pthread"]
        subprocess.run(
            [*command, *(f"-D{d}" for d in definitions), "-o", libraries / "libnvidia-ml.so.1", SOURCE], check=True
        )
        return Host(root=str(tmp_path / "root"))

    return make


@pytest.fixture
def groups() -> Iterator[None]:
    """The caller is in groups that the service must leave."""
    before = os.getgroups()
    os.setgroups([4, 27])
    yield
    os.setgroups(before)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND))


def ask(host: Host, deadline: float = 10, **ids: int) -> NvmlGpu:
    with start(host, uid=ids.get("uid"), gid=ids.get("gid"), deadline=deadline, log=Log.none()) as client:
        client.system()
        return client.gpu(0)


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def test_facts_come_back_as_values(driver_root: Callable[..., Host]) -> None:
    with start(driver_root(), uid=None, gid=None, deadline=10, log=Log.none()) as client:
        assert NvmlSystem("535.104.05", 12020, 1) == client.system()
        assert NvmlGpu(
            index=0, minor=3, name="Fake GPU", brand=2, uuid="GPU-00000000-1111-2222-3333-444444444444",
            domain=0, bus=0x65, device=1, arch="9.0", mig_capable=True, mig_enabled=False, migs=(),
        ) == client.gpu(0)  # fmt: skip


@pytest.mark.usefixtures("groups")
def test_the_process_has_given_everything_up(driver_root: Callable[..., Host], log: Log, tmp_path: Path) -> None:
    host = driver_root()
    with start(host, uid=None, gid=None, deadline=10, log=log) as client:
        client.system()
        found = status(client.pid)
        assert host.root == os.readlink(f"/proc/{client.pid}/root")
        assert host.root == os.readlink(f"/proc/{client.pid}/cwd")
        limits = Path(f"/proc/{client.pid}/limits").read_text()
    overflow, none = "\t".join(["65534"] * 4), "0" * 16
    assert (overflow, overflow, "65534") == (found["Uid"], found["Gid"], found["Groups"])
    assert [none] * 4 == [found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")]
    assert "1" == found["NoNewPrivs"]
    assert "2" == found["Seccomp"]
    assert "nvc:[driver]" == found["Name"]
    assert ["Max core file size", "0", "0"] == [
        part.strip() for line in limits.splitlines() if "core" in line for part in (line[:26], line[26:47], line[47:68])
    ]
    assert "without a seccomp filter" not in (tmp_path / "log").read_text()


def test_the_callers_streams_are_closed_before_the_process_ends(
    driver_root: Callable[..., Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver takes its time for closing its files, and whatever reads the caller's messages waits for their end."""
    gate, opened = os.pipe()
    end = os._exit
    monkeypatch.setattr(os, "_exit", lambda status: (os.read(gate, 1), end(status)))  # the helper's, which is forked
    reading, writing = os.pipe()
    ours = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        client = start(driver_root(), uid=None, gid=None, deadline=10, log=Log.none())
    finally:
        os.dup2(ours, 2)
        os.close(ours)
    client.system()
    client.leave()

    assert select.select([reading], [], [], 10)[0] and b"" == os.read(reading, 1), "no process has it"
    assert os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "it has not ended"
    os.write(opened, b"x")
    client.reap()
    for descriptor in (gate, opened, reading):
        os.close(descriptor)


def test_what_it_tries_all_the_same_is_refused(driver_root: Callable[..., Host]) -> None:
    """The library itself tries to mount, execute, trace, connect, leave; and starts a thread, which works."""
    assert "confined" == ask(driver_root("PROBE")).name


def test_root_kept_on_request_has_no_capability_either(driver_root: Callable[..., Host]) -> None:
    host = driver_root("PROBE")
    with start(host, uid=0, gid=0, deadline=10, log=Log.none()) as client:
        assert "confined" == client.gpu(0).name
        found = status(client.pid)
    assert ["0\t0\t0\t0"] * 2 == [found["Uid"], found["Gid"]]
    assert ["0" * 16] * 3 == [found["CapPrm"], found["CapEff"], found["CapBnd"]]


def test_the_filter_alone_refuses_namespaces_by_clone() -> None:
    """As root, outside of a chroot, where the kernel itself would not."""
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]  # asm/unistd.h: clone
    libc = ctypes.CDLL(None, use_errno=True)

    def run() -> None:
        syscalls.seccomp_filter(confine._filter(Log.none()))
        for flag in confine._NAMESPACES:
            child = libc.syscall(number, flag | signal.SIGCHLD, None, None, None, None)
            if child == 0:
                os._exit(0)
            assert (child, ctypes.get_errno()) == (-1, errno.EPERM), hex(flag)

    in_namespaces(run)


@pytest.mark.usefixtures("groups")
def test_other_ids_on_request(driver_root: Callable[..., Host]) -> None:
    with start(driver_root(), uid=1234, gid=44, deadline=10, log=Log.none()) as client:
        client.system()
        found = status(client.pid)
    assert ("\t".join(["1234"] * 4), "\t".join(["44"] * 4), "44") == (found["Uid"], found["Gid"], found["Groups"])


def test_without_a_driver_root_nothing_is_chrooted() -> None:
    with start(Host(), uid=None, gid=None, deadline=10, log=Log.none()) as client:
        try:
            client.system()
        except NvcError as error:
            # No driver on this machine is as good: it is this root that was searched.
            assert str(error).startswith(("initialization error: load library failed: libnvidia-ml.so.1: ", "init"))
        assert "/" == os.readlink(f"/proc/{client.pid}/root")
        assert "0" * 16 == status(client.pid)["CapPrm"]


def test_on_a_machine_without_a_table_of_calls_it_runs_and_says_so(
    driver_root: Callable[..., Host], log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seccomp, "NUMBERS", {})
    before = status(os.getpid())["Seccomp"]
    with start(driver_root(), uid=None, gid=None, deadline=10, log=log) as client:
        client.system()
        found = status(client.pid)
    assert (before, "1") == (found["Seccomp"], found["NoNewPrivs"])
    assert "without a seccomp filter: no system call table for" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", ["prctl", "seccomp", "pyseccomp", "pynvml", "elftools", "json"])
def test_nothing_that_takes_long_to_import_is_needed(
    driver_root: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with start(driver_root("PROBE"), uid=None, gid=None, deadline=10, log=Log.none()) as client:
        assert "confined" == client.gpu(0).name
        assert ("2", "1") == (status(client.pid)["Seccomp"], status(client.pid)["NoNewPrivs"])


def failure(host: Host, deadline: float = 10, *, first: float = 60) -> NvcError:
    """What asking gets; nothing of the service may be left afterwards. first: seconds for the first question."""
    before = open_descriptors()
    with (
        pytest.raises(NvcError) as caught,
        start(host, uid=None, gid=None, deadline=first, log=Log.none()) as client,
    ):
        client.system()
        client._client.allow(deadline)
        client.gpu(0)
    assert is_reaped(client.pid)
    assert before == open_descriptors()
    return caught.value


@pytest.mark.parametrize(
    ("definitions", "kind", "text", "hint"),
    [
        pytest.param(
            ["INIT=9"], InitializationError, "initialization error: nvml error: driver not loaded", "--load-kmods",
            id="driver not loaded",
        ),
        pytest.param(
            ["INIT=18"], InitializationError, "initialization error: nvml error: driver/library version mismatch",
            "reboot", id="version mismatch",
        ),
        pytest.param(
            ["INIT=77"], InitializationError, "initialization error: nvml error: an error of the future", "",
            id="an error that the binding does not know",
        ),
        pytest.param(
            ["WITHOUT_CUDA"], DetectionError, "detection error: nvml error: unknown error", "too old",
            id="symbol missing",
        ),
        pytest.param(
            ["CRASH_IN=nvmlInitWithFlags"], InitializationError,
            "initialization error: driver rpc error: failed to process request: system: "
            "the helper died (signal 11, segmentation fault)", "", id="crash at init",
        ),
        pytest.param(
            ["CRASH_IN=nvmlDeviceGetName"], DetectionError,
            "detection error: driver rpc error: failed to process request: gpu: "
            "the helper died (signal 11, segmentation fault)", "", id="crash later",
        ),
    ],
)  # fmt: skip
def test_an_nvml_that_fails_is_an_error_that_says_what_to_do(
    driver_root: Callable[..., Host], definitions: list[str], kind: type[NvcError], text: str, hint: str
) -> None:
    error = failure(driver_root(*definitions))
    assert kind is type(error)
    assert text == str(error)
    assert hint in error.hint


@pytest.mark.parametrize(
    ("function", "text"),
    [
        pytest.param(
            "nvmlInitWithFlags",
            "initialization error: driver rpc error: timed out: system: no answer in 0.7 s",
            id="at init",
        ),
        pytest.param(
            "nvmlDeviceGetName", "detection error: driver rpc error: timed out: gpu: no answer in 0.7 s", id="later"
        ),
    ],
)
def test_an_nvml_that_hangs_with_every_signal_blocked_is_ended(
    driver_root: Callable[..., Host], function: str, text: str
) -> None:
    host = driver_root(f"HANG_IN={function}")
    begin = time.monotonic()
    # Only what hangs is not waited for: on a busy machine the rest takes its time.
    error = failure(host, deadline=0.7, first=0.7 if function == "nvmlInitWithFlags" else 60)
    assert time.monotonic() - begin < 50
    assert text == str(error)
    assert "nvidia-persistenced" in error.hint and "--timeout" in error.hint


def test_an_nvml_that_hangs_does_not_outlive_its_caller(driver_root: Callable[..., Host]) -> None:
    host = driver_root("HANG_IN=nvmlInitWithFlags")
    caller = subprocess.Popen([sys.executable, PROGRAMS / "ask_system.py", host.root], stdout=subprocess.PIPE)
    with caller:
        assert caller.stdout is not None
        pid = int(caller.stdout.readline())
        until = time.monotonic() + 30
        while status(pid).get("Uid", "").split()[:1] != ["65534"] and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.2)
        assert os.path.exists(f"/proc/{pid}")
        caller.kill()
    until = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")


def test_an_old_driver_without_mig_has_none(driver_root: Callable[..., Host]) -> None:
    gpu = ask(driver_root("WITHOUT_MIG"))
    assert (False, False, ()) == (gpu.mig_capable, gpu.mig_enabled, gpu.migs)


def test_a_gpu_that_is_not_there(driver_root: Callable[..., Host]) -> None:
    with start(driver_root(), uid=None, gid=None, deadline=10, log=Log.none()) as client:
        with pytest.raises(DetectionError, match="nvml error: unknown error") as caught:
            client.gpu(7)
        assert "GPU 7" == caught.value.hint
        assert "Fake GPU" == client.gpu(0).name


def test_no_library(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    error = failure(Host(root=str(tmp_path)))
    assert (
        "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: "
        "no such file or directory" == str(error)
    )
    assert "--root" in error.hint


def _cut(library: Path) -> None:
    os.truncate(library, 40)


def _text(library: Path) -> None:
    library.write_text("not a library")


def _other_architecture(library: Path) -> None:
    machine = 183 if platform.machine() == "x86_64" else 62  # EM_AARCH64, EM_X86_64
    with library.open("r+b") as file:
        file.seek(18)
        file.write(machine.to_bytes(2, "little"))


@pytest.mark.parametrize("spoil", [_cut, _text, _other_architecture])
def test_a_library_that_is_none(driver_root: Callable[..., Host], spoil: Callable[[Path], None]) -> None:
    host = driver_root()
    spoil(Path(host.root) / "usr/lib/libnvidia-ml.so.1")
    assert str(failure(host)).startswith("initialization error: load library failed: ")


def test_a_library_that_ends_in_the_middle(driver_root: Callable[..., Host]) -> None:
    """The loader itself dies of it (it maps behind the end of the file); the caller does not."""
    host = driver_root()
    os.truncate(Path(host.root) / "usr/lib/libnvidia-ml.so.1", 1000)
    assert str(failure(host)).endswith("system: the helper died (signal 7, bus error)")


def test_a_driver_root_that_nobody_may_enter(driver_root: Callable[..., Host]) -> None:
    host = driver_root()
    os.chmod(host.root, 0o700)
    error = failure(host)
    assert str(error).endswith("cannot open shared object file: permission denied")


def test_no_driver_root(tmp_path: Path) -> None:
    error = failure(Host(root=str(tmp_path / "gone")))
    assert f"initialization error: change root failed: {tmp_path}/gone: no such file or directory" == str(error)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_an_ordinary_user_reaches_a_driver_root_too(driver_root: Callable[..., Host], tmp_path: Path) -> None:
    """info and list with --root or --sim; chroot is done in a user namespace of its own."""
    host = driver_root("PROBE")
    for path in [tmp_path, *tmp_path.parents]:
        if path.stat().st_mode & 0o005 == 0:
            path.chmod(path.stat().st_mode | 0o055)
    program = tmp_path / "ask_gpu.py"
    shutil.copy(PROGRAMS / program.name, program)
    program.chmod(0o644)
    environment = {**os.environ, "PYTHONPATH": ":".join(search_path())}
    command = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", interpreter(), str(program), host.root]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, cwd="/")
    assert "" == done.stderr
    assert done.stdout.startswith("confined\n")
    assert "CapPrm:\t0000000000000000" in done.stdout
