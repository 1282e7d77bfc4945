"""Directories of files for programs of all users: /etc/cdi, /etc/containers/oci/hooks.d, /run/nvc, /dev/nvidia-caps."""

from __future__ import annotations

import os

_MODE = 0o755


def make(path: str) -> None:
    """Create ``path`` and its missing parents with mode 0755, whatever the umask is. Raises OSError."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above and not os.path.exists(above):
        make(above)
    try:
        os.mkdir(path, _MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    os.chmod(path, _MODE)
