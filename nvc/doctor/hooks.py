"""Checks of the OCI hooks that Podman and CRI-O add to containers."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nvc.doctor.finding import Finding, error, ok, warning
from nvc.doctor.probe import BadFile, Place, table, texts

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe

#: A file in the second hides one of the same name in the first (oci-hooks(5)).
DIRECTORIES = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
_OURS = ("nvc-hook", "nvidia-container-runtime-hook", "nvidia-container-toolkit", "oci-nvidia-hook")
_STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


def _places(probe: Probe) -> list[Place]:
    found: dict[str, Place] = {}
    for directory in DIRECTORIES:
        place = probe.system(directory)
        found.update({name: place.below(name) for name in place.names() if name.endswith(".json")})
    return [found[name] for name in sorted(found)]


def hook_files(probe: Probe) -> list[tuple[Place, dict[str, Any]]]:
    """The hooks that add GPUs. Broken files are left out: ``files`` reports them."""
    found = []
    for place in _places(probe):
        try:
            content = table(place.json())
        except BadFile:
            continue
        path = table(content, "hook").get("path")
        if isinstance(path, str) and posixpath.basename(path).startswith(_OURS):
            found.append((place, content))
    return found


def files(probe: Probe) -> Iterator[Finding]:
    """Every file: valid, with a program that exists."""
    wrong = False
    for place in _places(probe):
        quoted = shlex.quote(str(place))
        try:
            content = place.json()
        except BadFile as problem:
            wrong = True
            yield error(f"{problem}: Podman starts no container at all", f"sudo mv {quoted} /root/")
            continue
        hook = table(content, "hook")
        path = hook.get("path")
        if not isinstance(path, str) or not path.startswith("/"):
            wrong = True
            yield error(f"{place}: hook.path is not an absolute path", f"sudo mv {quoted} /root/")
        elif not probe.program(path):
            wrong = True
            yield error(f"{place}: {path} does not exist or is not executable", f"sudo mv {quoted} /root/")
        stages = table(content).get("stages")
        unknown = [stage for stage in texts(stages) if stage not in _STAGES]
        if unknown or not texts(stages):
            wrong = True
            yield error(f"{place}: stages {unknown or stages!r} are not OCI stages", f"sudoedit {quoted}")
    if not wrong:
        yield ok(f"{len(_places(probe))} hook files are valid")


def environment(probe: Probe) -> Iterator[Finding]:
    """Without ``env``, runc starts a hook with the container's environment in some stages."""
    wrong = False
    for place, content in hook_files(probe):
        if texts(table(content, "hook").get("env")):
            continue
        wrong = True
        entry = '"env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]'
        text, fix = f"{place}: hook.env is empty", f"sudoedit {shlex.quote(str(place))}  # add {entry} to hook"
        exposed = {"createContainer", "startContainer"} & set(texts(content.get("stages")))
        yield error(text, fix) if exposed else warning(text, fix)
    if hook_files(probe) and not wrong:
        yield ok("every GPU hook has an environment")


def twice(probe: Probe) -> Iterator[Finding]:
    found = hook_files(probe)
    if len(found) > 1:
        names = ", ".join(str(place) for place, _ in found)
        yield warning(f"{len(found)} hooks add GPUs: {names}", f"sudo rm {shlex.quote(str(found[0][0]))}")
    elif found:
        yield ok(f"{found[0][0]} adds GPUs")
