"""``nvc-cdi-hook`` as a runtime starts it: words, state, stages, and what it tells when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hook.cdi import _ARGUMENTS, _Config, _share_fields, serve
from hook.cdi_words import HOOKS, THEN, read
from hook.state import State
from nvc.cdi import generate
from tests.support import injection

ROOT = Path(__file__).parents[3]
Start = Callable[..., subprocess.CompletedProcess[bytes]]
LINK = ("create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so")
#: As nvidia-ctk 1.20.1 writes it.
MEMORY = ("apply-cuda-memory-limits", "--driver-root", "", "--gpu-id", "GPU-0")


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    return injection.make_rootfs(tmp_path / "rootfs")


@pytest.fixture
def state(tmp_path: Path, rootfs: Path) -> Callable[..., bytes]:
    """The state of a container whose bundle is in tmp_path."""
    config = {"ociVersion": "1.0.2", "process": {"env": []}, "root": {"path": "rootfs"}}
    (tmp_path / "config.json").write_text(json.dumps(config))

    def make(**changes: object) -> bytes:
        data = {"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 1, "bundle": str(tmp_path), **changes}
        return json.dumps(data).encode()

    return make


@pytest.fixture
def start(tmp_path: Path) -> Start:
    launcher = tmp_path / "launch"
    launcher.write_text(f"import sys\nsys.path[:0] = [{str(ROOT)!r}]\nfrom hook.cdi import run\nrun()\n")

    def run(data: bytes, *words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> object:
        command = ["unshare", "-m", sys.executable, "-I", "-S", str(launcher), *words]
        plain = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return subprocess.run(command, input=data, capture_output=True, env=env or plain, cwd=cwd, timeout=60)

    return run  # type: ignore[return-value]


@pytest.mark.root
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="runc"),
        pytest.param({"pid": 0, "status": "created"}, id="crun"),
        pytest.param({"pid": None}, id="no-pid"),
        pytest.param({"root": "ROOTFS", "bundle": "/nonexistent"}, id="crun-tells-the-root"),
        pytest.param({"unknown": {"x": [1]}, "annotations": {"a": "b"}}, id="more-keys"),
    ],
)
def test_states_of_runtimes(
    start: Start, state: Callable[..., bytes], rootfs: Path, changes: dict[str, object]
) -> None:
    data = state(**changes).replace(b"ROOTFS", str(rootfs).encode())
    done = start(data, *LINK)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert os.readlink(rootfs / "usr/lib64/libcuda.so") == "libcuda.so.1"


@pytest.mark.root
def test_one_start_does_several(start: Start, state: Callable[..., bytes], rootfs: Path) -> None:
    injection.build_library(rootfs / "opt/libnvctest.so.1", "libnvctest.so")
    words = [*LINK, THEN, "noop", THEN, "enable-cuda-compat", THEN, "update-ldcache", "--folder=/opt"]
    done = start(state(), *words, THEN, "update-application-profile")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"/opt/libnvctest.so.1" in (rootfs / "etc/ld.so.cache").read_bytes()


@pytest.mark.root
def test_the_container_s_environment_and_directory_decide_nothing(
    start: Start, state: Callable[..., bytes], rootfs: Path, tmp_path: Path
) -> None:
    for name in ("sitecustomize.py", "hook.py", "nvc.py", "json.py", "os.py", "encodings.py"):
        (rootfs / name).write_text(f"open({str(tmp_path / 'owned')!r}, 'w')")
    hostile = {"PYTHONPATH": str(rootfs), "PYTHONHOME": str(rootfs), "PATH": str(rootfs), "NVC_SIM": str(rootfs)}
    command = ["/usr/bin/unshare", "-m", sys.executable, "-I", "-S", str(tmp_path / "launch"), *LINK]
    done = subprocess.run(command, input=state(), capture_output=True, env=hostile, cwd=rootfs, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        pytest.param([], 2, "Usage: nvc-cdi-hook NAME", id="nothing"),
        pytest.param(["create-symlinks", "--foo"], 2, "create-symlinks: unexpected '--foo'", id="unknown-option"),
        pytest.param(["create-symlinks", "--lnik=a::b"], 2, "(hint: did you mean --link?)", id="mistyped-option"),
        pytest.param(["create-symlinks", "--link"], 2, "create-symlinks: --link needs a value", id="no-value"),
        pytest.param(["create-symlinks", "--link", "a:b"], 2, "--link 'a:b' is not TEXT::PATH", id="no-separator"),
        pytest.param(["create-symlinks", "--link", "a::b::c"], 2, "is not TEXT::PATH", id="two-separators"),
        pytest.param(["create-symlinks", "--link=::b"], 2, "is not TEXT::PATH", id="empty-half"),
        pytest.param(["create-symlinks", "word"], 2, "unexpected 'word'", id="word"),
        pytest.param(["chmod", "--path", "/x"], 2, "chmod: --mode '' is not octal", id="no-mode"),
        pytest.param(["chmod", "--mode=4755"], 2, "chmod: --mode '4755' is not octal", id="set-uid"),
        pytest.param(["chmod", "--mode=abc"], 2, "chmod: --mode 'abc' is not octal", id="letters"),
        pytest.param(["chmod", "--mode=1", "--mode=2"], 2, "chmod: --mode twice", id="twice"),
        pytest.param([*LINK, "--timeout=0"], 2, "--timeout '0' is not a number", id="timeout"),
        pytest.param(["update-ldcache", "--folder", "lib"], 1, "update-ldcache: 'lib' is not an absolute", id="folder"),
        pytest.param(["update-ldcache", "--folder", "/a\n/b"], 1, "is not an absolute path", id="newline-in-a-folder"),
        pytest.param([*LINK, THEN, "chmod"], 2, "chmod: --mode", id="mistake-in-the-second"),
        pytest.param(["apply-cuda-memory-limits"], 2, "--gpu-id needs the UUID of a GPU", id="no-gpu"),
        pytest.param(["apply-cuda-memory-limits", "--gpu-id="], 2, "--gpu-id needs the UUID", id="empty-gpu"),
        pytest.param([*MEMORY[:1], *MEMORY[3:], "--driver-root=x"], 1, "is not an absolute path", id="driver-root"),
        pytest.param([*MEMORY, "--container-spec=/x"], 2, "read from standard input only", id="state-in-a-file"),
        pytest.param([*MEMORY, THEN, *LINK], 2, "is of another stage than the other hooks", id="two-stages"),
    ],
)
def test_wrong_words_start_nothing(
    words: list[str], code: int, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    stdin = os.open("/dev/null", os.O_RDONLY)
    try:
        assert serve(words, stdin) == code
    finally:
        os.close(stdin)
    assert expected in capfd.readouterr().err


@pytest.mark.parametrize("words", [["from-the-future", "--x", "y"], ["--quiet", "create-symlinks"], [THEN]])
def test_an_unknown_hook_is_left_out(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert serve(words, -1) == 0
    assert "warning: unknown hook" in capfd.readouterr().err


@pytest.mark.parametrize("words", [["--debug", "/x", "share", "--share-fixed=mem=1Gi"], ["Share"]])
def test_a_share_is_not_left_out_behind_words_that_are_not_known(words: list[str]) -> None:
    """The container had the whole GPU, with exit code 0."""
    assert serve(words, -1) == 1


@pytest.mark.parametrize("words", [["apply-power-limits", "--watts", "300"], ["noop", THEN, "apply-"]])
def test_what_a_future_hook_applies_is_not_left_out(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert serve(words, -1) == 1
    shown = capfd.readouterr().err
    assert f"input error: unknown hook {words[-1 if THEN in words else 0]!r}" in shown
    assert "hint: upgrade nvc-py" in shown


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["noop", THEN, "hook", "apply-foo"], id="nvidia-ctk"),
        pytest.param(["nvidia-cdi-hook", *MEMORY], id="another program's name"),
        pytest.param(["--quiet", "hook", *MEMORY], id="global option"),
        pytest.param(["Apply-foo"], id="upper case"),
        pytest.param(["apply_cuda_memory_limits", *MEMORY[1:]], id="underscores"),
        pytest.param(["hook", "APPLY_foo"], id="both"),
    ],
)
def test_nor_is_it_in_another_spelling(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Attack: left out with a warning, so the container had no limit."""
    assert serve(words, -1) == 1
    assert "the container would be without what it applies" in capfd.readouterr().err


