"""Tenants of a guard on a simulated GPU: programs behind the real filter, with the nodes at /dev (simgpu.with_gpu)."""

from __future__ import annotations

import array
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from nvc.guard.pages import GpuStatus, TenantStatus
from nvc.guard.supervisors import Supervisors
from nvc.share import limits
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from tests.support import announce
from tests.support.firsts import FirstProcess
from tests.support.leftovers import wait_until
from tests.support.native import build
from tests.support.simgpu import _PROBE, UUID, Probe, SimGpu, make_machine, with_gpu

ENTER_SOURCE = Path(__file__).with_name("enter.c")
SECONDS = 30
T = TypeVar("T")


def build_static(source: Path, target: Path, *options: str) -> Path:
    """Compile one C file, statically. Raises CalledProcessError."""
    words = ["cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", *options]
    subprocess.run([*words, "-o", target, source], check=True)
    return target


def between_calls(ask: Callable[[], T]) -> T:
    """What it returns while no call of the driver is in flight for its tenant.

    Raises OSError: EBUSY when a call is in flight for ``SECONDS``.
    """
    end = time.monotonic() + SECONDS
    while True:
        try:
            return ask()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise
            time.sleep(0.001)


def status_now(guard: Supervisors, tenant: int = 1) -> TenantStatus:
    """Published anew; none is while a call of the driver is in flight. Raises OSError."""

    def read() -> TenantStatus:
        guard.refresh(tenant)
        return guard.status(tenant)

    return between_calls(read)


def prepare(directory: Path) -> Path:
    """A simulated machine, and the tool that enters the filter, in ``directory``."""
    make_machine(directory)
    build()
    build_static(ENTER_SOURCE, directory / "enter")
    return directory


def guarded(place: Path, function: Callable[[Tenants], None], *, seconds: int = 100) -> None:
    """Call ``function`` with a guard on the machine of ``prepare``, in namespaces of its own, for so long at most."""

    def inside(gpu: SimGpu) -> None:
        with Tenants(gpu, place) as tenants:
            function(tenants)

    with_gpu(place, inside, seconds=seconds)


class Tenants:
    """A guard and its tenants. tools: a directory with ``enter`` (ENTER_SOURCE)."""

    def __init__(self, gpu: SimGpu, tools: Path) -> None:
        self.gpu, self.tools = gpu, tools
        self.guard = Supervisors("/dev")
        self.started: list[subprocess.Popen[str]] = []
        self.firsts = dict[int, FirstProcess]()
        self.listeners = 0
        self.filter = gpu.work / "filter"
        self.filter.write_bytes(announce.program())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, back: TracebackType | None
    ) -> None:
        for process in self.started:
            process.kill()
            process.wait()
        for probe in self.gpu.probes:
            probe.kill()
        self.guard.close()
        for first in self.firsts.values():
            first.close()

    def wish(self, *, memory: int, paused: bool = False, **more: Any) -> bytes:
        """A limits file with one GPU. memory: bytes."""
        gpu = ResolvedGpu(uuid=UUID, minor=0, memory=memory, **more)
        return limits.encode(Limits((gpu,), self.gpu.nodes(), self.gpu.driver, "test", paused=paused))

    def add(self, tenant: int = 1, **share: Any) -> None:
        self.firsts[tenant] = FirstProcess()
        self.guard.add(tenant, self.wish(**share), 1, first=self.firsts[tenant].key)

    def update(self, tenant: int = 1, **share: Any) -> None:
        between_calls(lambda: self.guard.update(tenant, self.wish(**share)))

    def take(self, tenant: int, descriptor: int) -> None:
        """What becomes of a listener's descriptor; the caller closes it."""
        self.guard.listen(tenant, descriptor)

    def command(self, *words: str | Path, tenant: int = 1) -> list[str]:
        """The command behind a new filter, which must be started at once."""
        self.listeners += 1
        place = self.gpu.work / f"listen{self.listeners}"
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(place))
        server.listen(1)
        server.settimeout(SECONDS)

        def accept() -> None:
            with server, server.accept()[0] as channel:
                data, ancillary, _, _ = channel.recvmsg(1, 64)
                descriptor = array.array("i", ancillary[0][2])[0]
                self.take(tenant, descriptor)
                os.close(descriptor)
                channel.send(data)

        threading.Thread(target=accept, daemon=True).start()
        words = (self.tools / "enter", place, self.filter, *words)
        return [*self.firsts[tenant].join(), *map(str, words)]

    def environment(self) -> dict[str, str]:
        libraries = next(self.gpu.machine.rglob("libcuda.so.1")).parent
        return {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(libraries), "NVC_SIM_MACHINE": str(self.gpu.text)}

    def start(self, *words: str | Path, tenant: int = 1, **options: Any) -> subprocess.Popen[str]:
        """A program of the tenant, with pipes."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        process = subprocess.Popen(self.command(*words, tenant=tenant), env=self.environment(), text=True, **pipes)
        self.started.append(process)
        return process

    def run(self, *words: str | Path, tenant: int = 1, code: int = 0) -> str:
        """Run to the end; its output."""
        process = self.start(*words, tenant=tenant)
        out, _ = process.communicate(timeout=2 * SECONDS)
        assert process.returncode == code, (process.returncode, out)
        return str(out)

    def probe(self, *, tenant: int = 1, context: bool = True) -> Probe:
        """tests/system/shim/probe.py as the tenant."""
        libraries = [str(next(self.gpu.machine.rglob(name))) for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
        command = self.command(sys.executable, "-I", "-S", _PROBE, *libraries, tenant=tenant)
        probe = Probe(command, self.environment())
        self.gpu.probes.append(probe)
        if context:
            assert probe.init() == 0
        return probe

    def status(self, tenant: int = 1) -> TenantStatus:
        return status_now(self.guard, tenant)

    def of(self, tenant: int = 1) -> GpuStatus:
        return self.status(tenant).gpus[0]

    def reasons(self, tenant: int = 1) -> dict[str, int]:
        return dict(self.status(tenant).reasons)

    def wait_until_gone(self, tenant: int = 1) -> None:
        """Until nothing of the tenant is left."""
        wait_until(lambda: self.guard.gone(tenant), f"tenant {tenant} is gone")
        assert self.of(tenant).memory == 0
