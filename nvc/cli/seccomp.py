"""``nvc-py seccomp``: the guard's filter in a profile, for engines that are given one."""

from __future__ import annotations

import json
import platform

import click

from nvc.base.errors import InputError, reason
from nvc.guard.filter import merge
from nvc.share.protocol import LISTEN
from rpc.codec import CodecError, loads

#: Profiles are some ten kilobytes.
_LIMIT = 4 << 20
_NATIVE = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--profile", metavar="FILE", default="", help="Add to this profile.  [default: one that allows all]")
@click.option("--listener", metavar="PATH", default=LISTEN, show_default=True, help="The agent's socket.")
@click.option(
    "--metadata", metavar="TEXT", default="nvc", show_default=True, help="Sent to the agent with the listener."
)
@click.option("--no-32-bit", is_flag=True, help="End programs that use the 32-bit system calls.")
def seccomp(profile: str, listener: str, metadata: str, no_32_bit: bool) -> None:
    """Print a seccomp profile with the guard's filter: the kernel stops a container's calls of the driver for it.

    nvc-runtime adds the filter by itself. The profile is for looking at it, or for an engine that gets one profile for
    many containers. Each of them needs a share, and nvc-runtime must start it, because it registers the container with
    the agent; otherwise the container does not start, or is ended.

    FILE is the profile that the container would have without this one, in the form of Docker, Podman or config.json's
    linux.seccomp. Podman's is /usr/share/containers/seccomp.json; Docker's is in its sources
    (profiles/seccomp/default.json). Without FILE the profile refuses nothing: less than an engine's own.

    No profile can filter the first mmap of the 32-bit system calls. Managed memory that is mapped by it is charged a
    second late, or, when a process that never calls the driver maps it for another one, not at all. nvc-runtime closes
    that call; --no-32-bit closes all 32-bit calls.

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