@pytest.mark.parametrize("words", [["noop"], MEMORY])
def test_the_word_that_nvidia_ctk_has_before_a_name_is_accepted(words: list[str]) -> None:
    assert read(["hook", *words]) == read([*words])
    assert read([*words])[0] == words[0]


def test_a_share_that_is_decided_later_keeps_the_memory_limit(tmp_path: Path) -> None:
    """The hook ``share`` of a specification of ours, or of nvc-runtime, is started after it."""
    entries = [{"path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook", *MEMORY]}]
    config = {
        "ociVersion": "1.0.2",
        "process": {"env": ["NVIDIA_GPU_MEMORY_LIMIT=2048"]},
        "root": {"path": "rootfs"},
        "hooks": {"createRuntime": entries, "prestart": None},
    }
    found = State("x", "creating", 1, str(tmp_path))
    fixed = {
        **config["hooks"],
        "createContainer": [{"path": "nvc-cdi-hook", "args": ["x", "share", "--share-fixed=a"]}],
    }
    for hooks, expected in ((config["hooks"], "mem=2048Mi"), ({}, ""), (fixed, "")):
        (tmp_path / "config.json").write_text(json.dumps({**config, "hooks": hooks}))
        assert _share_fields(_Config(found), ())[1] == expected


def test_noop_reads_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert serve(["noop"], -1) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_names_every_hook_and_option(word: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert serve([word]) == 0
    shown = capfd.readouterr().out
    for name, (_, options) in HOOKS.items():
        assert f"  {name}\n" in shown
        assert all(f"--{option} " in shown for option, _, _ in options)


def test_specs_name_hooks_that_there_are() -> None:
    assert set(generate.HOOKS) <= set(_ARGUMENTS)
    assert set(_ARGUMENTS) | {"noop"} == set(HOOKS)
    assert generate.THEN == THEN


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", "container state on stdin is empty", id="empty"),
        pytest.param(b"{", "container state on stdin is not JSON", id="cut-short"),
        pytest.param(b"[]", "is not a JSON object", id="list"),
        pytest.param(b"{}", "bundle is missing", id="no-bundle"),
        pytest.param(b'{"bundle": "rel"}', "is not an absolute path", id="relative-bundle"),
        pytest.param(b'{"bundle": "/nonexistent"}', "/nonexistent/config.json: does not exist", id="no-config"),
        pytest.param(b'{"bundle": "/b", "root": "/"}', "is the root of the host", id="host-root"),
        pytest.param(b'{"bundle": "/b", "root": "/x/.."}', "is the root of the host", id="host-root-in-disguise"),
        pytest.param(b'{"bundle": "/b", "root": "/nonexistent"}', "open failed: /nonexistent", id="no-root"),
        pytest.param(b'{"bundle": "/b", "status": "stopped"}', "is stopped", id="stopped"),
        pytest.param(b'{"bundle": "/b", "root": "/\\ud800"}', "root cannot be a path", id="root-that-no-file-can-be"),
        pytest.param(b" " * (1 << 20) + b" ", "is larger than 1024 KiB", id="too-much"),
    ],
)
@pytest.mark.root
def test_bad_states_are_told(start: Start, data: bytes, expected: str) -> None:
    done = start(data, *LINK)
    assert done.returncode == 1
    assert expected in done.stderr.decode()
    assert done.stderr.startswith(b"nvc-cdi-hook: ")
    assert b"Traceback" not in done.stderr


