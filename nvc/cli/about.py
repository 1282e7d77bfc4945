"""``nvc-py help``, ``version`` and ``completion``: what --help, --version and --completion print (click commands)."""

from __future__ import annotations

import click

from nvc.base.nearest import did_you_mean
from nvc.cli import groups, options, text
from nvc.cli.compat.getopt import REFERENCE


@click.command("help", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1, metavar="[COMMAND...]")
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...]) -> None:
    """Explain a command; without one, the program.

    \b
        nvc-py help
        nvc-py help share set
    """
    from nvc.cli import help

    program = _program(context)
    if not words or words[0] in options.COMMANDS:
        if len(words) > 1:
            raise click.UsageError(f"{words[0]} has no command '{words[1]}'")
        click.echo(help.help_text(program, words[0] if words else ""), nl=False)
        return
    if words[0] not in options.GROUPS:
        _unknown(words[0], options.SUMMARIES)
    shown = groups.load(words[0])
    here = click.Context(shown, info_name=f"{program} {words[0]}", **shown.context_settings)
    for word in words[1:]:
        below = getattr(shown, "commands", {})
        if word not in below:
            _unknown(word, below)
        shown = below[word]
        here = click.Context(shown, info_name=word, parent=here, **shown.context_settings)
    click.echo(shown.get_help(here))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def version(context: click.Context, as_json: bool) -> None:
    """Show the version, and how this program was built."""
    lines = text.version(reference=_program(context) == REFERENCE)
    if as_json:
        lines = text.json_text(dict(line.split(": ", 1) for line in lines.splitlines()))
    click.echo(lines, nl=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("shell", type=click.Choice(options.SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which a shell completes commands, options and values.

    \b
        eval "$(nvc-py completion bash)"          in this shell
        nvc-py completion zsh > ~/.zfunc/_nvc-py
    """
    from nvc.cli import help

    click.echo(help.completion_script(_program(context), shell), nl=False)


def _program(context: click.Context) -> str:
    return context.command_path.split(" ")[0]


def _unknown(word: str, known: object) -> None:
    names = list(known)  # type: ignore[call-overload]
    hint = did_you_mean(word, names)
    there = f"there are {', '.join(names)}" if names else "it has no commands"
    raise click.UsageError(f"unknown command '{word}'; {hint or there}")
