"""A process that called, while it shared its parent's memory, and then executed another program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tenants import Tenants, build_static, guarded, prepare

pytestmark = pytest.mark.root


def test_the_memory_is_the_executed_programs(tmp_path: Path) -> None:
    directory = prepare(tmp_path)
    build_static(Path(__file__).parents[2] / "tests/system/programs/vmexec.c", directory / "vmexec")

    def attacked(tenants: Tenants) -> None:
        tenants.add(1, memory=1 << 30)
        said = tenants.run(directory / "vmexec")
        assert "parent's status aaaa" in said, said
        assert "executed ffff" not in said and "executed -" not in said, said

    guarded(directory, attacked)
