"""From what was asked for to the operations: which GPUs, nodes, libraries; what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvc.base.errors import InputError, MountError, PrivilegeError
from nvc.base.log import Log
from nvc.container.operations import BindMount, ShareFiles
from nvc.inject import share
from nvc.model import TEGRA, Container, DeviceNode, DriverInfo, Gpu, Host, MigDevice, MigSelection, Nvcap, Selection
from nvc.request.injection import ShareRequest
from nvc.share import abi, place, policyfile, store
from nvc.share.limits import NODE_CONTROL, NODE_GPU, NODE_UVM, LimitsNode

UUIDS = tuple(f"GPU-00000000-0000-4000-8000-00000000000{index}" for index in range(3))
CONTAINER = Container(os.getpid(), "/b/rootfs", True, "", "/usr/bin", "/usr/lib64", "/usr/lib32", "", 0, 0)
NODES = (DeviceNode("/dev/nvidiactl", 195, 255), DeviceNode("/dev/nvidia-uvm", 235, 0))
MIG = MigDevice(0, "MIG-0", 1, 0, Nvcap("/proc/gi"), Nvcap("/proc/ci"))


def gpu(index: int, migs: tuple[MigDevice, ...] = ()) -> Gpu:
    node = DeviceNode(f"/dev/nvidia{index}", 195, index)
    bus = f"00000000:0{index}:00.0"
    return Gpu(index, index, "H200", "Nvidia", UUIDS[index], bus, "9.0", node, "", mig_devices=migs, memory=100 << 30)


def driver(version: str = "580.105.08", platform: str = "") -> DriverInfo:
    return DriverInfo(version, "13.0", (), (), (), (), (), NODES, platform)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    from nvc.base.log import open_log

    return open_log(str(tmp_path / "log"))


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share.preload, "directory", lambda: "/opt/preload")


@pytest.fixture
def asked(tmp_path: Path) -> ShareRequest:
    (tmp_path / "config.toml").write_text("")
    return ShareRequest(option="mem=10Gi,cap=50%", config=str(tmp_path / "config.toml"), container="abc")


def test_the_selected_gpus_their_nodes_and_the_driver_are_in_the_limits(tmp_path: Path, asked: ShareRequest) -> None:
    selection = Selection(gpus=(gpu(2), gpu(0)))
    resolved, operations = share.plan(asked, selection, Host(root=str(tmp_path)), driver(), CONTAINER, Log.none())
    files = operations[0]

    assert isinstance(files, ShareFiles)
    assert [(one.uuid, one.memory, one.cap) for one in files.limits.gpus] == [
        (UUIDS[2], 10 << 30, 500),
        (UUIDS[0], 10 << 30, 500),
    ]
    assert files.limits.nodes == (
        LimitsNode(NODE_CONTROL, 255, os.makedev(195, 255)),
        LimitsNode(NODE_UVM, 0, os.makedev(235, 0)),
        LimitsNode(NODE_GPU, 2, os.makedev(195, 2)),
        LimitsNode(NODE_GPU, 0, os.makedev(195, 0)),
    )
    assert (files.limits.driver, files.limits.container) == ("580.105.08", "abc")
    assert (files.store, files.key, files.container, files.source) == (place.directory(), "abc", "abc", "--share")
    assert files.lines == tuple(f"/usr/lib/nvc/$PLATFORM/libnvc-shim{kind}.so" for kind in ("", "-managed"))
    assert BindMount("/opt/preload", "/usr/lib/nvc", "directory", ("ro", "nodev", "nosuid"), own=True) in operations
    assert resolved.source == "--share"


def test_nodes_of_the_simulated_machine_are_known_by_file(tmp_path: Path, asked: ShareRequest) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").write_text("")
    _, (files, *_) = share.plan(
        asked, Selection(gpus=(gpu(0),)), Host(root=str(tmp_path)), driver(), CONTAINER, Log.none()
    )
    status = (tmp_path / "dev/nvidia0").stat()

    assert isinstance(files, ShareFiles)
    assert files.limits.nodes[-1] == LimitsNode(NODE_GPU, 0, status.st_dev, status.st_ino)


def test_a_container_without_an_id_is_known_by_its_first_process(tmp_path: Path, asked: ShareRequest) -> None:
    _, (files, *_) = share.plan(
        asked.replace(container=""),
        Selection(gpus=(gpu(0),)),
        Host(root=str(tmp_path)),
        driver(),
        CONTAINER,
        Log.none(),
    )

    assert isinstance(files, ShareFiles)
    assert files.key == f"pid-{os.getpid()}-{store.start_time(os.getpid())}"


@pytest.mark.parametrize(
    ("version", "option", "kinds"),
    [
        pytest.param("580.105.08", "cap=50%,weight=3", ("",), id="known, time alone"),
        pytest.param("580.105.08", "mem=1Gi", ("", "-managed"), id="known"),
        pytest.param("580.105.08", "mem=25%", ("", "-managed"), id="a part of the memory"),
        pytest.param("580.105.08", "0:mem=1Gi", ("", "-managed"), id="on one GPU of two"),
        pytest.param("580.105.08", "mem=1Gi,oversubscribe=on", ("", "-api"), id="oversubscribed"),
        pytest.param("470.82.01", "mem=1Gi", ("", "-api"), id="too old"),
        pytest.param("999.1", "mem=1Gi", ("", "-api"), id="too new"),
    ],
)
def test_a_second_library_comes_where_the_first_cannot_do(
    tmp_path: Path, asked: ShareRequest, log: Log, version: str, option: str, kinds: tuple[str, ...]
) -> None:
    _, (files, *_) = share.plan(
        asked.replace(option=option),
        Selection(gpus=(gpu(0), gpu(1))),
        Host(root=str(tmp_path)),
        driver(version),
        CONTAINER,
        log,
    )

    assert isinstance(files, ShareFiles)
    assert files.lines == tuple(f"/usr/lib/nvc/$PLATFORM/libnvc-shim{kind}.so" for kind in kinds)
    assert (f"driver {version} is not known" in (tmp_path / "log").read_text()) == (not abi.knows(version))


@pytest.mark.parametrize(
    ("version", "option", "kinds"),
    [
        pytest.param("580.105.08", "mem=1Gi,cap=50%", (), id="the guard counts"),
        pytest.param("580.105.08", "mem=1Gi,oversubscribe=on", ("", "-api"), id="oversubscribed"),
        pytest.param("999.1", "mem=1Gi", ("", "-api"), id="too new"),
    ],
)
def test_under_the_guard_only_what_needs_a_library_in_the_process_loads_one(
    tmp_path: Path,
    asked: ShareRequest,
    log: Log,
    version: str,
    option: str,
    kinds: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share, "is_guarded", lambda *_: True)
    asked = asked.replace(option=option)
    _, (files, *mounts) = share.plan(
        asked, Selection(gpus=(gpu(0),)), Host(root=str(tmp_path)), driver(version), CONTAINER, log
    )

    assert isinstance(files, ShareFiles)
    assert files.lines == tuple(f"/usr/lib/nvc/$PLATFORM/libnvc-shim{kind}.so" for kind in kinds)
    assert any(isinstance(one, BindMount) and one.container_path == "/usr/lib/nvc" for one in mounts) == bool(kinds)
    assert bool(mounts) == bool(kinds), "a container without a library has no file of the host's"


def test_time_is_refused_where_the_driver_is_not_known(tmp_path: Path, asked: ShareRequest, log: Log) -> None:
    """P6: the container started with neither cap nor weight, and a line in the debug log."""
    rest = Selection(gpus=(gpu(0),)), Host(root=str(tmp_path)), driver("999.1"), CONTAINER, log
    with pytest.raises(InputError, match=r"--share: cap=50% cannot be held: driver 999\.1 is not known"):
        share.plan(asked, *rest)
    (tmp_path / "config.toml").write_text('[share]\nunknown-driver = "memory-only"\n')
    resolved, _ = share.plan(asked, *rest)
    assert resolved.text == "mem=10Gi,cap=100%"


def test_a_mig_device_is_refused_by_name(tmp_path: Path, asked: ShareRequest) -> None:
    parent = gpu(0, (MIG,))
    selection = Selection(gpus=(parent,), migs=(MigSelection(parent, MIG),))
    with pytest.raises(InputError, match="--share: a MIG device cannot be shared"):
        share.plan(asked, selection, Host(root=str(tmp_path)), driver(), CONTAINER, Log.none())


def test_without_a_request_and_a_default_nothing_is_done(tmp_path: Path, asked: ShareRequest) -> None:
    for option in ("", "off"):
        resolved, operations = share.plan(
            asked.replace(option=option), Selection(gpus=(gpu(0),)), Host(), driver(), CONTAINER, Log.none()
        )
        assert (bool(resolved), operations) == (False, ())


def test_the_nodes_default_holds_without_a_request(tmp_path: Path, asked: ShareRequest) -> None:
    (tmp_path / "config.toml").write_text('[share]\ndefault = "mem=25%"\n')
    resolved, operations = share.plan(
        asked.replace(option=""), Selection(gpus=(gpu(1),)), Host(), driver(), CONTAINER, Log.none()
    )

    assert (resolved.source, resolved.gpus[0].memory, len(operations)) == ("default", 25 << 30, 5)


@pytest.mark.parametrize("command", ["nvc-hook", "configure"])
def test_a_node_that_requires_the_guard_gives_no_share_without_it(
    tmp_path: Path, asked: ShareRequest, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Attack (P1): only nvc-runtime looked, and each of these gave a share that a library held."""
    (tmp_path / "config.toml").write_text(f'[agent]\ndirectory = "{tmp_path}"\n[share]\nguard = "require"\n')
    monkeypatch.setattr(policyfile, "CONFIG", str(tmp_path / "config.toml"))
    asked = ShareRequest(option="mem=1Gi") if command == "configure" else asked.replace(bundle=str(tmp_path))
    with pytest.raises(PrivilegeError, match="this node requires a guard for shares, and this container has none"):
        share.plan(asked, Selection(gpus=(gpu(0),)), Host(), driver(), CONTAINER, Log.none())
    for without in ("off", ""):
        found, _ = share.plan(
            asked.replace(option=without), Selection(gpus=(gpu(0),)), Host(), driver(), CONTAINER, Log.none()
        )
        assert not found, "a container without a share starts"


