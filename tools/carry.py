"""Collect what a machine without a package manager needs to run tests/gpu: ``python tools/carry.py DIR``.

DIR gets bin/ (runc, crun, conmon, a static busybox), packed/ (podman, compressed; tests/support/carried.py unpacks
it), lib/ (the shared libraries that they need beside glibc), site/ (the Python packages, for the Python of the other
machine) and native/ (our extension modules and preloaded libraries, if ``make native`` made them). Copy DIR there and
name it in NVC_CARRY.
"""

from __future__ import annotations

import argparse
import configparser
import lzma
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = ("runc", "crun", "conmon", "busybox")
#: Carried as NAME.xz: podman alone would be half of all that may travel.
PACKED = ("podman",)
#: Opened by name (pyseccomp), so that ldd does not show it for everything that needs it.
EXTRA_LIBRARIES = ("libseccomp.so.2",)
#: Parts of glibc: must be the other machine's own, to fit its loader.
GLIBC = re.compile(r"^(ld-linux|libc|libm|libdl|libpthread|librt|libresolv|libutil)[-.]")
#: Of the extra ``test``, what tests/gpu imports.
TEST_PACKAGES = ("pytest", "pytest-timeout", "nvidia-ml-py", "pyelftools", "pyseccomp")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="carry", description=__doc__.split("\n", 1)[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--python", default="3.12", help="Python version of the other machine (default 3.12)")
    options = parser.parse_args(argv)
    missing = [name for name in (*PROGRAMS, *PACKED) if _find(name) is None]
    if missing:
        install = "apt-get install runc crun podman conmon busybox-static"
        print(f"carry: not installed: {', '.join(missing)}.  Run:  {install}", file=sys.stderr)
        return 1
    shutil.rmtree(options.directory, ignore_errors=True)
    libraries = collect_programs(options.directory)
    packages = collect_packages(options.directory, options.python)
    collect_extensions(options.directory)
    size = sum(path.stat().st_size for path in options.directory.rglob("*") if path.is_file())
    names = ", ".join((*PROGRAMS, *PACKED))
    print(f"{options.directory}: {names}; {libraries} libraries; {packages} packages; {size >> 20} MiB")
    return 0


def collect_programs(directory: Path) -> int:
    """Copy the programs and their libraries; return the number of libraries."""
    for part in ("bin", "packed", "lib"):
        (directory / part).mkdir(parents=True)
    for name in (*PROGRAMS, *PACKED):
        program = _find(name)
        assert program is not None, name
        if name in PACKED:
            (directory / "packed" / f"{name}.xz").write_bytes(lzma.compress(Path(program).read_bytes()))
        else:
            shutil.copy2(program, directory / "bin" / name)
        for library in _libraries(program):
            shutil.copy(Path(library).resolve(), directory / "lib" / Path(library).name)
    cache = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    for name in EXTRA_LIBRARIES:
        found = re.search(rf"^\s{re.escape(name)} .*=> (\S+)$", cache, re.MULTILINE)
        if found:
            shutil.copy(Path(found[1]).resolve(), directory / "lib" / name)
    return len(list((directory / "lib").iterdir()))


def collect_packages(directory: Path, python: str) -> int:
    """Download wheels for that Python and unpack them; return their number. Raises CalledProcessError."""
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).resolve().parents[1] / "setup.cfg")
    tests = [line for line in setup["options.extras_require"]["test"].split() if _name(line) in TEST_PACKAGES]
    wanted = [*setup["options"]["install_requires"].split(), *tests]
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download", "--dest", wheels]
        subprocess.run([*pip, "--only-binary=:all:", f"--python-version={python}", *wanted], check=True)
        for wheel in Path(wheels).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(directory / "site")
        return len(list(Path(wheels).glob("*.whl")))


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~;\[]", requirement)[0]


def collect_extensions(directory: Path) -> None:
    """Copy our extension modules, of the stable ABI, so for any Python there, and preloaded libraries."""
    built = Path(__file__).resolve().parents[1] / "build/native"
    (directory / "native").mkdir()
    for path in built.glob("*.abi3.so"):
        shutil.copy2(path, directory / "native")
    if (built / "preload").is_dir():
        shutil.copytree(built / "preload", directory / "native/preload", symlinks=True)


def _find(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _libraries(program: str) -> list[str]:
    answer = subprocess.run(["ldd", program], capture_output=True, text=True)  # exits 1 for a static program
    return [path for path in re.findall(r"=> (/\S+)", answer.stdout) if not GLIBC.match(Path(path).name)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
