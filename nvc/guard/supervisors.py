"""Supervisors of guarded tenants: one monitor and one supervisor process a tenant (native/supervisor).

They outlive the process that starts them. What they are to do stands in a plan, what they did in counters
(``nvc.guard.pages``); a monitor's socket takes what is neither: another listener, the end.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import struct
import subprocess
import time

from nvc.base.errors import InitializationError, reason
from nvc.guard.pages import Counters, Event, Plan, TenantStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

MONITOR, SUPERVISOR = "nvc-monitor", "nvc-supervisor"
#: Bit of a tenant's number: processes that ran already, which are scheduled and not guarded. guard.h: GUARD_ATTACHED.
ATTACHED = 1 << 31
#: channel.h: enum channel_operation, and its structs.
REPLY, START, OPEN, LISTEN, ATTACH, REMOVE, END, DONE, ADMIT, PUBLISH, REFUSED = range(11)
_PATH, _CHANNELS, _DESCRIPTORS = 256, 1024, 16
HEAD = struct.Struct("=Ii")
_START = struct.Struct(f"=IiIiQ{_PATH}s{_PATH}s")
_LISTEN = struct.Struct("=IiiI")
ADMISSION = struct.Struct("=IiII")
_STATE = struct.Struct("=IiIIii")
_ATTACH = struct.Struct("=IiIIQQ")
_CHANNEL = struct.Struct("=IIII")
#: guard.h: struct guard_contention.
CONTENTION, CONTENTION_MAGIC = struct.Struct("=6Q"), 0x4F434E564E
#: include/linux/err.h: MAX_ERRNO.
_ERRNO_MOST = 4095
#: share.h: limits.gpu_count.
GPU_COUNT, GPU_COUNT_AT = struct.Struct("<I"), 68
#: Seconds for a monitor's answer: most take less than 5 ms; the start of one, longer.
_SECONDS = 6.0
#: Seconds for a monitor to make its socket.
_BEGINS_S = 0.5


def find(program: str) -> str:
    """The path of a program of native/supervisor: nvc/linux where it is installed, build/native in a checkout.

    In a wheel it is beside the packages. Raises InitializationError when it is in none of these places.
    """
    package = os.path.dirname(os.path.dirname(__file__))
    above = os.path.dirname(package)
    for path in (f"{package}/linux/{program}", f"{package}/native/{program}", f"{above}/build/native/{program}"):
        if os.path.exists(path):
            return path
    raise InitializationError(f"{program} is not installed", hint="run `make native`, or install the package again")


class Connection:
    """A connection with a monitor. Raises OSError: EPIPE when the monitor is gone, ETIMEDOUT."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(_SECONDS)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def ask(self, packet: bytes, descriptors: Sequence[int] = ()) -> tuple[int, bytes, list[int]]:
        """(result, the reply, descriptors that came with it, the caller's)."""
        self.send(packet, descriptors)
        try:
            data, found = receive(self._socket)
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, "the monitor does not answer") from None
        if len(data) < HEAD.size:
            raise OSError(errno.EPIPE, "the monitor is gone")
        result = HEAD.unpack_from(data)[1]
        # What a supervisor says may be anything.
        return (result if -_ERRNO_MOST <= result <= 0 else -errno.EPROTO), data, found

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._socket, [packet], list(descriptors))

    @property
    def is_over(self) -> bool:
        """Whether the monitor closed it."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))


def receive(connected: socket.socket, size: int = 4096) -> tuple[bytes, list[int]]:
    """One packet and its descriptors, which are the caller's. Raises OSError."""
    data, rights, _, _ = connected.recvmsg(size, socket.CMSG_SPACE(4 * _DESCRIPTORS), socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, content in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) // 4 * 4])
    return data, list(found)


class _Tenant:
    """What is held of one."""

    def __init__(self, connection: Connection, plan: Plan, counters: Counters, pids: tuple[int, int]) -> None:
        self.connection, self.plan, self.counters = connection, plan, counters
        self.monitor, self.supervisor = pids
        self.process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        self.connection.close()
        self.plan.close()
        self.counters.close()


