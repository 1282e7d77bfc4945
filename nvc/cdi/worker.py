"""The process that does a CDI hook's work: it has a budget, and its caller ends it in time and says why.

What an image or a volume has could hold the hook without end (a file system that does not answer), and no engine has a
limit for hooks of CDI specifications.
"""

from __future__ import annotations

import os

from nvc.base.budgets import IMAGE_TIMEOUTS
from nvc.base.errors import MountError
from nvc.base.record import Record
from nvc.base.verbs import HelperService, Verb, raise_remote, translate
from nvc.cdi import hooks
from nvc.container.ldcache import program
from nvc.container.service import limit
from nvc.linux import rights
from rpc.errors import RemoteError
from rpc.process import start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Nothing(Record):
    """What is to be done is known where the process is forked."""


HOOK = HelperService(
    "CDI hook",
    (
        Verb(
            "run",
            Nothing,
            Nothing,
            why="The caller has decided what is done before the process was forked; a request carries nothing.",
            failure=MountError,
            hint="a file system of the container does not answer; allow more with --timeout SECONDS",
        ),
    ),
    crash_hint="the helper was killed (out of memory? see dmesg) or has a bug: report it with --debug's log",
    unwinds=True,
)


def run(work: Callable[[], object], timeout: float, *, ldconfig: bool = False) -> None:
    """Call ``work`` in a process of its own, with the rights of ``hooks.prepare``. Raises what it raises.

    timeout: of one wait, in seconds; all that an image can make it take is bounded by it. ldconfig: the loader cache
    will be updated, so the process for that starts first.
    """
    parent = os.getpid()

    def prepare() -> None:
        rights.set_name("nvc:[cdi-hook]")
        # SIGTERM: changes are undone first.
        rights.parent_death_signal(parent, 15)
        hooks.prepare()
        if ldconfig:
            program.in_advance()

    def handle(request: Nothing, fds: list[int]) -> Nothing:
        limit()
        work()
        return Nothing()

    helper = start(HOOK, {"run": handle}, prepare=prepare, translate=translate, deadline=timeout * IMAGE_TIMEOUTS)
    with helper:
        try:
            helper.call("run", Nothing())
        except RemoteError as error:
            raise_remote(error, HOOK)
