"""What the agent writes down of its tenants, so that the next one finds them: DIRECTORY/tenants/NUMBER.json.

Written whole or not at all, before the tenant's supervisor is started. Beside it is the directory NUMBER with the plan
and the monitor's socket; DIRECTORY/containers/ID leads there, for acceptors (native/supervisor/acceptor.c).
"""

from __future__ import annotations

import errno
import os
import time

from nvc.base.errors import AgentError, reason
from nvc.base.record import Record
from rpc.codec import dumps, loads

TENANTS, CONTAINERS, PENDING = "tenants", "containers", "pending"
#: What names of files begin with that were no record of a tenant; they stay for an administrator to look at.
DAMAGED = "damaged-"
_SUFFIX = ".json"
_LIMIT = 64 << 10


class TenantRecord(Record):
    """number: the agent's. key: of the store's entry. pid, start_time: of its first process, 0: not known.

    since: seconds since 1970.
    """

    number: int
    key: str
    container: str
    pid: int
    start_time: int
    since: float


def advice(error: OSError) -> str:
    """What to do about a file of the agent's that cannot be made."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room in /run"
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
    """Every tenant that was written down, and what could not be read. What is damaged is set aside: it is told once."""
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


def link(directory: str, record: TenantRecord) -> None:
    """Let acceptors find the container's monitor. Raises OSError."""
    if record.container and "/" not in record.container and not record.container.startswith("."):
        name = f"{directory}/{CONTAINERS}/{record.container}"
        _unlink(name)
        os.symlink(f"../{TENANTS}/{record.number}", name)


def remove(directory: str, number: int) -> None:
    """Everything of a tenant's. Raises nothing: what stays, the next agent removes."""
    place = path(directory, number)
    _unlink(place + _SUFFIX)
    try:
        for entry in os.scandir(f"{directory}/{CONTAINERS}"):
            if os.readlink(entry.path) == f"../{TENANTS}/{number}":
                _unlink(entry.path)
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
