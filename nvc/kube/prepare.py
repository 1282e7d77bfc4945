"""Prepare and unprepare claims: from what the scheduler allocated to the claim's CDI file.

Both may be asked again at any time, of any process of the driver. A claim's file is the whole state, so a process that
is killed between any two system calls leaves either the file or none, and the kubelet asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.base.errors import DeviceError, InputError
from nvc.base.record import Record
from nvc.kube.names import COMPUTE_WHOLE, DRIVER_DEVICE, DRIVER_KIND
from nvc.kube.parameters import Parameters
from nvc.kube.records import PreparedClaim, PreparedDevice
from nvc.request.injection import ShareRequest
from nvc.share.model import CAP_WHOLE, GpuShare
from nvc.share.policy import decide
from nvc.share.sources import FIXED, requested
from nvc.share.spec import REQUIRE, format_gpu, format_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvc.kube.claims import Claim, Result
    from nvc.kube.devices import Device
    from nvc.kube.edits import Template
    from nvc.kube.records import Records
    from nvc.model import Gpu
    from nvc.share.policy import Policy

#: weight of a share for each percent of compute; 1 is the least weight, of what is given away.
_WEIGHT, _WEIGHT_LEAST = 10, 1


class Machine(Record):
    """This node's machine as it is now: what claims can be placed on, and how it goes into CDI files."""

    devices: dict[str, Device]
    gpus: dict[str, Gpu]
    template: Template


class Allotted(Record):
    """A device as the kubelet gets it. cdi: names of CDI devices. prepared: what the file has of it."""

    request: str
    device: str
    share_id: str
    cdi: tuple[str, ...]
    prepared: PreparedDevice


def prepare(claim: Claim, machine: Machine, records: Records, policy: Policy) -> tuple[Allotted, ...]:
    """Write the claim's file, unless it is there; what the kubelet gets.

    policy: the node's rules. Raises InputError, DeviceError for what cannot be given, NvcError for a file that cannot
    be written.
    """
    wanted = PreparedClaim(
        claim.uid, claim.namespace, claim.name, tuple(_device(claim, one, machine, policy) for one in claim.results)
    )
    if records.read(claim.uid) == wanted:
        records.synchronise()
    else:
        records.add(wanted, machine.template, lambda others: _check_fit(wanted, others, machine))
    static = f"{DRIVER_KIND}={DRIVER_DEVICE}"
    return tuple(
        Allotted(one.request.partition("/")[0], one.device, one.share_id, (static, wanted.cdi_name(one)), one)
        for one in wanted.devices
    )


def unprepare(uid: str, records: Records) -> bool:
    """Remove the claim's file; whether there was one. Needs nothing but the uid. Raises InputError, NvcError."""
    return records.remove(uid)


def rewrite(records: Records, machine: Machine, warn: Callable[[str], None]) -> int:
    """Make every file anew, with the driver's files of now; how many. A claim whose GPU is gone keeps its file.

    warn: takes what is wrong with one. Raises NvcError where nothing can be written.
    """
    made = 0
    with records.locked():
        records.clean()
        records.write_static(machine.template)
        for uid in records.uids():
            try:
                claim = records.read(uid)
                if claim is not None:
                    records.write(claim, machine.template)
                    made += 1
            except DeviceError as error:
                warn(f"claim {uid}: {error.message}")
    return made


def settings(result: Result, memory: int) -> GpuShare:
    """The share of one allocation result, every setting said, so that the node's default changes none."""
    own, compute = result.parameters, result.compute or 0
    reserved = CAP_WHOLE * compute // COMPUTE_WHOLE
    cap = min(own.cap, max(reserved, CAP_WHOLE // COMPUTE_WHOLE)) if own.is_reserved else own.cap
    return GpuShare(
        memory=memory,
        cap=cap,
        weight=max(_WEIGHT * compute, _WEIGHT_LEAST),
        priority=own.priority,
        oversubscribe=own.oversubscribe,
    )


def _device(claim: Claim, result: Result, machine: Machine, policy: Policy) -> PreparedDevice:
    of = f"prepare: {claim}"
    device = machine.devices.get(result.device)
    if device is None:
        raise DeviceError(
            f"{of}: {result.device} is not on this node",
            hint="the GPU was removed, or divided otherwise; delete the pod, and the scheduler places it anew",
        )
    found = PreparedDevice(
        result.number, result.request, result.device, device.uuid, device.gpu, result.share_id, "", device.memory
    )
    if not device.is_shared:
        if result.memory is not None or result.parameters.requires_guard or result.parameters.cap != CAP_WHOLE:
            raise InputError(
                f"{of}: {result.device} is a MIG device, which the GPU itself holds: it has no share",
                hint="leave capacity and parameters out of its request, or take a class of whole GPUs",
            )
        return found
    memory = device.memory if result.memory is None else result.memory
    if not 0 < memory <= device.memory or not 0 <= (result.compute or 0) <= COMPUTE_WHOLE:
        raise InputError(
            f"{of}: {format_memory(memory)} and {result.compute or 0} percent are not of {result.device}, which has "
            f"{format_memory(device.memory)}"
        )
    compute = COMPUTE_WHOLE if result.compute is None else result.compute
    found = found.replace(memory=memory, compute=compute)
    if memory == device.memory and result.parameters == Parameters():
        return found  # alone on its GPU: nothing is to be held
    share = settings(result.replace(compute=compute), memory)
    group = f"{claim.uid}-{result.number}"
    text = f"{format_gpu(share)},guard={REQUIRE},group={group}"
    _check_rules(policy, machine.gpus[device.gpu], f"{device.uuid}:{text}", of)
    return found.replace(share=text)


def _check_rules(policy: Policy, gpu: Gpu, text: str, of: str) -> None:
    """The share hook decides by the same rules when the container starts; here the refusal is the pod's event."""
    asked = ShareRequest(fixed=(text,))
    try:
        decide(policy, (gpu,), requested(policy, asked))
    except InputError as error:
        raise InputError(f"{of}: {error.message.removeprefix(f'{FIXED}: ')}", hint=error.hint) from None


def _check_fit(wanted: PreparedClaim, others: Iterable[PreparedClaim], machine: Machine) -> None:
    """The scheduler sums up what claims consume; a mistake there, or a slice of before, must not reach a container."""
    every = [(claim, device) for claim in (wanted, *others) for device in claim.devices]
    for own in wanted.devices:
        same = [(claim, one) for claim, one in every if one.gpu == own.gpu]
        held = ", ".join(sorted({f"{claim.namespace}/{claim.name}" for claim, _ in same if claim.uid != wanted.uid}))
        of = f"prepare: claim {wanted.namespace}/{wanted.name}: {own.device}"
        if own.uuid != own.gpu:
            if sum(one.uuid == own.uuid for _, one in same) > 1 or any(one.uuid == own.gpu for _, one in same):
                raise InputError(f"{of} is already that of {held}", hint=_HINT)
            continue
        room = machine.devices[own.device].memory
        memory, compute = (sum(getattr(one, what) for _, one in same) for what in ("memory", "compute"))
        if memory > room or compute > COMPUTE_WHOLE or any(one.uuid != own.gpu for _, one in same):
            raise InputError(
                f"{of} has {format_memory(room)} and {COMPUTE_WHOLE} percent; with this claim {format_memory(memory)} "
                f"and {compute} percent would be given away, to {held or 'this claim alone'} too",
                hint=_HINT,
            )


_HINT = (
    "a claim that was deleted by force keeps its share until its pod has ended; delete this pod to have it placed anew"
)