class Supervisors:
    """Those of all tenants of this node, by number. For one thread; no call waits for a tenant or for the driver."""

    def __init__(self, devices: str = "/dev", directory: str = "") -> None:
        """devices: where the driver's nodes are. directory: the agent's; "": nothing outlives this object.

        Raises InitializationError.
        """
        self._devices, self._directory = devices, directory
        self._monitor, self._supervisor = find(MONITOR), find(SUPERVISOR)
        self._tenants: dict[int, _Tenant] = {}
        self._contention = self._contention_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of them. With a directory they go on; without one they end, their tenants thawed."""
        for number in tuple(self._tenants):
            if self._directory:
                self.forget(number)
            else:
                with contextlib.suppress(OSError):
                    self.remove(number)
        os.close(self._contention)

    # Coming.

    def add(
        self,
        number: int,
        limits: bytes,
        gpus: int,
        connection: Connection | None = None,
        first: tuple[int, int] = (0, 0),
    ) -> None:
        """Start a tenant by a number of the caller's.

        limits: a limits file; gpus: how many it names. connection: of an acceptor that has the tenant's first listener,
        and becomes its monitor; None: a new monitor. first: pid and start time of the container's first process.
        Raises OSError: EOPNOTSUPP for a driver that native/rm has no tables for.
        """
        if number in self._tenants:
            raise OSError(errno.EEXIST, f"tenant {number} is there already")
        place = self._place(number)
        process = None
        descriptor = self._plan_file(place)
        plan = Plan(descriptor, limits)
        # For reading: a supervisor handles what hostile containers say.
        given = descriptor, self._contention
        reading = [os.open(f"/proc/self/fd/{one}", os.O_RDONLY | os.O_CLOEXEC) for one in given]
        try:
            if connection is None:
                connection, process = self._spawn()
            packet = _START.pack(START, 0, number, *first, os.fsencode(self._devices), os.fsencode(place))
            result, data, found = connection.ask(packet, reading)
            if result < 0 or len(found) != 1:
                for one in found:
                    os.close(one)
                raise OSError(-result or errno.EPROTO, f"supervisor: {os.strerror(-result or errno.EPROTO)}")
        except BaseException:
            plan.close()
            if connection is not None:
                connection.close()
            if process is not None:
                process.wait()
            raise
        finally:
            for one in reading:
                os.close(one)
        _, _, _, _, monitor, supervisor = _STATE.unpack(data)
        made = _Tenant(connection, plan, Counters(found[0], gpus), (monitor, supervisor))
        made.process = process
        self._tenants[number] = made

    def find_again(self, number: int) -> bytes:
        """Find a tenant again that an earlier process started; its limits. Raises OSError, ValueError."""
        place = self._place(number)
        connection = Connection(_connect_soon(f"{place}/monitor"))  # first: whether it is gone needs no plan
        try:
            _, data, found = connection.ask(HEAD.pack(OPEN, 0))
            if len(found) != 1 or len(data) != _STATE.size:
                raise OSError(errno.EPROTO, "the monitor speaks another protocol")
            try:
                plan = Plan(os.open(f"{place}/plan", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
            except BaseException:
                os.close(found[0])
                raise
        except BaseException:
            connection.close()
            raise
        _, _, _, _, monitor, supervisor = _STATE.unpack(data)
        gpus = GPU_COUNT.unpack_from(plan.limits, GPU_COUNT_AT)[0]
        made = _Tenant(connection, plan, Counters(found[0], gpus), (monitor, supervisor))
        made.counters.skip_events()
        self._tenants[number] = made
        return plan.limits

    def listen(self, number: int, listener: int, first: int = 0) -> None:
        """One more listener of the tenant's; the descriptor is duplicated. Raises OSError.

        May be called in a thread: a monitor whose supervisor hangs takes seconds to say so.
        """
        packet = _LISTEN.pack(LISTEN, 0, first, 0)
        place = self._place(number)
        if not place:
            self._ask(number, packet, [listener])
            return
        connection = Connection(connect(f"{place}/monitor"))
        try:
            result, _, _ = connection.ask(packet, [listener])
        finally:
            connection.close()
        if result < 0:
            raise OSError(-result, f"supervisor: {os.strerror(-result)}")

    # What it is to do.

    def update(self, number: int, limits: bytes) -> None:
        """Set another share of the same GPUs. Raises OSError: EBUSY while it is not in force; it will be."""
        tenant = self._tenant(number)
        tenant.plan.set_limits(limits)
        if tenant.counters.generation < tenant.plan.generation:
            raise OSError(errno.EBUSY, "the change is not in force yet")

    def slice(self, number: int, gpu: int, microseconds: int) -> None:
        """The timeslice of each of the tenant's compute groups, 0: their own from the next on. Raises OSError."""
        self._tenant(number).plan.set_slice(gpu, microseconds)

    def freeze(self, number: int, gpu: int, frozen: bool) -> None:
        """Disable the tenant's channels on a GPU, or enable them. Raises OSError."""
        self._tenant(number).plan.set_frozen(gpu, frozen)

    def phase(self, number: int, gpu: int, period: int, since: int, until: int) -> None:
        """When the tenant is on, on a GPU: microseconds of a period; period 0: always. Raises OSError.

        Periods begin at multiples of ``period`` of CLOCK_MONOTONIC. ``until`` may lie beyond the period's end.
        """
        self._tenant(number).plan.set_phase(gpu, period, since, until)

    def attach(
        self, number: int, pidfd: int, node: tuple[int, int], channels: Sequence[tuple[int, int, int, int]]
    ) -> None:
        """One more process of an attached tenant. Raises OSError.

        node: (device, inode) of the control node. channels: (client, subdevice, channel, descriptor), those of one
        subdevice side by side; descriptors are copies of the process's, which are copied again and held until it ends.
        """
        descriptors = list(dict.fromkeys(channel[3] for channel in channels))
        if len(descriptors) >= _DESCRIPTORS or len(channels) > _CHANNELS:
            raise OSError(errno.E2BIG, f"{len(channels)} channels of {len(descriptors)} files")
        rows = b"".join(_CHANNEL.pack(*channel[:3], descriptors.index(channel[3])) for channel in channels)
        packet = _ATTACH.pack(ATTACH, 0, len(channels), 0, *node) + rows.ljust(_CHANNELS * _CHANNEL.size, b"\0")
        self._ask(number, packet, [pidfd, *descriptors])

    def remove(self, number: int) -> None:
        """The tenant is over: its channels are enabled, its processes' later calls fail. Raises OSError."""
        tenant = self._tenant(number)
        try:
            tenant.connection.ask(HEAD.pack(REMOVE, 0))
        finally:
            self.forget(number)
            if tenant.process is not None:
                tenant.process.wait()

    def forget(self, number: int) -> None:
        """Let go of a tenant, which goes on."""
        self._tenants.pop(number).close()

    # What it did.

    def is_lost(self, number: int) -> bool:
        """Whether its monitor is gone. Raises OSError for a tenant that is not known."""
        return self._tenant(number).connection.is_over

    def pids(self, number: int) -> tuple[int, int]:
        """Of monitor and supervisor. Raises OSError."""
        tenant = self._tenant(number)
        return tenant.monitor, tenant.supervisor

    def refresh(self, number: int) -> None:
        """Publish the counters now. Raises OSError: EBUSY while the driver makes a call for the tenant."""
        result, _, found = self._tenant(number).connection.ask(HEAD.pack(OPEN, 0))
        for one in found:
            os.close(one)
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def gone(self, number: int) -> bool:
        """Whether nothing of the tenant is left: no filter, no process, no memory. Raises OSError."""
        return self._tenant(number).counters.gone

    def status(self, number: int) -> TenantStatus:
        """As published last, at most some 20 ms ago. Raises OSError."""
        return self._tenant(number).counters.status()

    def processes(self, number: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(host pid, bytes a GPU, as last reported by the driver) of processes with driver calls. Raises OSError."""
        return self._tenant(number).counters.processes()

    def attached(self, number: int) -> tuple[int, bool, int]:
        """(living processes, whether they are frozen, nanoseconds that they were). Raises OSError (ENOENT)."""
        found = self._tenant(number).counters.attached
        if not found[0]:
            raise OSError(errno.ENOENT, "its processes have ended")
        return found

    def events(self) -> list[Event]:
        """What happened since the last time, of each tenant oldest first."""
        found = []
        for number, tenant in tuple(self._tenants.items()):
            try:
                found += [event.replace(tenant=number) for event in tenant.counters.events()]
            except OSError:
                continue
        return found

    def publish_contention(self) -> None:
        """Write down which tenants called the driver last: supervisors let their own wait for those only.

        To be called some times a second; while it is not, each supervisor assumes that others call the driver.
        """
        calls, now = [], time.monotonic_ns()
        for number, tenant in tuple(self._tenants.items()):
            with contextlib.suppress(OSError):
                calls.append((min(tenant.counters.called_ns, now), number))
        last = [*sorted(calls, reverse=True)[:2], (0, 0), (0, 0)]
        rows = [word for called, number in last[:2] for word in (number, called)]
        os.pwrite(self._contention, CONTENTION.pack(CONTENTION_MAGIC, time.monotonic_ns(), *rows), 0)

    def limits(self, number: int) -> bytes:
        """As planned. Raises OSError."""
        return self._tenant(number).plan.limits

    def _tenant(self, number: int) -> _Tenant:
        try:
            return self._tenants[number]
        except KeyError:
            raise OSError(errno.ENOENT, f"tenant {number} is not known") from None

    def _ask(self, number: int, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        result, _, found = self._tenant(number).connection.ask(packet, descriptors)
        for one in found:
            os.close(one)
        if result < 0:
            raise OSError(-result, f"supervisor: {os.strerror(-result)}")

    def _place(self, number: int) -> str:
        # Attached processes are as they were when the agent ends.
        return f"{self._directory}/tenants/{number}" if self._directory and not number & ATTACHED else ""

    def _plan_file(self, place: str) -> int:
        if not place:
            # The supervisor watches the file with inotify, which does not report a memfd (Linux 6.14 and later).
            return os.open("/tmp", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        os.makedirs(place, 0o700, exist_ok=True)
        return os.open(f"{place}/plan", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _contention_file(self) -> int:
        if not self._directory:
            return os.memfd_create("nvc-contention", os.MFD_CLOEXEC)
        path = f"{self._directory}/contention"
        try:  # supervisors of an agent before this one have it open
            made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.posix_fallocate(made, 0, CONTENTION.size)  # what is written later needs no room
        except OSError as error:
            raise InitializationError(f"{path}: {reason(error)}", hint="make room in /run") from None
        return made

    def _spawn(self) -> tuple[Connection, subprocess.Popen[bytes]]:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        with other:
            process = subprocess.Popen(
                [self._monitor, str(other.fileno()), self._directory, self._supervisor],
                pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return Connection(own), process


def _connect_soon(path: str) -> socket.socket:
    """As ``connect``; a monitor that was started just now makes its socket in some milliseconds. Raises OSError."""
    until = time.monotonic() + _BEGINS_S
    while True:
        try:
            return connect(path)
        except FileNotFoundError:
            if time.monotonic() > until or not os.path.exists(os.path.dirname(path)):
                raise
        time.sleep(0.01)


def connect(path: str) -> socket.socket:
    """Connected with the monitor's socket at ``path``, however long that is. Raises OSError."""
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        made.settimeout(_SECONDS)
        made.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    except BaseException:
        made.close()
        raise
    finally:
        os.close(directory)
    return made
