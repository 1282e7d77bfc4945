"""The container runtimes, each with state of its own below one directory, and all of it taken back at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cgroupview import CgroupView

#: Answers 0 where a hard limit may not be raised (root without CAP_SYS_RESOURCE): crun 1.8 raises RLIMIT_MEMLOCK
#: before it loads its device program and gives up when it cannot, although kernels since 5.11 charge nothing to it.
NORLIM_SOURCE = Path(__file__).with_name("norlim.c")
SECONDS = 60
#: A folder that tools/carry.py filled, for machines without a package manager. Read once: tests see no NVC_ variable.
CARRY = Path(os.environ.get("NVC_CARRY") or "/nonexistent")


@dataclass(frozen=True)
class Result:
    """What a command left: exit code, stdout, stderr, seconds."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def complaints(self) -> str:
        """stderr without the lines in which our commands and the stand-in driver say that the machine is simulated."""
        return "".join(line for line in self.err.splitlines(True) if "simulated machine" not in line.lower())


def execute(command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Result:
    """Run a command to its end. Raises subprocess.TimeoutExpired after SECONDS."""
    start = time.monotonic()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        env=env,
        cwd=cwd,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
    )
    return Result(done.returncode, done.stdout, done.stderr, time.monotonic() - start)


def build_norlim(directory: Path) -> Path:
    """Compile norlim.c into ``directory``."""
    target = directory / "norlim.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(target), str(NORLIM_SOURCE)]
    subprocess.run(command, check=True)
    return target


def find(name: str) -> str:
    """Path of a program: from the folder in NVC_CARRY, or from PATH; "" when there is none."""
    carried = CARRY / "bin" / name
    return str(carried) if carried.exists() else shutil.which(name, path=_PATH) or ""


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"


@dataclass
class OciRuntime:
    """runc or crun in one cgroup view. preload: a library the runtime (not the container) is started with, or ""."""

    name: str
    view: CgroupView
    state: Path
    preload: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    held: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name}-{self.view.name}"

    def command(self, *arguments: str) -> list[str]:
        """The whole command line, view and preload included."""
        command = [find(self.name), "--root", str(self.state), *arguments]
        if self.preload:
            command = ["env", f"LD_PRELOAD={self.preload}", *command]
        return self.view.wrap(command)

    def wrapped(self, *command: str) -> Result:
        """Run another command in the same cgroup view."""
        return execute(self.view.wrap(list(command)), env={"PATH": _PATH, **self.env})

    def run(self, bundle: Path, identifier: str) -> Result:
        """Create, start and wait for the container of a bundle."""
        return self._call("run", "--bundle", str(bundle), identifier)

    def create(self, bundle: Path, identifier: str) -> Result:
        """Create, not start: the point at which a hook runs. The container is deleted by clean()."""
        with (bundle / "output").open("wb") as output:
            # The container keeps stdout open: a pipe would not see its end before the container's.
            done = subprocess.run(
                self.command("create", "--bundle", str(bundle), identifier),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.env_for_commands(),
                timeout=SECONDS,
            )
        self.started.append(identifier)
        return Result(done.returncode, (bundle / "output").read_text(errors="replace"), "", 0.0)

    def start(self, identifier: str) -> Result:
        return self._call("start", identifier)

    def pid(self, identifier: str) -> int:
        """The pid of a created container, on the host."""
        answer = execute(self.command("state", identifier), env=self.env_for_commands())
        return int(json.loads(answer.out)["pid"])

    def wait(self, identifier: str) -> None:
        """Until the container has ended. Raises TimeoutError after SECONDS."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            answer = execute(self.command("state", identifier), env=self.env_for_commands())
            if answer.code != 0 or json.loads(answer.out)["status"] == "stopped":
                return
            time.sleep(0.02)
        raise TimeoutError(f"container {identifier} still runs")

    def clean(self) -> None:
        """Delete whatever this runtime still knows of, and end what a failed test still holds."""
        for process in self.held:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        started, self.started[:] = self.started[:], []
        for identifier in started:
            # ``run`` deletes what it ran to its end.
            if (self.state / identifier).exists():
                execute(self.command("delete", "--force", identifier), env=self.env_for_commands())
        shutil.rmtree(self.state, ignore_errors=True)

    def _call(self, verb: str, *arguments: str) -> Result:
        self.started.append(arguments[-1])
        return execute(self.command(verb, *arguments), env=self.env_for_commands())

    def env_for_commands(self) -> dict[str, str]:
        """The environment of the runtime itself."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("NVIDIA_", "CUDA_"))}
        if (CARRY / "lib").is_dir():
            env["LD_LIBRARY_PATH"] = str(CARRY / "lib")
        return {**env, "PATH": _PATH, **self.env}
