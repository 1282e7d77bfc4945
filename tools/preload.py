"""Make the directory of preloaded libraries as a container sees it: ``python tools/preload.py DIR LIBRARY...``.

DIR gets a directory for each word that a loader may put for ``$PLATFORM``: the libraries in that of this machine, links
to it from words for newer models of it, and in those of its 32-bit programs empty libraries of the same names, so that
their loader finds something it can load and says nothing. Everything is replaced in place: containers that run have DIR
mounted, and their next program takes what is there then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from nvc.share.preload import LIBRARIES, PLATFORMS  # noqa: E402
from nvc.sim.elfwriter import ARMHF, I386, shared_object  # noqa: E402

#: Machine -> architecture of its 32-bit programs.
NARROW = {"x86_64": I386, "aarch64": ARMHF}


def fill(directory: Path, libraries: list[Path], machine: str) -> None:
    """Make ``directory`` hold exactly what belongs there. libraries: built files, called as in the container."""
    words, narrow = PLATFORMS.get(machine, ((), ()))
    contents = {library.name: library.read_bytes() for library in libraries}
    _directory(directory / machine, contents)
    for word in words:
        _replace(directory / word, partial(os.symlink, machine))
    for word in narrow:
        _directory(directory / word, {name: shared_object(NARROW[machine], name) for name in LIBRARIES})


def _directory(directory: Path, contents: dict[str, bytes]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    for path in directory.iterdir():
        if path.name not in contents:
            path.unlink()
    for name, content in contents.items():
        if not (directory / name).is_file() or (directory / name).read_bytes() != content:
            _replace(directory / name, partial(_write, content))


def _write(content: bytes, path: str) -> None:
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    with open(number, "wb") as file:
        os.fchmod(number, 0o755)
        file.write(content)


def _replace(path: Path, make: Callable[[str], None]) -> None:
    temporary = f"{path}.{os.getpid()}"
    make(temporary)
    os.replace(temporary, path)


if __name__ == "__main__":
    fill(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]], os.uname().machine)
