"""NVIDIA's CDI hook ``apply-cuda-memory-limits``: the container's variables become a memory quota of its GPUs.

nvidia-ctk 1.20.1 names it once for each GPU, at createRuntime: ``--driver-root DIR --gpu-id UUID``. Its own program
(cmd/nvidia-cdi-hook/apply-cuda-memory-limits of the container toolkit) has drivers of 615 and later hold the limit in
the container's cgroup (nvmlDeviceSetMemoryLimits); here it is a share, with every driver that shares know.
"""

from __future__ import annotations

from nvc.base.errors import DeviceError, InputError, shown
from nvc.container.messages import ContainerConfig
from nvc.inject.api import Config, ContainerOptions, Context
from nvc.model import Selection
from nvc.request.injection import ShareRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nvc.base.log import Log
    from nvc.cdi.hooks import HookTarget
    from nvc.model import Gpu

NAME = "apply-cuda-memory-limits"
#: In MiB: what is to be left to the container when memory is short, and what it may not exceed.
REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"
_DIGITS = frozenset("0123456789")
#: More than any number of MiB has.
_LONGEST = 19


def limit(environment: Mapping[str, str], log: Log) -> int:
    """What the container may use of each GPU, in MiB; 0 for no limit. Raises InputError that names the variable."""
    request, most = _number(environment, REQUEST), _number(environment, LIMIT)
    if most is None:
        if request is not None:
            log.warn(f"{NAME}: {REQUEST} without {LIMIT} limits nothing, and no memory is reserved")
        return 0
    if request is not None and request > most:
        raise InputError(f"{REQUEST}={request} is more than {LIMIT}={most}", hint="ask for the limit, or for less")
    if not most:
        raise InputError(f"{LIMIT}=0 leaves no memory", hint="leave the variable out for no limit")
    return most


def apply(
    target: HookTarget, pid: int, uuids: Sequence[str], simulated: str, driver_root: str, rules: str, log: Log
) -> bool:
    """Hold the container of process ``pid`` to its limit on these GPUs. True if there is one.

    uuids: of all GPUs that the hook is started for, by all of its entries: a share is of the whole container. rules:
    file with the node's, "" for the usual one.
    Raises NvcError: a limit that cannot be applied must keep the container from starting.
    """
    most = limit(target.environment, log)
    if not most:
        return False
    config = Config(root=driver_root or "/", sim=simulated, timeout=target.timeout)
    with Context(config, log=log) as context:
        gpus = _named(uuids, context.device_info())
        spec = ";".join(f"{gpu.uuid}:{_setting(most, gpu)}" for gpu in gpus)
        about = target.identifier, target.bundle, target.seccomp, target.guard_off
        request = ShareRequest(target.share, spec, target.environment, rules, *about, name=target.name)
        where = ContainerConfig(pid, target.rootfs)
        with context.container(
            where, ContainerOptions(supervised=True, no_cgroups=True, capabilities=("utility",))
        ) as session:
            session.share(request, Selection(gpus=gpus))
            session.apply()
    return True


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """None where the variable is not set. The toolkit refuses an empty one, as here."""
    text = environment.get(name)
    if text is None:
        return None
    if not text or len(text) > _LONGEST or not _DIGITS.issuperset(text):
        raise InputError(f"{name}={shown(text)} is not a number of MiB", hint="write decimal digits, without a unit")
    return int(text)


def _named(uuids: Sequence[str], gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    known = {gpu.uuid: gpu for gpu in gpus}
    for uuid in uuids:
        if uuid not in known:
            raise DeviceError(f"{NAME}: GPU {uuid!r} is not on this machine", hint="make the CDI specification anew")
    return tuple(gpu for uuid, gpu in known.items() if uuid in uuids)


def _setting(most: int, gpu: Gpu) -> str:
    """As for the driver, more than the card has is no mistake: schedulers count cards in round numbers."""
    return f"mem={most}Mi" if not gpu.memory or most < gpu.memory >> 20 else "mem=100%"
