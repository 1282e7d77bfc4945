"""The reading of traces from a GPU machine: verdicts and lists, against the tables and rm_seen.h themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.native import CHECKOUT
from tests.support.seen import NO_ROW, Request, is_refused, kinds, rows_for_header, seen_before, verdict

SOURCE = CHECKOUT / "tests/gpu/enforce/programs/seen_calls.c"


def of(what: str, number: int, size: int = 0) -> Request:
    return Request(what, number, size, "nvidiactl")


def test_verdicts_are_the_tables() -> None:
    assert verdict(of("escape", 0x2A, 32)) == "handled"
    assert verdict(of("escape", 0x28, 20)) == "refused"
    assert verdict(of("escape", 0x2A, 44)) == "another size"
    assert verdict(of("escape", 0x38, 4)) == NO_ROW
    assert verdict(of("class", 0x40, 128)) == "video_memory"
    assert verdict(of("class", 0xC2)) == "forbidden"
    assert verdict(of("control", 0x2080200A, 8)) == "plain"
    assert verdict(of("control", 0x20800407, 1)) == "answered"
    assert verdict(of("control", 0x20808001)) == NO_ROW
    assert verdict(of("uvm", 33)) == "plain"
    assert verdict(of("uvm", 200)) == "refused"
    assert not is_refused(of("uvm", 79))
    assert is_refused(of("heap", 18))


def test_what_was_seen_before_is_refused_nowhere() -> None:
    seen = seen_before()
    assert {what for what, _ in seen} == {"escape", "class", "control", "uvm"}
    assert len(seen) > 150
    sizes = {0x40: 0}
    refused = [
        (what, hex(number))
        for what, number in seen
        if what != "escape" and is_refused(of(what, number, sizes.get(number, 0)))
    ]
    assert refused == []
    assert len(kinds("control")) > 180


def test_what_is_new_is_written_as_the_header_has_it() -> None:
    lines = rows_for_header([of("control", 0x20801234, 8), of("uvm", 78), of("control", 0x101, 40), of("other", 0, 16)])
    assert lines == ["control {0x20801234, 8}, no row", "uvm 0x4e, plain"]
    assert Request.of("control 0x101 40 7 nvidiactl") == (of("control", 0x101, 40), 7)


def test_the_tracer_lets_programs_be_as_they_are(tmp_path: Path) -> None:
    program, out = tmp_path / "seen_calls", tmp_path / "out"
    subprocess.run(["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True)
    command = [program, out, "sh", "-c", "stty -a </dev/null 2>/dev/null; (echo one | cat); exit 3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (3, "one\n")
    assert out.read_text() == ""
    assert subprocess.run([program, out], capture_output=True, check=False).returncode == 125
