"""Where ``top`` looks in these tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare
from tests.support.agent_status import UUIDS


@pytest.fixture
def socket(tmp_path: Path) -> str:
    return str(tmp_path / "control")


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "nvc/share")


@pytest.fixture
def container(directory: str) -> str:
    """A container that the preloaded library holds, whose first process is this one."""
    limits = Limits((ResolvedGpu(UUIDS[1], 1, 10 << 30, 500, 20),), driver="580.1", container="shimmed")
    record = StoredShare("shimmed", "shimmed", os.getpid(), store.start_time(os.getpid()))
    return store.create(record, limits, b"", directory=directory)
