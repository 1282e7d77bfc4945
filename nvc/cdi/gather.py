"""What a spec needs to know beyond the inventory: links beside libraries, every node there is.

Only looks; everything that is missing is left out. Paths are driver paths, as in ``nvc.model``.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from nvc.base.record import Record
from nvc.driver.locate import host_path, status
from nvc.linux import owned
from nvc.linux.root import Root

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.model import DriverEndpoint, Host, Inventory

#: Nodes that a management container does not get: file systems, switches and links have services of their own.
_NOT_MANAGED = re.compile(r"nvidia-(fs|nvswitch|nvlink)")
#: Reading and writing by others than owner and group.
_EVERYBODY = stat.S_IROTH | stat.S_IWOTH
_MANAGED_DIRECTORIES = ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")


class Surroundings(Record):
    """library_links: (container path, text), as they are beside the driver's libraries.

    nodes: every device node of the driver, for management. groups: driver path of a node that only root and a group may
    read and write -> the group's id.
    endpoints: where the driver paths of the daemons' sockets and directories lead; "" for one that another
    user than root could replace. An engine mounts by name, long after the check: such a one is not for a spec.
    """

    library_links: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] = ()
    groups: dict[str, int] = {}
    endpoints: dict[str, str] = {}


def gather(host: Host, inventory: Inventory) -> Surroundings:
    """Look around. Raises nothing: what cannot be read is not offered to containers."""
    driver = inventory.driver
    more = (file for file in driver.more if file.kind == "library")
    libraries = (*driver.libraries, *driver.libraries32, *more)
    nodes = every_node(host)
    drm = (one.node.path for gpu in inventory.gpus for one in gpu.drm)
    return Surroundings(
        library_links=library_links(host, (file.path for file in libraries)),
        nodes=nodes,
        groups=groups(host, (*nodes, *drm)),
        endpoints=endpoints(host, driver.ipcs),
    )


def endpoints(host: Host, files: Iterable[DriverEndpoint]) -> dict[str, str]:
    """Where each leads; "" where that is not for a name to tell, or is no longer what it was."""
    with Root.open(host.root) as root:
        return {file.path: _fixed(root, file) for file in files}


def _fixed(root: Root, file: DriverEndpoint) -> str:
    try:
        found = owned.endpoint(root.fd, file.path, file.owners, file.server)
    except OSError:
        return ""
    return "" if found.is_replaceable else found.path


def library_links(host: Host, libraries: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The links that lead, in their own directory, to one of ``libraries`` (``libcuda.so.1``, ``libcuda.so``)."""
    names: dict[str, set[str]] = {}
    for path in libraries:
        directory, _, name = path.rpartition("/")
        names.setdefault(directory, set()).add(name)
    found: list[tuple[str, str]] = []
    for directory, known in names.items():
        links = _links(host_path(host.root, directory))
        wanted = {name for name in links if _end(links, name) in known}
        found += [(f"{directory}/{name}", links[name]) for name in wanted]
    return tuple(sorted(found))


def _links(directory: str) -> dict[str, str]:
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if ".so" in entry.name and entry.is_symlink()]
        return {name: os.readlink(f"{directory}/{name}") for name in names}
    except OSError:
        return {}


def _end(links: dict[str, str], name: str) -> str:
    # As many steps as there are links: a circle has no end that is a library.
    for _ in range(len(links)):
        if name not in links:
            break
        name = links[name]
    return name


def groups(host: Host, paths: Iterable[str]) -> dict[str, int]:
    """The group of each node, root's left out, that not every user may read and write."""
    found = {}
    for path in paths:
        try:
            node = status(host.nodes, path)
        except OSError:
            continue
        if node.st_gid and node.st_mode & _EVERYBODY != _EVERYBODY:
            found[path] = node.st_gid
    return found


def every_node(host: Host) -> tuple[str, ...]:
    """Every device node of the driver: GPUs, control, nvcaps, IMEX channels."""
    found = [path for path in _names(host, "/dev") if path.startswith("/dev/nvidia") and not _managed_elsewhere(path)]
    for directory in _MANAGED_DIRECTORIES:
        found += _names(host, directory)
    return tuple(path for path in found if _is_node(host, path))


def _managed_elsewhere(path: str) -> bool:
    return _NOT_MANAGED.match(path.rpartition("/")[2]) is not None


def _names(host: Host, directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in sorted(os.listdir(host_path(host.nodes, directory)))]
    except OSError:
        return []


def _is_node(host: Host, path: str) -> bool:
    try:
        return stat.S_ISCHR(status(host.nodes, path).st_mode)
    except OSError:
        return False
