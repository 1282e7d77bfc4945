"""Files on a disk: links, modes, owners, and every way in which a disk can say no."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nvc.base.errors import InputError, NvcError, PrivilegeError
from nvc.engines import files
from nvc.engines.config import FileEdit, Plan
from nvc.engines.files import Files, backup_path, carry_out, write

PROGRAMS = Path(__file__).parent / "programs"
OLD, NEW = "old text, ü\r\n", "new text\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "daemon.json"
    path.write_bytes(OLD.encode())
    return path


def edit(path: Path, backup: str = "make") -> FileEdit:
    return FileEdit(str(path), OLD, NEW, backup)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_written_with_a_backup_and_nothing_else(file: Path) -> None:
    write(edit(file), Files())

    assert (file.read_bytes(), Path(f"{file}.nvc-backup").read_bytes()) == (NEW.encode(), OLD.encode())
    assert names(file.parent) == ["daemon.json", "daemon.json.nvc-backup"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o4755])
def test_the_mode_stays(file: Path, mode: int) -> None:
    file.chmod(mode)
    write(edit(file), Files())

    assert {stat.S_IMODE(os.stat(path).st_mode) for path in (file, f"{file}.nvc-backup")} == {mode}


@pytest.mark.root
def test_the_owner_stays(file: Path) -> None:
    os.chown(file, 1234, 4321)
    write(edit(file), Files())

    assert (1234, 4321) == (file.stat().st_uid, file.stat().st_gid)


def test_attributes_stay(file: Path) -> None:
    try:
        os.setxattr(file, "user.nvc", b"label")
    except OSError:
        pytest.skip("this file system has no attributes")
    write(edit(file), Files())

    assert os.getxattr(file, "user.nvc") == b"label"


def test_a_new_file_is_readable_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "conf.d" / "99.toml"
    old = os.umask(0o077)
    try:
        write(FileEdit(str(path), None, NEW, "drop"), Files())
    finally:
        os.umask(old)

    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (NEW, 0o644)


@pytest.mark.parametrize("chain", [1, 3])
def test_a_link_is_followed_and_stays(file: Path, tmp_path: Path, chain: int) -> None:
    link = file
    (tmp_path / "links").mkdir()
    for number in range(chain):
        new = tmp_path / "links" / f"link{number}"
        new.symlink_to(os.path.relpath(link, new.parent))
        link = new
    write(edit(link), Files())

    assert link.is_symlink()
    assert file.read_text() == NEW
    assert names(tmp_path) == ["daemon.json", "daemon.json.nvc-backup", "links"]


def test_a_link_to_nothing_gets_its_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("target")
    assert Files().read(str(link)) is None
    write(FileEdit(str(link), None, NEW, "drop"), Files())

    assert (link.is_symlink(), (tmp_path / "target").read_text()) == (True, NEW)


def test_a_link_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(NvcError, match="too many levels") as caught:
        Files().read(str(tmp_path / "a"))
    assert "loop" in caught.value.hint


def test_removed_with_its_backup(file: Path) -> None:
    Path(f"{file}.nvc-backup").write_text("x")
    write(FileEdit(str(file), OLD, None, "drop"), Files())

    assert names(file.parent) == []


def test_no_backup_lies_where_every_file_is_read() -> None:
    """CRI-O reads all files in crio.conf.d, whatever they are called."""
    assert backup_path("/nowhere/crio.conf.d/99.toml") == "/nowhere/99.toml.nvc-backup"


def test_the_backup_is_beside_the_file_and_not_the_link(file: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(file)

    assert backup_path(str(tmp_path / "link")) == f"{file}.nvc-backup"


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EBUSY])
def test_a_disk_that_says_no(file: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    if call == "write":
        monkeypatch.setattr(files, "_copy_attributes", refuse)
    else:
        monkeypatch.setattr(files.os, call, refuse)
    with pytest.raises(NvcError, match=os.strerror(number).lower()) as caught:
        write(edit(file), Files())

    assert caught.value.hint
    assert file.read_bytes() == OLD.encode()
    assert not [name for name in names(file.parent) if name.endswith("new")]


@pytest.mark.root
def test_a_full_disk(tmp_path: Path) -> None:
    """For real: a file system of 16 KiB in a mount namespace of its own."""
    script = 'mount -t tmpfs -o size=16k none "$0" && cd "$0" && printf old >f && exec "$1" "$2"'
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, str(tmp_path), sys.executable, PROGRAMS / "write_on_full_disk.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == (
        "cannot write f: no space left on device | the file was not changed; free space and run this again | old | "
        "['f', 'f.nvc-backup']\n"
    ), ran.stderr


@pytest.mark.root
@pytest.mark.parametrize("locked", ["directory", "file"])
def test_without_the_right_to(file: Path, locked: str) -> None:
    file.chmod(0o600 if locked == "file" else 0o644)
    for directory in file.parents:
        if directory.stat().st_mode & 0o005 != 0o005:
            directory.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, PROGRAMS / "write_without_right.py", file, OLD], capture_output=True, text=True, check=False
    )

    verb = "read" if locked == "file" else "write"
    assert ran.stdout == f"permission error: cannot {verb} {file}: permission denied | run this as root (sudo)\n", (
        ran.stderr
    )


def test_a_file_that_somebody_changed_meanwhile(file: Path) -> None:
    file.write_text("something else")
    with pytest.raises(NvcError, match="has changed in the meantime"):
        write(edit(file), Files())

    assert names(file.parent) == ["daemon.json"]


def test_what_a_killed_run_left_is_no_obstacle(file: Path) -> None:
    (file.parent / ".daemon.json.nvc-new").write_text("half")
    write(edit(file), Files())

    assert names(file.parent) == ["daemon.json", "daemon.json.nvc-backup"]


def add_line(path: Path, line: str, reader: Files) -> None:
    """As a command does it: the plan adds a line to what the file has."""

    def plan() -> Plan:
        before = reader.read(str(path)) or ""
        edits = () if line in before.splitlines() else (FileEdit(str(path), before, f"{before}{line}\n", "keep"),)
        return Plan(edits, (str(path),))

    carry_out(plan, reader, lambda one: None)


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)

    def work(name: str) -> None:
        start.wait()
        for number in range(25):
            add_line(file, f"{name}{number}", Files())

    workers = [context.Process(target=work, args=(name,)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(50)

    assert [worker.exitcode for worker in workers] == [0] * 4
    assert sorted(file.read_text().split()) == sorted(f"{name}{number}" for name in "abcd" for number in range(25))
    assert names(tmp_path) == ["file"]


class Interrupted(Files):
    """Between the last look at a file and its replacement another process writes."""

    def __init__(self, looks: int, path: Path) -> None:
        self.looks, self.path = looks, path

    def read(self, path: str) -> str | None:
        found = super().read(path)
        self.looks -= 1
        if self.looks == 0:
            write(FileEdit(str(self.path), found, "another's\n", "keep"), Files())
        return found


@pytest.mark.parametrize("looks", [1, 2])
def test_what_another_process_wrote_in_between_stays(tmp_path: Path, looks: int) -> None:
    file = tmp_path / "file"
    file.write_text("first\n")

    add_line(file, "mine", Interrupted(looks, file))

    assert file.read_text() == "another's\nmine\n"


def test_a_process_that_keeps_the_lock_is_named_with_its_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    place = file.parent / ".daemon.json.nvc-new"
    with place.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(NvcError, match="another process does") as caught:
            write(edit(file), Files())

    assert str(place) in caught.value.hint
    assert file.read_bytes() == OLD.encode()


@pytest.mark.parametrize("kind", ["directory", "fifo", "device", "large", "latin-1", "utf-16"])
def test_what_is_no_text_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        content = {"large": b" " * (files.LIMIT + 1), "latin-1": b'{\n"a": "\xfc"}', "utf-16": "{}".encode("utf-16")}
        path.write_bytes(content[kind])
    with pytest.raises(InputError) as caught:
        Files().read(str(path))

    assert str(path) in caught.value.message
    assert caught.value.hint


def test_a_missing_right_is_a_privilege_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(files.os, "open", refuse)
    with pytest.raises(PrivilegeError):
        Files().read("/etc/docker/daemon.json")


def test_listing_is_sorted_and_has_hidden_files_but_no_directories(tmp_path: Path) -> None:
    for name in ("b", ".a", "c"):
        (tmp_path / name).touch()
    (tmp_path / "d").mkdir()

    assert Files().listing(f"{tmp_path}/*") == [f"{tmp_path}/{name}" for name in (".a", "b", "c")]
