"""The real OCI runtime: finding it, and becoming it."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself costs an import of enum
import os

from hook.process import DEFAULT_PATH
from nvc.base.errors import InputError, NvcError, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

#: Python ignores these; the program that is executed inherits that, and a container's process would too.
_IGNORED = (_signal.SIGPIPE, _signal.SIGXFSZ)


def find(candidates: Sequence[str], path: str, own: str) -> str:
    """The first of ``candidates`` (names or absolute paths) that is executable and is not ``own`` program.

    path: PATH; the usual directories are searched after it. Raises InputError.
    """
    directories = [part for part in f"{path}:{DEFAULT_PATH}".split(":") if part.startswith("/")]
    for name in candidates:
        places = [name] if "/" in name else [f"{directory}/{name}" for directory in directories]
        for place in places:
            # A link "runc" to this program would start itself for ever.
            if os.path.isfile(place) and os.access(place, os.X_OK) and os.path.realpath(place) != own:
                return place
    raise InputError(
        f"no OCI runtime found: {', '.join(candidates) or '(none named)'}",
        hint="install runc or crun, or name one in nvidia-container-runtime.runtimes of config.toml",
    )


def environment(current: Mapping[str, str], initial: bytes) -> dict[str, str]:
    """The environment to pass on: without the LC_CTYPE that the interpreter sets for itself where there was none."""
    kept = dict(current)
    if not any(entry.startswith(b"LC_CTYPE=") for entry in initial.split(b"\0")):
        kept.pop("LC_CTYPE", None)
    return kept


def become(program: str, argv: Sequence[str]) -> NoReturn:
    """Execute ``program`` in place of this process, with its environment, descriptors and signals as they were."""
    try:
        with open("/proc/self/environ", "rb") as file:
            passed = environment(os.environ, file.read())
    except OSError:
        passed = dict(os.environ)
    for number in _IGNORED:
        _signal.signal(number, _signal.SIG_DFL)
    try:
        os.execve(program, [program, *argv], passed)
    except OSError as error:
        raise NvcError(f"cannot execute {program}: {reason(error)}") from error
