"""The packages where any user can read them: a checkout, and its .venv, may lie in a directory of root's own."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from tests.support import launchers


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
