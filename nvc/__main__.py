"""``python -m nvc``, and the function that the installed commands call: the only place that ends the process."""

from __future__ import annotations

import os
import sys

from nvc.cli.main import main, program_name


def outcome(*, wait: bool = True) -> int:
    """Run the command line of this process; its exit code. What it wrote has been written.

    wait: for the exit of helpers, see ``nvc.inject.api.Config``.
    """
    code = main(sys.argv[1:], program_name(sys.argv[0]), wait=wait)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # closed, full, or never there (None): what we print ourselves went out unbuffered
    return code


def run() -> None:
    """Run the command line of this process and end with its code."""
    # Not sys.exit: taking the interpreter apart costs as much as starting it, once for every container.
    os._exit(outcome(wait=False))


if __name__ == "__main__":
    run()
