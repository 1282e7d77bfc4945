"""Podman and what it starts, on a machine that has none: launchers for the programs that tools/carry.py collected.

Where Podman is installed the launchers start that one. Each knows its libraries, because Podman starts conmon, and
conmon the runtime, with an environment of their own making.
"""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.podmanbox import quoted
from tests.support.runtimes import CARRY, find

_COPY = 1 << 20


@dataclass(frozen=True)
class Launchers:
    """bin: the directory with ``podman``, to be put before PATH; conmon and runtime: what its configuration names."""

    bin: Path
    conmon: Path
    runtime: Path

    @property
    def settings(self) -> str:
        """Lines of [engine] in containers.conf."""
        return f'conmon_path = ["{self.conmon}"]'


def missing(runtime: str) -> list[str]:
    """Of the programs that are needed, those that are neither carried nor installed."""
    names = [name for name in ("conmon", runtime) if not find(name)]
    return names if find("podman") or _packed("podman").exists() else ["podman", *names]


def unpack(name: str, directory: Path) -> Path:
    """The program, unpacked into ``directory`` if it was carried. Raises LZMAError for a damaged file."""
    if not _packed(name).exists():
        return Path(find(name))
    target = directory / name
    with lzma.open(_packed(name)) as source, target.open("wb") as program:
        shutil.copyfileobj(source, program, _COPY)
    target.chmod(0o755)
    return target


def launchers(directory: Path, podman: Path, runtime: str, *, env: Mapping[str, str], preload: str = "") -> Launchers:
    """Write the launchers into the empty ``directory``, where the runtime's state is kept as well.

    env: what Podman does not pass on. preload: a library that the runtime is started with.
    """
    (directory / "bin").mkdir()
    (directory / "state").mkdir()
    libraries = {"LD_LIBRARY_PATH": str(CARRY / "lib")} if (CARRY / "lib").is_dir() else {}
    loaded = {"LD_PRELOAD": preload} if preload else {}
    place = directory / "bin"
    _launcher(place / "podman", [str(podman)], {**env, **libraries})
    conmon = _launcher(place / "conmon", [find("conmon")], {**env, **libraries})
    command = [find(runtime), f"--root={directory}/state"]
    return Launchers(place, conmon, _launcher(place / runtime, command, {**env, **libraries, **loaded}))


def _launcher(path: Path, command: list[str], env: Mapping[str, str]) -> Path:
    words = ["env", *(f"{name}={value}" for name, value in env.items()), *command]
    path.write_text(f'#!/bin/sh\nexec {quoted(words)} "$@"\n')
    path.chmod(0o755)
    return path


def _packed(name: str) -> Path:
    return CARRY / "packed" / f"{name}.xz"
