"""The packages, built once for each test process, and a machine to install the Debian package on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.overlaid import Machine, overlaid

CHECKOUT = Path(__file__).resolve().parents[2]
# The builders are scripts beside each other.
sys.path.append(str(CHECKOUT / "packaging"))


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine of the test's own. Needs root."""
    with overlaid() as made:
        yield made


def build(*command: str, **environment: str) -> Path:
    """Run a builder; the file that it names in the last line."""
    if not (CHECKOUT / "build/native/nvidia-smi").exists():
        subprocess.run(["make", "-s", "native"], cwd=CHECKOUT, check=True)
    done = subprocess.run(
        command, cwd=CHECKOUT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return CHECKOUT / done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="session")
def deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here")
    return build("packaging/deb", DIST=str(tmp_path_factory.mktemp("deb")), VERSION="1.0")


@pytest.fixture(scope="session")
def next_deb(deb: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same package with a higher version, without one module, and with another default file."""
    tree = tmp_path_factory.mktemp("next")
    subprocess.run(["dpkg-deb", "-R", str(deb), str(tree)], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace("Version: 1.0\n", "Version: 1.1\n"))
    (tree / "usr/lib/nvc-py/nvc/cli/compat/dryrun.py").unlink()
    with open(tree / "etc/default/nvc-cdi-refresh", "a") as defaults:
        defaults.write("# new in 1.1\n")
    file = deb.with_name("nvc-py_1.1.deb")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", str(tree), str(file)], check=True, capture_output=True)
    return file


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    return build(sys.executable, "packaging/build_wheel.py", str(directory), PYTHONPATH=".")
