"""Addresses to listen at that no other process takes meanwhile."""

from __future__ import annotations

import secrets
import socket


def free_address() -> str:
    """HOST:PORT. The loopback interface has many hosts: tests beside this one use another."""
    first, second, third = secrets.token_bytes(3)
    host = f"127.{first | 0x80}.{second}.{third}"
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"
