"""nvc.linux.devices_v2 on real cgroups: selected nodes open, others do not, and there is always a filter."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.base.errors import MountError
from nvc.base.undo import Undo
from nvc.linux import bpf, cgroup, const, devices_v2, process, rights, syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError
from tests.nvc.linux import devices
from tests.nvc.linux.devices import NODES, allowed, answer, only
from tests.support.isolation import in_namespaces

RULES = [NODES["zero"], NODES["random"]]


class Group:
    """A cgroup with filters attached, and nodes to try."""

    def __init__(self, path: Path, nodes: Path) -> None:
        self.path, self.nodes = path, nodes
        self.fd = cgroup.open_directory(str(path))

    def attach(self, code: bytes, flags: int = const.BPF_F_ALLOW_MULTI) -> Fd:
        program = bpf.load(code, name="nvc_test")
        bpf.attach(self.fd, program, flags)
        return program

    def ids(self) -> list[int]:
        return bpf.query(self.fd)[0]

    def codes(self) -> list[bytes]:
        return [bpf.read(id).instructions for id in self.ids()]

    def allowed(self, flags: int = os.O_RDWR) -> str:
        return allowed(self.path, self.nodes, flags=flags)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    devices.make_nodes(tmp_path)
    with devices.cgroup(devices.V2, "v2") as path:
        yield Group(path, tmp_path)


@pytest.fixture(params=["replace", "attach-then-detach"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """With BPF_F_REPLACE, and as before Linux 5.6."""
    if request.param != "replace":
        syscalls.unavailable.add("BPF_F_REPLACE")
    yield request.param
    syscalls.unavailable.discard("BPF_F_REPLACE")


@pytest.mark.root
def test_selected_nodes_open_and_others_do_not(group: Group, way: str) -> None:
    group.attach(only(*NODES["null"]))
    assert group.allowed() == "null"
    with Undo() as undo:
        assert cgroup.allow(2, group.fd, RULES, undo)
        assert group.allowed() == "null zero random"
        assert group.allowed(os.O_RDONLY) == "null zero random"
        assert len(group.ids()) == 1
    assert undo.errors == []
    assert group.allowed() == "null"
    assert group.codes() == [only(*NODES["null"])]


@pytest.mark.root
def test_making_nodes_is_not_allowed(group: Group) -> None:
    """NODES["zero"] is what the child tries to make; the rule for it says read and write."""
    group.attach(answer(0))
    with Undo() as undo:
        cgroup.allow(2, group.fd, [NODES["zero"]], undo)
        assert group.allowed() == "zero"


@pytest.mark.root
def test_block_devices_of_the_same_number_are_not_allowed(group: Group) -> None:
    loop = (7, 0)  # linux/major.h: LOOP_MAJOR; it answers ENXIO where it has no backing file, never EPERM
    os.mknod(group.nodes / "block", 0o60666, os.makedev(*loop))

    def try_open() -> int:
        (group.path / "cgroup.procs").write_text(str(os.getpid()))
        try:
            os.open(group.nodes / "block", os.O_RDONLY)
        except OSError as error:
            return error.errno or 0
        return 0

    assert process.wait(process.fork(try_open), 10) in (0, errno.ENXIO)
    group.attach(answer(0))
    with Undo() as undo:
        cgroup.allow(2, group.fd, [loop], undo)
        assert process.wait(process.fork(try_open), 10) == errno.EPERM


@pytest.mark.root
@pytest.mark.parametrize("count", [1, 2, 400, 9000])
def test_every_block_of_many_falls_to_the_next(count: int, group: Group) -> None:
    """9000 blocks are further than the 16 bits of a jump reach."""
    group.attach(only(*NODES["null"]))
    filler = [(devices.ABSENT_MAJOR, minor) for minor in range(count)]
    with Undo() as undo:
        cgroup.allow(2, group.fd, [NODES["zero"], *filler, NODES["urandom"]], undo)
        assert group.allowed() == "null zero urandom"


@pytest.mark.root
def test_second_time_changes_nothing(group: Group, way: str) -> None:
    group.attach(only(*NODES["null"]))
    undo = Undo()
    assert cgroup.allow(2, group.fd, RULES, undo)
    ids = group.ids()
    assert not cgroup.allow(2, group.fd, RULES[::-1], undo)
    assert not cgroup.allow(2, group.fd, RULES[:1], undo)
    assert ids == group.ids()
    assert cgroup.allow(2, group.fd, [NODES["full"], *RULES], undo)
    assert group.allowed() == "null zero full random"
    held, rest = devices_v2.split(group.codes()[0])
    assert held == [*RULES, NODES["full"]]
    assert rest == only(*NODES["null"])
    assert undo.rollback() == []
    assert group.codes() == [only(*NODES["null"])]


@pytest.mark.root
def test_no_rules_change_nothing(group: Group) -> None:
    group.attach(only(*NODES["null"]))
    assert not cgroup.allow(2, group.fd, [], Undo())
    assert group.codes() == [only(*NODES["null"])]


@pytest.mark.root
def test_each_of_several_filters_is_changed(group: Group, way: str) -> None:
    group.attach(only(*NODES["null"]))
    group.attach(only(*NODES["full"]))
    assert group.allowed() == ""
    with Undo() as undo:
        cgroup.allow(2, group.fd, [NODES["zero"]], undo)
        assert len(group.ids()) == 2
        assert group.allowed() == "zero"
    assert sorted(group.codes()) == sorted([only(*NODES["null"]), only(*NODES["full"])])


@pytest.mark.root
@pytest.mark.parametrize("flags", [0, const.BPF_F_ALLOW_OVERRIDE], ids=["exclusive", "override"])
def test_single_filter_keeps_its_attach_flags(flags: int, group: Group) -> None:
    group.attach(only(*NODES["null"]), flags)
    with Undo() as undo:
        cgroup.allow(2, group.fd, [NODES["zero"]], undo)
        assert group.allowed() == "null zero"
        assert bpf.query(group.fd)[1] == flags
    assert group.codes() == [only(*NODES["null"])]


@pytest.mark.root
def test_cgroup_without_a_filter_stays_without(group: Group) -> None:
    undo = Undo()
    assert not cgroup.allow(2, group.fd, RULES, undo)
    assert len(undo) == 0
    assert group.ids() == []
    assert group.allowed() == "null zero full random urandom mknod"


@pytest.mark.root
def test_filter_of_the_scope_around_crun_s_cgroup_is_changed(group: Group) -> None:
    scope = group.path / "libpod-1.scope"
    inner = scope / "container"
    inner.mkdir(parents=True)
    outer = Group(scope, group.nodes)
    outer.attach(only(*NODES["null"]))
    with cgroup.open_directory(str(inner)) as directory, Undo() as undo:
        assert cgroup.allow(2, directory, [NODES["zero"]], undo)
        assert allowed(inner, group.nodes) == "null zero"
    assert outer.codes() == [only(*NODES["null"])]


@pytest.mark.root
def test_filter_of_a_slice_is_left_alone(group: Group) -> None:
    inner = group.path / "container"
    inner.mkdir()
    group.attach(only(*NODES["null"]))
    with cgroup.open_directory(str(inner)) as directory:
        assert not cgroup.allow(2, directory, [NODES["zero"]], Undo())
    assert group.codes() == [only(*NODES["null"])]


@pytest.mark.root
def test_failure_in_the_middle_restores_the_first(group: Group, way: str) -> None:
    """The second filter is attached by a bpf link, which no program can be swapped out of."""
    group.attach(only(*NODES["null"]))
    linked = bpf.load(only(*NODES["full"]))
    values = (linked.fileno(), group.fd.fileno(), const.BPF_CGROUP_DEVICE, 0)
    link = Fd(syscalls.bpf(28, struct.pack("=IIII", *values), "BPF_LINK_CREATE")[0], "link")
    before = group.codes()
    assert len(before) == 2
    undo = Undo()
    with pytest.raises(MountError, match=r"failed to add device rules to .*BPF_PROG_"):
        cgroup.allow(2, group.fd, [NODES["zero"]], undo)
    assert len(undo) == 0
    assert sorted(before) == sorted(group.codes())
    assert group.allowed() == ""
    link.close()


@pytest.mark.root
def test_blinded_filter_is_an_error_that_names_the_setting(group: Group) -> None:
    """The verifier's blinding makes the instructions unreadable; the reference built a filter of zeros from them."""
    harden = Path("/proc/sys/net/core/bpf_jit_harden")
    before = harden.read_text()
    # For the one load only: the setting is the whole machine's.
    try:
        harden.write_text("2")
        program = bpf.load(only(*NODES["null"]))
    finally:
        harden.write_text(before)
    bpf.attach(group.fd, program, const.BPF_F_ALLOW_MULTI)
    ids = group.ids()
    with pytest.raises(MountError, match=r"cannot be read.*bpf_jit_harden") as caught:
        cgroup.allow(2, group.fd, RULES, Undo())
    assert "no-cgroups" in caught.value.hint
    assert ids == group.ids()
    assert group.allowed() == "null"


