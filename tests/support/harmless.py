"""Programs run with and without the preloaded library, as a container's loader does it: by /etc/ld.so.preload.

The file stands in a copy of /etc that is mounted in a namespace of its own; the machine's is not touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.isolation import in_namespaces, mount_bind
from tests.support.native import CHECKOUT

SOURCE = CHECKOUT / "tests/system/harmless/habits.c"
SCRIPTS = CHECKOUT / "tests/system/harmless/scripts.txt"
HERD = CHECKOUT / "tests/gpu/enforce/programs/herd.c"
SECONDS = 60
#: Nothing of the caller's: the same in every run.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent", "TZ": "UTC0"}
_FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra")
#: How habits.c is built: name -> compiler, options.
BUILDS = {
    "dynamic": ("gcc", ("-pthread",)),
    "static": ("gcc", ("-pthread", "-static", "-DWITHOUT_DLOPEN")),
    "static-pie": ("gcc", ("-pthread", "-static-pie", "-DWITHOUT_DLOPEN")),
    "musl": ("musl-gcc", ("-DWITHOUT_DLOPEN",)),
    "musl-static": ("musl-gcc", ("-static", "-DWITHOUT_DLOPEN")),
}


@dataclass(frozen=True)
class Script:
    """program: what must be installed for it."""

    name: str
    program: str
    text: str


def scripts() -> list[Script]:
    """What SCRIPTS holds."""
    found = []
    for section in SCRIPTS.read_text().split("\n== ")[1:]:
        head, _, text = section.partition("\n")
        name, program = head.split()
        found.append(Script(name, program, text))
    return found


@dataclass(frozen=True)
class Outcome:
    """What a program left."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Ground:
    """Where programs run. bare, preloading: copies of /etc; work: a directory that is empty for each run."""

    bare: Path
    preloading: Path
    work: Path
    programs: Path

    def run(
        self, command: Sequence[str], *, preload: bool, environment: Mapping[str, str] = ENVIRONMENT, user: int = 0
    ) -> Outcome:
        """Run it in an empty directory of always the same name. Raises subprocess.TimeoutExpired."""
        etc = self.preloading if preload else self.bare
        code, out, err = in_namespaces(_run, str(etc), str(self.work), list(command), dict(environment), user)
        return Outcome(code, out, err)


def _run(etc: str, work: str, command: list[str], environment: dict[str, str], user: int) -> tuple[int, str, str]:
    mount_bind(etc, "/etc")
    shutil.rmtree(work, ignore_errors=True)
    os.mkdir(work)
    os.chmod(work, 0o777)
    done = subprocess.run(
        command,
        env=environment,
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
        user=user,
        group=user,
        extra_groups=[] if user else None,
    )
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def prepare(place: Path, lines: Sequence[str]) -> Ground:
    """Make the ground below ``place``; lines: what /etc/ld.so.preload says."""
    place.chmod(0o755)
    bare, preloading = place / "bare", place / "preloading"
    for copy in (bare, preloading):
        shutil.copytree("/etc", copy, symlinks=True, ignore_dangling_symlinks=True)
        (copy / "ld.so.preload").unlink(missing_ok=True)
    (preloading / "ld.so.preload").write_text("".join(f"{line}\n" for line in lines))
    programs = place / "programs"
    programs.mkdir()
    return Ground(bare, preloading, place / "work", programs)


def build_habits(ground: Ground, build: str) -> Path | None:
    """habits.c built in one of the ways of BUILDS; None where the compiler is missing. Raises CalledProcessError."""
    target = ground.programs / f"habits-{build}"
    compiler, options = BUILDS[build]
    if not target.exists():
        if shutil.which(compiler) is None:
            return None
        subprocess.run([compiler, *_FLAGS, *options, "-o", str(target), str(SOURCE)], check=True)
    return target


def build_herd(directory: Path) -> Path:
    """The program that starts others in pairs. Raises CalledProcessError."""
    target = directory / "herd"
    if not target.exists():
        subprocess.run(["gcc", *_FLAGS, "-o", str(target), str(HERD)], check=True)
    return target
