"""Tegra's mount lists: what is a row, and what is said about what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.formats import FormatError
from nvc.formats.csvmounts import MAX_ROWS, MAX_SIZE, TYPES, CsvRow, parse


def one(line: str) -> str:
    """The reason why a line is not a row; it must be one, and name the place."""
    rows, problems = parse(line.encode("utf-8", "surrogateescape"), "a.csv")
    assert rows == ()
    (problem,) = problems
    place, _, reason = problem.partition(": ")
    assert place == "a.csv:1"
    return reason


def test_rows_of_every_type_with_their_places() -> None:
    text = b"# NVIDIA's\n\nlib, /usr/lib/a.so\r\n  dir,/usr/lib/b/\n\tdev , /dev/nvmap\nsym,/usr/lib//c.so\n"

    assert parse(text, "l4t.csv") == (
        (
            CsvRow("lib", "/usr/lib/a.so", "l4t.csv:3"),
            CsvRow("dir", "/usr/lib/b", "l4t.csv:4"),
            CsvRow("dev", "/dev/nvmap", "l4t.csv:5"),
            CsvRow("sym", "/usr/lib/c.so", "l4t.csv:6"),
        ),
        (),
    )


def test_the_path_is_all_after_the_first_comma() -> None:
    rows, _ = parse(b"lib, /usr/lib/a, b.so", "a.csv")
    assert [row.path for row in rows] == ["/usr/lib/a, b.so"]


def test_a_row_that_comes_twice_counts_once() -> None:
    rows, problems = parse(b"lib, /a.so\nlib,/a.so\nsym, /a.so\n", "a.csv")
    assert [(row.type, row.place) for row in rows] == [("lib", "a.csv:1"), ("sym", "a.csv:3")]
    assert problems == ()


def test_good_rows_around_a_bad_one_are_kept() -> None:
    rows, problems = parse(b"lib, /a.so\nbroken\nlib, /b.so\n", "a.csv")
    assert [row.path for row in rows] == ["/a.so", "/b.so"]
    assert problems == ("a.csv:2: no comma",)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param("lib", "no comma", id="no-comma"),
        pytest.param("/usr/lib/a.so", "no comma", id="no-type"),
        pytest.param("lib /usr/lib/a.so", "no comma", id="blank-for-comma"),
        pytest.param(", /usr/lib/a.so", "unknown type ''", id="empty-type"),
        pytest.param("LIB, /usr/lib/a.so", "unknown type 'LIB'", id="upper-case"),
        pytest.param("file, /usr/lib/a.so", "unknown type 'file'", id="unknown-type"),
        pytest.param("lib,", "not an absolute path: ''", id="no-path"),
        pytest.param("lib, usr/lib/a.so", "not an absolute path", id="relative"),
        pytest.param("lib, //usr/lib/a.so", "not an absolute path", id="two-slashes"),
        pytest.param("lib, /usr/lib/../../etc/shadow", "'..' in the path", id="dot-dot"),
        pytest.param("lib, /usr/lib/a\x1b[2J.so", "a control character", id="terminal"),
        pytest.param("lib, /usr/lib/a\x7f.so", "a control character", id="delete"),
        pytest.param("dir, /", "a dir cannot be at /", id="everything"),
        pytest.param("lib, /", "a lib cannot be at /", id="root-as-file"),
        pytest.param("dir, /./", "a dir cannot be at /", id="root-in-disguise"),
        pytest.param("dir, /etc", "would hide a whole directory", id="etc"),
        pytest.param("dir, /usr/.", "would hide a whole directory", id="usr-in-disguise"),
        pytest.param("dir, /usr/lib", "would hide a whole directory", id="usr-lib"),
        pytest.param("dir, /proc", "a dir cannot be at /proc", id="proc"),
        pytest.param("dir, /proc/self", "a dir cannot be at /proc/self", id="below-proc"),
        pytest.param("sym, /proc/self/exe", "a sym cannot be at /proc/self/exe", id="link-in-proc"),
        pytest.param("lib, /sys/power/state", "a lib cannot be at", id="sys"),
        pytest.param("dir, /dev", "a dir cannot be at /dev", id="all-devices"),
        pytest.param("lib, /dev/sda", "a lib cannot be at /dev/sda", id="device-as-file"),
        pytest.param("dev, /dev", "a dev cannot be at /dev", id="dev-itself"),
        pytest.param("dev, /tmp/sda", "a dev cannot be at /tmp/sda", id="node-elsewhere"),
    ],
)
def test_what_is_no_row_is_named(line: str, reason: str) -> None:
    assert reason in one(line)


def test_neighbours_of_the_kernels_directories_are_ordinary() -> None:
    rows, problems = parse(b"lib, /process/a\ndir, /devices/b\nsym, /system/c\n", "a.csv")
    assert (len(rows), problems) == (3, ())


def test_what_is_no_text_is_refused_with_the_line() -> None:
    with pytest.raises(FormatError, match=r"a\.csv, line 2: not text"):
        parse(b"lib, /a\n\x7fELF\0", "a.csv")


def test_size_and_number_have_limits() -> None:
    with pytest.raises(FormatError, match="longer than"):
        parse(b"#" * (MAX_SIZE + 1), "a.csv")
    many = b"".join(b"lib, /a%d\n" % number for number in range(MAX_ROWS + 1))
    with pytest.raises(FormatError, match=f"line {MAX_ROWS + 1}: more than"):
        parse(many, "a.csv")


def test_bytes_that_are_not_utf_8_come_through() -> None:
    rows, _ = parse(b"lib, /usr/lib/\xff.so\n", "a.csv")
    assert rows[0].path.encode("utf-8", "surrogateescape") == b"/usr/lib/\xff.so"


@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"lib, /", b"dev,/dev/", b"..", b"\n", b","]))))
def test_any_bytes_are_rows_problems_or_refused(parts: list[bytes]) -> None:
    try:
        rows, problems = parse(b"".join(parts), "a.csv")
    except FormatError:
        return
    for row in rows:
        assert row.type in TYPES
        assert row.path.startswith("/")
        assert row.path != "/"
        assert ".." not in row.path.split("/")
        assert (row.type == "dev") == row.path.startswith("/dev/")
    assert all(problem.startswith("a.csv:") for problem in problems)
