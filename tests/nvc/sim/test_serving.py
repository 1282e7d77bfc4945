"""What ``nvc-py sim start`` says when it cannot serve a machine's nodes. That it can: tests/system/test_manager.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base.errors import DetectionError, InputError, PrivilegeError
from nvc.driver.served import served_nodes
from nvc.model import Host
from nvc.sim import serving, templates
from tests.support import fuse

fuse.needed()


def test_a_directory_that_is_no_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a simulated machine"):
        serving.start(str(tmp_path))
    with pytest.raises(InputError, match="is not a simulated machine"):
        serving.stop(str(tmp_path))


def test_it_needs_root(made: Callable[[str], Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PrivilegeError, match="needs root") as caught:
        serving.start(made("h200").root)
    assert caught.value.hint == "sudo nvc-py sim start DIR"


def test_it_needs_the_compiled_program(made: Callable[[str], Host], monkeypatch: pytest.MonkeyPatch) -> None:
    place = made("h200").root
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/fuse")
    monkeypatch.setattr(templates, "DIRECTORIES", ("/nowhere",))
    with pytest.raises(DetectionError, match="nvc-sim-manager does not exist") as caught:
        serving.start(place)
    assert "make native" in caught.value.hint


def test_it_needs_fuse(made: Callable[[str], Host], monkeypatch: pytest.MonkeyPatch) -> None:
    place = made("h200").root
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    with pytest.raises(DetectionError, match="/dev/fuse does not exist"):
        serving.start(place)


def test_a_machine_that_nobody_serves_has_nothing_to_stop(made: Callable[[str], Host]) -> None:
    assert not serving.stop(made("h200").root)
    assert not serving.is_served(made("h200").root)


def test_served_nodes_are_regular_files_on_a_simulated_machine_only(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia0", "other"):
        (tmp_path / "dev" / name).touch()
    (tmp_path / "dev/nvidia1").symlink_to("nvidia0")
    root = str(tmp_path)
    assert served_nodes(Host(root=root, system=root, simulated="x")) == ("/dev/nvidia0", "/dev/nvidiactl")
    assert served_nodes(Host(root=root, system=root)) == ()
