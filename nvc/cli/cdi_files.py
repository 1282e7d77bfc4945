"""``nvc-py cdi list`` and ``validate``: the spec files that engines read (click commands)."""

from __future__ import annotations

import json

import click

from nvc.base.errors import InputError
from nvc.cdi import files
from nvc.cli import text

_spec_dirs = click.option(
    "--spec-dir",
    "directories",
    multiple=True,
    metavar="DIR",
    help=f"Look here. May be repeated; a later one goes first. Default: {', '.join(files.DIRECTORIES)}.",
)


@click.command("list")
@_spec_dirs
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the warnings.")
def list_devices(directories: tuple[str, ...], as_json: bool) -> None:
    """Name every device that an engine can find, one line each.

    Engines ignore a file with a mistake as a whole, and a device that two files of one directory have. Most say
    nothing; this says it.
    """
    found = files.listing(files.find(directories or files.DIRECTORIES))
    if as_json:
        click.echo(json.dumps({"devices": found.names, "warnings": found.warnings}, indent=2))
        return
    for warning in found.warnings:
        click.echo(f"warning: {warning}", err=True)
    for name in found.names:
        click.echo(name)
    if not found.names:
        looked = ", ".join(directories or files.DIRECTORIES)
        click.echo(f"no CDI device in {looked}; make some: nvc-py cdi generate -o /var/run/cdi/nvidia.yaml", err=True)


@click.command()
@click.argument("paths", nargs=-1, metavar="[FILE]...")
@_spec_dirs
@click.option("--paths", "with_paths", is_flag=True, help="Check also that the host's files that a spec names exist.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def validate(paths: tuple[str, ...], directories: tuple[str, ...], with_paths: bool, as_json: bool) -> int:
    """Check spec files: those named, or all that engines read.

    Prints FILE: FIELD: REASON for everything that makes engines ignore the file, and with --paths for everything that
    makes them fail containers, as after an upgrade of the driver. The exit code is 1 if there was any.

    \b
        nvc-py cdi validate --paths
        nvc-py cdi validate ./nvidia.yaml
    """
    from nvc.cdi.validate import advice, missing

    if paths and directories:
        raise InputError("FILE and --spec-dir exclude each other")
    checked = tuple(files.load(path) for path in paths) if paths else files.find(directories or files.DIRECTORIES)
    bad, rows = 0, []
    for file in checked:
        lost = tuple(missing(file.spec)) if with_paths and file.spec is not None else ()
        problems = [str(problem) for problem in (*file.problems, *lost)]
        warnings = [str(problem) for problem in (advice(file.spec) if file.spec is not None else ())]
        rows.append({"file": file.path, "problems": problems, "warnings": warnings})
        bad += bool(problems)
        if as_json:
            continue
        for problem in problems:
            click.echo(f"{file.path}: {problem}")
        for warning in warnings:
            click.echo(f"warning: {file.path}: {warning}", err=True)
        if lost:
            click.echo(f"hint: make it anew: nvc-py cdi generate --output {file.path}", err=True)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return 1 if bad else 0
    looked = ", ".join(directories or files.DIRECTORIES)
    click.echo(text.mistakes(len(checked), bad) if checked else f"no spec file in {looked}", err=True)
    return 1 if bad else 0
