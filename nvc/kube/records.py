"""The CDI files of prepared claims: the only record of what is prepared on this node.

The first line of a file is a comment for engines and the record for us; the rest is made from it, and made anew when
the driver's version changes. A file is written beside its place, synchronised, and put in place by a rename: at every
moment there is the whole file or none. Files outlive a reboot, because the kubelet may start a container without
asking again. No claim waits for the disk of another: the lock is held for the sum and the rename.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
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
    from collections.abc import Callable, Collection, Iterator

    from nvc.kube.edits import Template

_MARK = "# nvc-py 1 "
_PREFIX, _ENDING = f"{VENDOR}-claim_", ".yaml"
_STATIC = f"{VENDOR}-driver.yaml"
#: 32 results of a claim at their longest are 20 KiB.
_HEAD_LIMIT = 64 << 10
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


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
        self._lock = -1
        #: What files have, after so many changes: they are read once.
        self._known: dict[str, PreparedClaim] = {}
        self._known_at = -1
        try:
            directories.make(directory)
        except OSError as error:
            raise InitializationError(f"{directory}: {reason(error)}", hint="--cdi-dir names a directory") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While no other process changes files. The kernel ends it with the process."""
        try:
            descriptor = os.open(f"{self.directory}/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NvcError(f"{self.directory}/.lock: {reason(error)}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._lock = descriptor
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

    def add(self, claim: PreparedClaim, template: Template, check: Callable[[Collection[PreparedClaim]], None]) -> None:
        """Put the claim's file in place, unless ``check`` of the other claims raises something.

        Raises what that raises, NvcError, DeviceError.
        """
        path = self.path(claim.uid)
        with self._writing():
            temporary = files.beside(path, self._text(claim, template))
            try:
                with self.locked():
                    known = self._all()
                    check([other for uid, other in known.items() if uid != claim.uid])
                    self._known_at = self._note_change()
                    os.rename(temporary, path)
                    known[claim.uid] = claim
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise

    def write(self, claim: PreparedClaim, template: Template) -> None:
        """Put the claim's file in place. While ``locked``. Raises NvcError, DeviceError."""
        with self._writing():
            self._note_change()
            files.save(self.path(claim.uid), self._text(claim, template))

    def write_static(self, template: Template) -> None:
        """Put the file of what all containers get in place. Raises NvcError."""
        with self._writing():
            files.save(f"{self.directory}/{_STATIC}", text.write(template.static, "yaml"))

    def remove(self, uid: str) -> bool:
        """Remove a claim's file, if there is one; whether there was. Raises NvcError."""
        path = self.path(uid)
        with self._writing(), self.locked():
            is_known = self._known_at == self._changes()
            count = self._note_change()
            try:
                os.unlink(path)
                was_there = True
            except FileNotFoundError:
                was_there = False
            except OSError as error:
                raise NvcError(f"{path}: {reason(error)}") from error
            if is_known:
                self._known.pop(uid, None)
                self._known_at = count
        return was_there

    def synchronise(self) -> None:
        """Wait until a file that another call put in place is on the disk. Raises NvcError."""
        with self._writing():
            pass

    def clean(self) -> None:
        """Remove what processes that were killed left half written. While ``locked``."""
        directory = os.open(self.directory, _DIRECTORY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in os.listdir(directory):
                if name.startswith(f".{VENDOR}-") and name.endswith(files.TEMPORARY):
                    os.unlink(name, dir_fd=directory)
        except BlockingIOError:
            pass  # some of them are of a process that lives
        finally:
            os.close(directory)

    def _text(self, claim: PreparedClaim, template: Template) -> str:
        devices = [
            CdiDevice(f"{claim.uid}-{device.number}", template.edits(device.uuid, device.share))
            for device in claim.devices
        ]
        head = f"{_MARK}{dumps(claim.as_data()).decode()}\n"
        # JSON is YAML too, and written in a tenth of the time.
        return head + text.write(template.spec(devices), "json")

    def _all(self) -> dict[str, PreparedClaim]:
        """Of all files. While ``locked``. Raises NvcError."""
        uids, count = self.uids(), self._changes()
        # Names: files are also removed by hand.
        if self._known_at != count or self._known.keys() != set(uids):
            self._known = {uid: found for uid in uids if (found := self.read(uid)) is not None}
            self._known_at = count
        return self._known

    def _changes(self) -> int:
        """How often files were changed, by any process. While ``locked``."""
        text = os.pread(self._lock, 32, 0)
        return int(text) if text.strip().isdigit() else 0

    def _note_change(self) -> int:
        """Before one; the number after it. While ``locked``."""
        count = self._changes() + 1
        os.pwrite(self._lock, b"%d\n" % count, 0)
        return count

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """While there may be a file beside its place, which ``clean`` leaves then. Renames are on the disk at its end.

        A rename or removal survives a loss of power only when the directory was synchronised too. Raises NvcError.
        """
        try:
            directory = os.open(self.directory, _DIRECTORY)
            try:
                fcntl.flock(directory, fcntl.LOCK_SH)
                yield
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise NvcError(f"{self.directory}: {reason(error)}") from error
