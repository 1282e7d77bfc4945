"""Where `make docs` puts what it makes before mkdocs runs."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build/docs"
COMMANDS, DIAGRAMS, SCREENS, SITE = PLACE / "commands", PLACE / "diagrams", PLACE / "screens", PLACE / "site"
#: npm's packages.
NODE = PLACE / "node"
