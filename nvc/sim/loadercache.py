"""The loader cache of a simulated machine, made by the real ldconfig, which also makes the SONAME links."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from nvc.base.errors import DetectionError, reason

#: Usually milliseconds.
_LDCONFIG_TIMEOUT_S = 60.0


def find_ldconfig() -> str | None:
    """Path of ldconfig, which is often not in an ordinary user's PATH."""
    return shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def make_cache(root: str, directories: Sequence[str], *, ldconfig: str | None) -> None:
    """Make ``root``/etc/ld.so.cache for ``directories`` (paths inside root below /usr), Debian's way.

    Raises DetectionError when ldconfig is None or fails.
    """
    if ldconfig is None:
        raise DetectionError("ldconfig is not installed", hint="it makes the machine's loader cache; install libc-bin")
    os.makedirs(f"{root}/etc/ld.so.conf.d", exist_ok=True)
    lines = []
    for directory in directories:
        os.makedirs(root + directory, exist_ok=True)
        # /lib is a link to /usr/lib; Debian names both, and the first is what the cache prints.
        lines += [directory.removeprefix("/usr"), directory]
    with open(f"{root}/etc/ld.so.conf", "x", encoding="ascii") as file:
        file.write("include /etc/ld.so.conf.d/*.conf\n")
    with open(f"{root}/etc/ld.so.conf.d/multiarch.conf", "x", encoding="ascii") as file:
        file.write("".join(f"{line}\n" for line in lines))
    try:
        done = subprocess.run(
            [ldconfig, "-r", root],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LDCONFIG_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DetectionError(f"{ldconfig} -r did not end within {_LDCONFIG_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise DetectionError(f"{ldconfig}: {reason(error)}") from error
    if done.returncode != 0 or not os.path.exists(f"{root}/etc/ld.so.cache"):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DetectionError(f"{ldconfig} -r could not make the loader cache: {last}")
