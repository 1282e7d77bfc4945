"""Every fenced block of the engines' pages is run by a test of test-engines, which takes it from the page."""

from __future__ import annotations

from pathlib import Path

from tests.support import pages

TESTS = Path(__file__).parents[1] / "engines"


def test_every_block_has_a_test_that_runs_it() -> None:
    found = {(page, mark) for page in pages.PAGES for mark, _ in pages.blocks(page)}

    assert found == set(pages.RUN_BY)


def test_the_tests_are_there_and_read_the_pages() -> None:
    for (page, _), test in pages.RUN_BY.items():
        file, _, name = test.partition("::")
        text = (TESTS / file).read_text()
        assert f"def {name}(" in text, test
        assert "pages." in text or f"{page}.md" in text, test
    slurm = (TESTS.parent / "support/slurm.py").read_text()
    for mark, block in pages.blocks("slurm"):
        titles = [title for title in ("slurm.conf", "gres.conf", "oci.conf") if pages.after("slurm", title) == block]
        assert block.startswith("ln ") or (titles and f'"{titles[0]}"' in slurm.replace("'", '"')), (mark, block)


def test_an_engines_page_is_read_whole() -> None:
    """Blocks of another indent or mark would be passed over."""
    for page in pages.PAGES:
        text = (Path(__file__).parents[2] / "docs/user/engines" / f"{page}.md").read_text()
        assert text.count("```") == 2 * len(pages.blocks(page)), page
