"""The CDI files of prepared claims: the only record of what is prepared on this node.

The first line of a file is a comment for engines and the record for us; the rest is made from it, and made anew when
the driver's version changes. A file is written beside its place, synchronised, and put in place by a rename: at every
moment there is the whole file or none. Files outlive a reboot, because the kubelet may start a container without
asking again.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nvc.base import directories
from nvc.base.errors import InitializationError, InputError, NvcError, reason
from nvc.base.record import DecodeError, Record
from nvc.cdi import files, text
from nvc.cdi.spec import CdiDevice
from nvc.kube.claims import check_uid
from nvc.kube.names import CLAIM_KIND, VENDOR
from rpc.codec import CodecError, dumps, loads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.kube.edits import Template

_MARK = "# nvc-py 1 "
_PREFIX, _ENDING = f"{VENDOR}-claim_", ".yaml"
_STATIC = f"{VENDOR}-driver.yaml"
#: 32 results of a claim at their longest are 20 KiB.
_HEAD_LIMIT = 64 << 10


class PreparedDevice(Record):
    """A device of a prepared claim.

    number, request, device, share_id: as in ``nvc.kube.claims.Result``. uuid: of the GPU or MIG device. gpu: of the
    GPU. share: fixed settings, "" for a whole device. memory, compute: what it consumes of the GPU, for the last check.
    """

    number: int
    request: str
    device: str
    uuid: str
    gpu: str
    share_id: str = ""
    share: str = ""
    memory: int = 0
    compute: int = 0


class PreparedClaim(Record):
    """A claim with a file."""

    uid: str
    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]

    def cdi_name(self, device: PreparedDevice) -> str:
        """The name by which the kubelet gives the device to the engine."""
        return f"{CLAIM_KIND}={self.uid}-{device.number}"


class Records:
    """The directory of claims' files. Two processes of the driver may use it at a time: see ``locked``."""

    def __init__(self, directory: str) -> None:
        """Raises InitializationError for a directory that cannot be made."""
        self.directory = directory
        try:
            directories.make(directory)
        except OSError as error:
            raise InitializationError(f"{directory}: {reason(error)}", hint="--cdi-dir names a directory") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While nobody else changes files. The kernel ends it with the process."""
        try:
            descriptor = os.open(f"{self.directory}/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NvcError(f"{self.directory}/.lock: {reason(error)}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def path(self, uid: str) -> str:
        """Raises InputError for what is no uid."""
        return f"{self.directory}/{_PREFIX}{check_uid(uid)}{_ENDING}"

    def read(self, uid: str) -> PreparedClaim | None:
        """None where the claim is not prepared. Raises NvcError for a file that cannot be read or is not ours."""
        path = self.path(uid)
        try:
            with open(path, "rb") as file:
                line = file.readline(_HEAD_LIMIT)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NvcError(f"{path}: {reason(error)}") from error
        try:
            if not line.startswith(_MARK.encode()) or not line.endswith(b"\n"):
                raise ValueError("its first line is not nvc-py's")
            found = PreparedClaim.from_data(loads(line[len(_MARK) :], limit=_HEAD_LIMIT))
            if found.uid != uid:
                raise ValueError(f"it is of claim {found.uid}")
        except (CodecError, DecodeError, ValueError) as error:
            raise NvcError(f"{path}: {error}", hint="remove the file: the kubelet asks for the claim again") from error
        return found

    def uids(self) -> list[str]:
        """Of all claims with a file. Raises NvcError."""
        try:
            names = sorted(os.listdir(self.directory))
        except OSError as error:
            raise NvcError(f"{self.directory}: {reason(error)}") from error
        found = []
        for name in names:
            uid = name.removeprefix(_PREFIX).removesuffix(_ENDING)
            if name == f"{_PREFIX}{uid}{_ENDING}":
                try:
                    found.append(check_uid(uid))
                except InputError:
                    continue  # not ours
        return found

    def write(self, claim: PreparedClaim, template: Template) -> None:
        """Put the claim's file in place. Raises NvcError, DeviceError."""
        devices = [
            CdiDevice(f"{claim.uid}-{device.number}", template.edits(device.uuid, device.share))
            for device in claim.devices
        ]
        head = f"{_MARK}{dumps(claim.as_data()).decode()}\n"
        self._save(self.path(claim.uid), head + text.write(template.spec(devices), "yaml"))

    def write_static(self, template: Template) -> None:
        """Put the file of what all containers get in place. Raises NvcError."""
        self._save(f"{self.directory}/{_STATIC}", text.write(template.static, "yaml"))

    def remove(self, uid: str) -> bool:
        """Remove a claim's file, if there is one; whether there was. Raises NvcError."""
        path = self.path(uid)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise NvcError(f"{path}: {reason(error)}") from error
        self._synchronise()
        return True

    def clean(self) -> None:
        """Remove what processes that were killed left half written. While ``locked``."""
        for name in os.listdir(self.directory):
            if name.startswith(f".{VENDOR}-") and name.endswith(files.TEMPORARY):
                os.unlink(f"{self.directory}/{name}")

    def _save(self, path: str, content: str) -> None:
        files.save(path, content)
        self._synchronise()

    def _synchronise(self) -> None:
        """A rename or removal survives a loss of power only when the directory was synchronised too."""
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
