"""The packages where any user can read them: a checkout, and its .venv, may lie in a directory of root's own."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support import isolation, launchers

CHECKOUT = Path(__file__).resolve().parents[2]
#: $1: the checkout, $2: the topmost directory above it that is closed to others.
_UNCOVER = """
umask 022
place=$(mktemp -d)
mount --rbind "$1" "$place"
mount -t tmpfs -o mode=755 none "$2"
mkdir -p "$1"
mount --move "$place" "$1"
rmdir "$place"
"""


def in_place() -> None:
    """For this process: every user can enter the directories above the checkout, in a mount namespace of its own."""
    closed = [parent for parent in CHECKOUT.parents if not parent.stat().st_mode & 0o001]
    if closed:
        isolation.enter_namespaces()
        subprocess.run(["sh", "-euc", _UNCOVER, "uncover", CHECKOUT, closed[-1]], check=True)


@functools.cache
def search_path() -> list[str]:
    """Directories for sys.path with a copy of nvc, hook, rpc and of what they import. Gone with this process."""
    prefix = Path(tempfile.mkdtemp(prefix="nvc-readable-", dir="/tmp"))
    atexit.register(shutil.rmtree, prefix, ignore_errors=True)
    launchers.install(prefix / "copy")
    for directory in (prefix, *(path for path in prefix.rglob("*") if path.is_dir())):
        directory.chmod(0o755)
    library = prefix / "copy/lib/nvc-py"
    return [str(library), str(library / "deps")]
