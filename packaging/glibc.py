"""Which glibc native files need."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

#: The oldest that Linux distributions with Python 3.11 have, by far: nothing is asked below it.
_FLOOR = (2, 17)


def oldest(files: Iterable[Path]) -> str:
    """The oldest glibc that has every symbol the files use, e.g. "2.34"."""
    versions = {_FLOOR}
    for file in files:
        shown = subprocess.run(["objdump", "-p", str(file)], capture_output=True, text=True, check=True).stdout
        versions |= {(int(major), int(minor)) for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", shown)}
    return ".".join(map(str, max(versions)))
