"""Selectors, MIG config and monitor, IMEX channels: every vector of libnvidia-container.md 1.7.2 to 1.7.4."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base.errors import DeviceError, ImexError, MigConfigError, MigMonitorError, escaped
from nvc.model import Selection
from nvc.request.selection import normalize_bus_id, parse_imex, select
from tests.support.inventories import GPU_A, GPU_B, MIG_7, MIG_9, gpu, two_gpus, without_gpus

MACHINE = two_gpus()


def chosen(selection: Selection) -> tuple[list[int], list[int]]:
    """Indices of the GPUs, and of the MIG devices on GPU 1."""
    return [gpu.index for gpu in selection.gpus], [found.mig.index for found in selection.migs]


@pytest.mark.parametrize(
    ("token", "gpus", "migs"),
    [
        pytest.param("0", [0], [], id="index"),
        pytest.param("0,0", [0], [], id="duplicates-collapse"),
        pytest.param("1,0", [1, 0], [], id="in-the-order-named"),
        pytest.param("0,all", [0, 1], [0, 1], id="all-after-another"),
        pytest.param("ALL", [0, 1], [0, 1], id="all-in-any-case"),
        pytest.param("all,zzz", [0, 1], [0, 1], id="all-stops-parsing"),
        pytest.param(",0,,1,", [0, 1], [], id="empty-tokens-are-ignored"),
        pytest.param("", [], [], id="empty"),
        pytest.param(GPU_A, [0], [], id="uuid"),
        pytest.param(GPU_A.upper(), [0], [], id="uuid-upper-case"),
        pytest.param(GPU_A.lower(), [0], [], id="uuid-lower-case"),
        pytest.param("0:3d:00.0", [0], [], id="bus-id-short-domain"),
        pytest.param("0000:3d:00.0", [0], [], id="bus-id-four-digits"),
        pytest.param("00000000:3D:00.0", [0], [], id="bus-id-upper-case"),
        pytest.param("0001:3e:00.1", [1], [], id="bus-id-function-is-ignored"),
        pytest.param("0x1:3e:0", [1], [], id="bus-id-without-function"),
        pytest.param("1:0", [1], [0], id="gpu-and-mig-index"),
        pytest.param("1:0x", [1], [0], id="mig-index-with-junk"),
        pytest.param(MIG_9.lower(), [1], [1], id="mig-uuid"),
        pytest.param(f"{MIG_9},1:0,{MIG_7}", [1], [1, 0], id="mig-duplicates-collapse"),
        pytest.param(" +1", [1], [], id="index-as-strtoul-reads-it"),
        pytest.param("0" * 5000 + "1", [1], [], id="index-with-zeros"),
    ],
)
def test_select(token: str, gpus: list[int], migs: list[int]) -> None:
    assert chosen(select(MACHINE, [token])) == (gpus, migs)


@pytest.mark.parametrize(
    "token",
    [
        "2",
        "GPU-aaaa",
        "GPU-",
        "3d:00.0",
        "0:0",
        "1:2",
        "2:0",
        "1:",
        ":0",
        "none",
        "void",
        "-1",
        "1.0",
        "nvidia.com/gpu=0",
        pytest.param("9" * 5000, id="five-thousand-digits"),
        "MIG-7777",
        "0:fffff:00.0",
        "fffffffff:3d:00.0",
        "1:0:zz",
        "\u0661",
    ],
)
def test_unknown_device(token: str) -> None:
    machine = MACHINE
    if token == "1:0:zz":  # text after a MIG index is tolerated, so this one needs a GPU without MIG
        machine = MACHINE.replace(gpus=(MACHINE.gpus[0], gpu(1, "00000001:3e:00.0", GPU_B)))
    with pytest.raises(DeviceError) as caught:
        select(machine, [token])
    assert caught.value.message == f"{escaped(token[:100])}: unknown device"
    assert GPU_A in caught.value.hint


def test_the_message_names_the_token_not_the_list() -> None:
    with pytest.raises(DeviceError, match=r"^device error: 7: unknown device$"):
        select(MACHINE, ["0,7"])


def test_a_bus_id_that_is_missing_does_not_select_a_mig_device() -> None:
    with pytest.raises(DeviceError):
        select(MACHINE, ["1:0:00.0"])


def test_the_hint_stays_short_on_a_large_machine() -> None:
    many = MACHINE.replace(gpus=tuple(gpu(i, f"{i:08x}:01:00.0", f"GPU-{i}") for i in range(64)))
    with pytest.raises(DeviceError) as caught:
        select(many, ["64"])
    assert "and 56 more" in caught.value.hint
    assert "MIG" not in caught.value.hint


def test_several_selectors_are_one_list() -> None:
    assert chosen(select(MACHINE, ["1", "0,1:1"])) == ([1, 0], [1])


def test_everything_is_marked() -> None:
    assert select(MACHINE, ["all"]).everything
    assert not select(MACHINE, ["0,1"]).everything


def test_without_gpus_selectors_are_ignored() -> None:
    assert select(without_gpus(), ["0,zzz"]) == Selection()


@pytest.mark.parametrize("token", ["all", "1", "0,1"])
def test_mig_config_takes_the_capable_gpus_among_the_visible(token: str) -> None:
    assert [gpu.index for gpu in select(MACHINE, [token], mig_config="all").mig_config] == [1]
    assert [gpu.index for gpu in select(MACHINE, [token], mig_monitor="ALL").mig_monitor] == [1]


@pytest.mark.parametrize("token", ["", "0"])
def test_mig_config_without_a_capable_gpu_is_nothing(token: str) -> None:
    assert select(MACHINE, [token], mig_config="all").mig_config == ()


def test_an_empty_mig_config_asks_for_nothing() -> None:
    assert select(MACHINE, ["all"], mig_config="", mig_monitor=",") == select(MACHINE, ["all"])


def test_mig_config_takes_only_all() -> None:
    with pytest.raises(MigConfigError, match=r"^mig-config error: 1: only 'all' devices are currently supported$"):
        select(MACHINE, ["all"], mig_config="1")
    with pytest.raises(MigMonitorError, match=r"^mig-monitor error: 0: only 'all' devices are currently supported$"):
        select(without_gpus(), [], mig_monitor="all,0")


def test_mig_config_excludes_single_mig_devices() -> None:
    text = r"^mig-config error: all: cannot enable mig-config with specific MIG devices selected$"
    with pytest.raises(MigConfigError, match=text):
        select(MACHINE, ["1:0"], mig_config="all")
    text = r"^mig-monitor error: all: cannot enable mig-monitor with specific MIG devices selected$"
    with pytest.raises(MigMonitorError, match=text):
        select(MACHINE, [MIG_7], mig_monitor="all")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:3d:00.0", "00000000:3d:00.0"),
        ("FFFFFFFF:0a:1F.7", "ffffffff:0a:1f.0"),
        ("0:3d:0", "00000000:3d:00.0"),
        ("3d:00.0", ""),
        ("0:3d:", ""),
        ("0:3d:.0", ""),
        ("0::00.0", ""),
        (":3d:00.0", ""),
        ("-1:3d:00.0", ""),
        ("0:3dd:00.0", ""),
        ("", ""),
    ],
)
def test_normalize_bus_id(text: str, expected: str) -> None:
    assert normalize_bus_id(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", (), id="nothing"),
        pytest.param("1048575", (1048575,), id="highest"),
        pytest.param(",0,,7,", (0, 7), id="empty-items-are-ignored"),
        pytest.param("3,3", (3, 3), id="duplicates-are-kept"),
        pytest.param("0" * 5000 + "1", (1,), id="zeros-before"),
    ],
)
def test_imex(text: str, expected: tuple[int, ...]) -> None:
    assert parse_imex(text) == expected


@pytest.mark.parametrize(
    "item", ["1048576", "-1", "a", "0x10", "1 ", "+1", "1.0", pytest.param("9" * 5000, id="5000-digits"), "\u0661"]
)
def test_imex_refuses(item: str) -> None:
    with pytest.raises(ImexError) as caught:
        parse_imex(f"0,{item}")
    assert str(caught.value) == f"error parsing IMEX info: unsupported IMEX channel value: {escaped(item[:100])}"


@given(st.text(max_size=40))
def test_any_selector_is_found_or_refused(text: str) -> None:
    try:
        selection = select(MACHINE, [text])
    except DeviceError:
        return
    assert set(selection.gpus) <= set(MACHINE.gpus)
