"""``list``: the paths that a container with these devices needs, one a line."""

from __future__ import annotations

from nvc.base.record import Record
from nvc.cli import text
from nvc.cli.compat import devices
from nvc.cli.compat.devices import DeviceRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.base.log import Log
    from nvc.cli.compat.getopt import Parsed
    from nvc.cli.settings import Library, Settings
    from nvc.inject.api import Context
    from nvc.model import DriverFile, DriverInfo


class ListRequest(Record):
    """What to list."""

    devices: DeviceRequest
    binaries: bool = False
    libraries: bool = False
    compat32: bool = False
    ipcs: bool = False
    firmwares: bool = False
    json: bool = False


def read(parsed: Parsed, arguments: Sequence[str]) -> ListRequest:
    """arguments: the words after `list`, for the default selection (``_is_default``). Raises ImexError."""
    chosen = devices.read(parsed)
    if _is_default(parsed, arguments):
        return ListRequest(
            devices=chosen.replace(devices=("all",)),
            binaries=True,
            libraries=True,
            compat32=True,
            ipcs=True,
            firmwares=True,
            json=parsed.has("json"),
        )
    firmwares = False
    for option, _ in parsed.events:
        # The reference forgets a -f that stands before --no-gsp-firmware, and honours one behind it.
        if option.long in ("firmwares", "no-gsp-firmware"):
            firmwares = option.long == "firmwares"
    return ListRequest(
        devices=chosen,
        binaries=parsed.has("binaries"),
        libraries=parsed.has("libraries"),
        compat32=parsed.has("compat32"),
        ipcs=parsed.has("ipcs"),
        firmwares=firmwares,
        json=parsed.has("json"),
    )


def _is_default(parsed: Parsed, arguments: Sequence[str]) -> bool:
    """Without arguments everything is listed; also with a channel given in one word (`--imex-channel=0`, but not
    `--imex-channel 0`: libnvidia-container.md 1.6, kept because scripts may count on the output). --json and --sim
    are ours and do not count.
    """
    ours = [(option.long, value) for option, value in parsed.events if option.extra]
    # A value is a word of its own, unless it is attached.
    words = len(arguments) - sum(
        2 if value is not None and not any(word.endswith(f"={value}") for word in arguments) else 1 for _, value in ours
    )
    return words == 0 or (words == 1 and parsed.has("imex_channel"))


def run(request: ListRequest, settings: Settings, library: Library, log: Log) -> int:
    """Print it; the exit code."""
    with settings.open(library, log, request.devices.imex) as context:
        sections = _sections(request, context)
        # Before the end of the context, which waits for NVML's process.
        if request.json:
            text.emit(1, text.json_text(sections))
        else:
            text.emit(1, "".join(f"{path}\n" for paths in sections.values() for path in paths))
    return 0


def _sections(request: ListRequest, context: Context) -> dict[str, list[str]]:
    """Paths by kind, in the order of the text (libnvidia-container.md 1.6)."""
    chosen = request.devices
    inventory = context.inventory(chosen.driver)
    driver = inventory.driver
    selection = context.select(chosen.devices or (), chosen.mig_config, chosen.mig_monitor, chosen.driver)
    return {
        "devices": text.device_paths(driver, selection) if chosen.devices is not None else [],
        "imex_channels": [text.imex_path(channel) for channel in chosen.imex],
        "mig_config": text.mig_wide_paths(inventory, inventory.mig_config, selection.mig_config),
        "mig_monitor": text.mig_wide_paths(inventory, inventory.mig_monitor, selection.mig_monitor),
        "binaries": _paths(driver.binaries, request.binaries),
        "libraries": _paths(driver.libraries, request.libraries),
        "libraries32": _paths(driver.libraries32, request.libraries and request.compat32),
        "ipcs": _paths(driver.ipcs, request.ipcs),
        "firmwares": _paths(driver.firmwares, request.firmwares),
        **({"components": _components(driver, request)} if driver.platform else {}),
    }


def _components(driver: DriverInfo, request: ListRequest) -> list[str]:
    # nvidia-smi of a driver store is a program too.
    listed = _paths(driver.binaries, request.binaries)
    return [path for path in _paths(driver.components, request.libraries) if path not in listed]


def _paths(files: Sequence[DriverFile], wanted: bool) -> list[str]:
    return [file.path for file in files] if wanted else []
