"""A container without a GPU gets nothing of NVIDIA's drivers on a node with guarded containers.

One of these can pass it a descriptor of the driver, and no guard would see its calls (``nvc.guard.refusal``). This
process installs the filter before it becomes the real runtime. The runtime's processes inherit it, so it applies with
any seccomp profile of the engine and without one, and config.json is not changed. native/client/runtime.c does the
same.
"""

from __future__ import annotations

import errno
import os

from hook import bundle, environment, files, swarm
from hook.runtime import annotated, spec
from nvc.base.errors import InputError, NvcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hook.bundle import Bundle
    from hook.config import HookConfig
    from hook.runtime.command import Command
    from hook.runtime.journal import Journal

#: The agent's directory unless config.toml names another one; the machines that NVIDIA's drivers are for.
AGENT, _MACHINES = "/run/nvc/agent", ("x86_64", "aarch64")
#: Of a caller without CAP_SYS_ADMIN, which is a user of the host's with processes outside of any container; of kernels
#: without such filters, on which nothing is guarded.
_POINTLESS = (errno.EACCES, errno.EINVAL, errno.ENOSYS)
#: Where a runtime keeps its state unless --root says otherwise, below /run or $XDG_RUNTIME_DIR, and its file there.
_STATES = (("runc", "state.json"), ("crun", "status"))
_STATE_BYTES = 4 << 20


def enforced(journal: Journal) -> bool:
    """Whether containers of this node may be guarded: one is required, or an agent was there since the machine began.

    Yes where the node's rules cannot be read. Their file is parsed only where it has one of the words that matter.
    """
    if os.uname().machine not in _MACHINES:
        return False
    path = swarm.own("", os.environ) or f"/etc/{swarm.FILES[0]}"
    try:
        data = files.read(path, swarm.CONFIG_LIMIT) if os.path.lexists(path) else b""
        if not any(word in data for word in (b"guard", b"directory", b"\\")):
            return os.path.lexists(AGENT)
    except InputError:
        pass
    from nvc.share import policyfile

    try:
        policy, directory = policyfile.load_node(swarm.own("", os.environ))
    except InputError as error:
        journal.debug(f"NVIDIA's drivers are refused to containers without a GPU: {error}")
        return True
    return policy.guard == "require" or (policy.guard != "off" and os.path.lexists(directory))


def has_gpu(content: dict[str, Any], found: Bundle, env: Mapping[str, str], config: HookConfig) -> bool:
    """Whether ``content``, as the real runtime will read it, gives a GPU. Raises NvcError.

    What its user may write without being given a GPU for it does not count: the variable's value "none", or a mount of
    the node, which the device rules keep closed (a user namespace's runtime cannot set any).
    """
    from hook.runtime import hooks

    if hooks.present(content, found.path):
        from hook.runtime.granted import injected

        asked = injected(content, found, env, config, found.path)
        if asked is not None and (asked.devices or asked.mig_config or asked.mig_monitor):
            return True
    from nvc.cdi.given import given
    from nvc.linux.rights import in_user_namespace

    linux = content.get("linux")
    resources = linux.get("resources") if isinstance(linux, dict) else None
    simulated = os.environ.get("NVC_SIM", "")
    ruled = isinstance(resources, dict) and resources.get("devices") and not in_user_namespace()
    seen = {"linux": linux} if ruled and not simulated else content
    return bool(given(seen, found.path, simulated, config.root))


def refuse(
    content: dict[str, Any], found: Bundle, env: Mapping[str, str], config: HookConfig, journal: Journal
) -> bool:
    """For a container without a guard; True where ``content`` was changed. Raises NvcError.

    The driver alone ("none") is given by a hook, which the real runtime starts and which has to ask the driver.
    """
    if not enforced(journal) or has_gpu(content, found, env, config):
        return False
    from hook.runtime import hooks

    if not hooks.present(content, found.path):
        close(journal)
        return False
    from hook.runtime.guard import NATIVE
    from nvc.guard.refusal import merge

    spec.check_keys(content, found.path)
    annotated.check(content.get("annotations") or {})  # an object: ``hook.bundle.look`` has seen it
    linux = spec.section(content, "linux", found.path)
    linux["seccomp"] = merge(linux.get("seccomp"), NATIVE[os.uname().machine])
    return True


def close(journal: Journal) -> None:
    """For this process and all that it executes, for good. Raises NvcError."""
    from nvc.guard.refusal import program
    from nvc.linux import const, syscalls

    try:
        syscalls.seccomp_filter(program(), const.SECCOMP_FILTER_FLAG_SPEC_ALLOW)
    except OSError as error:
        if error.errno not in _POINTLESS:
            raise NvcError(f"cannot refuse NVIDIA's drivers to the container: {error.strerror or error}") from error
        journal.debug(f"NVIDIA's drivers are not refused to the container: {error}")


def executed(chosen: Command, config: HookConfig, journal: Journal) -> None:
    """Before ``exec``: a process that joins a container has none of its filters but the profile's. Raises NvcError.

    One in a container that cannot be found gets the filter.
    """
    if not enforced(journal):
        return
    try:
        content = spec.read(directory := _bundle(chosen))
        found = bundle.look(content, directory)
        if has_gpu(content, found, environment.parse(found.env), config):
            return
    except NvcError as error:
        journal.warn(f"exec: NVIDIA's drivers are refused, as the container's config.json is not found: {error}")
    close(journal)


def _bundle(chosen: Command) -> str:
    """Of a container that there is. Raises NvcError.

    Not by the runtime's command ``state``: runc's answers with an annotation called "bundle" where there is one.
    """
    if not chosen.container or "/" in chosen.container:
        raise InputError("the command line names none")
    below = os.environ.get("XDG_RUNTIME_DIR", "")
    # All of /run first: a user cannot write there.
    for place in (chosen.root,) if chosen.root else ("/run", below) if below else ("/run",):
        for runtime, file in _STATES:
            root = chosen.root or f"{place}/{runtime}"
            try:
                state = bundle.parse(files.read(f"{root}/{chosen.container}/{file}", _STATE_BYTES), root)
            except InputError:
                continue
            found = state.get("bundle")
            if runtime == "runc":
                config = state.get("config")
                labels = config.get("labels") if isinstance(config, dict) else None
                # Annotations come before it.
                found = str(labels[-1]).removeprefix("bundle=") if isinstance(labels, list) and labels else ""
            if isinstance(found, str) and found.startswith("/"):
                return found
    raise InputError(f"there is no state of {chosen.container[:80]}, or it names no bundle")
