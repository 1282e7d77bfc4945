"""--help, --usage and shell completion, by click, from the same option rows that are parsed with.

Imported only when one of these is asked for: click costs several times what ``configure`` otherwise imports.
"""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import ShellComplete, get_completion_class, shell_complete

from nvc.base.errors import InputError
from nvc.base.nearest import did_you_mean
from nvc.cli import options, reference
from nvc.cli.groups import load
from nvc.cli.main import completion_variable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.cli.compat.getopt import Option

_WIDTH = 100
_PATHS = {"FILE": click.Path(), "PATH": click.Path(), "DIR": click.Path(file_okay=False)}

# What a command is for, and examples. {p} is the program's name.
_TEACHING: dict[str, tuple[str, str]] = {
    "": (
        "Let containers use NVIDIA GPUs: a whole GPU or a limited part of one.\n\n"
        "--sim and --json may stand behind the command too, the other options only before it. Long options may be "
        "shortened while they are unique. "
        "`{p} COMMAND --help` explains a command.",
        "# which driver and GPUs are there\n"
        "{p} info\n"
        "# give GPU 0 to a container that an OCI runtime has created, as an engine's hook does\n"
        "{p} --load-kmods configure --device=0 --compute --utility --pid=1234 /path/to/rootfs\n"
        "# the same, but only show what would be done\n"
        "{p} configure --dry-run --device=0 --compute --utility --pid=1234 /path/to/rootfs\n"
        "# complete words with TAB in this shell\n"
        'eval "$({p} --completion bash)"',
    ),
    "info": (
        "Show the driver's version and the GPUs. Needs no root.",
        "{p} info\n{p} info --csv\n{p} info --json",
    ),
    "list": (
        "List the files and devices that a container needs, one path a line. Needs no root.\n\n"
        "Without options, everything is listed. Paths are below the driver root (--root).",
        "{p} list\n"
        "{p} list --libraries --compat32\n"
        "{p} list --device=0,GPU-01234567-89ab-cdef-0123-456789abcdef --binaries\n"
        "{p} list --device=1:0        # MIG device 0 of GPU 1",
    ),
    "configure": (
        "Give a container its GPUs: driver files, device nodes, MIG capabilities and loader cache.\n\n"
        "The container is created and not yet started. With --pid, an OCI runtime has made it; without, the caller "
        "is already in the container's mount namespace (LXC, enroot). All is done, or nothing. Needs root, "
        "also of a user namespace.\n\n"
        "Without --device no GPU is given; without --compute, --utility, ... no driver libraries and programs.",
        "{p} configure --device=0 --compute --utility --pid=1234 /path/to/rootfs\n"
        "{p} configure --device=all --compute --utility --require='cuda>=12.0' --ldconfig=@/sbin/ldconfig \\\n"
        "    --pid=1234 /path/to/rootfs\n"
        "{p} --user configure --no-cgroups --device=0,1 --utility /path/to/rootfs\n"
        "{p} --sim=/tmp/machine configure --dry-run=json --device=0 --compute --pid=1234 /path/to/rootfs",
    ),
}


class _Row(click.Option):
    """A row, shown as GNU programs do: ``-d, --debug=FILE``, ``-u, --user[=UID[:GID]]``."""

    def __init__(self, option: Option) -> None:
        self.row = option
        names = [f"-{option.short}"] if option.short else []
        details: dict[str, Any] = {"is_flag": True}
        if option.metavar:
            kind = click.Choice(option.choices) if option.choices else _PATHS.get(option.metavar, click.STRING)
            details = {"type": kind, "metavar": option.metavar, "multiple": option.repeatable}
            if option.optional:
                details |= {"is_flag": False, "flag_value": ""}
        super().__init__([*names, f"--{option.long}"], help=option.help, **details)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        short = f"-{self.row.short}, " if self.row.short else "    "
        notes = []
        if len(self.row.choices) > 1:
            notes.append(f"One of: {', '.join(self.row.choices)}.")
        if self.row.repeatable and not self.row.choices:
            notes.append("May be repeated.")
        return f"{short}--{self.row.long}{_value(self.row)}", " ".join([self.row.help, *notes])


