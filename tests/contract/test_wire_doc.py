"""docs/reference/verbs.md shows the tables of verbs as they are."""

from __future__ import annotations

from pathlib import Path

from nvc.base.verbs import Verb
from nvc.container.verbs import CONTAINER
from nvc.driver.verbs import DRIVER

PAGE = Path(__file__).parents[2] / "docs/reference/verbs.md"


def test_the_page_has_every_verb_and_no_other() -> None:
    rows = {
        f"| `{service.name}.{verb.name}` | `{verb.request.__name__}` | `{verb.reply.__name__}` "
        f"| {verb.failure.stage} | {verb.why} |"
        for service in (DRIVER, CONTAINER)
        for verb in service.methods.values()
        if isinstance(verb, Verb)
    }
    shown = {line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 6}
    assert rows == shown
