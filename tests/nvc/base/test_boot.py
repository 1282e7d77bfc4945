"""The start of an installed command: modules from the bundle, and without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import launchers

BUNDLE = "lib/nvc-py/nvc/modules.bundle"
#: Says where each of our modules came from.
SHOW = Path(__file__).parent / "programs/show_loaders.py"


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(launchers, "PREFIX", "")
    launchers.install(tmp_path)
    return tmp_path


def shown(prefix: Path) -> dict[str, list[str]]:
    command = [sys.executable, "-IS", SHOW, prefix / "lib/nvc-py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    return {words[0]: words[1:] for words in (line.split() for line in done.stdout.splitlines())}


def test_hot_modules_come_from_the_bundle(prefix: Path) -> None:
    library = prefix / "lib/nvc-py"

    found = shown(prefix)

    assert found["nvc.base.record"] == ["Finder", str(library / "nvc/base/record.py")]
    assert found["nvc.linux"] == ["Finder", str(library / "nvc/linux/__init__.py")]
    assert found["nvc.sim.create"] == ["SourceFileLoader", str(library / "nvc/sim/create.py")]


def cut(bundle: Path) -> None:
    os.truncate(bundle, 100)


def empty(bundle: Path) -> None:
    os.truncate(bundle, 0)


def of_another_python(bundle: Path) -> None:
    data = bundle.read_bytes()
    magic = bytes((sys.version_info.minor + 7,))
    bundle.write_bytes(data.replace(data[data.index(b"\r\r\n") - 1 :][:4], magic + b"\0\r\n", 1))


def noise(bundle: Path) -> None:
    bundle.write_bytes(b"\x20\0\0\0\0\0\0\0" + b"\xff" * 4096)


@pytest.mark.parametrize("spoil", [Path.unlink, cut, empty, of_another_python, noise])
def test_without_a_fitting_bundle_the_files_are_used(prefix: Path, spoil: Callable[[Path], object]) -> None:
    spoil(prefix / BUNDLE)

    found = shown(prefix)

    assert found["nvc.base.record"] == ["SourceFileLoader", str(prefix / "lib/nvc-py/nvc/base/record.py")]


def test_command_works_with_streams_closed(prefix: Path) -> None:
    """The bundle must not be opened as the stream that messages go to."""
    command = f"exec '{prefix}/bin/nvc-py' --version <&- 2>&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=20)

    assert done.returncode == 0
    assert "0.1" in done.stdout


def in_bundle(prefix: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run ``script`` with ``finder``, which is in place."""
    library = str(prefix / "lib/nvc-py")
    head = f"import sys; sys.path += [{library!r}]\nfrom nvc.base.boot import Finder\nfinder = Finder({library!r})\n"
    command = [sys.executable, "-ISc", f"{head}sys.meta_path.insert(0, finder)\n{script}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20)


def test_error_names_the_line_of_the_source(prefix: Path) -> None:
    path = prefix / "lib/nvc-py/rpc/codec.py"
    numbers = [i for i, line in enumerate(path.read_text().splitlines(), 1) if "raise _misplaced(" in line]

    done = in_bundle(prefix, "from rpc.codec import loads\nloads('{{')")

    assert any(f'{path}", line {number}, in loads' in done.stderr for number in numbers), done.stderr


def test_asserts_and_docstrings_are_kept(prefix: Path) -> None:
    """click shows docstrings: tests/packaging/test_install.py compares the help of every command with the source's."""
    script = (
        "import dis, io\nout = io.StringIO()\ncode = finder.get_code('nvc.base.verbs')\n"
        "dis.dis(code, file=out)\nprint('ASSERTION' in out.getvalue(), 'whole surface' in out.getvalue())"
    )

    assert in_bundle(prefix, script).stdout.split() == ["True", "True"]


def test_extension_is_loaded_where_it_was_built(prefix: Path) -> None:
    extension = prefix / "lib/nvc-py/nvc/linux/_raw.abi3.so"
    if not extension.exists():
        pytest.skip("not built")
    script = "from nvc.linux import syscalls\nprint(syscalls.call.__module__, 'ctypes' in sys.modules)"

    assert in_bundle(prefix, script).stdout.split() == ["nvc.linux._raw", "False"]
    extension.unlink()
    assert in_bundle(prefix, script).stdout.split() == ["nvc.linux.raw_ctypes", "True"]
