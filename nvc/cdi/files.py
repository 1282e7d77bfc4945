"""Spec files on disk: found as engines find them, written so that a reader never finds half of one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvc.base import directories
from nvc.base.errors import InputError, NvcError, reason
from nvc.base.record import Record
from nvc.cdi import text
from nvc.cdi.spec import CdiSpec, Problem, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Where engines look; a later one goes before an earlier one (CDI specification).
DIRECTORIES = ("/etc/cdi", "/var/run/cdi")

#: Engines watch the directories and read *.yaml and *.json: names of files that are being written end otherwise.
TEMPORARY = ".tmp"


class SpecFile(Record):
    """A file with the spec in it, or with what is wrong with it. rank: index of its directory."""

    path: str
    rank: int
    spec: CdiSpec | None
    problems: tuple[Problem, ...] = ()


class Listing(Record):
    """names: the devices that an engine can resolve, sorted. warnings: what it does not take, and why."""

    names: tuple[str, ...]
    warnings: tuple[str, ...]


def form_of(path: str) -> str:
    """The format of a file by its ending, "" when engines would not read it."""
    return text.ENDINGS.get(os.path.splitext(path)[1], "")


def load(path: str, rank: int = 0, *, form: str = "") -> SpecFile:
    """Read a file. Never raises for its content: that is in ``problems``."""
    from nvc.driver.locate import read_bytes

    try:
        data = text.read(read_bytes(path, text.SIZE_LIMIT), form or form_of(path) or "yaml")
    except OSError as error:
        return SpecFile(path, rank, None, (Problem("(file)", reason(error)),))
    except InputError as error:
        return SpecFile(path, rank, None, (Problem("(file)", error.message),))
    spec, problems = decode(data)
    return SpecFile(path, rank, spec, problems)


def find(directories: Sequence[str]) -> tuple[SpecFile, ...]:
    """Every spec file of the directories, not below them. Raises InputError for one that cannot be listed."""
    found = []
    for rank, directory in enumerate(directories):
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{directory}: {reason(error)}", hint="--spec-dir names a directory") from error
        found += [load(f"{directory}/{name}", rank) for name in names if form_of(name)]
    return tuple(found)


def listing(files: Iterable[SpecFile]) -> Listing:
    """Which devices there are, by the rules that engines resolve names with.

    A device of a later directory hides one of an earlier. Two in one directory, or in two of one rank, hide each other.
    """
    warnings = []
    owners: dict[str, list[SpecFile]] = {}
    for file in files:
        warnings += [f"{file.path}: {problem}; engines ignore the whole file" for problem in file.problems]
        if file.spec is not None:
            for device in file.spec.devices:
                owners.setdefault(f"{file.spec.kind}={device.name}", []).append(file)
    names = []
    for name, having in sorted(owners.items()):
        rank = max(file.rank for file in having)
        first = [file.path for file in having if file.rank == rank]
        hidden = [file.path for file in having if file.rank != rank]
        if len(first) > 1:
            warnings.append(f"{name} is in {' and in '.join(first)}: engines resolve neither")
        else:
            names.append(name)
        warnings += [f"{name} of {path} is hidden by that of {first[0]}" for path in hidden]
    return Listing(tuple(names), tuple(warnings))


def save(path: str, content: str) -> None:
    """Put ``content`` at ``path`` in one step: readers see the old file or the new one. Raises NvcError."""
    temporary = beside(path, content)
    try:
        os.rename(temporary, path)
    except OSError as error:
        raise _unwritten(path, temporary, error) from error


def beside(path: str, content: str) -> str:
    """Write ``content`` to a file beside ``path``, for a rename; its name. It is on the disk then. Raises NvcError."""
    directory = os.path.dirname(path) or "."
    temporary = f"{directory}/.{os.path.basename(path)}.{os.urandom(6).hex()}{TEMPORARY}"
    try:
        directories.make(directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(content.encode("utf-8", "surrogateescape"))
            file.flush()
            # Engines of other users read it too.
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
    except OSError as error:
        raise _unwritten(path, temporary, error) from error
    return temporary


def _unwritten(path: str, temporary: str, error: OSError) -> NvcError:
    try:
        os.unlink(temporary)
    except OSError:
        pass
    return NvcError(f"{path} could not be written: {reason(error)}", hint="what was there before is still there")
