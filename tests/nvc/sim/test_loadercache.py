"""What is said when the loader cache cannot be made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nvc.base.errors import DetectionError
from nvc.sim.loadercache import find_ldconfig, make_cache


def program(directory: Path, text: str) -> str:
    path = directory / "ldconfig"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("echo no space >&2; exit 1", "could not make the loader cache: no space", id="says why"),
        pytest.param("exit 3", "could not make the loader cache: exit code 3", id="says nothing"),
        pytest.param("exit 0", "could not make the loader cache", id="makes nothing"),
    ],
)
def test_a_failing_ldconfig_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DetectionError, match=message):
        make_cache(str(tmp_path), ("/usr/lib/x",), ldconfig=program(tmp_path, text))


def test_a_missing_ldconfig_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(DetectionError, match="ldconfig is not installed") as caught:
        make_cache(str(tmp_path), (), ldconfig=None)
    assert "libc-bin" in caught.value.hint
    with pytest.raises(DetectionError, match="no such file"):
        make_cache(str(tmp_path), (), ldconfig=str(tmp_path / "none"))


def test_ldconfig_is_found_without_sbin_in_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = find_ldconfig()
    assert found is not None
    assert "ldconfig" in subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
