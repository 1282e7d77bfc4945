"""What a runtime sends with a listener: the OCI runtime-spec's ContainerProcessState (config-linux.md). Pure.

    {"ociVersion": "1.0.2-dev", "fds": ["seccompFd"], "pid": 6757, "metadata": "...",
     "state": {"ociVersion": ..., "id": ..., "status": "creating", "pid": 6757, "bundle": ..., "annotations": {...}}}

runc and crun send the same but for the outer ociVersion (runc 1.1.5: "1.0.2-dev", crun 1.8.1: "0.2.0"). For a process
that is put into a running container (exec) ``status`` is "running", and ``pid`` is not the container's; crun 1.8.1 says
0 then.
"""

from __future__ import annotations

from nvc.base.errors import AgentError
from nvc.base.record import Record
from rpc.codec import CodecError, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The spec's name of the listener's descriptor among those that come along.
DESCRIPTOR = "seccompFd"
#: Bytes: annotations are in it, and engines put whole specifications into those.
LIMIT = 1 << 20
_TEXT = 4096


class ContainerProcess(Record):
    """A process whose filter has a listener.

    container: the runtime's id. pid: of the process, first: of the container's first one, as the runtime counts; 0: it
    does not say.
    """

    container: str
    pid: int
    first: int
    status: str
    bundle: str


def parse(data: bytes, descriptors: int) -> ContainerProcess:
    """What ``data`` says. descriptors: how many came. Raises AgentError that names the field."""
    if len(data) > LIMIT:
        raise AgentError(f"a runtime's message is longer than {LIMIT >> 20} MiB")
    try:
        content = loads(data, limit=LIMIT)
    except CodecError:
        raise AgentError("a runtime's message is not JSON") from None
    if not isinstance(content, dict):
        raise AgentError("a runtime's message is no object")
    state = content.get("state")
    if not isinstance(state, dict):
        raise AgentError("a runtime's message: state is missing")
    names = content.get("fds")
    if not isinstance(names, list) or names.count(DESCRIPTOR) != 1:
        raise AgentError(f"a runtime's message: fds does not name {DESCRIPTOR} once")
    if len(names) != descriptors:
        raise AgentError(f"a runtime's message: {descriptors} descriptors came, and fds has {len(names)} names")
    return ContainerProcess(
        _text(state, "id"),
        _number(content, "pid"),
        _number(state, "pid"),
        _text(state, "status"),
        _text(state, "bundle", ""),
    )


def _text(data: dict[str, Any], field: str, default: str | None = None) -> str:
    value = data.get(field, default)
    if not isinstance(value, str) or len(value) > _TEXT or (default is None and not value):
        raise AgentError(f"a runtime's message: {field} is no text, or longer than {_TEXT}")
    return value


def _number(data: dict[str, Any], field: str) -> int:
    value = data.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise AgentError(f"a runtime's message: {field} is no process number")
    return value
