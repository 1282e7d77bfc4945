"""A container with a share gets the guard's filter: its calls of the GPU driver are announced to the agent.

Only the runtime can do this: by the time that a hook runs, the engine has fixed the container's seccomp profile. The
agent is told of the container here as well, because the share step believes the agent and not config.json.
"""

from __future__ import annotations

import os

from hook.bundle import GUARD, SHARE
from hook.runtime import hooks, shares, spec
from hook.swarm import own
from nvc.base.errors import InputError, PrivilegeError
from nvc.request.injection import ShareRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hook.bundle import Bundle
    from hook.config import HookConfig
    from hook.runtime.journal import Journal
    from hook.runtime.shares import ShareStep
    from nvc.guard.protocol import Client
    from nvc.share.policy import Policy

_NATIVE = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


def add(
    content: dict[str, Any],
    found: Bundle,
    env: Mapping[str, str],
    config: HookConfig,
    identifier: str,
    journal: Journal,
) -> bool:
    """Merge the filter into ``content``, and register the container; False when the container is not to have it.

    identifier: the container's id. Raises InputError for a profile that cannot have it and an annotation that the node
    does not allow, PrivilegeError where the node requires a guard and there is none, AgentError for an agent that does
    not answer.
    """
    step = shares.step(content, env, found.path)
    # Each hook's own file decides which containers get a share of it; several hooks mostly have one.
    ways: dict[str, ShareStep | None] = {}
    if hooks.present(content, found.path):
        ways[hooks.rules(content, found.path) or own("", os.environ)] = None
    if step is not None:
        ways[step.config or own("", os.environ)] = step
    return any(_add(content, found, env, config, identifier, rules, ways[rules], journal) for rules in ways)


def _add(
    content: dict[str, Any],
    found: Bundle,
    env: Mapping[str, str],
    config: HookConfig,
    identifier: str,
    rules: str,
    step: ShareStep | None,
    journal: Journal,
) -> bool:
    """``add``, by the rules in one file, and for one hook where not all read that. Raises as ``add`` does."""
    asked = ShareRequest(dict(found.annotations).get(SHARE, ""), step.share if step else "", dict(env), rules)
    if not asked.may_matter():
        return False
    from nvc.share import policyfile
    from nvc.share.preview import preview

    policy, directory = policyfile.load_node(rules)
    expected = preview(policy, asked)
    if expected is None:
        return False
    if policy.guard == "off" or _is_off(found, policy, journal):
        return False
    client, why = _connect(directory)
    try:
        if why and policy.guard != "require":
            journal.info(f"no guard: {why}")
            return False
        from hook.runtime.granted import granted

        if not granted(content, found, env, config, policy, asked, expected.source, step, journal):
            journal.info("no guard: the container gets no share")
            return False
        if client is None:
            raise PrivilegeError(
                f"this node requires a guard for shares, and {why}", hint="systemctl start nvc-agent; nvc-py agent"
            )
        _announce(content, found, directory)
        if not identifier:
            raise InputError("the command line names no container", hint="a guarded container is registered by its id")
        from nvc.guard.registered import register

        register(client, identifier, found.path)
    finally:
        if client is not None:
            client.close()
    journal.info(f"the agent in {directory} guards the container")
    return True


def _is_off(found: Bundle, policy: Policy, journal: Journal) -> bool:
    """Whether the container keeps itself out. Raises InputError where the node does not let it."""
    if not found.guard_off:
        return False
    if policy.allow_guard_off:
        journal.info(f"{GUARD}=off: no guard")
        return True
    if policy.guard == "require":
        raise InputError(f"{GUARD}=off is not allowed on this node", hint="[share] guard is require in its config.toml")
    journal.warn(f"{GUARD}=off is ignored: [share] allow-guard-off is not set on this node")
    return False


def _connect(directory: str) -> tuple[Client | None, str]:
    """A connection to the agent, or why there is none. Raises AgentError for an agent that hangs or was killed."""
    from nvc.guard.protocol import Client, NoAgent
    from nvc.guard.registered import SECONDS, control

    if os.uname().machine not in _NATIVE:
        return None, f"no filter is known for {os.uname().machine}"
    try:
        return Client(control(directory), SECONDS, wait=SECONDS), ""
    except (NoAgent, PrivilegeError) as error:
        return None, error.message


def _announce(content: dict[str, Any], found: Bundle, directory: str) -> None:
    """Put the filter into ``content``, unless the very same is there already. Raises InputError."""
    from nvc.guard.filter import fault, merge
    from nvc.guard.profile import check_annotations
    from nvc.guard.registered import METADATA, listener

    check_annotations(content.get("annotations") or {})  # an object: ``hook.bundle.look`` has seen it
    linux = spec.section(content, "linux", found.path)
    for section, key in ((content, "linux"), (linux, "seccomp")):
        # encoding/json takes a key in any case of letters.
        if [name for name in section if name.lower() == key] not in ([], [key]):
            raise InputError(f"{found.path}/config.json: {key} is there in several spellings")
    if found.seccomp and not fault(found.seccomp, listener(directory)):
        return
    linux["seccomp"] = merge(linux.get("seccomp"), listener(directory), METADATA, _NATIVE[os.uname().machine])
