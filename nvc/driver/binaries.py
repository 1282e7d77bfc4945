"""Programs (by PATH), GSP firmware and the daemons' sockets (libnvidia-container.md 3.4 to 3.6)."""

from __future__ import annotations

import os
import stat

from nvc.base.errors import DetectionError, reason
from nvc.driver import tables
from nvc.driver.locate import host_path, is_missing, resolve, status
from nvc.model import DriverFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvc.model import DriverOptions


def directories(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The directories of PATH, as driver paths. A relative or empty one counts from the driver root, never from the
    working directory. Raises DetectionError when there is no PATH.
    """
    path = environ.get("PATH")
    if path is None:
        raise DetectionError(
            "environment variable PATH not found", hint="set PATH to the directories of the driver's programs"
        )
    return tuple(dict.fromkeys("/" + part.strip("/") for part in path.split(":")))


def beside(libraries: Sequence[DriverFile], name: str) -> tuple[str, ...]:
    """``bin`` next to the directory of the library whose name begins with ``name``.

    A driver with a directory of its own has its programs there, and the PATH of a hook, which engines write, lacks it.
    """
    path = next((file.path for file in libraries if file.path.rpartition("/")[2].startswith(name)), "")
    return (f"{path.rsplit('/', 2)[0]}/bin",) if path.count("/") > 1 else ()


def find_binaries(root: str, search: tuple[str, ...], options: DriverOptions) -> tuple[list[DriverFile], list[str]]:
    """The first program of every name in the search path, and warnings.

    A script of that name (a wrapper that starts the program elsewhere, as on hosts whose driver has a directory of its
    own) is passed over for an ELF file further along: in a container, there is nothing that it could start.
    """
    files, warnings = [], []
    for row in tables.BINARIES:
        if row.option and getattr(options, row.option):
            continue
        found = list(filter(None, (_regular(root, f"{directory}/{row.name}") for directory in search)))
        if not found:
            warnings.append(f"missing binary {row.name}")
            continue
        path = next((path for path in found if _is_elf(root, path)), found[0])
        if path != found[0]:
            warnings.append(f"selecting {path} over {found[0]}, which is a script")
        files.append(DriverFile(path, "binary", row.capability))
    return files, warnings


def _regular(root: str, path: str) -> str:
    try:
        found = resolve(root, path)
        return found if stat.S_ISREG(os.lstat(host_path(root, found)).st_mode) else ""
    except OSError:
        return ""


def _is_elf(root: str, path: str) -> bool:
    try:
        with open(host_path(root, path), "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def firmware_directory(version: str) -> str:
    """Driver path of the directory of this driver's firmware."""
    return tables.FIRMWARE_DIRECTORY.format(version=version)


def find_firmware(root: str, version: str, options: DriverOptions) -> tuple[list[DriverFile], list[str]]:
    """The GSP firmware files, by name, and warnings. Their paths are not resolved, as the reference prints them."""
    if options.no_gsp_firmware:
        return [], []
    directory = firmware_directory(version)
    try:
        names = os.listdir(host_path(root, resolve(root, directory)))
    except OSError as error:
        return [], [f"missing firmware {directory}: {reason(error)}"]
    chosen = sorted(n for n in names if n.startswith(tables.FIRMWARE_PREFIX) and n.endswith(tables.FIRMWARE_SUFFIX))
    if not chosen:
        return [], [f"missing firmware {directory}/{tables.FIRMWARE_PREFIX}*{tables.FIRMWARE_SUFFIX}"]
    return [DriverFile(f"{directory}/{name}", "firmware", "") for name in chosen], []


def ipc_paths(environ: Mapping[str, str], options: DriverOptions) -> list[tuple[str, tables.Ipc]]:
    """Where each wanted socket would be, with its row. A relative path counts from the driver root, as in PATH."""
    return [
        ("/" + ((row.variable and environ.get(row.variable)) or row.path).lstrip("/"), row)
        for row in tables.IPCS
        if not getattr(options, row.option)
    ]


def find_ipcs(root: str, environ: Mapping[str, str], options: DriverOptions) -> tuple[list[DriverFile], list[str]]:
    """The sockets and directories that exist, resolved, and warnings. One that may not be looked at is missing.

    Raises DetectionError for other failures (an input/output error).
    """
    files, warnings = [], []
    for path, row in ipc_paths(environ, options):
        try:
            mode = status(root, path).st_mode
            found = resolve(root, path)
        except OSError as error:
            if not is_missing(error):
                raise DetectionError(f"stat failed: {path}: {reason(error)}") from error
            warnings.append(f"missing ipc path {path}: {reason(error)}")
            continue
        # "/" as pipe directory would hand the whole host to the container, writable.
        if stat.S_ISSOCK(mode) or (row.variable and stat.S_ISDIR(mode) and found != "/"):
            files.append(DriverFile(found, "ipc", row.capability))
        else:
            warnings.append(f"skipping ipc path {path}: not a socket or directory of {row.note}")
    return files, warnings
