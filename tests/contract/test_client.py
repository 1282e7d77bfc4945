"""The program that every container's start executes is small, needs no library, and is hardened."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.support import launchers

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "native/client").iterdir())


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("client") / "client"
    command = ["make", "-s", "-C", str(ROOT / "native"), "client-at", "SOCKET=/nowhere/run", f"TARGET={target}"]
    subprocess.run(command, check=True, timeout=30)
    return target


def test_the_sources_are_few() -> None:
    assert sum(len(path.read_text().splitlines()) for path in SOURCES) < 980


def test_it_needs_no_library_and_is_small(client: Path) -> None:
    with client.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        tags = [(tag.entry.d_tag, tag) for tag in dynamic.iter_tags()]
    needed = [tag.needed for name, tag in tags if name == "DT_NEEDED"]

    assert needed == []
    assert client.stat().st_size < 1 << 20


def test_it_is_hardened(client: Path) -> None:
    with client.open("rb") as file:
        elf = ELFFile(file)
        assert elf.header.e_type == "ET_DYN"  # position independent
        kinds = {segment.header.p_type: segment.header.p_flags for segment in elf.iter_segments()}
        dynamic = elf.get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        flags = {tag.entry.d_tag: tag.entry.d_val for tag in dynamic.iter_tags()}
    assert "PT_GNU_RELRO" in kinds
    assert kinds["PT_GNU_STACK"] & 1 == 0  # not executable
    assert flags["DT_FLAGS"] & 8  # BIND_NOW


def test_it_has_a_name_for_each_of_its_commands() -> None:
    text = (ROOT / "native/client/place.c").read_text()
    for name, module in launchers._MODULES.items():
        assert (f'"{name}"' in text) == (module in launchers.CLIENT_MODULES)


def test_without_its_launcher_it_says_so(client: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    lonely = tmp_path / "bin/nvc-py"
    os.link(client, lonely) if client.stat().st_dev == tmp_path.stat().st_dev else lonely.write_bytes(
        client.read_bytes()
    )
    lonely.chmod(0o755)
    done = subprocess.run([lonely, "list"], capture_output=True, text=True, timeout=10)

    assert done.returncode == 1
    assert "the Python program of this installation is missing; install it again" in done.stderr


def test_it_becomes_the_launcher_with_the_same_words_and_environment(client: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib/nvc-py/bin").mkdir(parents=True)
    program = tmp_path / "bin/nvc-hook"
    program.write_bytes(client.read_bytes())
    program.chmod(0o755)
    (tmp_path / "link").symlink_to(program)
    launcher = tmp_path / "lib/nvc-py/bin/nvc-hook"
    launcher.write_text('#!/bin/sh\necho "$0|$#|$1|$2|$A|$(pwd)"; cat; exit 7\n')
    launcher.chmod(0o755)
    for path in (program, tmp_path / "link"):
        done = subprocess.run(
            [path, "", "prestart"],
            env={"A": "b"},
            input="state",
            capture_output=True,
            text=True,
            timeout=10,
            cwd="/usr",
        )
        assert done.returncode == 7
        assert done.stdout == f"{launcher}|2||prestart|b|/usr\nstate"
