"""Which helper offers which verb, why a caller may have it, and how its errors become ours.

The tables are the whole surface between the process that reads untrusted input and the two that hold foreign code or
rights. A new verb is one row here and one handler; ``rpc`` refuses to start a service whose handlers differ.
"""

from __future__ import annotations

from nvc.container_messages import ApplyReply, ApplyRequest, InspectReply, InspectRequest
from nvc.driver.facts import GpuRequest, NvmlGpu, NvmlSystem, SystemRequest
from nvc.errors import (
    BY_STAGE,
    ContainerError,
    DetectionError,
    InitializationError,
    MountError,
    NvcError,
    reason,
)
from rpc.errors import TIMED_OUT
from rpc.method import Method, Service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    from nvc.log import Log
    from rpc.errors import RemoteError
    from rpc.method import Message
    from rpc.server import Handler


class Verb(Method):
    """A row: the method, and what is ours about it.

    why: why a caller may have this verb, whatever it asks with it.
    failure: the error when the helper dies, hangs or breaks the protocol while it is asked this.
    hint: what a person can do when there is no answer in time.
    phase: the rights its handler starts with (``nvc.linux.rights.RIGHTS``), or "" for a helper that has none.
    """

    __slots__ = ("failure", "hint", "phase", "why")

    def __init__(
        self,
        name: str,
        request: type[Message],
        reply: type[Message],
        *,
        why: str,
        failure: type[NvcError],
        hint: str,
        phase: str = "",
        request_fds: int = 0,
        reply_fds: int = 0,
    ) -> None:
        super().__init__(name, request, reply, request_fds=request_fds, reply_fds=reply_fds)
        self.why = why
        self.failure = failure
        self.hint = hint
        self.phase = phase


_SLOW_DRIVER = (
    "the GPU driver takes too long to start: keep it loaded with nvidia-persistenced (nvidia-smi -pm 1), "
    "or allow more with --timeout SECONDS"
)
_SLOW_CONTAINER = "a file system of the host or of the container does not answer; allow more with --timeout SECONDS"
#: What a person can do about a helper that died or broke the protocol, by service.
_BROKEN = {
    "driver": "the driver's NVML library broke down, not nvc-py: try nvidia-smi, see dmesg, reinstall the driver",
    "container": "the helper was killed (out of memory? see dmesg) or is at fault: report it with --debug's log",
}

#: NVML, in a process without rights: chrooted to the driver root, uid of --user, no capabilities, no new privileges,
#: seccomp. It takes no descriptors and no paths, so a caller can make it do nothing but ask NVML.
DRIVER = Service(
    "driver",
    (
        Verb(
            "system",
            SystemRequest,
            NvmlSystem,
            why="Takes nothing. Versions and a count that every user of the machine may ask nvidia-smi for.",
            failure=InitializationError,
            hint=_SLOW_DRIVER,
        ),
        Verb(
            "gpu",
            GpuRequest,
            NvmlGpu,
            why="Takes a number that only NVML's own bounds check sees. Reads properties, sets nothing.",
            failure=DetectionError,
            hint=_SLOW_DRIVER,
        ),
    ),
)

#: Everything that needs rights: namespaces, mounts, device nodes, cgroup, ldconfig. It unwinds: told to stop in the
#: middle, or when its caller dies, it takes back what it has done to the container.
CONTAINER = Service(
    "container",
    (
        Verb(
            "inspect",
            InspectRequest,
            InspectReply,
            why="Changes nothing. Names a process and a directory; reads of the image go through the rootfs "
            "descriptor, and what comes back are paths, ids and the kind of cgroup, no contents.",
            failure=ContainerError,
            hint=_SLOW_CONTAINER,
            phase="container",
        ),
        Verb(
            "apply",
            ApplyRequest,
            ApplyReply,
            why="The caller may change a container as root does: it is root, and has only this way to. Operations are "
            "data of a closed set; sources lie below the driver root or are files of ours, targets lie below the "
            "rootfs descriptor.",
            failure=MountError,
            hint=_SLOW_CONTAINER,
            phase="mount",
        ),
    ),
    unwinds=True,
)

SERVICES: dict[str, Service] = {service.name: service for service in (DRIVER, CONTAINER)}


#: The rights of a helper that waits for a request.
IDLE = "info"


def by_phase(
    service: Service, handlers: Mapping[str, Handler], use: Callable[[str], None], log: Log
) -> dict[str, Handler]:
    """The handlers, each entered with the rights of its row's phase and left with those of IDLE.

    use: ``nvc.linux.rights.use``. log: gets what is behind an error, down to the system call and its arguments, which
    do not cross to the caller.
    """

    def guarded(verb: Verb, handler: Handler) -> Handler:
        def run(request: Any, fds: list[int]) -> Any:
            use(verb.phase)
            try:
                return handler(request, fds)
            except Exception as error:
                log_causes(error, log)
                raise
            finally:
                use(IDLE)

        return run

    verbs = {name: verb for name, verb in service.methods.items() if isinstance(verb, Verb)}
    return {name: guarded(verbs[name], handler) for name, handler in handlers.items()}


def log_causes(error: BaseException, log: Log) -> None:
    """Log what an error was raised from, the nearest first."""
    cause = error.__cause__
    while cause is not None:
        log.error(f"caused by {type(cause).__name__}: {cause}")
        cause = cause.__cause__


def translate(error: BaseException) -> dict[str, Any]:
    """What a handler raised, as data: stage word, message, hint. Stage "" leaves it to the verb's row."""
    if isinstance(error, NvcError):
        return {"stage": error.stage, "message": error.message, "hint": error.hint}
    if isinstance(error, OSError):
        return {"stage": "", "message": str(error) if error.errno is None else system_error(error), "hint": ""}
    return {"stage": "", "message": f"{type(error).__name__}: {error}", "hint": ""}


def system_error(error: OSError) -> str:
    """The error as a reason for people: its file and errno's text in lower case."""
    # SyscallError says more in its text (call, arguments) than filename and errno do.
    if type(error).__str__ is not OSError.__str__:
        return str(error)
    return f"{error.filename}: {reason(error)}" if error.filename is not None else reason(error)


def raise_remote(error: RemoteError) -> NoReturn:
    """Raise the failed call as the NvcError that the helper meant, or as the verb's own when the mechanism failed."""
    verb = SERVICES[error.service].methods[error.verb]
    assert isinstance(verb, Verb)
    data = error.data
    if data is None:
        advice = verb.hint if error.cause == TIMED_OUT else _BROKEN[error.service]
        raise verb.failure(str(error), hint=advice) from error
    stage, message, hint = (data.get(key) for key in ("stage", "message", "hint"))
    if not isinstance(stage, str) or not isinstance(message, str) or not isinstance(hint, str):
        raise verb.failure(str(error)) from error
    raise BY_STAGE.get(stage, verb.failure)(message, hint=hint) from error
