"""What probe.c saw in a container, and the arguments that make it look."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from errno import errorcode
from typing import Any

MOUNTINFO = "/proc/self/mountinfo"
PARAMS = "/proc/driver/nvidia/params"
GPUS = "/proc/driver/nvidia/gpus"


@dataclass(frozen=True)
class Sight:
    """nodes, made: path -> "ok", "EPERM", "ENXIO", ...; libraries: SONAME -> real path, or "" when not found.

    texts: path -> content, "" when unreadable. lists: directory -> sorted names, () when it does not exist.
    mounts: mount point -> its options as a set.
    """

    nodes: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def mounts(self) -> dict[str, frozenset[str]]:
        rows = (line.split() for line in self.texts.get(MOUNTINFO, "").splitlines())
        return {row[4]: frozenset(row[5].split(",")) for row in rows}


def arguments(
    *,
    nodes: Iterable[str] = (),
    make: Iterable[tuple[str, int, int]] = (),
    libraries: Iterable[str] = (),
    texts: Iterable[str] = (PARAMS, MOUNTINFO),
    lists: Iterable[str] = (GPUS, "/dev"),
) -> list[str]:
    """The command line of /usr/bin/probe. ``make``: device nodes made and then opened."""
    words = ["/usr/bin/probe"]
    for path, major, minor in make:
        words += ["--make", f"{path}:{major}:{minor}", "--node", path]
    for option, names in (("--node", nodes), ("--library", libraries), ("--text", texts), ("--list", lists)):
        for name in names:
            words += [option, name]
    return words


def read(output: str) -> Sight:
    """The sight in a probe's output; the output must be nothing else. Raises ValueError with the text."""
    try:
        entries: Sequence[dict[str, Any]] = json.loads(output)
    except ValueError as error:
        raise ValueError(f"not a probe's output: {output!r}") from error
    sight = Sight()
    for entry in entries:
        name, kind = entry["name"], entry["kind"]
        answer = "ok" if entry.get("errno", 0) == 0 else errorcode[entry["errno"]]
        if kind == "node":
            sight.nodes[name] = answer
            if "major" in entry:
                sight.numbers[name] = (entry["major"], entry["minor"])
        elif kind == "make":
            sight.made[name] = answer
        elif kind == "library":
            sight.libraries[name] = entry.get("path", "")
        elif kind == "text":
            sight.texts[name] = entry["text"]
        else:
            sight.lists[name] = tuple(sorted(entry["names"]))
    return sight
