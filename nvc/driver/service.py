"""The driver service: NVML behind a socket, in a process without rights."""

from __future__ import annotations

import os

from nvc.base.errors import InitializationError
from nvc.base.record import Record
from nvc.base.verbs import raise_remote, system_error, translate
from nvc.driver.facts import GpuRequest, LoadRequest, NvmlGpu, NvmlLoads, NvmlSystem, SystemRequest
from nvc.driver.places import library_directories, platform
from nvc.driver.verbs import DRIVER
from nvc.model import TEGRA, WSL, Host
from rpc import process
from rpc.errors import RemoteError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Self

    from nvc.base.log import Log
    from nvc.driver.nvml import Nvml
    from nvc.driver.tegra import Tegra
    from rpc.client import Client, Pending
    from rpc.method import Message
    from rpc.server import Handler


#: Returns a service that was forked before the command line was read, or None (``nvc.inject.ahead``).
in_advance: Callable[[Begin, float, Log], Client | None] | None = None


class Begin(Record):
    """Where NVML is initialised, and as which user. uid, gid: see ``confine.confine``."""

    host: Host
    uid: int | None
    gid: int | None


class _Handlers:
    """Runs in the helper. ``prepare`` initialises the NVML of the verbs.

    begin: run there, says how.
    """

    def __init__(self, begin: Callable[[], Begin], log: Log) -> None:
        self._begin = begin
        self._log = log
        self._parent = os.getpid()
        self._nvml: Nvml | Tegra
        self._unasked: Iterator[int] = iter(())
        #: A GPU's index, and what NVML said of it before it was asked for.
        self._ahead: tuple[int, NvmlGpu | Exception] | None = None

    def prepare(self) -> None:
        """Drop all rights, then load NVML. Raises InitializationError."""
        from nvc.linux import rights

        rights.parent_death_signal(self._parent)
        rights.set_name("nvc:[driver]")
        begin = self._begin()
        self._nvml = confined(begin.host, begin.uid, begin.gid, self._parent, self._log)

    def system(self, request: SystemRequest, fds: list[int]) -> NvmlSystem:
        found = self._nvml.system()
        self._unasked = iter(range(found.gpu_count))
        return found

    def gpu(self, request: GpuRequest, fds: list[int]) -> NvmlGpu:
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != request.index:
            return self._nvml.gpu(request.index)
        if isinstance(ahead[1], Exception):
            raise ahead[1]
        return ahead[1]

    def ask_ahead(self) -> bool:
        """Ask for the next GPU while the caller looks at files: the first question attaches it, in milliseconds.

        One at a time: an answer's deadline is for one.
        """
        index = next(self._unasked, None)
        if index is None:
            return False
        try:
            self._ahead = index, self._nvml.gpu(index)
        except Exception as error:
            self._ahead = index, error
        return True

    def load(self, request: LoadRequest, fds: list[int]) -> NvmlLoads:
        return self._nvml.load()


def confined(host: Host, uid: int | None, gid: int | None, parent: int, log: Log) -> Nvml | Tegra:
    """Drop all rights of this process, then load NVML. Raises InitializationError.

    Arguments as those of ``confine.confine``.
    """
    from nvc.bindings import library

    # All imports are done before: after chroot the interpreter's files are out of reach.
    from nvc.bindings import nvml as binding
    from nvc.driver import confine, nvml

    begin = _way_to_begin(host, log)
    # Below the new root, or below the driver root where the root stays.
    above = host.root.rstrip("/") if host.dev_root else ""
    others = [f"{above}{place}/{nvml.LIBRARY}" for place in library_directories(host)]
    confine.confine(host, uid=uid, gid=gid, parent=parent, log=log)
    return begin() if begin is not None else nvml.initialize(binding, library.load, others=others)


def _way_to_begin(host: Host, log: Log) -> Callable[[], Nvml | Tegra] | None:
    """The platform's replacement for NVML's initialisation, after its imports and reads; None on most machines."""
    found = platform(host)
    if found == TEGRA:
        from nvc.bindings.library import cuda_version
        from nvc.driver.tegra import Tegra, look

        facts = look(host)
        return lambda: Tegra(facts, cuda_version, log)
    if found == WSL:
        from nvc.bindings import dxcore, library
        from nvc.bindings import nvml as binding
        from nvc.driver import wsl

        return lambda: wsl.initialize(binding, library.load, dxcore.adapters, log)
    return None


def _close_streams(end: int) -> None:
    """Standard error may be a pipe whose reader waits for its end: not for the driver, which then closes its files."""
    os.closerange(0, 3)


class DriverClient:
    """The caller's side. Every method raises NvcError: NVML's error, or how the service failed."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def begin_system(self) -> Pending:
        """Ask for ``system``, and do not wait for NVML's initialisation. To be taken before another call."""
        return self._begin("system", SystemRequest())

    def system(self, pending: Pending | None = None) -> NvmlSystem:
        """Versions and the number of GPUs. The first call waits for NVML's initialisation.

        pending: of ``begin_system``.
        """
        reply: NvmlSystem = self._result(pending or self.begin_system())
        return reply

    def gpu(self, index: int) -> NvmlGpu:
        """The GPU with NVML's index, MIG devices included."""
        reply: NvmlGpu = self._result(self._begin("gpu", GpuRequest(index)))
        return reply

    def begin_load(self) -> Pending:
        """Ask what the GPUs do now, without waiting for it. The answer is to be taken before another call."""
        return self._begin("load", LoadRequest())

    def load(self, pending: Pending) -> NvmlLoads:
        """The answer to ``begin_load``."""
        reply: NvmlLoads = self._result(pending)
        return reply

    def _begin(self, verb: str, request: Message) -> Pending:
        try:
            return self._client.begin(verb, request)
        except RemoteError as error:
            raise_remote(error, DRIVER)

    def _result(self, pending: Pending) -> Any:
        try:
            return pending.result()[0]
        except RemoteError as error:
            raise_remote(error, DRIVER)

    @property
    def pid(self) -> int:
        """The helper's process id."""
        return self._client.pid

    def close(self) -> None:
        """End the service and reap it."""
        self._client.close()

    def leave(self) -> None:
        """End the service. The wait, for the driver to close its files, is left to ``reap``."""
        self._client.leave()

    def reap(self) -> None:
        """Wait for the end of the service after ``leave``."""
        self._client.reap()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(host: Host, *, uid: int | None, gid: int | None, deadline: float, log: Log) -> DriverClient:
    """Start the driver service.

    uid, gid: of the NVML process; None: the overflow id for root, else the caller's.
    deadline: seconds for one answer; the first includes NVML's start, which takes seconds when no other process
    keeps the driver loaded.
    Raises InitializationError when no process can be started. All other errors are raised by the first
    call.
    """
    begin = Begin(host, uid, gid)
    early = in_advance(begin, deadline, log) if in_advance is not None else None
    try:
        return DriverClient(early or fork(lambda: begin, deadline, log))
    except OSError as error:
        raise InitializationError(f"the driver service cannot be started: {system_error(error)}") from error


def fork(begin: Callable[[], Begin], deadline: float, log: Log) -> Client:
    """Fork the service. begin: run there before NVML is initialised. Raises OSError."""
    handlers = _Handlers(begin, log)
    table: dict[str, Handler] = {"system": handlers.system, "gpu": handlers.gpu, "load": handlers.load}
    return process.start(
        DRIVER,
        table,
        prepare=handlers.prepare,
        deadline=deadline,
        translate=translate,
        idle=handlers.ask_ahead,
        on_shutdown=_close_streams,
    )
