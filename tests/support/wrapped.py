"""Containers started through nvc-runtime, which has a real runtime behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime, Result, execute, find


class Wrapped:
    """A runtime behind nvc-runtime, with a config.toml of its own. machine: a simulated one, "" for the real one."""

    def __init__(self, bed: Bed, runtime: OciRuntime, config: str = "", machine: str = "h200") -> None:
        self.bed = bed
        self.runtime = runtime
        self.directory = bed.directory("etc")
        (self.directory / "nvc").mkdir()
        real = json.dumps([find(runtime.name)])
        text = f"[nvidia-container-runtime]\nruntimes = {real}\n{config}\n"
        (self.directory / "nvc/config.toml").write_text(text)
        self.machine = str(bed.machine(machine)) if machine else ""

    def command(self, program: str, *arguments: str) -> list[str]:
        command = [
            "env",
            f"XDG_CONFIG_HOME={self.directory}",
            *([f"NVC_SIM={self.machine}"] if self.machine else []),
            *([f"LD_PRELOAD={self.runtime.preload}"] if self.runtime.preload else []),
            program,
            "--root",
            str(self.runtime.state),
            *arguments,
        ]
        return self.runtime.view.wrap(command)

    def run(self, container: Container, *, program: str = "", edit: Callable[[Path], None] | None = None) -> Result:
        bundle = self.bed.bundle(container)
        if edit is not None:
            edit(bundle)
        name = self.bed.name("c")
        self.runtime.started.append(name)
        command = self.command(program or self.bed.commands.runtime, "run", "--bundle", str(bundle), name)
        try:
            return execute(command, env=self.runtime.env_for_commands())
        finally:
            self.runtime.clean()
