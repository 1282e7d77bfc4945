"""From what was asked for to the operations of a container's share: reads the node's rules and looks at nodes.

Imported only where something may ask for a share.
"""

from __future__ import annotations

from nvc.base.errors import MountError, PrivilegeError
from nvc.container.operations import ShareFiles
from nvc.guard.registered import control, is_guarded
from nvc.inject.share_mounts import mounts
from nvc.share import abi, admission, nodes, place, policyfile, preload
from nvc.share.limits import Limits
from nvc.share.model import Resolved, Room
from nvc.share.policy import guarded as guarded_policy
from nvc.share.preview import preview

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.base.log import Log
    from nvc.container.operations import Operation
    from nvc.model import Container, DriverInfo, Host, Selection
    from nvc.request.injection import ShareRequest

#: Room for a container's name in the limits file, without its NUL.
_NAME_LIMIT = 63


def plan(
    request: ShareRequest, selection: Selection, host: Host, driver: DriverInfo, container: Container, log: Log
) -> tuple[Resolved, tuple[Operation, ...]]:
    """What the container gets, and how; no operations where it gets no share.

    Raises InputError for what was asked and cannot be given, PrivilegeError for a group without a guard, MountError
    where the libraries are not installed, and what ``nvc.guard.registered.is_guarded`` raises.
    """
    policy, agent = policyfile.load_node(request.config)
    resolved = preview(policy, request, selection, driver, lambda text: log.warn(f"share: {text}"))
    if resolved is None:
        return Resolved(), ()
    policy = guarded_policy(policy, resolved)
    guarded = is_guarded(request, place.first_process(container), policy, agent)
    if resolved.needs_guard and not guarded:
        raise PrivilegeError(
            f"{resolved.source}: {resolved.needs_guard} needs the guard, and this container has none",
            hint="start it with nvc-runtime, where nvc-agent runs (docs/user/agent.md)",
        )
    found = admission.rooms(policy, (gpu for gpu in selection.gpus if not gpu.mig_devices))
    guarding = control(agent) if guarded else ""
    return resolved, _operations(request, resolved, guarding, selection, host, driver, container, log, found)


def _operations(
    request: ShareRequest,
    resolved: Resolved,
    agent: str,
    selection: Selection,
    host: Host,
    driver: DriverInfo,
    container: Container,
    log: Log,
    rooms: tuple[Room, ...],
) -> tuple[Operation, ...]:
    known = abi.knows(driver.nvrm_version)
    # Programs would count twice what is counted outside; only memory beyond the quota needs code in the process.
    bare = bool(agent) and known and not resolved.oversubscribe
    libraries = "" if bare else preload.directory()
    if not bare and not libraries:
        raise MountError(
            "share: the libraries that containers preload are not installed",
            hint="install nvc-py again, or in a checkout: make native; nvc-py doctor looks for them",
        )
    limits = Limits(
        resolved.gpus,
        nodes.identities(host, driver.nodes, selection.gpus),
        driver.nvrm_version,
        request.container[:_NAME_LIMIT],
    )
    files = ShareFiles(
        place.directory(),
        place.key(request.container, container),
        request.container,
        limits,
        () if bare else preload.lines(memory=resolved.limits_memory, api=resolved.oversubscribe or not known),
        resolved.text,
        resolved.source,
        resolved.group,
        request.name,
        rooms,
        agent,
    )
    log.info(f"share: {resolved.text}, asked for by {resolved.source}; driver {driver.nvrm_version}")
    return mounts(files, libraries)
