from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.formats import FormatError
from nvc.formats.mountinfo import Mount, parse, unescape

LINE = r"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 shared:3 - ext3 /dev/ro\134ot rw,errors=continue"
MOUNT = Mount(
    36,
    35,
    98,
    0,
    "/mnt1",
    "/mnt 2",
    ("rw", "noatime"),
    ("master:1", "shared:3"),
    "ext3",
    "/dev/ro\\ot",
    ("rw", "errors=continue"),
)


def test_a_mount_with_optional_fields() -> None:
    assert (MOUNT, MOUNT) == parse(LINE + "\n" + LINE + "\n")


@pytest.mark.parametrize(
    ("line", "tags", "source"),
    [
        pytest.param("1 2 0:3 / /p rw - tmpfs none rw", (), "none", id="no-optional-field"),
        pytest.param("1 2 0:3 / /p rw - tmpfs  rw", (), "", id="empty-source"),
        pytest.param("1 2 0:3 / /p rw unbindable - tmpfs - rw", ("unbindable",), "-", id="source-is-a-dash"),
        pytest.param("1 2 0:3 / /- rw - tmpfs none rw", (), "none", id="point-ends-in-a-dash"),
    ],
)
def test_fields_after_the_dash(line: str, tags: tuple[str, ...], source: str) -> None:
    (mount,) = parse(line)

    assert (tags, source) == (mount.tags, mount.source)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        (r"a\040b", "a b"),
        (r"\011\012\134\043", "\t\n\\#"),
        (r"\134040", r"\040"),
        (r"\04", r"\04"),
        (r"\089", r"\089"),
        (r"\777", r"\777"),
        ("end\\", "end\\"),
    ],
)
def test_octal_escapes(text: str, expected: str) -> None:
    assert expected == unescape(text)


@given(st.text(st.characters(blacklist_categories=("Cs",))))
def test_what_the_kernel_escapes_is_decoded(text: str) -> None:
    escaped = "".join(f"\\{ord(char):03o}" if char in " \t\n\\#" else char for char in text)

    assert text == unescape(escaped)


@pytest.mark.parametrize(
    "line",
    [
        "36",
        "36 35 98:0 /a /b rw",
        "36 35 98:0 /a /b rw shared:1 ext3 x rw",
        "36 35 980 /a /b rw - ext3 x rw",
        "x 35 98:0 /a /b rw - ext3 x rw",
        "36 35 98:0 /a /b rw - ext3",
    ],
)
def test_a_broken_line_is_named(line: str) -> None:
    with pytest.raises(FormatError, match="line 2"):
        parse(LINE + "\n" + line)


@given(st.text())
def test_random_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse(text)
    except FormatError as error:
        assert error.place.startswith("line ")


def test_this_machine() -> None:
    assert any(mount.point == "/" for mount in parse(Path("/proc/self/mountinfo").read_text()))
