"""Copy what the commands require from the environment that runs this into a directory; nothing is fetched.

usage: .venv/bin/python tools/dependencies.py TARGET
Environment: REQUIREMENTS, one a line (default: what setup.cfg requires); EXTRAS, extras of setup.cfg with a space
between them: what they require, too.
"""

from __future__ import annotations

import configparser
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

from pip._vendor.packaging.requirements import InvalidRequirement, Requirement


def closure(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """Each distribution by its name, with what it requires itself. Raises ValueError for one that is not there."""
    found: dict[str, metadata.Distribution] = {}
    left = [Requirement(line) for line in requirements]
    while left:
        wanted = left.pop()
        try:
            distribution = metadata.distribution(wanted.name)
        except metadata.PackageNotFoundError:
            raise ValueError(f"{wanted} is not installed in {sys.prefix}") from None
        if not wanted.specifier.contains(distribution.version, prereleases=True):
            raise ValueError(f"{wanted}: {sys.prefix} has {distribution.version}")
        if distribution.name not in found:
            found[distribution.name] = distribution
            below = map(Requirement, distribution.requires or ())
            left += [one for one in below if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def main(target: str) -> int:
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).resolve().parents[1] / "setup.cfg")
    text = os.environ.get("REQUIREMENTS", setup["options"]["install_requires"])
    extras = setup["options.extras_require"]
    try:
        for extra in os.environ.get("EXTRAS", "").split():
            if extra not in extras:
                raise ValueError(f"setup.cfg has no extra {extra}; a node's is kube")
            text += extras[extra]
        there = closure([line for line in text.splitlines() if line and not line.startswith("#")])
    except (ValueError, InvalidRequirement) as error:
        print(f"dependencies: {error}", file=sys.stderr)
        return 1
    for distribution in there.values():
        for file in distribution.files or ():
            # Neither programs, which are outside, nor what is compiled for the place that it has here.
            if ".." not in file.parts and file.suffix != ".pyc":
                place = Path(target, str(file))
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(file.locate()), place)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
