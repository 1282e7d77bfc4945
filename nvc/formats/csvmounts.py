"""Tegra's mount lists: which files of the host a container gets.

Source: ``host-files-for-container.d/*.csv``; libnvidia-container.md 8.2.

    lib, /usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1
    sym, /usr/lib/aarch64-linux-gnu/libcuda.so
    dev, /dev/nvhost-gpu

One row a line, TYPE and PATH around the first comma; blank lines and lines that begin with "#" are skipped. A path
may be a pattern of the shell's (``*``, ``?``, ``[]``).
"""

from __future__ import annotations

import posixpath

from nvc.base.record import Record
from nvc.formats import FormatError

#: Bytes of a list, and its rows, that are read. Jetson's have some hundred rows.
MAX_SIZE, MAX_ROWS = 1 << 20, 10000
TYPES = ("lib", "dir", "dev", "sym")
#: The kernel's file systems in a container. Those of the host would break its isolation, and devices are ``dev``.
_KERNEL = ("/proc", "/sys", "/dev")


class CsvRow(Record):
    """A row. type: of TYPES; path: driver path, or a pattern of such; place: "FILE:LINE"."""

    type: str
    path: str
    place: str


def parse(data: bytes, name: str) -> tuple[tuple[CsvRow, ...], tuple[str, ...]]:
    """The rows of a list called ``name``, and "FILE:LINE: reason" for every line that is not one.

    Raises FormatError for what is no text of this kind at all.
    """
    if len(data) > MAX_SIZE:
        raise FormatError(name, "end", f"longer than {MAX_SIZE} bytes")
    if 0 in data:
        raise FormatError(name, f"line {data[: data.index(0)].count(10) + 1}", "not text: it has a NUL byte")
    rows: dict[tuple[str, str], CsvRow] = {}
    problems = []
    # Not splitlines(): a form feed or a line separator of Unicode does not end a line here.
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
        text = line.strip(" \t\r")
        if not text or text.startswith("#"):
            continue
        place = f"{name}:{number}"
        kind, comma, path = (part.strip(" \t\r") for part in text.partition(","))
        problem = "no comma" if not comma else _problem(kind, path)
        if problem:
            problems.append(f"{place}: {problem}")
            continue
        if len(rows) >= MAX_ROWS:
            raise FormatError(name, f"line {number}", f"more than {MAX_ROWS} rows")
        path = posixpath.normpath(path)
        rows.setdefault((kind, path), CsvRow(kind, path, place))
    return tuple(rows.values()), tuple(problems)


def _problem(kind: str, path: str) -> str:
    """Why a row is invalid, or ""."""
    if kind not in TYPES:
        return f"unknown type {kind!r}, expected one of {', '.join(TYPES)}"
    if not path.startswith("/") or path.startswith("//"):
        return f"not an absolute path: {path!r}"
    if any(ord(char) < 0x20 or char == "\x7f" for char in path):
        return "a control character in the path"
    if ".." in path.split("/"):
        return f"'..' in the path: {path}"
    return place_problem(kind, path)


def place_problem(kind: str, path: str) -> str:
    """Why a container must not get this path in this way, or "". Also for paths that match a pattern."""
    path = posixpath.normpath(path)
    kernels = any(f"{path}/".startswith(f"{directory}/") for directory in _KERNEL)
    if not path.startswith("/dev/") if kind == "dev" else kernels or path == "/":
        return f"a {kind} cannot be at {path}"
    # The host's /etc or /usr/lib would hide the container's own.
    if kind == "dir" and path.count("/") < (3 if path.startswith("/usr/") else 2):
        return f"{path} would hide a whole directory of the container's system"
    return ""
