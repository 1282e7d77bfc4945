"""A container with a share gets the guard's filter: its calls of the GPU driver are announced to the agent.

Only the runtime can do this: by the time that a hook runs, the engine has fixed the container's seccomp profile. The
agent hears of the container here as well, because the share step believes the agent and not config.json.
"""

from __future__ import annotations

import os

from hook.bundle import GUARD, SHARE, fixed
from hook.runtime import annotated, hooks, shares, spec
from hook.swarm import own
from nvc.base.errors import InputError, PrivilegeError
from nvc.linux import process
from nvc.model import MODESET_MINOR, NVIDIA_MAJOR
from nvc.request.injection import ShareRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hook.bundle import Bundle
    from hook.config import HookConfig
    from hook.runtime.journal import Journal
    from hook.runtime.shares import ShareStep
    from nvc.share.policy import Policy
    from nvc.share.protocol import Client

#: DRM_MAJOR of include/drm/drm_drv.h.
DRM_MAJOR = 226
#: The machines of NVIDIA's drivers that nvc-py knows.
NATIVE = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


def add(
    content: dict[str, Any],
    found: Bundle,
    env: Mapping[str, str],
    config: HookConfig,
    identifier: str,
    journal: Journal,
    *,
    restores: bool = False,
) -> bool:
    """Merge the filter into ``content``, and register the container; False when the container is not to have it.

    identifier: the container's id. restores: CRIU is to make it. Raises InputError for a profile that cannot have it,
    an annotation that the node does not allow, and a restored container; PrivilegeError where the node requires a guard
    and there is none, AgentError for an agent that does not answer.
    """
    step = shares.step(content, env, found.path)
    annotation, final = dict(found.annotations).get(SHARE, ""), fixed(content, "", found.path)
    # Each hook's own file decides which containers get a share of it; several hooks mostly have one.
    ways: dict[str, ShareStep | None] = {}
    if hooks.present(content, found.path):
        ways[hooks.rules(content, found.path) or own("", os.environ)] = None
    if step is not None:
        ways[step.config or own("", os.environ)] = step
    for rules, told in ways.items():
        asked = ShareRequest(
            annotation, told.share if told else "", dict(env), rules, guard_off=found.guard_off, fixed=final
        )
        if _add(content, found, env, config, identifier, asked, told, journal, restores=restores):
            return True
    return False


def _add(
    content: dict[str, Any],
    found: Bundle,
    env: Mapping[str, str],
    config: HookConfig,
    identifier: str,
    asked: ShareRequest,
    step: ShareStep | None,
    journal: Journal,
    *,
    restores: bool,
) -> bool:
    """``add``, by the rules in one file, and for one hook where not all read that. Raises as ``add`` does."""
    if not asked.may_matter():
        return False
    from hook.runtime.granted import driver_version, granted
    from nvc.share import policyfile
    from nvc.share.policy import guarded
    from nvc.share.preview import preview

    policy, directory = policyfile.load_node(asked.config)
    expected = preview(policy, asked)
    if expected is None:
        return False
    policy = guarded(policy, expected)
    if policy.guard == "off" or _is_off(asked, policy, journal):
        return False
    client, why = _connect(directory, driver_version(config, step))
    try:
        if why and policy.guard != "require":
            journal.info(f"no guard: {why}")
            return False
        if not granted(content, found, env, config, policy, asked, expected.source, step, journal):
            journal.info("no guard: the container gets no share")
            return False
        if client is None:
            raise PrivilegeError(
                f"this node requires a guard for shares, and {why}",
                hint="systemctl start nvc-agent; nvc-py doctor looks for what is wrong",
            )
        if restores:
            from hook.runtime.checkpoint import refuse

            raise refuse(identifier, "restore")
        _announce(content, found, directory, journal)
        if not identifier:
            raise InputError("the command line names no container", hint="a guarded container is registered by its id")
        from nvc.guard.registered import register

        register(client, identifier, found.path, process.caller, process.caller_started)
    finally:
        if client is not None:
            client.close()
    journal.info(f"the agent in {directory} guards the container")
    return True


