"""The program of the agent's pre-fork server: it imports both programs, which ``nvc`` alone cannot.

Installed beside the launchers (tools/install), where native/client is: an installation without that has no use for it.
"""

from __future__ import annotations

from hook import __main__ as hook
from hook import arguments, inject, process, report, state, target
from nvc import __main__ as configure
from nvc.prefork import server
from nvc.prefork.request import Programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

#: Imported for the hook's runs, which find them here.
READY = (inject, report, target)


def outside(words: Sequence[str], program: str) -> bool:
    """Whether the hook is asked for a stage outside of the container. Raises UsageError."""
    return arguments.parse(words, program).stage in state.OUTSIDE


def programs() -> Programs:
    """Both."""
    return Programs(configure.outcome, hook.outcome, outside, process.kept.update)


def run() -> NoReturn:
    """Entry point; arguments as ``nvc.prefork.server.run`` says."""
    server.run(programs())
