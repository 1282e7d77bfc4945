"""Which GPUs a container's config.json gives it, by numbers and identities.

Names in the container's /dev say nothing: a mount can cover a node there or give it another name, and the device
rules still let the container make the node anew. Used by nvc-runtime before there is a container and by the
share step in it: both see the host's files.
"""

from __future__ import annotations

import os
import stat

from nvc.base.budgets import ENTRIES
from nvc.base.errors import DeviceError
from nvc.base.record import Record
from nvc.model import MODESET_MINOR, NVIDIA_MAJOR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from nvc.model import Gpu

    #: What a path inside the container leads to, None where that is nothing.
    Inside = Callable[[str], os.stat_result | None]

_DEV = "/dev"
#: "u" is another word for a character device; a rule without a type is of every type.
_CHARACTER, _EVERY_TYPE = ("c", "u"), ("a", "", None)


class Given(Record):
    """The GPUs that a container can reach.

    minors: named one by one. every: all GPUs that there are. seen: numbers of nodes that it sees, which may be stale.
    """

    minors: tuple[int, ...] = ()
    every: bool = False
    seen: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.minors or self.every or self.seen)

    def select(self, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
        """Those of this machine's GPUs. Raises DeviceError for one that is given and not known."""
        known = {gpu.minor: gpu for gpu in gpus}
        for minor in self.minors:
            if minor not in known:
                raise DeviceError(
                    f"config.json gives the container GPU {NVIDIA_MAJOR}:{minor}, and no GPU here has that number",
                    hint="make the CDI specification anew",
                )
        reached = {*self.minors, *self.seen}
        return tuple(gpu for minor, gpu in known.items() if self.every or minor in reached)


def given(
    config: Mapping[str, Any],
    bundle: str,
    simulated: str = "",
    driver_root: str = "",
    *,
    seen: Iterable[int] = (),
    inside: Inside = lambda path: None,
) -> Given:
    """What ``config`` gives by its nodes, its device rules and its bind mounts.

    bundle: where relative sources start. simulated: directory of a simulated machine, whose nodes may be files, or "".
    driver_root: where the driver is. seen: what the container's own tree shows. inside: for a mount whose source the
    caller may not look at.
    """
    linux = _table(config.get("linux"))
    minors, every = _ruled(_tables(_table(linux.get("resources")).get("devices")))
    for node in _tables(linux.get("devices")):
        major, minor = node.get("major"), node.get("minor")
        if node.get("type") in _CHARACTER and major == NVIDIA_MAJOR and isinstance(minor, int):
            minors.update({minor} if 0 <= minor < MODESET_MINOR else ())
    shown, beside = set(seen), _Nodes(simulated, driver_root)
    for mount in _tables(config.get("mounts")):
        if mount.get("type") == "devtmpfs":
            every = True  # there is one only, the host's
        if not _is_bind(mount):
            continue
        source, destination = (_text(mount.get(key)) for key in ("source", "destination"))
        if simulated:  # as the tree shows it: any file with that name
            shown.update(_named(destination))
        status = _status(source, bundle) or inside(destination)
        if status is None:
            continue
        minors.update(beside.of(status))
        if stat.S_ISDIR(status.st_mode):
            every = every or beside.is_dev(status)
            shown.update(beside.below(status, os.path.join(bundle, source), recursive="rbind" in _options(mount)))
    return Given(tuple(sorted(minors)), every, tuple(sorted(shown)))


def number(name: str) -> int | None:
    """The number in the usual name of a GPU's node; None for another name."""
    digits = name.removeprefix("nvidia")
    return int(digits) if digits != name and digits.isascii() and digits.isdigit() and len(digits) < 4 else None


def minor_of(status: os.stat_result) -> int | None:
    """The number of the GPU whose node it is; None for what is no node of a GPU."""
    if not stat.S_ISCHR(status.st_mode) or os.major(status.st_rdev) != NVIDIA_MAJOR:
        return None
    minor = os.minor(status.st_rdev)
    return minor if minor < MODESET_MINOR else None


class _Nodes:
    """The machine's own nodes, and the directories that they are in."""

    def __init__(self, simulated: str, driver_root: str) -> None:
        places = dict.fromkeys(os.path.realpath(f"{root}{_DEV}") for root in ("", driver_root, simulated))
        known = ((place, _status(place)) for place in places)
        self._directories = {place: status for place, status in known if status is not None}
        #: Nodes that are files, of a simulated machine, by identity.
        self._files: dict[tuple[int, int], int] = {}
        if simulated:
            place = os.path.realpath(f"{simulated}{_DEV}")
            for name in _names(place, files=True):
                minor, status = number(name), _status(name, place)
                if minor is not None and status is not None and stat.S_ISREG(status.st_mode):
                    self._files[_identity(status)] = minor

    def of(self, status: os.stat_result) -> set[int]:
        """The GPU of a node, by itself and not by its name."""
        minor = minor_of(status)
        minor = self._files.get(_identity(status)) if minor is None else minor
        return set() if minor is None else {minor}

    def is_dev(self, status: os.stat_result) -> bool:
        """Whether it is one of the directories."""
        return any(_identity(status) == _identity(one) for one in self._directories.values())

    def below(self, status: os.stat_result, place: str, *, recursive: bool) -> set[int]:
        """Numbers of the nodes in the directory ``place``, and in ours where that is above one of them.

        recursive: what is mounted below it is shown too.
        """
        found = self._in(place)
        for directory, own in self._directories.items():
            above = directory
            while above != "/":
                above = os.path.dirname(above)
                one = _status(above)
                if one is not None and _identity(one) == _identity(status):
                    found |= self._in(directory) if recursive or one.st_dev == own.st_dev else set()
        return found

    def _in(self, place: str) -> set[int]:
        found = (_status(name, place, follow=False) for name in _names(place, files=bool(self._files)))
        return {minor for one in found if one is not None for minor in self.of(one)}


def _ruled(rules: Iterable[Mapping[str, Any]]) -> tuple[set[int], bool]:
    """Numbers of the GPUs that device rules open for reading or writing, and whether they open all."""
    minors: set[int] = set()
    every = False
    for rule in rules:
        kind, access = rule.get("type"), rule.get("access")
        major, minor = (_wild(rule.get(key)) for key in ("major", "minor"))
        if not rule.get("allow"):
            if kind in _EVERY_TYPE and major is None and minor is None:
                minors, every = set(), False  # runtimes start anew here, whatever the access is
            continue
        if kind in _EVERY_TYPE:
            every = True  # to runc it is every access to every device, whatever else the rule says
            continue
        opens = not isinstance(access, str) or not access or "r" in access or "w" in access
        if not opens or kind not in _CHARACTER or major not in (None, NVIDIA_MAJOR):
            continue
        if minor is None:
            every = True
        elif minor < MODESET_MINOR:
            minors.add(minor)
    return minors, every


def _wild(value: object) -> int | None:
    """The number of a rule, None for all numbers."""
    return value if isinstance(value, int) and value >= 0 else None


def _is_bind(mount: Mapping[str, Any]) -> bool:
    return mount.get("type") in ("bind", "none", "", None) or not {"bind", "rbind"}.isdisjoint(_options(mount))


def _options(mount: Mapping[str, Any]) -> set[str]:
    words = mount.get("options")
    return {word for word in words if isinstance(word, str)} if isinstance(words, list) else set()


def _named(destination: str) -> set[int]:
    parent, name = os.path.split(os.path.normpath(f"/{destination.lstrip('/')}"))
    found = number(name)
    return set() if found is None or parent != _DEV else {found}


def _status(path: str, directory: str = "/", *, follow: bool = True) -> os.stat_result | None:
    """None for what is not there or may not be looked at."""
    if not path:
        return None
    try:
        return os.stat(os.path.join(directory, path), follow_symlinks=follow)
    except (OSError, ValueError):
        return None


def _names(place: str, *, files: bool) -> list[str]:
    """Of the nodes and, with ``files``, of the files among the first ENTRIES of a directory; none where it cannot be
    read.
    """
    found: list[str] = []
    try:
        with os.scandir(place) as entries:
            for count, entry in enumerate(entries):
                if count == ENTRIES:
                    break
                ordinary = entry.is_file(follow_symlinks=False)
                if files if ordinary else not (entry.is_symlink() or entry.is_dir(follow_symlinks=False)):
                    found.append(entry.name)
    except OSError:
        pass
    return found


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tables(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
