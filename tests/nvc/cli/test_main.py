"""Global options, exit codes, and how every failure is reported (libnvidia-container.md 1.1, 1.2, 1.9, 1.10)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc import __version__
from nvc.base.errors import DetectionError, NvcError
from nvc.cli.main import main, program_name
from nvc.cli.options import SUMMARIES
from nvc.cli.text import emit
from nvc.inject.api import Config
from nvc.request.options import LibraryOptions
from tests.support.inventories import two_gpus
from tests.support.library import FakeLibrary

KNOWN = ", ".join(SUMMARIES)

Command = Callable[..., tuple[int, str, str]]
CLI = "nvidia-container-cli"
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def restore_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVC_DEBUG_FILE", "")  # --debug sets it; this puts it back


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        pytest.param((), {}, id="defaults"),
        pytest.param(("--root=/run/nvidia/driver",), {"root": "/run/nvidia/driver"}, id="root"),
        pytest.param(("-l", "/cache"), {"ldcache": "/cache"}, id="ldcache"),
        pytest.param(("-u1:2",), {"uid": 1, "gid": 2}, id="user"),
        pytest.param(("--user",), {"uid": os.geteuid(), "gid": os.getegid()}, id="user-without-a-value"),
        pytest.param(("-n",), {"no_pivot": True}, id="no-pivot"),
        pytest.param(("--timeout=2.5",), {"timeout": 2.5}, id="timeout"),
        pytest.param(("--no-cache",), {"cache": False}, id="no-cache"),
        pytest.param(("--root=/a", "--root=/b"), {"root": "/b"}, id="the-last-counts"),
    ],
)
def test_global_options(
    words: tuple[str, ...], changes: dict[str, object], command: Command, library: FakeLibrary
) -> None:
    assert command(*words, "info")[0] == 0
    assert library.configs == [Config(**changes)]


@pytest.mark.parametrize("wait", [True, False])
def test_whether_helpers_are_waited_for(wait: bool, library: FakeLibrary) -> None:
    assert main(["info"], CLI, library, wait=wait) == 0
    assert [config.wait for config in library.configs] == [wait]


def test_configure_may_be_a_hook_and_waits_for_them(library: FakeLibrary) -> None:
    main(["configure", "--pid=1", "/root"], CLI, library, wait=False)
    assert [config.wait for config in library.configs] == [True]


def test_library_options(command: Command, library: FakeLibrary) -> None:
    command("--no-create-imex-channels", "-k", "info")
    assert library.calls[0] == ("init", LibraryOptions(load_kmods=True, no_create_imex_channels=True))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("--user=x:y:z",), "input error: parse user/group failed: invalid argument", id="user"),
        pytest.param(
            ("--user", "--user="), "input error: parse user/group failed: no such file or directory", id="user-empty"
        ),
        pytest.param(("--root=",), "input error: invalid root: ''", id="root-empty"),
        pytest.param(("--debug=",), "input error: invalid debug: ''", id="debug-empty"),
        pytest.param(("--timeout=0",), "input error: invalid timeout: 0", id="timeout-zero"),
        pytest.param(("--timeout=nan",), "input error: invalid timeout: nan", id="timeout-nan"),
        pytest.param(("--timeout=inf",), "input error: invalid timeout: inf", id="timeout-inf"),
        pytest.param(("--timeout=soon",), "input error: invalid timeout: soon", id="timeout-word"),
        pytest.param(("--sim=/m", "--root=/r"), "input error: --sim and --root exclude each other", id="sim-root"),
        pytest.param(("--sim=/m", "-l/c"), "input error: --sim and --ldcache exclude each other", id="sim-ldcache"),
    ],
)
def test_values_that_cannot_be(words: tuple[str, ...], message: str, command: Command, library: FakeLibrary) -> None:
    code, out, err = command(*words, "info")
    assert (code, out) == (1, "")
    assert err.startswith(f"{CLI}: {message}\n{CLI}: hint: ")
    assert library.calls == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param((), f"a command is missing: one of {KNOWN}", id="no-command"),
        pytest.param(("--",), f"a command is missing: one of {KNOWN}", id="only-dashes"),
        pytest.param(("frob",), f"unknown command 'frob'; there are {KNOWN}", id="unknown-command"),
        pytest.param(("inf",), f"unknown command 'inf'; there are {KNOWN}", id="no-short-commands"),
        pytest.param(("--foo", "info"), "unrecognized option '--foo'", id="unknown-option"),
        pytest.param(("a\x1b[2J\nb",), "unknown command 'a\\x1b[2J\\x0ab'", id="control-characters-are-shown"),
    ],
)
def test_usage_errors(words: tuple[str, ...], message: str, command: Command, library: FakeLibrary) -> None:
    code, out, err = command(*words)
    first, *rest = (line for line in err.splitlines() if not line.startswith(f"{CLI}: hint: did you mean"))
    assert (code, out) == (1, "")
    assert first.startswith(f"{CLI}: {message}")
    assert rest == [
        f"Usage: {CLI} [OPTION...] COMMAND [ARG...]",
        f"Try `{CLI} --help' or `{CLI} --usage' for more information.",
    ]
    assert library.calls == []


def test_version(command: Command) -> None:
    code, out, err = command("-V")
    assert (code, err) == (0, "")
    labels = [line.partition(": ")[0] for line in out.splitlines()]
    assert labels == [
        "cli-version",
        "lib-version",
        "build date",
        "build revision",
        "build compiler",
        "build platform",
        "build flags",
    ]
    # Clients compare the release of libnvidia-container (1.17: --cuda-compat-mode, --no-cntlibs).
    assert out.startswith("cli-version: 1.17.9\nlib-version: 1.17.9\n")
    assert f"\nbuild revision: nvc-py {__version__}\n" in out
    assert command("configure", "--version", "--nonsense").out == out
    assert command("-V", program="nvc-py").out.startswith(f"cli-version: {__version__}\nlib-version: {__version__}\n")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/bin/nvidia-container-cli", CLI),
        ("nvidia-container-cli", CLI),
        ("/usr/bin/nvc-py", "nvc-py"),
        ("/srv/nvc/__main__.py", "nvc-py"),
        ("", "nvc-py"),
    ],
)
def test_program_name(path: str, expected: str) -> None:
    assert program_name(path) == expected


def test_messages_start_with_the_program(command: Command) -> None:
    broken = FakeLibrary(two_gpus(), {"inventory": DetectionError("open failed: /x", hint="check /x")})
    assert command("info", program="nvc-py", on=broken).err == (
        "nvc-py: detection error: open failed: /x\nnvc-py: hint: check /x\n"
    )


@pytest.mark.parametrize(
    "error",
    [ValueError("odd"), OSError(5, "Input/output error"), MemoryError(), RecursionError("deep"), KeyError("gone")],
    ids=lambda error: type(error).__name__,
)
def test_a_mistake_of_ours_is_one_line_and_a_request(error: Exception, command: Command, tmp_path: Path) -> None:
    broken = FakeLibrary(two_gpus(), {"inventory": error})
    code, out, err = command("info", on=broken)
    assert (code, out) == (1, "")
    assert err == (
        f"{CLI}: internal error: {type(error).__name__}: {error}\n"
        f"{CLI}: hint: this is a mistake in {CLI}, please report it; run it again with --debug=FILE for details\n"
    )
    err = command(f"-d{tmp_path}/log", "info", on=broken).err
    assert err.endswith("please report it; the debug log has the details\n")
    assert "Traceback (most recent call last)" in (tmp_path / "log").read_text()


def test_a_missing_dependency_is_named(command: Command) -> None:
    broken = FakeLibrary(two_gpus(), {"inventory": ModuleNotFoundError("No module named 'elftools'", name="elftools")})
    code, _, err = command("info", on=broken)
    assert code == 1
    assert err.startswith(f"{CLI}: the Python module elftools is missing\n{CLI}: hint: install what {CLI} depends on")


def test_an_interrupt_is_not_a_traceback(command: Command) -> None:
    broken = FakeLibrary(two_gpus(), {"inventory": KeyboardInterrupt()})
    assert command("info", on=broken) == (130, "", f"{CLI}: interrupted\n")


def test_debug_exports_the_variable_and_logs_errors(command: Command, tmp_path: Path) -> None:
    broken = FakeLibrary(two_gpus(), {"inventory": NvcError("went wrong")})
    command(f"--debug={tmp_path}/log", "info", on=broken)
    text = (tmp_path / "log").read_text()
    assert f"{CLI} {__version__}: --debug={tmp_path}/log info\n" in text
    assert f"{CLI}: went wrong" in text
    assert os.environ["NVC_DEBUG_FILE"] == f"{tmp_path}/log"
    assert broken.configs[0].debug == f"{tmp_path}/log"


def test_the_variable_opens_the_log(
    command: Command, library: FakeLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVC_DEBUG_FILE", f"{tmp_path}/log")
    command("info")
    assert "-- WARNING" in (tmp_path / "log").read_text()
    assert library.configs[0].debug == f"{tmp_path}/log"


def test_a_log_that_cannot_be_opened_is_a_warning(command: Command) -> None:
    code, out, err = command("--debug=/nonexistent/log", "info")
    assert code == 0
    assert out.startswith("NVRM version:")
    assert err.startswith(
        "nvidia-container-cli: warning: cannot open the debug log /nonexistent/log: no such file or directory"
    )


def test_a_usage_error_opens_no_log(command: Command, tmp_path: Path) -> None:
    assert command(f"--debug={tmp_path}/log", "info", "--nonsense").code == 1
    assert not (tmp_path / "log").exists()


def _in_child(prepare: Callable[[], None]) -> int:
    """The exit code of `list` in a child whose descriptors ``prepare`` has changed."""
    child = os.fork()
    if child == 0:
        prepare()
        os._exit(main(["list"], CLI, FakeLibrary(two_gpus())))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _stdout_to(path: str) -> Callable[[], None]:
    return lambda: os.dup2(os.open(path, os.O_WRONLY), 1) and None


def test_a_full_disk_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert _in_child(_stdout_to("/dev/full")) == 1
    assert capfd.readouterr().err == f"{CLI}: write error: no space left on device\n"


def test_a_reader_that_left_is_not_reported(capfd: pytest.CaptureFixture[str]) -> None:
    def close_reader() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)

    assert _in_child(close_reader) == 1
    assert capfd.readouterr().err == ""


def test_closed_standard_descriptors_do_not_become_files() -> None:
    def close_all() -> None:
        for descriptor in (0, 1, 2):
            os.close(descriptor)

    assert _in_child(close_all) == 0


def test_an_error_that_cannot_be_written_keeps_its_code() -> None:
    child = os.fork()
    if child == 0:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        os._exit(main(["frob"], CLI))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("/x\udcff\n", b"/x\xff\n", id="bytes-of-a-path-unchanged"),
        pytest.param("/x\ud800", b"/x\\ud800", id="what-cannot-be-bytes-is-shown"),
    ],
)
def test_emit(text: str, expected: bytes) -> None:
    reader, writer = os.pipe()
    emit(writer, text)
    os.close(writer)
    assert os.read(reader, 100) == expected
    os.close(reader)


def test_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "nvc", "configure", "--pid"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("nvc-py configure: option '--pid' requires an argument\nUsage: nvc-py configure")


@pytest.mark.root
def test_configure_without_rights(capfd: pytest.CaptureFixture[str]) -> None:
    child = os.fork()
    if child == 0:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        os._exit(main(["configure", "--pid=1", "/nonexistent"], CLI))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert capfd.readouterr().err.startswith(
        f"{CLI}: permission error: capability change failed: operation not permitted\n"
    )
