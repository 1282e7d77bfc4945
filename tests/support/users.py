"""An ordinary user, made for a test and removed after it, with ids for user namespaces and a runtime directory."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class User:
    """name, numeric ids, home (removed with the user) and XDG_RUNTIME_DIR."""

    name: str
    uid: int
    gid: int
    home: Path
    runtime: Path

    def wrap(self, env: Mapping[str, str]) -> list[str]:
        """What, before a command, runs it as this user with that environment and nothing else of ours."""
        words = {"HOME": str(self.home), "USER": self.name, "XDG_RUNTIME_DIR": str(self.runtime), **env}
        drop = ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups"]
        return [*drop, "env", "-i", *(f"{key}={value}" for key, value in words.items())]


@contextmanager
def ordinary(name: str, place: Path) -> Iterator[User]:
    """A new user whose home is below ``place``. Afterwards the account and its files are gone, whatever happened."""
    home, runtime = place / "home", place / "runtime"
    # useradd reserves a range in /etc/subuid and /etc/subgid; userdel gives it back.
    subprocess.run(["useradd", "--create-home", "--home-dir", str(home), name], check=True, capture_output=True)
    try:
        entry = pwd.getpwnam(name)
        runtime.mkdir(mode=0o700)
        shutil.chown(runtime, entry.pw_uid, entry.pw_gid)
        yield User(name, entry.pw_uid, entry.pw_gid, home, runtime)
    finally:
        _end_processes(pwd.getpwnam(name).pw_uid)
        subprocess.run(["userdel", "--force", name], check=True, capture_output=True)
        # Files of the user's namespaces belong to ids that no account has; root removes them all the same.
        shutil.rmtree(home, ignore_errors=True)


def _end_processes(uid: int) -> None:
    """End what the user still runs: rootless Podman leaves a process that keeps its namespaces."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                os.kill(int(entry.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue
