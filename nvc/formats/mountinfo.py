"""/proc/<pid>/mountinfo (kernel: Documentation/filesystems/proc.rst, section 3.5)."""

from __future__ import annotations

from nvc.base.record import Record
from nvc.formats import FormatError


class Mount(Record):
    """A mount. root: the directory of its file system that it shows; point: where, in the reader's root.

    options: per mount ("ro", "nosuid"); super_options: of the file system; tags: propagation ("shared:3").
    """

    id: int
    parent: int
    major: int
    minor: int
    root: str
    point: str
    options: tuple[str, ...]
    tags: tuple[str, ...]
    kind: str
    source: str
    super_options: tuple[str, ...]


def parse(text: str) -> tuple[Mount, ...]:
    """All mounts, in the file's order. Raises FormatError naming the line."""
    return tuple(_line(line, number) for number, line in enumerate(text.split("\n"), 1) if line)


def _line(line: str, number: int) -> Mount:
    words = line.split(" ")
    try:
        # The optional fields have no count; a lone "-" ends them, and cannot be one of the six before.
        bar = words.index("-", 6)
        major, _, minor = words[2].partition(":")
        # A source may be empty ("none" is only a habit), which leaves two spaces: split(" ") keeps the place.
        kind, source, options = words[bar + 1 : bar + 4]
        return Mount(
            int(words[0]),
            int(words[1]),
            int(major),
            int(minor),
            unescape(words[3]),
            unescape(words[4]),
            tuple(words[5].split(",")),
            tuple(words[6:bar]),
            unescape(kind),
            unescape(source),
            tuple(options.split(",")),
        )
    except ValueError as error:
        raise FormatError("mountinfo", f"line {number}", f"not a mount: {line[:120]!r}") from error


def unescape(text: str) -> str:
    r"""Decode the octal escapes of seq_path(): ``\040`` (space), ``\011``, ``\012``, ``\134`` (backslash), ``\043``.

    A backslash that no three octal digits follow stays.
    """
    if "\\" not in text:
        return text
    first, *rest = text.split("\\")
    decoded = [first]
    for part in rest:
        digits = part[:3]
        if len(digits) == 3 and digits[0] in "0123" and all(digit in "01234567" for digit in digits):
            decoded.append(chr(int(digits, 8)) + part[3:])
        else:
            decoded.append("\\" + part)
    return "".join(decoded)
