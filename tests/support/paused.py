"""Containers held at the point where hooks run, so that a test can do itself what a hook does.

``create`` is no such point: when it returns, the runtime has pivoted into the root file system, and the path that
a hook is given does not exist in the container's mount namespace any more.
"""

from __future__ import annotations

import dataclasses
import os
import select
import subprocess

from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.runtimes import SECONDS, OciRuntime, Result

#: Seconds until the runtime gives a held container up.
HELD = 600


class Paused:
    """A container whose prestart hook waits. pid: its first process; tree: its root file system on the host."""

    def __init__(self, bed: Bed, runtime: OciRuntime, container: Container) -> None:
        self.tree = container.rootfs
        self._directory = bed.directory("paused")
        os.mkfifo(self._directory / "ready")
        os.mkfifo(self._directory / "go")
        script = f"echo $pid > {self._directory}/ready; read -r word < {self._directory}/go || true"
        # It waits for as long as the test does: many containers are held while a busy machine configures them all.
        hook = dataclasses.replace(bed.shell_hook(script), timeout=HELD)
        bundle = bed.bundle(Container(container.rootfs, container.args, container.env, {"prestart": [hook]}))
        name = bed.name("c")
        runtime.started.append(name)
        with (self._directory / "out").open("wb") as out, (self._directory / "err").open("wb") as err:
            self._process = subprocess.Popen(
                runtime.command("run", "--bundle", str(bundle), name),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=runtime.env_for_commands(),
                start_new_session=True,
            )
        runtime.held.append(self._process)
        self.pid = self._wait_for_pid()

    def release(self) -> Result:
        """Let the hook end and the container run; its result."""
        if self._process.poll() is None:
            (self._directory / "go").write_text("go\n")
        code = self._process.wait(SECONDS)
        return Result(code, (self._directory / "out").read_text(), (self._directory / "err").read_text(), 0.0)

    def _wait_for_pid(self) -> int:
        """Raises RuntimeError with the runtime's words when it ends before its hook runs."""
        # Opened for both, the FIFO has a writer from the start: no wait for one that may never come.
        descriptor = os.open(self._directory / "ready", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            while not poll.poll(100):
                if self._process.poll() is not None:
                    raise RuntimeError((self._directory / "err").read_text())
            return int(os.read(descriptor, 64))
        finally:
            os.close(descriptor)
