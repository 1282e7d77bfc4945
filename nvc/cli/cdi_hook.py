"""``nvc-py cdi-hook``: starts nvc-cdi-hook, which is beside this program.

The hooks read an OCI state, which is ``hook``'s work, and ``hook`` is above ``nvc``: so this becomes that program
instead of importing it. Specs name nvc-cdi-hook itself, which costs no second start.
"""

from __future__ import annotations

import os
import shutil
import sys

import click

from nvc.base.errors import NvcError

HOOK_PROGRAM = "nvc-cdi-hook"


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def cdi_hook(words: tuple[str, ...]) -> None:
    """What the hooks of CDI specs do: `nvc-py cdi-hook --help` shows nvc-cdi-hook's help."""
    try:
        beside = os.path.join(os.path.dirname(os.path.realpath(sys.argv[0])), HOOK_PROGRAM)
    except FileNotFoundError:  # a relative name, and the working directory is gone
        beside = ""
    program = beside if os.access(beside, os.X_OK) else shutil.which(HOOK_PROGRAM)
    if program is None:
        raise NvcError(f"{HOOK_PROGRAM} is not installed beside {sys.argv[0]}", hint="make install puts both in place")
    try:
        os.execv(program, [HOOK_PROGRAM, *words])
    except OSError as error:
        raise NvcError(f"{program} cannot be started: {error.strerror}") from error
