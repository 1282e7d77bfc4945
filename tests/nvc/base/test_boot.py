"""The start of an installed command: modules from the bundle, and without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc import __version__
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
    assert f"lib-version: {__version__}\n" in done.stdout


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


def test_asserts_are_kept_and_the_docstrings_that_click_shows(prefix: Path) -> None:
    """tests/packaging/test_install.py compares the help of every command with the source's."""
    script = (
        "import dis, io\nout = io.StringIO()\ncode = finder.get_code('nvc.base.verbs')\n"
        "dis.dis(code, file=out)\nprint('ASSERTION' in out.getvalue(), 'whole surface' in out.getvalue())\n"
        "from nvc.cli.compat import configure\nprint(configure.__doc__ is not None)"
    )

    assert in_bundle(prefix, script).stdout.split() == ["True", "False", "True"]


def opened(prefix: Path) -> list[str]:
    """The files that ``nvc-py --version`` opens."""
    command = ["strace", "-f", "-qq", "-e", "trace=open,openat", prefix / "bin/nvc-py", "-V"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [line.split('"')[1] for line in done.stderr.splitlines() if '"' in line]


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_start_looks_for_no_module_of_ours(prefix: Path) -> None:
    library = f"{prefix}/lib/nvc-py"
    files = [path for path in opened(prefix) if path.startswith(f"{library}/") and "/bin/" not in path]
    assert files == [f"{library}/nvc/boot.code", f"{library}/nvc/modules.bundle"]


def without_code(code: Path) -> None:
    code.unlink()


def of_another_interpreter(code: Path) -> None:
    code.write_bytes(b"\x01\x02\r\n" + code.read_bytes()[4:])


def cut_code(code: Path) -> None:
    os.truncate(code, 50)


@pytest.mark.parametrize("spoil", [without_code, of_another_interpreter, cut_code])
def test_without_a_fitting_boot_code_the_module_is_imported(prefix: Path, spoil: Callable[[Path], object]) -> None:
    spoil(prefix / "lib/nvc-py/nvc/boot.code")

    done = subprocess.run([prefix / "bin/nvc-py", "--version"], capture_output=True, text=True, timeout=20)

    assert (done.returncode, done.stderr) == (0, "")
    assert "version" in done.stdout


def test_the_interpreters_own_extensions_are_found_as_python_finds_them(prefix: Path) -> None:
    script = (
        "import _json, struct, resource\nprint(_json.__spec__.origin, resource.__spec__.origin, struct.calcsize('Q'))"
    )
    plain = subprocess.run([sys.executable, "-ISc", script], capture_output=True, text=True, check=True, timeout=20)

    assert in_bundle(prefix, script).stdout == plain.stdout


def test_extension_is_loaded_where_it_was_built(prefix: Path) -> None:
    extension = prefix / "lib/nvc-py/nvc/linux/_raw.abi3.so"
    if not extension.exists():
        pytest.skip("not built")
    script = (
        "from nvc.linux import syscalls\nfrom nvc.bindings import nvml\nfrom nvc.driver import confine\n"
        "print(syscalls.call.__module__, 'ctypes' in sys.modules)"
    )

    assert in_bundle(prefix, script).stdout.split() == ["nvc.linux._raw", "False"]
    extension.unlink()
    assert in_bundle(prefix, script).stdout.split() == ["nvc.linux.raw_ctypes", "True"]