def _is_off(asked: ShareRequest, policy: Policy, journal: Journal) -> bool:
    """Whether the container keeps itself out. Raises InputError where the node does not let it."""
    from nvc.share.sources import leaves_guard

    if not asked.guard_off:
        return False
    if leaves_guard(policy, asked):
        journal.info(f"{GUARD}=off: no guard")
        return True
    if policy.guard == "require":
        raise InputError(f"{GUARD}=off is not allowed on this node", hint="[share] guard is require in its config.toml")
    why = "the container's settings are fixed" if asked.fixed else "[share] allow-guard-off is not set on this node"
    journal.warn(f"{GUARD}=off is ignored: {why}")
    return False


def _connect(directory: str, driver: str) -> tuple[Client | None, str]:
    """A connection to the agent, or why there is none. Raises AgentError for an agent that hangs or was killed."""
    from nvc.guard.registered import SECONDS, control
    from nvc.share import abi
    from nvc.share.protocol import Client, NoAgent

    if driver and not abi.knows(driver):
        return None, f"driver {driver} is not known to the guard ({abi.FIRST} to {abi.BEYOND - 1} are)"
    if os.uname().machine not in NATIVE:
        return None, f"no filter is known for {os.uname().machine}"
    try:
        return Client(control(directory), SECONDS, wait=SECONDS), ""
    except (NoAgent, PrivilegeError) as error:
        return None, error.message


def _announce(content: dict[str, Any], found: Bundle, directory: str, journal: Journal) -> None:
    """Put the filter into ``content``, unless the very same is there already. Raises InputError."""
    from nvc.guard.filter import fault, merge
    from nvc.guard.registered import METADATA, listener

    spec.check_keys(content, found.path)
    annotated.check(content.get("annotations") or {})  # an object: ``hook.bundle.look`` has seen it
    linux = spec.section(content, "linux", found.path)
    for what in _without_display(linux, found.path):
        journal.warn(f"{what} is not given to the container: its share does not count what is allocated there")
    if found.seccomp and not fault(found.seccomp, listener(directory)):
        return
    linux["seccomp"] = merge(linux.get("seccomp"), listener(directory), METADATA, NATIVE[os.uname().machine])


def _without_display(linux: dict[str, Any], directory: str) -> list[str]:
    """Take nvidia-modeset and every DRM node out of the container's nodes and device rules; what was taken.

    The kernel allocates video memory through them with a client of its own, which the guard does not see. A rule for
    all devices, of a privileged container, stays: it opens everything else too. One for all of NVIDIA's goes: engines
    let containers make nodes, and the GPUs that the container is given have rules of their own.
    """
    taken = []
    nodes = spec.entries(linux, "devices", directory)
    for node in [one for one in nodes if isinstance(one, dict) and _is_display(one)]:
        nodes.remove(node)
        taken.append(str(node.get("path")))
    resources = spec.section(linux, "resources", directory)
    rules = spec.entries(resources, "devices", directory)
    for rule in [one for one in rules if isinstance(one, dict) and one.get("allow") and _allows_display(one)]:
        rules.remove(rule)
        taken.append(f"device rule {rule.get('major')}:{rule.get('minor', '*')}")
    return taken


def _is_display(device: dict[str, Any]) -> bool:
    """Whether a node or a rule of config.json is for such nodes alone."""
    major, minor = device.get("major"), device.get("minor")
    return device.get("type") in ("c", "u") and (major == DRM_MAJOR or (major, minor) == (NVIDIA_MAJOR, MODESET_MINOR))


def _allows_display(rule: dict[str, Any]) -> bool:
    every_minor = rule.get("minor") in (None, -1)
    return _is_display(rule) or (every_minor and _is_display(rule | {"minor": MODESET_MINOR}))
