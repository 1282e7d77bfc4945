"""Checks that crash, hang, raise or flood cost their own finding and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.base.errors import DetectionError, NvcError
from nvc.doctor import runner
from nvc.doctor.finding import Check, Finding, Look, error, note, ok, warning, worst
from nvc.doctor.probe import BadFile, Probe, table, texts
from nvc.model import Host, Inventory


def good(probe: Probe) -> Iterator[Finding]:
    yield ok("fine")


def silent(probe: Probe) -> Iterator[Finding]:
    yield from ()


def hang(probe: Probe) -> Iterator[Finding]:
    yield ok("seen before it hangs")
    time.sleep(60)


def crash(probe: Probe) -> Iterator[Finding]:
    os.kill(os.getpid(), 9)
    yield ok("never")


def raiser(problem: BaseException) -> Look:
    def look(probe: Probe) -> Iterator[Finding]:
        yield ok("seen")
        raise problem

    return look


def flood(probe: Probe) -> Iterator[Finding]:
    for number in range(10_000):
        yield warning(f"number {number} " + "x" * 2000, "true")


def row(name: str, look: Look) -> Check:
    return Check(name, "area", look, "things", "the reason")


PROBE = Probe(Host())


def test_a_hang_and_a_crash_leave_the_others() -> None:
    checks = [row("a", good), row("b", hang), row("c", crash), row("d", silent), row("e", good)]
    started = time.monotonic()
    found = [(finding.check, finding.level, finding.what) for finding in runner.run(checks, PROBE, 3)]

    assert found == [
        ("a", "ok", "fine"),
        ("b", "warning", "the check did not end within 3 s and was stopped; the others were run"),
        ("c", "warning", "the check ended its process; the others were run"),
        ("d", "skipped", "nothing to check here"),
        ("e", "ok", "fine"),
    ]
    assert time.monotonic() - started < 60


def test_no_child_and_no_descriptor_is_left() -> None:
    before = os.listdir("/proc/self/fd")
    list(runner.run([row("a", good), row("b", crash), row("c", good)], PROBE, 5))

    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_reader_who_stops_early_leaves_nothing() -> None:
    findings = runner.run([row("a", good), row("b", hang)], PROBE, 60)
    assert next(findings).what == "fine"
    findings.close()  # type: ignore[attr-defined]

    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_flood_is_cut_and_comes_through_whole() -> None:
    found = list(runner.run([row("a", flood), row("b", good)], PROBE, 20))

    assert len(found) == runner.FINDINGS_LIMIT + 2
    assert found[-2].what.startswith("only the first")
    assert found[-1].check == "b"


@pytest.mark.parametrize(
    ("problem", "level", "words"),
    [
        pytest.param(PermissionError(13, "no", "/x/y"), "note", "cannot see /x/y: permission denied", id="permission"),
        pytest.param(PermissionError(13, "no"), "note", "cannot see a file", id="permission-without-name"),
        pytest.param(IsADirectoryError(21, "no", b"/x\xff"), "warning", "cannot look at /x", id="os-error"),
        pytest.param(BadFile("/f is not TOML"), "error", "/f is not TOML", id="bad-file"),
        pytest.param(
            DetectionError("that", hint="do this"),
            "warning",
            "cannot be checked: detection error: that",
            id="our-error",
        ),
        pytest.param(KeyError("k"), "warning", "the check failed: KeyError: 'k'", id="mistake"),
        pytest.param(RecursionError("deep"), "warning", "the check failed: RecursionError: deep", id="too-deep"),
        pytest.param(MemoryError(), "warning", "the check failed: MemoryError", id="memory"),
    ],
)
def test_what_a_check_raises_is_a_finding(problem: Exception, level: str, words: str) -> None:
    first, second = runner.examine(row("a", raiser(problem)), PROBE)

    assert first.what == "seen"
    assert (second.level, second.check, second.area) == (level, "a", "area")
    assert second.what.startswith(words)
    assert second.why


def test_the_reason_is_the_checks_unless_the_finding_has_its_own() -> None:
    check = row("a", good)

    assert runner.filled(warning("w", "m"), check).why == "the reason"
    assert runner.filled(warning("w", "m", "mine"), check).why == "mine"
    assert runner.filled(ok("fine"), check).why == ""


def test_worst() -> None:
    assert worst([]) == "ok"
    assert worst([note("n"), error("e", "m"), warning("w", "m")]) == "error"


def test_the_inventory_is_asked_once() -> None:
    asked = []

    def ask() -> Inventory:
        asked.append(1)
        raise NvcError("no")

    probe = Probe(Host(), ask=ask)
    for _ in range(3):
        assert probe.known_inventory() is None
        with pytest.raises(NvcError, match="no"):
            probe.inventory()
    assert asked == [1]


def test_without_anybody_to_ask() -> None:
    assert PROBE.known_inventory() is None
    assert PROBE.kernel_calls() == {}


class TestPlaces:
    @pytest.fixture
    def probe(self, tmp_path: Path) -> Probe:
        return Probe(Host(root=str(tmp_path), system=str(tmp_path)), kernel=str(tmp_path))

    def test_absolute_links_stay_in_the_tree(self, probe: Probe, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run/file").write_text("inside")
        (tmp_path / "link").symlink_to("/run")
        (tmp_path / "up").symlink_to("../../../../run/file")

        assert probe.system("/link/file").text() == "inside"
        assert probe.system("/up").text() == "inside"
        assert probe.system("/link").names() == ["file"]

    def test_what_is_not_there_is_empty(self, probe: Probe, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to("loop")
        place = probe.system("/no/where")

        assert (place.text(), place.names(), place.exists(), place.toml(), place.json()) == ("", [], False, {}, None)
        assert probe.system("/loop").exists() is False

    def test_a_fifo_is_not_waited_for(self, probe: Probe, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(OSError, match="not a regular file"):
            probe.system("/fifo").text()

    def test_a_huge_file_is_not_read(self, probe: Probe, tmp_path: Path) -> None:
        with open(tmp_path / "huge", "wb") as file:
            file.truncate(1 << 30)
        with pytest.raises(OSError, match="too large"):
            probe.system("/huge").text()

    @pytest.mark.parametrize("data", [b"\xff\xfe", b"a = ", b"[" * 100_000, b"a = 1\na = 2\n"])
    def test_bad_toml_and_json(self, probe: Probe, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "f").write_bytes(data)
        with pytest.raises(BadFile, match=r"is not TOML: ."):
            probe.system("/f").toml()
        with pytest.raises(BadFile, match=r"is not JSON: ."):
            probe.system("/f").json()

    def test_a_program_is_a_file_that_can_be_run(self, probe: Probe, tmp_path: Path) -> None:
        (tmp_path / "usr/bin/dir").mkdir(parents=True)
        (tmp_path / "usr/bin/text").write_text("")
        (tmp_path / "usr/bin/good").write_text("")
        (tmp_path / "usr/bin/good").chmod(0o755)

        assert [probe.program(name) for name in ("dir", "text", "good", "none")] == ["", "", "/usr/bin/good", ""]
        assert probe.program("/usr/bin/good") == "/usr/bin/good"


def test_tables_and_texts_of_anything() -> None:
    assert table({"a": {"b": {"c": 1}}}, "a", "b") == {"c": 1}
    assert [table(value, "a") for value in ({}, {"a": 1}, [], None, {"a": None})] == [{}] * 5
    assert texts(["a", 1, None, "b"]) == ["a", "b"]
    assert [texts(value) for value in ("ab", None, {})] == [[], [], []]
