"""What can be done to a container, as values: planned by ``nvc.container.plan``, carried out by
``nvc.container.apply``.

Every operation describes itself in one sentence (``--dry-run``, ``--debug``). Paths follow ``nvc.model``: host
paths are driver paths (below the driver root), container paths are below the rootfs.
"""

from __future__ import annotations

from nvc.base.record import DecodeError, Record
from nvc.model import ProcFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from nvc.share.limits import Limits
    from nvc.share.model import Room

# What a source must be; anything else at that path is refused before the container is touched.
REGULAR, DIRECTORY, DEVICE, ENDPOINT = "regular", "directory", "device", "endpoint"
_WHAT = {REGULAR: "file", DIRECTORY: "directory", DEVICE: "device node", ENDPOINT: "socket or directory"}


class BindMount(Record):
    """Show a host file at a place in the container.

    source: REGULAR, DIRECTORY, DEVICE, or ENDPOINT (``EndpointMount``).
    attributes: of "ro", "nodev", "nosuid", "noexec"; set before the mount becomes visible.
    major, minor: what a DEVICE must be, otherwise 0.
    optional: a missing source is a warning (sockets, firmware), not a failure.
    own: the source is a file of ours, below the machine's own "/" and not below the driver root.
    """

    host_path: str
    container_path: str
    source: str
    attributes: tuple[str, ...]
    major: int = 0
    minor: int = 0
    optional: bool = False
    own: bool = False

    def describe(self) -> str:
        what = _WHAT.get(self.source, self.source)
        number = f" {self.major}:{self.minor}" if self.source == DEVICE else ""
        where = "" if self.host_path == self.container_path else f" on {self.container_path}"
        may_lack = ", if the host has it" if self.optional else ""
        return f"mount {what} {self.host_path}{number}{where} ({','.join(self.attributes)}){may_lack}"


class EndpointMount(BindMount):
    """Show a daemon's socket, or the directory of a server's sockets, that only root can have put there.

    owners, server: as of ``nvc.model.DriverEndpoint``.
    """

    owners: tuple[int, ...] = ()
    server: str = ""

    def describe(self) -> str:
        what = "directory" if self.server else "socket"
        users = " or ".join(("root", *(f"user {uid}" for uid in self.owners)))
        server = f" with the socket {self.server}" if self.server else ""
        return f"mount {what} {self.host_path} of {users}{server} ({','.join(self.attributes)}), if the host has it"


class ShareFiles(Record):
    """The files of a container's share on this machine; what the container sees of them are BindMounts.

    store: directory of the entries; key: this one's name there. container: its id, or "". limits: what it may use.
    lines: what its /etc/ld.so.preload gets beside what the image has. text: the share spec; source: what asked for it.
    group, name: as in ``nvc.share.entry.StoredShare``. rooms: of the GPUs, for admission. agent: the control socket of
    the agent that guards the container and knows what others were promised; "": none does.
    """

    store: str
    key: str
    container: str
    limits: Limits
    lines: tuple[str, ...]
    text: str
    source: str = ""
    group: str = ""
    name: str = ""
    rooms: tuple[Room, ...] = ()
    agent: str = ""
    # Imported when a share is decoded: containers without one do not pay for it.
    _modules = {"Limits": "nvc.share.limits", "Room": "nvc.share.model"}

    def describe(self) -> str:
        libraries = ", ".join(line.rpartition("/")[2] for line in self.lines)
        asked = f" by {self.source}" if self.source else ""
        group = f", in group {self.group}" if self.group else ""
        return f"make {self.store}/{self.key} for a share{asked}{group}, {self.text}; preload {libraries}"


class Tmpfs(Record):
    """A small file system of our own with content that is known when it is planned; read-only once filled.

    mode: permission bits of its top directory. source: its name in /proc/mounts.
    directories, files: container paths below ``target``; parents are made as needed. Files with no text are
    mount points for later BindMounts.
    """

    target: str
    mode: int
    directories: tuple[str, ...] = ()
    files: tuple[ProcFile, ...] = ()
    source: str = "tmpfs"

    def describe(self) -> str:
        names = [file.path[len(self.target) + 1 :] for file in self.files if file.text]
        content = f" with {', '.join(names)}" if names else ""
        points = len(self.directories) + len(self.files) - len(names)
        places = f" and {points} mount points" if points else ""
        return f"mount a read-only tmpfs on {self.target}{content}{places} (ro,nodev,nosuid,noexec)"


