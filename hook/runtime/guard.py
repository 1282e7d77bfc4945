"""A container with a share gets the guard's filter: its calls of the GPU driver are announced to the agent.

Only the runtime can do this: by the time that a hook runs, the engine has fixed the container's seccomp profile.
"""

from __future__ import annotations

import os

from hook import swarm
from hook.bundle import GUARD, GUARDED, SHARE
from hook.runtime import hooks, shares, spec
from nvc.errors import InputError, PrivilegeError
from nvc.injection import ShareWish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hook.bundle import Bundle
    from hook.config import HookConfig
    from hook.runtime.journal import Journal

#: Only a file of ours has the sections [share] and [agent].
_OURS = "/nvc/config.toml"
_NATIVE = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


def add(
    content: dict[str, Any], found: Bundle, env: Mapping[str, str], config: HookConfig, directory: str, journal: Journal
) -> bool:
    """Merge the filter into ``content``; False when the container is not to have it.

    Raises InputError for a profile that cannot have it, an annotation that the node does not allow, and where the node
    requires a guard and there is none.
    """
    annotations = dict(found.annotations)
    wish = annotations.get(SHARE, "")
    if found.guarded or not ShareWish(wish, "", dict(env)).may_matter():
        return False
    if not hooks.present(content, directory) and not shares.present(content, directory):
        return False  # nobody gives it a GPU
    from nvc.share import policyfile
    from nvc.share.policy import asks, decode

    path = swarm.find("", os.environ)
    tables = policyfile.read(path if path.endswith(_OURS) else "")
    policy = decode(tables.get("share", {}), path)
    # Who gets a share is the hook's decision: it reads the node's file, whatever the runtime reads.
    rules = policyfile.load()
    if not asks(rules, annotation=wish, environment=env):
        return False
    off = annotations.get(GUARD, "on").strip().lower() == "off"
    if off and policy.guard == "require" and not policy.allow_guard_off:
        raise InputError(f"{GUARD}=off is not allowed on this node", hint="[share] guard is require in its config.toml")
    if off and (policy.allow_guard_off or policy.guard == "off"):
        journal.info(f"{GUARD}=off: no guard")
        return False
    if off:
        journal.warn(f"{GUARD}=off is ignored: [share] allow-guard-off is not set on this node")
    if policy.guard == "off":
        return False
    listener = f"{_agent_directory(tables, path)}/listen"
    why = _absent(listener)
    if why and policy.guard != "require":
        journal.info(f"no guard: {why}")
        return False
    from hook.runtime.granted import granted

    if not granted(content, found, env, config, directory, rules, wish, journal):
        journal.info("no guard: the container gets no share")
        return False
    if why:
        raise PrivilegeError(
            f"this node requires a guard for shares, and {why}", hint="systemctl start nvc-agent; nvc-py agent"
        )
    from nvc.guard.filter import merge

    linux = spec.section(content, "linux", directory)
    linux["seccomp"] = merge(linux.get("seccomp"), listener, GUARDED, _NATIVE[os.uname().machine])
    journal.info(f"the agent at {listener} guards the container")
    return True


def _agent_directory(tables: dict[str, Any], path: str) -> str:
    """Where the agent says it is. Raises InputError as the agent does: it would not be found elsewhere."""
    if "agent" not in tables:
        return "/run/nvc/agent"
    from nvc.agent.settings import decode

    return decode(tables["agent"], path).directory


def _absent(listener: str) -> str:
    """Why nobody takes a listener there, or ""."""
    import socket

    if os.uname().machine not in _NATIVE:
        return f"no filter is known for {os.uname().machine}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(5)
        try:
            connection.connect(listener)
        except OSError as error:
            return f"no agent listens at {listener}: {error.strerror or error}"
    return ""
