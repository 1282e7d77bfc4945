"""An agent beside a bed's containers: started and asked as users do, killed as accidents do."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

from nvc.agent import cgroups
from nvc.agent.status import AgentStatus, StatusTenant, ask
from nvc.base.errors import AgentError
from nvc.guard.prober import LOCK
from nvc.guard.usage import prober_pid
from nvc.share.protocol import Client
from tests.support import cgroupview, fuse, leftovers
from tests.support.acceptors import processes
from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.runtimes import Result, execute
from tests.support.wrapped import Wrapped

fuse.needed()

SOURCE = Path(__file__).with_name("rawalloc.c")


def build_rawalloc(target: Path) -> Path:
    """Compile rawalloc.c, statically. Raises CalledProcessError."""
    subprocess.run(["cc", "-std=gnu11", "-O1", "-Wall", "-Werror", "-static", "-o", target, SOURCE], check=True)
    return target


class RunningAgent:
    """``nvc-py agent`` in a directory of its own. A context manager; its containers have ended by then.

    machine: a simulated one, "" for the real one.
    """

    def __init__(self, bed: Bed, machine: str, *, config: str = "") -> None:
        self.bed = bed
        self.machine = str(bed.machine(machine)) if machine else ""
        self.place = bed.directory("agent")
        self.place.chmod(0o755)
        self.directory = str(self.place / "run")
        self.config = self.place / "config.toml"
        self.config.write_text(config)
        self.log = self.place / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self._before = 0

    @property
    def settings(self) -> str:
        """What nvc-runtime's config.toml needs to find it."""
        return f'[agent]\ndirectory = "{self.directory}"\n'

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert leftovers.until(lambda: not self.pids("nvc-monitor"), seconds=30), "a monitor is left"
        self._end_prober()
        assert leftovers.until(self._cgroups_are_gone, seconds=30), "a cgroup is left"

    def _cgroups_are_gone(self) -> bool:
        cgroups.remove(self.directory)  # of what ended after the agent
        return not cgroupview.directories(cgroups.tree_name(self.directory))

    def _has_prober(self) -> bool:
        """Whether a prober has its lock."""
        try:
            with open(f"{self.directory}/{LOCK}", "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def _end_prober(self) -> None:
        """One that an agent left which was killed, or whose tenants were: it goes on for ten minutes."""
        if not leftovers.until(lambda: not self._has_prober(), seconds=2):
            page = os.open(f"{self.directory}/contention", os.O_RDONLY)
            with contextlib.suppress(ProcessLookupError):
                os.kill(prober_pid(page), signal.SIGKILL)
            os.close(page)
        assert leftovers.until(lambda: not self._has_prober(), seconds=30), "the prober is left"

    def start(self) -> None:
        """Start it; it serves when this returns."""
        self._before = len(self.events())
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [
                    *(self.bed.commands.nvc, *(("--sim", self.machine) if self.machine else ()), "agent"),
                    *("--directory", self.directory, "--config", str(self.config)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], **self.bed.env},
            )
        assert leftovers.until(self._ready, seconds=40), self.log.read_text()

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        return any(event.get("event") == "ready" for event in self.events()[self._before :])

    def events(self) -> list[dict[str, Any]]:
        """Every line that it logged, but for the one of a machine whose cgroups cannot limit memory."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        # The last one may be half written.
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [one for one in events if not str(one.get("message")).endswith("no hierarchy has the memory controller")]

    def of(self, event: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [one for one in self.events() if one["event"] == event]

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process is None:
            return 0
        self.process.terminate()
        return self.process.wait(40)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def pids(self, program: str) -> list[int]:
        """Of the processes of a program of its (nvc-monitor, acceptors too)."""
        return processes(program, self.directory)

    def call(self, verb: str, **fields: object) -> dict[str, Any]:
        """Ask it. Raises NvcError."""
        with Client(f"{self.directory}/control", 60.0) as client:
            return client.call(verb, **fields)

    def status(self) -> AgentStatus:
        """Raises NvcError."""
        with Client(f"{self.directory}/control", 60.0) as client:
            return ask(client)

    def tenant(self, container: str) -> StatusTenant | None:
        """The tenant of this container; None when there is none."""
        try:
            return next((one for one in self.status().tenants if one.container == container), None)
        except AgentError:
            return None


class Held:
    """A container that runs until its stdin ends. A context manager: it is killed and deleted at the end."""

    def __init__(self, wrapped: Wrapped, container: Container, name: str = "") -> None:
        self.wrapped = wrapped
        self.name = name or wrapped.bed.name("c")
        wrapped.runtime.started.append(self.name)
        bundle = wrapped.bed.bundle(container)
        command = wrapped.command(wrapped.bed.commands.runtime, "run", "--bundle", str(bundle), self.name)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=wrapped.runtime.env_for_commands(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.process.communicate(timeout=60)
        self.wrapped.runtime.clean()

    def line(self) -> str:
        """The next line that its program says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=60)[1]
        return line.strip()

    def end(self) -> tuple[int, str]:
        """Close its stdin; its exit code and what it said last."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out + err

    def execute(self, *command: str) -> Result:
        """Run another program in it."""
        return execute(
            self.wrapped.command(self.wrapped.bed.commands.runtime, "exec", self.name, *command),
            env=self.wrapped.runtime.env_for_commands(),
        )

    def kill(self) -> None:
        """SIGKILL to its first process."""
        execute(
            self.wrapped.command(self.wrapped.bed.commands.runtime, "kill", self.name, "KILL"),
            env=self.wrapped.runtime.env_for_commands(),
        )
