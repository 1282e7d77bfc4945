"""The hook of a CDI specification that gives shares: its settings in config.json, and adding it in mode cdi.

An engine may have applied the specification itself; a specification may be made without the hook, and what a container
asks for must not be lost.
"""

from __future__ import annotations

import os

from hook.bundle import SHARE
from hook.process import DEFAULT_PATH
from hook.runtime import hooks, spec
from hook.swarm import own as own_config
from nvc.base.record import Record
from nvc.request.injection import ShareRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hook.bundle import Bundle
    from hook.config import HookConfig

PROGRAM, NAME, THEN = "nvc-cdi-hook", "share", "then"
#: Another program that does the same, and its first word then.
_OTHER = ("nvc-py", "cdi-hook")


class ShareStep(Record):
    """Options of ``nvc-cdi-hook share``, "" for those not given.

    share: spec for the container. config: file with the node's rules. sim, root: of the driver.
    """

    share: str = ""
    config: str = ""
    sim: str = ""
    root: str = ""


def add(
    content: dict[str, Any], found: Bundle, env: Mapping[str, str], config: HookConfig, own: str, directory: str
) -> bool:
    """Add the hook that gives shares, unless nothing can ask for one or another hook does it. Raises InputError."""
    rules = own_config("", os.environ)
    if not ShareRequest(dict(found.annotations).get(SHARE, ""), "", dict(env), rules).may_matter():
        return False
    if hooks.present(content, directory) or present(content, directory):
        return False
    entries = spec.entries(spec.section(content, "hooks", directory), "createContainer", directory)
    simulated = os.environ.get("NVC_SIM", "")
    where = [f"--sim={simulated}"] if simulated else [f"--root={config.root}"] if config.root != "/" else []
    if rules:
        where.append(f"--config={rules}")  # it is started with another environment
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
    return step(content, directory) is not None


def step(content: dict[str, Any], directory: str) -> ShareStep | None:
    """What the first createContainer hook that gives shares is told; None: there is none. Raises InputError."""
    found = content.get("hooks") and spec.section(content, "hooks", directory)
    if not found or not found.get("createContainer"):
        return None
    for entry in spec.entries(found, "createContainer", directory):
        for words in _steps(entry):
            if words[:1] == [NAME]:
                return _decode(words[1:])
    return None


def _steps(entry: object) -> list[list[str]]:
    """The hooks that one entry carries out, each with its words; none when its program is not ours."""
    words = entry.get("args") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return []
    names = [os.path.basename(word) for word in (*words[:1], entry.get("path")) if isinstance(word, str)]
    if PROGRAM in names:
        rest = words[1:]
    elif _OTHER[0] in names and words[1:2] == [_OTHER[1]]:
        rest = words[2:]
    else:
        return []
    found: list[list[str]] = [[]]
    for word in rest:
        if word == THEN:
            found.append([])
        else:
            found[-1].append(word)
    return found


def _decode(words: list[str]) -> ShareStep:
    """The options, written with their value behind "=" or in the next word."""
    given: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        if not equals and rest:
            value = rest.pop(0)
        if name in ("share", "config", "sim", "root"):
            given[name] = value
    return ShareStep(**given)
