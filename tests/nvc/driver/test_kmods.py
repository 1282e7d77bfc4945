from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nvc.driver import kmods
from nvc.driver.devicefiles import attributes, make_node
from nvc.driver.kmods import KernelTree, capability_files, count_gpus, in_user_namespace, load_kmods, modprobe
from nvc.formats.procfs import FileAttributes
from nvc.model import DeviceNode, Host

FIRST = "         0          0 4294967295\n"
NVIDIA_3D = b"\xde\x10\x30\x23" + bytes(4) + b"\xa1\x00\x02\x03"
NVIDIA_AUDIO = b"\xde\x10\x30\x23" + bytes(4) + b"\xa1\x00\x03\x04"
OTHER_VGA = b"\x02\x10\x30\x23" + bytes(4) + b"\xa1\x00\x00\x03"
MODPROBE = """#!/bin/sh
echo "$# $* PATH=$PATH HOME=$HOME" >> {log}
PATH=/usr/bin:/bin
case "$1" in {known}) mkdir -p {modules}/$(echo $1 | tr - _); echo live > {modules}/$(echo $1 | tr - _)/initstate;; esac
"""


class Kernel:
    """Kernel file systems and a modprobe that "loads" the modules it is told to know."""

    def __init__(self, base: Path, known: str = "nvidia*") -> None:
        self.base = base
        self.tree = KernelTree(str(base / "proc"), str(base / "sys"), str(base / "dev"))
        self.calls = base / "calls"
        for name in ("uid_map", "gid_map"):
            self.write(f"proc/self/{name}", FIRST)
        self.write("proc/self/setgroups", "allow\n")
        self.write("proc/sys/kernel/modprobe", f"{base}/modprobe\n")
        self.write("proc/devices", "Character devices:\n195 nvidia\n238 nvidia-uvm\n241 nvidia-caps\n"
                   "242 nvidia-caps-imex-channels\n\n")  # fmt: skip
        self.write("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileGID: 44\nDeviceFileMode: 432\n")
        for number, head in enumerate((NVIDIA_3D, NVIDIA_AUDIO, OTHER_VGA, NVIDIA_3D, b"short")):
            self.write(f"sys/bus/pci/devices/0000:00:0{number}.0/config", head)
        (base / "dev").mkdir()
        self.modprobe(known)

    def write(self, path: str, text: str | bytes) -> Path:
        target = self.base / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)
        return target

    def modprobe(self, known: str) -> None:
        script = MODPROBE.format(log=self.calls, known=known, modules=self.base / "sys/module")
        self.write("modprobe", script).chmod(0o755)

    def capability(self, path: str, minor: int) -> None:
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
        self.write(f"proc/driver/nvidia/capabilities/{path}", text)

    def load(self, log: Any, *imex: int, create_imex: bool = True, host: Host | None = None, **more: Any) -> None:
        load_kmods(host or Host(), imex, create_imex=create_imex, log=log, tree=self.tree, **more)

    def nodes(self) -> dict[str, tuple[int, int, int, int, int]]:
        """Path below /dev -> major, minor, mode, uid, gid of every node."""
        found = {}
        for path in sorted((self.base / "dev").rglob("*")):
            status = path.lstat()
            if stat.S_ISCHR(status.st_mode):
                number = os.major(status.st_rdev), os.minor(status.st_rdev)
                owner = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
                found[str(path.relative_to(self.base / "dev"))] = (*number, *owner)
        return found


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path / "kernel")


def test_gpus_are_counted_on_the_pci_bus(kernel: Kernel) -> None:
    (kernel.base / "sys/bus/pci/devices/0000:00:09.0").mkdir()

    assert 2 == count_gpus(f"{kernel.tree.sys}/bus/pci/devices")
    assert 0 == count_gpus(f"{kernel.tree.sys}/none")


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        pytest.param("uid_map", FIRST, False, id="first-namespace"),
        pytest.param("uid_map", "0 1000 1\n", True, id="mapped-user"),
        pytest.param("gid_map", "0 1000 1\n", True, id="mapped-group"),
        pytest.param("uid_map", "", True, id="empty-map"),
        pytest.param("setgroups", "deny\n", True, id="setgroups-denied"),
    ],
)
def test_user_namespaces_are_recognised(kernel: Kernel, path: str, text: str, expected: bool) -> None:
    kernel.write(f"proc/self/{path}", text)

    assert expected is in_user_namespace(kernel.tree.proc)


def test_a_kernel_without_user_namespaces(tmp_path: Path) -> None:
    assert not in_user_namespace(str(tmp_path))


def test_nothing_is_done_in_a_user_namespace(kernel: Kernel, log: Any) -> None:
    kernel.write("proc/self/uid_map", "0 1000 1\n")

    kernel.load(log)

    assert log.has("user namespace")
    assert not kernel.calls.exists()