@pytest.mark.root
def test_rights_of_the_mount_phase_suffice(group: Group) -> None:
    group.attach(only(*NODES["null"]))

    def run() -> None:
        rights.reduce_permitted()
        rights.use("mount")
        with Undo() as undo:
            assert cgroup.allow(2, group.fd, RULES, undo)
            undo.commit()

    in_namespaces(run)
    assert group.allowed() == "null zero random"


@pytest.mark.root
def test_without_rights_the_error_says_what_to_do(group: Group) -> None:
    group.attach(only(*NODES["null"]))

    def run() -> tuple[str, str]:
        rights.reduce_permitted()
        rights.use("info")
        with pytest.raises(MountError) as caught:
            cgroup.allow(2, group.fd, RULES, Undo())
        return str(caught.value), caught.value.hint

    message, hint = in_namespaces(run)
    assert "operation not permitted" in message
    assert str(group.path) in message
    assert "CAP_SYS_ADMIN" in hint
    assert group.codes() == [only(*NODES["null"])]


WATCHER = Path(__file__).parent / "programs/open_node.py"


@pytest.mark.root
def test_there_is_no_instant_without_a_filter(group: Group, way: str) -> None:
    """A process inside tries a forbidden node all the time while the filter is replaced again and again."""
    group.attach(only(*NODES["null"]))
    argv = [sys.executable, "-I", "-S", WATCHER, str(group.path), str(group.nodes / "full")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "ready\n"
            for _ in range(300):
                with Undo() as undo:
                    cgroup.allow(2, group.fd, RULES, undo)
            assert watcher.poll() is None
        finally:
            watcher.send_signal(signal.SIGKILL)
        assert watcher.stdout.read() == ""


def test_split_takes_apart_what_compose_made() -> None:
    original = only(1, 3)
    rules = [(195, 0), (195, 255), (510, 1)]
    code = devices_v2.compose(original, rules)
    assert devices_v2.split(code) == (rules, original)
    assert devices_v2.split(original) == ([], original)
    assert code == devices_v2.compose(devices_v2.compose(original, rules[:1]), rules[1:])


def test_composed_program_is_prologue_blocks_and_original() -> None:
    code = devices_v2.compose(only(1, 3), [(195, 0), (195, 0)])
    assert code.endswith(only(1, 3))
    assert len(code) == (10 + 4) * 8 + len(only(1, 3))


@pytest.mark.parametrize("rule", [(0, 1), (4096, 0), (195, -1), (195, 1 << 20)])
def test_impossible_number_is_refused(rule: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not the number"):
        devices_v2.compose(answer(0), [rule])


@pytest.mark.root
def test_verifier_s_reason_is_in_the_error() -> None:
    with pytest.raises(SyscallError, match="R0"):
        bpf.load(devices.instruction(0x95))
