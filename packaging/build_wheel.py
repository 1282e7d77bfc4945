"""Builds the wheel: dist/nvc_py-VERSION-cp311-abi3-PLATFORM.whl.

usage: python packaging/build_wheel.py DIST

``hook`` and ``rpc`` are too general as names for a shared site-packages: in the wheel they are ``nvc._hook`` and
``nvc._rpc``. The sources are copied, their import statements rewritten, and setuptools does the rest.
"""

from __future__ import annotations

import ast
import configparser
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from commands import CHECKOUT, commands
from glibc import elf_files, oldest

#: Package -> its name in the wheel.
MOVED = {"hook": "nvc._hook", "rpc": "nvc._rpc"}
NATIVE = CHECKOUT / "build/native"
#: The native files: where they are built -> where they go.
BUILT = {
    **dict.fromkeys(("libnvidia-ml.so", "libcuda.so", "libdxcore.so", "nvidia-smi", "driver-tool"), "nvc/sim/native"),
    "nvc-sim-manager": "nvc/sim/native",
    "_raw.abi3.so": "nvc/linux",
    **dict.fromkeys(("nvc-monitor", "nvc-supervisor", "nvc-prober"), "nvc/native"),
}
#: The preloaded libraries of a share, by platform, as ``nvc.share.preload.directory`` looks for them.
PRELOAD = "nvc/native/preload"
# One wheel for every Python from 3.11 on: the native files use its stable interface, or nothing of Python at all.
_SETUP = """\
from setuptools import Distribution, setup
from wheel.bdist_wheel import bdist_wheel


class Native(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return "cp311", "abi3", {platform!r}


setup(distclass=Native, cmdclass={{"bdist_wheel": Wheel}})
"""


def moved(module: str) -> str:
    """The name of a module in the wheel."""
    first, dot, rest = module.partition(".")
    return f"{MOVED.get(first, first)}{dot}{rest}"


def rewrite(source: str, name: str) -> str:
    """The source with imports of the moved packages rewritten. Raises ValueError for what cannot be rewritten."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source, name)):
        where = f"{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                if moved(alias.name) != alias.name:
                    raise ValueError(f"{where}: say `from ... import`: `import {alias.name}` has no other name")
        elif isinstance(node, ast.ImportFrom) and node.module and moved(node.module) != node.module:
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(f"from {node.module} ", f"from {moved(node.module)} ", 1)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_moved_module(node.value):
            raise ValueError(f"{where}: {node.value!r} is the name of a module that the wheel moves")
    return "".join(lines)


def _is_moved_module(text: str) -> bool:
    if not re.fullmatch(rf"({'|'.join(MOVED)})(\.\w+)+", text):
        return False
    path = CHECKOUT / text.replace(".", "/")
    return path.with_suffix(".py").exists() or path.is_dir()


def stage(directory: Path) -> None:
    """Fill ``directory`` with what setuptools needs."""
    for package in ("nvc", *MOVED):
        for file in sorted((CHECKOUT / package).rglob("*")):
            if file.suffix not in (".py", ".json") and file.name != "py.typed":
                continue
            name = str(file.relative_to(CHECKOUT))
            target = directory / moved(package).replace(".", "/") / file.relative_to(CHECKOUT / package)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text(encoding="utf-8")
            target.write_text(rewrite(text, name) if file.suffix == ".py" else text, encoding="utf-8")
    for name, place in BUILT.items():
        (directory / place).mkdir(parents=True, exist_ok=True)
        shutil.copy2(NATIVE / name, directory / place / name)
    for file in sorted((NATIVE / "preload").glob("*/*.so")):
        # Wheels have no links: each platform gets files of its own.
        (directory / PRELOAD / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, directory / PRELOAD / file.parent.name / file.name)
    shutil.copy(CHECKOUT / "build/kube/kubelet.binpb", directory / "nvc/kube")
    for name in ("README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, directory)
    (directory / "setup.cfg").write_text(_settings(), encoding="utf-8")
    (directory / "setup.py").write_text(_SETUP.format(platform=_platform(directory)), encoding="utf-8")


def _settings() -> str:
    """The checkout's setup.cfg, as far as it is about the package, with commands and data."""
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    scripts = "".join(f"\n    {name} = {moved(module)}:run" for name, module in commands())
    parts = {
        "metadata": dict(setup["metadata"]),
        "options": dict(setup["options"]) | {"zip_safe": "False"},
        "options.packages.find": {"include": "nvc*"},
        "options.package_data": {
            "*": "*.json, py.typed, *.so",
            "nvc.sim": "machines/*.json, native/*",
            "nvc.kube": "*.binpb",
            "nvc": "native/nvc-*, native/preload/*/*",
        },
        "options.extras_require": {"kube": setup["options.extras_require"]["kube"]},
        "options.entry_points": {"console_scripts": scripts},
    }
    written = configparser.ConfigParser()
    written.read_dict(parts)
    text = io.StringIO()
    written.write(text)
    return text.getvalue()


def _platform(directory: Path) -> str:
    """The platform tag: the glibc that the native files in the directory need, as PEP 600 writes it."""
    machine = sysconfig.get_platform().rpartition("-")[2]
    return f"manylinux_{oldest(elf_files(directory)).replace('.', '_')}_{machine}"


def main(dist: str) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        stage(directory)
        command = [sys.executable, "setup.py", "-q", "bdist_wheel", "-d", str(Path(dist).resolve())]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": _epoch()}
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.stderr.write(done.stdout + done.stderr)
            return 1
    print(max(Path(dist).glob("nvc_py-*.whl"), key=os.path.getmtime))
    return 0


def _epoch() -> str:
    """Times in the wheel: those of the last change, so that the same sources make the same file."""
    return os.environ.get("SOURCE_DATE_EPOCH") or str(int((CHECKOUT / "CHANGELOG.md").stat().st_mtime))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
