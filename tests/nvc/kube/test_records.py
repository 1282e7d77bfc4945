"""Claims' files beside each other: what is read once, what the lock is held for, when a file is on the disk."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from nvc.cdi.generate import GenerateOptions
from nvc.kube.edits import Template, template
from nvc.kube.records import PreparedClaim, PreparedDevice, Records
from nvc.model import Host
from tests.nvc.kube.conftest import Machine

Check = Callable[[Collection[PreparedClaim]], None]


@pytest.fixture
def made(sim: Callable[[str], Host]) -> Template:
    return template(Machine(sim("h100x8")).find(), sim("h100x8"), GenerateOptions())


def claim(number: int, made: Template) -> PreparedClaim:
    uuid = next(iter(made.whole))
    device = PreparedDevice(0, "gpu", "gpu-0", uuid, uuid)
    return PreparedClaim(f"5b0ddbc6-5a1e-4b4a-9b9a-{number:012}", "space", f"claim-{number}", (device,))


def seen_by(found: list[str]) -> Check:
    return lambda others: found.__setitem__(slice(None), sorted(one.name for one in others))


def test_files_of_other_claims_are_read_once(tmp_path: Path, made: Template) -> None:
    records, found = Records(str(tmp_path)), list[str]()
    for number in range(3):
        records.add(claim(number, made), made, seen_by(found))
    with open(records.path(claim(0, made).uid), "w") as file:  # its place and name stay
        file.write("damaged")
    records.add(claim(3, made), made, seen_by(found))
    assert ["claim-0", "claim-1", "claim-2"] == found
    assert records.remove(claim(1, made).uid)
    records.add(claim(4, made), made, seen_by(found))
    assert ["claim-0", "claim-2", "claim-3"] == found


def test_what_another_process_or_somebody_changed_is_seen(tmp_path: Path, made: Template) -> None:
    one, other, found = Records(str(tmp_path)), Records(str(tmp_path)), list[str]()
    one.add(claim(0, made), made, seen_by(found))
    other.add(claim(1, made), made, seen_by(found))
    assert ["claim-0"] == found
    # The same name, and nothing else that tells it from the one before but the number of changes.
    other.remove(claim(0, made).uid)
    other.add(claim(0, made).replace(name="made anew"), made, seen_by(found))
    one.add(claim(2, made), made, seen_by(found))
    assert ["claim-1", "made anew"] == found
    os.unlink(one.path(claim(1, made).uid))
    one.add(claim(3, made), made, seen_by(found))
    assert ["claim-2", "made anew"] == found


def test_nobody_waits_for_the_disk_of_another_claim(
    tmp_path: Path, made: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is an answer given before its file is there after a loss of power: the file, its name, the directory."""
    records, calls = Records(str(tmp_path)), list[str]()
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        with (tmp_path / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        calls.append("directory" if Path(f"/proc/self/fd/{descriptor}").resolve() == tmp_path else "file")
        fsync(descriptor)

    def note_rename(old: str, new: str) -> None:
        calls.append("name")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    records.add(claim(0, made), made, lambda _: None)
    assert ["file", "name", "directory"] == calls
    records.remove(claim(0, made).uid)
    assert ["file", "name", "directory", "directory"] == calls


def test_what_another_process_is_writing_is_not_cleaned_away(tmp_path: Path, made: Template) -> None:
    records = Records(str(tmp_path))
    left = tmp_path / ".nvc.dev-claim_x.yaml.0123.tmp"

    def clean(_: object) -> None:
        left.touch()
        Records(str(tmp_path)).clean()
        assert left.exists()

    records.add(claim(0, made), made, clean)
    assert Path(records.path(claim(0, made).uid)).exists()
    records.clean()
    assert not left.exists()


def test_a_claim_that_does_not_fit_leaves_nothing(tmp_path: Path, made: Template) -> None:
    records = Records(str(tmp_path))

    def refuse(_: object) -> None:
        raise ValueError("too much")

    with pytest.raises(ValueError, match="too much"):
        records.add(claim(0, made), made, refuse)
    assert [".lock"] == os.listdir(tmp_path)
