"""From a target to the calls of the Python API: order, options, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest

from hook.config import HookConfig
from hook.inject import container_options, give, ldconfig, library_options
from hook.request import HookRequest
from hook.target import Target
from nvc.base.errors import DeviceError, InputError, MountError
from nvc.inject.api import Config, ContainerConfig
from nvc.model import DeviceNode, Gpu, MigDevice, MigSelection, Nvcap, Selection
from nvc.request.options import ContainerOptions, LibraryOptions


def gpu(index: int, *, migs: tuple[MigDevice, ...] = ()) -> Gpu:
    node = DeviceNode(f"/dev/nvidia{index}", 195, index)
    return Gpu(
        index, index, "H200", "Nvidia", f"GPU-{index}", f"00000000:0{index}:00.0", "9.0", node, "", True, "", migs
    )


MIG = MigDevice(0, "MIG-0", 1, 0, Nvcap("/proc/gi"), Nvcap("/proc/ci"))
GPUS = (gpu(0), gpu(1, migs=(MIG,)))


class FakeSession:
    """Writes down what it gets, in order."""

    def __init__(self, calls: list[Any], fail: Exception | None) -> None:
        self.calls = calls
        self.fail = fail

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append("close session")

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, last: bool = True) -> None:
            assert last, "the hook ends after it"
            self.calls.append((name, *(getattr(item, "uuid", item) for item in arguments)))
            if name == "apply" and self.fail is not None:
                raise self.fail

        return call


class FakeContext:
    """Stands where ``nvc.inject.api.Context`` does."""

    def __init__(self, selection: Selection = Selection(), fail: Exception | None = None) -> None:  # noqa: B008 frozen
        self.calls: list[Any] = []
        self.selection = selection
        self.fail = fail
        self.config = Config()
        self.container_config = ContainerConfig(None, "")

    def __call__(self, config: Config, options: str, log: object) -> Self:
        self.config = config
        self.calls.append(("context", options))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append("close context")

    def container(self, config: ContainerConfig, options: str, *, early: bool) -> FakeSession:
        self.container_config = config
        self.calls.append(("container", options))
        return FakeSession(self.calls, self.fail)

    def select(
        self, devices: tuple[str, ...], mig_config: str | None, mig_monitor: str | None, options: str
    ) -> Selection:
        self.calls.append(("select", devices, mig_config, mig_monitor))
        if devices == ("9",):
            raise DeviceError("9: unknown device")
        return self.selection

    def require(self, expressions: tuple[str, ...], selection: Selection, options: str) -> None:
        self.calls.append(("require", expressions))

    def driver_info(self, options: str, meanwhile: object = None) -> str:
        return "driver"


@pytest.fixture(autouse=True)
def no_configuration_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))


def target(env: dict[str, str] | None = None, **changes: Any) -> Target:
    base = Target(4321, "/b/rootfs", {"NVIDIA_VISIBLE_DEVICES": "0"} if env is None else env, privileged=False)
    return base.replace(**changes)


def test_the_whole_order() -> None:
    context = FakeContext(Selection(gpus=GPUS, migs=(MigSelection(GPUS[1], MIG),)))
    env = {
        "NVIDIA_VISIBLE_DEVICES": "0,1:0",
        "NVIDIA_REQUIRE_CUDA": "cuda>=12.0",
        "NVIDIA_IMEX_CHANNELS": "3",
    }

    give(target(env), context)

    assert context.calls == [
        ("context", LibraryOptions(load_kmods=True)),
        (
            "container",
            ContainerOptions(supervised=True, capabilities=("compute", "utility"), compat_mode="ldconfig"),
        ),
        ("select", ("0", "1:0"), None, None),
        ("require", ("cuda>=12.0",)),
        ("mount_driver", "driver"),
        ("mount_device", "GPU-0"),
        ("mount_device", "GPU-1"),
        ("mount_mig_access", "MIG-0", "GPU-1"),
        ("mount_imex_channel", 3),
        ("update_ldcache",),
        ("apply",),
        "close session",
        "close context",
    ]
    assert context.config == Config(imex=(3,))
    assert context.container_config == ContainerConfig(4321, "/b/rootfs", ldconfig=ldconfig("@/sbin/ldconfig"))


def test_a_hook_waits_for_its_helpers() -> None:
    """crun got one SIGCHLD, of a helper that it inherited, missed the hook's, and waited until its timeout."""
    context = FakeContext()
    give(target(pid=4321), context)
    assert context.config.wait


