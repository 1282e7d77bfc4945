"""``nvidia-ctk system`` in a mount namespace of its own, with a /dev and a /proc/devices that are the test's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
MAJORS = "Character devices:\n195 nvidia\n511 nvidia-uvm\n510 nvidia-caps\n\nBlock devices:\n"
#: The test's files in the place of the machine's: /proc/devices, /dev.
SCRIPT = """
mount --bind "$1/devices" /proc/devices
mount -t tmpfs tmpfs /dev
mknod -m 666 /dev/null c 1 3
shift
"""
LAUNCH = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from nvc.cli.ctk.main import main; sys.exit(main(sys.argv[1:]))"
)


class Machine:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "devices").write_text(MAJORS)

    def run(self, *words: str, before: str = ":", after: str = "ls /dev") -> tuple[int, str, str]:
        """nvidia-ctk with these words, between two lines of sh: its exit code, and what all of them print."""
        script = f'{SCRIPT}\n{before}\nset +e; "$@"; code=$?\n{after}\nexit $code'
        command = ["unshare", "-m", "--propagation", "private", "sh", "-euc", script, "sh", str(self.directory)]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        done = subprocess.run(
            [*command, sys.executable, "-c", LAUNCH, *words],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.root
def test_control_nodes(machine: Machine) -> None:
    code, out, err = machine.run(
        "system", "create-device-nodes", "--control-devices", after="stat -c '%n %t:%T %a' /dev/nv*"
    )

    assert code == 0, err
    assert out.splitlines() == [
        "/dev/nvidia-modeset c3:fe 666",
        "/dev/nvidia-uvm 1ff:0 666",
        "/dev/nvidia-uvm-tools 1ff:1 666",
        "/dev/nvidiactl c3:ff 666",
    ]


@pytest.mark.root
def test_a_dry_run_makes_nothing(machine: Machine) -> None:
    code, out, err = machine.run("system", "create-device-nodes", "--control-devices", "--dry-run")

    assert code == 0
    assert "nvidia" not in out
    assert "mknod --mode=0666 /dev/nvidiactl c 195 255" in err


@pytest.mark.root
def test_nodes_below_another_root(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    words = ("system", "create-device-nodes", "--control-devices", f"--dev-root={tmp_path}/root")
    code, out, _ = machine.run(*words, after=f"ls {tmp_path}/root/dev")

    assert code == 0
    assert {"nvidiactl", "nvidia-uvm"} <= set(out.split())


@pytest.mark.root
def test_without_the_driver_nothing_can_be_made(machine: Machine) -> None:
    (machine.directory / "devices").write_text("Character devices:\n  1 mem\n\n")
    code, _, err = machine.run("system", "create-device-nodes", "--control-devices")

    assert code == 1
    assert "no NVIDIA devices found" in err


NODES = """
mknod /dev/nvidia0 c 195 0
mknod /dev/nvidia-fs0 c 400 0
mkdir -p /dev/nvidia-caps /dev/char
mknod /dev/nvidia-caps/nvidia-cap1 c 510 1
mknod /dev/nvidia-caps/other c 510 2
mknod /dev/nvidia1 c 195 1
ln -s /dev/null /dev/char/195:1
"""


@pytest.mark.root
def test_links_of_the_nodes_that_exist(machine: Machine) -> None:
    words = ("system", "create-dev-char-symlinks")
    links = "find /dev/char -type l -printf '%f %l\\n' | sort"
    code, out, err = machine.run(*words, before=NODES, after=links)

    assert code == 0, err
    assert out.splitlines() == ["195:0 /dev/nvidia0", "195:1 /dev/null", "510:1 /dev/nvidia-caps/nvidia-cap1"]
    assert "Creating link /dev/char/195:0 => /dev/nvidia0" in err
    assert "Could not create symlink: /dev/char/195:1 exists and leads elsewhere" in err
    assert machine.run(*words, "--dry-run", before=NODES, after=links)[1] == "195:1 /dev/null\n"
    assert "No NVIDIA devices found in /" in machine.run(*words)[2]


@pytest.mark.root
def test_links_of_the_nodes_that_may_come(machine: Machine) -> None:
    """A machine with a GPU on the bus and no node yet."""
    gpu = "mount -t tmpfs tmpfs /sys; mkdir -p /sys/bus/pci/devices/0000:01:00.0\n"
    gpu += "printf '\\336\\020\\0\\0\\0\\0\\0\\0\\0\\0\\002\\003' > /sys/bus/pci/devices/0000:01:00.0/config"
    words = ("system", "create-dev-char-symlinks", "--create-all", "--create-device-nodes")
    code, out, err = machine.run(*words, before=gpu, after="ls /dev /dev/char")

    assert code == 0, err
    assert {"195:0", "195:254", "195:255", "511:0", "511:1", "nvidiactl", "nvidia-uvm"} <= set(out.split())


def test_what_belongs_to_create_all_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    from nvc.cli.ctk.main import main

    assert (
        main(["system", "create-dev-char-symlinks", "--dry-run", "--create-device-nodes", "--load-kernel-modules"]) == 0
    )
    err = capfd.readouterr().err
    assert "create-device-nodes is only applicable when create-all is set; ignoring" in err
    assert "load-kernel-modules is only applicable when create-all is set; ignoring" in err
