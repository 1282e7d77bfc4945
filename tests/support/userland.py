"""The userlands that tools/userland makes, each as the root of a command, for engines newer than this machine's."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvc.share import store
from tests.support import launchers
from tests.support.podmanbox import quoted
from tests.support.users import User

#: Read once: tests see no NVC_ variable.
_PLACES = {"trixie": os.environ.get("NVC_USERLAND", ""), "sid": os.environ.get("NVC_USERLAND_SID", "")}
#: Where tools/crio built, which is outside of the userland and need not be below /tmp.
_CRIO = os.environ.get("NVC_CRIO", "")
#: Debian 13, and what is newest.
SUITES = tuple(_PLACES)
#: pivot_root, not chroot: a hook that enters a mount namespace lands in its real root, which a chroot would leave at
#: the host's. /tmp is the host's, where test beds are; /run is new; the product's interpreter may be anywhere.
_SCRIPT = Path(__file__).parent / "programs/enter_userland.sh"


def place(suite: str = "trixie") -> Path:
    """The userland's directory; skips the test where there is none (NVC_MUST_RUN=userland or userland-sid: fails)."""
    found = Path(_PLACES[suite])
    if _PLACES[suite] and (found / ".nvc-complete").exists():
        return found
    variable, needed = ("NVC_USERLAND", "userland") if suite == "trixie" else ("NVC_USERLAND_SID", "userland-sid")
    why = f"no userland of Debian {suite}: make one with tools/userland DIR {suite}, and name it in {variable}"
    if needed in os.environ.get("NVC_MUST_RUN", "").split(","):
        pytest.fail(why)
    pytest.skip(why)


def version(root: Path, package: str) -> str:
    """The version of a Debian package there, such as 28.5.2, for what a test notes."""
    words = ["dpkg-query", "--admindir", str(root / "var/lib/dpkg"), "-W", "-f", "${Version}", package]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return found.rpartition(":")[2].partition("+")[0].partition("-")[0]


def wrap(root: Path, command: Sequence[str] = (), *, shares: bool = False) -> list[str]:
    """The command in a mount namespace of its own with the userland as root. shares: and with the host's shares, for an
    agent outside."""
    return [
        "unshare",
        "-m",
        "--propagation",
        "private",
        "sh",
        "-eu",
        str(_SCRIPT),
        *_words(root),
        store.DIRECTORY if shares else "",
        _CRIO,
        *command,
    ]


def account(user: User) -> str:
    """A line for sh that copies the machine's account, with its ids for user namespaces, into the userland's /etc.

    For an /etc of its own only, such as PodmanBox has: the userland's is shared.
    """
    lines = []
    for name in ("passwd", "group", "subuid", "subgid"):
        text = Path("/etc", name).read_text()
        found = [line for line in text.splitlines() if line.startswith(f"{user.name}:")]
        lines.append(f"printf '%s\\n' {quoted(found)} >>/etc/{name}")
    return " && ".join(lines)


def _words(root: Path) -> list[str]:
    return [str(root), launchers.interpreter(), sysconfig.get_path("stdlib")]
