"""The loader's file of a container with a share, and the directory of libraries that it names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nvc.formats import elf
from nvc.share import preload
from nvc.share.preload import PLATFORMS
from tools.preload import fill

NAMES = ("libnvc-shim.so", "libnvc-shim-managed.so", "libnvc-shim-api.so")
SHIM, MANAGED, API = (f"/usr/lib/nvc/$PLATFORM/{name}" for name in NAMES)
MACHINE = os.uname().machine


def test_only_a_share_that_needs_it_gets_a_second_library() -> None:
    assert preload.lines(memory=False, api=False) == (SHIM,)
    assert preload.lines(memory=True, api=False) == (SHIM, MANAGED)
    assert preload.lines(memory=False, api=True) == preload.lines(memory=True, api=True) == (SHIM, API)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        pytest.param(b"", f"{SHIM}\n", id="nothing there"),
        pytest.param(b"/lib/a.so\n", f"/lib/a.so\n{SHIM}\n", id="one line"),
        pytest.param(b"/lib/a.so", f"/lib/a.so\n{SHIM}\n", id="no line end"),
        pytest.param(b"/a.so /b.so:/c.so # why\n", f"/a.so /b.so:/c.so # why\n{SHIM}\n", id="several on a line"),
        pytest.param(b"# no end", f"# no end\n{SHIM}\n", id="a comment without line end"),
        pytest.param(f"/a.so {SHIM}\n".encode(), f"/a.so {SHIM}\n", id="ours is there already"),
        pytest.param(f"# {SHIM}\n".encode(), f"# {SHIM}\n{SHIM}\n", id="ours in a comment is no entry"),
        pytest.param(f"{SHIM}.old\n".encode(), f"{SHIM}.old\n{SHIM}\n", id="a name that begins as ours"),
    ],
)
def test_what_the_image_had_is_kept_and_ours_is_there_once(image: bytes, expected: str) -> None:
    assert preload.text(image, (SHIM,)) == expected.encode()


def test_only_the_missing_line_is_added() -> None:
    assert preload.text(f"{SHIM}\n".encode(), (SHIM, API)) == f"{SHIM}\n{API}\n".encode()


def test_bytes_of_no_encoding_are_kept() -> None:
    assert preload.text(b"/\xff\0.so", (SHIM,)) == b"/\xff\0.so\n" + SHIM.encode() + b"\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    library = tmp_path / "libnvc-shim.so"
    library.write_bytes(b"first")
    (tmp_path / "tree").mkdir()
    fill(tmp_path / "tree", [library], "x86_64")
    return tmp_path / "tree"


def test_every_word_that_a_loader_may_put_has_the_library(tree: Path) -> None:
    for word in ("x86_64", "haswell", "xeon_phi"):
        assert (tree / word / "libnvc-shim.so").read_bytes() == b"first"


def test_programs_of_32_bits_find_empty_libraries_of_their_own(tree: Path) -> None:
    for word in ("i386", "i486", "i586", "i686"):
        for name in NAMES:
            with (tree / word / name).open("rb") as file:
                assert elf.header(file).bits == 32
                assert elf.dynamic(file) == elf.ElfDynamic(name, ())


def test_a_newer_library_takes_the_place_of_the_older_in_the_same_directory(tree: Path, tmp_path: Path) -> None:
    directory, old = (tree / "x86_64").stat(), (tree / "x86_64/libnvc-shim.so").stat()
    (tree / "x86_64/gone.so").write_text("of an older version")
    newer = tmp_path / "libnvc-shim.so"
    newer.write_bytes(b"second")
    fill(tree, [newer], "x86_64")

    assert os.listdir(tree / "x86_64") == ["libnvc-shim.so"]
    assert (tree / "haswell/libnvc-shim.so").read_bytes() == b"second"
    # A mount of the directory shows the new one; a process with the old one open keeps it.
    assert (tree / "x86_64").stat().st_ino == directory.st_ino
    assert (tree / "x86_64/libnvc-shim.so").stat().st_ino != old.st_ino


@pytest.mark.skipif(MACHINE not in PLATFORMS, reason="a machine without a row")
def test_the_loader_here_expands_platform_to_a_word_of_the_table() -> None:
    shown = subprocess.run(
        ["/bin/true"], env={"LD_SHOW_AUXV": "1"}, capture_output=True, text=True, check=True, timeout=20
    ).stdout
    platform = next(line.split()[1] for line in shown.splitlines() if line.startswith("AT_PLATFORM:"))

    assert platform in (MACHINE, *PLATFORMS[MACHINE][0])


@pytest.mark.parametrize("place", ["preload", "nvc/native/preload", "build/native/preload"])
def test_the_libraries_are_found_where_they_are_installed_or_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(preload, "__file__", str(tmp_path / "nvc/share/preload.py"))
    assert preload.directory() == ""
    (tmp_path / place / MACHINE).mkdir(parents=True)
    (tmp_path / place / MACHINE / preload.LIBRARY).touch()
    assert preload.directory() == str(tmp_path / place)
