"""Tenants of the guard without containers: programs behind the filter, supervisors, and a scheduler."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from nvc.agent.attached import Attachments
from nvc.agent.scheduler import Scheduler
from nvc.guard.filter import merge
from nvc.guard.pages import TenantStatus
from nvc.guard.profile import ALLOW, NOTIFY
from nvc.guard.supervisors import MONITOR, SUPERVISOR, Supervisors
from nvc.share import limits
from nvc.share.limits import Limits, LimitsNode
from nvc.share.model import ResolvedGpu
from tests.support import leftovers
from tests.support.firsts import FirstProcess
from tests.support.native import build
from tests.support.scheduled import update
from tests.support.tenants import between_calls, status_now

SOURCE = Path(__file__).with_name("filtered.c")
NATIVE = "SCMP_ARCH_X86_64"
#: Seconds between looks at tenants' groups, while no decision is asked for.
LOOK = 0.005


def filter_program() -> bytes:
    """The filter of a container without a profile of its own, compiled by libseccomp."""
    import pyseccomp as seccomp

    profile = merge(None, "/nowhere", "", NATIVE)
    compiled = seccomp.SyscallFilter(seccomp.ALLOW)
    for word in profile["architectures"]:
        if word != NATIVE:
            compiled.add_arch(getattr(seccomp.Arch, word.removeprefix("SCMP_ARCH_")))
    for rule in profile["syscalls"]:
        if rule["action"] == ALLOW:
            continue
        assert rule["action"] == NOTIFY
        for name in rule["names"]:
            compiled.add_rule(seccomp.NOTIFY, name, *(_argument(seccomp, one) for one in rule["args"]))
    with tempfile.TemporaryFile() as file:
        compiled.export_bpf(file)
        file.seek(0)
        return file.read()


def _argument(seccomp: Any, one: dict[str, Any]) -> Any:
    compare = {"SCMP_CMP_MASKED_EQ": seccomp.MASKED_EQ, "SCMP_CMP_EQ": seccomp.EQ, "SCMP_CMP_NE": seccomp.NE}[one["op"]]
    return seccomp.Arg(one["index"], compare, one["value"], one.get("valueTwo", 0))


def build_launcher(directory: Path) -> Path:
    """filtered.c, compiled statically where that can be, and the filter beside it. Raises CalledProcessError."""
    target = directory / "filtered"
    subprocess.run(
        ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(target), str(SOURCE)], check=True
    )
    (directory / "filter").write_bytes(filter_program())
    return target


class GuardedTenant:
    """One tenant; its programs are started with ``wrap``. Statements about memory are of the first GPU."""

    def __init__(
        self,
        guarding: Guarding,
        number: int,
        gpu: ResolvedGpu,
        place: Path,
        first: FirstProcess | None = None,
        graphics: bool = False,
    ) -> None:
        self.guarding, self.number, self.gpu, self.graphics = guarding, number, gpu, graphics
        self.paused, self._place = False, place
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.bind(str(place / "listen"))
        self._socket.listen(512)
        (place / "message").write_bytes(b"tenant")
        self._first = first or FirstProcess()
        guarding.guard.add(number, limits.encode(self.limits), 1, first=self._first.key)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def wrap(self, command: Sequence[str]) -> list[str]:
        """The command line that starts the command behind the filter. The first word is a path."""
        launcher = self.guarding.launcher
        words = [str(launcher), f"{self._place}/listen", f"{launcher.parent}/filter", f"{self._place}/message"]
        return [*self._first.join(), *words, *command]

    def set(self, **changes: Any) -> None:
        """Change fields of the ResolvedGpu; decided and written when this returns. Raises OSError."""
        self.gpu = self.gpu.replace(**changes)
        self._changed()

    def pause(self, paused: bool) -> None:
        """Take the GPU away, or give it back. Raises OSError."""
        self.paused = paused
        self._changed()

    def status(self) -> TenantStatus:
        """Raises OSError."""
        return status_now(self.guarding.guard, self.number)

    def used(self) -> int:
        """Bytes charged."""
        return self.status().gpus[0].memory

    def refused(self) -> dict[str, int]:
        """What was counted, by reason."""
        return {word: count for word, count in self.status().reasons if word != "ok"}

    def empty(self, seconds: float = 30.0) -> bool:
        """Whether, in time, nothing of it is left: no filter, no process, no memory, nothing charged."""
        return leftovers.until(
            lambda: self.guarding.guard.gone(self.number) and self.used() == 0 and self.status().processes == 0,
            seconds=seconds,
        )

    @property
    def limits(self) -> Limits:
        """As the guard and the scheduler know it."""
        own = self.guarding
        return Limits(
            (self.gpu,), own.nodes, own.driver, f"tenant{self.number}", paused=self.paused, graphics=self.graphics
        )

    def close(self) -> None:
        """No more programs; those that run are the caller's to end first."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._socket.close()
        self.guarding.guard.remove(self.number)
        self._first.close()

    def _changed(self) -> None:
        between_calls(lambda: self.guarding.guard.update(self.number, limits.encode(self.limits)))
        self.guarding.decide(self)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # shut down
            with connection:
                for listener in received(connection):
                    self.guarding.guard.listen(self.number, listener)
                    os.close(listener)


