"""The file of a tenant's ledger, which the guard writes and the next agent's guard reads."""

from __future__ import annotations

import os

from nvc.agent.state import records
from nvc.base.errors import AgentError, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.bindings.guard import Guard

_SUFFIX = ".ledger"


def keep(guard: Guard, directory: str, number: int, listeners: Sequence[int] | None) -> tuple[bool, str]:
    """Let the guard keep the tenant's ledger in a new file, which then has the name of the old one.

    listeners: those of a tenant that is taken over; None: it is new, and what lies there is of an earlier one. Returns
    whether the last guard's in-flight notification was answered, and why the old ledger was not taken, "" for taken.
    Raises AgentError.
    """
    name = records.path(directory, number) + _SUFFIX
    temporary = f"{name}.new"
    before, problem, answered = -1, "", False
    try:
        if listeners is not None:
            before = _open_old(name)
            problem = "" if before >= 0 else f"{name} is missing"
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(temporary, flags, 0o600)
        try:
            answered = guard.keep(number, file, before, listeners or ())
        except ValueError as error:
            problem = f"{name}: {error}"
        finally:
            os.close(file)
        os.rename(temporary, name)
    except OSError as error:
        raise AgentError(f"{name}: {reason(error)}", hint=records.advice(error)) from None
    finally:
        if before >= 0:
            os.close(before)
    return answered, problem


def _open_old(name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return -1
