"""Words for people: one printable line per fact on stderr. Imported only when there is something to say."""

from __future__ import annotations

import os

from nvc.base.errors import NvcError, escaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.base.log import Log

#: runc repeats a hook's stderr in its own message, engines cut that, and a log view shows no more.
LONGEST = 2000


#: What Podman takes for a command that is not there (libpod/oci_util.go, getOCIRuntimeError), in whatever case.
_NOT_FOUND = ("no such file or directory", "executable file not found in")


def to_stderr(program: str, error: NvcError) -> None:
    """``sentence``, for people and for the runtime or engine that started this."""
    write(2, f"{sentence(program, error)}\n")


def sentence(program: str, error: NvcError) -> str:
    """``PROGRAM: STAGE: MESSAGE (hint: HINT)``.

    One line, because Podman shows one line of a message with "permission denied"; and in other words than the kernel's
    for a missing file, because it takes those for a missing command and ends with 127.
    """
    hint = f" (hint: {one_line(_worded(error.hint))})" if error.hint else ""
    return f"{program}: {one_line(_worded(str(error)))}{hint}"


def _worded(text: str) -> str:
    for words in _NOT_FOUND:
        while (at := text.lower().find(words)) >= 0:
            text = f"{text[:at]}does not exist{text[at + len(words) :]}"
    return text


def fail(program: str, error: NvcError, debug: str) -> int:
    """Tell people, and the debug log at ``debug`` ("" for none) unless it is their screen; the exit code."""
    to_stderr(program, error)
    if debug.startswith("/") and debug != "/dev/stderr":
        from nvc.base.log import open_log

        to_log(open_log(debug, program), error)
    return error.exit_code


def to_log(log: Log, error: NvcError) -> None:
    """The same in the debug log: crun shows nothing of a hook's stderr, so that is where people find the reason."""
    log.error(one_line(str(error)))
    if error.hint:
        log.error(f"hint: {one_line(error.hint)}")


def internal(error: Exception) -> NvcError:
    """A fault of ours, as an error: people get a line to report, never a traceback."""
    text = " ".join(map(escaped, str(error).split()))
    return NvcError(f"internal error: {type(error).__name__}: {text}", hint="this is a bug; please report it")


def one_line(text: str) -> str:
    """``text`` without control characters (names in messages come from images) and not longer than LONGEST."""
    cut = text if len(text) <= LONGEST else text[:LONGEST] + "..."
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in cut)


def write(descriptor: int, text: str) -> None:
    """Write all of ``text``; a reader that has gone is no error."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass
