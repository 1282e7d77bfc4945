"""What the commands print: byte for byte nvidia-container-cli's texts (libnvidia-container.md 1.1, 1.5, 1.6), and
JSON."""

from __future__ import annotations

import os
import sys

from nvc import __version__
from nvc.base.errors import NvcError, reason
from nvc.model import NVCAPS_DEV

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from nvc.model import DriverInfo, Gpu, Inventory, Nvcap, Selection

_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_GPU_COLUMNS = ("Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location", "Architecture")


def mistakes(files: int, bad: int) -> str:
    """The last line of what checks files."""
    return f"{files} file{'' if files == 1 else 's'}, {bad} with mistakes"


def emit(descriptor: int, text: str) -> None:
    """Write all of ``text``, past Python's buffers; bytes that came in as part of a path go out unchanged.

    Raises BrokenPipeError when the reader has gone, NvcError for any other failure.
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        data = text.encode("utf-8", "backslashreplace")
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise NvcError(f"write error: {reason(error)}") from error


def json_text(data: Any) -> str:
    """``data`` as indented JSON. Imports json, so only for output that was asked for as JSON."""
    import json

    return json.dumps(data, indent=2) + "\n"


#: The release of libnvidia-container that has the options of ``nvc.cli.options``.
REFERENCE_VERSION = "1.17.9"


def version(*, reference: bool) -> str:
    """The seven lines of --version. reference: called as nvidia-container-cli, whose release clients compare."""
    shown = REFERENCE_VERSION if reference else __version__
    lines = {
        "cli-version": shown,
        "lib-version": shown,
        "build date": _installed(),
        "build revision": f"nvc-py {__version__}",
        "build compiler": f"{sys.implementation.name} {sys.version.split()[0]}",
        "build platform": os.uname().machine,
        "build flags": " ".join(flag for flag, on in (("-I", sys.flags.isolated), ("-S", sys.flags.no_site)) if on),
    }
    return "".join(f"{label}: {value}\n" for label, value in lines.items())


def _installed() -> str:
    # Python is not built; the nearest to a build date is when these files were put here.
    import time

    return time.strftime("%Y-%m-%dT%H:%M+00:00", time.gmtime(os.stat(__file__).st_mtime))


def info(driver: DriverInfo, gpus: Iterable[Gpu]) -> str:
    """`info` for people."""
    rows = [("NVRM version", driver.nvrm_version), ("CUDA version", driver.cuda_version)]
    text = _labelled(rows)
    for gpu in gpus:
        text += "\n" + _labelled(zip(_GPU_COLUMNS, _gpu_values(gpu), strict=True))
    return text


def _labelled(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(f"{label + ':':<15} {value}\n" for label, value in rows)


def _gpu_values(gpu: Gpu) -> tuple[str, ...]:
    return (str(gpu.index), str(gpu.minor), gpu.model, gpu.brand, gpu.uuid, gpu.bus_id, gpu.arch)


def info_csv(driver: DriverInfo, gpus: Iterable[Gpu]) -> str:
    """`info --csv`: two tables, values not quoted."""
    lines = ["NVRM version,CUDA version", f"{driver.nvrm_version},{driver.cuda_version}", "", ",".join(_GPU_COLUMNS)]
    lines += [",".join(_gpu_values(gpu)) for gpu in gpus]
    return "\n".join(lines) + "\n"


def info_data(driver: DriverInfo, gpus: Iterable[Gpu]) -> dict[str, Any]:
    """`info --json`."""
    return {
        "nvrm_version": driver.nvrm_version,
        "cuda_version": driver.cuda_version,
        **({"platform": driver.platform} if driver.platform else {}),
        "gpus": [
            {
                "index": gpu.index,
                "minor": gpu.minor,
                "model": gpu.model,
                "brand": gpu.brand,
                "uuid": gpu.uuid,
                "bus_id": gpu.bus_id,
                "arch": gpu.arch,
                "mig_capable": gpu.mig_capable,
                "mig_devices": [
                    {"index": mig.index, "uuid": mig.uuid, "gi": mig.gi, "ci": mig.ci} for mig in gpu.mig_devices
                ],
            }
            for gpu in gpus
        ],
    }


def device_paths(driver: DriverInfo, selection: Selection) -> list[str]:
    """Common nodes, nodes of the selected GPUs, then access to the selected MIG devices.

    Access to single MIG devices is left out where MIG config or monitor brings the whole tree.
    """
    paths = [node.path for node in driver.nodes]
    paths += [node.path for gpu in selection.gpus for node in (gpu.node, *gpu.more_nodes)]
    if not selection.mig_config and not selection.mig_monitor:
        for chosen in selection.migs:
            access = (chosen.mig.gi_access, chosen.mig.ci_access)
            paths += [nvcap.proc_path for nvcap in access]
            paths += [nvcap.node.path for nvcap in access if nvcap.node is not None]
    # WSL and Tegra have GPUs whose node is a common one.
    return list(dict.fromkeys(paths)) if driver.platform else paths


def mig_wide_paths(inventory: Inventory, nvcap: Nvcap | None, gpus: tuple[Gpu, ...]) -> list[str]:
    """What MIG config (or monitor, as ``nvcap`` says) needs on these GPUs; nothing if there are none."""
    return list(_mig_wide(inventory, nvcap, gpus)) if gpus else []


def _mig_wide(inventory: Inventory, nvcap: Nvcap | None, gpus: tuple[Gpu, ...]) -> Iterator[str]:
    if nvcap is not None:
        yield nvcap.proc_path
        if nvcap.node is not None:
            yield nvcap.node.path
    for gpu in gpus:
        yield f"{_CAPABILITIES}/gpu{gpu.minor}"
        if inventory.nvcaps_style == NVCAPS_DEV:
            yield "/dev/nvidia-caps"
            yield from (node.path for node in gpu.mig_nodes)


def imex_path(channel: int) -> str:
    """The device node of an IMEX channel."""
    return f"/dev/nvidia-caps-imex-channels/channel{channel}"
