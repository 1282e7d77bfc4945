"""No time limit for one example: the machine that runs them is shared, and the suite has a limit of its own."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("nvc", deadline=None)
settings.load_profile("nvc")
