"""Reading an image's ld.so.conf: as ldconfig does, and bounded."""

from __future__ import annotations

import fnmatch
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.cdi.below import Below
from nvc.cdi.loaderconf import FOLDERS, _matches, add_folders, directories, system_directories
from nvc.linux.root import Root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    return Root.open(str(tmp_path))


def write(root: Root, **files: str) -> None:
    for name, content in files.items():
        Path(root.path, "etc", name.replace("_", ".").replace("DIR", "ld.so.conf.d/")).write_text(content)


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_wildcards_are_those_of_the_shell(pattern: str, name: str) -> None:
    assert _matches(pattern, name) == fnmatch.fnmatchcase(name, pattern)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param("", [], id="empty"),
        pytest.param("/a\n/b/ # why\n# /c\n\n  /d  \n", ["/a", "/b", "/d"], id="comments-and-blanks"),
        pytest.param("/a:/b,/c /d\t/e\n", ["/a", "/b", "/c", "/d", "/e"], id="separators"),
        pytest.param("/a=libc5\nhwcap 0 nosegneg\n/a\n", ["/a"], id="types-and-hwcap"),
        pytest.param("include ld.so.conf.d/*.conf\n/z\n", ["/one", "/two", "/z"], id="relative-include"),
        pytest.param("include /etc/ld.so.conf.d/b.conf\n", ["/two"], id="include-of-one"),
        pytest.param("include /etc/missing/*.conf missing\ninclude /etc/ld.so.conf\n/z", ["/z"], id="loop-and-missing"),
        pytest.param("/\n", ["/"], id="root"),
    ],
)
def test_what_is_named(root: Root, content: str, expected: list[str]) -> None:
    write(root, ld_so_conf=content, DIRa_conf="/one\n", DIRb_conf="/two\n", DIRc_txt="/three\n")
    assert directories(root) == expected


def test_what_a_start_named_stays_named_while_another_one_reads_it(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken away first and named again: the ldconfig of a start beside this one made a cache without it."""
    write(root, ld_so_conf="include ld.so.conf.d/*.conf\n")
    below, seen = Below(root, os.geteuid(), os.getegid()), []
    assert add_folders(below, ["/usr/lib/driver"]) == ()
    monkeypatch.setattr(Below, "_put", lambda *_: seen.append("/usr/lib/driver" in directories(root)))
    monkeypatch.setattr(Below, "remove", lambda _, path: seen.append(path != FOLDERS))
    add_folders(below, ["/usr/lib/driver"])
    assert seen
    assert all(seen)


def test_huge_and_endless_files_end(root: Root) -> None:
    write(root, ld_so_conf="include ld.so.conf.d/*\n/z\n", DIRbig="/x\n" * 100_000)
    for index in range(400):
        Path(root.path, f"etc/ld.so.conf.d/{index}").write_text(f"include {index + 1}\n/d{index}\n")
    found = directories(root)
    assert found[-1] == "/z"
    assert "/x" not in found
    assert 100 < len(found) < 300


def test_system_directories_follow_the_distribution(root: Root) -> None:
    assert system_directories(root) == ("/lib", "/usr/lib", "/lib64", "/usr/lib64")
    Path(root.path, "etc/debian_version").touch()
    assert system_directories(root)[-2:] == ("/lib", "/usr/lib")
    assert "linux-gnu" in system_directories(root)[0]


def test_a_configuration_holds_no_start(tmp_path: Path) -> None:
    """Thousands of patterns, each of them for a directory with thousands of names."""
    place = tmp_path / "etc/names"
    place.mkdir(parents=True)
    for index in range(5000):
        (place / f"n{index:05}").touch()
    lines = [f"include /etc/names/{'x' * (index % 7)}*{index}" for index in range(2000)]
    (tmp_path / "etc/ld.so.conf").write_text("\n".join(["/first", *lines, "/last"]))
    with Root.open(str(tmp_path)) as root:
        start = time.process_time()
        found = directories(root)
        assert time.process_time() - start < 3
    assert (found[0], found[-1]) == ("/first", "/last")
