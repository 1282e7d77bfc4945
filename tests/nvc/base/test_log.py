"""The debug log: its format (libnvidia-container.md 1.4), and that it never stands in the way."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hook.runtime.journal import Journal
from nvc.base.log import Log, debug_file, open_log

RECORD = re.compile(r"([IWE])(\d{4} \d\d:\d\d:\d\d)\.(\d{6}) (\d+) ([\w.]+):(\d+)\] (.*)")
BANNER = ["", "-- WARNING, the following logs are for debugging purposes only --", ""]


def test_a_record_has_the_reference_format(tmp_path: Path) -> None:
    log = open_log(str(tmp_path / "log"))
    before = time.time()
    log.info("hello world")
    log.warn("careful")
    log.error("broken")
    lines = (tmp_path / "log").read_text().split("\n")
    assert lines[:3] == BANNER
    matches = [RECORD.fullmatch(line) for line in lines[3:6]]
    assert [match[1] for match in matches if match] == ["I", "W", "E"]
    first = matches[0]
    assert first is not None
    assert first[2] in {time.strftime("%m%d %H:%M:%S", time.gmtime(before + late)) for late in (0, 1)}
    assert first[4] == str(os.getpid())
    assert first[5] == "test_log.py"
    assert first[7] == "hello world"
    assert int(matches[1][6]) == int(first[6]) + 1  # type: ignore[index]


def test_a_message_cannot_pass_for_a_record(tmp_path: Path) -> None:
    log = open_log(str(tmp_path / "log"))
    log.info("one\nI0101 00:00:00.000000 1 a.py:1] two\rthree")
    log.info("")
    lines = (tmp_path / "log").read_text().splitlines()[3:]
    assert len(lines) == 4
    assert all(RECORD.fullmatch(line) for line in lines)


def test_bytes_of_foreign_paths_are_shown(tmp_path: Path) -> None:
    log = open_log(str(tmp_path / "log"))
    log.info("/tmp/\udcff \ud800")
    assert "/tmp/\\udcff \\ud800" in (tmp_path / "log").read_text()


def test_appends_and_does_not_survive_exec(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    log = open_log(str(path))
    assert fcntl.fcntl(log.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert path.read_text().startswith("before\n\n-- WARNING")


def test_a_forked_helper_writes_into_the_same_file(tmp_path: Path) -> None:
    log = open_log(str(tmp_path / "log"))
    child = os.fork()
    if child == 0:
        log.info("from the helper")
        os._exit(0)
    os.waitpid(child, 0)
    log.info("from the parent")
    records = [RECORD.fullmatch(line) for line in (tmp_path / "log").read_text().splitlines()[3:]]
    assert [(int(record[4]), record[7]) for record in records if record] == [
        (child, "from the helper"),
        (os.getpid(), "from the parent"),
    ]


def test_no_log_keeps_nothing() -> None:
    log = Log.none()
    log.info("lost")
    log.warn("lost")
    log.error("lost")
    log.close()
    assert not log.enabled
    assert log.fileno() == -1
    assert not open_log("").enabled


def test_close_is_harmless_twice(tmp_path: Path) -> None:
    log = open_log(str(tmp_path / "log"))
    log.close()
    log.close()
    log.info("lost")
    assert "lost" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        pytest.param("{tmp}", "is a directory", id="directory"),
        pytest.param("{tmp}/missing/log", "no such file or directory", id="missing-directory"),
        pytest.param("{tmp}/fifo", "no such device or address", id="fifo-without-a-reader"),
        pytest.param("{tmp}/a\0b", "embedded null (byte|character in path)", id="nul"),
    ],
)
def test_a_log_that_cannot_be_opened_is_a_warning(
    path: str, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    log = open_log(path.format(tmp=tmp_path), "nvc-hook")
    assert not log.enabled
    warning = capfd.readouterr().err
    assert warning.startswith("nvc-hook: warning: cannot open the debug log ")
    assert re.search(f": {why}; continuing without\n$", warning)


FULL = "nvc-hook: warning: cannot write the debug log {}: no space left on device; records are lost\n"


def test_a_full_disk_loses_records_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    log = open_log("/dev/full", "nvc-hook")
    log.info("lost")
    log.info("lost")
    assert log.enabled
    assert capfd.readouterr().err == FULL.format("/dev/full"), "it is said once, not at each record"


def test_one_of_the_processes_that_share_a_log_says_that_it_is_full(capfd: pytest.CaptureFixture[str]) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    log = Log(descriptor, "nvc-hook")
    for _ in range(2):
        child = os.fork()
        if child == 0:
            log.info("lost")
            os._exit(0)
        os.waitpid(child, 0)
    log.info("lost")
    taken = Log()
    taken.take(os.dup(descriptor))
    taken.info("lost")
    assert capfd.readouterr().err == FULL.format("/dev/full")


@pytest.mark.root
def test_a_record_that_is_cut_off_is_said(tmp_path: Path) -> None:
    program = (
        f"from nvc.base.log import open_log; log = open_log({str(tmp_path / 'log')!r}, 'nvc-hook'); "
        "log.info('x' * 20000); log.info('lost')"
    )
    script = 'mount -t tmpfs -o size=8k none "$0"; exec "$1" -c "$2"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-euc", script, str(tmp_path), sys.executable, program],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, FULL.format(tmp_path / "log"))


def test_a_reader_that_does_not_read_does_not_stop_us(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    log = open_log(str(tmp_path / "fifo"))
    for _ in range(40):
        log.info("x" * 4000)
    assert os.read(reader, 5) == b"\n-- W"
    os.close(reader)


def test_a_warning_that_cannot_be_written_is_dropped(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os.close(2)
        os._exit(0 if not open_log(str(tmp_path)).enabled else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_variable_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert debug_file() == ""
    monkeypatch.setenv("NVC_DEBUG_FILE", "/tmp/x")
    assert debug_file() == "/tmp/x"


def test_the_variable_is_ignored_when_the_rights_are_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVC_DEBUG_FILE", "/etc/passwd")
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert debug_file() == ""


@pytest.fixture
def sticky(tmp_path: Path) -> Path:
    """A directory that every user may write, as /tmp."""
    tmp_path.chmod(0o755)
    place = tmp_path / "sticky"
    place.mkdir()
    place.chmod(0o1777)
    return place


@pytest.mark.root
@pytest.mark.parametrize("way", ["link", "directory", "link in a directory of the user's", "hard link", "file", "fifo"])
def test_another_user_does_not_say_where_root_writes(
    sticky: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], way: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("of the host")
    before, path = precious.stat(), sticky / "log"
    if way == "link":
        path.symlink_to(precious)
    elif way == "directory":
        (sticky / "place").symlink_to(tmp_path)
        path = sticky / "place/precious"
    elif way == "link in a directory of the user's":
        (sticky / "home").mkdir()
        os.chown(sticky / "home", 1234, 1234)
        path = sticky / "home/log"
        path.symlink_to(precious)
    elif way == "hard link":
        os.link(precious, path)
    elif way == "file":
        path.touch()
        os.chown(path, 1234, 1234)
    else:
        os.mkfifo(path)
        os.chown(path, 1234, 1234)
    log = open_log(str(path))
    log.info("text of a container")
    journal = Journal()
    journal.add(str(path), as_json=False, level="debug")
    journal.error("text of a container")
    assert precious.read_text() == "of the host"
    assert precious.stat().st_mtime_ns == before.st_mtime_ns
    assert not log.enabled
    assert "cannot open the debug log" in capfd.readouterr().err
    if way == "file":
        assert path.read_bytes() == b""


@pytest.mark.root
def test_links_of_roots_and_files_of_roots_are_logs(sticky: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/../real")
    for path in (tmp_path / "link/log", sticky / "new"):
        for _ in range(2):
            log = open_log(str(path))
            log.info("hello")
        assert path.read_text().count("hello") == 2
    journal = Journal()
    journal.add(str(sticky / "made/for it/log"), as_json=False, level="debug")
    journal.error("hello")
    assert "hello" in (sticky / "made/for it/log").read_text()


def test_the_standard_error_is_a_log(capfd: pytest.CaptureFixture[str]) -> None:
    open_log("/dev/stderr").info("hello")
    assert "hello" in capfd.readouterr().err
