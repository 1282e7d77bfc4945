"""The process that does a CDI hook's work: it has a budget, and its caller ends it in time and says why.

What an image or a volume has could hold the hook without end (a file system that does not answer), and no engine has a
limit for hooks of CDI specifications.
"""

from __future__ import annotations

import os

from nvc.base.budgets import IMAGE_TIMEOUTS
from nvc.base.errors import MountError
from nvc.base.log import Log
from nvc.base.record import Record
from nvc.base.verbs import HelperService, Verb, raise_remote, translate
from nvc.cdi import hooks
from nvc.container.ldcache import program
from nvc.container.service import limit
from nvc.linux import process, rights
from nvc.linux.fd import Fd
from rpc.errors import RemoteError
from rpc.process import start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rpc.client import Client


class Nothing(Record):
    """It has no value."""


class Asked(Record):
    """What a process that was forked before its request is to do; another knows it.

    words: of the command line. state: the container's as it came, a character for each byte. caller, started: the
    hook's process, and when that started.
    """

    words: tuple[str, ...] = ()
    state: str = ""
    caller: int = 0
    started: int = 0


HOOK = HelperService(
    "CDI hook",
    (
        Verb(
            "run",
            Asked,
            Nothing,
            why="The caller is root. What is done was decided before the process was forked, or a request has the "
            "command line and the container's mount namespace, all that a hook's own process would have.",
            failure=MountError,
            phase="mount",
            request_fds=1,
            hint="a file system of the container does not answer; allow more with --timeout SECONDS",
        ),
    ),
    crash_hint="the helper was killed (out of memory? see dmesg) or has a bug: report it with --debug's log",
    unwinds=True,
)


#: Returns the client of a process that was forked before its request, and the container's mount namespace; or None. The
#: arguments: seconds that it may take, the debug log.
in_advance: Callable[[float, Log], tuple[Client, Fd] | None] | None = None


def run(
    work: Callable[[], object],
    timeout: float,
    *,
    ldconfig: bool = False,
    asked: Asked | None = None,
    log: Log | None = None,
) -> None:
    """Call ``work`` in a process of its own, with the rights of ``hooks.prepare``. Raises what it raises.

    timeout: of one wait, in seconds; all that an image can make it take is bounded by it. ldconfig: the loader cache
    will be updated, so the process for that starts first. asked: what ``work`` does, for a process that was forked
    before; log: the debug log, for it too.
    """
    seconds = timeout * IMAGE_TIMEOUTS
    early = in_advance(seconds, log or Log.none()) if in_advance is not None and asked is not None else None
    if early is not None and asked is not None:
        client, inside = early
        try:
            _call(client, asked.replace(caller=process.caller, started=process.caller_started), [inside.fileno()])
        finally:
            client.close(wait=False)  # it has left the container; its memory goes while no runtime waits
        return
    parent = os.getpid()

    def prepare() -> None:
        rights.set_name("nvc:[cdi-hook]")
        # SIGTERM: changes are undone first.
        rights.parent_death_signal(parent, 15)
        process.limit_life()
        hooks.prepare()
        if ldconfig:
            program.in_advance()

    def handle(request: Asked, fds: list[int]) -> Nothing:
        limit()
        work()
        return Nothing()

    with start(HOOK, {"run": handle}, prepare=prepare, translate=translate, deadline=seconds) as helper:
        _call(helper, Asked(), ())


def _call(helper: Client, asked: Asked, fds: Sequence[int]) -> None:
    try:
        helper.call("run", asked, fds)
    except RemoteError as error:
        # A process that was forked before has the name of another service: it could have been that too.
        raise_remote(RemoteError(HOOK.name, error.verb, error.cause, error.detail, error.data), HOOK)
