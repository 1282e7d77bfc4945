"""CDI hooks of one container in one start of their program, in place of one for each CDI device.

An engine takes hooks from several devices (a claim's, and that of what all containers get), and each start is an
interpreter's and a process's for the work: together as long as all else of the container's creation.
"""

from __future__ import annotations

from hook.bundle import MEMORY_HOOK
from hook.runtime import programs, spec
from hook.runtime.shares import PROGRAM, THEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STAGE = "createContainer"
#: Options that count for all hooks of a start.
_COMMON = ("debug", "timeout", "container-spec")


def join(content: dict[str, Any], directory: str) -> None:
    """Make one entry of neighbours that start our program alike, in their order. Raises InputError."""
    hooks = content.get("hooks") and spec.section(content, "hooks", directory)
    if not hooks or not hooks.get(_STAGE):
        return
    left: list[Any] = []
    for entry in spec.entries(hooks, _STAGE, directory):
        before = left[-1] if left else None
        if before is not None and _is_plain(before) and _is_plain(entry) and _how(before) == _how(entry):
            left[-1] = {**before, "args": [*before["args"], THEN, *entry["args"][1:]]}
        else:
            left.append(entry)
    hooks[_STAGE] = left


def _how(entry: dict[str, Any]) -> dict[str, Any]:
    """All but the hooks that it names."""
    return {**entry, "args": entry["args"][:1]}


def _is_plain(entry: object) -> bool:
    """Whether it starts our program by its own name with hooks that can be joined to others."""
    found, words = programs.words(entry)
    if len(words) < 2 or {str(found.get("path")).rpartition("/")[2], words[0].rpartition("/")[2]} != {PROGRAM}:
        return False
    options = {word.lstrip("-").partition("=")[0] for word in words if word.startswith("-")}
    return not words[1].startswith("-") and MEMORY_HOOK not in words and options.isdisjoint(_COMMON)
