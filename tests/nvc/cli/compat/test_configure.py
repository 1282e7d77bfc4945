"""`configure`: options to requests, the order of actions, errors (libnvidia-container.md 1.7)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from nvc.base.errors import ContainerError, InputError, MountError, NvcError, PrivilegeError
from nvc.cli import options
from nvc.cli.compat.configure import ConfigureRequest, read
from nvc.cli.compat.devices import DeviceRequest
from nvc.cli.compat.getopt import parse
from nvc.model import DriverOptions
from nvc.request.options import ContainerOptions, LibraryOptions, container_options
from tests.support.inventories import MIG_7, two_gpus, without_gpus
from tests.support.library import FakeLibrary

ROOTFS = "/run/containerd/rootfs"
Command = Callable[..., tuple[int, str, str]]


def request(*words: str) -> ConfigureRequest:
    return read(parse("nvidia-container-cli configure", [*words, ROOTFS], options.CONFIGURE, in_order=False))


def wanted(container: str, *, devices: tuple[str, ...] | None = None, **others: object) -> ConfigureRequest:
    return ConfigureRequest(
        rootfs=ROOTFS, devices=DeviceRequest(devices=devices), container=container_options(container.split()), **others
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((), wanted("standalone"), id="nothing"),
        pytest.param(("--pid=7",), wanted("supervised", pid=7), id="pid"),
        pytest.param(("--pid=4194305",), wanted("supervised", pid=4194305), id="pid-above-the-kernel's"),
        pytest.param(("-p", "007"), wanted("supervised", pid=7), id="pid-with-zeros"),
        pytest.param(("--pid=0",), wanted("standalone"), id="pid-zero-is-standalone"),
        pytest.param(("--pid=-5",), wanted("standalone"), id="pid-negative-is-standalone"),
        pytest.param(
            ("-cuvgDn", "--compat32", "--no-cgroups", "--no-devbind", "-p1"),
            wanted("compute utility video graphics display ngx compat32 no-cgroups no-devbind supervised", pid=1),
            id="words-in-order",
        ),
        pytest.param(("-u", "-c", "-u"), wanted("utility compute standalone"), id="words-once"),
        pytest.param(("--device=0", "-d1,2"), wanted("standalone", devices=("0", "1,2")), id="devices"),
        pytest.param(("--device=",), wanted("standalone", devices=("",)), id="empty-device"),
        pytest.param(
            ("--cuda-compat-mode=ldconfig", "--no-cntlibs"),
            wanted("cuda-compat-mode=ldconfig no-cntlibs standalone"),
            id="compat",
        ),
        pytest.param(
            ("-r", "cuda>=11", "--require=driver>=535 brand=tesla"),
            wanted("standalone", requirements=("cuda>=11", "driver>=535 brand=tesla")),
            id="requirements",
        ),
        pytest.param(("-l", "@/sbin/ldconfig"), wanted("standalone", ldconfig="@/sbin/ldconfig"), id="ldconfig"),
        pytest.param(("--dry-run",), wanted("standalone", dry_run="text"), id="dry-run"),
        pytest.param(("--dry-run=json",), wanted("standalone", dry_run="json"), id="dry-run-json"),
    ],
)
def test_options_become_a_request(words: tuple[str, ...], expected: ConfigureRequest) -> None:
    assert request(*words) == expected


def test_device_options_become_a_request() -> None:
    words = ("--mig-config=all", "--mig-monitor", "all", "--imex-channel=1", "--imex-channel=0,1", "--no-gsp-firmware")
    assert request(*words).devices == DeviceRequest(
        mig_config="all", mig_monitor="all", imex=(1, 0, 1), driver=DriverOptions(no_gsp_firmware=True)
    )


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        pytest.param(["--pid=x"], InputError, "parse pid failed: invalid argument", id="pid-no-number"),
        pytest.param(["--pid="], InputError, "parse pid failed: invalid argument", id="pid-empty"),
        pytest.param(["--pid=-"], InputError, "parse pid failed: invalid argument", id="pid-dash"),
        pytest.param(
            ["--pid=2147483648"], InputError, "parse pid failed: numerical result out of range", id="pid-above-pid_t"
        ),
        pytest.param(
            ["--pid=" + "9" * 5000], InputError, "parse pid failed: numerical result out of range", id="pid-5000-digits"
        ),
        pytest.param(["--require=a=1"] * 33, InputError, "too many requirements", id="33-requirements"),
        pytest.param(["--ldconfig="], InputError, "invalid ldconfig: ''", id="ldconfig-empty"),
        pytest.param(["--ldconfig=@"], InputError, "invalid ldconfig: '@'", id="ldconfig-only-at"),
        pytest.param(["--dry-run=xml"], InputError, "invalid dry-run format: xml", id="dry-run"),
        pytest.param(
            [f"--cuda-compat-mode={'x' * 300}"], InputError, "too many options", id="more-than-255-bytes-of-words"
        ),
        pytest.param(
            ["--cuda-compat-mode=x"], ContainerError, "invalid option: cuda-compat-mode=x", id="compat-mode-unknown"
        ),
        pytest.param(
            ["--cuda-compat-mode=mount", "--cuda-compat-mode=ldconfig"],
            ContainerError,
            "only one cuda-compat-mode can be specified at a time",
            id="two-compat-modes",
        ),
    ],
)
def test_refused(words: list[str], error: type[NvcError], text: str) -> None:
    with pytest.raises(error) as caught:
        request(*words)
    assert caught.value.message == text


def test_32_requirements_are_taken() -> None:
    assert len(request(*["--require=cuda>1"] * 32).requirements) == 32


@pytest.mark.parametrize("rootfs", ["/", "//", "/.", "/x/..", "///../", "relative", "./x", "", "/x\0y"])
def test_rootfs_is_absolute_and_not_the_root(rootfs: str, command: Command, library: FakeLibrary) -> None:
    code, out, err = command("configure", rootfs)
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == "nvidia-container-cli: input error: invalid rootfs directory"
    assert library.calls == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "missing argument ROOTFS"),
        (("/a", "/b"), "Too many arguments"),
        (("--pid", "1", "--pid"), "option '--pid' requires an argument"),
    ],
)
def test_usage_errors(words: tuple[str, ...], message: str, command: Command, library: FakeLibrary) -> None:
    name = "nvidia-container-cli configure"
    assert command("configure", *words) == (
        1,
        "",
        f"{name}: {message}\nUsage: {name} [OPTION...] ROOTFS\n"
        f"Try `{name} --help' or `{name} --usage' for more information.\n",
    )
    assert library.calls == []


def test_the_order_of_actions(command: Command, library: FakeLibrary) -> None:
    words = ("-k", "configure", "-p7", "-d", "0,1:1", "-cu", "--imex-channel=2", "-r", "cuda>=12", "-l@/l", ROOTFS)
    assert command(*words) == (0, "", "")
    config = FakeLibrary.ContainerConfig(pid=7, rootfs=ROOTFS, ldconfig="@/l")
    assert [call for call in library.calls if call[0] != "inventory"] == [
        ("rights",),
        ("init", LibraryOptions(load_kmods=True)),
        ("container", config, ContainerOptions(supervised=True, capabilities=("compute", "utility"))),
        ("require", ("cuda>=12",)),
        ("driver",),
        ("device", 0),
        ("device", 1),
        ("mig_access", 1, 1),
        ("imex_channel", 2),
        ("ldcache",),
        ("apply",),
        ("container_free",),
        ("shutdown",),
    ]
    assert library.configs[0].imex == (2,)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((), [], id="without-devices-no-gpu"),
        pytest.param(("-d1",), [("device", 1)], id="one-gpu"),
        pytest.param(("-d", MIG_7), [("device", 1), ("mig_access", 1, 0)], id="one-mig-device"),
        pytest.param(
            ("-dall",),
            [("device", 0), ("device", 1), ("mig_access", 1, 0), ("mig_access", 1, 1)],
            id="all",
        ),
        pytest.param(
            ("-dall", "--mig-config=all"),
            [("device", 0), ("device", 1), ("mig_config",), ("device_mig_caps", 1)],
            id="mig-config",
        ),
        pytest.param(
            ("-d1", "--mig-monitor=all", "--mig-config=all"),
            [("device", 1), ("mig_config",), ("device_mig_caps", 1), ("mig_monitor",), ("device_mig_caps", 1)],
            id="mig-config-and-monitor",
        ),
        pytest.param(("-d0", "--mig-config=all"), [("device", 0)], id="mig-config-without-a-capable-gpu"),
        pytest.param(("--imex-channel=1,1",), [("imex_channel", 1), ("imex_channel", 1)], id="imex"),
    ],
)
def test_what_is_planned(
    words: tuple[str, ...], expected: list[tuple[object, ...]], command: Command, library: FakeLibrary
) -> None:
    assert command("configure", *words, ROOTFS)[0] == 0
    start, end = library.calls.index(("driver",)), library.calls.index(("ldcache",))
    assert library.calls[start + 1 : end] == expected


def test_without_gpus_any_device_is_ignored(command: Command) -> None:
    assert command("configure", "-d", "zzz", ROOTFS, on=FakeLibrary(without_gpus())) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-d7",), "device error: 7: unknown device"),
        (("--mig-config=1",), "mig-config error: 1: only 'all' devices are currently supported"),
        (("-d1:0", "--mig-monitor=all"), "mig-monitor error: all: cannot enable mig-monitor with specific MIG"),
        (("-r", "cuda>=99"), "requirement error: unsatisfied condition: cuda>=99, please update your driver to a"),
        (("-r", "cuda"), "requirement error: invalid expression"),
        (("--imex-channel=-1",), "error parsing IMEX info: unsupported IMEX channel value: -1"),
    ],
)
def test_errors_touch_nothing(words: tuple[str, ...], message: str, command: Command, library: FakeLibrary) -> None:
    code, out, err = command("configure", *words, ROOTFS)
    assert (code, out) == (1, "")
    assert err.startswith(f"nvidia-container-cli: {message}")
    assert ("driver",) not in library.calls
    assert ("apply",) not in library.calls


def test_a_failed_apply_ends_the_helpers(command: Command) -> None:
    broken = FakeLibrary(two_gpus(), {"apply": MountError("mount operation failed: /x: no such file or directory")})
    assert command("configure", ROOTFS, on=broken) == (
        1,
        "",
        "nvidia-container-cli: mount error: mount operation failed: /x: no such file or directory\n",
    )
    assert broken.calls[-2:] == [("container_free",), ("shutdown",)]


def test_dry_run_prints_the_plan_and_changes_nothing(command: Command, library: FakeLibrary) -> None:
    code, out, err = command("--load-kmods", "configure", "--dry-run", "-p7", "-d0", ROOTFS)
    assert (code, err) == (0, "")
    assert out == (
        f"# what configure would do to {ROOTFS} of process 7; nothing was changed\n"
        "link /usr/lib64/libcuda.so to libcuda.so.1\n"
    )
    assert ("apply",) not in library.calls
    assert ("rights",) not in library.calls
    assert ("init", LibraryOptions()) in library.calls  # no modules are loaded either


def test_a_plain_user_learns_it_before_anything_starts(command: Command) -> None:
    refusing = FakeLibrary(two_gpus(), {"rights": PrivilegeError("capability change failed: operation not permitted")})
    assert command("configure", ROOTFS, on=refusing) == (
        1,
        "",
        "nvidia-container-cli: permission error: capability change failed: operation not permitted\n",
    )
    assert refusing.calls == [("rights",)]


def test_dry_run_as_json(command: Command, library: FakeLibrary) -> None:
    code, out, _ = command("configure", "--dry-run=json", ROOTFS)
    assert code == 0
    assert json.loads(out) == {
        "rootfs": ROOTFS,
        "pid": None,
        "simulated": None,
        "operations": [
            {"operation": "Symlink", "container_path": "/usr/lib64/libcuda.so", "text": "libcuda.so.1"},
        ],
    }
    assert ("apply",) not in library.calls


def test_a_simulated_machine_is_said_to_be_one(command: Command) -> None:
    _, out, err = command("--sim=/m", "configure", "--dry-run", ROOTFS)
    assert "with the SIMULATED machine in /m" in out
    assert err == "nvidia-container-cli: SIMULATED machine: /m\n"
    assert json.loads(command("--sim=/m", "configure", "--dry-run=json", ROOTFS).out)["simulated"] == "/m"
