"""One package and one wheel serve Debian 12 and 13, wherever they are built: what their native files need is in 12."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import glibc
import pytest
from commands import CHECKOUT

#: As glibc 2.40's features.h and stdlib.h do it with _GNU_SOURCE.
_FEATURES = "#include_next <features.h>\n#ifndef NEWER\n#define NEWER\n#undef {macro}\n#define {macro} 1\n#endif\n"
_STDLIB = (
    "#include_next <stdlib.h>\n#if {macro}\n#define strtoul __isoc23_strtoul\n#define strtol __isoc23_strtol\n"
    "unsigned long strtoul (const char *, char **, int);\nlong strtol (const char *, char **, int);\n#endif\n"
)


def needs(file: Path, what: str) -> set[str]:
    """What objdump says that a file needs."""
    shown = subprocess.run(["objdump", "-p", str(file)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(what, shown))


def versions(root: Path) -> set[tuple[int, int]]:
    """The glibc versions that the native files below ``root`` need; there are files of every kind."""
    files = list(glibc.elf_files(root))
    assert {"nvc-supervisor", "_raw.abi3.so", "libnvc-shim.so", "libcuda.so"} <= {file.name for file in files}
    assert [file for file in files if needs(file, r"NEEDED +(libpython\S*)")] == []
    found = set().union(*(needs(file, r"GLIBC_(\d+)\.(\d+)") for file in files))
    return {(int(major), int(minor)) for major, minor in found}


def test_the_debian_package(deb: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", str(deb), str(tmp_path)], check=True)
    depends = subprocess.run(["dpkg-deb", "-f", str(deb), "Depends"], capture_output=True, text=True, check=True).stdout
    ((major, minor),) = re.findall(r"libc6 \(>= (\d+)\.(\d+)\)", depends)

    assert max(versions(tmp_path)) == (int(major), int(minor)) <= (2, 36)
    assert "python3 (>= 3.11)" in depends


def test_the_wheels_tag_is_true(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    ((major, minor),) = re.findall(r"-cp311-abi3-manylinux_(\d+)_(\d+)_\w+\.whl$", wheel.name)

    assert max(versions(tmp_path)) == (int(major), int(minor)) <= (2, 36)


def library(directory: Path, symbol: str) -> Path:
    """A library that needs something of this version of glibc."""
    (directory / "map").write_text(f"{symbol} {{ global: newer; }};\n")
    (directory / "c.c").write_text("int newer (void) { return 1; }\n")
    (directory / "user.c").write_text("int newer (void);\nint use (void) { return newer (); }\n")
    cc = ["cc", "-shared", "-fPIC"]
    made = directory / "user.so"
    subprocess.run(
        [*cc, f"-Wl,--version-script={directory}/map", "-o", f"{directory}/c.so", "c.c"], cwd=directory, check=True
    )
    subprocess.run([*cc, "-o", str(made), "user.c", "./c.so"], cwd=directory, check=True)
    return made


@pytest.mark.parametrize("symbol", ["GLIBC_2.38", "GLIBC_3.0", "GLIBC_ABI_GNU2_TLS"])
def test_what_needs_a_newer_glibc_is_not_packaged(tmp_path: Path, symbol: str) -> None:
    """A package of Debian 13 was refused by Debian 12's dpkg, and its makers were told nothing."""
    made = library(tmp_path, symbol)
    with pytest.raises(ValueError, match=rf"user\.so needs .*{symbol.partition('_')[2]}.* Debian 12"):
        glibc.oldest([made])


def test_a_known_one_counts(tmp_path: Path) -> None:
    assert glibc.oldest([library(tmp_path, "GLIBC_2.35")]) == "2.35"


@pytest.mark.parametrize("macro", ["__GLIBC_USE_C2X_STRTOL", "__GLIBC_USE_C23_STRTOL"])
def test_newer_headers_give_no_function_another_name(tmp_path: Path, macro: str) -> None:
    (tmp_path / "features.h").write_text(_FEATURES.format(macro=macro))
    (tmp_path / "stdlib.h").write_text(_STDLIB.format(macro=macro))
    made = tmp_path / "build/sim/fuse_caller.o"
    command = [
        "make",
        "-s",
        "-C",
        str(CHECKOUT / "native"),
        f"BUILD={tmp_path}/build",
        f"CFLAGS=-O0 -isystem {tmp_path}",
        str(made),
    ]
    subprocess.run(command, check=True, capture_output=True)
    undefined = subprocess.run(["nm", "-u", str(made)], capture_output=True, text=True, check=True).stdout

    assert re.search(r"\bstrto", undefined)
    assert "isoc23" not in undefined