def test_driver_without_a_gpu() -> None:
    context = FakeContext()

    give(target({"NVIDIA_VISIBLE_DEVICES": "none"}), context)

    assert ("select", (), None, None) in context.calls
    assert ("mount_driver", "driver") in context.calls
    assert not any(call[0] == "mount_device" for call in context.calls)


def test_inside_the_container_there_is_no_pid() -> None:
    context = FakeContext()

    give(target(pid=None), context)

    assert context.container_config.pid is None
    assert context.calls[1] == (
        "container",
        ContainerOptions(capabilities=("compute", "utility"), compat_mode="ldconfig"),
    )


def test_simulated_machine_loads_no_modules_and_says_what_it_is(tmp_path: Path) -> None:
    context = FakeContext()

    give(target(sim="/machine", timeout=2.0, debug=str(tmp_path / "log")), context)

    assert context.calls[0] == ("context", LibraryOptions())
    assert (context.config.sim, context.config.timeout) == ("/machine", 2.0)
    assert "] simulated machine: /machine\n" in (tmp_path / "log").read_text()


def test_settings_of_the_host_reach_the_library(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[nvidia-container-cli]\nroot = "/drv"\nldcache = "/cache"\nuser = "7:8"\nno-cgroups = true\nno-pivot = true\n'
        '[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = "hook"\n'
    )
    context = FakeContext()

    give(target(config=str(file)), context)

    assert context.config == Config(root="/drv", ldcache="/cache", uid=7, gid=8, no_pivot=True)
    assert context.calls[1] == (
        "container",
        ContainerOptions(supervised=True, no_cgroups=True, capabilities=("compute", "utility"), compat_mode="disabled"),
    )


def test_failure_closes_everything_and_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    context = FakeContext(fail=MountError("no space left on device", hint="make room"))

    with pytest.raises(MountError):
        give(target(debug=str(log)), context)

    assert context.calls[-3:] == [("apply",), "close session", "close context"]
    assert "] mount error: no space left on device\n" in log.read_text()
    assert "] hint: make room\n" in log.read_text()


def test_unknown_device_touches_nothing() -> None:
    context = FakeContext()

    with pytest.raises(DeviceError):
        give(target({"NVIDIA_VISIBLE_DEVICES": "9"}), context)

    assert [call[0] for call in context.calls if call[0] in ("apply", "mount_driver")] == []


def test_bad_configuration_is_said_before_anything_starts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    context = FakeContext()

    with pytest.raises(InputError, match="there is no such file"):
        give(target(config=str(tmp_path / "none"), debug=str(log)), context)

    assert context.calls == []
    assert "there is no such file" in log.read_text()


def test_a_host_may_refuse_what_environments_ask_for(tmp_path: Path) -> None:
    file, log = tmp_path / "config.toml", tmp_path / "log"
    file.write_text(
        f'accept-nvidia-visible-devices-envvar-when-unprivileged = false\n[nvidia-container-cli]\ndebug = "{log}"\n'
    )
    context = FakeContext()

    give(target(config=str(file)), context)
    assert context.calls == []
    assert "not privileged" in log.read_text()

    give(target(config=str(file), privileged=True), context)
    assert context.calls != []


@pytest.mark.parametrize(
    ("config", "simulated", "expected"),
    [
        (HookConfig(), False, LibraryOptions(load_kmods=True)),
        (HookConfig(), True, LibraryOptions()),
        (HookConfig(load_kmods=False), False, LibraryOptions()),
        (HookConfig(create_imex=False), False, LibraryOptions(load_kmods=True, no_create_imex_channels=True)),
    ],
)
def test_library_options(config: HookConfig, simulated: bool, expected: LibraryOptions) -> None:
    assert expected == library_options(config, simulated=simulated)


def test_container_options_fit_the_library() -> None:
    from nvc.request.capabilities import WORDS

    found = container_options(HookRequest((), WORDS), HookConfig(no_cgroups=True), supervised=False)

    assert ContainerOptions(no_cgroups=True, capabilities=WORDS, compat_mode="ldconfig") == found


@pytest.mark.parametrize(
    ("configured", "real", "expected"),
    [
        ("@/sbin/ldconfig", True, "@/sbin/ldconfig.real"),
        ("@/sbin/ldconfig", False, "@/sbin/ldconfig"),
        ("@/sbin/ldconfig.real", True, "@/sbin/ldconfig.real"),
        ("@/sbin/ldconfig.real", False, "@/sbin/ldconfig"),
        ("@/opt/ldconfig", True, "@/opt/ldconfig"),
    ],
)
def test_ubuntus_ldconfig(tmp_path: Path, configured: str, real: bool, expected: str) -> None:
    assert expected == ldconfig(configured, str(tmp_path if real else tmp_path / "none"))
