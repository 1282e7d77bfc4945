"""The hook of a CDI specification that gives shares: its settings in config.json, and adding it in mode cdi.

An engine may have applied the specification itself; a specification may be made without the hook, and what a container
asks for must not be lost.
"""

from __future__ import annotations

import os

from hook.bundle import CTK_HOOK, MEMORY_HOOK, SHARE, SHARE_HOOK
from hook.process import DEFAULT_PATH
from hook.runtime import hooks, spec
from hook.swarm import own as own_config
from nvc.base.record import Record
from nvc.request.injection import ShareRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from hook.bundle import Bundle
    from hook.config import HookConfig

PROGRAM, THEN = "nvc-cdi-hook", "then"
#: Stages of ``apply-cuda-memory-limits``, and of ``share``, which is started in the container's namespaces.
_BEFORE, _INSIDE = ("prestart", "createRuntime"), ("createContainer",)
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
            "args": [PROGRAM, SHARE_HOOK, *where],
            # Never without env: runc starts an entry that has none with the container's (CVE-2025-23266).
            "env": [f"PATH={path or DEFAULT_PATH}"],
        }
    )
    return True


def present(content: dict[str, Any], directory: str) -> bool:
    """Whether a createContainer hook gives shares. Raises InputError."""
    return any(words[0] == SHARE_HOOK for words in _steps(content, _INSIDE, directory))


def step(content: dict[str, Any], env: Mapping[str, str], directory: str) -> ShareStep | None:
    """What the container's hook that gives shares is told; None: there is none. Raises InputError.

    The first ``share`` at createContainer, or ``apply-cuda-memory-limits`` where ``env`` has a limit: that one is of
    createRuntime, so a ``share`` decides after it, with the same limit unless it is told another share.
    """
    found = next((_decode(words[1:]) for words in _steps(content, _INSIDE, directory) if words[0] == SHARE_HOOK), None)
    limits = (_limited(words, env) for words in _steps(content, _BEFORE, directory) if words[0] == MEMORY_HOOK)
    limited = next((limit for limit in limits if limit), None)
    if found is None or limited is None or found.share:
        return found or limited
    return found.replace(share=limited.share)


def _limited(words: list[str], env: Mapping[str, str]) -> ShareStep | None:
    """For ``apply-cuda-memory-limits``; None: ``env`` limits nothing. Raises InputError."""
    from nvc.base.log import Log
    from nvc.cdi.memory_limits import limit

    most = limit(env, Log.none())
    return _decode(words[1:]).replace(share=f"mem={most}Mi") if most else None


def _steps(content: dict[str, Any], stages: Sequence[str], directory: str) -> list[list[str]]:
    """The words of each hook that our program carries out at these stages, its name first. Raises InputError."""
    found = content.get("hooks") and spec.section(content, "hooks", directory)
    lists = [spec.entries(found, stage, directory) for stage in stages if found and found.get(stage)]
    return [words for entries in lists for entry in entries for words in _words(entry) if words]


def _words(entry: object) -> list[list[str]]:
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
    return [step[1:] if step[:1] == [CTK_HOOK] else step for step in found]


def _decode(words: list[str]) -> ShareStep:
    """The options, written with their value behind "=" or in the next word."""
    given: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        if not equals and rest:
            value = rest.pop(0)
        name = name.removeprefix("driver-")  # as apply-cuda-memory-limits has it
        if name in ("share", "config", "sim", "root"):
            given[name] = value
    return ShareStep(**given)
