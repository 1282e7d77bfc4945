"""Access of the checks to the host: every path goes through here, so that a tree of files can be the host.

A missing file reads as empty. A file without read permission raises PermissionError, which the runner turns into a
finding; checks do not catch it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from nvc.base.errors import NvcError
from nvc.base.record import Record
from nvc.bindings.uvm import OFF
from nvc.driver.locate import host_path, read_bytes, resolve

if TYPE_CHECKING:
    from nvc.model import Host, Inventory

#: A configuration file of more than this is not read.
FILE_LIMIT = 4 << 20
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO)
PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


class AgentSeen(Record):
    """version: of the agent. guards: container -> the version of its supervisor, "": not known."""

    version: str
    guards: dict[str, str]


class Probe:
    """The paths and the queries of the checks.

    host: the driver root (/dev, libraries, /proc/driver/nvidia) and the system (/etc, /run, /sys, /proc/devices), as
    everywhere. kernel: where the running kernel's /proc and /sys are; "/" also for a simulated machine. ask: returns
    the inventory, with NVML; raises NvcError. kernel_calls: feature -> "" or why it is missing. ask_filters: queries
    the device filters of a cgroup by its path; raises OSError. ask_pageable: whether pageable system memory can lie in
    video memory, as ``nvc.driver.pageable.ask``; raises OSError. uid: of the caller. search: the
    directories of programs. own: the program that runs, "" where it is not installed. libraries: of the preloaded
    libraries of shares, "" when they are nowhere. ask_agent: what the agent says, None where none was ever started;
    raises NvcError. ask_version: what a program of the host says of its version, "" where it says nothing.
    """

    def __init__(
        self,
        host: Host,
        *,
        kernel: str = "/",
        ask: Callable[[], Inventory] | None = None,
        kernel_calls: Callable[[], dict[str, str]] = dict,
        ask_filters: Callable[[str], None] = lambda path: None,
        ask_pageable: Callable[[Host], str] = lambda host: OFF,
        uid: int | None = None,
        search: tuple[str, ...] = PATH,
        own: str = "",
        libraries: str = "",
        ask_agent: Callable[[], AgentSeen | None] = lambda: None,
        ask_version: Callable[[str], str] = lambda path: "",
    ) -> None:
        self.host = host
        self.kernel_root = kernel
        self.uid = os.geteuid() if uid is None else uid
        self.search = search
        self.own = own
        self.libraries = libraries
        self._ask = ask
        self.kernel_calls = kernel_calls
        self.ask_filters = ask_filters
        self.ask_pageable = ask_pageable
        self.ask_agent = ask_agent
        self.ask_version = ask_version
        self._answer: Inventory | NvcError | None = None

    # Three roots.

    def driver(self, path: str) -> Place:
        """A driver path."""
        return Place(self.host.root, path)

    def system(self, path: str) -> Place:
        """A path of the host: configuration, engines, sysfs."""
        return Place(self.host.system, path)

    def kernel(self, path: str) -> Place:
        """A file of the running kernel below /proc or /sys."""
        return Place(self.kernel_root, path)

    def program(self, name: str) -> str:
        """Where a program is on the host (its path there), or "". An absolute ``name`` is used as it is."""
        for path in (name,) if name.startswith("/") else (f"{directory}/{name}" for directory in self.search):
            found = self.system(path).status()
            if found is not None and stat.S_ISREG(found.st_mode) and found.st_mode & 0o111:
                return path
        return ""

    def has_systemd(self) -> bool:
        return self.system("/run/systemd/system").exists()

    def inventory(self) -> Inventory:
        """Everything installed, queried once. Raises NvcError, each time the same."""
        if self._answer is None:
            try:
                self._answer = self._ask() if self._ask else _no_inventory()
            except NvcError as error:
                self._answer = error
        if isinstance(self._answer, NvcError):
            raise self._answer
        return self._answer

    def known_inventory(self) -> Inventory | None:
        """The inventory, or None: one check reports why there is none, the others skip what needs it."""
        try:
            return self.inventory()
        except NvcError:
            return None


class Place:
    """A path below one of the roots; links in it are followed below that root."""

    def __init__(self, root: str, path: str) -> None:
        self.root = root
        self.path = path

    def __str__(self) -> str:
        """The path on this computer."""
        return host_path(self.root, self.path)

    def actual(self) -> str:
        """With links followed. Raises OSError."""
        if "\0" in self.path:  # no file name has a NUL, but a configuration may
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        return self.path if self.root == "/" else host_path(self.root, resolve(self.root, self.path))

    def status(self, *, follow: bool = True) -> os.stat_result | None:
        """None when there is nothing, or a link to nothing. Raises OSError for other errors."""
        try:
            if follow:
                return os.stat(self.actual())
            parent, _, name = self.path.rpartition("/")
            return os.lstat(f"{Place(self.root, parent or '/').actual().rstrip('/')}/{name}")
        except OSError as problem:
            if problem.errno in (*_ABSENT, errno.ELOOP):
                return None
            raise

    def exists(self) -> bool:
        return self.status() is not None

    def text(self) -> str:
        """The content; "" without the file. Raises OSError (PermissionError, EINVAL for a FIFO, EFBIG ...)."""
        return self.data().decode("utf-8", "surrogateescape")

    def data(self) -> bytes:
        try:
            return read_bytes(self.actual(), FILE_LIMIT)
        except OSError as problem:
            if problem.errno in _ABSENT:
                return b""
            raise

    def names(self) -> list[str]:
        """The names in the directory, sorted; none without it. Raises OSError."""
        try:
            return sorted(os.listdir(self.actual()))
        except OSError as problem:
            if problem.errno in _ABSENT:
                return []
            raise

    def below(self, name: str) -> Place:
        return Place(self.root, f"{self.path.rstrip('/')}/{name}")

    def toml(self) -> dict[str, Any]:
        """The tables of a file, {} without it. Raises BadFile with the line."""
        import tomllib

        try:
            return tomllib.loads(self.data().decode("utf-8"))
        except (ValueError, RecursionError) as problem:
            raise BadFile(f"{self} is not TOML: {_one_line(problem)}") from problem

    def json(self) -> Any:
        """The value in a file, None without it or for an empty one. Raises BadFile with the place."""
        import json

        data = self.data()
        try:
            return json.loads(data.decode("utf-8")) if data.strip() else None
        except (ValueError, RecursionError) as problem:
            raise BadFile(f"{self} is not JSON: {_one_line(problem)}") from problem


class BadFile(Exception):
    """A configuration file that cannot be read as what it is; the message names it and the place."""


def table(tree: Any, *keys: str) -> dict[str, Any]:
    """The table at ``keys``; {} when it, or one on the way, is missing or something else."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def texts(value: Any) -> list[str]:
    """The texts of a list; [] for anything else."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__


def _no_inventory() -> NoReturn:
    raise NvcError("no source of the inventory was given")
