"""Driver capabilities: what they contain and which files and nodes they bring.

Source: libnvidia-container.md 2.2.1, 3.3, 3.6, 3.7.
"""

from __future__ import annotations

import pytest

from nvc.base.errors import InputError
from nvc.model import DeviceNode, DriverFile
from nvc.request.capabilities import WORDS, DriverCapabilities, wants, wants_node


def capabilities(text: str) -> DriverCapabilities:
    return DriverCapabilities.parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("utility,compute", "compute,utility", id="shown-in-one-order"),
        pytest.param(" utility , ,compute,", "compute,utility", id="blanks-and-empty-items-are-skipped"),
        pytest.param("compute,compute", "compute", id="duplicates-collapse"),
        pytest.param("ngx,all", ",".join(WORDS), id="all-is-every-word"),
    ],
)
def test_parse(text: str, expected: str) -> None:
    assert str(capabilities(text)) == expected


@pytest.mark.parametrize("text", ["Utility", "cuda", "compute utility"])
def test_parse_refuses_other_words_and_names_the_known_ones(text: str) -> None:
    with pytest.raises(InputError, match="unknown driver capability") as caught:
        capabilities(text)
    assert "compat32" in caught.value.hint


def test_is_a_set() -> None:
    both = capabilities("compute") | capabilities("utility")
    assert both == capabilities("utility,compute")
    assert both != "compute,utility"
    assert both & capabilities("utility,video") == capabilities("utility")
    assert hash(both) == hash(capabilities("utility,compute"))
    assert "compute" in both
    assert "video" not in both
    assert len(both) == 2
    assert not capabilities("")
    assert repr(both) == "DriverCapabilities(('compute', 'utility'))"


FILES = {
    "compute-library": DriverFile("/l/libcuda.so.1", "library", "compute"),
    "compute-library32": DriverFile("/l32/libcuda.so.1", "library32", "compute"),
    "compute-binary": DriverFile("/b/nvidia-cuda-mps-server", "binary", "compute"),
    "compute-ipc": DriverFile("/tmp/nvidia-mps", "ipc", "compute"),
    "utility-binary": DriverFile("/b/nvidia-smi", "binary", "utility"),
    "graphics-library": DriverFile("/l/libnvoptix.so.1", "library", "graphics"),
    "firmware": DriverFile("/lib/firmware/gsp.bin", "firmware", ""),
    "common-library32": DriverFile("/l32/libdxcore.so", "library32", ""),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", {"firmware"}, id="none"),
        pytest.param("utility", {"firmware", "utility-binary"}, id="utility"),
        pytest.param("compute", {"firmware", "compute-library", "compute-binary", "compute-ipc"}, id="compute"),
        pytest.param("video", {"firmware", "compute-library", "compute-ipc"}, id="video-without-compute-binaries"),
        pytest.param("display", {"firmware", "graphics-library"}, id="display-brings-graphics"),
        pytest.param("compat32", {"firmware", "common-library32"}, id="compat32-alone"),
        pytest.param(
            "video,compat32",
            {"firmware", "compute-library", "compute-ipc", "compute-library32", "common-library32"},
            id="compat32-adds-what-else-is-wanted",
        ),
    ],
)
def test_wants(text: str, expected: set[str]) -> None:
    chosen = capabilities(text)
    assert expected == {name for name, file in FILES.items() if wants(chosen, file)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", {"nvidiactl"}, id="none"),
        pytest.param("compute", {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}, id="compute"),
        pytest.param("video", {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}, id="video"),
        pytest.param("graphics", {"nvidiactl"}, id="graphics-without-modeset"),
        pytest.param("display", {"nvidiactl", "nvidia-modeset"}, id="display"),
    ],
)
def test_wants_node(text: str, expected: set[str]) -> None:
    names = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
    chosen = capabilities(text)
    assert expected == {name for name in names if wants_node(chosen, DeviceNode(f"/dev/{name}", 195, 0))}
