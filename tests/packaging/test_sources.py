"""What the packages are made from: the scripts, the table of dependencies, the list of commands."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import debian
import pytest
from commands import CHECKOUT, commands, own_names


def shell_scripts() -> list[Path]:
    tracked = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=False).stdout
    files = [CHECKOUT / name for name in tracked.splitlines()] or list(CHECKOUT.glob("packaging/**/*"))
    return [file for file in files if file.is_file() and re.match(rb"#!\S*/(ba)?sh\b", file.read_bytes()[:30])]


def test_shell_scripts_are_clean() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck here")
    scripts = shell_scripts()
    assert CHECKOUT / "packaging/debian/postinst" in scripts
    done = subprocess.run(
        ["shellcheck", "-x", "-S", "warning", *map(str, scripts)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "" == done.stdout


def test_every_requirement_has_its_debian_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    assert len(setup["options"]["install_requires"].split()) == len(debian.requirements())
    assert set(debian.PACKAGES) == {name for name, _ in debian.requirements()}


def test_what_a_service_starts_is_installed() -> None:
    unit = (CHECKOUT / "packaging/systemd/nvc-cdi-refresh.service").read_text()
    assert "ExecStart=/usr/lib/nvc-py/cdi-refresh\n" in unit
    # DeviceAllow= and what implies it would shut the GPUs' nodes out.
    assert not re.search(r"^(Device|ProtectClock|PrivateDevices)", unit, re.MULTILINE)


def test_maintainer_scripts_can_be_executed() -> None:
    for name in ("postinst", "prerm", "postrm", "rtupdate", "compile"):
        assert os.access(CHECKOUT / "packaging/debian" / name, os.X_OK), name


def test_other_names_belong_to_our_own_commands() -> None:
    own = own_names()
    assert set(own) == {name for name, _ in commands()}
    assert all(name.startswith("nvc-") for name in own.values())
    assert "nvc-py" == own["nvidia-container-cli"]


def test_the_changelog_is_one_that_debian_reads(tmp_path: Path) -> None:
    file = tmp_path / "changelog"
    file.write_text(debian.changelog("1.0"))
    assert "nvc-py info" in file.read_text()
    if shutil.which("dpkg-parsechangelog") is None:
        pytest.skip("no dpkg-parsechangelog here")
    done = subprocess.run(
        ["dpkg-parsechangelog", "-l", str(file), "-S", "Version"], capture_output=True, text=True, check=True
    )
    assert ("1.0\n", "") == (done.stdout, done.stderr)