@pytest.mark.root
def test_another_stage_than_create_container_is_refused(
    start: Start, state: Callable[..., bytes], rootfs: Path
) -> None:
    with injection.container(rootfs, with_proc=False) as pid:
        done = start(state(pid=pid), *LINK)
    assert done.returncode == 1
    assert b"not in the container's mount namespace" in done.stderr
    assert b"createContainer" in done.stderr
    assert not (rootfs / "usr/lib64/libcuda.so").is_symlink()


@pytest.mark.root
def test_a_state_that_never_ends_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    read, write = os.pipe()
    begun = time.monotonic()
    command = [sys.executable, "-I", "-S", str(tmp_path / "launch"), *LINK, "--timeout=0.3"]
    try:
        done = subprocess.run(command, stdin=read, capture_output=True, env={}, timeout=90)
    finally:
        os.close(read)
        os.close(write)
    assert done.returncode == 1
    assert b"no complete container state on stdin within 0.3 s" in done.stderr
    assert b"nvc-hook STAGE" not in done.stderr, "another program"
    assert time.monotonic() - begun < 50


@pytest.mark.root
def test_the_debug_file_has_the_reason(start: Start, state: Callable[..., bytes], rootfs: Path, tmp_path: Path) -> None:
    (rootfs / "usr/lib64/libcuda.so").mkdir()
    log = tmp_path / "log"
    assert start(state(), *LINK, "--debug", str(log)).returncode == 1
    assert "mount error: file creation failed" in log.read_text()
