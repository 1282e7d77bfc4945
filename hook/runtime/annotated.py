"""Annotations that change what runc or crun does on the host, beside config.json. Pure.

Podman before 4.5.1 copies an image's annotations into config.json, and engines let a container's user write some. crun
opens a file of the host for its hooks' output, takes a filter or another program from them (crun(1), "CRUN OCI
EXTENSIONS"), runc and crun pass properties to systemd and a file's name to criu. runc calls its own potentially unsafe
(``runc features``, PotentiallyUnsafeConfigAnnotations). So of these kinds only the ones that are known to be harmless
are accepted.
"""

from __future__ import annotations

from nvc.base.errors import InputError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Those of crun that change neither filter nor program, and open nothing. Podman sets the first (--group-add
#: keep-groups), CRI-O's default_annotations the second.
_SUBGROUP = "run.oci.systemd.subgroup"
_CRUN = (
    *("run.oci.keep_original_groups", _SUBGROUP, "run.oci.mount_context_type", "run.oci.timens_offset"),
    "run.oci.seccomp_fail_unknown_syscall",
)
#: Properties of the container's scope that say when and how it ends, and of its accounts. Podman sets KillSignal (for
#: systemd inside), CRI-O CollectMode, TimeoutStopUSec, After and DefaultDependencies, containerd Delegate. Others name
#: units that systemd is to start or stop, let a user open devices, or lift the limits that an engine was told.
_PROPERTIES = (
    *("After", "CollectMode", "DefaultDependencies", "Delegate", "Description", "KillSignal", "RuntimeMaxSec"),
    *("RuntimeMaxUSec", "TimeoutStopSec", "TimeoutStopUSec"),
)
_SYSTEMD = "org.systemd.property."
#: What such an annotation begins with -> the names that are harmless.
HARMLESS = {
    "run.oci.": _CRUN,
    _SYSTEMD: tuple(_SYSTEMD + name for name in _PROPERTIES),
    "org.criu.": (),
}


def _is_name(value: str) -> bool:
    """Of a cgroup below the container's scope; crun appends it to the path."""
    return "/" not in value and value not in (".", "..")


def check(annotations: Mapping[str, str]) -> None:
    """Raises InputError for one that is not known to be harmless. Runtimes compare names whole."""
    for name, value in annotations.items():
        low = name.lower()
        kind = next((begin for begin in HARMLESS if low.startswith(begin)), None)
        if kind is not None and (name not in HARMLESS[kind] or (name == _SUBGROUP and not _is_name(value))):
            raise InputError(
                f"annotation {shown(name, 100)}: a container with GPUs cannot have it",
                hint="it changes what the runtime does on the host. Leave it out; if it is the image's (podman image "
                "inspect), do not trust the image, and use Podman 4.5.1 or newer",
            )