@pytest.mark.parametrize("rule", ["auto", "off"])
def test_fixed_settings_that_require_the_guard_give_no_share_without_it(
    tmp_path: Path, asked: ShareRequest, rule: str
) -> None:
    (tmp_path / "config.toml").write_text(f'[agent]\ndirectory = "{tmp_path}"\n[share]\nguard = "{rule}"\n')
    fixed = asked.replace(option="", fixed=("mem=1Gi,guard=require",), bundle=str(tmp_path))
    with pytest.raises(PrivilegeError, match="a guard for shares, and this container has none"):
        share.plan(fixed, Selection(gpus=(gpu(0),)), Host(), driver(), CONTAINER, Log.none())


def test_a_request_for_more_than_the_node_gives_is_refused_by_its_word(tmp_path: Path, asked: ShareRequest) -> None:
    (tmp_path / "config.toml").write_text('[share]\nmaximum = "cap=25%"\n')
    with pytest.raises(InputError, match="cap=50% is more than this node gives"):
        share.plan(asked, Selection(gpus=(gpu(1),)), Host(), driver(), CONTAINER, Log.none())


def test_another_platforms_driver_has_no_shares(tmp_path: Path, asked: ShareRequest, log: Log) -> None:
    tegra = driver(platform=TEGRA)
    with pytest.raises(InputError, match="shares are not for tegra"):
        share.plan(asked, Selection(gpus=(gpu(0),)), Host(), tegra, CONTAINER, log)
    (tmp_path / "config.toml").write_text('[share]\ndefault = "mem=25%"\n')
    resolved, operations = share.plan(
        asked.replace(option=""), Selection(gpus=(gpu(0),)), Host(), tegra, CONTAINER, log
    )

    assert (bool(resolved), operations) == (False, ())
    assert "the node's default is left out" in (tmp_path / "log").read_text()


def test_libraries_that_are_not_installed_fail_the_container(
    monkeypatch: pytest.MonkeyPatch, asked: ShareRequest
) -> None:
    monkeypatch.setattr(share.preload, "directory", lambda: "")
    with pytest.raises(MountError, match="are not installed"):
        share.plan(asked, Selection(gpus=(gpu(0),)), Host(), driver(), CONTAINER, Log.none())
