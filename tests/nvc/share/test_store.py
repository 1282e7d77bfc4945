"""The host's record of containers with a share."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.base.errors import ContainerError, InputError, PrivilegeError
from nvc.linux import const, fileflags
from nvc.share import entry as entry_module
from nvc.share import limits, region, store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare

LIMITS = Limits((ResolvedGpu("GPU-b8058b66-3950-5eb2-94c2-df90166ee487", -1, 1 << 30),), driver="580.1")


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "nvc" / "share")


@pytest.fixture
def ended() -> Iterator[int]:
    """The number of a process that has ended, and was not reaped: no other can have it meanwhile."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.wait()


@pytest.fixture
def make(directory: str) -> Callable[..., StoredShare]:
    def create(container: str, pid: int = 0, started: int = -2, preload: bytes = b"", name: str = "") -> StoredShare:
        begun = started if started != -2 else store.start_time(pid)
        record = StoredShare(store.key_of(container, pid, begun), container, pid, begun, text="mem=1Gi", name=name)
        store.create(record, LIMITS, preload, directory=directory)
        return record

    return create


Make = Callable[..., StoredShare]


def test_an_entry_has_its_files_with_their_modes(make: Make, directory: str) -> None:
    before = os.umask(0o077)
    try:
        make("abc", os.getpid(), preload=b"/usr/lib/nvc/x\n")
    finally:
        os.umask(before)
    entry = Path(directory, "abc")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in entry.iterdir()}
    wanted = {"limits": 0o600, "limits.copy": 0o644, "region": 0o666, "preload": 0o644, "container.json": 0o600}
    assert wanted == modes
    assert (0o700, 0o711) == tuple(stat.S_IMODE(path.stat().st_mode) for path in (entry, entry.parent))
    assert entry.joinpath("preload").read_bytes() == b"/usr/lib/nvc/x\n"
    assert entry.joinpath("region").stat().st_size == region.SIZE
    assert limits.decode(entry.joinpath("limits").read_bytes()) == LIMITS


def test_what_was_stored_is_found_by_id_its_beginning_and_pid(make: Make, directory: str) -> None:
    record = make("abcdef", os.getpid())
    make("abxyz", os.getppid())
    for word in ("abcdef", "abc", str(os.getpid())):
        with store.find(word, directory) as entry:
            assert record == entry.record
            assert LIMITS == entry.limits()


def test_what_a_container_does_to_its_copy_changes_nothing_on_the_host(make: Make, directory: str) -> None:
    """Attack: root in a container writes the mounted file, or takes a lease on it, which keeps writers out."""
    make("abc", os.getpid())
    copy = Path(directory, "abc", "limits.copy")
    with store.find("abc", directory) as entry, copy.open("rb") as mounted:
        copy.write_bytes(bytes(limits.SIZE))
        assert entry.limits() == LIMITS
        changed = LIMITS.replace(paused=True)
        entry.change(changed)
        assert (entry.limits(), limits.decode(copy.read_bytes())) == (changed, changed)
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            fcntl.fcntl(mounted, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            with pytest.raises(
                ContainerError, match=r"limits\.copy, the container's copy of its limits: resource temp"
            ):
                entry.change(LIMITS)
            assert entry.limits() == LIMITS, "the host's file is written first"
        finally:
            fcntl.fcntl(mounted, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            signal.signal(signal.SIGIO, signal.SIG_DFL)


@pytest.mark.parametrize("word", ["ab", "", "x", "99999999999999999999", "²"])
def test_a_word_for_none_or_several_is_a_message(word: str, make: Make, directory: str) -> None:
    make("abcdef", os.getpid())
    make("abxyz", os.getppid())
    with pytest.raises(InputError) as caught:
        store.find(word, directory)
    assert "abcdef" in caught.value.hint


def test_what_the_engine_calls_it_finds_a_container(make: Make, directory: str) -> None:
    make("abcdef", os.getpid(), name="team/web-0/server")
    make("abxyz", os.getppid(), name="//notebook")
    for word in ("team/web-0/server", "web-0/server", "server"):
        with store.find(word, directory) as entry:
            assert entry.record.key == "abcdef"
    with store.find("notebook", directory) as entry:
        assert entry.record.key == "abxyz"
    for word in ("erver", "team", "web-0", "notebok", "/"):
        with pytest.raises(InputError, match="no container"):
            store.find(word, directory)
    with pytest.raises(InputError) as caught:
        store.find("notebok", directory)
    assert caught.value.hint == "did you mean notebook? there are: abcdef (team/web-0/server), abxyz (notebook)"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("abcdef", id="id"),
        pytest.param("abc", id="beginning"),
        pytest.param(str(os.getpid()), id="pid"),  # another in each worker of xdist: not in the test's name
        pytest.param("server", id="name"),
    ],
)
def test_no_name_goes_before_another_containers_id_or_pid(name: str, make: Make, directory: str) -> None:
    """Attack: a tenant calls its container as the beginning of a neighbour's id, its pid, or its name."""
    make("abcdef", os.getpid(), name="server")
    make("xyz", os.getppid(), name=f"/{name}")
    if name == "abcdef":
        with store.find(name, directory) as entry:
            assert entry.record.key == "abcdef", "a whole id is this container's"
        return
    with pytest.raises(store.AmbiguousContainer) as caught:
        store.find(name, directory)
    assert "abcdef (server)" in caught.value.hint and f"xyz ({name})" in caught.value.hint


