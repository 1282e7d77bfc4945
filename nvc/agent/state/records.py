"""What the agent writes down of its tenants, so that the next one finds them: DIRECTORY/tenants/NUMBER.json.

Written whole or not at all, before the tenant's supervisor is started. Beside it is the directory NUMBER with the plan
and the monitor's socket; DIRECTORY/containers/ID leads there, for acceptors (native/supervisor/acceptor.c).
"""

from __future__ import annotations

import errno
import os
import resource
import time

from nvc.base.errors import AgentError, reason
from nvc.base.record import Record
from rpc.codec import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

TENANTS, CONTAINERS, PENDING = "tenants", "containers", "pending"
#: What names of files begin with that were no record of a tenant; they stay for an administrator to look at.
DAMAGED = "damaged-"
_SUFFIX = ".json"
_LIMIT = 64 << 10


class Member(Record):
    """A container of a tenant.

    key: of the store's entry. pid, start_time: of its first process, 0: not known. engine_name: as in
    ``nvc.share.entry.StoredShare``.
    """

    key: str
    container: str
    pid: int
    start_time: int
    engine_name: str = ""

    @property
    def name(self) -> str:
        """What people call it."""
        return self.container or self.key

    def is_same(self, other: Member) -> bool:
        """Whether it is the same container, whatever its engine calls it."""
        return (self.key, self.pid, self.start_time) == (other.key, other.pid, other.start_time)


#: A suspension's cause.
RECLAIMED, IDLE = "reclaimed", "idle"


class Suspension(Record):
    """GPU memory of a tenant that is on the host. memory: bytes for each of its GPUs. since: seconds since 1970.

    is_changing: a suspend or a resume has begun and has not ended: its processes may be in any state. cause: RECLAIMED:
    the agent suspended it for another's request, and resumes it when there is room; IDLE: likewise, and when it wants
    to compute; "": a person did.
    """

    memory: tuple[int, ...]
    since: float
    is_changing: bool = False
    cause: str = ""


class TenantRecord(Record):
    """number: the agent's. key, container, pid, start_time, engine_name: of its first container, as in ``Member``.

    since: seconds since 1970. group: "" for a tenant of one container. others: the further containers of a group.
    granted: the share that each of them was granted at its start. suspended: None: it is not.
    """

    number: int
    key: str
    container: str
    pid: int
    start_time: int
    since: float
    engine_name: str = ""
    group: str = ""
    others: tuple[Member, ...] = ()
    granted: tuple[str, ...] = ()
    suspended: Suspension | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        """Its containers, in the order of their arrival."""
        return (Member(self.key, self.container, self.pid, self.start_time, self.engine_name), *self.others)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"group:{self.group}" if self.group else self.members[0].name

    def with_members(self, members: tuple[Member, ...]) -> TenantRecord:
        """The same tenant with these containers, one at least."""
        first, *others = members
        return self.replace(**first.as_data(), others=tuple(others))


def shortage(error: OSError) -> str:
    """What to do about a descriptor that cannot be had, or a full /run; "" for another error."""
    if error.errno == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{most} descriptors are open: raise LimitNOFILE of nvc-agent.service, or run fewer containers here"
    if error.errno == errno.ENFILE:
        return "the machine's descriptors are used up: see /proc/sys/fs/file-nr, and raise fs.file-max"
    return "make room in /run" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""


def advice(error: OSError) -> str:
    """What to do about a file of the agent's that cannot be made."""
    if lack := shortage(error):
        return lack
    if error.errno == errno.ENOENT:
        return "it was removed; restart nvc-agent, which makes its directories"
    return "the agent's directory must be writable" if error.errno == errno.EROFS else "the agent runs as root"


def prepare(directory: str) -> None:
    """Make the directories. Raises AgentError."""
    try:
        made = (os.path.dirname(directory), 0o755), (directory, 0o711)
        for path, mode in (*made, *((f"{directory}/{name}", 0o700) for name in (TENANTS, CONTAINERS, PENDING))):
            try:
                os.mkdir(path, mode)
            except FileExistsError:
                continue
            os.chmod(path, mode)  # not the caller's umask
        found = os.stat(directory)
    except OSError as error:
        raise AgentError(f"{error.filename or directory}: {reason(error)}", hint=advice(error)) from None
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise AgentError(f"{directory} belongs to user {found.st_uid} with mode {found.st_mode & 0o7777:o}")


def path(directory: str, number: int) -> str:
    """The directory of a tenant's plan and socket."""
    return f"{directory}/{TENANTS}/{number}"


def save(directory: str, record: TenantRecord) -> None:
    """Raises AgentError that names the file: /run may be full."""
    write(path(directory, record.number) + _SUFFIX, record)


def write(name: str, record: Record) -> None:
    """The file ``name`` with ``record``, whole or not at all. Raises AgentError that names it."""
    temporary = f"{name}.new"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            data = dumps(record.as_data())
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), temporary)
        finally:
            os.close(descriptor)
        os.rename(temporary, name)
    except OSError as error:
        _unlink(temporary)
        raise AgentError(f"{name}: {reason(error)}", hint=advice(error)) from None


