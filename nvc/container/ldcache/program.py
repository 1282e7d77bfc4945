"""The host's ldconfig: which it is, and a process that will be it, started before anything is known of a container."""

from __future__ import annotations

import os
import struct

from nvc.base.errors import LdcacheError, reason
from nvc.container.ldcache import process
from nvc.linux import const
from nvc.linux.fd import Fd

#: Where the host's ldconfig is; .real is the program behind Ubuntu's shell script.
HOST_LDCONFIG = ("/sbin/ldconfig.real", "/sbin/ldconfig")
# elf.h: e_machine by uname's machine; program header type of a dynamic loader's name.
_MACHINES = {"x86_64": 62, "aarch64": 183}
_PT_INTERP = (3).to_bytes(4, "little")


def host_ldconfig() -> str:
    """The host's own program that updates the loader cache, "" when there is none."""
    return next((path for path in HOST_LDCONFIG if os.path.exists(path)), "")


def open_program(path: str) -> Fd:
    """The host's ldconfig, which a sealed copy is made of for each container (``nvc.linux.process.sealed_copy``).

    ``path.real`` is taken for a script (Ubuntu). Raises LdcacheError for what cannot run alone in a container.
    """
    try:
        file = Fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)
        if os.pread(file.fileno(), 2, 0) == b"#!" and os.path.exists(path + ".real"):
            file = Fd(os.open(path + ".real", os.O_RDONLY | os.O_CLOEXEC), path + ".real")
        _check_program(file)
        return file
    except OSError as error:
        raise LdcacheError(
            f"open failed: {path}: {reason(error)}", hint="--ldconfig=@PATH takes the path of the host's ldconfig"
        ) from error


def _check_program(file: Fd) -> None:
    """Refuse what would need a file of the container to run: a script's interpreter, a dynamic loader."""
    header = os.pread(file.fileno(), 64, 0)
    if header[:4] != b"\x7fELF" or len(header) < 64 or header[4] != 2 or header[5] != 1:
        raise LdcacheError(
            f"unsupported file format: {file.name}",
            hint="--ldconfig=@PATH takes the host's ldconfig program, not a script or a 32-bit program",
        )
    machine = struct.unpack_from("<H", header, 18)[0]
    if machine != _MACHINES.get(const.MACHINE, machine):
        raise LdcacheError(f"unsupported file format: {file.name}: not a program of this machine ({const.MACHINE})")
    offset = struct.unpack_from("<Q", header, 32)[0]
    size, count = struct.unpack_from("<HH", header, 54)
    count = min(count, 64)
    table = os.pread(file.fileno(), count * size, offset)
    for start in range(0, count * size, size or 1):
        if table[start : start + 4] == _PT_INTERP:
            raise LdcacheError(
                f"unsupported file format: {file.name}: it is dynamically linked",
                hint="it would be run with libraries of the container; give a static ldconfig with --ldconfig=@PATH",
            )


def in_advance() -> int:
    """Start the process that will be the host's ldconfig; its id, 0 where that cannot be."""
    try:
        with open_program(host_ldconfig()) as program:
            return process.in_advance(program)
    except LdcacheError:
        return 0  # reported when one is asked for
