"""Entry of nvidia-ctk, but for ``nvidia-ctk hook``, which ``hook.ctk`` answers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nvc import __version__
from nvc.base import progress
from nvc.base.errors import NvcError
from nvc.base.nearest import did_you_mean
from nvc.cli.ctk import completion, parse
from nvc.cli.ctk.show import Log, help_text
from nvc.cli.ctk.tree import ROOT
from nvc.cli.text import emit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvc.cli.ctk.parse import Values

#: The release of NVIDIA's toolkit that has the commands and options of ``tree``.
ANSWERS = "1.20.0"
#: urfave/cli's exit code for a command that it does not know.
_NO_SUCH_COMMAND = 3


def main(words: Sequence[str]) -> int:
    """Run the command line (without the program's name); the exit code. Never raises, except what ends the
    interpreter."""
    log = Log()
    try:
        if words and words[-1] == completion.ASK:
            emit(1, "".join(f"{word}:{meaning}\n" for word, meaning in completion.candidates(ROOT, words[:-1])))
            return 0
        values = parse.parse(ROOT, words)
        log = Log(debug=values.flag("debug"), quiet=values.flag("quiet"))
        if not values.flag("quiet"):
            progress.show(values.path[0].name)
        return _run(values, log)
    except parse.WrongUsage as error:
        name = " ".join(command.name for command in error.path)
        hint = f"{error.hint}\n" if error.hint else ""
        emit(2, f"Incorrect Usage: {error}\n\n{hint}{name} --help shows what there is.\n\n")
        log.error(str(error))
        return 1
    except NvcError as error:
        log.error(f"{error} (hint: {error.hint})" if error.hint else str(error))
        return error.exit_code
    except BrokenPipeError:
        return 1  # the reader of the output has closed it: nothing to report, and nowhere to report it
    except KeyboardInterrupt:
        log.error("interrupted")
        return 130
    except ModuleNotFoundError as error:
        log.error(f"the Python module {error.name} is missing (hint: make install, or pip install nvc-py)")
        return 1
    except Exception as error:
        log.error(f"internal error: {type(error).__name__}: {error} (hint: this is a bug; please report it)")
        return 1


def version() -> str:
    """What --version prints."""
    return f"NVIDIA Container Toolkit CLI version {ANSWERS} (nvc-py {__version__})\n"


def complete(values: Values, log: Log) -> int:
    """Print the completion script of a shell: its name is the command's."""
    emit(1, completion.SCRIPTS[values.path[-1].name])
    return 0


def _run(values: Values, log: Log) -> int:
    command = values.path[-1]
    asked = parse.wants(values)
    if asked == "version":
        emit(1, version())
        return 0
    if asked == "help" or (not command.action and not values.rest):
        emit(1, help_text(values.path))
        return 0
    if not command.action:
        hint = did_you_mean(values.rest[0], (below.name for below in command.below))
        emit(2, f"No help topic for '{values.rest[0]}'{f' ({hint})' if hint else ''}\n")
        return _NO_SUCH_COMMAND
    module, _, name = command.action.partition(":")
    action: Callable[[Values, Log], int] = getattr(importlib.import_module(module), name)
    return action(values, log)
