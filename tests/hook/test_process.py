"""What the process inherits: hostile environment, hostile working directory, missing descriptors."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hook.process import DEFAULT_PATH, absolute

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SANITISE = [sys.executable, "-I", "-S", str(PROGRAMS / "sanitise_process.py"), str(ROOT)]
HOSTILE = {
    "LD_PRELOAD": "",
    "LD_LIBRARY_PATH": "/x",
    "PYTHONPATH": "/x",
    "PYTHONSTARTUP": "/x",
    "GCONV_PATH": "/x",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
    "MALLOC_PERTURB_": "1",
    "TMPDIR": "/x",
    "BASH_ENV": "/x",
    "NVIDIA_VISIBLE_DEVICES": "all",
}
OURS = {
    "NVC_SIM": "/machine",
    "NVIDIA_CTK_CONFIG_FILE_PATH": "/c.toml",
    "XDG_CONFIG_HOME": "/etc",
    "CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps",
    "PATH": "/opt/bin:/bin",
}


def probe(
    tmp_path: Path,
    *,
    trusted: bool,
    env: dict[str, str],
    before: Callable[[], None] | None = None,
    inherited: tuple[int, ...] = (),
) -> Any:
    out = tmp_path / "report.json"
    subprocess.run(
        [*SANITISE, str(int(trusted)), str(out), *map(str, inherited)],
        env=env,
        cwd=tmp_path,
        check=True,
        timeout=20,
        preexec_fn=before,
        pass_fds=inherited,
    )
    return json.loads(out.read_text())


def test_only_our_variables_stay(tmp_path: Path) -> None:
    found = probe(tmp_path, trusted=True, env={**HOSTILE, **OURS}, before=lambda: os.umask(0o077))

    assert OURS == found["env"]
    assert (found["cwd"], found["umask"], found["directory"]) == ("/", 0o022, str(tmp_path))


def test_nothing_stays_that_may_be_the_containers(tmp_path: Path) -> None:
    found = probe(tmp_path, trusted=False, env={**HOSTILE, **OURS})

    assert found["env"] == {"PATH": DEFAULT_PATH}
    assert (found["cwd"], found["directory"]) == ("/", "")


@pytest.mark.parametrize("path", [None, "", "bin:/bin", "/bin::/usr/bin", ".", "/bin:"])
def test_path_with_a_relative_entry_is_replaced(tmp_path: Path, path: str | None) -> None:
    found = probe(tmp_path, trusted=True, env={} if path is None else {"PATH": path})

    assert found["env"] == {"PATH": DEFAULT_PATH}


def test_missing_descriptors_are_filled(tmp_path: Path) -> None:
    def close_all() -> None:
        for number in (0, 1, 2):
            os.close(number)

    assert probe(tmp_path, trusted=True, env={}, before=close_all)["fds"] == ["/dev/null"] * 3


def test_other_descriptors_are_closed(tmp_path: Path) -> None:
    """runc leaves the socket to its parent and exec.fifo open in createContainer hooks."""
    reader, writer = os.pipe()
    try:
        assert probe(tmp_path, trusted=False, env={}, inherited=(reader, writer))["closed"] == [reader, writer]
    finally:
        os.close(reader)
        os.close(writer)


def test_a_nameless_variable_does_no_harm(tmp_path: Path) -> None:
    out = tmp_path / "report.json"

    # os.execve refuses such an environment; the system call does not, and runtimes pass on what config.json says.
    arguments = [os.fsencode(word) for word in (*SANITISE, "0", str(out))]
    argv = (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)
    env = (ctypes.c_char_p * 3)(b"=x", b"LD_BIND_NOT=1", None)
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).execve(arguments[0], argv, env)
        os._exit(99)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "LD_BIND_NOT" not in json.loads(out.read_text())["env"]


@pytest.mark.parametrize(("stage", "believed"), [("prestart", True), ("createContainer", False)])
def test_variables_are_believed_only_where_they_cannot_be_the_containers(
    hook_process: Callable[..., Any], tmp_path: Path, stage: str, believed: bool
) -> None:
    """runc starts a createContainer hook whose entry has no ``env`` with the container's environment."""
    log = tmp_path / "hook.log"

    done = hook_process(stage, env={"NVC_DEBUG_FILE": str(log)})

    assert (done.returncode, log.exists()) == (1, believed)


@pytest.mark.parametrize(
    ("path", "directory", "expected"),
    [("", "/d", ""), ("/a", "/d", "/a"), ("/a", "", "/a"), ("a", "/d", "/d/a"), ("a", "", "")],
)
def test_absolute(path: str, directory: str, expected: str) -> None:
    assert expected == absolute(path, directory)


def test_nothing_is_imported_from_the_working_directory(
    bundle: Any, hook_process: Callable[..., Any], tmp_path: Path
) -> None:
    """CVE-2025-23266: the hook starts in the container's rootfs, with modules lying there."""
    trap = tmp_path / "trap"
    trap.mkdir()
    mark = tmp_path / "trapped"
    for name in ("select", "errno", "hook", "rpc", "nvc", "sitecustomize", "usercustomize", "tomllib", "pwd"):
        (trap / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\n")
    bundle.write()

    done = hook_process(
        "createContainer", data=bundle.state(pid=1), cwd=trap, env={"PYTHONPATH": str(trap), "PYTHONHOME": str(trap)}
    )

    assert (done.returncode, done.stderr, mark.exists()) == (0, "", False)


def test_stdin_that_never_closes_ends(launcher: Path) -> None:
    reader, writer = os.pipe()
    start = time.monotonic()
    try:
        os.write(writer, b'{"bundle":')
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(launcher), "--timeout=0.5", "prestart"],
            stdin=reader,
            capture_output=True,
            timeout=90,
            check=False,
        )
    finally:
        os.close(reader)
        os.close(writer)

    assert done.returncode == 1
    assert done.stderr.startswith(b"nvc-hook: input error: no complete container state on stdin within 0.5 s (hint: ")
    assert time.monotonic() - start < 80


def test_closed_stdin_is_an_empty_state(launcher: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(launcher), "prestart"],
        stderr=subprocess.PIPE,
        preexec_fn=lambda: os.close(0),
        timeout=20,
        check=False,
    )

    assert (done.returncode, b"is empty" in done.stderr) == (1, True)


def test_the_file_that_modules_are_read_from_stays_open() -> None:
    """Seen: a hook started from ``nvc.base.boot``'s bundle could import nothing after it had closed what it
    inherited."""
    command = [sys.executable, "-I", "-S", str(PROGRAMS / "keep_bundle_open.py"), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)

    assert done.stdout == "[False, True, False]\n"
