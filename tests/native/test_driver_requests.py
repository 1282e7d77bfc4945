"""tools/driver_requests.py: what a release serves, against the table. A small release with each form that it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvc.guard.requests import ESCAPES, UVM
from tools.driver_requests import ESCAPE_CASES, ESCAPE_NUMBERS, TESTS, UVM_CASES, UVM_NUMBERS, main, number_of, problems

FILES = {
    ESCAPE_NUMBERS[0]: "#define NV_ESC_RM_FREE   0x29 // one\n#define NV_ESC_RM_UNUSED 0x33\n",
    ESCAPE_NUMBERS[1]: "#define NV_ESC_IOCTL_XFER_CMD   (NV_IOCTL_BASE + 11)\n",
    ESCAPE_NUMBERS[2]: "",
    ESCAPE_CASES[0]: "        case NV_ESC_RM_FREE:\n",
    ESCAPE_CASES[1]: "    if (arg_cmd == NV_ESC_IOCTL_XFER_CMD)\n",
    UVM_NUMBERS[0]: "#define UVM_FREE    UVM_IOCTL_BASE(34)\n#define UVM_OLD UVM_IOCTL_BASE(1)\n",
    UVM_NUMBERS[1]: "#define UVM_DEINITIALIZE    0x30000002\n",
    UVM_CASES[
        0
    ]: "        case UVM_DEINITIALIZE:\n  UVM_ROUTE_CMD_STACK_INIT_CHECK(UVM_FREE, uvm_api_free);\n case UVM_FD_MM:\n",
    UVM_CASES[1]: "",
    TESTS: "#define UVM_TEST_X UVM_TEST_IOCTL_BASE(400)\n",
}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path


def test_numbers_in_each_form_that_the_headers_have() -> None:
    assert [number_of(text) for text in ("0x2A", "(NV_IOCTL_BASE + 15)", "UVM_IOCTL_BASE(33)", "OTHER")] == [
        42,
        215,
        33,
        None,
    ]


def test_what_a_release_serves_is_compared_with_the_table(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(release)]) == 1
    said = capsys.readouterr().out
    assert "escape 0x2a has a row, and no release serves it" in said
    assert "escape 0x29" not in said and "escape 0x33" not in said
    assert "tests go up to 600" in said
    assert "1 releases: 2 escapes, 2 requests of UVM" in said


def test_a_request_without_a_row_and_one_without_a_number_are_named(
    release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = release / ESCAPE_CASES[0]
    place.write_text(place.read_text() + "        case NV_ESC_RM_UNUSED:\n")
    assert main([str(release)]) == 1
    assert "escape 0x33 is served, and has no row" in capsys.readouterr().out
    place.write_text("case NV_ESC_RM_TOMORROW:")
    assert main([str(release)]) == 1
    assert "no number for NV_ESC_RM_TOMORROW" in capsys.readouterr().err


def test_no_release_is_not_taken_for_a_good_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "no request found" in capsys.readouterr().err


def test_the_table_itself_is_what_is_compared() -> None:
    assert problems({row[0] for row in ESCAPES}, {row[0] for row in UVM}, 314) == []
