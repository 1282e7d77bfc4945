"""``nvc-py config``: the node's configuration file (click commands; nothing on the start-up path imports this)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from nvc.base import config_file
from nvc.base.errors import InputError
from nvc.cli import config_keys, text
from nvc.cli.settings import Settings
from nvc.doctor.config_check import mistakes
from nvc.doctor.host import CONFIGS

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Sections that count in nvc-py's own file only.
_OWN = tuple(config_file.OURS)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def config() -> None:
    """The configuration file of hook, runtime, agent and shares: /etc/nvc/config.toml.

    Where it does not exist, the container toolkit's file counts, /etc/nvidia-container-runtime/config.toml, but for
    [share] and [agent], which only nvc-py's own file has.

    \b
        nvc-py config default | sudo tee /etc/nvc/config.toml
        nvc-py config validate
        nvc-py config show
    """


@config.command()
@click.option("--config", "path", metavar="FILE", default="", help="This file in place of the usual ones.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(settings: Settings | None, path: str, as_json: bool) -> None:
    """Print every setting that counts, and where it comes from: file and line, or default.

    An engine may start the hook with another file (--config, NVIDIA_CTK_CONFIG_FILE_PATH, XDG_CONFIG_HOME of the
    engine): name it with --config.
    """
    main = path or next(iter(_usual(settings)), "")
    own = main if main and not config_file.is_toolkits(main) else _usual_own(settings) if not path else ""
    read = {name: _read(name) for name in {main, own} if name}
    rows = []
    for setting in config_keys.settings():
        name = own if setting.section in _OWN else main
        content, written = read.get(name, ({}, ""))
        value = config_keys.given(content, setting)
        origin = "default" if value is None else _place(name, written, setting.dotted)
        rows.append((setting.dotted, setting.default if value is None else value, origin))
    if as_json:
        found = {dotted: {"value": value, "origin": origin} for dotted, value, origin in rows}
        click.echo(text.json_text({"files": [name for name in (main, own) if name], "settings": found}), nl=False)
        return
    shown = [(dotted, config_keys.toml(value), origin) for dotted, value, origin in rows]
    widths = [max(len(row[column]) for row in shown) for column in (0, 1)]
    for dotted, value, origin in shown:
        click.echo(f"{dotted:{widths[0]}}  {value:{min(widths[1], 40)}}  {origin}")


@config.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def validate(settings: Settings | None, files: tuple[str, ...], as_json: bool) -> int:
    """Check configuration files as all their readers do: those named, or the usual ones.

    Every mistake is printed, by line. Exit code 1: a file has a mistake.

    \b
        nvc-py config validate
        nvc-py config validate ./config.toml
    """
    chosen = files or tuple(_usual(settings))
    found = [row for name in chosen for row in _checked(name)]
    bad = len({row["file"] for row in found if row["problem"]})
    if as_json:
        click.echo(text.json_text(found), nl=False)
        return 1 if bad else 0
    for row in found:
        if row["problem"]:
            click.echo(row["problem"])
        if row["hint"]:
            click.echo(f"hint: {row['hint']}", err=True)
    click.echo(text.mistakes(len(chosen), bad) if chosen else "no file: the defaults apply", err=True)
    return 1 if bad else 0


@config.command("default")
def print_default() -> None:
    """Print a file with every key, its meaning and its default, all as comments.

    \b
        nvc-py config default | sudo tee /etc/nvc/config.toml
    """
    click.echo(config_keys.sample(), nl=False)


def _usual(settings: Settings | None) -> Iterator[str]:
    """Those that exist, the one that counts first."""
    root = settings.sim.rstrip("/") if settings is not None else ""
    return (f"{root}{name}" for name in CONFIGS if os.path.lexists(f"{root}{name}"))


def _usual_own(settings: Settings | None) -> str:
    return next((name for name in _usual(settings) if not config_file.is_toolkits(name)), "")


def _read(name: str) -> tuple[dict[str, Any], str]:
    """Tables and text. Raises InputError."""
    data = _bytes(name)
    for mistake in mistakes(data, name, all_of_them=False):
        raise mistake
    return config_file.tables(data, name)[0], data.decode()


def _bytes(name: str) -> bytes:
    try:
        return config_file.read(name)
    except FileNotFoundError:
        raise config_file.missing(name) from None


def _checked(name: str) -> list[dict[str, str]]:
    """A row for each mistake, or one without a problem."""
    try:
        found = mistakes(_bytes(name), name)
    except InputError as error:
        found = [error]
    return [{"file": name, "problem": error.message, "hint": error.hint} for error in found] or [
        {"file": name, "problem": "", "hint": ""}
    ]


def _place(name: str, written: str, dotted: str) -> str:
    section, _, key = dotted.rpartition(".")
    other = f"{section}.{key.replace('-', '_')}"
    lines = config_file.lines_of(written)
    line = lines.get(dotted) or lines.get(other)
    return f"{name}:{line}" if line else name
