"""The guard before real containers: the runtimes compile the profile and hand its listener over."""

from __future__ import annotations

import array
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.guard.filter import merge
from nvc.guard.supervisors import Supervisors
from nvc.share import limits
from nvc.share.limits import Limits, LimitsNode
from nvc.share.model import ResolvedGpu
from nvc.share.store import start_time
from nvc.sim.description import load
from tests.support import fuse
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.leftovers import wait_until
from tests.support.native import CHECKOUT
from tests.support.runtimes import OciRuntime
from tests.support.served import served_machine
from tests.support.tenants import build_static, status_now

fuse.needed()

pytestmark = pytest.mark.system
GIB = 1 << 30
ATTACKS = sorted((CHECKOUT / "tests/system/attacks").glob("*.c"))
NODES = {"nvidiactl": limits.NODE_CONTROL, "nvidia-uvm": limits.NODE_UVM, "nvidia0": limits.NODE_GPU}
#: Docker's way: what is not named is refused.
DENYING = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
    "syscalls": [{"names": ["ioctl", "mmap"], "action": "SCMP_ACT_ALLOW"}],
}

#: What the runtimes and a static program need beside.
NEEDED = """
read write openat close execve exit_group exit brk mprotect munmap futex fstat newfstatat
set_tid_address set_robust_list rseq prlimit64 readlink readlinkat getrandom arch_prctl uname capget
capset prctl setuid setgid setgroups fcntl epoll_ctl epoll_pwait nanosleep sigaltstack rt_sigaction
rt_sigprocmask rt_sigreturn tgkill getpid gettid clone clone3 sched_yield wait4 fchdir chdir statx
getdents64 stat lstat access faccessat2 dup dup2 dup3 close_range seccomp sendmsg recvmsg recvfrom
sendto connect socket madvise sched_getaffinity getppid ppoll poll pipe2 eventfd2 epoll_create1
getuid geteuid getgid getegid umask setsid kill getcwd lseek pread64 fchown fchmod statfs fstatfs
mount keyctl
"""


@pytest.fixture
def machine(bed: Bed) -> Iterator[str]:
    """A machine of its own whose nodes are served until the test ends."""
    with served_machine(bed) as name:
        yield name


def profile(place: Path, *, denying: bool) -> dict[str, object]:
    if not denying:
        return merge(None, str(place), "share", "SCMP_ARCH_X86_64")
    base = {**DENYING, "syscalls": [*DENYING["syscalls"], {"names": NEEDED.split(), "action": "SCMP_ACT_ALLOW"}]}  # type: ignore[misc]
    return merge(base, str(place), "share", "SCMP_ARCH_X86_64")


class Listening:
    """A socket as the agent has it: what comes over it is tenant 1's, which begins with it. wish: its limits."""

    def __init__(self, guard: Supervisors, place: Path, wish: bytes) -> None:
        self.guard, self.wish, self.state = guard, wish, ""
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(place))
        self.server.listen(4)
        self.server.settimeout(60)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with self.server, self.server.accept()[0] as channel:
            data, ancillary, _, _ = channel.recvmsg(65536, 64)
            self.state = data.decode()
            descriptor = array.array("i", ancillary[0][2])[0]
            first = json.loads(self.state)["state"]["pid"]
            self.guard.add(1, self.wish, 1, first=(first, start_time(first)))
            self.guard.listen(1, descriptor)
            os.close(descriptor)


@pytest.mark.parametrize("denying", [False, True], ids=["unconfined", "denying"])
@pytest.mark.parametrize("name", ["runc", "crun"])
def test_a_container_gets_its_quota_and_no_more(bed: Bed, ask, machine: str, name: str, denying: bool) -> None:  # type: ignore[no-untyped-def]
    runtime: OciRuntime = ask(name, "v2")
    place = bed.machine(machine)
    status = {node: os.stat(place / "dev" / node) for node in NODES}
    nodes = tuple(LimitsNode(NODES[node], 0, at.st_dev, at.st_ino) for node, at in status.items())
    gpu = ResolvedGpu(uuid=load("h200").gpus[0].uuid, minor=0, memory=10 * GIB, cap=0, weight=0, priority="normal")
    driver = next(
        line.split("=")[1]
        for line in (place / "etc/nvc-sim/machine").read_text().splitlines()
        if line.startswith("driver=")
    )
    tree = bed.rootfs()
    build_static(ATTACKS[0], tree / "usr/bin/attack", *map(str, ATTACKS[1:]))
    listen = bed.directory("agent") / "listen"
    container = Container(
        tree, ["attack", "heap"], gpu_env("all"), {"prestart": [bed.hook("prestart", machine=machine)]}
    )
    directory = bed.bundle(container)
    config = json.loads((directory / "config.json").read_text())
    config["linux"]["seccomp"] = profile(listen, denying=denying)
    (directory / "config.json").write_text(json.dumps(config))

    with Supervisors(str(place / "dev")) as guard:
        listening = Listening(guard, listen, limits.encode(Limits((gpu,), nodes, driver, "test")))
        result = runtime.run(directory, bed.name("c"))
        runtime.clean()
        assert result.out.splitlines() == ["wrong=0", "pieces=10"], (result.text, status_now(guard))
        assert json.loads(listening.state)["metadata"] == "share"
        counted = dict(status_now(guard).reasons)
        assert set(counted) == {"over-quota", "forbidden-escape"}
        wait_until(lambda: guard.gone(1), "nothing of it is left")
        assert status_now(guard).gpus[0].memory == 0


def test_without_a_listener_the_container_does_not_start(bed: Bed, runc: OciRuntime, machine: str) -> None:
    container = Container(bed.rootfs(), ["true"], gpu_env("all"), {"prestart": [bed.hook("prestart", machine=machine)]})
    directory = bed.bundle(container)
    config = json.loads((directory / "config.json").read_text())
    config["linux"]["seccomp"] = profile(bed.directory("agent") / "no-socket", denying=False)
    (directory / "config.json").write_text(json.dumps(config))
    result = runc.run(directory, bed.name("c"))
    runc.clean()
    assert result.code != 0
    assert "seccomp" in result.text
