"""``python -m nvc``, and the function that the installed commands call: the only place that ends the process."""

from __future__ import annotations

import sys

from nvc.cli.main import main, program_name


def run() -> None:
    """Run the command line of this process and exit with its code."""
    sys.exit(main(sys.argv[1:], program_name(sys.argv[0])))


if __name__ == "__main__":
    run()
