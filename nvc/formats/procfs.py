"""The small text files of the kernel and of NVIDIA's module below /proc.

Sources: kernel ``fs/proc/devices.c``; open-gpu-kernel-modules ``nv-procfs.c`` (params, information), ``nv-caps.c``
(capability files, mig-minors); nvidia-modprobe ``modprobe-utils`` (how params and capability files are read).
"""

from __future__ import annotations

from nvc.base.record import Record
from nvc.formats import FormatError

_HEX = frozenset("0123456789abcdefABCDEF")


class FileAttributes(Record):
    """The attributes of a device node (``DeviceFile*`` keys); the defaults are nvidia-modprobe's.

    minor is -1 where the file does not say one. modify: whether user space may create and change the node.
    """

    uid: int = 0
    gid: int = 0
    mode: int = 0o666
    modify: bool = True
    minor: int = -1


class MigMinor(Record):
    """A line of mig-minors. gpu, gi, ci are -1 where the name has none. name: the path below capabilities/."""

    name: str
    minor: int
    gpu: int = -1
    gi: int = -1
    ci: int = -1


class PciAddress(Record):
    domain: int
    bus: int
    device: int
    function: int


def char_majors(text: str) -> dict[str, int]:
    """Name -> major of the character devices in /proc/devices. The first line of a name counts. Never raises:
    lines of another form are passed over, since a driver that is not ours may have any name.
    """
    majors: dict[str, int] = {}
    _, _, section = text.partition("Character devices:\n")
    for line in section.split("\n"):
        if not line:
            break
        number, _, name = line.strip().partition(" ")
        if (major := _number(number)) >= 0 and name:
            majors.setdefault(name, major)
    return majors


def file_attributes(text: str) -> FileAttributes:
    """Read /proc/driver/nvidia/params or a capability file.

    As nvidia-modprobe's ``fscanf("%31s: %u")`` does: reading ends at the first line that is not ``name: number``
    (``RegistryDwords: ""``), and what comes after it does not count.
    """
    found: dict[str, int] = {}
    for line in text.split("\n"):
        name, colon, value = line.strip().partition(":")
        if not colon or not name or (number := _number(value.strip())) < 0:
            break
        found[name] = number
    modify = found.get("ModifyDeviceFiles", found.get("DeviceFileModify", 1))
    return FileAttributes(
        found.get("DeviceFileUID", 0),
        found.get("DeviceFileGID", 0),
        found.get("DeviceFileMode", 0o666),
        modify == 1,
        found.get("DeviceFileMinor", -1),
    )


def mig_minors(text: str, gpu: int | None = None) -> tuple[MigMinor, ...]:
    """Parse /proc/driver/nvidia-caps/mig-minors. Raises FormatError naming the line.

    gpu: leave out, unread, the lines of other GPUs: the file has 135 for each of 32, whatever the machine has.
    """
    lines = enumerate(text.split("\n"), 1)
    own = "" if gpu is None else f"gpu{gpu}/"
    return tuple(
        _mig_minor(line, number)
        for number, line in lines
        if (line.startswith(own) or not line.startswith("gpu")) and line.strip()
    )


def _mig_minor(line: str, number: int) -> MigMinor:
    name, _, text = line.strip().rpartition(" ")
    minor = _number(text)
    if minor >= 0:
        if name in ("config", "monitor"):
            return MigMinor(name, minor)
        *parts, last = name.split("/")
        ids = [numbered(part, prefix) for part, prefix in zip(parts, ("gpu", "gi", "ci"), strict=False)]
        if last == "access" and len(parts) in (2, 3) and min(ids) >= 0:
            return MigMinor(name, minor, *ids)
    raise FormatError("mig-minors", f"line {number}", f"unexpected {line[:80]!r}")


def numbered(name: str, prefix: str) -> int:
    """N of a directory named ``<prefix>N`` ("gpu0", "gi3"), or -1."""
    return _number(name[len(prefix) :]) if name.startswith(prefix) else -1


def _number(text: str) -> int:
    """A decimal number of at most 32 bits or so, or -1."""
    return int(text) if len(text) <= 10 and text.isascii() and text.isdecimal() else -1


def pci_address(text: str) -> PciAddress | None:
    """``domain:bus:device.function`` in hexadecimal, whatever the width of each number, or None.

    The kernel prints the domain with %04x, so that one beyond 16 bits has five to eight digits.
    """
    front, dot, function = text.partition(".")
    numbers = [*front.split(":"), function]
    if not dot or len(numbers) != 4 or not all(map(_is_hex, numbers)):
        return None
    return PciAddress(*(int(number, 16) for number in numbers))


def _is_hex(text: str) -> bool:
    return 0 < len(text) <= 8 and _HEX.issuperset(text)


def gpu_information(text: str) -> dict[str, str]:
    """Key -> value of /proc/driver/nvidia/gpus/<address>/information ("Model", "GPU UUID", "Device Minor")."""
    pairs = (line.partition(":") for line in text.split("\n"))
    return {key.strip(): value.strip() for key, colon, value in pairs if colon and key.strip()}


def nvrm_version(text: str) -> str:
    """The driver version in /proc/driver/nvidia/version's first line ("580.159.04"), or ""."""
    line = text.split("\n", 1)[0]
    if not line.startswith("NVRM version:"):
        return ""
    for word in line.split():
        if word.count(".") in (1, 2) and word.replace(".", "").isdecimal() and word[0] != "." and word[-1] != ".":
            return word
    return ""
