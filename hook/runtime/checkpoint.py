"""An engine's ``checkpoint`` and ``restore``: refused for a container under the guard (docs/user/suspend.md).

CRIU puts seccomp filters back by their bytes (criu/pie/restorer.c), and no listener with them: to calls that the
guard's filter announces the kernel then answers ENOSYS. So the container could not use its GPU after a restore; and
one that was made without the guard would have the GPU without its share.
"""

from __future__ import annotations

import os

from hook.runtime import spec
from nvc.base.errors import InputError
from nvc.guard.registered import METADATA
from rpc.codec import CodecError, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hook.runtime.journal import Journal

_WHY = "CRIU cannot restore the guard's filter with its listener, and without it all calls of the GPU driver fail"
_STATE_S, _STATE_BYTES = 10, 4 << 20


def refuse(container: str, command: str) -> InputError:
    hint = "checkpoint its work inside of the program; to free its GPU memory: nvc-py share suspend"
    if command == "restore":
        hint = "start a new container"
    return InputError(f"{command} of container {container}, whose share is under the guard: {_WHY}", hint=hint)


def check(program: str, options: Sequence[str], container: str, journal: Journal) -> None:
    """Before ``checkpoint``. program: the real runtime; options: those before the command. Raises InputError.

    A container that the runtime does not know is the runtime's to refuse.
    """
    try:
        bundle = _bundle(program, options, container)
        profile = (spec.read(bundle).get("linux") or {}).get("seccomp") or {}
        metadata = profile.get("listenerMetadata")
    except (OSError, CodecError, InputError, AttributeError, ValueError) as error:
        journal.debug(f"checkpoint: whether {container} is guarded is not known: {error}")
        return
    if isinstance(metadata, str) and metadata.partition(":")[0] == METADATA:
        raise refuse(container, "checkpoint")


def _bundle(program: str, options: Sequence[str], container: str) -> str:
    """Raises OSError, ValueError, CodecError."""
    import subprocess  # takes long, and few ask

    command = [program, *options, "state", container]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_STATE_S, check=True, env=os.environ
        )
    except subprocess.SubprocessError as error:
        raise ValueError(str(error)) from error
    state: Any = loads(done.stdout, limit=_STATE_BYTES)
    if not isinstance(state, dict) or not isinstance(state.get("bundle"), str):
        raise ValueError("no state with a bundle")
    return str(state["bundle"])
