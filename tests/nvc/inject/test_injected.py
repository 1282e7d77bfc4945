"""A share reaches a container: its files on the host, its mounts, the loader's file; all of it or nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nvc.base.errors import ContainerError, MountError
from nvc.base.log import Log, open_log
from nvc.container.apply import apply
from nvc.container.operations import BindMount, ShareFiles, decode, encode
from nvc.inject import share_mounts
from nvc.share import limits, preload, store
from nvc.share.limits import Limits, LimitsNode
from nvc.share.model import ResolvedGpu, Room
from nvc.share.store import StoredShare
from rpc.codec import dumps, loads
from tests.support.injection import container, inside, isolated, locate, make_rootfs, mountinfo, tree

if TYPE_CHECKING:
    from nvc.container.operations import Operation

LOG = Log.none()
GPU = ResolvedGpu("GPU-00000000-0000-4000-8000-000000000007", 0, 2 << 30, 500, 30, "high")
LIMITS = Limits((GPU,), (LimitsNode(limits.NODE_CONTROL, 255, 0xC3FF),), "580.105.08", "abc")
LINES = preload.lines(memory=True, api=False)
BROKEN = BindMount("/x", "/etc/ld.so.conf/below-a-file", "regular", ("ro",), own=True)


def files(directory: Path, **changes: object) -> ShareFiles:
    made = ShareFiles(str(directory / "store"), "abc", "abc", LIMITS, LINES, "mem=2Gi,cap=50%", "--share")
    return made.replace(**changes)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory that has the store and the libraries."""
    (tmp_path / "libraries/x86_64").mkdir(parents=True)
    (tmp_path / "libraries/x86_64/libnvc-shim.so").write_text("ELF")
    return tmp_path


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    return make_rootfs(tmp_path / "rootfs")


def operations(place: Path, **changes: object) -> tuple[Operation, ...]:
    return share_mounts.mounts(files(place, **changes), str(place / "libraries"))


def test_the_plan_is_one_operation_for_the_files_and_four_mounts() -> None:
    made = files(Path("/x"))

    assert share_mounts.mounts(made, "/opt/lib") == (
        made,
        BindMount("/opt/lib", "/usr/lib/nvc", "directory", ("ro", "nodev", "nosuid"), own=True),
        BindMount(
            "/x/store/abc/limits.copy",
            "/run/nvc-share/limits",
            "regular",
            ("ro", "nodev", "nosuid", "noexec"),
            own=True,
        ),
        BindMount("/x/store/abc/region", "/run/nvc-share/region", "regular", ("nodev", "nosuid", "noexec"), own=True),
        BindMount(
            "/x/store/abc/preload", "/etc/ld.so.preload", "regular", ("ro", "nodev", "nosuid", "noexec"), own=True
        ),
    )


def test_the_plan_crosses_to_the_helper_and_says_what_it_does() -> None:
    planned = share_mounts.mounts(files(Path("/x")), "/opt/lib")

    assert decode(loads(dumps(encode(planned)))) == planned
    assert planned[0].describe() == (
        "make /x/store/abc for a share by --share, mem=2Gi,cap=50%; preload libnvc-shim.so, libnvc-shim-managed.so"
    )


@pytest.mark.root
@isolated
def test_everything_is_in_its_place_and_only_the_region_can_be_written(place: Path, rootfs: Path) -> None:
    (rootfs / "etc/ld.so.preload").write_text("/lib/own.so # mine")
    with container(rootfs) as pid:
        before = mountinfo(pid)
        share_mounts = operations(place)
        assert apply(locate(pid, rootfs), "/", share_mounts, LOG) == len(share_mounts)
        new = [line.split(" ") for line in mountinfo(pid) if line not in before]
        shown = {line[1].removeprefix(str(rootfs)): set(line[2].split(",")) - {"relatime"} for line in new}

        assert shown == {
            "/usr/lib/nvc": {"ro", "nosuid", "nodev"},
            "/run/nvc-share/limits": {"ro", "nosuid", "nodev", "noexec"},
            "/run/nvc-share/region": {"rw", "nosuid", "nodev", "noexec"},
            "/etc/ld.so.preload": {"ro", "nosuid", "nodev", "noexec"},
        }
        seen = inside(pid, rootfs, "/")
        assert (seen / "etc/ld.so.preload").read_text() == (
            "/lib/own.so # mine\n" + "".join(f"{line}\n" for line in LINES)
        )
        assert (seen / "usr/lib/nvc/x86_64/libnvc-shim.so").read_text() == "ELF"
        assert limits.decode((seen / "run/nvc-share/limits").read_bytes()).gpus[0].memory == 2 << 30
        region = (seen / "run/nvc-share/region").stat()
        assert (stat.S_IMODE(region.st_mode), region.st_size) == (0o666, 4096 * 8193)
        (entry,), _ = store.entries(str(place / "store"))
        with entry:
            assert (entry.record.pid, entry.record.container, entry.is_alive()) == (pid, "abc", True)
            assert entry.record.mount_namespace == os.stat(f"/proc/{pid}/ns/mnt").st_ino
    assert (rootfs / "etc/ld.so.preload").read_text() == "/lib/own.so # mine"


