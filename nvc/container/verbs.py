"""The verbs of the container service."""

from __future__ import annotations

from nvc.base.errors import ContainerError, MountError
from nvc.base.verbs import HelperService, Verb
from nvc.container.messages import ApplyReply, ApplyRequest, InspectReply, InspectRequest

_SLOW = "a file system of the host or of the container does not answer; allow more with --timeout SECONDS"

#: Everything that needs rights: namespaces, mounts, device nodes, cgroup, ldconfig. The service unwinds: when it is
#: stopped in the middle of a request, or its caller dies, it undoes its changes to the container.
CONTAINER = HelperService(
    "container",
    (
        Verb(
            "inspect",
            InspectRequest,
            InspectReply,
            why="Changes nothing. Names a process and a directory; reads of the image go through the rootfs "
            "descriptor, and what comes back are paths, ids and the kind of cgroup, no contents.",
            failure=ContainerError,
            hint=_SLOW,
            phase="container",
        ),
        Verb(
            "apply",
            ApplyRequest,
            ApplyReply,
            why="The caller may change a container as root does: it is root, and has only this way to. Operations are "
            "data of a closed set; sources lie below the driver root or are files of ours, targets lie below the "
            "rootfs descriptor. Device nodes may follow on a socket; where none do, all is undone.",
            failure=MountError,
            hint=_SLOW,
            phase="mount",
            request_fds=1,
        ),
    ),
    crash_hint="the helper was killed (out of memory? see dmesg) or has a bug: report it with --debug's log",
    unwinds=True,
)
