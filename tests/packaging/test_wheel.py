"""The wheel: pip installs it into an environment of its own, where it works without the checkout."""

from __future__ import annotations

import ast
import email
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import build_wheel
import debian
import pytest
from commands import commands


def run(program: Path, *words: str) -> str:
    """Run a program of the environment from elsewhere, with nothing of ours around it."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [program, *words], cwd="/", env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{program.name} {' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of a fresh virtual environment with the wheel, and what it requires, for Kubernetes too."""
    directory = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    pip = [directory / "bin/pip", "-q", "--disable-pip-version-check", "install"]
    done = subprocess.run([*pip, f"{wheel}[kube]"], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return directory / "bin"


def test_installed_commands_work(environment: Path, tmp_path: Path) -> None:
    assert "lib-version" in run(environment / "nvc-py", "--version")
    assert "Usage: nvc-py" in run(environment / "nvc-py", "--help")
    assert "nvc-hook" in run(environment / "nvc-hook", "--version")
    assert "nvc-cdi-hook" in run(environment / "nvc-cdi-hook", "--version")
    machine = str(tmp_path / "machine")
    run(environment / "nvc-py", "sim", "create", machine, "--machine", "h200")
    assert "libcuda.so" in run(environment / "nvc-py", f"--sim={machine}", "list", "--libraries")
    assert str(environment / "nvc-cdi-hook") in run(environment / "nvc-py", f"--sim={machine}", "cdi", "generate")
    for name, _ in commands():
        assert os.access(environment / name, os.X_OK), name


@pytest.mark.root
def test_the_agent_runs_from_it(environment: Path, tmp_path: Path) -> None:
    """The guard's library was staged and then left out of the wheel."""
    words = ["agent", "--directory", str(tmp_path / "agent"), "--store", str(tmp_path / "share")]
    with subprocess.Popen([environment / "nvc-py", *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = ""
        while '"event":"ready"' not in told and (line := process.stderr.readline()):
            told += line
        process.terminate()
        rest = process.stderr.read()
    assert '"event":"ready"' in told, told + rest
    assert 0 == process.returncode, rest


def test_nothing_but_nvc_lands_in_site_packages(environment: Path) -> None:
    told = run(
        environment / "python",
        "-c",
        "import importlib.util as u; print([name for name in ('nvc', 'hook', 'rpc') if u.find_spec(name)])",
    )
    assert "['nvc']\n" == told


def test_every_native_file_is_in_it(wheel: Path) -> None:
    """The guard's library was staged and then left out: no agent started from a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        modes = {one.filename: one.external_attr >> 16 for one in archive.infolist()}
    assert {f"{place}/{name}" for name, place in build_wheel.BUILT.items()} <= names
    assert all(modes[f"nvc/native/nvc-{name}"] & 0o111 == 0o111 for name in ("monitor", "supervisor", "prober"))


def test_every_module_can_be_imported(environment: Path) -> None:
    walk = Path(__file__).parent / "programs/import_everything.py"
    count, *found = run(environment / "python", str(walk)).split()
    assert int(count) > 100
    assert ["True", "True"] == found


def test_metadata_is_that_of_the_checkout(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        text = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    metadata = email.message_from_string(text)
    # Dash and underscore are the same in a project's name; which one the metadata has is setuptools' affair.
    required = {name.replace("_", "-") for name, _ in debian.requirements()}
    lines = metadata.get_all("Requires-Dist", [])
    said = {line.partition(">")[0].replace("_", "-") for line in lines if "extra ==" not in line}
    assert required == said
    assert {"grpcio", "protobuf", "kubernetes"} == {line.partition(">")[0] for line in lines if "extra ==" in line}
    assert ">=3.11" == metadata["Requires-Python"]
    assert [] == [name for name in names if not name.startswith(("nvc/", "nvc_py-"))]
    assert "cp311-abi3-manylinux_2_" in wheel.name


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("from hook import state\n", "from nvc._hook import state\n", id="package"),
        pytest.param("from rpc.codec import dumps, loads\n", "from nvc._rpc.codec import dumps, loads\n", id="module"),
        pytest.param(
            "def f():\n    from rpc.codec import (\n        dumps,\n    )\n",
            "def f():\n    from nvc._rpc.codec import (\n        dumps,\n    )\n",
            id="inside a function, on several lines",
        ),
        pytest.param("from nvc import model\n", "from nvc import model\n", id="what stays"),
        pytest.param("from hooks import x\n", "from hooks import x\n", id="a longer name"),
        pytest.param("text = 'from hook import x'\n", "text = 'from hook import x'\n", id="a text"),
    ],
)
def test_imports_are_rewritten(source: str, expected: str) -> None:
    assert expected == build_wheel.rewrite(source, "x.py")
    ast.parse(expected)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("import rpc.codec\n", id="an import that binds the old name"),
        pytest.param("__import__('hook.inject')\n", id="a module's name as a text"),
    ],
)
def test_what_cannot_be_rewritten_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"x\.py:1"):
        build_wheel.rewrite(source, "x.py")
