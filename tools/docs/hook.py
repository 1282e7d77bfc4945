"""mkdocs' hook: navigation from the tree, files beside docs/, links between all of them, generated pages.

Pages are written for plain Git hosting. What mkdocs needs otherwise is changed here while it reads them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tools.docs import markdown
from tools.docs.made import COMMANDS, DIAGRAMS, NODE, ROOT, SCREENS
from tools.docs.screens import PAGE

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

#: Path in the repository -> page of the site, where that is another one.
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "docs/README.md": "contents.md",
}
#: The navigation: section -> patterns of pages, in order. A page belongs to the longest that fits: a new one is
#: somewhere at once.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": (
        "index.md",
        "user/installing.md",
        "user/how-it-works.md",
        "user/tutorials/*",
        "user/screens.md",
        "user/simulated-machine.md",
        "user/support.md",
        "contents.md",
        "glossary.md",
    ),
    "Engines": (
        "user/engines/*",
        "user/hook.md",
        "user/runtime.md",
        "user/cdi.md",
        "user/graphics.md",
        "user/platforms.md",
    ),
    "Sharing": (
        "user/sharing.md",
        "user/guard.md",
        "user/agent.md",
        "user/latency.md",
        "user/suspend.md",
        "user/scale.md",
    ),
    "Kubernetes": ("user/kubernetes/README.md", "user/kubernetes/*"),
    "Operate": ("user/operate.md", "user/metrics.md", "user/security.md", "security-policy.md", "user/*"),
    "Migrate": ("user/migrate/from-nvidia-container-toolkit.md", "user/migrate/*", "user/kubernetes/migration.md"),
    "Troubleshoot": ("user/troubleshooting.md", "user/doctor.md", "user/faq.md"),
    "Reference": (
        "reference/commands/*",
        "reference/configuration*.md",
        "reference/share-variables.md",
        "reference/metrics.md",
        "reference/errors.md",
        "reference/*",
        "changelog.md",
        "measured/README.md",
        "measured/*",
        "*",
    ),
    "Internals": ("internals/README.md", "internals/design.md", "internals/*"),
}


def navigation(pages: Iterable[str]) -> list[dict[str, Any]]:
    """mkdocs' nav of these pages: every page once."""
    place: dict[tuple[str, str], list[str]] = {}
    for page in sorted(pages):
        fits = [(section, one) for section, rows in SECTIONS.items() for one in rows if fnmatchcase(page, one)]
        place.setdefault(max(fits, key=lambda row: len(row[1])), []).append(page)
    found: list[dict[str, Any]] = []
    for section, rows in SECTIONS.items():
        entries: list[Any] = []
        for one in rows:
            here = place.get((section, one), [])
            group = _GROUPS.get(one)
            entries += [{group: here}] if group and here else here
        found.append({section: entries})
    return found


#: Patterns whose pages stand below a heading of their own.
_GROUPS = {
    "user/tutorials/*": "Tutorials",
    "reference/commands/*": "Commands",
    "measured/*": "Measured",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    files.remove(files.get_file_from_path("README.md"))  # type: ignore[arg-type]
    for source, page in MOVED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "user/screens.md", content=PAGE))
    for directory, target in ((COMMANDS, "reference/commands"), (DIAGRAMS, "diagrams"), (SCREENS, "screens")):
        for path in sorted(directory.glob("*.*")):
            files.append(File.generated(config, f"{target}/{path.name}", abs_src_path=str(path)))
    shim = NODE / "node_modules/iframe-worker/shim/index.js"
    files.append(File.generated(config, "assets/iframe-worker.js", abs_src_path=str(shim)))
    config.nav = navigation(file.src_uri for file in files.documentation_pages())
    return files


#: Pages that a search finds before others, and after: beginning of the path -> factor.
_BOOST = {"user/": 3.0, "index.md": 3.0, "measured/": 0.2, "changelog.md": 0.2}


def on_page_markdown(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    page.meta["search"] = {"boost": next((factor for one, factor in _BOOST.items() if here.startswith(one)), 1.0)}
    text = markdown.outside_fences(text, lambda part: _links(part, here))
    text = markdown.diagrams(text, posixpath.relpath("diagrams", posixpath.dirname(here) or "."))
    return markdown.for_python_markdown(text)


def _links(text: str, page: str) -> str:
    """Links as the site has them; one to a file that is no page (of the source) becomes its text."""
    own = {site: source for source, site in MOVED.items()}.get(page, f"docs/{page}")

    def change(found: re.Match[str]) -> str:
        words, target = found[1], found[2]
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:|/", path):
            return found[0]
        source = posixpath.normpath(posixpath.join(posixpath.dirname(own), path))
        site = MOVED.get(source) or (source.removeprefix("docs/") if source.startswith("docs/") else "")
        if not site:
            return words if (ROOT / source).exists() else found[0]
        return f"[{words}]({posixpath.relpath(site, posixpath.dirname(page) or '.')}{mark}{anchor})"

    return re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", change, text)
