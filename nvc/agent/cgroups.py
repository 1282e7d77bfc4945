"""The agent's tree of cgroups, in which each tenant's monitor makes one that limits its processes, and their memory.

DIRECTORY/cgroups leads to the tree (native/supervisor/own_cgroup.c makes the cgroups in it, and has the limits). It
lies at the top of the hierarchy that has the memory controller, and with version 1 DIRECTORY/cgroups-pids leads to
another one where the pids controller is: neither a container's, a pod's nor the agent's cgroup is above it. Nor is
a unit of systemd's: with Delegate= and controllers enabled below it, it cannot be started again while processes are
there (before systemd 254, DelegateSubgroup=).

Sources: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, pids.rst.
"""

from __future__ import annotations

import contextlib
import os
import time

from nvc.base.errors import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT, NAME, PIDS = "/sys/fs/cgroup", "cgroups", "cgroups-pids"
#: Of all tenants together, where a unit of systemd's has 100: edges are made in time on a machine that is busy. A nice
#: value counts inside of a cgroup alone.
_CPU_WEIGHT = "1000"
#: Below NAME_MAX.
_NAME_MOST = 200
#: For an acceptor that was ended just now.
_ENDING_S = 0.2


class _NoController(OSError):
    """Of memory: this kernel is without it, or it is not given to what the agent sees as the root."""


def prepare(directory: str, root: str = ROOT) -> str:
    """Make the tree of the agent whose directory this is. Returns why there is none, or ""; raises nothing.

    root: where cgroups are mounted, version 2 alone or one hierarchy a controller.
    """
    try:
        if os.path.isfile(f"{root}/memory/memory.limit_in_bytes"):
            _lead(f"{directory}/{NAME}", f"{root}/memory/{tree_name(directory)}")
            if os.path.isfile(f"{root}/pids/cgroup.procs"):
                with contextlib.suppress(OSError):
                    _lead(f"{directory}/{PIDS}", f"{root}/pids/{tree_name(directory)}")
        else:
            _lead(f"{directory}/{NAME}", _version_2(directory, root))
    except OSError as error:
        for name in (NAME, PIDS):
            with contextlib.suppress(OSError):
                os.unlink(f"{directory}/{name}")
        return "no hierarchy has the memory controller" if isinstance(error, _NoController) else reason(error)
    clean(directory)
    return ""


def _lead(link: str, tree: str) -> None:
    """Make the tree, and what leads to it. Raises OSError."""
    _make(tree)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{link}.new")
    os.symlink(tree, f"{link}.new")
    os.rename(f"{link}.new", link)  # monitors of the agent before this one may be about to look
    _make(tree)  # or the last one of them has removed it


def clean(directory: str) -> None:
    """Remove the cgroups that have no process any more. Raises nothing."""
    for name in (NAME, PIDS):
        for path in _cgroups(f"{directory}/{name}"):
            with contextlib.suppress(OSError):  # EBUSY: it has
                os.rmdir(path)


def remove(directory: str) -> None:
    """The agent ends: its trees go, unless processes go on in them. Raises nothing."""
    until = time.monotonic() + _ENDING_S
    while True:
        clean(directory)
        left = [name for name in (NAME, PIDS) if not _remove_tree(f"{directory}/{name}")]
        if not left or time.monotonic() > until:
            return
        time.sleep(0.01)


def _remove_tree(link: str) -> bool:
    """Whether neither the tree nor what leads to it is there."""
    try:
        os.rmdir(os.readlink(link))
        os.unlink(link)
    except FileNotFoundError:
        return not os.path.lexists(link)
    except OSError:
        return False
    return True


def _cgroups(tree: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(tree) as entries:
        for entry in entries:
            if entry.is_dir():
                yield entry.path


def _version_2(directory: str, root: str) -> str:
    """The tree's path. Raises OSError."""
    for place in (root, f"{root}/unified"):
        with contextlib.suppress(FileNotFoundError):
            if "memory" in _words(f"{place}/cgroup.controllers"):
                break
    else:
        raise _NoController
    enabled = f"{place}/cgroup.subtree_control"
    if "memory" not in _words(enabled):
        _write(enabled, "+memory")
    tree = f"{place}/{tree_name(directory)}"
    _make(tree)
    _write(f"{tree}/cgroup.subtree_control", "+memory")
    with contextlib.suppress(OSError):  # without it processes are limited by user (own_cgroup.c)
        if "pids" in _words(f"{place}/cgroup.controllers"):
            if "pids" not in _words(enabled):
                _write(enabled, "+pids")
            _write(f"{tree}/cgroup.subtree_control", "+pids")
    if os.path.exists(f"{tree}/cpu.weight"):  # where the host divides processors by cgroups
        _write(f"{tree}/cpu.weight", _CPU_WEIGHT)
    return tree


def tree_name(directory: str) -> str:
    """One agent's own: nvc-guard-run-nvc-agent."""
    return f"nvc-guard-{directory.strip('/').replace('/', '-')}"[-_NAME_MOST:]


def _make(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)


def _words(path: str) -> list[str]:
    with open(path, encoding="ascii") as file:
        return file.read().split()


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
