"""The process that does one request: forked from a warm one, made like the caller, then the program's own ``run``."""

from __future__ import annotations

import os
import signal
import sys

from nvc.agent import warm_caller
from nvc.agent.warm_request import CONFIGURE
from nvc.linux import rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from nvc.agent.warm_caller import Manner
    from nvc.agent.warm_request import Programs, Request

_DEFAULT = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def fork(request: Request, descriptors: Sequence[int], manner: Manner, ours: Manner, programs: Programs) -> int:
    """Start it; its process id. descriptors: the caller's streams and directory, which stay the caller's to close.

    Raises OSError when there is no process left.
    """
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _work(request, descriptors, manner, ours, programs, parent)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _work(
    request: Request, descriptors: Sequence[int], manner: Manner, ours: Manner, programs: Programs, parent: int
) -> NoReturn:
    """Never returns into the caller's code, whatever is raised."""
    try:
        # Helpers die with this process and undo; this one with the warm process that its client speaks to.
        rights.parent_death_signal(parent)
        _become(request, descriptors, manner, ours)
        (programs.configure if request.program in CONFIGURE else programs.hook)()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)  # as the interpreter does at its end
    finally:
        os._exit(1)


def _become(request: Request, descriptors: Sequence[int], manner: Manner, ours: Manner) -> None:
    os.fchdir(descriptors[3])
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    # The streams of other callers, the socket, the processes; but the modules' file stays.
    lowest = 3
    for number in sorted(finder.fileno() for finder in sys.meta_path if hasattr(finder, "fileno")):
        os.closerange(lowest, number)
        lowest = number + 1
    os.closerange(lowest, max(1 << 16, lowest))
    os.umask(request.mask)
    warm_caller.adopt(manner, ours)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = [request.program, *request.words]
    rights.set_name(request.program)
    signal.set_wakeup_fd(-1)
    for one in _DEFAULT:
        signal.signal(one, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
