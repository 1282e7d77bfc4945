"""`list`: the paths, their order, and the default selection (libnvidia-container.md 1.6)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from nvc.model import NVCAPS_PROC, DriverOptions
from tests.support.inventories import GPU_A, MIG_9, two_gpus, without_gpus
from tests.support.library import FakeLibrary

COMMON = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
NODES = [*COMMON, "/dev/nvidia0", "/dev/nvidia1"]
CAPS = "/proc/driver/nvidia/capabilities"
# gi7 and gi9 of the GPU with minor 1: 3 + 135*1 + 9*gi, and one more for ci0.
MIG_0_PROC = [f"{CAPS}/gpu1/mig/gi7/access", f"{CAPS}/gpu1/mig/gi7/ci0/access"]
MIG_1_PROC = [f"{CAPS}/gpu1/mig/gi9/access", f"{CAPS}/gpu1/mig/gi9/ci0/access"]
MIG_0 = [*MIG_0_PROC, "/dev/nvidia-caps/nvidia-cap201", "/dev/nvidia-caps/nvidia-cap202"]
MIG_1 = [*MIG_1_PROC, "/dev/nvidia-caps/nvidia-cap219", "/dev/nvidia-caps/nvidia-cap220"]
GPU_1_CAPS = [
    f"{CAPS}/gpu1",
    "/dev/nvidia-caps",
    *(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (201, 202, 219, 220)),
]
MIG_CONFIG = [f"{CAPS}/mig/config", "/dev/nvidia-caps/nvidia-cap1", *GPU_1_CAPS]
MIG_MONITOR = [f"{CAPS}/mig/monitor", "/dev/nvidia-caps/nvidia-cap2", *GPU_1_CAPS]
BINARIES = ["/usr/bin/nvidia-smi"]
LIBRARIES = ["/usr/lib/x86_64-linux-gnu/libcuda.so.535.104.05"]
LIBRARIES32 = ["/usr/lib/i386-linux-gnu/libcuda.so.535.104.05"]
IPCS = ["/run/nvidia-persistenced/socket"]
FIRMWARES = ["/lib/firmware/nvidia/535.104.05/gsp_ga10x.bin"]
FILES = BINARIES + LIBRARIES + LIBRARIES32 + IPCS + FIRMWARES
CHANNEL = ["/dev/nvidia-caps-imex-channels/channel0"]

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((), NODES + MIG_0 + MIG_1 + FILES, id="no-words-is-everything"),
        pytest.param(("--imex-channel=0",), NODES + MIG_0 + MIG_1 + CHANNEL + FILES, id="one-word-with-a-channel-too"),
        pytest.param(("--imex-channel", "0"), CHANNEL, id="a-channel-in-two-words-is-only-that"),
        pytest.param(("--imex-channel=0,5", "-b"), [*CHANNEL, CHANNEL[0][:-1] + "5", *BINARIES], id="channels"),
        pytest.param(("--no-persistenced",), [], id="another-single-word-is-nothing"),
        pytest.param(("--device=0",), [*COMMON, "/dev/nvidia0"], id="device"),
        pytest.param(("--device=",), COMMON, id="an-empty-device-still-has-the-common-nodes"),
        pytest.param(("-d1", "-d", "0"), [*COMMON, "/dev/nvidia1", "/dev/nvidia0"], id="in-the-order-selected"),
        pytest.param(("-d", f"{GPU_A},{MIG_9}"), [*NODES, *MIG_1], id="mig-device-with-its-parent"),
        pytest.param(("-d", "1:0,1:1"), [*COMMON, "/dev/nvidia1", *MIG_0, *MIG_1], id="two-mig-devices"),
        pytest.param(("-d", "all", "--mig-config=all"), NODES + MIG_CONFIG, id="mig-config-without-single-access"),
        pytest.param(("-d", "all", "--mig-monitor=all"), NODES + MIG_MONITOR, id="mig-monitor"),
        pytest.param(
            ("-d1", "--mig-monitor=all", "--mig-config", "all"),
            [*COMMON, "/dev/nvidia1", *MIG_CONFIG, *MIG_MONITOR],
            id="config-before-monitor",
        ),
        pytest.param(("-d0", "--mig-config=all"), [*COMMON, "/dev/nvidia0"], id="mig-config-without-a-capable-gpu"),
        pytest.param(("-fibl",), BINARIES + LIBRARIES + IPCS + FIRMWARES, id="files-in-one-order"),
        pytest.param(("-l", "--compat32"), LIBRARIES + LIBRARIES32, id="compat32"),
        pytest.param(("--compat32",), [], id="compat32-alone-is-nothing"),
        pytest.param(("-f", "--no-gsp-firmware"), [], id="no-gsp-firmware-resets-f-before"),
        pytest.param(("--no-gsp-firmware", "-f"), FIRMWARES, id="but-not-f-behind"),
    ],
)
def test_list(words: tuple[str, ...], expected: list[str], command: Command) -> None:
    code, out, err = command("list", *words)
    assert (code, out.splitlines(), err) == (0, expected, "")
    assert out == "" or out.endswith("\n")


def test_proc_style_has_no_cap_nodes(command: Command) -> None:
    machine = FakeLibrary(two_gpus(NVCAPS_PROC))
    assert command("list", "-d", "1:0", on=machine).out.splitlines() == [*COMMON, "/dev/nvidia1", *MIG_0_PROC]
    wide = command("list", "-d1", "--mig-config=all", on=machine).out.splitlines()
    assert wide == [*COMMON, "/dev/nvidia1", f"{CAPS}/mig/config", f"{CAPS}/gpu1"]


def test_a_driver_without_nvcaps_lists_the_gpus_all_the_same(command: Command) -> None:
    machine = FakeLibrary(two_gpus(NVCAPS_PROC).replace(mig_config=None))
    assert command("list", "-d1", "--mig-config=all", on=machine).out.splitlines()[3:] == [f"{CAPS}/gpu1"]


def test_without_gpus_the_default_lists_the_rest(command: Command) -> None:
    assert command("list", on=FakeLibrary(without_gpus())).out.splitlines() == COMMON + FILES


def test_driver_options_reach_the_library(command: Command, library: FakeLibrary) -> None:
    command("list", "-b", "--no-fabricmanager", "--no-persistenced", "--no-persistenced", "--no-gsp-firmware")
    chosen = DriverOptions(no_fabricmanager=True, no_persistenced=True, no_gsp_firmware=True)
    assert ("inventory", chosen) in library.calls
    assert ("inventory", DriverOptions()) not in library.calls


def test_channels_reach_the_library(command: Command, library: FakeLibrary) -> None:
    command("list", "--imex-channel=3", "--imex-channel=1,2")
    assert library.configs[0].imex == (3, 1, 2)


def test_json(command: Command) -> None:
    _, out, _ = command("list", "--json")
    data = json.loads(out)
    assert list(data) == [
        "devices",
        "imex_channels",
        "mig_config",
        "mig_monitor",
        "binaries",
        "libraries",
        "libraries32",
        "ipcs",
        "firmwares",
    ]
    assert [path for paths in data.values() for path in paths] == NODES + MIG_0 + MIG_1 + FILES
    assert json.loads(command("list", "--json", "-b").out)["binaries"] == BINARIES


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-d7",), "device error: 7: unknown device"),
        (("-d1", "--mig-config=0"), "mig-config error: 0: only 'all' devices are currently supported"),
        (
            ("-d1:0", "--mig-monitor=all"),
            "mig-monitor error: all: cannot enable mig-monitor with specific MIG devices selected",
        ),
        (("--imex-channel=a",), "error parsing IMEX info: unsupported IMEX channel value: a"),
    ],
)
def test_errors(words: tuple[str, ...], message: str, command: Command) -> None:
    code, out, err = command("list", *words)
    assert (code, out, err.splitlines()[0]) == (1, "", f"nvidia-container-cli: {message}")
