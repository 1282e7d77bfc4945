"""nvcaps: the files below /proc/driver/nvidia/capabilities and the nodes in /dev/nvidia-caps.

Source: libnvidia-container.md 3.8.

Capability files are read below the driver root, /proc/devices and mig-minors on the system itself.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, start_new_thread

from nvc.base.errors import DetectionError, reason
from nvc.driver.locate import host_path, read_text, resolve, status
from nvc.driver.places import CAPABILITIES, CAPS_MAJOR, DRIVER, GPUS, cap_node, read_majors
from nvc.formats import FormatError
from nvc.formats.procfs import file_attributes, mig_minors
from nvc.model import NVCAPS_DEV, NVCAPS_NONE, NVCAPS_PROC, Nvcap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.formats.procfs import MigMinor
    from nvc.model import DeviceNode, Host

MIG_CONFIG, MIG_MONITOR = f"{CAPABILITIES}/mig/config", f"{CAPABILITIES}/mig/monitor"
MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"


def style(host: Host, majors: dict[str, int]) -> int:
    """NVCAPS_DEV, NVCAPS_PROC, or NVCAPS_NONE where the driver has no capabilities directory."""
    try:
        status(host.nodes, CAPABILITIES)
    except OSError:
        return NVCAPS_NONE
    return NVCAPS_DEV if CAPS_MAJOR in majors else NVCAPS_PROC


def node_of(host: Host, path: str) -> DeviceNode:
    """The node of a capability file (nvc_nvcaps_device_from_proc_path).

    Raises DetectionError when the file is not below /proc/driver/nvidia, cannot be read or has no minor, and when
    the driver has no nodes for nvcaps.
    """
    if not path.startswith(DRIVER + "/") or "./" in path:
        raise DetectionError(f"unable to get cap device attributes: {path}: not below {DRIVER}")
    major = read_majors(host.system).get(CAPS_MAJOR)
    if major is None:
        raise DetectionError(
            f"unable to get cap device attributes: {path}: /proc/devices has no {CAPS_MAJOR}",
            hint="this driver controls access to MIG by files in /proc only, or the nvidia module is not loaded",
        )
    return cap_node(major, read_minor(host, path))


def read_minor(host: Host, path: str) -> int:
    """The minor in a capability file. Raises DetectionError."""
    try:
        text = read_text(host_path(host.nodes, resolve(host.nodes, path)))
    except OSError as error:
        raise DetectionError(
            f"unable to get cap device attributes: {path}: {reason(error)}",
            hint="the driver root needs /proc of the host" if host.nodes != "/" else "",
        ) from error
    minor = file_attributes(text).minor
    if minor < 0:
        raise DetectionError(f"unable to get cap device attributes: {path}: it has no DeviceFileMinor")
    return minor


class Nvcaps:
    """The nvcaps of a host. mig-minors is read at most once, and only when needed or ahead."""

    def __init__(self, host: Host, majors: dict[str, int]) -> None:
        self._host = host
        self._major = majors.get(CAPS_MAJOR, -1)
        self._text: str | None = None
        self._reading = allocate_lock()
        self._problem = ""
        self._nodes: dict[int, tuple[DeviceNode, ...]] = {}
        self._optional: dict[str, tuple[Nvcap | None, str]] = {}
        self.style = style(host, majors)

    def access(self, directory: str) -> Nvcap:
        """Access to a GPU or compute instance, by its directory below CAPABILITIES.

        Raises DetectionError when neither its file nor mig-minors has the minor.
        """
        path = f"{directory}/access"
        if self.style != NVCAPS_DEV:
            return Nvcap(path)
        name = path.removeprefix(CAPABILITIES + "/").replace("/mig/", "/")
        return Nvcap(path, cap_node(self._major, self._minor(path, name)))

    def optional(self, path: str, warnings: list[str]) -> Nvcap | None:
        """The nvcap of mig/config or mig/monitor, None without such a file.

        Its node is None, with a warning, when the minor is unknown: few containers need it.
        """
        if path not in self._optional:
            self._optional[path] = self._look(path)
        found, warning = self._optional[path]
        warnings += [warning] if warning else []
        return found

    def _look(self, path: str) -> tuple[Nvcap | None, str]:
        try:
            status(self._host.nodes, path)
        except OSError:
            return None, ""
        if self.style != NVCAPS_DEV:
            return Nvcap(path), ""
        try:
            return Nvcap(path, cap_node(self._major, self._minor(path, path.rpartition("/")[2]))), ""
        except DetectionError as error:
            return Nvcap(path), error.message

    def _minor(self, path: str, name: str) -> int:
        try:
            return read_minor(self._host, path)
        except DetectionError:
            # mig-minors has the same number; a driver root without all of /proc has only that.
            for row in self.minors():
                if row.name == name:
                    return row.minor
            raise

    def of_gpu(self, minor: int) -> tuple[DeviceNode, ...]:
        """Every node that mig-minors lists for a GPU, whether the instance exists or not."""
        if self.style != NVCAPS_DEV:
            return ()
        if minor not in self._nodes:
            rows = self.minors(minor)
            self._nodes[minor] = tuple(cap_node(self._major, row.minor) for row in rows if row.gpu == minor)
        return self._nodes[minor]

    def begin_reading(self) -> None:
        """Read mig-minors in a thread, which the kernel makes for milliseconds; ``read_ahead`` waits for its end."""
        if self.style != NVCAPS_DEV:
            return
        self._reading.acquire()
        try:
            start_new_thread(self._read, ())
        except RuntimeError:
            self._reading.release()  # no thread is left: it is read when it is needed

    def _read(self) -> None:
        try:
            self._text = read_text(host_path(self._host.system, MIG_MINORS), 8 << 20)
        except OSError:
            pass  # it will be said when it is needed
        finally:
            self._reading.release()

    def read_ahead(self) -> None:
        """Do the work of ``optional``, and of ``of_gpu`` for the GPUs that are bound: mostly minors from 0 on."""
        with self._reading:
            pass
        for path in (MIG_CONFIG, MIG_MONITOR):
            self.optional(path, [])
        try:
            count = len(os.listdir(host_path(self._host.nodes, GPUS)))
        except OSError:
            return
        for minor in range(count):
            self.of_gpu(minor)

    def minors(self, gpu: int | None = None) -> tuple[MigMinor, ...]:
        """The rows of mig-minors, of all GPUs or of one; none, and a ``problem``, when it cannot be read."""
        path = host_path(self._host.system, MIG_MINORS)
        try:
            with self._reading:
                pass
            if self._text is None:
                self._text = ""
                self._text = read_text(path, 8 << 20)
            return mig_minors(self._text, gpu)
        except OSError as error:
            self._problem = f"open failed: {path}: {reason(error)}"
        except FormatError as error:
            self._problem = f"{path}: {error}"
        return ()

    @property
    def problem(self) -> str:
        """Why mig-minors could not be read, or ""."""
        return self._problem
