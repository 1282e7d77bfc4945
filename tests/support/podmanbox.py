"""Podman with an /etc, and for root a /run, of its own, so that tests may configure it as an administrator would.

Everything one test runs in it shares one script, because each starts in a new mount namespace.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import cgroupview, leftovers
from tests.support.cgroupview import CgroupView
from tests.support.engines import late
from tests.support.runtimes import Result, execute, find
from tests.support.users import User

_PROGRAMS = Path(__file__).parent / "programs"
#: Their text, not their paths: another userland may be the root by then.
_OWN_ETC = (_PROGRAMS / "own_etc.sh").read_text()
#: Rootless Podman takes the node of a CDI spec by its path in the container, so a simulated machine's nodes have to be
#: where a real one's are.
_OWN_DEV = (_PROGRAMS / "own_dev.sh").read_text()
#: Root on a machine without CAP_SYS_RESOURCE cannot set Podman's own default limits.
_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "none"
log_driver = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "{runtime}"
{engine}
"""
#: For root; a user's are below HOME and XDG_RUNTIME_DIR.
_ROOTS = 'tmp_dir = "{place}/tmp"\nvolume_path = "{place}/volumes"\n[network]\nnetwork_config_dir = "{place}/net"'


@dataclass
class PodmanBox:
    """Podman for root, or for an ordinary user, over runc or crun.

    place: a directory that the user may write. wrap: another userland. engine: more lines of [engine]. nodes: what /dev
    is to have beside its own. first: a line that root runs before any other.
    """

    token: str
    runtime: str
    view: CgroupView
    place: Path
    env: Mapping[str, str]
    user: User | None = None
    wrap: Sequence[str] = ()
    engine: str = ""
    preload: str = ""
    nodes: Path | None = None
    first: str = ":"

    def prepare(self) -> None:
        for name in ("over", "tmp", "volumes", "net", "root", "run"):
            (self.place / name).mkdir()
            if self.user is not None:
                os.chown(self.place / name, self.user.uid, self.user.gid)
        storage = f'[storage]\ndriver = "vfs"\ngraphroot = "{self.place}/root"\nrunroot = "{self.place}/run"\n'
        (self.place / "storage.conf").write_text(storage)
        (self.place / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        roots = _ROOTS.format(place=self.place) if self.user is None else ""
        text = _CONF.format(runtime=self.runtime, engine=f"{self.engine}\n{roots}\n{self._preloaded()}")
        (self.place / "containers.conf").write_text(text)

    def _preloaded(self) -> str:
        """The table of runtimes, where crun needs norlim.c."""
        if not self.preload:
            return ""
        program = self.place / f"{self.runtime}-norlim"
        program.write_text(f'#!/bin/sh\nLD_PRELOAD={self.preload} exec {find(self.runtime)} "$@"\n')
        program.chmod(0o755)
        return f'[engine.runtimes]\n{self.runtime} = ["{program}"]'

    @property
    def name(self) -> str:
        """Of the container of the test."""
        return f"{self.token}-box"

    def run_words(
        self, options: Sequence[str], rootfs: Path, command: Sequence[str], general: Sequence[str] = ()
    ) -> str:
        """``podman run`` as a line for ``sh``, with the options that this kind of machine needs.

        general: options before ``run``.
        """
        # No limit: the v2 tree of a hybrid machine has no pids controller. Podman 4 says -1, 5 says 0.
        needed = [f"--name={self.name}", f"--pids-limit={0 if self.wrap and self.user is None else -1}"]
        if self.user is None:
            needed.append(f"--cgroup-parent=/{self.name}-parent")
        return quoted(["podman", *general, "run", "--rm", *needed, *options, "--rootfs", str(rootfs), *late(command)])

    def script(self, before: str, then: str) -> Result:
        """Run ``before`` as root, to configure, and then ``then`` as the user (or as root)."""
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
        env = {"PATH": path, leftovers.VARIABLE: self.token, **self.env}
        env["CONTAINERS_STORAGE_CONF"] = str(self.place / "storage.conf")
        drop = [] if self.user is None else self.user.wrap(env)
        inner = quoted([*drop, "sh", "-c", f"cd /; {then}"])
        whole = ["sh", "-c", f"{self.first} && {before or ':'} && {inner}"]
        etc = ["sh", "-c", _OWN_ETC, "etc", str(self.place), *whole]
        dev = ["sh", "-c", _OWN_DEV, "dev", str(self.place), str(self.nodes)] if self.nodes else []
        try:
            return execute(self.view.wrap([*self.wrap, *dev, *etc]), env={"HOME": "/root", **env})
        finally:
            self._end_pause()

    def _end_pause(self) -> None:
        """End the process that keeps a user's namespaces: the next command is to see new ones."""
        if self.user is None:
            return
        file = self.user.runtime / "libpod/tmp/pause.pid"
        try:
            os.kill(int(file.read_text()), signal.SIGKILL)
            file.unlink()
        except (OSError, ValueError):
            return

    def clean(self) -> None:
        """Remove the container if a failure left it."""
        self.script("", f"podman rm --force --ignore --time 0 {self.name} >/dev/null 2>&1")
        cgroupview.remove(f"{self.name}-parent")


def quoted(words: Sequence[str]) -> str:
    """The words as one line for sh."""
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
