"""Which glibc native files need."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

#: The oldest that Linux distributions with Python 3.11 have, by far: nothing is asked below it.
_FLOOR = (2, 17)
#: Debian 12's: one package serves it and what came after, wherever it is built.
NEWEST = (2, 36)


def elf_files(root: Path) -> Iterator[Path]:
    """Every ELF file below a directory."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def oldest(files: Iterable[Path]) -> str:
    """The oldest glibc that has every symbol the files use, e.g. "2.34".

    Raises ValueError for a file that needs a newer one than Debian 12's, or something of which no version is known.
    """
    needed = _FLOOR
    for file in files:
        shown = subprocess.run(["objdump", "-p", str(file)], capture_output=True, text=True, check=True).stdout
        for name in re.findall(r"\bGLIBC_(\w+(?:\.\d+)*)", shown):
            if not re.fullmatch(r"\d+(\.\d+)+", name):
                raise ValueError(f"{file} needs GLIBC_{name}, which Debian 12 may not have")
            version = tuple(map(int, name.split(".")))[:2]
            if version > NEWEST:
                raise ValueError(f"{file} needs glibc {name}, and Debian 12 has {NEWEST[0]}.{NEWEST[1]}")
            needed = max(needed, version)
    return ".".join(map(str, needed))
