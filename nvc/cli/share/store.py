"""The directory of shares without --store."""

from __future__ import annotations

import os

from nvc.share import place


def usual() -> str:
    """Root's, or the one that an ordinary user's rootless engine has (``nvc.share.place``)."""
    user = os.geteuid()
    return f"/run/user/{user}/nvc/share" if user else place.directory()
