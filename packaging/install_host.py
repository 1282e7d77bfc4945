"""Puts the programs of this image onto the host: what the chart's init container runs.

usage: python3 -I install_host.py SOURCE TARGET

Each file is put in place in one step and programs that run keep theirs, so that an upgrade is like that of a package.
What an older version had is removed, except preloaded libraries: running containers with a share have them mounted.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_KEPT = "lib/nvc-py/preload/"


def install(source: Path, target: Path) -> None:
    """Make ``target`` as ``source`` is. Raises OSError."""
    wanted: set[str] = set()
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        name = str(path.relative_to(source))
        wanted.add(name)
        place = target / name
        if path.is_dir() and not path.is_symlink():
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                place.unlink()
            place.mkdir(exist_ok=True)
            place.chmod(0o755)
        else:
            _put(path, place)
    for path in sorted(target.rglob("*"), reverse=True):
        name = str(path.relative_to(target))
        if name in wanted or name.startswith(_KEPT):
            continue
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()


def _put(path: Path, place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    fresh = place.with_name(f".{place.name}.new")
    fresh.unlink(missing_ok=True)
    shutil.copy2(path, fresh, follow_symlinks=False)
    os.replace(fresh, place)


if __name__ == "__main__":
    install(Path(sys.argv[1]), Path(sys.argv[2]))