def test_nothing_is_done_without_a_gpu(kernel: Kernel, log: Any) -> None:
    for number in (0, 3):
        kernel.write(f"sys/bus/pci/devices/0000:00:0{number}.0/config", OTHER_VGA)

    kernel.load(log)

    assert log.has("no NVIDIA GPU")
    assert not kernel.calls.exists()


def test_nothing_is_done_on_a_simulated_machine(kernel: Kernel, log: Any) -> None:
    kernel.load(log, host=Host(simulated="h200"))

    assert log.has("simulated")
    assert not kernel.calls.exists()


@pytest.mark.root
def test_modules_are_loaded_and_nodes_made(kernel: Kernel, log: Any) -> None:
    kernel.load(log, 0, 5)

    calls = kernel.calls.read_text().splitlines()
    assert ["nvidia", "nvidia-uvm", "nvidia-modeset"] == [line.split()[1] for line in calls]
    assert {"1"} == {line.split()[0] for line in calls}
    assert all(line.endswith(" PATH=/sbin HOME=") for line in calls)
    assert kernel.nodes() == {
        "nvidia0": (195, 0, 0o660, 0, 44),
        "nvidia1": (195, 1, 0o660, 0, 44),
        "nvidiactl": (195, 255, 0o660, 0, 44),
        "nvidia-modeset": (195, 254, 0o660, 0, 44),
        "nvidia-uvm": (238, 0, 0o666, 0, 0),
        "nvidia-uvm-tools": (238, 1, 0o666, 0, 0),
        "nvidia-caps-imex-channels/channel0": (242, 0, 0o666, 0, 0),
        "nvidia-caps-imex-channels/channel5": (242, 5, 0o666, 0, 0),
    }
    assert "../nvidia0" == os.readlink(kernel.base / "dev/char/195:0")
    assert "../nvidia-caps-imex-channels/channel5" == os.readlink(kernel.base / "dev/char/242:5")


@pytest.mark.root
def test_loaded_modules_are_not_loaded_again(kernel: Kernel, log: Any) -> None:
    kernel.load(log)
    before = kernel.nodes()
    kernel.calls.unlink()

    kernel.load(log)

    assert not kernel.calls.exists()
    assert before == kernel.nodes()


@pytest.mark.root
def test_imex_channels_can_be_left_out(kernel: Kernel, log: Any) -> None:
    kernel.load(log, 0, create_imex=False)

    assert not [name for name in kernel.nodes() if "imex" in name]


@pytest.mark.root
def test_only_what_was_loaded_gets_nodes(kernel: Kernel, log: Any) -> None:
    kernel.modprobe("nvidia-uvm")

    kernel.load(log, 0)

    assert ["nvidia-uvm", "nvidia-uvm-tools"] == list(kernel.nodes())
    assert log.has("could not load kernel module nvidia: ")


@pytest.mark.root
def test_missing_majors_are_warnings(kernel: Kernel, log: Any) -> None:
    kernel.write("proc/devices", "Character devices:\n195 nvidia\n\n")

    kernel.load(log, 0)

    assert ["nvidia-modeset", "nvidia0", "nvidia1", "nvidiactl"] == list(kernel.nodes())
    assert log.has("has no nvidia-caps-imex-channels")
    assert log.has("no nvidia-uvm")
    (kernel.base / "proc/devices").unlink()
    kernel.load(log)
    assert log.has("cannot read /proc/devices")


@pytest.mark.root
def test_mig_nodes_of_existing_instances(kernel: Kernel, log: Any) -> None:
    kernel.capability("mig/config", 1)
    kernel.capability("gpu1/mig/gi2/access", 156)
    kernel.capability("gpu1/mig/gi2/ci0/access", 157)
    kernel.capability("gpu7/mig/gi0/access", 948)
    kernel.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "damaged\n")
    (kernel.base / "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci3").mkdir()

    kernel.load(log)

    caps = {name: row for name, row in kernel.nodes().items() if "caps/" in name}
    assert {f"nvidia-caps/nvidia-cap{n}": (241, n, 0o400, 0, 0) for n in (1, 156, 157)} == caps


def test_capability_files_of_a_driver_without_any(tmp_path: Path) -> None:
    assert [] == list(capability_files(str(tmp_path), 8))


@pytest.mark.root
def test_failures_are_warnings_and_the_rest_is_done(kernel: Kernel, log: Any) -> None:
    (kernel.base / "dev/nvidiactl").mkdir()
    (kernel.base / "dev/nvidiactl/x").mkdir()
    kernel.capability("mig/monitor", 2)
    (kernel.base / "dev/nvidia-caps").write_text("a file")

    kernel.load(log)

    assert log.has("could not make /dev/nvidiactl: ")
    assert log.has("could not make the node of ")
    assert "nvidia0" in kernel.nodes()


