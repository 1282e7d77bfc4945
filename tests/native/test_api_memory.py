"""libnvc-shim-api.so and memory: managed memory where a share oversubscribes, the quota where rm knows no ABI."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvc.share import limits, region
from tests.support.fake_driver import GIB, MIB, PROGRAMS, UNKNOWN, Container, compile_library, gpu


@pytest.fixture
def generous(tmp_path: Path) -> Container:
    return Container(tmp_path, gpu(0, 64 * GIB, oversubscribe=True), gpu(1, 4 * GIB))


@pytest.fixture
def counted(tmp_path: Path) -> Container:
    return Container(tmp_path, gpu(0, 64 * MIB), gpu(1, 32 * MIB), version=UNKNOWN)


def used(container: Container, index: int = 0) -> int:
    with container.region.open("rb") as file:
        return region.read(file.fileno(), 2).used(index)


def test_converts_allocations_where_the_share_oversubscribes(generous: Container) -> None:
    generous.check("managed_memory.py", "converts")


def test_leaves_what_cannot_be_managed_memory(generous: Container) -> None:
    generous.check("managed_memory.py", "leaves_the_rest")


def test_leaves_devices_without_concurrent_managed_access(generous: Container) -> None:
    generous.check("managed_memory.py", "leaves_devices_without_concurrent_access", flags=("-DNO_CONCURRENT",))


def test_frees_converted_memory_behind_the_work_of_its_stream(generous: Container) -> None:
    generous.check("managed_memory.py", "frees_behind_the_stream")


def test_export_of_converted_memory_fails_as_for_managed_memory(generous: Container) -> None:
    generous.check("managed_memory.py", "exports")


def test_gives_converted_pitched_memory_the_rows_of_the_driver(generous: Container) -> None:
    generous.check("managed_memory.py", "pitched")


def test_designates_the_gpu_of_a_mapping(generous: Container, tmp_path: Path) -> None:
    shim = compile_library(PROGRAMS / "shim_announcement.c", tmp_path / "libshim.so")
    done = generous.run("managed_memory.py", "announced", str(shim), preload=(shim,))
    assert (done.returncode, done.stderr) == (0, "")


def test_enforces_the_quota_with_an_unknown_driver(counted: Container) -> None:
    counted.check("quota.py", "kept")


def test_charges_every_way_to_memory_of_an_unknown_driver(counted: Container) -> None:
    counted.check("quota.py", "every_way")


def test_charges_the_device_that_memory_is_on(counted: Container) -> None:
    counted.check("quota.py", "device_of_the_memory")


def test_enforces_one_quota_for_all_processes(counted: Container) -> None:
    done = counted.run("quota.py", "two_processes")
    assert (done.returncode, done.stderr) == (0, "")
    assert used(counted) == 0


def test_reports_the_same_through_nvml(counted: Container) -> None:
    counted.check("quota.py", "nvml")


def test_follows_limits_that_change(counted: Container) -> None:
    content = limits.encode(limits.Limits((gpu(0, 8 * MIB), gpu(1, 0)), driver=UNKNOWN), 2)
    counted.check("quota.py", "changing_limits", str(counted.limits), content.hex())


@pytest.mark.parametrize("content", [b"", b"\0" * 8192, None], ids=["empty", "zeroes", "missing"])
def test_gives_no_memory_where_limits_cannot_be_read(counted: Container, content: bytes | None) -> None:
    if content is None:
        counted.limits.unlink()
    else:
        counted.limits.write_bytes(content)
    counted.check("quota.py", "without_limits")


def test_does_nothing_for_a_known_driver_without_oversubscription(tmp_path: Path) -> None:
    Container(tmp_path, gpu(0, MIB)).check("managed_memory.py", "not_oversubscribed")
    with (tmp_path / "region").open("rb") as file:
        assert region.read(file.fileno(), 1).header.high == 0


def test_refuses_what_an_old_driver_does_not_have(tmp_path: Path) -> None:
    container = Container(tmp_path, gpu(0, 64 * GIB, oversubscribe=True))
    container.check("managed_memory.py", "old_driver", flags=("-DOLD",))


def test_works_in_a_child_that_was_forked(generous: Container) -> None:
    generous.check("managed_memory.py", "forked")
