"""The program of the agent's pre-fork server: it imports the programs, which ``nvc`` alone cannot.

Installed beside the launchers (tools/install), where native/client is: an installation without that has no use for it.
"""

from __future__ import annotations

from hook import __main__ as hook
from hook import arguments, cdi, cdi_words, inject, process, report, state, target
from hook.runtime import __main__ as runtime
from hook.runtime import granted, guard, joined, modify, refused
from nvc import __main__ as configure
from nvc.prefork import program
from nvc.prefork.request import Programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

#: Imported for the hook's runs, which find them here.
READY = (inject, report, target, granted, guard, joined, modify, refused)


def outside(words: Sequence[str], program: str) -> bool:
    """Whether the hook is asked for a stage outside of the container. Raises UsageError."""
    return arguments.parse(words, program).stage in state.OUTSIDE


def inside(words: Sequence[str]) -> bool:
    """Whether words name hooks of CDI specs for a container's namespaces, with the state on standard input."""
    options = {word.lstrip("-").partition("=")[0] for word in words if word.startswith("-")}
    is_hook = bool(words) and not words[0].startswith("-")
    return is_hook and cdi_words.MEMORY not in words and cdi_words.STATE not in options


def programs() -> Programs:
    """All of them."""
    return Programs(
        configure.outcome,
        hook.outcome,
        cdi.outcome,
        runtime.outcome,
        outside,
        inside,
        process.kept.update,
        cdi.run_words,
    )


def run() -> NoReturn:
    """Entry point; arguments as ``nvc.prefork.program.run`` says."""
    program.run(programs())
