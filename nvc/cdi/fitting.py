"""Whether containers with the devices of a spec could start with its share, told when the spec is made. Pure."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.request.selection import select
from nvc.share.preview import preview
from nvc.share.sources import requested
from nvc.share.spec import merge, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.model import Inventory
    from nvc.request.injection import ShareRequest
    from nvc.share.policy import Policy


def warnings(policy: Policy, request: ShareRequest, inventory: Inventory) -> tuple[str, ...]:
    """What is to be said of a share that containers with some of these devices get in part, or do not start with.

    Raises InputError where no container could start: what the share step would say.
    """
    said: list[str] = []
    if not inventory.gpus:
        return ()
    try:
        requested(policy, request)
        _try(policy, request, inventory, ("all",), said)
        return tuple(dict.fromkeys(said))
    except InputError as error:
        first = error
    # A container may have some of the devices; with a share that names several GPUs it has these, or does not start.
    names = [mig.uuid for gpu in inventory.gpus for mig in gpu.mig_devices]
    names += [gpu.uuid or str(gpu.index) for gpu in inventory.gpus if not gpu.mig_devices]
    said, problems = [], []
    for name in names:
        try:
            _try(policy, request, inventory, (name,), said)
        except InputError as error:
            problems.append(error)
    if len(problems) == len(names):
        raise first
    share = parse(request.option) if not request.fixed else merge(request.fixed)
    told = problems if problems and not share.per_gpu else [first]
    said += [f"{problem.message}: a container with it does not start ({problem.hint})" for problem in told]
    return tuple(dict.fromkeys(said))


def _try(policy: Policy, request: ShareRequest, inventory: Inventory, devices: Sequence[str], said: list[str]) -> None:
    preview(policy, request, select(inventory, devices), inventory.driver, said.append)