def test_without_a_store_there_are_no_entries(directory: str) -> None:
    assert ([], []) == store.entries(directory)
    assert [] == store.clean(directory)
    assert not store.remove("abc", directory)
    with pytest.raises(InputError, match="no container"):
        store.find("abc", directory)


def test_a_living_container_keeps_its_entry_and_an_ended_one_gives_way(make: Make, directory: str, ended: int) -> None:
    make("alive", os.getpid())
    with pytest.raises(ContainerError, match="has a share already"):
        make("alive", os.getpid())
    make("gone", os.getpid(), started=1)
    make("gone", os.getpid(), started=2)
    assert ["alive", "gone"] == [entry.record.key for entry in store.entries(directory)[0]]
    assert ["gone"] == store.clean(directory)
    assert ["alive"] == os.listdir(directory)


def test_an_ended_container_is_not_found(make: Make, directory: str) -> None:
    make("gone", os.getpid(), started=1)
    with pytest.raises(InputError, match="no container"):
        store.find("gone", directory)


def test_a_container_without_a_name_is_known_by_its_process(make: Make, directory: str) -> None:
    for name in ("", "../../etc", "a/b", ".hidden", "x" * 200, "é"):
        key = store.key_of(name, 7, 8)
        assert "pid-7-8" == key
    with pytest.raises(ValueError, match="cannot be the name"):
        store.create(StoredShare("../x"), LIMITS, b"", directory=directory)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda entry: (entry / "container.json").write_text("{"), id="cut short"),
        pytest.param(lambda entry: (entry / "container.json").write_text('{"key": "other"}'), id="of another"),
        pytest.param(lambda entry: (entry / "container.json").write_bytes(b"\0" * (1 << 20)), id="too large"),
        pytest.param(lambda entry: (entry / "container.json").chmod(0o666), id="others may write the record"),
        pytest.param(lambda entry: entry.chmod(0o777), id="others may write the directory"),
        pytest.param(lambda entry: os.chown(entry, 1, 1), id="belongs to another", marks=pytest.mark.root),
        pytest.param(lambda entry: (entry / "container.json").unlink(), id="no record"),
        pytest.param(
            lambda entry: (entry / "container.json").unlink() or os.mkfifo(entry / "container.json"), id="a pipe"
        ),
        pytest.param(
            lambda entry: (entry / "container.json").rename(entry / "x") or (entry / "container.json").symlink_to("x"),
            id="a link",
        ),
    ],
)
def test_a_damaged_entry_is_passed_over_with_a_warning(
    damage: Callable[[Path], object], make: Make, directory: str
) -> None:
    make("good", os.getpid())
    make("broken", os.getppid())
    damage(Path(directory, "broken"))
    found, warnings = store.entries(directory)
    assert ["good"] == [entry.record.key for entry in found]
    assert 1 == len(warnings)
    assert f"{directory}/broken" in warnings[0]
    assert [] == store.clean(directory)


def test_a_link_in_place_of_an_entry_is_no_entry(make: Make, directory: str, tmp_path: Path) -> None:
    make("good", os.getpid())
    Path(directory, "link").symlink_to("good")
    found, warnings = store.entries(directory)
    assert (["good"], 1) == ([entry.record.key for entry in found], len(warnings))


def test_a_store_that_others_may_write_is_not_used(make: Make, directory: str) -> None:
    make("good", os.getpid())
    Path(directory).chmod(0o777)
    with pytest.raises(PrivilegeError, match="is not used"):
        store.entries(directory)


@pytest.mark.parametrize("name", ["limits", "region"])
def test_a_replaced_file_is_not_opened(name: str, make: Make, directory: str) -> None:
    make("abc", os.getpid())
    file = Path(directory, "abc", name)
    with store.find("abc", directory) as entry:
        opening = entry.open_limits if name == "limits" else entry.open_region
        os.close(opening())
        os.link(file, f"{file}2")
        with pytest.raises(ValueError, match="names"):
            opening()
        file.unlink()
        file.symlink_to("/etc/passwd")
        with pytest.raises(OSError, match="symbolic"):
            opening()


def test_a_change_is_in_force_for_a_process_with_the_file_open(make: Make, directory: str) -> None:
    make("abc", os.getpid())
    descriptor = os.open(f"{directory}/abc/limits", os.O_RDONLY)
    with store.find("abc", directory) as entry:
        entry.lock()
        entry.change(LIMITS.replace(paused=True))
    assert limits.read(descriptor).paused
    os.close(descriptor)


