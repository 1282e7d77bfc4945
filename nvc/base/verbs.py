"""A row of a service's table of verbs: the rights of its handler, and how a failed call becomes an ``NvcError``.

The tables are ``nvc.driver.verbs`` and ``nvc.container.verbs``. They are the whole surface between the process that
reads untrusted input and the two that hold foreign code or rights. A new verb is one row there and one handler;
``rpc`` refuses to start a service whose handlers differ from its table.
"""

from __future__ import annotations

from nvc.base.errors import BY_STAGE, NvcError, reason
from rpc.errors import TIMED_OUT
from rpc.method import Method, Service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, NoReturn

    from nvc.base.log import Log
    from rpc.errors import RemoteError
    from rpc.method import Message
    from rpc.server import Handler

#: The rights of a helper that waits for a request (``nvc.linux.rights.RIGHTS``).
IDLE = "info"


class Verb(Method):
    """A row: the method, and what is specific to nvc-py about it.

    why: why a caller may have this verb, whatever the request contains.
    failure: the error when the helper dies, hangs or breaks the protocol during this call.
    hint: what the user can do when there is no answer before the deadline.
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


class HelperService(Service):
    """A service of nvc-py: a table of ``Verb`` rows.

    crash_hint: what the user can do when the helper died or broke the protocol.
    """

    __slots__ = ("crash_hint",)

    def __init__(self, name: str, verbs: Iterable[Verb], *, crash_hint: str, unwinds: bool = False) -> None:
        super().__init__(name, verbs, unwinds=unwinds)
        self.crash_hint = crash_hint


def by_phase(
    service: Service, handlers: Mapping[str, Handler], use: Callable[[str], None], log: Log
) -> dict[str, Handler]:
    """The handlers, each entered with the rights of its row's phase and left with those of IDLE.

    use: ``nvc.linux.rights.use``. log: gets the causes of an error down to the system call and its arguments, which
    are not sent to the caller.
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
    """A handler's exception as data: stage, message, hint. Stage "" means that of the verb's row."""
    if isinstance(error, NvcError):
        return {"stage": error.stage, "message": error.message, "hint": error.hint}
    if isinstance(error, OSError):
        return {"stage": "", "message": str(error) if error.errno is None else system_error(error), "hint": ""}
    return {"stage": "", "message": f"{type(error).__name__}: {error}", "hint": ""}


def system_error(error: OSError) -> str:
    """The error as the reason in a message: its file, and errno's text in lower case."""
    # The text of SyscallError has the call and its arguments too.
    if type(error).__str__ is not OSError.__str__:
        return str(error)
    return f"{error.filename}: {reason(error)}" if error.filename is not None else reason(error)


def raise_remote(error: RemoteError, service: HelperService) -> NoReturn:
    """Raise the failed call as the NvcError of the handler, or as the verb's ``failure`` when the call itself failed.

    service: the one that was called.
    """
    verb = service.methods[error.verb]
    assert isinstance(verb, Verb)
    data = error.data
    if data is None:
        advice = verb.hint if error.cause == TIMED_OUT else service.crash_hint
        raise verb.failure(str(error), hint=advice) from error
    stage, message, hint = (data.get(key) for key in ("stage", "message", "hint"))
    if not isinstance(stage, str) or not isinstance(message, str) or not isinstance(hint, str):
        raise verb.failure(str(error)) from error
    raise BY_STAGE.get(stage, verb.failure)(message, hint=hint) from error
