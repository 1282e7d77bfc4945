from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nvc.driver.locate import host_path, is_missing, open_file, read_bytes, read_text, resolve, status


@pytest.fixture
def tree(tmp_path: Path) -> str:
    """A root with links of every kind, and a file beside it that must never be reached."""
    root = tmp_path / "root"
    for directory in ("usr/lib/x", "var", "run/d", "a"):
        (root / directory).mkdir(parents=True)
    (root / "usr/lib/x/f").write_text("inside")
    (root / "file").write_text("file")
    (tmp_path / "secret").write_text("outside")
    for name, text in {
        "lib": "usr/lib",
        "abs": "/usr",
        "var/run": "/run",
        "up": "../../../../secret",
        "up-abs": "/../../secret",
        "loop": "loop2",
        "loop2": "loop",
        "chain": "chain1",
        "chain1": "lib/x",
        "dangling": "/nonexistent/dir",
        "a/dots": "./.././usr//lib/",
    }.items():
        (root / name).symlink_to(text)
    return str(root)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("", "/"),
        ("/usr/lib/x/f", "/usr/lib/x/f"),
        ("/lib/x/f", "/usr/lib/x/f"),
        ("lib//x/./f", "/usr/lib/x/f"),
        ("/abs/lib/x", "/usr/lib/x"),
        ("/var/run/d", "/run/d"),
        ("/chain/f", "/usr/lib/x/f"),
        ("/a/dots/x", "/usr/lib/x"),
        ("/a/../file", "/file"),
        ("/../../file", "/file"),
        ("/lib/../lib/x", "/usr/lib/x"),
    ],
)
def test_links_are_followed_below_the_root(tree: str, path: str, expected: str) -> None:
    assert expected == resolve(tree, path)
    assert expected == resolve(tree + "/", path)


@pytest.mark.parametrize("path", ["/up", "/up-abs", "/usr/lib/../../../secret", "/var/run/../../secret"])
def test_nothing_leads_out(tree: str, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        resolve(tree, path)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("/loop", errno.ELOOP),
        ("/dangling", errno.ENOENT),
        ("/none/x", errno.ENOENT),
        ("/file/x", errno.ENOTDIR),
        ("/usr/" + "n" * 300, errno.ENAMETOOLONG),
    ],
)
def test_failures_name_the_driver_path(tree: str, path: str, number: int) -> None:
    with pytest.raises(OSError) as caught:
        resolve(tree, path)

    assert (number, path) == (caught.value.errno, caught.value.filename)


def test_a_long_chain_of_links_ends(tree: str) -> None:
    for number in range(60):
        (Path(tree) / f"l{number}").symlink_to(f"l{number + 1}")
    (Path(tree) / "l60").write_text("end")

    assert "/l60" == resolve(tree, "/l21")
    with pytest.raises(OSError, match="symbolic links"):
        resolve(tree, "/l0")


def test_the_host_itself_is_a_root() -> None:
    assert os.path.realpath("/proc/self/mounts").startswith("/proc")
    assert os.path.realpath("/usr/bin") == resolve("/", "/usr/bin")
    assert ("/a", "/r/a", "/r/a") == (host_path("/", "/a"), host_path("/r", "/a"), host_path("/r/", "/a"))
    assert os.stat("/usr/bin").st_ino == status("/", "/usr/bin").st_ino


def test_status_follows_links(tree: str) -> None:
    assert os.stat(f"{tree}/usr/lib/x/f").st_ino == status(tree, "/chain/f").st_ino


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOENT, True), (errno.EACCES, True), (errno.EIO, False), (errno.ENOMEM, False)]
)
def test_what_counts_as_missing(number: int, expected: bool) -> None:
    assert expected is is_missing(OSError(number, "x"))


def test_only_regular_files_are_read(tree: str) -> None:
    os.mkfifo(f"{tree}/fifo")

    for path in (f"{tree}/fifo", f"{tree}/usr", "/dev/null"):
        with pytest.raises(OSError, match="not a regular file"):
            open_file(path)
    assert "inside" == read_text(f"{tree}/lib/x/f")


def test_reading_is_limited(tree: str) -> None:
    assert b"file" == read_bytes(f"{tree}/file", 4)
    with pytest.raises(OSError, match="too large"):
        read_bytes(f"{tree}/file", 3)
    assert "Character devices" in read_text("/proc/devices")
