"""The product's commands as a test starts them: installed ones, or a private copy in the shape of an installation.

NVC_TEST_PREFIX names a prefix that ``make install`` filled; then its commands are tested. Otherwise the packages and
the third-party modules of this interpreter are copied, without a network, below the test's directory: a remapped
container's root must be able to read them, and a checkout may lie where it cannot.
"""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
#: Read once: tests see no NVC_ variable.
PREFIX = os.environ.get("NVC_TEST_PREFIX", "")
_MODULES = {
    "nvc-py": "nvc.__main__",
    "nvidia-container-cli": "nvc.__main__",
    "nvc-hook": "hook.__main__",
    "nvidia-container-runtime-hook": "hook.__main__",
    "nvidia-container-toolkit": "hook.__main__",
    "nvc-cdi-hook": "hook.cdi",
    "nvidia-cdi-hook": "hook.cdi",
    "nvidia-ctk": "hook.ctk",
    "nvc-runtime": "hook.runtime.__main__",
    "nvidia-container-runtime": "hook.runtime.__main__",
    "nvidia-container-runtime.legacy": "hook.runtime.__main__",
    "nvidia-container-runtime.cdi": "hook.runtime.__main__",
}
#: Commands that are native/client, which becomes the launcher in lib/nvc-py/bin when there is no agent.
CLIENT_MODULES = ("nvc.__main__", "hook.__main__", "hook.cdi", "hook.runtime.__main__")


@dataclass(frozen=True)
class Commands:
    """Where the three commands are."""

    directory: Path

    @property
    def nvc(self) -> str:
        return str(self.directory / "nvc-py")

    @property
    def cli(self) -> str:
        return str(self.directory / "nvidia-container-cli")

    @property
    def runtime(self) -> str:
        return str(self.directory / "nvc-runtime")

    @property
    def hook(self) -> str:
        return str(self.directory / "nvc-hook")


def interpreter() -> str:
    """The interpreter itself, not a virtual environment's link to it: what an installed command starts."""
    return os.path.realpath(sys.executable)


def install(prefix: Path) -> Commands:
    """Make bin/ and lib/ below ``prefix``, as tools/install does; NVC_TEST_PREFIX wins over it."""
    if PREFIX:
        return Commands(Path(PREFIX, "bin"))
    library = prefix / "lib/nvc-py"
    for package in ("nvc", "hook", "rpc"):
        # copy2 keeps the times that the byte-compiled files were made for.
        shutil.copytree(CHECKOUT / package, library / package, symlinks=True)
    if (CHECKOUT / "build/native").is_dir():
        # Where nvc/sim/templates.py looks for the simulated driver in an installation.
        ignore = shutil.ignore_patterns("*.o")
        shutil.copytree(CHECKOUT / "build/native", library / "nvc/sim/native", symlinks=True, ignore=ignore)
    for extension in _extensions():
        shutil.copy2(extension, library / "nvc/linux")
    preload = next((place / "preload" for place in _native() if (place / "preload").is_dir()), None)
    if preload is not None:
        shutil.copytree(preload, library / "preload", symlinks=True)
    for source, name in _third_party():
        target = library / "deps" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    bundle = [interpreter(), "-X", "no_debug_ranges", str(CHECKOUT / "tools/bundle.py"), str(library), str(library)]
    subprocess.run(bundle, check=True, timeout=60)
    directory = prefix / "bin"
    directory.mkdir(parents=True)
    (library / "bin").mkdir()
    client = next((place / "nvc-client" for place in _native() if (place / "nvc-client").is_file()), None)
    for name, module in {**_MODULES, "nvc-warm": "hook.warm"}.items():
        launcher, own = directory / name, ""
        if name not in _MODULES:
            launcher = library / "bin" / name  # for the agent
        elif client is not None and module in CLIENT_MODULES:
            shutil.copy2(client, launcher)
            launcher = library / "bin" / name
            own = f"sys.argv[0] = {str(directory) + '/'!r} + sys.argv[0].rpartition('/')[2]; "
        text = (CHECKOUT / "tools/launcher").read_text()
        values = {"PYTHON": interpreter(), "OWN": own, "LIBRARY": repr(str(library)), "SITE": "", "MODULE": module}
        for word, value in values.items():
            text = text.replace(f"@{word}@", value)
        launcher.write_text(text)
        launcher.chmod(0o755)
    return Commands(directory)


def _extensions() -> list[Path]:
    """Compiled modules of this checkout, or those that were brought along (tools/carry.py); none is well too."""
    names = ("*.abi3.so", "nvc-monitor", "nvc-supervisor", "nvc-prober")
    found = [next((one for place in _native() for one in place.glob(name)), None) for name in names]
    return [one for one in found if one is not None]


def _native() -> list[Path]:
    """Where built things may be: in this checkout, or brought along."""
    carried = os.environ.get("NVC_CARRY")
    return [CHECKOUT / "build/native", *([Path(carried, "native")] if carried else [])]


def _third_party() -> Iterator[tuple[Path, str]]:
    """The files of every distribution that setup.cfg requires: path, name below site-packages.

    One that is not installed is left out.
    """
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    for line in setup["options"]["install_requires"].split():
        name = re.split(r"[<>=!~;\[]", line)[0]
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            path = Path(str(file.locate()))
            if ".." not in file.parts and path.is_file():
                yield path, str(file)


def with_options(directory: Path, name: str, target: str, *options: str) -> Path:
    """A command NAME in ``directory`` that starts ``target`` with ``options`` before its own arguments.

    For clients that choose the argument list themselves (LXC, engines): the way to point them at a simulated machine.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    words = " ".join(f"'{word}'" for word in (target, *options))
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)
    return path
