"""The hook from its command line to the point where the container is given its GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hook.target import Target
from nvc import __version__
from nvc.base.errors import DeviceError, MountError

GPU = ("NVIDIA_VISIBLE_DEVICES=0",)
Serve = Callable[..., Any]


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ((), False),
        (("NVIDIA_VISIBLE_DEVICES=void",), False),
        (("NVIDIA_VISIBLE_DEVICES=",), False),
        (("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=void"), False),
        (GPU, True),
        (("NVIDIA_VISIBLE_DEVICES=none",), True),
        (("CUDA_VERSION=9.0",), True),
    ],
)
def test_only_a_container_that_wants_a_gpu_is_touched(
    bundle: Any, serve: Serve, env: tuple[str, ...], wanted: bool
) -> None:
    bundle.write(env)

    outcome = serve(bundle.state(), "prestart")

    assert (outcome.code, outcome.stderr, len(outcome.targets)) == (0, "", int(wanted))


@pytest.mark.parametrize(
    ("stage", "changes", "pid"),
    [
        pytest.param("prestart", {}, 25084, id="runc at prestart"),
        pytest.param("createRuntime", {}, 25084, id="runc at createRuntime"),
        pytest.param("createContainer", {"pid": 1, "status": "created"}, None, id="runc at createContainer"),
        pytest.param("prestart", {"root": "rootfs", "status": "created"}, 25084, id="crun at prestart"),
        pytest.param(
            "createContainer", {"pid": 0, "root": "rootfs", "status": "created"}, None, id="crun at createContainer"
        ),
        pytest.param("createContainer", {"pid": 4321}, None, id="another runtime, with a pid that is not needed"),
        pytest.param("createContainer", {"pid": None}, None, id="another runtime, without pid"),
    ],
)
def test_the_container_is_found_in_every_runtimes_state(
    bundle: Any, serve: Serve, stage: str, changes: dict[str, Any], pid: int | None
) -> None:
    bundle.write(GPU)

    target = serve(bundle.state(**changes), stage).target

    env = {"NVIDIA_VISIBLE_DEVICES": "0"}
    found = Target(pid, str(bundle.rootfs), env, privileged=False, identifier="t1", bundle=str(bundle.path))
    assert target == found


@pytest.mark.parametrize(
    ("config", "state", "expected"),
    [
        pytest.param({"nvc.share": "mem=2Gi", "other": "x"}, {}, "mem=2Gi", id="configuration"),
        pytest.param({"nvc.share": "off"}, {"nvc.share": "mem=1Gi"}, "off", id="the configuration counts first"),
        pytest.param({}, {"nvc.share": "mem=1Gi"}, "mem=1Gi", id="state"),
        pytest.param({}, {"nvc.share": 7}, "", id="no text"),
        pytest.param({"other": "a=b"}, {}, "", id="none"),
    ],
)
def test_a_share_is_asked_for_by_annotation(
    bundle: Any, serve: Serve, config: dict[str, str], state: dict[str, Any], expected: str
) -> None:
    bundle.write(GPU, annotations=config)

    assert serve(bundle.state(annotations=state), "prestart").target.share == expected


def test_old_runc_says_bundlepath(bundle: Any, serve: Serve) -> None:
    bundle.write(GPU)

    assert serve(bundle.state(bundle=None, bundlePath=str(bundle.path)), "prestart").target.pid == 25084


def test_options_reach_the_target(bundle: Any, serve: Serve) -> None:
    bundle.write(GPU, process={"env": GPU, "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}})
    argv = ["--config=/c.toml", "--debug", "log", "--sim=/machine", "--timeout=3", "prestart"]

    target = serve(bundle.state(), *argv, directory="/srv").target

    assert (target.config, target.debug, target.sim, target.timeout) == ("/c.toml", "/srv/log", "/machine", 3.0)
    assert target.privileged


def test_simulated_machine_comes_from_the_hooks_environment_never_from_the_containers(
    bundle: Any, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.write((*GPU, "NVC_SIM=/evil", "NVC_DEBUG_FILE=/evil.log"))
    assert serve(bundle.state(), "prestart").target.sim == ""
    assert serve(bundle.state(), "prestart").target.debug == ""

    monkeypatch.setenv("NVC_SIM", "/machine")

    assert serve(bundle.state(), "prestart").target.sim == "/machine"
    assert serve(bundle.state(), "prestart", "--sim=/other").target.sim == "/other"


@pytest.mark.parametrize("option", ["--config", "--debug", "--sim"])
def test_relative_paths_are_refused_where_the_directory_is_the_containers(
    bundle: Any, serve: Serve, option: str
) -> None:
    bundle.write(GPU)

    outcome = serve(bundle.state(), f"{option}=x", "createContainer", directory="")

    assert outcome.code == 1
    assert outcome.stderr == f"nvc-hook: input error: {option} 'x' is not an absolute path\n"
    assert outcome.targets == []


@pytest.mark.parametrize("stage", ["poststart", "poststop"])
def test_idle_stages_do_nothing_whatever_the_input(serve: Serve, stage: str) -> None:
    outcome = serve(b"not JSON", stage)

    assert (outcome.code, outcome.stderr, outcome.targets) == (0, "", [])


def test_version_and_help_go_to_stdout(hook_process: Callable[..., Any]) -> None:
    assert hook_process("--version").stdout == f"nvc-hook (nvc-py) version {__version__}\n"
    assert hook_process("--help").stdout.startswith("Usage: nvc-hook ")


@pytest.mark.parametrize("argv", [(), ("bogus",), ("prestart", "x"), ("--bogus",)])
def test_wrong_usage_shows_it(serve: Serve, argv: tuple[str, ...]) -> None:
    outcome = serve(b"", *argv)

    assert outcome.code == 2
    assert outcome.stderr.startswith("nvc-hook: ")
    assert "Usage: nvc-hook [OPTION...] STAGE" in outcome.stderr


BAD_STATES = [
    pytest.param(b"", "input error: container state on stdin is empty", id="empty"),
    pytest.param(b" " * (1 << 21), "input error: container state on stdin is larger than 1024 KiB", id="huge"),
    pytest.param(b"{", "input error: container state on stdin is not JSON", id="not JSON"),
    pytest.param(b"[" * 300_000, "input error: container state on stdin is not JSON: nested too deeply", id="deep"),
    pytest.param(b"[]", "input error: container state on stdin is not a JSON object", id="list"),
    pytest.param(b'{"pid":"1","bundle":"/b"}', "input error: container state: pid is a string", id="wrong type"),
    pytest.param(
        b'{"bundle":"/\\ud800"}', "input error: container state: bundle cannot be a path: '/\\ud800'", id="no path"
    ),
    pytest.param(
        b'{"id":"c","status":"stopped","bundle":"/b"}', "container error: container c is stopped", id="stopped"
    ),
    pytest.param(
        b'{"pid":5,"bundle":"/nonexistent"}', "input error: /nonexistent/config.json: does not exist", id="no bundle"
    ),
]


@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "createContainer"])
@pytest.mark.parametrize(("data", "words"), BAD_STATES)
def test_bad_state(serve: Serve, stage: str, data: bytes, words: str) -> None:
    outcome = serve(data, stage)

    assert outcome.code == 1
    assert outcome.stderr.startswith(f"nvc-hook: {words}")
    assert outcome.targets == []


@pytest.mark.parametrize(("pid", "words"), [(0, "has no pid"), (None, "has no pid"), (1, "pid 1")])
@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_pid_is_needed_outside_the_container(
    bundle: Any, serve: Serve, stage: str, pid: int | None, words: str
) -> None:
    bundle.write(GPU)

    outcome = serve(bundle.state(pid=pid), stage)

    assert outcome.code == 1
    assert outcome.stderr.startswith("nvc-hook: container error: container state has ")
    assert words in outcome.stderr


def test_pid_is_not_needed_without_a_gpu(bundle: Any, serve: Serve) -> None:
    assert serve(bundle.state(pid=0), "prestart").code == 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        pytest.param(b"", "config.json: not JSON", id="empty"),
        pytest.param(b"{}", "config.json: ociVersion is missing", id="no version"),
        pytest.param(b"[" * 300_000, "config.json: not JSON: nested too deeply", id="deep"),
        pytest.param(b"x" * ((3 << 20) + 1), "config.json: larger than 3 MiB", id="huge"),
        pytest.param(
            b'{"ociVersion":"1","process":{"env":["NOVALUE"]},"root":{"path":"r"}}',
            "process.env[0] in config.json has no '=': 'NOVALUE'",
            id="entry without =",
        ),
        pytest.param(
            b'{"ociVersion":"1","process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"root":{"path":"/"}}',
            "invalid rootfs directory: '/' is the root of the host",
            id="rootfs is the host's",
        ),
        pytest.param(
            b'{"ociVersion":"1","process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"root":{"path":"\\ud800"}}',
            "config.json: root.path is not a path",
            id="rootfs that no file can be",
        ),
    ],
)
def test_bad_bundle(bundle: Any, serve: Serve, config: bytes, words: str) -> None:
    bundle.write_raw(config)

    outcome = serve(bundle.state(), "prestart")

    assert outcome.code == 1
    assert outcome.stderr.startswith("nvc-hook: input error: ")
    assert words in outcome.stderr
    assert outcome.targets == []


def test_failure_says_stage_message_and_what_to_do(bundle: Any, serve: Serve) -> None:
    bundle.write(GPU)

    outcome = serve(bundle.state(), "prestart", fail=DeviceError("9: unknown device", hint="there is 0"))

    assert outcome.code == 1
    assert outcome.stderr == "nvc-hook: device error: 9: unknown device (hint: there is 0)\n"


def test_messages_bear_the_name_of_the_program(bundle: Any, serve: Serve) -> None:
    bundle.write(GPU)

    outcome = serve(bundle.state(), "prestart", fail=MountError("x"), program="nvidia-container-runtime-hook")

    assert outcome.stderr == "nvidia-container-runtime-hook: mount error: x\n"


def test_a_fault_of_ours_is_a_line_too(bundle: Any, serve: Serve) -> None:
    bundle.write(GPU)

    outcome = serve(bundle.state(), "prestart", fail=KeyError("oops"))

    assert outcome.code == 1
    assert outcome.stderr.startswith("nvc-hook: internal error: KeyError: \\x27oops\\x27 (hint: ")


def test_interrupted(bundle: Any, serve: Serve) -> None:
    bundle.write(GPU)

    outcome = serve(bundle.state(), "prestart", fail=KeyboardInterrupt())

    assert (outcome.code, outcome.stderr) == (130, "nvc-hook: interrupted\n")


@pytest.mark.parametrize("text", ["a\nnvc-hook: forged", "\x1b[2J\x07", "\udcff", "\u202e", "x" * 100_000])
def test_names_from_images_cannot_forge_lines_or_drive_a_terminal(bundle: Any, serve: Serve, text: str) -> None:
    bundle.write(GPU)

    outcome = serve(bundle.state(), "prestart", fail=MountError(text))

    assert outcome.stderr.count("\n") == 1
    assert outcome.stderr[:-1].isprintable()
    assert len(outcome.stderr) < 2100


def test_early_errors_go_to_the_debug_log_as_well(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "hook.log"

    serve(b"", f"--debug={log}", "prestart")

    assert "] input error: container state on stdin is empty\n" in log.read_text()
    assert "] hint: a hook is started by an OCI runtime" in log.read_text()


def test_debug_file_of_the_environment(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVC_DEBUG_FILE", str(tmp_path / "hook.log"))

    serve(b"", "prestart")

    assert "container state on stdin is empty" in (tmp_path / "hook.log").read_text()


def check_no_surprise(outcome: Any) -> None:
    """Whatever comes in: an exit code, and at most one line and one hint, none of which is a fault of ours."""
    assert outcome.code in (0, 1)
    assert (outcome.code == 1) is bool(outcome.stderr)
    assert "internal error" not in outcome.stderr
    assert "Traceback" not in outcome.stderr
    lines = outcome.stderr.splitlines()
    assert len(lines) <= 2
    assert all(line.startswith("nvc-hook: ") and line.isprintable() for line in lines)


FUZZ = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    database=None,
)
#: Also halves of surrogate pairs, which JSON can spell and no path can have.
TEXT = st.text(max_size=20) | st.text(st.characters(categories=["Cs", "Ll"]), max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@FUZZ
@given(data=st.binary(max_size=300))
def test_any_bytes_on_stdin(serve: Serve, data: bytes) -> None:
    check_no_surprise(serve(data, "prestart"))


@FUZZ
@given(state=st.fixed_dictionaries({}, optional=dict.fromkeys(("pid", "bundle", "root", "id", "status"), JSON)) | JSON)
def test_any_json_on_stdin(serve: Serve, state: Any) -> None:
    check_no_surprise(serve(json.dumps(state).encode(), "createRuntime"))


@FUZZ
@given(data=st.binary(max_size=300))
def test_any_bytes_as_config(bundle: Any, serve: Serve, data: bytes) -> None:
    bundle.write_raw(data)

    check_no_surprise(serve(bundle.state(), "prestart"))


ENTRY = st.builds(
    "{}={}".format,
    st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA", "X"]),
    st.text(max_size=10) | st.sampled_from(["all", "none", "0", "9.0"]),
)
ENV = st.lists(ENTRY | st.text(max_size=8), max_size=5)
PROCESS = JSON | st.fixed_dictionaries({"env": ENV | JSON}, optional={"capabilities": JSON})


@FUZZ
@given(
    config=JSON
    | st.fixed_dictionaries(
        {"ociVersion": st.text(max_size=5), "process": PROCESS, "root": JSON | st.fixed_dictionaries({"path": JSON})}
    )
)
def test_any_json_as_config(bundle: Any, serve: Serve, config: Any) -> None:
    bundle.write_raw(json.dumps(config).encode())

    check_no_surprise(serve(bundle.state(), "createContainer"))


def test_stdin_that_is_a_directory(capfd: pytest.CaptureFixture[str]) -> None:
    from hook.__main__ import serve as run

    descriptor = os.open("/", os.O_RDONLY)
    try:
        assert run(["prestart"], "nvc-hook", "", stdin=descriptor) == 1
    finally:
        os.close(descriptor)
    assert "cannot be read" in capfd.readouterr().err


def test_other_ways_of_asking_get_past_the_early_exit(bundle: Any, serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('swarm-resource = "SWARM"')
    mount = {"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"}

    bundle.write(("SWARM=0",))
    assert serve(bundle.state(), f"--config={config}", "prestart").target.env == {"SWARM": "0"}
    bundle.write(("OTHER=0",))
    assert serve(bundle.state(), f"--config={config}", "prestart").targets == []
    bundle.write((), mounts=[mount])
    assert serve(bundle.state(), "prestart").target.device_mounts == ("0",)