def test_one_writer_at_a_time(make: Make, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_module, "_LOCK_TIMEOUT_S", 0.05)
    make("abc", os.getpid())
    with store.find("abc", directory) as first, store.find("abc", directory) as second:
        first.lock()
        with pytest.raises(ContainerError, match="is locked"):
            second.lock()
    with store.find("abc", directory) as third:
        third.lock()


def test_what_a_killed_writer_left_goes(make: Make, directory: str) -> None:
    make("abc", os.getpid())
    leftover = Path(directory, ".new-0123")
    leftover.mkdir()
    leftover.joinpath("limits").write_text("half")
    Path(directory, ".old-file").write_text("")
    assert (["abc"], []) == ([entry.name for entry in store.entries(directory)[0]], store.entries(directory)[1])
    assert [] == store.clean(directory)
    assert ["abc"] == os.listdir(directory)


def test_a_failure_leaves_nothing(directory: str) -> None:
    bad = LIMITS.replace(container="x" * 64)
    with pytest.raises(ValueError, match="does not fit"):
        store.create(StoredShare("abc"), bad, b"", directory=directory)
    assert [] == os.listdir(directory)


def test_many_at_once_make_and_remove_whole_entries(directory: str) -> None:
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(5):
                key = f"c{number % 4}"
                try:
                    store.create(StoredShare(key, key, os.getpid(), 1), LIMITS, b"", directory=directory)
                    for entry in store.entries(directory)[0]:
                        with entry:
                            entry.limits()
                except FileNotFoundError:
                    pass  # the entry's files went between two calls: as they may
                store.clean(directory)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == problems
    assert [] == os.listdir(directory)


# What a container with CAP_LINUX_IMMUTABLE does to the files that it can write.


def flagged(path: Path, flag: int) -> None:
    """Set a flag of the file; the test is skipped where the file system has none."""
    with path.open("rb") as file:
        try:
            flags = int.from_bytes(fcntl.ioctl(file, const.FS_IOC_GETFLAGS, bytes(8))[:4], "little")
            fcntl.ioctl(file, const.FS_IOC_SETFLAGS, (flags ^ flag).to_bytes(8, "little"))
        except OSError as error:
            pytest.skip(f"no flags on the file system of {path}: {error.strerror}")


@pytest.fixture(params=["/tmp", "/dev/shm"])
def flags_directory(request: pytest.FixtureRequest) -> Iterator[str]:
    """A store on the file system of /tmp, and on tmpfs, which /run usually is."""
    with tempfile.TemporaryDirectory(dir=request.param) as path:
        yield f"{path}/nvc/share"
        for file in Path(path).rglob("*"):
            if file.is_file():
                directory = os.open(file.parent, os.O_DIRECTORY)
                fileflags.unlink(directory, file.name)
                os.close(directory)


@pytest.mark.root
@pytest.mark.parametrize("flag", [const.FS_IMMUTABLE_FL, const.FS_APPEND_FL], ids=["immutable", "append-only"])
def test_a_flag_on_a_file_does_not_keep_an_entry(flag: int, flags_directory: str, ended: int) -> None:
    """Attack: the next container with a share could not be made, and the files stayed for good."""
    for key in ("abc", "def"):
        store.create(StoredShare(key, key, ended, 1), LIMITS, b"", directory=flags_directory)
    for key, name in (("abc", "region"), ("def", "limits.copy"), ("def", "preload")):
        flagged(Path(flags_directory, key, name), flag)
    store.create(
        StoredShare("abc", "abc", os.getpid(), store.start_time(os.getpid())), LIMITS, b"", directory=flags_directory
    )
    assert store.clean(flags_directory) == ["def"]
    assert os.listdir(flags_directory) == ["abc"]
    flagged(Path(flags_directory, "abc", "region"), flag)
    assert store.remove("abc", flags_directory)
    assert os.listdir(flags_directory) == []


def test_an_entry_that_cannot_be_removed_is_in_nobodys_way(
    make: Make, directory: str, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("abc", ended, 1)

    def refuse(directory: int, name: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(fileflags, "unlink", refuse)
        assert store.clean(directory) == ["abc"]
        make("abc", os.getpid())
        assert [name for name in os.listdir(directory) if not name.startswith(".old-")] == ["abc"]
    store.clean(directory)
    assert os.listdir(directory) == ["abc"]


@pytest.mark.root
def test_only_regular_files_are_opened_for_their_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe or a device that was put there is not touched, and nothing waits for it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    directory = os.open(tmp_path, os.O_DIRECTORY)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        for name in ("pipe", "link"):
            with pytest.raises(PermissionError):
                fileflags.unlink(directory, name)
    os.close(directory)
