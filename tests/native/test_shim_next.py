"""libnvc-shim.so calls the next function as without it: interposers in the loader's order, then libc."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.native import CHECKOUT, build

SOURCE = CHECKOUT / "tests/native/shim_next.c"
FUNCTIONS = 9
#: The version that libc has nearly all of these functions in.
VERSION = "GLIBC_2.17" if platform.machine() == "aarch64" else "GLIBC_2.2.5"


def compile_to(target: Path, *flags: str | Path, compiler: str = "gcc") -> Path:
    warnings = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror")
    subprocess.run([compiler, *warnings, SOURCE, "-o", target, *flags], check=True, timeout=60)
    return target


def interposer(folder: Path, name: str, *flags: str | Path, compiler: str = "gcc") -> Path:
    return compile_to(folder / f"lib{name}.so", "-shared", "-fPIC", f"-DNAME={name}", *flags, compiler=compiler)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("next")
    compile_to(place / "program", "-ldl")
    return place


def lines(program: Path, *libraries: Path, arguments: tuple[str, ...] = (), **variables: str) -> list[str]:
    environment = {**os.environ, "LD_PRELOAD": ":".join(map(str, libraries)), **variables}
    done = subprocess.run(
        [program, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr.splitlines()


def check(program: Path, *interposers: Path, reached: int) -> None:
    """The same with the library at every place in the order."""
    expected = lines(program, *interposers)
    names = {path.stem.removeprefix("lib") for path in interposers}
    assert len([line for line in expected if line.split()[0] in names and len(line.split()) == 2]) >= reached
    for place in range(len(interposers) + 1):
        found = lines(program, *interposers[:place], build() / "libnvc-shim.so", *interposers[place:])
        assert found == expected, place


def test_all_interposers_are_reached_in_their_order(folder: Path) -> None:
    check(folder / "program", interposer(folder, "one"), interposer(folder, "two"), reached=2 * FUNCTIONS)


def test_also_those_with_the_old_table_of_symbols(folder: Path) -> None:
    check(folder / "program", interposer(folder, "old", "-Wl,--hash-style=sysv"), reached=FUNCTIONS)


def test_the_version_that_a_program_asks_libc_for(folder: Path) -> None:
    """A function in libc's version of it interposes libc's; one in a library's own version does not."""
    own, same = folder / "own.map", folder / "same.map"
    own.write_text("OWN_1 { global: *; };\n")
    same.write_text(f"{VERSION} {{ global: *; local: dup3; }};\n")  # which is newer on x86-64
    mine = interposer(folder, "mine", f"-Wl,--version-script={own}")
    libcs = interposer(folder, "libcs", f"-Wl,--version-script={same}")
    check(folder / "program", libcs, reached=FUNCTIONS - 1)
    assert "mine close" not in lines(folder / "program", mine)
    check(folder / "program", mine, libcs, reached=FUNCTIONS - 1)


def test_nothing_is_looked_up_by_dlsym(folder: Path) -> None:
    """It may allocate, and free, in its caller: an allocator, or a sanitizer that reports."""
    forbidden = compile_to(folder / "libforbidden.so", "-shared", "-fPIC", "-DNO_LOOK_UPS")
    assert lines(folder / "program", build() / "libnvc-shim.so", forbidden) == lines(folder / "program")


def test_in_a_namespace_of_its_own_it_reaches_what_is_there(folder: Path) -> None:
    """dlmopen: the list of the program's start does not have it."""
    inner, outer = interposer(folder, "inner"), interposer(folder, "outer")
    empty = folder / "empty.c"
    empty.write_text("int nothing;\n")
    plain, shimmed = folder / "libplain.so", folder / "libshimmed.so"
    command = ["gcc", "-shared", "-fPIC", str(empty), "-Wl,--no-as-needed", f"-Wl,-rpath,{folder}:{build()}"]
    subprocess.run([*command, "-o", plain, inner], check=True, timeout=60)
    subprocess.run([*command, "-o", shimmed, build() / "libnvc-shim.so", inner], check=True, timeout=60)
    expected = lines(folder / "program", outer, arguments=("namespace",), LIBRARY=str(plain))
    assert "inner dup" in expected
    assert "outer dup" not in expected
    assert lines(folder / "program", outer, arguments=("namespace",), LIBRARY=str(shimmed)) == expected


def test_under_musl_too(folder: Path) -> None:
    """musl has the list of its libraries for debuggers only."""
    if shutil.which("musl-gcc") is None:
        pytest.skip("no musl-gcc")
    program = compile_to(folder / "musl-program", compiler="musl-gcc")
    check(program, interposer(folder, "musl", compiler="musl-gcc"), reached=FUNCTIONS - 1)
