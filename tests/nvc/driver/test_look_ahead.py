"""Files that are looked for while NVML is initialised: taken when NVML names their version, and never twice."""

from __future__ import annotations

import os
import threading

import pytest

from nvc.base.errors import DetectionError
from nvc.driver import discover, inventory, nvcaps
from nvc.driver.facts import NvmlGpu, NvmlSystem
from nvc.driver.inventory import load, look_ahead
from nvc.model import DriverOptions, Inventory
from tests.support.cached_machine import Machine
from tests.support.driver_root import VERSION


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions whose files were looked for."""
    found: list[str] = []
    plain = discover.files

    def files(host: object, options: object, version: str, environ: object) -> discover.Installed:
        found.append(version)
        return plain(host, options, version, environ)  # type: ignore[arg-type]

    monkeypatch.setattr(discover, "files", files)
    return found


def loaded(machine: Machine, *, options: DriverOptions | None = None, version: str = VERSION) -> Inventory:
    """As a Context loads it: the files are looked for when the query has begun."""

    def query() -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
        look_ahead(machine.host, options or machine.options, machine.environ)
        system, gpus = machine.query()
        return system.replace(driver_version=version), gpus

    return load(
        machine.host, machine.options, query, cache=str(machine.cache), log=machine.log, environ=machine.environ
    )


def test_they_are_looked_for_once(machine: Machine, looked: list[str]) -> None:
    plain = machine.load()
    machine.cache.unlink()
    looked.clear()

    assert loaded(machine) == plain
    assert looked == [VERSION]
    assert inventory._ahead == []


def test_files_of_other_options_are_not_taken(machine: Machine, looked: list[str]) -> None:
    plain = machine.load()
    machine.cache.unlink()
    looked.clear()

    assert loaded(machine, options=machine.options.replace(no_gsp_firmware=True)) == plain
    assert looked == [VERSION, VERSION]


def test_files_of_another_version_than_nvmls_are_not_taken(machine: Machine, looked: list[str]) -> None:
    with pytest.raises(DetectionError, match=r"no libnvidia-ml\.so\.1\.2\.3"):
        loaded(machine, version="1.2.3")

    assert looked == [VERSION, "1.2.3"]


def test_what_changes_meanwhile_is_noticed_by_the_next_load(machine: Machine) -> None:
    def query() -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
        look_ahead(machine.host, machine.options, machine.environ)
        machine.root.write("usr/bin/nvidia-cuda-mps-control", b"\x7fELF")
        os.utime(machine.root.path / "usr/bin", ns=(1, 1))
        return machine.query()

    load(machine.host, machine.options, query, cache=str(machine.cache), log=machine.log, environ=machine.environ)
    after = machine.load()

    assert "/usr/bin/nvidia-cuda-mps-control" in [file.path for file in after.driver.binaries]


def test_a_failure_is_the_loads_to_say(machine: Machine) -> None:
    (machine.root.path / "etc/ld.so.cache").write_bytes(b"damaged")

    look_ahead(machine.host, machine.options, machine.environ)
    assert inventory._ahead == []
    with pytest.raises(Exception, match=r"ld\.so\.cache"):
        loaded(machine)


def test_what_a_failed_query_left_is_not_taken_later(machine: Machine, looked: list[str]) -> None:
    look_ahead(machine.host, machine.options, machine.environ)
    assert inventory._ahead

    machine.load()

    assert looked == [VERSION, VERSION]


def test_nvcaps_of_bound_gpus_are_read_ahead(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = machine.load()
    machine.cache.unlink()
    assert plain.gpus[0].mig_nodes
    read: list[str] = []
    parse, minor, optional = nvcaps.mig_minors, nvcaps.read_minor, [nvcaps.MIG_CONFIG, nvcaps.MIG_MONITOR]
    monkeypatch.setattr(
        nvcaps, "read_minor", lambda host, path: (read.append(path) if path in optional else None) or minor(host, path)
    )
    monkeypatch.setattr(nvcaps, "mig_minors", lambda text, gpu: read.append(f"GPU {gpu}") or parse(text, gpu))

    def query() -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
        look_ahead(machine.host, machine.options, machine.environ)
        read.append("queried")
        return machine.query()

    found = load(
        machine.host, machine.options, query, cache=str(machine.cache), log=machine.log, environ=machine.environ
    )
    assert found == plain
    assert read == [*optional, *(f"GPU {gpu.minor}" for gpu in plain.gpus), "queried"]


def test_without_a_cache_nothing_is_watched(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was found so is not kept: no change would make it a miss."""
    plain = machine.load()
    machine.cache.unlink()
    asked: list[object] = []
    monkeypatch.setattr(inventory, "watched_identities", lambda *_: asked.append("watched") or {"/": ""})
    monkeypatch.setattr(inventory, "identities", lambda *_: asked.append("files") or {})

    def query() -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
        look_ahead(machine.host, machine.options, machine.environ, watch=False)
        return machine.query()

    assert load(machine.host, machine.options, query, cache=None, log=machine.log, environ=machine.environ) == plain
    assert asked == []

    load(machine.host, machine.options, query, cache=str(machine.cache), log=machine.log, environ=machine.environ)
    assert asked == ["watched", "files"]


def test_mig_minors_is_read_while_files_are_looked_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = machine.load()
    machine.cache.unlink()
    begun, files = threading.Event(), discover.files
    read = nvcaps.read_text

    def read_text(path: str, limit: int = 65536) -> str:
        if path.endswith("mig-minors"):
            begun.set()
        return read(path, limit)

    def looked(*arguments: object) -> discover.Installed:
        assert begun.wait(10), "before, in another thread"
        return files(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(nvcaps, "read_text", read_text)
    monkeypatch.setattr(discover, "files", looked)

    assert loaded(machine) == plain
    assert begun.is_set()


def test_no_thread_is_left_where_files_cannot_be_read(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    read = nvcaps.read_text

    def read_text(path: str, limit: int = 65536) -> str:
        assert gate.wait(10)
        return read(path, limit)

    def fails(*_: object) -> discover.Installed:
        threading.Timer(0.2, gate.set).start()
        raise DetectionError("no files")

    monkeypatch.setattr(nvcaps, "read_text", read_text)
    monkeypatch.setattr(discover, "files", fails)
    look_ahead(machine.host, machine.options, machine.environ)
    assert gate.is_set()


def test_without_a_thread_mig_minors_is_read_when_it_is_needed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = machine.load()
    machine.cache.unlink()
    tried: list[object] = []

    def start_new_thread(*arguments: object) -> int:
        tried.append(arguments)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(nvcaps, "start_new_thread", start_new_thread)
    assert loaded(machine) == plain
    assert len(tried) == 1
