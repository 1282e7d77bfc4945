"""Fixtures of the two suites that this one lets race: small roots, and real containers."""

from __future__ import annotations

from tests.nvc.conftest import driver_root, rootfs
from tests.support.fixtures import ask, bed, need, runc, whole_bed

__all__ = ["ask", "bed", "driver_root", "need", "rootfs", "runc", "whole_bed"]
