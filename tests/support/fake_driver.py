"""Driver libraries for tests of the function tables, and Python programs that run on them with a table preloaded."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nvc.share import limits, region
from nvc.share.model import ResolvedGpu
from tests.support.native import CHECKOUT, build

SOURCES = CHECKOUT / "native" / "test" / "api"
API, MANAGED = "libnvc-shim-api.so", "libnvc-shim-managed.so"
#: Library -> the files that have its rows.
_ROWS = {API: ("managed.def", "rows.def"), MANAGED: ("managed.def",)}
#: A driver that rm has tables for, and one that it cannot know.
KNOWN, UNKNOWN = "580.159.04", "9999.10"
MIB, GIB = 1 << 20, 1 << 30

PROGRAMS = CHECKOUT / "tests" / "native" / "programs"


def rows(library: str) -> list[tuple[str, str]]:
    """What a library wraps: symbols, and the names that cuGetProcAddress takes."""
    folder = CHECKOUT / "native" / "shim" / "api"
    text = "".join((folder / name).read_text() for name in _ROWS[library])
    return re.findall(r"^WRAP \([^,]+, (\w+), \(.*\), (\w+), \d+, \w+, \w+\)$", text, re.MULTILINE)


@functools.cache
def shim() -> Path:
    """A stand-in for libnvc-shim.so: it refuses when the driver of these tests says so."""
    return compile_library(PROGRAMS / "shim_refusals.c", Path(_folder().name) / "shim.so")


@functools.cache
def driver(*flags: str) -> Path:
    """A folder with libcuda.so.1 and libnvidia-ml.so.1, compiled with these flags."""
    folder = Path(_folder().name) / ("-".join(flags).replace("-D", "") or "plain")
    folder.mkdir()
    compile_library(SOURCES / "fake_cuda.c", folder / "libcuda.so.1", "-Wl,-soname,libcuda.so.1", *flags)
    compile_library(SOURCES / "fake_nvml.c", folder / "libnvidia-ml.so.1", "-Wl,-soname,libnvidia-ml.so.1")
    return folder


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="nvc-fake-driver-")


def compile_library(source: Path, library: Path, *flags: str) -> Path:
    """A shared library, or with -pie a program, of one C file."""
    kind = [] if "-pie" in flags else ["-shared"]
    words = [
        "cc",
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-fPIC",
        "-fvisibility=hidden",
        "-Wl,-Bsymbolic",
    ]
    done = subprocess.run(
        [*words, *kind, f"-I{CHECKOUT / 'native'}", "-o", library, source, *flags, "-ldl", "-pthread"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return library


def gpu(index: int, memory: int, *, oversubscribe: bool = False) -> ResolvedGpu:
    uuid = limits.uuid_text(bytes([0x10 + index] * 16))
    return ResolvedGpu(uuid, index, memory, 1000, 0, "normal", oversubscribe)


class Container:
    """The two files of a share in a folder, and programs that run with them."""

    def __init__(self, folder: Path, *gpus: ResolvedGpu, version: str = KNOWN) -> None:
        self.limits, self.region = folder / "limits", folder / "region"
        self.limits.write_bytes(limits.encode(limits.Limits(gpus, driver=version)))
        with self.region.open("wb") as file:
            file.write(region.header_bytes())
            file.truncate(region.SIZE)

    def run(
        self, program: str, *words: str, flags: Sequence[str] = (), preload: Sequence[Path] = (), library: str = API
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of PROGRAMS. flags: of the driver's build. library: the table that is preloaded; "": none."""
        libraries = [*preload, build() / library] if library else preload
        environment = {**os.environ, "LD_PRELOAD": ":".join(map(str, libraries))}
        environment["LD_LIBRARY_PATH"] = str(driver(*flags))
        environment["NVC_SHIM_LIMITS"], environment["NVC_SHIM_REGION"] = str(self.limits), str(self.region)
        return subprocess.run(
            [sys.executable, "-S", "-E", "-B", PROGRAMS / program, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def check(
        self, program: str, *words: str, flags: Sequence[str] = (), preload: Sequence[Path] = (), library: str = API
    ) -> None:
        """The program's assertions hold, and nothing was written."""
        done = self.run(program, *words, flags=flags, preload=preload, library=library)
        assert not done.stderr, done.stderr
        assert (done.returncode, done.stdout) == (0, "")