def received(connection: socket.socket) -> list[int]:
    """The descriptors that come with the first message. The caller closes them."""
    _, parts, _, _ = connection.recvmsg(8192, socket.CMSG_SPACE(4 * 4))
    found = array.array("i")
    for _, _, data in parts:
        found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


class Guarding:
    """Supervisors, their tenants, and a thread that decides again when their groups change.

    place: an empty directory. uuid: of the GPU that all share. launcher: of ``build_launcher``. devices: where the
    driver's nodes are. look: seconds between looks at tenants' groups; each look waits for a tenant's in-flight
    notification, and the tenant's next one then for it. An agent looks every ``nvc.agent.scheduler.LOOK``.
    programs: the directory with nvc-monitor and nvc-supervisor of another build; "": this one's.
    """

    def __init__(
        self,
        place: Path,
        uuid: str,
        nodes: Sequence[LimitsNode],
        driver: str,
        launcher: Path,
        devices: str = "/dev",
        *,
        look: float = LOOK,
        programs: str = "",
    ) -> None:
        build("nvc-monitor", "nvc-supervisor", "nvc-prober")
        self.place, self.uuid, self.nodes, self.driver, self.launcher = place, uuid, tuple(nodes), driver, launcher
        self.guard, self.tenants = Supervisors(devices), list[GuardedTenant]()
        if programs:
            self.guard._monitor, self.guard._supervisor = f"{programs}/{MONITOR}", f"{programs}/{SUPERVISOR}"
        self.prober = self.guard.prober()
        #: What the scheduler could not do, and of the prober.
        self.problems: list[str] = []
        self.scheduler = Scheduler(Attachments(self.guard, devices), problem=self.problems.append)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._pause = look
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def tenant(self, first: FirstProcess | None = None, *, graphics: bool = False, **fields: Any) -> GuardedTenant:
        """Another tenant. first: its own from then on. graphics: as Limits. fields: of ResolvedGpu. Raises OSError."""
        number = len(self.tenants) + 1
        place = self.place / f"t{number}"
        place.mkdir()
        self.tenants.append(GuardedTenant(self, number, ResolvedGpu(self.uuid, 0, **fields), place, first, graphics))
        self.prober.tenant(number, [self.uuid])
        self.decide(self.tenants[-1])
        return self.tenants[-1]

    def decide(self, *changed: GuardedTenant) -> None:
        """Decide now, and write what is new."""
        with self._lock:
            for tenant in changed:
                self.scheduler.tenant(tenant.number, tenant.limits)
            update(self.scheduler)
            self.problems += filter(None, [self.prober.look()])

    def close(self) -> None:
        """End everything; tenants' programs are ended by then. Raises AssertionError for what was not scheduled."""
        self._stop.set()
        self._thread.join(30)
        self.scheduler.stop()
        self.prober.close()
        for tenant in self.tenants:
            tenant.close()
        self.tenants = []
        self.guard.close()
        assert self.problems == []

    def _look(self) -> None:
        while not self._stop.wait(self._pause):
            self.decide()
