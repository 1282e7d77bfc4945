"""Making a machine: all of it or nothing, and what is made is what the description says."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base.errors import InputError
from nvc.model import Host
from nvc.sim import host
from nvc.sim.create import create
from nvc.sim.description import load, names
from nvc.sim.files import binaries, libraries
from nvc.sim.nodes import nodes
from tests.support.native import CHECKOUT

CACHE_LINE = re.compile(r"\t(\S+) \(([^)]*)\) => (\S+)")
Made = Callable[[str], Host]


def cache(machine: Host) -> dict[tuple[str, str], str]:
    """The loader cache as the real ldconfig reads it: (name, kind) -> path."""
    command = ["/sbin/ldconfig", "-p", "-C", f"{machine.root}/etc/ld.so.cache"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {(name, kind): path for name, kind, path in CACHE_LINE.findall(text)}


@pytest.mark.parametrize("name", names(""))
def test_loader_cache_names_every_library_of_the_description(made: Made, name: str) -> None:
    machine, description = made(name), load(name)
    expected = {(item.soname, "libc6,x86-64") for item in libraries(description, bits=64) if not item.directory}
    if description.compat32:
        expected |= {(item.soname, "libc6") for item in libraries(description, bits=32)}
    assert expected == set(cache(machine))


@pytest.mark.parametrize("name", names())
def test_only_damaged_libraries_are_missing_behind_the_cache(made: Made, name: str) -> None:
    machine, description = made(name), load(name)
    missing = {soname for (soname, _), path in cache(machine).items() if not os.path.exists(machine.root + path)}
    gone = {row for row, damage in description.damage.items() if damage == "gone"}
    assert gone == {soname[: soname.index(".so") + 3] for soname in missing}


@pytest.mark.parametrize("name", names())
def test_programs_firmware_and_sockets_are_there(made: Made, name: str) -> None:
    machine, description = made(name), load(name)
    for program in binaries(description):
        path = Path(f"{machine.root}/usr/bin/{program}")
        assert path.read_bytes()[:4] == b"\x7fELF"
        assert os.access(path, os.X_OK)
    for socket in description.sockets:
        assert stat.S_ISSOCK(os.stat(machine.root + socket).st_mode)
    firmware = Path(f"{machine.root}/lib/firmware/nvidia/{description.driver_version}")
    found = {path.name for path in firmware.glob("gsp*.bin")} if firmware.exists() else set()
    assert set(description.firmware) == found


@pytest.mark.root
@pytest.mark.parametrize("name", names())
def test_device_nodes_have_their_numbers_and_modes(made: Made, name: str) -> None:
    machine, description = made(name), load(name)
    expected = {node.path: (os.makedev(node.major, node.minor), mode) for node, mode in nodes(description)}
    found = {}
    for directory, _, files in os.walk(f"{machine.root}/dev"):
        for file in files if not directory.endswith("/by-path") else ():
            status = os.lstat(os.path.join(directory, file))
            assert stat.S_ISCHR(status.st_mode)
            path = os.path.join(directory, file).removeprefix(machine.root)
            found[path] = (status.st_rdev, stat.S_IMODE(status.st_mode))
    assert expected == found


def test_h200_is_true_to_the_real_machine(made: Made) -> None:
    root = Path(made("h200").root)
    text = (root / "proc/driver/nvidia/version").read_text()
    assert text.splitlines()[0] == (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  "
    )
    assert "ModifyDeviceFiles: 1\n" in (root / "proc/driver/nvidia/params").read_text()
    assert (root / "proc/driver/nvidia/capabilities/mig/monitor").read_text() == (
        "DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    )
    assert "DeviceFileMinor: 4323" in (root / "proc/driver/nvidia/capabilities/fabric-imex-mgmt").read_text()
    assert "241 nvidia-caps\n" in (root / "proc/devices").read_text()
    information = (root / "proc/driver/nvidia/gpus/0000:00:06.0/information").read_text()
    assert "GPU UUID: \t GPU-11111111-2222-3333-4444-555555555555\n" in information
    # The listing's names, one word each.
    real = """EGL_nvidia GLESv1_CM_nvidia GLESv2_nvidia GLX_nvidia cuda cudadebugger nvcuvid nvidia-allocator nvidia-cfg
        nvidia-eglcore nvidia-encode nvidia-fbc nvidia-glcore nvidia-glsi nvidia-glvkspirv nvidia-gpucomp nvidia-ml
        nvidia-nvvm nvidia-opencl nvidia-opticalflow nvidia-pkcs11-openssl3 nvidia-ptxjitcompiler nvidia-rtcore
        nvidia-tls"""
    made_files = {item.file for item in libraries(load("h200"), bits=64)}
    assert {f"lib{name}.so.580.159.04" for name in real.split()} == made_files


def test_minors_of_nvcaps_follow_the_kernel_modules_formula(made: Made) -> None:
    text = Path(made("a100-mig-dev").root, "proc/driver/nvidia-caps/mig-minors").read_text()
    minors = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert minors["config"] == "1"
    assert minors["monitor"] == "2"
    assert minors["gpu0/gi0/access"] == "3"
    assert minors["gpu2/gi7/access"] == str(3 + 135 * 2 + 9 * 7)
    assert minors["gpu2/gi7/ci3/access"] == str(3 + 135 * 2 + 9 * 7 + 1 + 3)
    assert len(minors) == 2 + 32 * 15 * 9


def test_nvcaps_style_is_seen_in_proc(made: Made) -> None:
    assert "nvidia-caps" in Path(made("a100-mig-dev").root, "proc/devices").read_text()
    assert "nvidia-caps" not in Path(made("a100-mig-proc").root, "proc/devices").read_text()
    assert Path(made("a100-mig-proc").root, "proc/driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access").is_file()
    assert not Path(made("v100-legacy").root, "proc/driver/nvidia/capabilities").exists()


def test_broken_machine_is_broken_as_it_says(made: Made) -> None:
    directory = Path(made("broken").root, "usr/lib/x86_64-linux-gnu")
    version = load("broken").driver_version
    assert not (directory / f"libnvidia-allocator.so.{version}").exists()
    assert (directory / f"libnvidia-opticalflow.so.{version}").read_bytes()[18:20] == bytes((183, 0))
    assert len((directory / f"libnvidia-nvvm.so.{version}").read_bytes()) == 20
    assert b"\x7fELF" not in (directory / f"libnvidia-ngx.so.{version}").read_bytes()
    assert (directory / "libnvidia-ptxjitcompiler.so.470.82.01").exists()


def test_host_is_found_again(made: Made) -> None:
    machine = made("h200")
    assert host(machine.root) == machine
    assert machine.simulated == "h200"
    assert machine.root == machine.system


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(lambda path: None, "is not a directory", id="missing"),
        pytest.param(lambda path: path.mkdir(), "is not a simulated machine", id="empty directory"),
        pytest.param(lambda path: path.write_text("x"), "is not a directory", id="file"),
    ],
)
def test_other_directories_are_no_host(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(InputError, match=words) as caught:
        host(str(tmp_path / "x"))
    assert "sim create" in caught.value.hint


def test_a_marker_that_is_something_else_is_no_host(tmp_path: Path) -> None:
    (tmp_path / "etc/nvc-sim").mkdir(parents=True)
    (tmp_path / "etc/nvc-sim/machine").write_bytes(b"\xff\xfe nonsense")
    with pytest.raises(InputError, match="not the description"):
        host(str(tmp_path))


def test_a_directory_with_something_else_is_left_alone(templates: Path, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/precious").write_text("x")
    for force in (False, True):
        with pytest.raises(InputError, match="not empty and not a simulated machine"):
            create(str(tmp_path / "d"), "h200", force=force)
    assert os.listdir(tmp_path / "d") == ["precious"]
    assert os.listdir(tmp_path) == ["d"]


def test_a_machine_is_replaced_only_when_asked(templates: Path, tmp_path: Path) -> None:
    directory = str(tmp_path / "m")
    create(directory, "h200")
    with pytest.raises(InputError, match="already holds") as caught:
        create(directory, "imex")
    assert "--force" in caught.value.hint
    assert host(directory).simulated == "h200"
    assert create(directory, "imex", force=True).simulated == "imex"
    assert os.listdir(tmp_path) == ["m"]


def test_a_failure_in_the_middle_leaves_nothing(templates: Path, tmp_path: Path) -> None:
    # The damage is applied last; this machine does not have the library.
    description = load("h200").replace(damage={"libnvidia-ifr.so": "gone"})
    with pytest.raises(InputError, match="which it does not have"):
        create(str(tmp_path / "m"), description)
    assert os.listdir(tmp_path) == []
    create(str(tmp_path / "m"), "h200")
    with pytest.raises(InputError, match="which it does not have"):
        create(str(tmp_path / "m"), description, force=True)
    assert host(str(tmp_path / "m")).simulated == "h200"
    assert os.listdir(tmp_path) == ["m"]


def test_a_missing_parent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or directory"):
        create(str(tmp_path / "a/b"), "h200")


def test_everybody_can_read_it_whatever_the_umask(templates: Path, tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        machine = create(str(tmp_path / "m"), "h200")
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(old)
    for directory, _, files in os.walk(machine.root):
        assert os.stat(directory).st_mode & 0o555 == 0o555
        for file in files:
            mode = os.lstat(os.path.join(directory, file)).st_mode
            assert stat.S_ISCHR(mode) or mode & 0o444 == 0o444


@pytest.mark.root
def test_an_ordinary_user_gets_a_machine_without_nodes(templates: Path) -> None:
    # As installed: the package somewhere else, the templates in nvc/sim/native. Not below tmp_path, whose parents are
    # closed to other users.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        shutil.copytree(CHECKOUT / "nvc", f"{place}/lib/nvc")
        command = ["make", "-s", "-C", str(CHECKOUT / "native"), "install", f"SIMDIR={place}/lib/nvc/sim/native"]
        subprocess.run(command, check=True)
        os.mkdir(f"{place}/inside")
        os.chown(f"{place}/inside", 65534, 65534)
        script = (
            "import sys; sys.path.insert(0, sys.argv[1] + '/lib')\n"
            "from nvc.sim.create import create\n"
            "create(sys.argv[1] + '/inside/m', 'h200', warn=print)\n"
        )
        done = subprocess.run(
            ["/usr/bin/python3", "-I", "-c", script, place],
            capture_output=True, text=True, check=False, user=65534, group=65534, extra_groups=[],
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("no device nodes were made (/dev/nvidia0: operation not permitted)")
        assert host(f"{place}/inside/m").simulated == "h200"
        assert "\nnodes=0\n" in Path(place, "inside/m/etc/nvc-sim/machine").read_text()
        assert not [path for path in Path(place, "inside/m/dev").rglob("*") if path.is_char_device()]


@pytest.mark.root
def test_a_link_that_another_user_made_is_not_followed(tmp_path: Path) -> None:
    """/tmp/machine to a directory of root's that is not there yet, or empty: the machine was made in it."""
    shared, outside = tmp_path / "shared", tmp_path / "outside"
    for place in (shared, outside):
        place.mkdir()
    shared.chmod(0o1777)
    (shared / "machine").symlink_to(outside / "missing")
    os.lchown(shared / "machine", 1000, 1000)

    with pytest.raises(InputError, match="is a link that others than root can make"):
        create(str(shared / "machine"), "h200")

    assert list(outside.iterdir()) == []
