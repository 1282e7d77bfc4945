"""The device options that ``list`` and ``configure`` share, as values."""

from __future__ import annotations

from nvc.base.record import Record
from nvc.model import DriverOptions
from nvc.request.options import driver_options
from nvc.request.selection import parse_imex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.cli.compat.getopt import Parsed


class DeviceRequest(Record):
    """Which devices, and what of the driver is left out.

    devices: selectors in order; None: no --device at all. mig_config, mig_monitor: their values, None if not given.
    """

    devices: tuple[str, ...] | None = None
    mig_config: str | None = None
    mig_monitor: str | None = None
    imex: tuple[int, ...] = ()
    driver: DriverOptions = DriverOptions()


def read(parsed: Parsed) -> DeviceRequest:
    """Raises ImexError, and DetectionError for options that are too long."""
    return DeviceRequest(
        devices=tuple(parsed.all("device")) if parsed.has("device") else None,
        mig_config=parsed.last("mig_config"),
        mig_monitor=parsed.last("mig_monitor"),
        imex=parse_imex(",".join(parsed.all("imex_channel"))),
        driver=driver_options(parsed.names("driver_options")),
    )