def _value(option: Option) -> str:
    value = f"={option.metavar}" if option.metavar else ""
    return f"[{value}]" if option.optional else value


class _Program(click.Group):
    """The program: its commands are those of ``nvc.cli.options``, and the click groups."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(options.SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in options.COMMANDS:
            return _command(ctx.info_name or "", cmd_name)
        if cmd_name in options.GROUPS:
            return load(cmd_name)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own would import every group for its first line.
        with formatter.section("Commands"):
            formatter.write_dl(list(options.SUMMARIES.items()))


def _command(program: str, name: str) -> click.Command:
    summary, examples = _TEACHING[name]
    block = "\n".join(f"  {line}" for line in examples.format(p=program).splitlines())
    settings: dict[str, Any] = {
        "params": [_Row(option) for option in options.rows(name)],
        "help": summary.format(p=program),
        "epilog": f"\b\nExamples:\n{block}" + ("" if name else _around(program)),
        "add_help_option": False,
        "options_metavar": "[OPTION...]",
    }
    if not name:
        return _Program(program, subcommand_metavar="COMMAND [ARG...]", **settings)
    arguments = [click.Argument([operand.lower()], type=click.Path()) for operand in options.COMMANDS[name][1]]
    settings["params"] += arguments
    return click.Command(name, short_help=options.SUMMARIES[name], **settings)


def _around(program: str) -> str:
    """Variables, files and exit codes of the program, for its help."""
    parts = (("Environment", "environment"), ("Files", "files"), ("Exit status", "own_exits"))
    return "".join(f"\n\n{reference.block(title, getattr(reference, name)(reference.CLI))}" for title, name in parts)


def program(name: str) -> click.Group:
    """Everything as click commands, to walk through: the manual is made from it."""
    group = _command(name, "")
    assert isinstance(group, click.Group)
    return group


def help_text(program: str, command: str) -> str:
    """What --help shows for the program ("") or a command."""
    shown = _command(program, command)
    name = f"{program} {command}".strip()
    return shown.get_help(click.Context(shown, info_name=name, max_content_width=_WIDTH)) + "\n"


def usage_text(program: str, command: str) -> str:
    """What --usage shows: every option in brackets."""
    operands: Sequence[str] = options.COMMANDS[command][1] if command else ("COMMAND", "[ARG...]")
    words = [_bracketed(option) for option in options.rows(command)]
    head = f"Usage: {program} {command}".strip()
    # Not click's formatter: it breaks lines inside option names.
    lines = textwrap.wrap(
        " ".join([head, *words, *operands]),
        width=_WIDTH,
        subsequent_indent=" " * (len(head) + 1),
        break_on_hyphens=False,
    )
    return "\n".join(lines) + "\n"


def _bracketed(option: Option) -> str:
    short = f"-{option.short}|" if option.short else ""
    return f"[{short}--{option.long}{_value(option)}]"


def completion_script(program: str, shell: str) -> str:
    """The script that teaches ``shell`` to complete ``program``. Raises InputError for a shell we do not know."""
    kind = get_completion_class(shell) if shell in options.SHELLS else None
    if kind is None:
        known = f"--completion takes one of {', '.join(options.SHELLS)}"
        raise InputError(f"unknown shell: {shell}", hint=did_you_mean(shell, options.SHELLS, otherwise=known))
    # Not kind.source(): bash's looks its version up by running bash.
    script = ShellComplete.source(kind(_command(program, ""), {}, program, completion_variable(program)))
    return f"{script.strip()}\n"


def complete(program: str) -> int:
    """Answer the completion script, which calls with its question in the environment; the exit code."""
    variable = completion_variable(program)
    return shell_complete(_command(program, ""), {}, program, variable, os.environ[variable])
