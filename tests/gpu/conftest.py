"""Fixtures for a machine with an NVIDIA GPU: those of tests/support/fixtures.py."""

from __future__ import annotations

from tests.support.fixtures import ask, bed, need, runc, runtime, whole_bed

__all__ = ["ask", "bed", "need", "runc", "runtime", "whole_bed"]
