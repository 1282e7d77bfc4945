"""Which GPUs and MIG devices a request names (libnvidia-container.md 1.7.2 to 1.7.4). Pure."""

from __future__ import annotations

from nvc.base.errors import DeviceError, ImexError, MigConfigError, MigMonitorError, escaped
from nvc.base.nearest import did_you_mean
from nvc.model import MigSelection, Selection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nvc.base.errors import NvcError
    from nvc.model import Gpu, Inventory, MigDevice

#: Channels are numbered below this (driver: NV_CAPS_IMEX_CHANNEL_COUNT_MAX is within 2^20, libnvidia-container.md
#: 1.7.4).
IMEX_CHANNELS = 1 << 20

_DIGITS = frozenset("0123456789")
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
# Longest number read: nothing counted here is larger, and int() refuses thousands of digits.
_NUMBER_DIGITS = 9
# Of a selector in a message.
_SHOWN = 100


def select(
    inventory: Inventory,
    tokens: Sequence[str],
    *,
    mig_config: str | None = None,
    mig_monitor: str | None = None,
) -> Selection:
    """Choose devices.

    tokens: selectors, each of which may itself be a comma list; evaluated left to right, duplicates collapse.
    mig_config, mig_monitor: None or "all".

    On a machine without GPUs every selector is ignored, as in the reference: the container of a CPU-only node still
    starts. Raises DeviceError, MigConfigError, MigMonitorError.
    """
    gpus: dict[int, Gpu] = {}
    migs: dict[tuple[int, int], MigSelection] = {}
    everything = False
    for token in _split(tokens) if inventory.gpus else ():
        everything = token.lower() == "all"
        found = _everything(inventory) if everything else [_find(inventory, token)]
        for gpu, mig in found:
            gpus[gpu.index] = gpu
            if mig is not None:
                migs[gpu.index, mig.index] = MigSelection(gpu, mig)
        if everything:
            break
    visible = tuple(gpus.values())
    specific = bool(migs) and not everything
    return Selection(
        gpus=visible,
        migs=tuple(migs.values()),
        everything=everything,
        mig_config=_mig_wide("mig-config", MigConfigError, mig_config, visible, specific),
        mig_monitor=_mig_wide("mig-monitor", MigMonitorError, mig_monitor, visible, specific),
    )


def _split(tokens: Sequence[str]) -> Iterator[str]:
    return (token for text in tokens for token in text.split(",") if token)


def _everything(inventory: Inventory) -> Iterator[tuple[Gpu, MigDevice | None]]:
    for gpu in inventory.gpus:
        yield gpu, None
        for mig in gpu.mig_devices:
            yield gpu, mig


def _find(inventory: Inventory, token: str) -> tuple[Gpu, MigDevice | None]:
    """The device that one selector other than `all` names; the first matching form wins."""
    bus_id = normalize_bus_id(token)
    for gpu in inventory.gpus:
        if token.lower() == gpu.uuid.lower() or (bus_id and bus_id == gpu.bus_id):
            return gpu, None
    index = _index(token)
    if index is not None and index < len(inventory.gpus):
        return inventory.gpus[index], None
    for gpu in inventory.gpus:
        for mig in gpu.mig_devices:
            if token.lower() == mig.uuid.lower():
                return gpu, mig
    # "0:3d:00.0" would also read as MIG device 3 of GPU 0 (text after the number is tolerated there): a bus id that
    # is not in this machine must not select another device.
    pair = None if bus_id else _mig_pair(token)
    if pair is not None and pair[0] < len(inventory.gpus):
        gpu = inventory.gpus[pair[0]]
        for mig in gpu.mig_devices:
            if mig.index == pair[1]:
                return gpu, mig
    names = [name for gpu in inventory.gpus for name in (gpu.uuid, gpu.bus_id, *(mig.uuid for mig in gpu.mig_devices))]
    hint = did_you_mean(token, ("all", *names), otherwise=_known(inventory))
    raise DeviceError(f"{escaped(token[:_SHOWN])}: unknown device", hint=hint)


def _known(inventory: Inventory) -> str:
    # Up to a DGX fits on a line of reasonable length; 64 GPUs do not.
    names = [f"{gpu.index} ({gpu.uuid})" for gpu in inventory.gpus[:8]]
    more = f" and {len(inventory.gpus) - 8} more" if len(inventory.gpus) > 8 else ""
    migs = sum(len(gpu.mig_devices) for gpu in inventory.gpus)
    partitions = f"; MIG devices: {migs}, as GPU:INDEX or MIG-UUID" if migs else ""
    return f"this machine has the GPUs {', '.join(names)}{more}{partitions}; or say all"


def normalize_bus_id(text: str) -> str:
    """``text`` as the driver writes bus ids (%08x:%02x:%02x.0), or "" if it is not domain:bus:device.

    The function, and whatever follows the device, is ignored (the reference reads with scanf).
    """
    domain, _, rest = text.strip().partition(":")
    bus, separator, rest = rest.partition(":")
    device = rest[:2] if len(rest) > 1 and rest[1] in _HEXADECIMAL else rest[:1]
    domain = domain[2:] if domain[:2].lower() == "0x" else domain
    if not separator or len(domain.lstrip("0")) > 8 or len(bus) > 2:
        return ""
    if not all(part and _HEXADECIMAL.issuperset(part) for part in (domain, bus, device)):
        return ""
    return f"{int(domain, 16):08x}:{int(bus, 16):02x}:{int(device, 16):02x}.0"


def _index(text: str) -> int | None:
    """A decimal number that is the whole text; strtoul's leading blanks and plus sign are tolerated."""
    return _decimal(text.lstrip().removeprefix("+"))


def _decimal(digits: str) -> int | None:
    significant = digits.lstrip("0")
    if not digits or len(significant) > _NUMBER_DIGITS or not _DIGITS.issuperset(digits):
        return None
    return int(significant or "0")


def _mig_pair(text: str) -> tuple[int, int] | None:
    """``gpu:mig``; text after the second number is tolerated."""
    first, separator, second = text.partition(":")
    end = next((index for index, char in enumerate(second) if char not in _DIGITS), len(second))
    gpu, mig = _index(first), _index(second[:end])
    return None if not separator or gpu is None or mig is None else (gpu, mig)


def _mig_wide(
    name: str, error: type[NvcError], value: str | None, visible: tuple[Gpu, ...], specific: bool
) -> tuple[Gpu, ...]:
    """The MIG-capable GPUs among the visible ones, if ``value`` asks for them."""
    asked = False
    for word in (value or "").split(","):
        if not word:
            continue
        if word.lower() != "all":
            raise error(f"{escaped(word[:_SHOWN])}: only 'all' devices are currently supported")
        asked = True
    if asked and specific:
        hint = f"select whole GPUs (--device=0 or --device=all) with --{name}"
        raise error(f"all: cannot enable {name} with specific MIG devices selected", hint=hint)
    return tuple(gpu for gpu in visible if gpu.mig_capable) if asked else ()


def parse_imex(text: str) -> tuple[int, ...]:
    """IMEX channel numbers from a comma list; empty items are ignored, duplicates kept. Raises ImexError."""
    channels = []
    for item in text.split(","):
        if not item:
            continue
        channel = _decimal(item)
        if channel is None or channel >= IMEX_CHANNELS:
            hint = f"a channel is a decimal number below {IMEX_CHANNELS}"
            raise ImexError(f"unsupported IMEX channel value: {escaped(item[:_SHOWN])}", hint=hint)
        channels.append(channel)
    return tuple(channels)
