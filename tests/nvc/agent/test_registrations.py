"""Registrations: which container each is for, how long it holds, and what of it outlives an agent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.agent import registrations
from nvc.agent.container_state import ContainerProcess
from nvc.agent.registrations import DIRECTORY, MAX_REGISTRATIONS, Registrations
from nvc.base.errors import AgentError, ContainerError
from nvc.share.store import start_time
from rpc.codec import dumps, loads

ID = "4f0c"
Sleep = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def sleep() -> Iterator[Sleep]:
    """Starts processes that sleep until the test ends: runtimes and containers' first processes."""
    with contextlib.ExitStack() as stack:

        def start() -> subprocess.Popen[bytes]:
            made = subprocess.Popen(["sleep", "infinity"])
            stack.callback(made.wait)
            stack.callback(made.kill)
            return made

        yield start


class Place:
    """An agent's directory and two bundles."""

    def __init__(self, path: Path) -> None:
        self.directory = str(path)
        self.bundles = [path / "b1", path / "b2"]
        for bundle in self.bundles:
            bundle.mkdir()
        self.all = Registrations(self.directory)

    def again(self) -> None:
        """Another agent."""
        self.all = Registrations(self.directory)

    def at(self, bundle: int = 0) -> tuple[int, int]:
        found = self.bundles[bundle].stat()
        return found.st_dev, found.st_ino

    def add(self, runtime: int, name: str = ID, bundle: int = 0) -> None:
        self.all.add(name, str(self.bundles[bundle]), *self.at(bundle), runtime)

    def bind(self, pid: int, name: str = ID, bundle: int = 0) -> int:
        """The pid that the registration counts for."""
        return self.all.bind(name, *self.at(bundle), pid).pid

    def arrives(self, first: int, name: str = ID, bundle: int = 0, pid: int = 1, status: str = "creating") -> int:
        process = ContainerProcess(name, pid, first, status, str(self.bundles[bundle]))
        return self.all.arrived(process).pid

    @property
    def files(self) -> list[str]:
        return sorted(os.listdir(f"{self.directory}/{DIRECTORY}"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_container_is_bound_by_the_share_step_and_arrives(place: Place, sleep: Sleep) -> None:
    runtime, first = sleep(), sleep()
    place.add(runtime.pid)
    assert place.bind(0) == 0, "without a process it stays pending"
    assert place.bind(first.pid) == first.pid
    assert place.bind(first.pid) == first.pid, "configured a second time"
    runtime.kill()
    runtime.wait()
    assert place.arrives(first.pid) == first.pid, "crun sends the listener from the container, after the runtime's end"
    assert place.arrives(first.pid, pid=77, status="running") == first.pid, "a process that is put into it"
    assert place.arrives(0, pid=77, status="running") == first.pid, "crun 1.8.1 leaves the first process out then"


def test_the_listener_alone_binds_as_well(place: Place, sleep: Sleep) -> None:
    place.add(sleep().pid)
    first = sleep().pid
    assert place.arrives(first) == first
    assert place.bind(first) == first


def test_links_in_the_path_of_a_bundle_are_the_runtimes_to_resolve(place: Place, sleep: Sleep) -> None:
    runtime, first = sleep().pid, sleep().pid
    link = place.bundles[0].parent / "link"
    link.symlink_to(place.bundles[0])
    place.all.add(ID, str(link), *place.at(), runtime)
    assert place.arrives(first) == first


ATTACKS = {
    "another id": {"name": "other"},
    "the beginning of the id": {"name": ID[:2]},
    "another bundle": {"bundle": 1},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_another_containers_registration_does_not_count(place: Place, sleep: Sleep, attack: str) -> None:
    place.add(sleep().pid)
    first = sleep().pid
    for ask in (place.bind, place.arrives):
        with pytest.raises(ContainerError, match="is not registered with the agent"):
            ask(first, **ATTACKS[attack])  # type: ignore[operator]
    assert place.bind(first) == first, "and the right one is not used up"


def test_one_registration_is_for_one_container(place: Place, sleep: Sleep) -> None:
    """Replay: a second container of the same id and bundle, while the first one runs and after it."""
    place.add(sleep().pid)
    first, second = sleep(), sleep()
    assert place.bind(first.pid) == first.pid
    for process in (second.pid, 0):
        with pytest.raises(ContainerError, match="but from another bundle or for another process"):
            place.bind(process)
    with pytest.raises(ContainerError, match="is not registered"):
        place.arrives(second.pid)
    first.kill()
    first.wait()
    for ask in (place.bind, place.arrives):
        with pytest.raises(ContainerError, match="is not registered"):
            ask(second.pid)


def test_the_same_id_registered_twice_is_two_containers(place: Place, sleep: Sleep) -> None:
    """nvc-runtime registers before the runtime finds that the id is taken: the first one must not lose by it."""
    first, other = sleep().pid, sleep()
    place.add(sleep().pid)
    assert place.bind(first) == first
    place.add(other.pid, bundle=1)
    assert (place.arrives(first), place.bind(first)) == (first, first)
    other.kill()
    other.wait()
    with pytest.raises(ContainerError, match="is not registered"):
        place.bind(sleep().pid, bundle=1)
    assert place.bind(first) == first


def test_a_container_that_does_not_arrive_is_forgotten_with_its_runtime(place: Place, sleep: Sleep) -> None:
    runtime = sleep()
    place.add(runtime.pid)
    runtime.kill()
    runtime.wait()
    with pytest.raises(ContainerError, match="is not registered"):
        place.bind(sleep().pid)
    place.add(sleep().pid, name="next")
    assert (len(place.all), place.files) == (1, ["2.json"]), "its file is gone"


def test_configure_goes_by_the_runtimes_child(place: Place) -> None:
    """``configure`` knows the process alone: its parent is the runtime, which registered it."""
    script = "sleep 60 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as runtime:
        try:
            assert runtime.stdout is not None
            first = int(runtime.stdout.readline())
            assert place.all.bind_process(first) is None
            place.add(runtime.pid)
            assert place.all.bind_process(os.getpid()) is None, "not a child of it"
            assert place.all.bind_process(0) is None
            found = place.all.bind_process(first)
            assert found is not None and found.pid == first
            assert place.bind(first) == first
        finally:
            os.kill(first, signal.SIGKILL)
            runtime.kill()


def test_another_agent_knows_what_the_last_one_was_told(place: Place, sleep: Sleep) -> None:
    pending, first, gone = sleep().pid, sleep().pid, sleep()
    place.add(pending)
    place.add(sleep().pid, name="bound")
    place.bind(first, name="bound")
    place.add(gone.pid, name="gone")
    gone.kill()
    gone.wait()
    place.again()
    assert len(place.all) == 2
    assert place.arrives(first, name="bound", status="running") == first
    assert place.bind(first) == first
    modes = {path.stat().st_mode & 0o777 for path in Path(place.directory, DIRECTORY).iterdir()}
    assert modes == {0o600}


@pytest.mark.parametrize("damage", ["", "{}", '{"number": 7}', "[]", "\xff"])
def test_a_damaged_file_registers_nothing(place: Place, sleep: Sleep, damage: str) -> None:
    place.add(sleep().pid)
    Path(place.directory, DIRECTORY, "1.json").write_text(damage, encoding="latin-1")
    Path(place.directory, DIRECTORY, "2.json.new").write_text("half")
    place.again()
    (problem,) = place.all.problems
    assert "/registrations/1.json: " in problem and "counts as not registered" in problem
    assert place.files == []
    with pytest.raises(ContainerError, match="is not registered"):
        place.bind(sleep().pid)


def test_a_pid_that_was_given_to_another_process_does_not_count(place: Place, sleep: Sleep) -> None:
    """Pids come again; the start time does not."""
    first = sleep().pid
    place.add(sleep().pid)
    place.bind(first)
    file = Path(place.directory, DIRECTORY, "1.json")
    written = loads(file.read_bytes())
    file.write_bytes(dumps({**written, "start_time": start_time(first) - 1}))
    place.again()
    with pytest.raises(ContainerError, match="is not registered"):
        place.arrives(first)


def test_a_runtime_that_the_agent_does_not_see_is_told(place: Place) -> None:
    for pid in (0, -1, 1 << 30):
        with pytest.raises(AgentError, match="in a pid namespace that the agent does not see"):
            place.add(pid)
    with pytest.raises(AgentError, match="without a container"):
        place.add(os.getpid(), name="")
    assert place.files == []


def test_there_is_an_end_to_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_REGISTRATIONS == 4096
    monkeypatch.setattr("nvc.agent.registrations.MAX_REGISTRATIONS", 3)
    for _ in range(3):
        place.add(os.getpid())
    with pytest.raises(AgentError, match="3 containers are registered, and there can be no more"):
        place.add(os.getpid())


@pytest.mark.root
def test_a_directory_that_cannot_be_written_registers_nothing(place: Place, sleep: Sleep) -> None:
    file = Path(place.directory, DIRECTORY, "1.json.new")
    file.mkdir()
    with pytest.raises(AgentError, match=r"registrations/1\.json: "):
        place.add(sleep().pid)
    file.rmdir()
    assert len(place.all) == 0


def test_a_new_one_takes_no_look_at_all_others(place: Place, sleep: Sleep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each container that started looked at the processes of all that were there."""
    runtime = sleep()
    for number in range(100):
        place.add(runtime.pid, name=f"c{number}")
    looked: list[int] = []
    monkeypatch.setattr(registrations, "start_time", lambda pid: looked.append(pid) or start_time(pid))
    place.add(runtime.pid, name="new")
    place.bind(sleep().pid, name="new")
    assert 0 < len(looked) < 10
    runtime.kill()
    runtime.wait()
    other = sleep()
    for number in range(50):
        place.add(other.pid, name=f"late{number}")
    assert len(place.all) == 51, "those that hold no more go all the same, some with each that comes"
