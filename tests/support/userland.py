"""The Debian 13 userland that tools/userland makes, as the root of a command, for engines newer than this machine's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

#: Read once: tests see no NVC_ variable.
_PLACE = os.environ.get("NVC_USERLAND", "")
#: pivot_root, not chroot: a hook that enters a mount namespace lands in its real root, which a chroot would leave at
#: the host's. /tmp is the host's, where test beds are; /run is new; the product's interpreter may be anywhere.
_SCRIPT = """\
root=$1; shift
mount --bind "$root" "$root"
for directory in proc sys dev; do mount --rbind /$directory "$root/$directory"; done
mount --rbind /tmp "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/lock" "$root/run/old"
cd "$root" && pivot_root . run/old && cd / && umount -l /run/old && rmdir /run/old && exec "$@"
"""


def place() -> Path:
    """The userland's directory; skips the test where there is none (NVC_MUST_RUN=userland: fails)."""
    found = Path(_PLACE)
    if _PLACE and (found / ".nvc-complete").exists():
        return found
    why = "no Debian 13 userland: make one with tools/userland DIR, and name it in NVC_USERLAND"
    if "userland" in os.environ.get("NVC_MUST_RUN", "").split(","):
        pytest.fail(why)
    pytest.skip(why)


def wrap(root: Path, command: Sequence[str] = ()) -> list[str]:
    """The command in a mount namespace of its own with the userland as root."""
    return ["unshare", "-m", "--propagation", "private", "sh", "-eu", "-c", _SCRIPT, "userland", str(root), *command]