class ApplicationProfile(Record):
    """The EGL application profile that shows graphics programs only the GPUs with these minor numbers."""

    minors: tuple[int, ...] = ()

    def describe(self) -> str:
        visible = ", ".join(f"/dev/nvidia{minor}" for minor in self.minors) or "no GPU"
        return f"write an application profile that shows EGL {visible}"


class Symlink(Record):
    """A link that is made unless something of that name is there already."""

    container_path: str
    text: str

    def describe(self) -> str:
        return f"link {self.container_path} to {self.text}"


class AllowDevices(Record):
    """Let the container's device cgroup open these character devices, (major, minor), for reading and writing."""

    rules: tuple[tuple[int, int], ...]

    def describe(self) -> str:
        numbers = ", ".join(f"{major}:{minor}" for major, minor in self.rules)
        return f"allow character devices {numbers} (rw) in the device cgroup"


class UpdateLdcache(Record):
    """Rebuild the container's loader cache with the host's ldconfig.

    ldconfig: path of the program below the caller's "/", without "@". directories: searched before what
    /etc/ld.so.conf names, in this order. no_pivot: leave the old root with MS_MOVE and chroot (initramfs hosts).
    limit: seconds after which ldconfig is stopped.
    """

    ldconfig: str
    directories: tuple[str, ...]
    no_pivot: bool = False
    limit: float = 10.0

    def describe(self) -> str:
        return f"update /etc/ld.so.cache with {self.ldconfig} for {', '.join(self.directories)}"


if TYPE_CHECKING:
    Operation = (
        ShareFiles | BindMount | EndpointMount | Tmpfs | ApplicationProfile | Symlink | AllowDevices | UpdateLdcache
    )

#: Directories without libraries.
_WITHOUT_LIBRARIES = ("/dev/", "/proc/", "/run/", "/var/run/")


def is_independent(operation: Operation) -> bool:
    """Whether neither ldconfig nor the operation can affect the other."""
    if isinstance(operation, BindMount):
        return operation.container_path.startswith(_WITHOUT_LIBRARIES)
    if isinstance(operation, Tmpfs):
        return operation.target.startswith(_WITHOUT_LIBRARIES)
    return isinstance(operation, AllowDevices)


def divide(operations: Iterable[Operation]) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
    """A plan in two parts, each in the plan's order: the driver's files, sockets and ldconfig, and what of the rest is
    independent: device nodes and their rules, and what shows GPUs below /proc.
    """
    first: list[Operation] = []
    rest: list[Operation] = []
    for operation in operations:
        is_first = isinstance(operation, EndpointMount) or not is_independent(operation)
        (first if is_first else rest).append(operation)
    return tuple(first), tuple(rest)


KINDS: dict[str, type[Operation]] = {
    cls.__name__: cls
    for cls in (ShareFiles, BindMount, EndpointMount, Tmpfs, ApplicationProfile, Symlink, AllowDevices, UpdateLdcache)
}


def encode(operations: Iterable[Operation]) -> list[dict[str, Any]]:
    """Operations as JSON-ready data: each an object whose "operation" names its kind."""
    return [{"operation": type(operation).__name__, **operation.as_data()} for operation in operations]


def decode(data: object) -> tuple[Operation, ...]:
    """The inverse of ``encode``. Raises DecodeError for an unknown kind or a field of another shape."""
    if not isinstance(data, list | tuple):
        raise DecodeError(f"operations: expected a list, got {type(data).__name__}")
    return tuple(_decode_one(item, index) for index, item in enumerate(data))


def _decode_one(item: object, index: int) -> Operation:
    if not isinstance(item, dict):
        raise DecodeError(f"operations[{index}]: expected an object, got {type(item).__name__}")
    kind = item.get("operation")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise DecodeError(f"operations[{index}]: unknown operation {kind!r}")
    return cls.from_data({field: value for field, value in item.items() if field != "operation"})
