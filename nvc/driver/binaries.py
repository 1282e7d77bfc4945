"""Programs (by PATH), GSP firmware and the daemons' sockets (libnvidia-container.md 3.4 to 3.6)."""

from __future__ import annotations

import os
import stat

from nvc.base.errors import DetectionError, reason
from nvc.driver import tables
from nvc.driver.locate import host_path, is_missing, resolve
from nvc.linux import owned
from nvc.linux.root import Root
from nvc.model import DriverEndpoint, DriverFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nvc.linux.fd import Fd
    from nvc.model import DriverOptions

#: Where the accounts of daemons are looked up, in the driver root.
PASSWD = "/etc/passwd"
_PASSWD_LIMIT = 4 << 20
_IPC_HINT = "root must own every step of it, or for MPS the user that [mps] of config.toml names"


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


def find_binaries(
    root: str, search: tuple[str, ...], options: DriverOptions, rows: tuple[tables.Binary, ...] = tables.BINARIES
) -> tuple[list[DriverFile], list[str]]:
    """The first program of every name in the search path, and warnings.

    A script of that name (a wrapper that starts the program elsewhere, as on hosts whose driver has a directory of its
    own) is passed over for an ELF file further along: in a container, there is nothing that it could start.
    """
    files: list[DriverFile] = []
    warnings: list[str] = []
    with Root.open(root) as opened:
        places = tuple(_places(opened, search))
        for row in rows:
            if row.option and getattr(options, row.option):
                continue
            there = (path for path, place in places if place is None or _has(place, row.name))
            paths = (_regular(opened, f"{path}/{row.name}", warnings) for path in there)
            found = list(filter(None, paths))
            if not found:
                warnings.append(f"missing binary {row.name}")
                continue
            path = next((path for path in found if _is_elf(root, path)), found[0])
            if path != found[0]:
                warnings.append(f"selecting {path} over {found[0]}, which is a script")
            files.append(DriverFile(path, "binary", row.capability))
    return files, warnings


def _places(root: Root, search: tuple[str, ...]) -> Iterator[tuple[str, Fd | None]]:
    """The directories that are there, open; None for one that a user's link leads to: a warning is due for its files.

    Most names are in none, which one call says below an open directory.
    """
    for directory in search:
        try:
            yield directory, owned.Sources(root.fd).open(directory)
        except owned.Untrusted:
            yield directory, None
        except OSError:
            continue


def _has(directory: Fd, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory.fileno(), follow_symlinks=False)
    except OSError:
        return False
    return True


def _regular(root: Root, path: str, warnings: list[str]) -> str:
    """Where the file at ``path`` is, or "" without one. What a user's link in PATH leads to is not taken."""
    try:
        found = owned.real_path(root.fd, path)
        return found if stat.S_ISREG(root.stat(found, follow=False).st_mode) else ""
    except owned.Untrusted as error:
        warnings.append(f"skipping binary {path}: {error.text}")
    except OSError:
        pass
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


def find_ipcs(root: str, environ: Mapping[str, str], options: DriverOptions) -> tuple[list[DriverEndpoint], list[str]]:
    """The sockets and directories that containers may be given, and warnings. One that may not be looked at is missing.

    They are looked at again when they are mounted (``nvc.linux.owned``). Raises DetectionError for other failures (an
    input/output error).
    """
    found: list[DriverEndpoint] = []
    warnings: list[str] = []
    with Root.open(root) as opened:
        for path, row in ipc_paths(environ, options):
            owners = _accounts(opened, row.accounts)
            if row.variable and options.mps_user:
                owners += (options.mps_user,)
            try:
                owned.endpoint(opened.fd, path, owners, row.server)
            except owned.Untrusted as error:
                warnings.append(f"skipping ipc path {path} of {row.note}: {error.text}; {_IPC_HINT}")
            except OSError as error:
                if not is_missing(error):
                    raise DetectionError(f"stat failed: {path}: {reason(error)}") from error
                warnings.append(f"missing ipc path {path}: {reason(error)}")
            else:
                found.append(DriverEndpoint(path, "ipc", row.capability, owners=owners, server=row.server))
    return found, warnings


def _accounts(root: Root, names: Sequence[str]) -> tuple[int, ...]:
    """The uids of those of ``names`` that /etc/passwd of the driver root has, but for root's."""
    if not names:
        return ()
    try:
        lines = root.read(PASSWD, _PASSWD_LIMIT).split(b"\n")
    except OSError:
        return ()
    rows = (line.split(b":") for line in lines)
    found = (int(row[2]) for row in rows if len(row) > 2 and os.fsdecode(row[0]) in names and row[2].isdigit())
    return tuple(uid for uid in found if uid)
