"""``nvc-py runtime``: set container engines up (click commands; nothing on the start-up path imports this)."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING

import click

from nvc.base.errors import UsageError
from nvc.cli.groups import CHANGES
from nvc.engines import removal
from nvc.engines.config import HOOK, RUNTIME, EngineConfig
from nvc.engines.files import Files, backup_path, carry_out, located
from nvc.engines.table import ENGINES, Engine, places

if TYPE_CHECKING:
    from nvc.engines.config import FileEdit, Plan

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
#: Names that engines give a meaning of their own.
_TAKEN = ("runc", "crun", "kata", "youki")
_MODES = {"hook": True, "oci-hook": True, "config-file": False, "config": False}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def runtime() -> None:
    """Container engines: make them use this program, and undo it.

    \b
        sudo nvc-py runtime configure --runtime=docker
        sudo nvc-py runtime configure --runtime=docker --remove
    """


@runtime.command()
@click.option("--runtime", "engine", type=click.Choice(list(ENGINES)), required=True, help="The engine to set up.")
@click.option(
    "--set-as-default", "--nvidia-set-as-default", "default", is_flag=True, help="Register nvc-runtime as the default."
)
@click.option(
    "--cdi", "--enable-cdi", "--cdi.enabled", "--cdi.enable", "cdi", is_flag=True, help="Switch the engine's CDI on."
)
@click.option("--remove", is_flag=True, help="Take out what this command put in.")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="With --remove: every entry that starts a program beside this one, by any name.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")
@click.option("--check", "check_only", is_flag=True, help="As --dry-run; exit code 2: something would change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--full", is_flag=True, help="Show whole new files in place of the differences.")
@click.option("--config", metavar="FILE", help="The engine's main file; given alone, the edits go there.")
@click.option(
    "--drop-in-config", "drop_in", metavar="FILE", help='Make the edits in this file beside it; "" for the main file.'
)
@click.option(
    "--runtime-name", "--nvidia-runtime-name", "name", default="nvidia", show_default=True, help="Name of the runtime."
)
@click.option(
    "--runtime-path",
    "--nvidia-runtime-path",
    "path",
    metavar="FILE",
    help=f"The program.  [default: {RUNTIME} beside this command]",
)
@click.option(
    "--hook-path",
    "--nvidia-runtime-hook-path",
    "hook",
    metavar="FILE",
    help=f"The OCI hook.  [default: {HOOK} beside this command]",
)
@click.option("--hooks-dir", metavar="DIR", help="Where the OCI hook's file goes (podman, crio).")
@click.option(
    "--config-mode",
    "mode",
    type=click.Choice(list(_MODES)),
    help="hook: an OCI hook for every container (podman's default); config-file: a runtime to choose by name.",
)
def configure(
    engine: str,
    default: bool,
    cdi: bool,
    remove: bool,
    every: bool,
    dry_run: bool,
    check_only: bool,
    as_json: bool,
    full: bool,
    config: str | None,
    drop_in: str | None,
    name: str,
    path: str | None,
    hook: str | None,
    hooks_dir: str | None,
    mode: str | None,
) -> int:
    """Make an engine use this program.

    Edits the engine's own file: all else in it stays, a backup is made before the first edit, a file with mistakes is
    refused, and a second run finds nothing to do. Prints what changed and the command that makes the engine notice.

    \b
        sudo nvc-py runtime configure --runtime=docker --set-as-default
        sudo nvc-py runtime configure --runtime=containerd --cdi
        sudo nvc-py runtime configure --runtime=podman
        nvc-py runtime configure --runtime=crio --dry-run
        nvc-py runtime configure --runtime=docker --check || echo "differs"
    """
    dry_run = dry_run or check_only
    row = ENGINES[engine]
    main, beside, directory = places(row, os.geteuid(), os.environ)
    main, beside = config or main, beside if drop_in is None and config is None else drop_in or ""
    engine_config = EngineConfig(
        name=name,
        path=path or program(RUNTIME),
        hook=hook or program(HOOK),
        default=default,
        cdi=cdi,
        hooks=_MODES[mode] if mode else row.hooks,
        main_file=absolute(main),
        drop_in=absolute(beside) if beside else "",
        hooks_dir=absolute(hooks_dir or directory) if hooks_dir or directory else "",
        # In a user namespace nobody may enter the container from outside; see docs/user/hook.md.
        stage="createContainer" if os.geteuid() else "prestart",
        remove=remove,
        resolve=located,
    )
    check(engine, row, engine_config)
    files = Files()
    if every and not remove:
        raise UsageError("--all goes with --remove", hint="without it nothing is taken out")

    def make() -> Plan:
        return removal.plan(row.plan, row.names, engine_config, files) if every else row.plan(engine_config, files)

    def show(edit: FileEdit) -> None:
        if not as_json:
            click.echo(_shown(edit, full), nl=False)

    plan = make() if dry_run else carry_out(make, files, show)
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    for edit in plan.edits if dry_run else ():
        show(edit)
    if as_json:
        click.echo(json.dumps(_as_data(plan, written=not dry_run), indent=2))
    elif not plan.edits:
        click.echo(f"nothing to change: {' and '.join(dict.fromkeys(plan.looked_at))}")
    if plan.edits:
        _advise(plan, engine_config, dry_run)
    return CHANGES if check_only and plan.edits else 0


def absolute(path: str) -> str:
    """The path from the root, links as they are: the user's names stay in the messages.

    Raises UsageError for a relative one where the working directory has been removed.
    """
    if path.startswith("/"):
        return os.path.normpath(path)
    try:
        return os.path.normpath(os.path.join(os.getcwd(), path))
    except FileNotFoundError:
        raise UsageError(f"{path}: the working directory does not exist", hint="cd / and write whole paths") from None


def program(name: str) -> str:
    """The path of one of our programs: beside the one that runs, else the first in PATH, else where packages go."""
    try:
        beside = os.path.join(os.path.dirname(absolute(sys.argv[0])), name)
    except UsageError:
        beside = ""
    return beside if os.access(beside, os.X_OK) else shutil.which(name) or f"/usr/bin/{name}"


def check(engine: str, row: Engine, engine_config: EngineConfig) -> None:
    """Raises UsageError for what cannot be meant."""
    if not _NAME.fullmatch(engine_config.name) or engine_config.name in _TAKEN:
        raise UsageError(
            f"--runtime-name: {engine_config.name!r} cannot be the name of a runtime",
            hint=f"letters, digits and ._- make a name; {', '.join(_TAKEN)} are other runtimes",
        )
    for option, value in (("--runtime-path", engine_config.path), ("--hook-path", engine_config.hook)):
        if not value.startswith("/"):
            raise UsageError(f"{option}: {value} is not an absolute path", hint="engines run with another directory")
    if engine_config.hooks and not row.hooks_dir:
        raise UsageError(
            f"{engine} has no OCI hooks of its own", hint="leave --config-mode away: the runtime adds the hook"
        )
    if engine == "docker" and engine_config.drop_in:
        raise UsageError("docker has one file only", hint="leave --drop-in-config away")
    if (
        engine_config.default
        and not engine_config.remove
        and not engine_config.hooks
        and not os.access(engine_config.path, os.X_OK)
    ):
        raise UsageError(
            f"--set-as-default: there is no program {engine_config.path}, so no container would start",
            hint="install it first, or name it with --runtime-path",
        )


def _as_data(plan: Plan, *, written: bool) -> dict[str, object]:
    return {
        "looked_at": list(dict.fromkeys(plan.looked_at)),
        "edits": [{"path": edit.path, "before": edit.before, "after": edit.after} for edit in plan.edits],
        "written": written and bool(plan.edits),
        "reload": plan.reload if plan.edits else "",
    }


def _shown(edit: FileEdit, full: bool) -> str:
    if full:
        return f"# {edit.path}\n{edit.after}" if edit.after is not None else f"# {edit.path} is removed\n"
    return difference(edit)


def difference(edit: FileEdit) -> str:
    """A unified diff that patch(1) takes."""
    old = "/dev/null" if edit.before is None else edit.path
    new = "/dev/null" if edit.after is None else edit.path
    lines = difflib.unified_diff(
        (edit.before or "").splitlines(keepends=True), (edit.after or "").splitlines(keepends=True), old, new
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _advise(plan: Plan, engine_config: EngineConfig, dry_run: bool) -> None:
    """What was done and what to do now, on standard error: standard output is the difference."""
    if dry_run:
        click.echo("nothing was written", err=True)
        return
    for edit in plan.edits:
        kept = f"; as it was: {backup_path(edit.path)}" if edit.backup == "make" else ""
        click.echo(f"{'removed' if edit.after is None else 'wrote'} {edit.path}{kept}", err=True)
    needed = engine_config.hook if engine_config.hooks else engine_config.path
    if not engine_config.remove and not os.access(needed, os.X_OK):
        click.echo(f"note: there is no program {needed} yet", err=True)
    reload = plan.reload.replace("systemctl", "systemctl --user") if os.geteuid() else plan.reload
    if reload:
        click.echo(f"now run: {reload}", err=True)
