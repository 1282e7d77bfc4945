"""Shares in mode cdi: a specification may be made without them, and what a container asks for must not be lost."""

from __future__ import annotations

import os

from hook.bundle import SHARE
from hook.process import DEFAULT_PATH
from hook.runtime import hooks, spec
from nvc.injection import ShareWish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hook.bundle import Bundle
    from hook.config import HookConfig

PROGRAM, NAME = "nvc-cdi-hook", "share"


def add(
    content: dict[str, Any], found: Bundle, env: Mapping[str, str], config: HookConfig, own: str, directory: str
) -> bool:
    """Add the hook that gives shares, unless nothing can ask for one or another hook does it. Raises InputError."""
    if not ShareWish(dict(found.annotations).get(SHARE, ""), "", dict(env)).may_matter():
        return False
    if hooks.present(content, directory) or present(content, directory):
        return False
    entries = spec.entries(spec.section(content, "hooks", directory), "createContainer", directory)
    simulated = os.environ.get("NVC_SIM", "")
    where = [f"--sim={simulated}"] if simulated else [f"--root={config.root}"] if config.root != "/" else []
    path = os.environ.get("PATH", "")
    entries.append(
        {
            "path": hooks.beside(PROGRAM, own, path),
            "args": [PROGRAM, NAME, *where],
            # Never without env: runc starts an entry that has none with the container's (CVE-2025-23266).
            "env": [f"PATH={path or DEFAULT_PATH}"],
        }
    )
    return True


def present(content: dict[str, Any], directory: str) -> bool:
    """Whether a createContainer hook gives shares. Raises InputError."""
    entries = spec.entries(spec.section(content, "hooks", directory), "createContainer", directory)
    return any(_gives_shares(entry) for entry in entries)


def _gives_shares(entry: object) -> bool:
    words = entry.get("args") if isinstance(entry, dict) else None
    if not isinstance(words, list):
        return False
    return NAME in words and any(isinstance(word, str) and os.path.basename(word) == PROGRAM for word in words[:1])
