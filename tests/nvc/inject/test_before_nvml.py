"""The driver's files are given to a container before NVML has answered, and taken back where it gets no GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvc.base.errors import DeviceError, InitializationError, NvcError, RequirementError
from nvc.container.operations import Symlink
from nvc.container.service import Applying
from nvc.inject.api import Config, ContainerConfig, ContainerOptions, ContainerSession, Context
from nvc.inject.planner import plan
from nvc.request.injection import InjectionRequest, ShareRequest
from nvc.sim.create import create
from tests.support import injection
from tests.support.injection import container, isolated, mountinfo, tree
from tests.support.native import build

pytestmark = pytest.mark.root
OPTIONS = ContainerOptions(supervised=True, no_cgroups=True, capabilities=("compute", "utility"))
ALL = InjectionRequest(("all",))


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    build()
    create(str(tmp_path / "h200"), "h200")
    return tmp_path / "h200"


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    return injection.make_rootfs(tmp_path / "rootfs")


def spoil(machine: Path, fault: str) -> None:
    description = machine / "etc/nvc-sim/machine"
    description.write_text(description.read_text().replace("\ndriver=", f"\nfault={fault}\ndriver=", 1))


@contextmanager
def planned(
    machine: Path, pid: int, rootfs: Path, request: InjectionRequest = ALL, options: ContainerOptions = OPTIONS
) -> Iterator[ContainerSession]:
    with (
        Context(Config(sim=str(machine))) as context,
        context.container(ContainerConfig(pid, str(rootfs)), options, early=True) as session,
    ):
        plan(request, context, session, applies=True)
        yield session


def shown(pid: int, rootfs: Path) -> list[str]:
    return sorted(line.split(" ", 1)[1].replace(str(rootfs), "") for line in mountinfo(pid))


@isolated
def test_files_are_there_while_nvml_is_initialised(machine: Path, rootfs: Path) -> None:
    spoil(machine, "nvmlInit slow 3000")
    with container(rootfs) as pid:
        before, seen, known = set(shown(pid, rootfs)), set[str](), threading.Event()

        def watch() -> None:
            while not known.wait(0.05):
                seen.update(shown(pid, rootfs))

        watching = threading.Thread(target=watch)
        # The services are forks, without this thread.
        watching.start()
        with planned(machine, pid, rootfs) as session:
            known.set()
            watching.join()
            early = {line.split(" ")[0] for line in seen - before}
            assert "/usr/bin/nvidia-smi" in early
            assert not {place for place in early if place.startswith(("/dev", "/proc"))}
            session.apply()
        assert {"/dev/nvidia0", "/proc/driver"} <= {line.split(" ")[0] for line in shown(pid, rootfs)}


@isolated
def test_a_container_has_the_same_as_with_an_inventory(machine: Path, rootfs: Path) -> None:
    found = []
    for known in (False, True):
        with container(rootfs) as pid:
            with planned(machine, pid, rootfs) as session:
                assert isinstance(session._applying, Applying) is not known
                session.apply()
            assert session._applying is None
            found.append(shown(pid, rootfs))
    assert [line.split(" ", 2)[0] for line in found[0]] == [line.split(" ", 2)[0] for line in found[1]]


@pytest.mark.parametrize(
    ("fault", "request_", "error"),
    [
        pytest.param("nvmlInit error 9", ALL, InitializationError, id="nvml"),
        pytest.param("nvmlDeviceGetHandleByIndex error 15", ALL, NvcError, id="gpu"),
        pytest.param("nvmlInit crash", ALL, InitializationError, id="crash"),
        pytest.param("", InjectionRequest(("7",)), DeviceError, id="device"),
        pytest.param("", InjectionRequest(("all",), requirements=("cuda>=99",)), RequirementError, id="requirement"),
    ],
)
def test_a_container_without_gpus_is_as_it_was(
    machine: Path, rootfs: Path, fault: str, request_: InjectionRequest, error: type[NvcError]
) -> None:
    if fault:
        spoil(machine, fault)
    refused(machine=machine, rootfs=rootfs, asked=request_, error=error)


@isolated
def refused(machine: Path, rootfs: Path, asked: InjectionRequest, error: type[NvcError]) -> None:
    with container(rootfs) as pid:
        mounts, files = mountinfo(pid), tree(rootfs)
        begun: list[object] = []
        begin = ContainerSession.begin_apply
        ContainerSession.begin_apply = lambda self, driver: begun.append(begin(self, driver))  # type: ignore[method-assign]
        with pytest.raises(error), planned(machine, pid, rootfs, asked):
            pass
        assert len(begun) == 1
        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


@isolated
def test_another_plan_than_was_begun_is_applied_as_a_whole(machine: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        with planned(machine, pid, rootfs) as session:
            session._operations.insert(0, Symlink("/usr/bin/another", "nvidia-smi"))
            session.apply()
        inside = injection.inside(pid, rootfs, "/")
        assert (inside / "usr/bin/another").is_symlink()
        places = [line.split(" ")[0] for line in shown(pid, rootfs)]
        assert places.count("/usr/bin/nvidia-smi") == 1
        assert "/dev/nvidia0" in places


@isolated
def test_a_plan_that_is_not_applied_leaves_nothing(machine: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        mounts, files = mountinfo(pid), tree(rootfs)
        with planned(machine, pid, rootfs) as session:
            assert session._applying is not None
        assert session._applying is None, "it is not left to the service's end, which is waited for"
        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


@isolated
def test_what_was_planned_before_nvml_is_taken_for_the_same_driver_alone(machine: Path, rootfs: Path) -> None:
    for is_same in (True, False):
        with (
            container(rootfs) as pid,
            Context(Config(sim=str(machine))) as context,
            context.container(ContainerConfig(pid, str(rootfs)), OPTIONS) as session,
        ):
            driver = context.driver_info()
            session.mount_driver(driver)
            wanted, session._operations = session._operations, []
            before = driver.replace(cuda_version="", nodes=())
            session.begin_apply(before if is_same else before.replace(libraries=before.libraries[1:]))
            assert session._planned_ahead is not None
            session.mount_driver(driver)
            assert session._operations == wanted
            ahead = {id(operation) for operation in session._planned_ahead[1]}
            assert any(id(operation) in ahead for operation in session._operations) is is_same


@isolated
def test_nothing_is_begun_for_graphics(machine: Path, rootfs: Path) -> None:
    for word in ("graphics", "display"):
        with container(rootfs) as pid:
            options = OPTIONS.replace(capabilities=("compute", word))
            with planned(machine, pid, rootfs, options=options) as session:
                assert session._applying is None
                session.apply()
            (machine / "run/nvc/inventory.json").unlink()


@pytest.mark.parametrize(("share", "begins"), [("", True), ("mem=1Gi", False)])
def test_nothing_is_begun_for_a_share(machine: Path, share: str, begins: bool) -> None:
    class Session:
        begin_apply = "begin"

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: None

    with Context(Config(sim=str(machine))) as context:
        given: list[object] = []
        ask = context.driver_info
        context.driver_info = lambda options, meanwhile=None: (given.append(meanwhile), ask(options))[1]  # type: ignore[method-assign]
        asked = InjectionRequest(("all",), share=ShareRequest(option=share))
        plan(asked, context, Session(), applies=True)  # type: ignore[arg-type]
    assert given == ["begin" if begins else None]
