"""Entry of the command: reads the words, calls one command, turns every failure into a line and an exit code.

A command's module is imported only when it is called, and the library (``nvc.inject.api``) only when all words could be
read: a mistake on the command line starts nothing.
"""

from __future__ import annotations

import os
import sys

from nvc import __version__
from nvc.base import progress
from nvc.base.errors import NvcError, UsageError, reason
from nvc.base.log import Log, debug_file, open_log
from nvc.base.nearest import did_you_mean
from nvc.cli import options, settings, text
from nvc.cli.compat.getopt import REFERENCE, ArgumentError, Parsed, UnknownOption, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.cli.settings import Library, Settings

#: Without progress: services, and what has a screen of its own or is read by a machine, as nvidia-container-cli is.
_OWN_OUTPUT = ("agent", "top")
_SILENT = {"--json", "--quiet", "--watch"}
REFERENCE_PROGRAM = REFERENCE
OUR_PROGRAM = "nvc-py"
#: ENOSPC, EDQUOT, EFBIG (asm-generic/errno.h; the module errno would be imported by every start).
_FULL = (28, 122, 27)


def program_name(path: str) -> str:
    """The name in messages, from argv[0]."""
    return REFERENCE_PROGRAM if path.rpartition("/")[2] == REFERENCE_PROGRAM else OUR_PROGRAM


def main(arguments: Sequence[str], program: str, library: Library | None = None, *, wait: bool = True) -> int:
    """Run the command line ``arguments`` (without the program's name); the exit code.

    library: stands in for ``nvc.inject.api``. wait: as in its ``Config``. Never raises, except what ends the
    interpreter.
    """
    invocation = _Invocation(program, library, wait=wait)
    try:
        _guard_standard_descriptors()
        return invocation.run(arguments)
    except ArgumentError as error:
        usage = error.usage or options.usage(program, error.program.removeprefix(program).strip())
        return invocation.fail(f"{error.program}: {error}", invocation.hint(error) + usage, 1)
    except NvcError as error:
        return invocation.fail(f"{program}: {error}", invocation.hint(error), error.exit_code)
    except BrokenPipeError:
        return 1  # the reader of the output has closed it: nothing to report, and nowhere to report it
    except ModuleNotFoundError as error:
        hint = f"install what {program} depends on for {sys.executable}: make install, or the package or wheel again"
        return invocation.fail(f"{program}: the Python module {error.name} is missing", f"{program}: hint: {hint}\n", 1)
    except KeyboardInterrupt:
        return invocation.fail(f"{program}: interrupted", "", 130)
    except Exception as error:
        told = _of_the_system(error)
        if told is not None:
            return invocation.fail(f"{program}: {told}", invocation.hint(told), 1)
        return invocation.internal_error(error)