def load(directory: str) -> tuple[list[TenantRecord], list[str]]:
    """Every tenant that was written down, and what could not be read. What is damaged is set aside: one report."""
    found, problems = [], []
    for name in sorted(os.listdir(f"{directory}/{TENANTS}")):
        place = f"{directory}/{TENANTS}/{name}"
        if name.endswith(".new"):
            _unlink(place)
        if not name.endswith(_SUFFIX):
            continue
        try:
            with open(place, "rb") as file:
                record = TenantRecord.from_data(loads(file.read(_LIMIT), limit=_LIMIT))
            if name != f"{record.number}{_SUFFIX}":
                raise ValueError(f"it is of tenant {record.number}")
        except (ValueError, IsADirectoryError) as error:
            problems.append(f"{place}: {error}; {_set_aside(directory, name)}")
            continue
        except OSError as error:
            problems.append(f"{place}: {reason(error)}")
            continue
        found.append(record)
    return found, problems


def of_entry(directory: str, key: str, container: str, pid: int) -> TenantRecord | None:
    """The tenant of the container of a store's entry; None: it has none that can be read.

    pid: of its first process, 0: not known. Raises PermissionError.
    """
    for record in known(directory):
        for one in record.members:
            if one.key == key and one.container in ("", container, key) and pid in (0, one.pid):
                return record
    return None


def known(directory: str) -> list[TenantRecord]:
    """Those that can be read, for others than the agent: nothing is changed. Raises PermissionError."""
    try:
        names = os.listdir(f"{directory}/{TENANTS}")
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name in names:
        if not name.endswith(_SUFFIX) or name.startswith(DAMAGED):
            continue
        try:
            with open(f"{directory}/{TENANTS}/{name}", "rb") as file:
                found.append(TenantRecord.from_data(loads(file.read(_LIMIT), limit=_LIMIT)))
        except (OSError, ValueError):
            continue
    return found


def unread(directory: str, known: Container[int]) -> list[TenantRecord]:
    """Of tenants with a monitor that are not known: their numbers, and their containers' ids by the links."""
    names: dict[int, list[str]] = {}
    for entry in os.scandir(f"{directory}/{TENANTS}"):
        number = int(entry.name) if entry.name.isascii() and entry.name.isdigit() else 0
        if number and number not in known and os.path.exists(f"{entry.path}/monitor"):
            names[number] = []
    for entry in os.scandir(f"{directory}/{CONTAINERS}"):
        number_of = os.path.basename(os.readlink(entry.path))
        if number_of.isdigit() and int(number_of) in names:
            names[int(number_of)].append(entry.name)
    found = []
    for number, linked in names.items():
        first, *others = [Member(name, name, 0, 0) for name in sorted(linked) or [f"tenant-{number}"]]
        found.append(TenantRecord(number, **first.as_data(), since=0.0, others=tuple(others)))
    return found


def highest(directory: str) -> int:
    """The highest number of a tenant that anything is left of, a damaged record's monitor for example; 0: none."""
    names = (name.removesuffix(_SUFFIX) for name in os.listdir(f"{directory}/{TENANTS}"))
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def _set_aside(directory: str, damaged: str) -> str:
    """Give ``damaged`` a name that is not a tenant's record. Returns a message."""
    own = f"{directory}/{TENANTS}"
    now = time.time_ns()
    try:
        os.rename(f"{own}/{damaged}", f"{own}/{DAMAGED}{damaged}-{now}")
    except OSError as error:
        return f"cannot be set aside: {reason(error)}"
    return f"set aside as {DAMAGED}{damaged}-{now}"


def link(directory: str, number: int, container: str) -> None:
    """Let acceptors find the container's monitor. Raises OSError."""
    name = _link(directory, container)
    if name:
        _unlink(name)
        os.symlink(f"../{TENANTS}/{number}", name)


def unlink(directory: str, number: int, container: str) -> None:
    """A container of the tenant has ended. Raises nothing."""
    name = _link(directory, container)
    try:
        if name and os.readlink(name) == f"../{TENANTS}/{number}":
            _unlink(name)
    except OSError:
        return


def _link(directory: str, container: str) -> str:
    """The path of a container's link; "" for an id that is no name of a file."""
    if not container or "/" in container or container.startswith("."):
        return ""
    return f"{directory}/{CONTAINERS}/{container}"


def remove(directory: str, record: TenantRecord) -> None:
    """Everything of a tenant's. Raises nothing: what stays, the next agent removes."""
    place = path(directory, record.number)
    _unlink(place + _SUFFIX)
    for one in record.members:
        unlink(directory, record.number, one.container)
    try:
        for name in os.listdir(place):
            _unlink(f"{place}/{name}")
        os.rmdir(place)
    except OSError:
        return


def _unlink(name: str) -> None:
    try:
        os.unlink(name)
    except OSError:
        pass  # it is gone, or its directory cannot be written: then the next writer reports that
