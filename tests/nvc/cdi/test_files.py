"""Spec files: which devices engines see, what they ignore, and that a file is whole at every instant."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvc.base.errors import NvcError
from nvc.cdi import files
from nvc.cdi.files import Listing, listing


def spec(*names: str, kind: str = "v.com/c", version: str = "0.5.0") -> str:
    devices = "".join(f'- name: "{name}"\n  containerEdits: {{env: [A=b]}}\n' for name in names)
    return f"cdiVersion: {version}\nkind: {kind}\ndevices:\n{devices}"


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "etc", tmp_path / "run"
    first.mkdir()
    second.mkdir()
    return first, second


def listed(directories: Sequence[Path]) -> Listing:
    return listing(files.find([str(directory) for directory in directories]))


def test_devices_of_all_directories(directories: tuple[Path, Path]) -> None:
    (directories[0] / "a.yaml").write_text(spec("0", "all"))
    (directories[1] / "b.json").write_text('{"cdiVersion":"0.3.0","kind":"w/c","devices":[{"name":"x",')
    (directories[1] / "c.json").write_text(
        '{"cdiVersion":"0.3.0","kind":"w/c","devices":[{"name":"x","containerEdits":{"env":["A=b"]}}]}'
    )
    found = listed(directories)
    assert found.names == ("v.com/c=0", "v.com/c=all", "w/c=x")
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith(f"{directories[1]}/b.json: (file): line 1: not JSON")
    assert found.warnings[0].endswith("engines ignore the whole file")


def test_two_of_one_directory_hide_each_other(directories: tuple[Path, Path]) -> None:
    for name in ("a", "b"):
        (directories[0] / f"{name}.yaml").write_text(spec("0", name))
    found = listed(directories)
    assert found.names == ("v.com/c=a", "v.com/c=b")
    assert found.warnings == (
        f"v.com/c=0 is in {directories[0]}/a.yaml and in {directories[0]}/b.yaml: engines resolve neither",
    )


def test_a_later_directory_goes_first(directories: tuple[Path, Path]) -> None:
    for directory in directories:
        (directory / "a.yaml").write_text(spec("0"))
    assert listed(directories) == Listing(
        ("v.com/c=0",), (f"v.com/c=0 of {directories[0]}/a.yaml is hidden by that of {directories[1]}/a.yaml",)
    )


def test_other_names_and_directories_below_are_not_read(directories: tuple[Path, Path]) -> None:
    for name in ("a.yml", "b.txt", "c.yaml.tmp", ".d"):
        (directories[0] / name).write_text("not a spec")
    (directories[0] / "below").mkdir()
    (directories[0] / "below/a.yaml").write_text(spec("0"))
    assert listed((*directories, directories[0] / "missing")) == Listing((), ())


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)], ids=["fifo", "dir", "loop"]
)
def test_what_is_not_a_file_is_a_warning(directories: tuple[Path, Path], make: object) -> None:
    make(directories[0] / "a.yaml")  # type: ignore[operator]
    found = listed(directories)
    assert found.names == ()
    assert len(found.warnings) == 1


def test_saving_replaces_as_a_whole_and_for_all_to_read(tmp_path: Path) -> None:
    path = tmp_path / "new/cdi/nvidia.yaml"
    previous = os.umask(0o077)
    try:
        files.save(str(path), "one")
        before = path.open()
        files.save(str(path), "two")
    finally:
        os.umask(previous)
    assert path.read_text() == "two"
    assert before.read() == "one"
    before.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == ["nvidia.yaml"]


def test_a_link_is_replaced_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "a.yaml").symlink_to("target")
    files.save(str(tmp_path / "a.yaml"), "spec")
    assert (tmp_path / "target").read_text() == "mine"
    assert not (tmp_path / "a.yaml").is_symlink()


def test_failure_leaves_the_old_one_and_no_rest(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").mkdir()
    (tmp_path / "a.yaml/full").touch()
    with pytest.raises(NvcError, match="could not be written: is a directory"):
        files.save(str(tmp_path / "a.yaml"), "spec")
    assert os.listdir(tmp_path) == ["a.yaml"]
    with pytest.raises(NvcError, match="could not be written: file exists"):
        files.save(str(tmp_path / "a.yaml/full/b.yaml"), "spec")
