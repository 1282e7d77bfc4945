"""The device options that ``list`` and ``configure`` share, as values."""

from __future__ import annotations

from nvc.record import Record
from nvc.selection import parse_imex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.cli.getopt import Parsed


class DeviceRequest(Record):
    """Which devices, and the words of the driver's options.

    devices: selectors in order; None: no --device at all. mig_config, mig_monitor: their values, None if not given.
    """

    devices: tuple[str, ...] | None = None
    mig_config: str | None = None
    mig_monitor: str | None = None
    imex: tuple[int, ...] = ()
    driver_words: str = ""


def read(parsed: Parsed) -> DeviceRequest:
    """Raises ImexError."""
    return DeviceRequest(
        devices=tuple(parsed.all("device")) if parsed.has("device") else None,
        mig_config=parsed.last("mig_config"),
        mig_monitor=parsed.last("mig_monitor"),
        imex=parse_imex(",".join(parsed.all("imex_channel"))),
        driver_words=" ".join(dict.fromkeys(parsed.words("driver_words"))),
    )
