"""``nvidia-ctk``: its hooks are those of nvidia-cdi-hook (``hook.cdi``), all else is ``nvc.cli.ctk``.

Existing CDI specs start ``nvidia-ctk hook ...`` in containers' namespaces, so that comes before anything of the rest is
imported.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

PROGRAM = "nvidia-ctk"
#: Options that may stand before ``hook``: name -> whether it takes a value.
_BEFORE = {"debug": False, "d": False, "quiet": False, "config": True}


def main(argv: Sequence[str]) -> int:
    """Run the command line without the program's name; the exit code."""
    words = hook_words(argv)
    if words is None:
        from nvc.cli.ctk.main import main as command

        return command(argv)
    from hook import cdi

    return cdi.main(words, program=PROGRAM)


def hook_words(argv: Sequence[str]) -> list[str] | None:
    """The words for nvidia-cdi-hook, None where no hook is called. Switches before ``hook`` are its own too."""
    switches: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "hook":
            return [*switches, *rest]
        name, equals, _ = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in _BEFORE:
            return None
        if not _BEFORE[name]:
            switches.append(word)
        elif not equals:
            rest = rest[1:]
    return None


def run() -> NoReturn:
    """Entry point of the command."""
    os._exit(main(sys.argv[1:]))
