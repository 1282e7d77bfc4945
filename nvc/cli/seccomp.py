"""``nvc-py seccomp``: the guard's filter in a profile, for engines that are given one."""

from __future__ import annotations

import json
import platform

import click

from nvc.base.errors import InputError, reason
from nvc.guard.filter import merge
from nvc.guard.protocol import LISTEN
from rpc.codec import CodecError, loads

#: Profiles are some ten kilobytes.
_LIMIT = 4 << 20
_NATIVE = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--profile", metavar="FILE", default="", help="Add to this profile.  [default: one that allows all]")
@click.option("--listener", metavar="PATH", default=LISTEN, show_default=True, help="The agent's socket.")
@click.option("--metadata", metavar="TEXT", default="nvc", show_default=True, help="What the agent is told with it.")
@click.option("--no-32-bit", is_flag=True, help="End programs that use the 32-bit system calls.")
def seccomp(profile: str, listener: str, metadata: str, no_32_bit: bool) -> None:
    """Print a seccomp profile with which a container's calls of the GPU driver are announced to the agent.

    nvc-runtime does this by itself. A profile shows the filter, or is given to an engine for many containers:
    nvc-runtime must start them, because it registers each with the agent, and they need a share. A container with this
    profile and without them does not start, or is ended.

    FILE is what the container would have without it, in the form of Docker, Podman or config.json's linux.seccomp.
    Podman's is /usr/share/containers/seccomp.json; Docker's is in its sources (profiles/seccomp/default.json).
    Without FILE the profile refuses nothing, which is less than engines do by themselves.

    The first mmap of the 32-bit entry is out of any profile's sight: managed memory that is mapped by it is charged a
    second late, and not at all when a process that never calls the driver maps it for another one. nvc-runtime closes
    that entry; --no-32-bit closes all of it.

    \b
        nvc-py seccomp --profile /usr/share/containers/seccomp.json > gpu.json
        podman --runtime nvc-runtime run --security-opt seccomp=gpu.json -e NVC_SHARE=mem=10Gi ...
    """
    if not listener.startswith("/"):
        raise InputError(f"--listener {listener}: not an absolute path")
    native = _NATIVE.get(platform.machine())
    if native is None:
        raise InputError(f"no filter is known for {platform.machine()}")
    content = _read(profile) if profile else None
    click.echo(json.dumps(merge(content, listener, metadata, native, second=not no_32_bit), indent=2))


def _read(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            content = loads(file.read(_LIMIT + 1), limit=_LIMIT)
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from None
    except CodecError as error:
        raise InputError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object")
    return content