@pytest.mark.root
@pytest.mark.parametrize(
    ("loader", "said"),
    [
        pytest.param("usr/lib64/ld-linux-x86-64.so.2", "the image has glibc's loader", id="glibc"),
        pytest.param("usr/lib64/ld-musl-x86_64.so.1", "its programs have no limits", id="musl"),
        pytest.param("opt/program", "static programs have no limits", id="none"),
    ],
)
def test_the_log_says_what_will_read_the_loaders_file(place: Path, rootfs: Path, loader: str, said: str) -> None:
    (rootfs / loader).write_text("")

    @isolated
    def run() -> None:
        with container(rootfs) as pid:
            apply(locate(pid, rootfs), "/", operations(place), open_log(str(place / "log")))

    run()
    assert said in (place / "log").read_text()


@pytest.mark.root
@isolated
def test_a_failure_leaves_neither_mounts_nor_files(place: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        (rootfs / "etc/ld.so.conf").exists()
        mounts, before = mountinfo(pid), tree(rootfs)
        (place / "x").write_text("")
        broken = BROKEN.replace(host_path=str(place / "x"))
        with pytest.raises(MountError):
            apply(locate(pid, rootfs), "/", (*operations(place), broken), LOG)

        assert (mountinfo(pid), tree(rootfs)) == (mounts, before)
        assert os.listdir(place / "store") == []


@pytest.mark.root
@isolated
def test_a_source_that_is_missing_leaves_no_files(place: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        missing = BindMount("/no/such", "/opt/x", "regular", ("ro",), own=True)
        with pytest.raises(MountError):
            apply(locate(pid, rootfs), "/", (*operations(place), missing), LOG)

        assert os.listdir(place / "store") == []


@pytest.mark.root
@isolated
def test_twice_is_once_and_new_limits_are_written_in_place(place: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        apply(locate(pid, rootfs), "/", operations(place), LOG)
        mounts = mountinfo(pid)
        assert apply(locate(pid, rootfs), "/", operations(place), LOG) == 0
        smaller = LIMITS.replace(gpus=(GPU.replace(memory=1 << 30),))
        assert apply(locate(pid, rootfs), "/", operations(place, limits=smaller), LOG) == 1

        assert mountinfo(pid) == mounts
        content = inside(pid, rootfs, "/run/nvc-share/limits").read_bytes()
        assert limits.decode(content).gpus[0].memory == 1 << 30


@pytest.mark.root
@isolated
def test_a_second_step_drops_no_gpu_and_loosens_nothing(place: Path, rootfs: Path) -> None:
    """Attack: the second step of a start wrote its own GPUs alone, and those of the first had no limit."""
    other = ResolvedGpu("GPU-00000000-0000-4000-8000-000000000008", 1, 4 << 30)
    looser = GPU.replace(memory=0, cap=1000, weight=50, priority="high", oversubscribe=True)
    with container(rootfs) as pid:
        for gpus, changed in (((GPU,), 5), ((other,), 1), ((looser, other), 0), ((other.replace(memory=1 << 30),), 1)):
            step = operations(place, limits=LIMITS.replace(gpus=gpus))
            assert apply(locate(pid, rootfs), "/", step, LOG) == changed

        found = limits.decode((place / "store/abc/limits").read_bytes()).gpus
        assert found == (GPU.replace(minor=-1), other.replace(minor=-1, memory=1 << 30))
    with container(rootfs) as pid:  # with the same id, and anew
        apply(locate(pid, rootfs), "/", operations(place, limits=LIMITS.replace(gpus=(looser,))), LOG)
        assert limits.decode((place / "store/abc/limits").read_bytes()).gpus == (looser.replace(minor=-1),)


@pytest.mark.root
@isolated
def test_a_second_configuration_that_fails_keeps_the_limits_of_the_first(place: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        apply(locate(pid, rootfs), "/", operations(place), LOG)
        other = GPU.replace(memory=1 << 30)
        (place / "x").write_text("")
        broken = BROKEN.replace(host_path=str(place / "x"))
        with pytest.raises(MountError):
            apply(locate(pid, rootfs), "/", (*operations(place, limits=LIMITS.replace(gpus=(other,))), broken), LOG)

        content = inside(pid, rootfs, "/run/nvc-share/limits").read_bytes()
        assert limits.decode(content).gpus[0].memory == 2 << 30


@pytest.mark.root
@isolated
def test_a_restarted_container_gets_files_of_its_own(place: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        apply(locate(pid, rootfs), "/", operations(place), LOG)
        (place / "store/abc/region").open("r+b").write(b"used")
        (place / "store/abc/limits").open("r+b").write(b"damaged")
    with container(rootfs) as pid:
        apply(locate(pid, rootfs), "/", operations(place), LOG)

        assert inside(pid, rootfs, "/run/nvc-share/region").open("rb").read(4) == b"NVCR"
        assert limits.decode((place / "store/abc/limits").read_bytes()).container == "abc"
        assert os.listdir(place / "store") == ["abc"]


@pytest.mark.root
@isolated
def test_a_living_containers_files_are_not_taken(place: Path, rootfs: Path) -> None:
    with container(rootfs) as first, container(rootfs) as second:
        apply(locate(first, rootfs), "/", operations(place), LOG)
        with pytest.raises(ContainerError) as caught:
            apply(locate(second, rootfs), "/", operations(place), LOG)

        assert "abc has a share already" in str(caught.value)
        (entry,), _ = store.entries(str(place / "store"))
        with entry:
            assert entry.record.pid == first


@pytest.mark.root
@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda path: path.mkdir(), "not a regular file", id="directory"),
        pytest.param(os.mkfifo, "not a regular file", id="fifo"),
        pytest.param(lambda path: path.write_bytes(b"x" * (64 * 1024 + 1)), "larger than 64 KiB", id="huge"),
        pytest.param(lambda path: path.symlink_to("ld.so.preload"), "symbolic links", id="circle"),
    ],
)
def test_a_file_that_no_loader_should_read_fails_the_container(
    place: Path, rootfs: Path, make: object, message: str
) -> None:
    assert callable(make)
    make(rootfs / "etc/ld.so.preload")

    @isolated
    def run() -> None:
        with container(rootfs) as pid:
            mounts, before = mountinfo(pid), tree(rootfs)
            with pytest.raises(MountError) as caught:
                apply(locate(pid, rootfs), "/", operations(place), LOG)

            assert f"{rootfs}/etc/ld.so.preload: " in str(caught.value)
            assert message in str(caught.value)
            assert (mountinfo(pid), tree(rootfs)) == (mounts, before)
            assert not (place / "store").exists() or os.listdir(place / "store") == []

    run()


@pytest.mark.root
@pytest.mark.parametrize("target", ["/etc/nothing", "../../../../../../../../outside"], ids=["nowhere", "outside"])
def test_a_link_leads_to_a_file_of_the_container(place: Path, rootfs: Path, target: str) -> None:
    (place / "outside").write_text("/host/secret.so\n")
    (rootfs / "etc/ld.so.preload").symlink_to(target)

    @isolated
    def run() -> None:
        with container(rootfs) as pid:
            apply(locate(pid, rootfs), "/", operations(place), LOG)

            assert (place / "store/abc/preload").read_text().splitlines() == list(LINES)
            there = inside(pid, rootfs, "/etc/nothing" if target.startswith("/") else "/outside")
            assert there.read_text().splitlines() == list(LINES)

    run()
    assert (place / "outside").read_text() == "/host/secret.so\n"


@pytest.mark.root
@pytest.mark.parametrize("always", [False, True])
@isolated
def test_a_container_whose_request_does_not_fit_gets_nothing(place: Path, rootfs: Path, always: bool) -> None:
    """Beside a range, or on a node that admits by requests; a container without a limit asks for the whole GPU."""
    rooms = (Room(GPU.uuid, 10 << 30, always),)
    there = LIMITS if always else LIMITS.replace(gpus=(GPU.replace(request=2 << 30, most=8 << 30),))
    own = os.getpid()
    record = StoredShare("first", "first", own, store.start_time(own))
    store.create(record, there, b"", directory=str(place / "store"))
    with container(rootfs) as pid:
        mounts = mountinfo(pid)
        for memory in (0, 9 << 30):
            wanted = LIMITS.replace(gpus=(GPU.replace(memory=memory),))
            with pytest.raises(ContainerError, match="does not fit"):
                apply(locate(pid, rootfs), "/", operations(place, limits=wanted, rooms=rooms), LOG)
        assert (mountinfo(pid), os.listdir(place / "store")) == (mounts, ["first"])
        fits = LIMITS.replace(gpus=(GPU.replace(memory=8 << 30),))
        apply(locate(pid, rootfs), "/", operations(place, limits=fits, rooms=rooms), LOG)
        assert sorted(os.listdir(place / "store")) == ["abc", "first"]
        with pytest.raises(ContainerError, match="does not fit"):
            other = ResolvedGpu("GPU-00000000-0000-4000-8000-000000000008", 1, 6 << 30)
            second = StoredShare("second", "second", own, store.start_time(own))
            store.create(second, LIMITS.replace(gpus=(other,)), b"", directory=str(place / "store"))
            more = (*rooms, Room(other.uuid, 10 << 30, always=True))
            apply(locate(pid, rootfs), "/", operations(place, limits=fits.replace(gpus=(other,)), rooms=more), LOG)
