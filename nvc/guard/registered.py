"""Whether the agent guards a container: the share step needs to know before the container's first process runs.

What config.json says is not enough: users give engines profiles. A container is guarded where its filter is the
guard's, its listener the agent's, and the agent confirms the registration that nvc-runtime made of its id and bundle
(``nvc.agent.registrations``). A profile that claims the guard without that is refused, whatever the node's rules say.
"""

from __future__ import annotations

import os

from nvc.base.errors import AgentError, ContainerError, InputError, PrivilegeError, reason
from nvc.share.sources import leaves_guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.request.injection import ShareRequest
    from nvc.share.policy import Policy
    from nvc.share.protocol import Client

#: Seconds for the agent's answer, of nvc-runtime and of the share step.
SECONDS = 5.0
#: How the text begins that goes to the agent with a container's listener (linux.seccomp.listenerMetadata).
METADATA = "nvc"
_START = "start it with nvc-runtime, where nvc-agent runs (docs/user/agent.md)"


def listener(directory: str) -> str:
    """The agent's socket for listeners. directory: the agent's."""
    return f"{directory}/listen"


def control(directory: str) -> str:
    """The agent's control socket."""
    return f"{directory}/control"


def is_guarded(request: ShareRequest, pid: int, policy: Policy, directory: str) -> bool:
    """Whether the agent guards the container. pid: of its first process, 0: not known. directory: the agent's.

    Raises InputError for a profile that claims the guard and has other rules, ContainerError for one that the agent
    does not confirm, AgentError, and PrivilegeError where the node requires a guard and there is none.
    """
    if _claims(request.seccomp, listener(directory)):
        _confirm(request, pid, directory)
        return True
    if not request.bundle and _is_known(pid, directory):
        return True
    if policy.guard == "require" and not leaves_guard(policy, request):
        raise PrivilegeError("this node requires a guard for shares, and this container has none", hint=_START)
    return False


def register(client: Client, container: str, bundle: str, runtime: int = 0, started: int = 0) -> None:
    """Tell the agent that a process is about to make a container to be guarded. Raises AgentError, InputError.

    runtime: the process, and started: its start time; 0 for this one.
    """
    try:
        found = os.stat(bundle)
    except OSError as error:
        raise InputError(f"{bundle}: {reason(error)}") from error
    other = {"runtime": runtime, "started": started} if runtime else {}
    client.call("register", container=container, bundle=bundle, device=found.st_dev, inode=found.st_ino, **other)


def _claims(profile: dict[str, Any], socket: str) -> bool:
    metadata = profile.get("listenerMetadata")
    named = isinstance(metadata, str) and metadata.partition(":")[0] == METADATA
    return bool(profile) and (named or profile.get("listenerPath") == socket)


def _confirm(request: ShareRequest, pid: int, directory: str) -> None:
    from nvc.guard.filter import fault
    from nvc.share.protocol import Client

    why = fault(request.seccomp, listener(directory))
    if why:
        raise InputError(f"seccomp profile: it claims nvc's guard, and {why}", hint=_START)

    try:
        found = os.stat(request.bundle)
        with Client(control(directory), SECONDS, wait=SECONDS) as client:
            client.call("bind", container=request.container, device=found.st_dev, inode=found.st_ino, pid=pid)
    except OSError as error:
        raise ContainerError(f"{request.bundle}: {reason(error)}") from error
    except (AgentError, PrivilegeError) as error:
        raise ContainerError(
            f"the agent does not confirm that it guards the container: {error}", hint=error.hint
        ) from error


def _is_known(pid: int, directory: str) -> bool:
    """By the process alone, without a config.json (``configure``). Raises AgentError for an agent that hangs."""
    from nvc.share.protocol import Client, NoAgent

    if not pid:
        return False
    try:
        with Client(control(directory), SECONDS, wait=SECONDS) as client:
            return client.call("bind", pid=pid).get("registered") is True
    except (NoAgent, PrivilegeError):
        return False
