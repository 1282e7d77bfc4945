"""The agent as a process that may be killed, and tenants of it that are no containers: programs behind the filter."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from nvc.agent import cgroups
from nvc.base.errors import NvcError
from nvc.share import store
from nvc.share.limits import Limits, LimitsNode
from nvc.share.model import ResolvedGpu
from nvc.share.protocol import Client
from nvc.share.store import StoredShare
from tests.support import leftovers, registered
from tests.support.acceptors import processes
from tests.support.native import CHECKOUT, build


class AgentTenant:
    """A share in the agent's store, held by a process that sleeps, as a container's first process would hold it."""

    def __init__(self, agent: RunningAgent, name: str, limits: Limits) -> None:
        self.agent, self.name, self.limits = agent, name, limits
        self.holder = subprocess.Popen(["sleep", "infinity"], env=agent.environment)
        record = StoredShare(name, name, self.holder.pid, store.start_time(self.holder.pid))
        store.create(record, limits, b"", directory=agent.store)
        registered.ask(f"{agent.directory}/control", name, self.holder.pid)
        state = {"ociVersion": "1.0.2", "id": name, "status": "running", "pid": self.holder.pid, "bundle": "/"}
        text = json.dumps({"ociVersion": "1.0.2", "fds": ["seccompFd"], "pid": 0, "metadata": "", "state": state})
        self._message = agent.place / f"{name}.message"
        self._message.write_text(text.replace('"pid": 0', '"pid": PID', 1))

    def wrap(self, command: Sequence[str]) -> list[str]:
        """The command line that starts the command behind the filter. The first word is a path."""
        launcher = self.agent.launcher
        listen = f"{self.agent.directory}/listen"
        return [str(launcher), listen, f"{launcher.parent}/filter", str(self._message), *command]

    def status(self) -> dict[str, Any] | None:
        """What the agent says of it; None when it has no process. Raises NvcError."""
        found = [one for one in self.agent.status()["tenants"] if one["container"] == self.name]
        return found[0] if found else None

    def used(self) -> int:
        """Bytes charged. Raises NvcError."""
        status = self.status()
        return 0 if status is None else int(status["gpus"][0]["memory"])

    def close(self) -> None:
        self.holder.kill()
        self.holder.wait()
        store.remove(self.name, self.agent.store)


class RunningAgent:
    """`nvc-py agent` with directories of its own below ``place`` (empty). launcher: of ``build_launcher``.

    Leaving its context ends it; tenants' programs are ended by then.
    """

    #: What python executes.
    program: tuple[str, ...] = ("-m", "nvc")

    def __init__(
        self,
        place: Path,
        uuid: str,
        nodes: Sequence[LimitsNode],
        driver: str,
        launcher: Path,
        environment: Mapping[str, str],
        installed: Path = CHECKOUT,
        config: str = "",
    ) -> None:
        """installed: what has the packages. config: of config.toml."""
        build("nvc-monitor", "nvc-supervisor", "nvc-prober")
        self.installed = installed
        self.place, self.uuid, self.nodes, self.driver, self.launcher = place, uuid, tuple(nodes), driver, launcher
        self.directory, self.store = str(place / "agent"), str(place / "shares")
        self.environment, self.log, self.config = dict(environment), place / "log", place / "config.toml"
        self.config.write_text(config)
        self.tenants: list[AgentTenant] = []
        #: Seconds from each start to the first answer.
        self.starts: list[float] = []
        self.process = self._start()
        assert self.ready(), self.log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for tenant in self.tenants:
            tenant.close()
        most = 30 + len(self.tenants) / 5  # the simulated driver takes clients back one after the other
        assert leftovers.until(lambda: not processes("nvc-monitor", self.directory), seconds=most), "a monitor is left"
        assert leftovers.until(self._cgroups_are_gone, seconds=most), "a guard's cgroup is left"

    def _cgroups_are_gone(self) -> bool:
        """A killed guard is in its own until the driver has taken its clients back: longer than an agent waits."""
        cgroups.remove(self.directory)
        return not any(os.path.lexists(f"{self.directory}/{name}") for name in (cgroups.NAME, cgroups.PIDS))

    def tenant(self, **fields: Any) -> AgentTenant:
        """Another tenant. fields: of ResolvedGpu."""
        name = f"tenant{len(self.tenants) + 1}"
        limits = Limits((ResolvedGpu(self.uuid, 0, **fields),), self.nodes, self.driver, name)
        self.tenants.append(AgentTenant(self, name, limits))
        return self.tenants[-1]

    def status(self) -> dict[str, Any]:
        """The answer to ``status``, all of its pages (one ends after 10 ms). Raises NvcError."""
        with Client(f"{self.directory}/control", 60.0) as client:
            answer = client.call("status")
            while answer.pop("is_cut", False):
                page = client.call("status", after=answer["tenants"][-1]["id"])
                answer = page | {"tenants": answer["tenants"] + page["tenants"]}
            return answer

    def pids(self, number: int) -> tuple[int, int]:
        """Those of a tenant's monitor and supervisor, by the tenant's number."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if '"event": "monitor"' in line]
        supervisor = next(int(one["supervisor"]) for one in reversed(lines) if one["tenant"] == number)
        status = Path(f"/proc/{supervisor}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in status if line.startswith("PPid:"))), supervisor

    def requests(self, number: int) -> int:
        """How often a tenant's supervisor asked its monitor: the thread that answers sleeps once for each."""
        monitor, _ = self.pids(number)
        for thread in Path(f"/proc/{monitor}/task").iterdir():
            if (thread / "comm").read_text() == "nvc-monitor-req\n":
                lines = (thread / "status").read_text().splitlines()
                return int(next(line.split()[1] for line in lines if line.startswith("voluntary")))
        raise AssertionError(f"monitor {monitor} answers no requests")

    def ready(self, seconds: float = 40.0) -> bool:
        """Whether it answers, in time."""

        def answers() -> bool:
            with contextlib.suppress(NvcError):
                self.status()
                return True
            return self.process.poll() is not None  # it will not answer any more

        begin = time.monotonic()
        good = leftovers.until(answers, seconds=seconds)
        self.starts.append(time.monotonic() - begin)
        return good and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and another agent in its place at once. Raises AssertionError."""
        self.process.kill()
        self.process.wait()
        self.process = self._start()
        assert self.ready(), self.log.read_text()[-3000:]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, *self.program, "agent", "--directory", self.directory, "--store", self.store]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*command, "--config", str(self.config)],
                cwd=self.installed,
                env={**self.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


class Crashes:
    """Calls ``crash`` every ``every`` seconds in a thread until it is left, which raises what a call raised."""

    def __init__(self, crash: Any, every: float) -> None:
        self._crash, self._every = crash, every
        self.count = 0
        #: Seconds of the longest call.
        self.longest = 0.0
        self._stop, self._error = threading.Event(), None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._stop.set()
        self._thread.join(60)
        if self._error is not None and kind is None:
            raise self._error

    _error: BaseException | None

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every):
                begin = time.monotonic()
                self._crash()
                self.longest = max(self.longest, time.monotonic() - begin)
                self.count += 1
        except BaseException as error:
            self._error = error
