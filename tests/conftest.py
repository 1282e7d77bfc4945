"""Fixtures that every suite shares, and the rule when a test that needs more than the machine has is skipped.

``NVC_MUST_RUN=root,system`` (as in CI) turns those skips into failures.
"""

from __future__ import annotations

import os

import pytest


def missing(marker: str) -> str:
    """Why tests with this marker cannot run here, or ""."""
    if marker in ("root", "system") and os.geteuid() != 0:
        return "needs root"
    if marker == "gpu" and not os.path.exists("/proc/driver/nvidia/version"):
        return "needs an NVIDIA GPU"
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    must = os.environ.get("NVC_MUST_RUN", "").split(",")
    for marker in ("root", "system", "gpu"):
        if item.get_closest_marker(marker) is None:
            continue
        why = missing(marker)
        if why and marker in must:
            pytest.fail(f"{marker}: {why}, and NVC_MUST_RUN names it")
        if why:
            pytest.skip(why)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see none of the variables that the product reads."""
    for name in list(os.environ):
        if name.startswith(("NVIDIA_", "NVC_", "CUDA_")) and name != "NVC_MUST_RUN":
            monkeypatch.delenv(name)
