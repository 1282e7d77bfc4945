"""Containers under the agent's guard on a real GPU, the whole way: annotation, nvc-runtime, filter, listener, agent."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from nvc.agent.status import StatusTenant
from tests.support import leftovers
from tests.support.agentbed import RunningAgent
from tests.support.bed import gpu_env
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime, Result, execute
from tests.support.wrapped import Wrapped


class GuardedContainers:
    """Makes and starts them. programs: files that go into /usr/bin."""

    def __init__(self, agent: RunningAgent, runtime: OciRuntime, programs: Sequence[Path]) -> None:
        self.agent, self.runtime, self.programs = agent, runtime, programs
        self.wrapped = Wrapped(agent.bed, runtime, agent.settings, machine="")

    def container(self, command: Sequence[str], share: str) -> Container:
        """With the annotation ``share``."""
        tree = self.agent.bed.rootfs()
        for program in self.programs:
            shutil.copy(program, tree / "usr/bin" / program.name)
        return Container(tree, command, gpu_env("0"), annotations={"nvc.share": share})

    def run(self, command: Sequence[str], share: str) -> Result:
        """To its end."""
        return self.wrapped.run(self.container(command, share))

    def start(self, command: Sequence[str], share: str) -> Running:
        """In the background."""
        return Running(self, self.container(command, share))


class Running:
    """One that runs; leaving its context ends it."""

    def __init__(self, containers: GuardedContainers, container: Container) -> None:
        self.containers, self.name = containers, containers.agent.bed.name("c")
        bundle = containers.agent.bed.bundle(container)
        containers.runtime.started.append(self.name)
        program = containers.agent.bed.commands.runtime
        self.process = subprocess.Popen(
            containers.wrapped.command(program, "run", "--bundle", str(bundle), self.name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=containers.runtime.env_for_commands(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.signal("KILL")
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.communicate()
        self.containers.runtime.clean()

    def line(self) -> str:
        """The next line of its output, "" at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode(errors="replace").rstrip("\n")

    def tenant(self, seconds: float = 10.0) -> StatusTenant:
        """What the agent says of it, as soon as it knows it. Raises AssertionError."""
        agent = self.containers.agent
        assert leftovers.until(lambda: agent.tenant(self.name) is not None, seconds=seconds), agent.log.read_text()
        found = agent.tenant(self.name)
        assert found is not None
        return found

    def signal(self, name: str) -> None:
        """Of the runtime's ``kill``, to its first process."""
        runtime = self.containers.runtime
        execute(runtime.command("kill", self.name, name), env=runtime.env_for_commands())
