"""Shares that hold against the container itself: what is watched from outside of it (seccomp user notification)."""
