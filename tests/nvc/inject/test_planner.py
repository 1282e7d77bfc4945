"""From requests to the calls of a session: the order, and what MIG management replaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvc.base.errors import RequirementError
from nvc.inject.planner import mount_devices, plan
from nvc.model import DeviceNode, DriverOptions, Gpu, MigDevice, MigSelection, Nvcap, Selection
from nvc.request.injection import InjectionRequest, ShareRequest
from nvc.share import dialects


def gpu(index: int, *, migs: tuple[MigDevice, ...] = ()) -> Gpu:
    node = DeviceNode(f"/dev/nvidia{index}", 195, index)
    return Gpu(
        index, index, "H200", "Nvidia", f"GPU-{index}", f"00000000:0{index}:00.0", "9.0", node, "", True, "", migs
    )


NO_MPS = DriverOptions(no_mps=True)
MIG = MigDevice(0, "MIG-0", 1, 0, Nvcap("/proc/gi"), Nvcap("/proc/ci"))
GPUS = (gpu(0), gpu(1, migs=(MIG,)))


class Recorder:
    """Stands for a context and for a session: writes down what it gets, in order."""

    def __init__(self, selection: Selection, *, fail: str = "") -> None:
        self.calls: list[Any] = []
        self.selection = selection
        self.fail = fail

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append((name, *(getattr(item, "uuid", item) for item in arguments)))
            if name == self.fail:
                raise RequirementError("unsatisfied condition: cuda>=99")
            return self.selection if name == "select" else name

        return call


def test_the_order_of_everything() -> None:
    recorder: Any = Recorder(Selection(gpus=GPUS[:1]))

    plan(InjectionRequest(("0",), imex=(3, 1), requirements=("cuda>=12",), driver=NO_MPS), recorder, recorder)

    assert recorder.calls == [
        ("driver_info", NO_MPS),
        ("select", ("0",), None, None, NO_MPS),
        ("require", ("cuda>=12",), recorder.selection, NO_MPS),
        ("mount_driver", "driver_info"),
        ("mount_device", "GPU-0"),
        ("mount_imex_channel", 3),
        ("mount_imex_channel", 1),
        ("update_ldcache",),
    ]


@pytest.mark.parametrize(
    ("asked", "config", "expected"),
    [
        pytest.param(ShareRequest(), "", False, id="no request"),
        pytest.param(ShareRequest(annotation="mem=1Gi"), "", True, id="annotation"),
        pytest.param(ShareRequest(option="off"), "", True, id="option"),
        pytest.param(ShareRequest(environment={"CUDA_DEVICE_MEMORY_LIMIT_0": "1g"}), "", True, id="dialect"),
        pytest.param(ShareRequest(environment={"CUDA_VERSION": "12"}), "", False, id="another variable"),
        pytest.param(ShareRequest(), "[share]\ndefault = 'mem=50%'\n", True, id="the node's rules"),
        pytest.param(ShareRequest(), "disable-require = true\n", False, id="a node without rules"),
    ],
)
def test_a_share_is_planned_where_one_may_be_requested(
    tmp_path: Path, asked: ShareRequest, config: str, expected: bool
) -> None:
    (tmp_path / "config.toml").write_text(config)
    asked = asked.replace(config=str(tmp_path / "config.toml"))
    recorder: Any = Recorder(Selection(gpus=GPUS[:1]))

    plan(InjectionRequest(("0",), share=asked), recorder, recorder)

    assert [call[0] for call in recorder.calls if call[0] == "share"] == ["share"] * expected
    # The loader's cache comes last: it is for all that was mounted.
    assert recorder.calls[-1] == ("update_ldcache",)


def test_every_variable_that_may_ask_is_noticed() -> None:
    assert [name for name in dialects.VARIABLES if not ShareRequest(environment={name: "1"}).may_matter()] == []


def test_a_container_without_a_share_imports_nothing_for_it() -> None:
    script = (
        "import sys, nvc.inject.api, nvc.inject.session, nvc.container.plan, nvc.container.apply, hook.inject\n"
        "from nvc.request.injection import ShareRequest\n"
        "assert not ShareRequest(environment={'PATH': '/bin'}, config='/nonexistent').may_matter()\n"
        "print([name for name in sys.modules if name.startswith('nvc.share')])"
    )
    root = Path(__file__).parents[3]

    told = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True, timeout=20
    ).stdout

    assert told == "[]\n"


def test_nothing_is_planned_for_a_container_that_cannot_run_here() -> None:
    recorder: Any = Recorder(Selection(gpus=GPUS), fail="require")

    with pytest.raises(RequirementError):
        plan(InjectionRequest(("all",), requirements=("cuda>=99",)), recorder, recorder)

    assert [call[0] for call in recorder.calls] == ["driver_info", "select", "require"]


def test_an_empty_selector_is_passed_on_to_be_refused() -> None:
    recorder: Any = Recorder(Selection())

    plan(InjectionRequest(mig_config="", mig_monitor="all"), recorder, recorder)

    assert ("select", (), "", "all", DriverOptions()) in recorder.calls


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        pytest.param(Selection(), [], id="nothing"),
        pytest.param(
            Selection(gpus=GPUS, migs=(MigSelection(GPUS[1], MIG),)),
            [("mount_device", "GPU-0"), ("mount_device", "GPU-1"), ("mount_mig_access", "MIG-0", "GPU-1")],
            id="GPUs and a MIG device",
        ),
        pytest.param(
            Selection(gpus=GPUS[1:], migs=(MigSelection(GPUS[1], MIG),), everything=True, mig_config=GPUS[1:]),
            [("mount_device", "GPU-1"), ("mount_mig_config",), ("mount_device_mig_caps", "GPU-1")],
            id="MIG configuration replaces the access to each device",
        ),
        pytest.param(
            Selection(gpus=GPUS[:1], mig_config=GPUS[:1], mig_monitor=GPUS[:1]),
            [
                ("mount_device", "GPU-0"),
                ("mount_mig_config",),
                ("mount_device_mig_caps", "GPU-0"),
                ("mount_mig_monitor",),
                ("mount_device_mig_caps", "GPU-0"),
            ],
            id="configuration and monitor",
        ),
    ],
)
def test_devices(selection: Selection, expected: list[Any]) -> None:
    recorder: Any = Recorder(selection)

    mount_devices(recorder, selection)

    assert expected == recorder.calls
