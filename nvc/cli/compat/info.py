"""``info``: the driver's versions and the GPUs."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.cli import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.base.log import Log
    from nvc.cli.compat.getopt import Parsed
    from nvc.cli.settings import Library, Settings


def read(parsed: Parsed, *, as_json: bool = False) -> str:
    """The format asked for: "text", "csv" or "json". as_json: asked for before the command.

    Raises InputError for two of them.
    """
    as_json = as_json or parsed.has("json")
    if parsed.has("csv") and as_json:
        raise InputError("--csv and --json exclude each other")
    return "csv" if parsed.has("csv") else "json" if as_json else "text"


def run(request: str, settings: Settings, library: Library, log: Log) -> int:
    """Print it; the exit code."""
    with settings.open(library, log) as context:
        driver, gpus = context.driver_info(), context.device_info()
    if request == "json":
        text.emit(1, text.json_text(text.info_data(driver, gpus)))
    elif request == "csv":
        text.emit(1, text.info_csv(driver, gpus))
    else:
        text.emit(1, text.info(driver, gpus))
    return 0
