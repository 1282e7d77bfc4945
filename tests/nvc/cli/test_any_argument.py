"""No argument, and nothing that a command is started with, gives a traceback: wrong values, missing files, a closed or
full standard output, no rights, a working directory that is gone."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from nvc import __main__
from nvc.cli import options
from tests.support import commandtree, readable

#: Values that no option takes, or that lead nowhere.
WRONG = ["", "-1", "0", "9" * 30, "/nonexistent/x", "\x1b[2J\n", "\udcff/ä", "x" * 5000, "[", "a=b:c,d;e", "."]
#: They serve until a signal: only their options are tried, beside one that is always wrong.
SERVICES = {"agent": ["--config=/nonexistent"], "kube driver": [], "kube device-plugin": ["--config=/nonexistent"]}
CLICKS = commandtree.clicks()
LEAVES = [path for path in commandtree.leaves() if path not in ("cdi-hook", "kube driver")]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def nothing() -> None:
    pass


def run(words: list[str], prepare: Callable[[], None] = nothing, output: Callable[[], None] = nothing) -> Ended:
    """``nvc-py`` with these words in a process of its own, as its launcher starts it.

    prepare: runs there before. output: changes standard output before Python looks at it.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            code = 120
            try:
                signal.alarm(30)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                output()
                try:
                    sys.stdout = os.fdopen(1, "w", closefd=False)
                except OSError:
                    sys.stdout = None  # type: ignore[assignment]
                sys.stderr = os.fdopen(2, "w", closefd=False, errors="backslashreplace")
                sys.argv = ["nvc-py", *words]
                prepare()
                code = __main__.outcome()
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
        return Ended(status, *texts)


def check(ended: Ended, words: list[str], codes: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    assert "Traceback" not in ended.err and "internal error" not in ended.err, (words, ended.err)
    assert ended.code in codes, (words, ended)
    if ended.code == 1 and not ended.out:
        told = [line for line in ended.err.splitlines() if line.startswith("nvc-py")]
        assert told or not ended.err, (words, ended.err)


def harmless(path: str) -> list[str]:
    """The command, so that it changes nothing where all else is right."""
    words = [*path.split(), *SERVICES.get(path, [])]
    names = {name for param in CLICKS[path].params for name in param.opts} if path in CLICKS else set()
    return [*words, *(["--dry-run"] if "--dry-run" in names or path == "configure" else [])]


def values(path: str) -> Iterator[list[str]]:
    """Command lines of a command: every option with every wrong value, then wrong arguments."""
    if path in CLICKS:
        named = [
            max(param.opts, key=len)
            for param in CLICKS[path].params
            if isinstance(param, click.Option)
            and not param.is_flag
            and not (path in SERVICES and param.name == "config")
        ]
        arguments = [param for param in CLICKS[path].params if isinstance(param, click.Argument)]
    else:
        named = [f"--{row.long}" for row in options.rows(path) if row.metavar]
        arguments = []
    for name in named:
        yield from ([f"{name}={value}"] for value in WRONG)
    count = max(1, len(arguments))
    yield from ([value] * count for value in WRONG)
    yield [*(["x"] * (count + 4))]


@pytest.mark.parametrize("path", LEAVES)
def test_wrong_values(path: str, tmp_path: Path) -> None:
    """All of them in one process: what is looked for is an exception that reaches the top."""
    lines = list(values(path))
    codes = []

    def all_of_them() -> None:
        os.chdir(tmp_path)
        signal.alarm(60)
        for line in lines:
            sys.argv = ["nvc-py", *harmless(path), *line]
            os.write(2, f"\n== {line!r}\n".encode("utf-8", "backslashreplace"))
            codes.append(__main__.outcome())
            if codes[-1] not in (0, 1, 2, 3):
                os._exit(121)
        sys.argv = ["nvc-py", "version"]

    ended = run(["version"], all_of_them)
    bad = [part for part in ended.err.split("\n== ") if "Traceback" in part or "internal error" in part]
    assert not bad, bad[:3]
    assert ended.code == 0, (ended.code, ended.err[-500:])


#: Commands that print without a GPU, an agent or an engine.
PRINTING = [
    ["help"],
    ["--help"],
    ["version"],
    ["completion", "bash"],
    ["config", "default"],
    ["config", "show", "--config=/dev/null/../config"],
    ["sim", "list"],
    ["sim", "describe", "h200"],
    ["seccomp"],
    ["cdi", "list", "--json"],
    ["share", "--store=/nonexistent", "ls"],
    ["share", "check", "--help"],
    ["doctor", "--only=host"],
    ["runtime", "configure", "--runtime=docker", "--dry-run"],
    ["top", "--once", "--store=/nonexistent"],
]


def _closed() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)


def _full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def _no_output() -> None:
    os.close(1)


@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
@pytest.mark.parametrize("output", [_closed, _full, _no_output], ids=["closed", "full", "none"])
def test_standard_output_that_takes_nothing(words: list[str], output: Callable[[], None]) -> None:
    ended = run(words, output=output)
    check(ended, words)
    if output is _full and ended.code == 1 and "error: " not in ended.err.replace("write error", ""):
        assert ended.err == "nvc-py: write error: no space left on device\n"


@pytest.mark.parametrize("path", LEAVES)
def test_a_working_directory_that_is_gone(path: str, tmp_path: Path) -> None:
    """N11: `runtime configure` was an internal error."""
    gone = tmp_path / "gone"

    def there() -> None:
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()

    for line in ([], ["relative"], ["relative", "relative/x"], ["--sim=relative"], ["--config=relative"]):
        check(run([*harmless(path), *line], there), [path, *line])
        gone.exists() and gone.rmdir()


def test_runtime_configure_in_a_directory_that_is_gone(tmp_path: Path) -> None:
    def there() -> None:
        (tmp_path / "gone").mkdir()
        os.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()

    words = ["runtime", "configure", "--runtime=docker", "--dry-run"]
    assert run([*words, "--runtime-path=/bin/true"], there).code == 0
    ended = run([*words, "--config=x.json"], there)
    assert (ended.code, ended.err.splitlines()[0]) == (1, "nvc-py: x.json: the working directory does not exist")


@pytest.mark.root
@pytest.mark.parametrize("path", LEAVES)
def test_without_rights(path: str, tmp_path: Path) -> None:
    def nobody() -> None:
        readable.in_place()
        os.chdir("/")
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)

    (tmp_path / "secret").mkdir(mode=0o700)
    for line in ([], ["x"], ["x", "x"], [f"--sim={tmp_path}/secret"], [f"--config={tmp_path}/secret/c"]):
        check(run([*harmless(path), *line], nobody), [path, *line])