class _Invocation:
    """One run: what the handlers of ``main`` need to know about how far it came."""

    def __init__(self, program: str, library: Library | None, *, wait: bool) -> None:
        self.program = program
        self.library = library
        self.wait = wait
        self.log = Log.none()
        self.arguments: Sequence[str] = ()

    def run(self, arguments: Sequence[str]) -> int:
        self.arguments = arguments
        if os.environ.get(completion_variable(self.program)):
            from nvc.cli import help

            return help.complete(self.program)
        parsed = parse(self.program, arguments, options.GLOBAL, in_order=True)
        if parsed.action:
            return self.act(parsed, "")
        if not parsed.rest:
            raise ArgumentError(self.program, f"a command is missing: one of {', '.join(options.SUMMARIES)}")
        command, rest = parsed.rest[0], parsed.rest[1:]
        is_own = command in _OWN_OUTPUT or (command == "kube" and rest[:1] != ["check"])
        if self.program == OUR_PROGRAM and not is_own and not _SILENT & {*arguments}:
            progress.show(self.program)
        if command in options.GROUPS:
            return self.group(command, rest, self.settings(parsed))
        if command not in options.COMMANDS:
            known = ", ".join(options.SUMMARIES)
            hint = did_you_mean(command, options.SUMMARIES) or self.elsewhere(command)
            raise ArgumentError(self.program, f"unknown command '{command}'; there are {known}", hint=hint)
        return self.command(command, rest, parsed)

    def elsewhere(self, word: str) -> str:
        """A hint for a word that is a command below another one."""
        if self.program != OUR_PROGRAM:
            return ""
        from nvc.cli import groups

        found = [f"{self.program} {path}" for path in groups.homes(word)]
        return f"did you mean {' or '.join(found)}?" if found else ""

    def settings(self, parsed: Parsed) -> Settings:
        """NVC_SIM counts for nvc-py alone: LXC and enroot start nvidia-container-cli with variables that a container's
        owner chose, and a simulated machine says which files of the host the container gets.
        """
        return settings.read(parsed, {} if self.program == REFERENCE_PROGRAM else os.environ)

    def command(self, command: str, rest: list[str], parsed: Parsed) -> int:
        rows, operands = options.COMMANDS[command]
        name = f"{self.program} {command}"
        try:
            chosen = parse(name, rest, rows, in_order=False)
        except UnknownOption as error:
            error.hint = options.place(error.option, self.program) or error.hint
            raise
        if chosen.action:
            return self.act(chosen, command)
        if len(chosen.operands) > len(operands):
            raise ArgumentError(name, "Too many arguments")
        if len(chosen.operands) < len(operands):
            raise ArgumentError(name, f"missing argument {operands[len(chosen.operands)]}")
        parsed.events += [event for event in chosen.events if event[0].long == "sim"]
        general = self.settings(parsed)
        if command == "configure":
            from nvc.cli.compat import configure

            # It may be a hook: crun inherits what a hook leaves, and misses the hook's end where a helper ended first.
            self.wait = True
            if general.json:
                raise ArgumentError(name, "it prints no JSON", hint=f"{name} --dry-run=json prints what it would do")
            request = configure.read(chosen)
            return configure.run(request, *self.begin(general), self.log)
        if command == "list":
            from nvc.cli.compat import list

            listing = list.read(chosen, rest)
            listing = listing.replace(json=listing.json or general.json)
            return list.run(listing, *self.begin(general), self.log)
        from nvc.cli.compat import info

        form = info.read(chosen, as_json=general.json)
        return info.run(form, *self.begin(general), self.log)

    def begin(self, general: Settings) -> tuple[Settings, Library]:
        """The command line is read: open the log and the library."""
        if general.debug:
            os.environ["NVC_DEBUG_FILE"] = general.debug
        general = general.replace(debug=general.debug or debug_file(), wait=self.wait)
        self.log = open_log(general.debug, self.program)
        self.log.info(f"{self.program} {__version__}: {' '.join(self.arguments)}")
        if general.sim:
            text.emit(2, f"{self.program}: SIMULATED machine: {general.sim}\n")
        if self.library is not None:
            return general, self.library
        from nvc.inject import api

        return general, api

    def act(self, parsed: Parsed, command: str) -> int:
        """--version, --help, --usage, --completion."""
        if parsed.action == "version":
            text.emit(1, text.version(reference=self.program == REFERENCE_PROGRAM))
            return 0
        from nvc.cli import help

        shown = {
            "help": lambda: help.help_text(self.program, command),
            "usage": lambda: help.usage_text(self.program, command),
            "completion": lambda: help.completion_script(self.program, parsed.last("completion") or ""),
        }
        text.emit(1, shown[parsed.action]())
        return 0

    def group(self, command: str, rest: list[str], general: Settings) -> int:
        from nvc.cli import groups

        return groups.run(command, rest, self.program, general)

    def hint(self, error: NvcError) -> str:
        """The line that says what to do, or none."""
        return f"{self.program}: hint: {error.hint}\n" if error.hint else ""

    def fail(self, line: str, after: str, code: int) -> int:
        """Print one line (control characters made visible: it may quote the user) and what follows; the code."""
        self.log.error(line)
        try:
            text.emit(2, f"{_visible(line)}\n{_visible(after, keep_lines=True)}")
        except (NvcError, OSError):
            pass  # there is nowhere to report it
        return code

    def internal_error(self, error: Exception) -> int:
        if self.log.enabled:
            import traceback

            self.log.error("".join(traceback.format_exception(error)))
        where = "the debug log has the details" if self.log.enabled else "run it again with --debug=FILE for details"
        line = f"{self.program}: internal error: {type(error).__name__}: {error}"
        return self.fail(
            line, f"{self.program}: hint: this is a mistake in {self.program}, please report it; {where}\n", 1
        )


def _of_the_system(error: Exception) -> NvcError | None:
    """What an error says of the system and not of this program: a full disk behind the output, and a working directory
    that was removed (getcwd(2), wherever a relative path is made absolute)."""
    if isinstance(error, FileNotFoundError) and error.filename is None and not _has_directory():
        return UsageError("the working directory does not exist", hint="cd / and write whole paths")
    if isinstance(error, OSError) and error.errno in _FULL:
        return NvcError(f"write error: {reason(error)}")
    return None


def _has_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def completion_variable(program: str) -> str:
    """The variable with which a shell's completion script calls us (click's name for it)."""
    return f"_{program.replace('-', '_').upper()}_COMPLETE"


def _visible(line: str, *, keep_lines: bool = False) -> str:
    if line.isprintable():
        return line
    return "".join(
        c if c.isprintable() or c >= "\x80" or (keep_lines and c == "\n") else f"\\x{ord(c):02x}" for c in line
    )


def _guard_standard_descriptors() -> None:
    """A descriptor below 3 that is closed would become the next file opened, and texts would go into that file."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
