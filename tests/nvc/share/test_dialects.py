"""The environments of other sharing systems, and what they mean here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base.errors import InputError
from nvc.share.dialects import CGPU, EGPU, HAMI, IGNORED, KAI, MPS, OWN, VARIABLES, VGPU, is_limit, read
from nvc.share.model import CAP_WHOLE, GpuShare, Share

MEMORY, CORES = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"
CONTAINER, CARD = "ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_DEV"
UUID = "GPU-b8058b66-3950-5eb2-94c2-df90166ee487"
WEIGHT = "ALIYUN_COM_GPU_SCHD_WEIGHT"


def asked(**environment: str) -> Share:
    requested = read(environment)
    assert requested is not None
    return requested.share


def everywhere(**words: object) -> Share:
    return Share(GpuShare(**words))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({"NVC_SHARE": "mem=1Gi"}, everywhere(memory=1 << 30)),
        ({"NVC_SHARE": "off"}, Share(off=True)),
        ({"NVC_SHARE": "", MEMORY: "1g"}, everywhere(memory=1 << 30)),
        ({MEMORY: "4096m"}, everywhere(memory=4 << 30)),
        ({MEMORY: "4G"}, everywhere(memory=4 << 30)),
        ({MEMORY: "0x1000k"}, everywhere(memory=4 << 20)),
        ({MEMORY: "010M"}, everywhere(memory=8 << 20)),
        ({MEMORY: "1048576"}, everywhere(memory=1 << 20)),
        ({CORES: "30"}, everywhere(cap=300)),
        ({CORES: "100"}, everywhere(cap=CAP_WHOLE)),
        ({CORES: "250"}, everywhere(cap=CAP_WHOLE)),
        ({MEMORY: "1g", CORES: "0"}, everywhere(memory=1 << 30)),
        ({CORES: "30", "GPU_CORE_UTILIZATION_POLICY": "disable"}, everywhere(cap=300)),
        ({MEMORY: "1g", "GPU_CORE_UTILIZATION_POLICY": "disable"}, everywhere(memory=1 << 30, cap=CAP_WHOLE)),
        ({CORES: "30", "GPU_CORE_UTILIZATION_POLICY": "force"}, everywhere(cap=300)),
        ({"CUDA_TASK_PRIORITY": "0"}, everywhere(priority="high")),
        ({"CUDA_TASK_PRIORITY": "1"}, everywhere(priority="normal")),
        ({MEMORY: "1g", "CUDA_OVERSUBSCRIBE": "true"}, everywhere(memory=1 << 30, oversubscribe=True)),
        ({"CUDA_DISABLE_CONTROL": "true"}, Share(off=True)),
        ({MEMORY: "1g", "CUDA_DISABLE_CONTROL": "false"}, everywhere(memory=1 << 30)),
        (
            {MEMORY: "4g", f"{MEMORY}_1": "2g", f"{CORES}_0": "10", CORES: "50"},
            Share(
                GpuShare(4 << 30, cap=500),
                (("#0", GpuShare(4 << 30, cap=100)), ("#1", GpuShare(2 << 30, cap=500))),
            ),
        ),
        ({f"{MEMORY}_0": "3000m"}, Share(None, (("#0", GpuShare(3000 << 20)),))),
        ({CONTAINER: "3"}, everywhere(memory_part=187_500)),
        ({CONTAINER: "3", CARD: "24"}, everywhere(memory_part=125_000)),
        ({CONTAINER: "16"}, everywhere(memory_part=1_000_000)),
        ({CONTAINER: "3", "ALIYUN_COM_GPU_MEM_UNIT": "GB"}, everywhere(memory=3 << 30)),
        ({CONTAINER: "3", CARD: "12", "ALIYUN_COM_GPU_MEM_UNIT": "GB"}, everywhere(memory_part=250_000)),
        ({CONTAINER: "8", WEIGHT: "4"}, everywhere(memory_part=500_000, weight=40)),
        ({WEIGHT: "17"}, everywhere(weight=10)),
        ({CONTAINER: "8", "ALIYUN_COM_GPU_HIGH_PRIO": "1"}, everywhere(memory_part=500_000, priority="high")),
        ({"CGPU_DISABLE": "1"}, Share(off=True)),
        ({MEMORY: "1g", f"{MEMORY}_0": "60g"}, Share(GpuShare(1 << 30), (("#0", GpuShare(1 << 30)),))),
        ({"NVIDIA_GPU_MEMORY_LIMIT": "4096"}, everywhere(memory=4 << 30)),
        ({"CUDA_MEM_LIMIT": "2048m"}, everywhere(memory=2 << 30)),
        ({"CUDA_MEM_LIMIT_0": "1.5g"}, Share(None, (("#0", GpuShare(3 << 29)),))),
        ({"CUDA_MEM_LIMIT_0": "2147483648", "CUDA_MEM_RATIO_0": "1.00"}, Share(None, (("#0", GpuShare(2 << 30)),))),
        (
            {"CUDA_CORE_LIMIT_1": "30", "CUDA_MEM_LIMIT": "1G"},
            Share(GpuShare(1 << 30), (("#1", GpuShare(1 << 30, cap=300)),)),
        ),
        ({"CUDA_CORE_LIMIT": "30", "CUDA_CORE_SOFT_LIMIT": "60"}, everywhere(cap=300)),
        ({"CUDA_CORE_SOFT_LIMIT": "60"}, everywhere(cap=600)),
        ({"CUDA_MEM_LIMIT": "1t", "CUDA_MEM_OVERSOLD": "true"}, everywhere(memory=1 << 40, oversubscribe=True)),
        ({"GPU_MEM_PER_DEVICE": "1073741824"}, everywhere(memory=1 << 30)),
        ({"GPU_MEM_PER_DEVICE": "1073741824", "GPU_UTIL_PER_DEVICE": "25"}, everywhere(memory=1 << 30, cap=250)),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}, everywhere(cap=500)),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.57"}, everywhere(cap=125)),
        (
            {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=5G, 1=512MB"},
            Share(None, (("#0", GpuShare(5 << 30)), ("#1", GpuShare(512 << 20)))),
        ),
        (
            {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{UUID}=2G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20"},
            Share(GpuShare(cap=200), ((UUID, GpuShare(2 << 30, cap=200)),)),
        ),
        ({"NVC_SHARE": "mem=1Gi", "GPU_MEMORY_LIMIT": "4g"}, everywhere(memory=1 << 30)),
    ],
)
def test_what_the_variables_mean(environment: dict[str, str], share: Share) -> None:
    assert share == asked(**environment)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NVC_SHARE": ""},
        {"NVIDIA_VISIBLE_DEVICES": "all"},
        {"CUDA_MPS_PIPE_DIRECTORY": "/x", "CUDA_MPS_LOG_DIRECTORY": "/y", "CUDA_MPS_CLIENT_PRIORITY": "1"},
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VERSION": "12.4", "CUDA_CACHE_MAXSIZE": "1", "GPU_LIMIT": "1"},
        {"MEMORY_LIMIT": "1", "GPU_MEMORY_LIMITER": "x", "CUDA_LAUNCH_LIMIT": "1", "MY_GPU_MEM_LIMIT": "1"},
        {"CUDA_MEM_LIMIT": "0", "CUDA_CORE_LIMIT": "0", "GPU_MEM_PER_DEVICE": "0"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ""},
        {"GPU_MEMORY_LIMIT": ""},
        {"ALIYUN_COM_GPU_MEM_CONTAINER_X": "1"},
        {CONTAINER: "0"},
        {CARD: "24"},
        {MEMORY: "0"},
        {"GPU_CORE_UTILIZATION_POLICY": "default"},
        dict.fromkeys(IGNORED, "1"),
    ],
)
def test_what_says_nothing(environment: dict[str, str]) -> None:
    assert read(environment) is None


def test_ours_is_before_hami_before_cgpu_before_kai() -> None:
    environment = {"NVC_SHARE": "mem=1Gi", MEMORY: "2g", CONTAINER: "4", "NVIDIA_GPU_MEMORY_LIMIT": "4096"}
    sources = []
    while (requested := read(environment)) is not None:
        sources.append(requested.source)
        del environment[requested.source]
    assert [OWN, MEMORY, CONTAINER, "NVIDIA_GPU_MEMORY_LIMIT"] == sources


@pytest.mark.parametrize(
    "environment",
    [
        {"NVC_SHARE": "mem=lots"},
        {MEMORY: "lots"},
        {MEMORY: "-1"},
        {MEMORY: "1gg"},
        {MEMORY: "09"},
        {MEMORY: "0x"},
        {MEMORY: "9" * 30},
        {MEMORY: "2000000g"},
        {MEMORY: "10"},
        {MEMORY: "1023k"},
        {f"{MEMORY}_3": "\uff11g"},
        {CORES: "half"},
        {CORES: "-5"},
        {"CUDA_TASK_PRIORITY": "high"},
        {"CUDA_OVERSUBSCRIBE": "maybe"},
        {"CUDA_DISABLE_CONTROL": "yes"},
        {CONTAINER: "17"},
        {CONTAINER: "1.5"},
        {CONTAINER: "5", CARD: "4"},
        {CONTAINER: "5", "ALIYUN_COM_GPU_MEM_UNIT": "TB"},
        {CONTAINER: "9999999999", "ALIYUN_COM_GPU_MEM_UNIT": "GB"},
        {WEIGHT: "heavy"},
        {"CGPU_DISABLE": "yes"},
        {f"{MEMORY}_": "1g"},
        {f"{MEMORY}_16": "1g"},
        {f"{MEMORY}_01": "1g"},
        {"CUDA_DEVICE_MEMORY_LIMITS": "1g"},
        {"GPU_MEMORY_LIMIT": "4g"},
        {"GPU_MEMORY_LIMIT": "0"},
        {"GPU_CORE_LIMIT_3": "4"},
        {"NVIDIA_GPU_MEM_LIMIT": "4"},
        {"VGPU_MEMORY_LIMIT_0": "4096"},
        {MEMORY: "1g", "CUDA_MEM_LIMIT_99": "1g"},
        {"CUDA_MEM_LIMIT": "0=1g"},
        {"CUDA_MEM_LIMIT_2": "1.g"},
        {"CUDA_MEM_LIMIT_2": "1g", "CUDA_MEM_RATIO_2": "10"},
        {"CUDA_CORE_LIMIT": "half"},
        {"CUDA_MEM_OVERSOLD_0": "perhaps"},
        {"GPU_MEM_PER_DEVICE": "lots"},
        {"GPU_UTIL_PER_DEVICE": "-3"},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "0"},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "101"},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "."},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "1G"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,0=2G"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-1=1G"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0="},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "=1G"},
        {"NVIDIA_GPU_MEMORY_LIMIT": "4Gi"},
        {"NVIDIA_GPU_MEMORY_LIMIT": "9999999999999"},
    ],
)
def test_nonsense_names_its_variable(environment: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        read(environment)
    assert any(name in str(caught.value) for name in environment)
    assert caught.value.hint


def test_a_weight_that_cgpu_takes_for_one_is_told() -> None:
    requested = read({WEIGHT: "0"})
    assert requested is not None
    assert requested.warnings


@given(st.dictionaries(st.sampled_from(sorted(VARIABLES)), st.text(max_size=30)))
def test_no_environment_is_more_than_a_message(environment: dict[str, str]) -> None:
    try:
        read(environment)
    except InputError as error:
        assert str(error).isprintable()


def test_every_variable_is_of_one_dialect() -> None:
    assert len(VARIABLES) == 1 + sum(map(len, (HAMI, CGPU, KAI, VGPU, EGPU, MPS)))
    assert VARIABLES.isdisjoint(IGNORED)


@given(st.sampled_from(("CUDA", "GPU", "NVIDIA", "VGPU")), st.sampled_from(("MEM", "MEMORY", "CORE", "SM", "UTIL")))
def test_a_limit_of_an_unknown_system_is_refused(owner: str, kind: str) -> None:
    """Attack (P8): GPU_MEMORY_LIMIT and the like gave the whole GPU in silence."""
    for form in ("{}_{}_LIMIT", "{}_DEVICE_{}_LIMIT_7", "{}_{}_LIMITS", "{}_X_{}_Y_LIMIT_"):
        name = form.format(owner, kind)
        assert is_limit(name)
        if name not in VARIABLES:
            with pytest.raises(InputError, match=f"{name} is named like a limit"):
                read({name: "1"})
