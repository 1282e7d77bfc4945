"""``python -m nvc``, and the function that the installed commands call: the only place that ends the process."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Commands that ask for the inventory.
_COMMANDS = ("configure", "list", "info")


def outcome(*, wait: bool = True) -> int:
    """Run the command line of this process; its exit code. What it wrote has been written.

    wait: for the exit of helpers, see ``nvc.inject.api.Config``.
    """
    from nvc.cli.main import main, program_name

    code = main(sys.argv[1:], program_name(sys.argv[0]), wait=wait)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # closed, full, or never there (None): what we print ourselves went out unbuffered
    return code


def run() -> None:
    """Run the command line of this process and end with its code."""
    _begin_services(sys.argv[1:])
    # Not sys.exit: taking the interpreter apart costs as much as starting it, once for every container.
    os._exit(outcome(wait=False))


def _begin_services(words: Sequence[str]) -> None:
    """Fork the services that this command line will probably need: a guess, which costs a process where it is wrong."""
    place = next((place for place, word in enumerate(words) if not word.startswith("-")), len(words))
    command, before = "".join(words[place : place + 1]), words[:place]
    # A socket must not become a standard stream that was closed.
    if command not in _COMMANDS or not all(map(_is_open, (0, 1, 2))):
        return
    from nvc.driver.places import CACHE
    from nvc.inject import ahead

    # A simulated machine's inventory is elsewhere.
    machines = [word for word in words[place:] if word.startswith("--sim")]
    simulated = "NVC_SIM" in os.environ or bool(machines) or any(word.startswith("--sim") for word in before)
    if "--no-cache" in words or not (simulated or os.path.exists(CACHE)):
        # Alone: the container is looked up while NVML is initialised.
        begin = ahead.expected([*before, *machines])
        if begin is not None:
            ahead.begin_driver(begin)
    elif command == "configure" and not any(word.startswith("--dry") for word in words):
        ahead.begin_container()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    run()
