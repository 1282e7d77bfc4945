"""Supervisors of guarded tenants: one monitor and one supervisor process a tenant (native/supervisor).

They outlive the process that starts them. What they are to do stands in a plan, what they did in counters
(``nvc.guard.pages``); a monitor's socket takes what is neither: another listener, the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import subprocess
import time

from nvc.guard import plan_file, usage
from nvc.guard.channel import (
    ATTACH,
    ATTACH_PACKET,
    CHANNEL,
    CHANNELS,
    CONTAINER_PACKET,
    DESCRIPTORS,
    HEAD,
    JOIN,
    LEAVE,
    LISTEN,
    LISTEN_PACKET,
    OPEN,
    START,
    START_PACKET,
    STATE_PACKET,
    Connection,
    connect,
    connect_soon,
)
from nvc.guard.held import HeldTenant
from nvc.guard.pages import VERSION, Counters, Event, TenantStatus
from nvc.guard.prober import NAME as PROBER
from nvc.guard.prober import Prober
from nvc.guard.programs import MONITOR, SUPERVISOR, find
from nvc.guard.publications import Publications
from nvc.guard.usage import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

#: Bit of a tenant's number: processes that ran already, which are scheduled and not guarded. guard.h: GUARD_ATTACHED.
ATTACHED = 1 << 31
#: Descriptors that come with a monitor's state: counters, and what tells of them.
_STATE_FILES = 2
#: share.h: limits.gpu_count.
GPU_COUNT, GPU_COUNT_AT = struct.Struct("<I"), 68
#: Uids and gids of supervisors: beyond those of users, systemd and containers (systemd's UIDS-GIDS). The prober has the
#: one behind them.
USERS, USER_COUNT = 1_900_000_000, 1 << 17


class Supervisors:
    """Those of all tenants of this node, by number. For one thread; no call waits for a tenant or for the driver."""

    def __init__(self, devices: str = "/dev", directory: str = "", users: int = USERS) -> None:
        """devices: where the driver's nodes are. directory: the agent's; "": nothing outlives this object.

        users: the first of USER_COUNT uids and gids that no account of the host has.

        Raises InitializationError.
        """
        self._devices, self._directory, self._users = devices, directory, users
        self._monitor, self._supervisor = find(MONITOR), find(SUPERVISOR)
        self._tenants: dict[int, HeldTenant] = {}
        #: Readable, once each, when a monitor is gone; ``lost`` tells whose.
        self.ends = select.epoll()
        #: The descriptor of a tenant's connection -> its number.
        self._by_descriptor: dict[int, int] = {}
        self.publications = Publications()
        self._contention = usage.open_page(directory)
        self._usage = usage.Page(self._contention)
        #: When the last one was let go of; time.monotonic().
        self.forgot_at = float("-inf")

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
        self.ends.close()
        self.publications.close()
        os.close(self._contention)

    # Coming.

    def add(
        self,
        number: int,
        limits: bytes,
        gpus: int,
        connection: Connection | None = None,
        *,
        first: tuple[int, int],
    ) -> None:
        """Start a tenant by a number of the caller's.

        limits: a limits file; gpus: how many it names. connection: of an acceptor that has the tenant's first listener,
        and becomes its monitor; None: a new monitor. first: pid and start time of the container's first process, or
        of one that is attached. Raises OSError: EOPNOTSUPP for a driver that native/rm has no tables for; ESRCH: the
        process has ended.
        """
        if number in self._tenants:
            raise OSError(errno.EEXIST, f"tenant {number} is there already")
        place = self._place(number)
        process = None
        descriptor = plan_file.create(place)
        plan = plan_file.Plan(descriptor, limits, plan_file.open_lock(place) if place else -1)
        # For reading: a supervisor handles what hostile containers say.
        given = descriptor, self._contention
        reading = [os.open(f"/proc/self/fd/{one}", os.O_RDONLY | os.O_CLOEXEC) for one in given]
        try:
            if connection is None:
                connection, process = self._spawn()
            pid, start_time = first
            names = os.fsencode(self._devices), os.fsencode(place)
            packet = START_PACKET.pack(START, 0, number, pid, self._users + _user(number), 0, start_time, *names)
            result, data, found = connection.ask(packet, reading)
            if result < 0 or len(found) != _STATE_FILES:
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
        _, _, _, _, monitor, supervisor = STATE_PACKET.unpack(data)
        made = HeldTenant(connection, plan, Counters(found[0], gpus), found[1], (monitor, supervisor))
        made.process = process
        self._add(number, made)

    def find_again(self, number: int) -> bytes:
        """Find a tenant again that an earlier process started; its limits. Raises OSError, ValueError."""
        place = self._place(number)
        with contextlib.ExitStack() as undo:
            connection = Connection(connect_soon(f"{place}/monitor"))  # first: whether it is gone needs no plan
            undo.callback(connection.close)
            _, data, found = connection.ask(HEAD.pack(OPEN, 0))
            for one in found:
                undo.callback(os.close, one)
            version = STATE_PACKET.unpack(data)[3] if len(data) == STATE_PACKET.size else 0
            if len(found) != _STATE_FILES or version != VERSION:
                raise OSError(errno.EPROTO, f"it speaks protocol {version}, this agent speaks {VERSION}")
            plan = plan_file.open_plan(place)
            undo.pop_all()
        _, _, _, _, monitor, supervisor = STATE_PACKET.unpack(data)
        gpus = GPU_COUNT.unpack_from(plan.limits, GPU_COUNT_AT)[0]
        made = HeldTenant(connection, plan, Counters(found[0], gpus), found[1], (monitor, supervisor))
        made.counters.skip_events()
        self._add(number, made)
        return plan.limits

    def listen(self, number: int, listener: int, first: int = 0) -> None:
        """One more listener of the tenant's; the descriptor is duplicated. Raises OSError.

        May be called in a thread: a monitor whose supervisor hangs takes seconds to say so.
        """
        self._ask_apart(number, LISTEN_PACKET.pack(LISTEN, 0, first, 0), [listener])

    def join(self, number: int, first: tuple[int, int], listener: int) -> None:
        """One more container of the tenant's group. first: pid and start time of its first process.

        May be called in a thread. Raises OSError: E2BIG for more than 64 containers.
        """
        self._ask_apart(number, CONTAINER_PACKET.pack(JOIN, 0, first[0], 0, first[1]), [listener])

    def leave(self, number: int, first: tuple[int, int]) -> None:
        """A container of the tenant's group has ended. May be called in a thread. Raises OSError: EBUSY: not wholly."""
        self._ask_apart(number, CONTAINER_PACKET.pack(LEAVE, 0, first[0], 0, first[1]))

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
        if len(descriptors) >= DESCRIPTORS or len(channels) > CHANNELS:
            raise OSError(errno.E2BIG, f"{len(channels)} channels of {len(descriptors)} files")
        rows = b"".join(CHANNEL.pack(*channel[:3], descriptors.index(channel[3])) for channel in channels)
        packet = ATTACH_PACKET.pack(ATTACH, 0, len(channels), 0, *node) + rows.ljust(CHANNELS * CHANNEL.size, b"\0")
        self._tenant(number).connection.command(packet, [pidfd, *descriptors])

    def remove(self, number: int) -> None:
        """The tenant is over: its channels are enabled, its processes' later calls fail. Raises OSError."""
        tenant = self.take(number)
        try:
            tenant.begin_end()
        finally:
            tenant.end()

    def take(self, number: int) -> HeldTenant:
        """The caller's from now on, to be ended in any thread. Raises OSError."""
        tenant = self._tenant(number)
        self._drop(number)
        return tenant

    def forget(self, number: int) -> None:
        """Let go of a tenant, which goes on; nothing for one that is not known."""
        tenant = self._drop(number)
        if tenant is not None:
            tenant.close()

    def _drop(self, number: int) -> HeldTenant | None:
        tenant = self._tenants.pop(number, None)
        if tenant is not None:
            self.forgot_at = time.monotonic()
            self.publications.drop(number, tenant)
            descriptor = tenant.connection.fileno()
            self._by_descriptor.pop(descriptor, None)
            with contextlib.suppress(OSError):
                self.ends.unregister(descriptor)
        return tenant

    # What it did. What has no words of its own is as in ``Counters``, and raises OSError.

    def lost(self) -> list[int]:
        """Tenants whose monitor is gone, each once."""
        found = [self._by_descriptor.get(descriptor) for descriptor, _ in self.ends.poll(0)]
        return [number for number in found if number is not None]

    def pids(self, number: int) -> tuple[int, int]:
        """Of monitor and supervisor. Raises OSError."""
        tenant = self._tenant(number)
        return tenant.monitor, tenant.supervisor

    def build(self, number: int) -> str:
        return self._tenant(number).counters.build

    def refresh(self, number: int) -> None:
        """Publish the counters now. Raises OSError: EBUSY while the driver makes a call for the tenant."""
        self._tenant(number).connection.command(HEAD.pack(OPEN, 0))

    def gone(self, number: int) -> bool:
        return self._tenant(number).counters.gone

    def state(self, number: int) -> tuple[bool, bool, bool]:
        return self._tenant(number).counters.state

    def stamp(self, number: int) -> tuple[int, int, int]:
        return self._tenant(number).counters.stamp()

    def status(self, number: int) -> TenantStatus:
        return self._tenant(number).counters.status()

    def processes(self, number: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return self._tenant(number).counters.processes()

    def published(self, number: int) -> tuple[TenantStatus, tuple[tuple[int, tuple[int, ...]], ...]]:
        return self._tenant(number).counters.published()

    def attached(self, number: int) -> tuple[int, bool, int]:
        """(living processes, whether they are frozen, nanoseconds that they were). Raises OSError (ENOENT)."""
        found = self._tenant(number).counters.attached
        if not found[0]:
            raise OSError(errno.ENOENT, "its processes have ended")
        return found

    def events(self, numbers: Iterable[int]) -> list[Event]:
        """What happened to these tenants since the last time, of each tenant oldest first."""
        found = []
        for number in numbers:
            with contextlib.suppress(OSError):
                found += [event.replace(tenant=number) for event in self._tenant(number).counters.events()]
        return found

    def prober(self) -> Prober:
        """The node's prober, which knows no tenant yet. Raises InitializationError."""
        user = self._users + USER_COUNT
        return Prober(find(PROBER), self._contention, user, self._devices, self._directory, self.files)

    def files(self, number: int) -> list[int]:
        """The tenant's counters, for reading, and the eventfd that tells of them; this object's. Raises OSError."""
        tenant = self._tenant(number)
        return [tenant.counters.descriptor, tenant.published]

    def usage(self) -> Usage:
        """What the driver reports of all processes, by the node's prober. Raises OSError."""
        return self._usage.read()

    def limits(self, number: int) -> bytes:
        """As planned. Raises OSError."""
        return self._tenant(number).plan.limits

    def _add(self, number: int, tenant: HeldTenant) -> None:
        self._tenants[number] = tenant
        self.publications.add(number, tenant)
        self._by_descriptor[tenant.connection.fileno()] = number
        self.ends.register(tenant.connection, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def _tenant(self, number: int) -> HeldTenant:
        try:
            return self._tenants[number]
        except KeyError:
            raise OSError(errno.ENOENT, f"tenant {number} is not known") from None

    def _ask_apart(self, number: int, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """On a connection of its own: in a thread, the tenant's is the agent's."""
        place = self._place(number)
        if not place:
            self._tenant(number).connection.command(packet, descriptors)
            return
        connection = Connection(connect(f"{place}/monitor"))
        try:
            connection.command(packet, descriptors)
        finally:
            connection.close()

    def _place(self, number: int) -> str:
        # Attached processes are as they were when the agent ends.
        return f"{self._directory}/tenants/{number}" if self._directory and not number & ATTACHED else ""

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


def _user(number: int) -> int:
    """Of a tenant's uid, in the range; those that are attached have the second half."""
    half = USER_COUNT // 2
    return number % half + (half if number & ATTACHED else 0)
