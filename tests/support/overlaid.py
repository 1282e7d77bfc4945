"""This machine's files with an overlay above: packages are installed there, and the real ones stay as they are."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

# An overlay of this machine's files with a tmpfs above: what is written there is gone with the process.
_MOUNTS = Path(__file__).parent / "programs/overlaid.sh"


class Machine:
    """root: its files. What was changed is only in memory."""

    def __init__(self, process: subprocess.Popen[str], base: str, lower: Path) -> None:
        self._process = process
        inside = Path(f"/proc/{process.pid}/root{base}")
        self.root = inside / "root"
        self.upper = inside / "upper"
        self._base = base
        self._lower = lower

    def run(self, *command: str, code: int = 0) -> str:
        """Run a command there; its output, both streams. Fails the test when it ends with another code."""
        words = ["nsenter", "-t", str(self._process.pid), "-m", "chroot", f"{self._base}/root", *command]
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND": "noninteractive",
            "LC_ALL": "C.UTF-8",
        }
        done = subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        assert code == done.returncode, f"{' '.join(command)}: {done.stdout}"
        return done.stdout

    def put(self, file: Path) -> str:
        """Copy a file there; its path there."""
        shutil.copy(file, self.root / "tmp")
        return f"/tmp/{file.name}"

    def changes(self) -> set[str]:
        """Paths that are not as below ``lower``, without the package manager's own notes."""
        found = set()
        for directory, names, files in os.walk(self.upper):
            place = Path("/", Path(directory).relative_to(self.upper))
            if str(place) in ("/var/lib/dpkg", "/var/log", "/root"):
                names.clear()
                continue
            real = self._lower / place.relative_to("/")
            found |= {str(place / name) for name in names if not (real / name).is_dir()}
            for name in files:
                if not os.path.lexists(real / name) or _content(Path(directory, name)) != _content(real / name):
                    found.add(str(place / name))
        return found - {"/var/lib/man-db/auto-update"}


def _content(path: Path) -> bytes | str:
    if path.is_symlink():
        return os.readlink(path)
    # A removed file is a device 0,0 in the upper directory.
    return path.read_bytes() if path.is_file() else str(path.lstat().st_mode)


@contextlib.contextmanager
def overlaid(lower: Path = Path("/")) -> Iterator[Machine]:
    """A machine for a with statement. lower: whose files. Raises RuntimeError where root cannot mount overlays."""
    base = tempfile.mkdtemp(prefix="nvc-machine-")
    process = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", _MOUNTS, base, str(lower)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if said != "ready\n":
                raise RuntimeError(f"no machine to install on: {said}{process.stdout.read()}")
            yield Machine(process, base, lower)
        finally:
            process.kill()
            process.wait()
            os.rmdir(base)
