"""The hook of a CDI specification that gives shares: its settings in config.json, and adding it in mode cdi.

An engine may have applied the specification itself; a specification may be made without the hook, and what a container
asks for must not be lost.
"""

from __future__ import annotations

import os

from hook.bundle import CTK_HOOK, FIXED, MEMORY_HOOK, SHARE, SHARE_HOOK
from hook.process import DEFAULT_PATH
from hook.runtime import hooks, programs, spec
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
#: NVIDIA's programs, which have a hook MEMORY_HOOK of their own and none that is called SHARE_HOOK.
_FOREIGN = frozenset(("nvidia-cdi-hook", "nvidia-ctk"))


class ShareStep(Record):
    """Options of ``nvc-cdi-hook share``, "" for those not given.

    share, fixed: specs for the container. config: file with the node's rules. sim, root: of the driver.
    """

    share: str = ""
    config: str = ""
    sim: str = ""
    root: str = ""
    fixed: str = ""


def add(
    content: dict[str, Any], found: Bundle, env: Mapping[str, str], config: HookConfig, own: str, directory: str
) -> bool:
    """Add the hook that gives shares, unless nothing can ask for one or another hook does it. Raises InputError."""
    rules = own_config("", os.environ)
    if not ShareRequest(dict(found.annotations).get(SHARE, ""), "", dict(env), rules).may_matter():
        return False
    if hooks.present(content, directory, hooks.STAGES[:1]) or present(content, directory):
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
    return any(words[0] == SHARE_HOOK for words in _steps(content, _INSIDE, directory, sure=True))


def step(content: dict[str, Any], env: Mapping[str, str], directory: str) -> ShareStep | None:
    """What the container's hook that gives shares gets; None: there is none. Raises InputError.

    The first ``share`` at createContainer, or ``apply-cuda-memory-limits`` where ``env`` has a limit: that one is of
    createRuntime, so a ``share`` decides after it, with the same limit unless it names another share. An entry counts
    whose program is ours or cannot be told: without a guard the share is the preloaded library's alone.
    """
    inside, before = (_steps(content, stages, directory, sure=False) for stages in (_INSIDE, _BEFORE))
    found = next((_decode(words[1:]) for words in inside if words[0] == SHARE_HOOK), None)
    limits = (_limited(words, env) for words in before if words[0] == MEMORY_HOOK)
    limited = next((limit for limit in limits if limit), None)
    if found is None or limited is None or found.share:
        return found or limited
    return found.replace(share=limited.share)


def fixed(content: dict[str, Any], directory: str) -> tuple[str, ...]:
    """The fixed settings of all hooks of the container: each hook of a start decides by all of them.

    Hooks of other programs do not count, unless the program cannot be identified. Raises InputError.
    """
    inside = _steps(content, _INSIDE, directory, sure=False)
    found = [
        value for words in inside if words[0] == SHARE_HOOK for name, value in _options(words[1:]) if name == FIXED
    ]
    return tuple(dict.fromkeys([*hooks.options(content, FIXED, directory), *found]))


def _limited(words: list[str], env: Mapping[str, str]) -> ShareStep | None:
    """For ``apply-cuda-memory-limits``; None: ``env`` limits nothing. Raises InputError."""
    from nvc.base.log import Log
    from nvc.cdi.memory_limits import limit

    most = limit(env, Log.none())
    return _decode(words[1:]).replace(share=f"mem={most}Mi") if most else None


def _steps(content: dict[str, Any], stages: Sequence[str], directory: str, *, sure: bool) -> list[list[str]]:
    """The words of each hook that our program carries out at these stages, its name first. Raises InputError.

    sure: only where the program is known to be ours; else those follow that may be.
    """
    found = content.get("hooks") and spec.section(content, "hooks", directory)
    lists = [spec.entries(found, stage, directory) for stage in stages if found and found.get(stage)]
    entries = [programs.words(entry) for entries in lists for entry in entries]
    steps = [words for entry, given in entries if given for words in _own(entry, given)]
    if not sure:
        steps += [words for entry, given in entries if given for words in _perhaps(entry, given)]
    return [words for words in steps if words]


def _own(entry: dict[str, Any], words: list[str]) -> list[list[str]]:
    """The hooks that an entry of our program carries out, each with its words."""
    names = programs.chain(str(entry.get("path"))) | {os.path.basename(words[0])}
    if PROGRAM in names:
        return _split(words[1:])
    # Options of the program itself may come before the command.
    return _split(_after(words, _OTHER[1])) if _OTHER[0] in names else []


def _perhaps(entry: dict[str, Any], words: list[str]) -> list[list[str]]:
    """As ``_own``, where the program is started by another one or is unknown: rather one too many than none."""
    path = programs.chain(str(entry.get("path")))
    if PROGRAM in path or _OTHER[0] in path:
        return []
    variables = programs.environment(entry)
    # A shell's command is one word.
    parts = [part.strip("\"';") for word in words for part in word.split()]
    chains = [programs.chain(part, variables) for part in parts]
    starts = [at for at, names in enumerate(chains) if PROGRAM in names or parts[at] == _OTHER[1]]
    if starts:
        return [step for at in starts for step in _split(parts[at + 1 :])]
    foreign = _FOREIGN.intersection(path.union(*chains))
    hooks = (SHARE_HOOK,) if foreign else (SHARE_HOOK, MEMORY_HOOK)
    return [] if _OTHER[0] in set().union(*chains) else [parts[at:] for at, part in enumerate(parts) if part in hooks]


def _after(words: list[str], name: str) -> list[str]:
    return words[words.index(name) + 1 :] if name in words else []


def _split(words: Sequence[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for word in words:
        if word == THEN:
            found.append([])
        else:
            found[-1].append(word)
    return [step[1:] if step[:1] == [CTK_HOOK] else step for step in found]


def _decode(words: list[str]) -> ShareStep:
    """The options, written with their value behind "=" or in the next word."""
    # apply-cuda-memory-limits says --driver-root.
    names = {"share": "share", FIXED: "fixed", "config": "config", "sim": "sim", "root": "root", "driver-root": "root"}
    return ShareStep(**{names[name]: value for name, value in _options(words) if name in names})


def _options(words: list[str]) -> list[tuple[str, str]]:
    rest, found = list(words), []
    while rest:
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        if not equals and rest:
            value = rest.pop(0)
        found.append((name, value))
    return found
