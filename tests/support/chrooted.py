"""A simulated machine's root in which dynamic programs start, and running them there with its nodes served."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from nvc.sim.create import create
from tests.support import fuse
from tests.support.native import build

fuse.needed()

#: Seconds after which a program that hangs is ended.
LIMIT = 60


def with_programs(name: str, directory: Path, *programs: str) -> str:
    """Make the machine ``name`` in ``directory``, with a C library and these test programs in /. Returns its root."""
    root = create(str(directory / "m"), name).root
    listed = ""
    for program in (f"{root}/usr/bin/nvidia-smi", *(str(build() / each) for each in programs)):
        listed += subprocess.run(["/usr/bin/ldd", program], capture_output=True, text=True, check=True).stdout
    for path in set(re.findall(r"(/\S+) \(0x", listed)):
        target = f"{root}{os.path.realpath(os.path.dirname(path))}"
        os.makedirs(target, exist_ok=True)
        shutil.copy(path, target)
    for program in programs:
        shutil.copy(build() / program, root)
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True)
    return root


def served(root: str, *command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command inside ``root`` while a manager serves its nodes, all in a mount namespace of its own."""
    words = [sys.executable, "-m", "nvc", "sim", "run", root, "--", "chroot", root]
    return subprocess.run(
        [*words, *command],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**os.environ, **(env or {})},
    )
