"""The container's environment: parsing, and the one question that every container is asked: does it want a GPU?

This is all that a container without a GPU pays for; the rest of the rules are in ``hook.request``.
Pure. Rules: nvidia-container-toolkit.md 1.5 and 1.6.
"""

from __future__ import annotations

from nvc.base.errors import InputError, shown
from nvc.base.gobool import TRUE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"


def parse(entries: Iterable[str]) -> dict[str, str]:
    """``NAME=value`` entries as a map; the last of two equal names wins, as for a program started with them.

    Raises InputError for an entry without "=".
    """
    variables: dict[str, str] = {}
    for index, entry in enumerate(entries):
        name, separator, value = entry.partition("=")
        if not separator:
            raise InputError(f"process.env[{index}] in config.json has no '=': {shown(entry)}")
        variables[name] = value
    return variables


def is_legacy_image(env: Mapping[str, str]) -> bool:
    """A CUDA image from before NVIDIA_REQUIRE_CUDA, which expects every GPU without asking."""
    return bool(env.get("CUDA_VERSION")) and not env.get("NVIDIA_REQUIRE_CUDA")


def is_true(value: str) -> bool:
    """A boolean as the toolkit reads it: anything else counts as false."""
    return value in TRUE


def items(value: str) -> tuple[str, ...]:
    """The parts of a comma list: trimmed, empty ones dropped, of equal ones the first kept.

    The reference keeps the *last* of two equal ones and leaves an empty string in place of the first, which becomes
    ``--device=,0`` or, in its newer path, hides every GPU. Keeping the first is what the list says.
    """
    return tuple(dict.fromkeys(part for part in (raw.strip() for raw in value.split(",")) if part))


def chosen(value: str) -> tuple[str, ...] | None:
    """The devices that a comma list asks for, as ``decide`` understands them."""
    return decide(items(value))


def decide(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The devices that ``names`` ask for; None: nothing is asked for; (): the driver without a device.

    "void" anywhere asks for nothing; otherwise the first of "all" and "none" decides alone.
    """
    if not names or "void" in names:
        return None
    for name in names:
        if name == "all":
            return ("all",)
        if name == "none":
            return ()
    return names


def visible_devices(env: Mapping[str, str]) -> tuple[str, ...] | None:
    """The GPUs that the environment asks for; None: not a GPU container; (): driver files without a GPU."""
    value = env.get(VISIBLE_DEVICES)
    if value is None:
        return ("all",) if is_legacy_image(env) else None
    return chosen(value)
