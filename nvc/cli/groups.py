"""Commands that are click groups of their own (``sim``): imported when called, so that nothing else pays for click.

One style for all of them: global options also after the command, and errors as ``nvc.cli.main`` tells them.
"""

from __future__ import annotations

import importlib
import io
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from nvc.base.errors import InputError
from nvc.base.nearest import did_you_mean
from nvc.cli import reference
from nvc.cli.compat.getopt import ArgumentError
from nvc.cli.options import GROUPS, place
from nvc.cli.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Exit code of --check where something would change.
CHANGES = 2
#: Commands that look at no machine, with those below them: --sim would promise something.
NO_MACHINE = {
    "help": "",
    "version": "",
    "completion": "",
    "cdi-hook": "its words are nvc-cdi-hook's, which has --sim where a hook looks at the machine",
    "seccomp": "a profile is made of tables",
    "runtime configure": "it edits files of this computer's engines",
    "sim create": "the machine is its argument",
    "sim list": "",
    "sim start": "the machine is its argument",
    "sim stop": "the machine is its argument",
    "sim run": "the machine is its argument",
    "sim describe": "",
    "kube claims": "it asks a cluster",
}
#: Commands without --json, and why.
NO_JSON = {
    "agent": "it logs JSON",
    "seccomp": "a profile is JSON",
    "cdi-hook": "its words are nvc-cdi-hook's",
    "cdi generate": "--format=json",
    "sim create": "it makes files",
    "sim start": "it starts a process",
    "sim stop": "it ends a process",
    "sim run": "the output is the program's",
    "kube device-plugin": "it logs JSON",
    "kube driver": "it logs JSON",
    "kube inventory": "it prints JSON",
    "help": "text for people",
    "completion": "a script",
    "config default": "a file",
}
_CHOICE = re.compile(r"'([^']*)' is not one of ")
_COMMAND = re.compile(r"No such command '(.*?)'")


def load(command: str) -> click.Command:
    """The click command of this name."""
    module, attribute = GROUPS[command]
    found: click.Command = getattr(importlib.import_module(module), attribute)
    _adapt(found, command)
    return found


def run(command: str, arguments: Sequence[str], program: str, general: Settings | None = None) -> int:
    """Run it; the exit code. Raises ArgumentError for wrong arguments; NvcError passes through.

    general: the global options, which commands find in click's context.
    """
    found = load(command)
    asked = _json(found) if general is not None and general.json else None
    # Bytes of a name that are no text go out as they came in, as in nvc.cli.text.emit.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        result = found.main(
            list(arguments), f"{program} {command}", standalone_mode=False, obj=general, default_map=asked
        )
    except click.Abort:
        return 1
    except SystemExit:
        raise BrokenPipeError from None  # click's way to tell of a reader that left
    except click.UsageError as error:
        raise _wrong(error, _typed(found, arguments, f"{program} {command}"), program) from None
    except click.ClickException as error:
        raise InputError(error.format_message()) from None
    # A number is what the command returned, or the code of click's Exit, which this mode returns too.
    return result if isinstance(result, int) else 0


def homes(word: str) -> list[str]:
    """The commands of groups that are called so: "share ls"."""
    found = ((name, load(name)) for name in GROUPS)
    return [f"{name} {word}" for name, group in found if isinstance(group, click.Group) and word in group.commands]


def _typed(command: click.Command, words: Sequence[str], name: str) -> str:
    """The whole name of the command that these words call."""
    for word in words:
        if isinstance(command, click.Group) and word in command.commands:
            command, name = command.commands[word], f"{name} {word}"
    return name


def _adapt(command: click.Command, path: str) -> None:
    """Give it and all below it the options that every command has, and exit codes of its own to its help."""
    if command.help and not command.short_help:
        # click's own for a list of commands ends in "..." where the line does.
        first = " ".join(command.help.split("\n\n")[0].split())
        command.short_help = f"{first.partition('. ')[0].rstrip('.')}."
    codes = reference.own_exits(f"nvc-py {path}")
    if codes and not command.epilog:
        rows = [*codes, *reference.own_exits("nvc-py")]
        command.epilog = reference.block("Exit status", sorted(rows, key=lambda row: (len(row[0]), row[0])))
    if not any(param.name == "sim" for param in command.params) and path not in NO_MACHINE:
        command.params.append(_option("sim", _set_machine, metavar="DIR", help="Use the simulated machine in DIR."))
    if isinstance(command, click.Group):
        command.no_args_is_help = False  # newer click raises the whole help, as the message of an error
        if not any(param.name == "as_json" for param in command.params):
            command.params.append(_option("json", _set_json, is_flag=True, hidden=True))
        for name, child in command.commands.items():
            _adapt(child, f"{path} {name}")
    elif path in NO_JSON and not any(param.name == "no_json" for param in command.params):
        command.params.append(_option("json", _refuse_json, "no_json", is_flag=True, hidden=True))
    if command.add_help_option:
        # Its own: click keeps the names of the first context that asks, which may be one without settings.
        command.add_help_option = False
        click.help_option("-h", "--help")(command)


def _option(word: str, callback: Any, name: str = "", **settings: Any) -> click.Option:
    return click.Option([f"--{word}", name or ("as_json" if word == "json" else word)], callback=callback,
                        expose_value=False, **settings)  # fmt: skip


def _set_machine(context: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None or context.resilient_parsing:
        return
    if not value:
        raise click.BadParameter("it takes a path", context, param)
    context.obj = (context.obj or Settings()).with_machine(value)


def _set_json(context: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        context.default_map = _json(context.command)


def _refuse_json(context: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        path = context.command_path.partition(" ")[2]
        raise click.UsageError(f"--json: it prints none ({NO_JSON[path]})", context)


def _json(command: click.Command) -> dict[str, Any]:
    """click's default_map in which every command prints JSON."""
    found: dict[str, Any] = {name: True for param in command.params if (name := param.name) in ("as_json", "no_json")}
    for name, child in getattr(command, "commands", {}).items():
        found[name] = _json(child)
    return found


def _wrong(error: click.UsageError, typed: str, program: str) -> ArgumentError:
    """In the words of every other command. typed: the command's name, where the error has none."""
    context = error.ctx
    message, hint = " ".join(error.format_message().split()), ""
    if context is None:
        usage = f"Try `{typed} --help' for more information.\n"
        return ArgumentError(typed, f"{message[:1].lower()}{message[1:].rstrip('.')}", usage=usage)
    if isinstance(error, click.NoSuchOption):
        message = f"no such option: {error.option_name}"
        near = did_you_mean(error.option_name, (name for param in context.command.params for name in param.opts))
        hint = place(error.option_name, program) or near
    elif isinstance(context.command, click.Group) and message.startswith("Missing command"):
        message = f"a command is missing: one of {', '.join(context.command.list_commands(context))}"
    elif isinstance(context.command, click.Group) and (found := _COMMAND.match(message)):
        names = context.command.list_commands(context)
        message = f"unknown command '{found[1]}'; there are {', '.join(names)}"
        hint = did_you_mean(found[1], names)
    elif isinstance(error, click.BadParameter) and (found := _CHOICE.search(message)):
        choices = getattr(getattr(error.param, "type", None), "choices", ())
        hint = did_you_mean(found[1], map(str, choices))
    name = context.command_path
    usage = f"{context.get_usage()}\nTry `{name} --help' for more information.\n"
    return ArgumentError(name, f"{message[:1].lower()}{message[1:].rstrip('.')}", hint=hint, usage=usage)