@pytest.mark.parametrize("mode", [0o644, None])
def test_no_modprobe_is_a_warning(kernel: Kernel, log: Any, mode: int | None) -> None:
    if mode is None:
        (kernel.base / "modprobe").unlink()
    else:
        (kernel.base / "modprobe").chmod(mode)

    kernel.load(log)

    assert log.has("cannot load kernel module nvidia: no modprobe program")


def test_the_default_modprobe(tmp_path: Path) -> None:
    assert modprobe(str(tmp_path)) in ("", "/sbin/modprobe")


def test_a_modprobe_that_is_no_program_is_a_warning(kernel: Kernel, log: Any) -> None:
    kernel.write("modprobe", b"\x00junk").chmod(0o755)

    kernel.load(log)

    assert log.has("cannot load kernel module nvidia: ")


def test_a_modprobe_that_hangs_is_ended(kernel: Kernel, log: Any) -> None:
    kernel.write("modprobe", "#!/bin/sh\nexec /bin/sleep 60\n").chmod(0o755)
    start = time.monotonic()

    kernel.load(log, deadline=0.05)

    assert time.monotonic() - start < 20
    assert log.has("ended with status -9")


@pytest.mark.root
def test_a_driver_root_has_its_own_modprobe_and_nodes(kernel: Kernel, log: Any) -> None:
    # After chroot the kernel's file systems are at their usual places; here those of the driver root.
    root = kernel.base / "root"
    root.mkdir()
    for name in ("proc", "dev"):
        (kernel.base / name).rename(root / name)
    (root / "sys/module/nvidia").mkdir(parents=True)
    (root / "sys/module/nvidia/initstate").write_text("live\n")
    program = Path(__file__).parent / "programs/load_modules_in_root.py"
    command = [sys.executable, "-I", "-S", program, Path(kmods.__file__).parents[2], root]

    done = subprocess.run(command, check=True, capture_output=True, text=True)

    assert (root / "dev/nvidia0").is_char_device()
    assert (root / "dev/nvidiactl").is_char_device()
    assert "cannot load kernel module nvidia-uvm" in done.stderr


def test_a_driver_root_that_cannot_be_entered_is_a_warning(kernel: Kernel, log: Any) -> None:
    kernel.load(log, host=Host(root=str(kernel.base / "none")))

    assert log.has("kernel modules of the driver root")


def test_attributes_of_a_missing_file_are_the_defaults(tmp_path: Path) -> None:
    assert FileAttributes() == attributes(str(tmp_path / "none"))


NODE = DeviceNode("/dev/nvidia9", 195, 9)


@pytest.mark.root
class TestNodes:
    def test_a_node_of_another_number_is_replaced(self, tmp_path: Path) -> None:
        os.mknod(tmp_path / "nvidia9", stat.S_IFCHR | 0o666, os.makedev(1, 3))

        make_node(str(tmp_path), NODE, FileAttributes())

        assert os.makedev(195, 9) == (tmp_path / "nvidia9").stat().st_rdev

    def test_a_file_in_its_place_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "nvidia9").write_text("x")

        make_node(str(tmp_path), NODE, FileAttributes())

        assert (tmp_path / "nvidia9").is_char_device()

    def test_owner_and_mode_are_corrected(self, tmp_path: Path) -> None:
        make_node(str(tmp_path), NODE, FileAttributes(1, 2, 0o7777))
        make_node(str(tmp_path), NODE, FileAttributes(3, 4, 0o600))

        found = (tmp_path / "nvidia9").stat()
        assert (3, 4, 0o600) == (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))

    def test_nodes_that_an_administrator_makes_are_left_alone(self, tmp_path: Path) -> None:
        make_node(str(tmp_path), NODE, FileAttributes(modify=False))

        assert not (tmp_path / "nvidia9").exists()
        assert "../nvidia9" == os.readlink(tmp_path / "char/195:9")

    @pytest.mark.parametrize("other", ["link", "file"])
    def test_another_link_is_replaced(self, tmp_path: Path, other: str) -> None:
        (tmp_path / "char").mkdir()
        path = tmp_path / "char/195:9"
        path.symlink_to("../null") if other == "link" else path.write_text("x")

        make_node(str(tmp_path), NODE, FileAttributes())
        make_node(str(tmp_path), NODE, FileAttributes())

        assert "../nvidia9" == os.readlink(path)

    @pytest.mark.parametrize("there", [False, True])
    def test_only_a_node_of_ours_is_removed_on_failure(
        self, tmp_path: Path, there: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if there:
            os.mknod(tmp_path / "nvidia9", stat.S_IFCHR, os.makedev(195, 9))

        def refuse(path: str, uid: int, gid: int) -> None:
            raise PermissionError(1, "Operation not permitted", path)

        monkeypatch.setattr(os, "chown", refuse)
        with pytest.raises(PermissionError):
            make_node(str(tmp_path), NODE, FileAttributes())

        assert there is (tmp_path / "nvidia9").exists()
