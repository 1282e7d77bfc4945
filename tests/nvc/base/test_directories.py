"""What root makes with a umask of its own, as hardened machines have it, can be read by its readers."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.base import directories
from nvc.cdi import files as cdi_files
from nvc.engines import files as engine_files
from nvc.engines import hooksd, podman
from nvc.engines.config import EngineConfig
from nvc.engines.files import Files


@pytest.fixture(autouse=True)
def mask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def modes(root: Path, place: str) -> list[int]:
    """Of every directory between."""
    return [stat.S_IMODE((root / above).stat().st_mode) for above in (place, *Path(place).parents) if str(above) != "."]


def test_all_that_is_missing_is_readable_by_all(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    directories.make(f"{tmp_path}/mine/a/b")
    directories.make(f"{tmp_path}/mine/a/b")

    assert [0o755, 0o755, 0o700] == modes(tmp_path, "mine/a/b")


def test_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        directories.make(f"{tmp_path}/file")
    with pytest.raises(NotADirectoryError):
        directories.make(f"{tmp_path}/file/below")


def test_a_cdi_specification_can_be_read_by_engines_of_all_users(tmp_path: Path) -> None:
    cdi_files.save(f"{tmp_path}/etc/cdi/nvidia.yaml", "spec")

    assert [0o755, 0o755] == modes(tmp_path, "etc/cdi")


def test_a_hooks_file_can_be_read_by_engines_of_all_users(tmp_path: Path) -> None:
    config = EngineConfig(hooks=True, hooks_dir=f"{tmp_path}/oci/hooks.d", main_file=f"{tmp_path}/containers.conf")
    reader = Files()
    for edit in podman.plan(config, reader).edits:
        engine_files.write(edit, reader)

    assert [0o755, 0o755] == modes(tmp_path, "oci/hooks.d")
    assert 0o644 == stat.S_IMODE((tmp_path / "oci/hooks.d" / hooksd.FILE).stat().st_mode)
