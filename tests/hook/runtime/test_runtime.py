"""nvc-runtime from its command line to the execution of the real runtime."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hook.runtime.conftest import Bench

GPU = ("NVIDIA_VISIBLE_DEVICES=0",)


def test_a_container_without_a_gpu_is_passed_on_untouched(bench: Bench) -> None:
    before = (bench.bundle / "config.json").stat()

    done = bench.create()

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert bench.executed == ["create", "--bundle", str(bench.bundle), "c1"]
    after = (bench.bundle / "config.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("name", ["nvc-runtime", "nvidia-container-runtime.legacy"])
def test_a_container_with_a_gpu_gets_the_hook(bench: Bench, name: str) -> None:
    odd: dict[str, Any] = {"x-new": {"deep": [1, 2.5, None, 2**70, "\ud800", "é"]}, "hooks": {"poststop": []}}
    bench.write(GPU, **odd)
    (bench.bundle / "config.json").chmod(0o640)
    before = bench.content

    done = bench.create(name=name, env={"NVC_SIM": "/machine", "LD_PRELOAD": "", "OTHER": "1"})

    assert (done.returncode, done.stderr) == (0, "")
    hook = {
        "path": str(bench.bin / "nvc-hook"),
        "args": ["nvc-hook", "prestart"],
        "env": [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "NVC_MODE=legacy",
            f"XDG_CONFIG_HOME={bench.path}/etc",
            "NVC_SIM=/machine",
        ],
    }
    assert bench.content == {**before, "hooks": {"poststop": [], "prestart": [hook]}}
    assert list(bench.content) == list(before)
    assert stat.S_IMODE((bench.bundle / "config.json").stat().st_mode) == 0o640
    assert sorted(os.listdir(bench.bundle)) == ["config.json"]


@pytest.mark.parametrize("program", ["nvc-hook", "nvidia-container-runtime-hook", "nvidia-container-toolkit"])
def test_no_second_hook_beside_one_that_gives_gpus(bench: Bench, program: str) -> None:
    hooks = {"prestart": [{"path": f"/usr/bin/{program}"}, {"path": "/x"}]}
    bench.write(GPU, hooks=hooks)

    assert bench.create().returncode == 0
    assert bench.content["hooks"] == hooks


def test_twice_is_once(bench: Bench) -> None:
    bench.write(GPU)
    bench.create()
    once = bench.content

    bench.create()

    assert once == bench.content


@pytest.mark.parametrize(
    ("env", "more", "wanted"),
    [
        (("SWARM=0",), 'swarm-resource = "SWARM"\n', True),
        (("SWARM=0",), "", False),
        (("CUDA_VERSION=9.0",), "", True),
        (("NVIDIA_VISIBLE_DEVICES=void",), "", False),
        (("NVIDIA_VISIBLE_DEVICES=none",), "", True),
        (GPU, "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n", False),
    ],
)
def test_containers_that_get_the_hook(bench: Bench, env: tuple[str, ...], more: str, wanted: bool) -> None:
    bench.write(env)
    file = bench.path / "etc/nvc/config.toml"
    file.write_text(more + file.read_text())

    assert bench.create().returncode == 0
    assert wanted is ("hooks" in bench.content)


def test_the_bundle_is_the_working_directory_by_default(bench: Bench) -> None:
    bench.write(GPU)

    assert bench.run("run", "c1", cwd=bench.bundle).returncode == 0
    assert "hooks" in bench.content
    bench.write(GPU)
    assert bench.run("create", "-b", "bundle", "c1").returncode == 0
    assert "hooks" in bench.content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"{", "not JSON", id="half"),
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(b"[]", "not a JSON object", id="list"),
        pytest.param(b'{"ociVersion": "1"}', "process is missing", id="no process"),
        pytest.param(
            b'{"ociVersion":"1","process":{"env":["NVIDIA_VISIBLE_DEVICES=0"]},"root":{},"hooks":7}',
            "hooks is not an object",
            id="hooks",
        ),
        pytest.param(
            b'{"ociVersion":"1","process":{"env":["NVIDIA_VISIBLE_DEVICES=0"]},"root":{},"hooks":{"prestart":{}}}',
            "prestart is not a list",
            id="prestart",
        ),
        pytest.param(
            b'{"ociVersion":"1","process":{"env":["NVIDIA_VISIBLE_DEVICES=0"]},"root":{},"x":1e999}',
            "cannot be written",
            id="a number that would not survive",
        ),
    ],
)
def test_a_broken_config_is_an_error_and_never_overwritten(bench: Bench, content: bytes, words: str) -> None:
    file = bench.bundle / "config.json"
    file.write_bytes(content)

    done = bench.create()

    assert done.returncode == 1
    assert done.stderr.startswith("nvc-runtime: input error: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert bench.executed is None
    assert file.read_bytes() == content
    assert os.listdir(bench.bundle) == ["config.json"]


def test_a_link_in_the_place_of_config_json_is_replaced_not_followed(bench: Bench) -> None:
    bench.write(GPU)
    target = bench.path / "elsewhere.json"
    (bench.bundle / "config.json").rename(target)
    (bench.bundle / "config.json").symlink_to(target)
    before = target.read_bytes()

    assert bench.create().returncode == 0
    assert "hooks" in bench.content
    assert target.read_bytes() == before
    assert not (bench.bundle / "config.json").is_symlink()


def test_missing_and_odd_files(bench: Bench) -> None:
    file = bench.bundle / "config.json"
    file.unlink()
    assert "config.json: does not exist" in bench.create().stderr
    os.mkfifo(file)
    assert "not a regular file" in bench.create().stderr
    assert "needs a value" in bench.run("create", "--bundle").stderr


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(",".join(f"GPU-{n:08d}" for n in range(80_000)), id="a megabyte of devices"),
        pytest.param("0\n1\x00\x1b[2J", id="control characters"),
        pytest.param("0,../../etc/passwd,$(reboot)", id="shell"),
    ],
)
def test_hostile_variables_reach_no_command_line(bench: Bench, value: str) -> None:
    bench.write((f"NVIDIA_VISIBLE_DEVICES={value}", "LD_PRELOAD=/proc/self/cwd/evil.so", "PATH=/evil"))

    done = bench.create()

    assert (done.returncode, done.stderr) == (0, "")
    (hook,) = bench.content["hooks"]["prestart"]
    assert hook["args"] == ["nvc-hook", "prestart"]
    assert not any("evil" in entry or "LD_" in entry for entry in hook["env"])


def test_the_caller_s_log_gets_the_reason_in_its_format(bench: Bench) -> None:
    (bench.bundle / "config.json").write_text("{")
    log = bench.path / "log.json"

    bench.run("--log", str(log), "--log-format", "json", "create", "--bundle", str(bench.bundle), "c1")
    record = json.loads(log.read_text())
    assert record["level"] == "error"
    assert "not JSON" in record["msg"]
    assert "time" in record

    log.unlink()
    bench.run(f"--log={log}", "create", "--bundle", str(bench.bundle), "c1")
    assert ' level=error msg="nvc-runtime: input error: ' in log.read_text()


def test_own_log(bench: Bench) -> None:
    log = bench.path / "new/directory/runtime.log"
    bench.configure(f'debug = "{log}"\nlog-level = "debug"')
    bench.write(GPU)

    assert bench.create().returncode == 0
    text = log.read_text()
    assert "mode legacy: 0" in text
    assert f"executing {bench.bin}/real: create" in text


def test_unknown_keys_of_the_toolkits_file_are_logged(bench: Bench) -> None:
    log = bench.path / "log"
    bench.configure(f'debug = "{log}"', "[typo]\nx = true")
    (bench.path / "etc/nvidia-container-runtime").mkdir()
    (bench.path / "etc/nvc/config.toml").rename(bench.path / "etc/nvidia-container-runtime/config.toml")
    bench.write(GPU)

    assert bench.create().returncode == 0
    assert "unknown keys are ignored: typo" in log.read_text()


BROKEN = {
    "misspelt section": ('[shares]\ndefault = "mem=25%"\n', "section [shares] is unknown"),
    "misspelt key": ('[share]\ndefualt = "mem=25%"\n', "share.defualt is unknown"),
    "wrong type": ("[share]\nclamp = 1\n", "share.clamp is not a boolean"),
    "wrong value": ('[nvidia-container-cli]\nldconfig = "x"\n', "does not name a program of the host"),
    "not TOML": ("[share\ndefault = \n", "not TOML"),
    "not UTF-8": ("# \x80\n", "not TOML"),
}


@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_config_toml_stops_containers_with_a_gpu_only(bench: Bench, text: str, said: str) -> None:
    """Those that run are stopped and deleted by the runtime that made them, which the broken file names."""
    file = bench.path / "etc/nvc/config.toml"
    file.write_bytes(file.read_bytes() + text.encode("latin-1"))
    other = bench.path / "other"
    other.mkdir()
    for name in ("runc", "crun"):
        (other / name).write_text("#!/bin/sh\nexit 9\n")
        (other / name).chmod(0o755)
    path = {"PATH": str(other)}

    for words in (["state", "c1"], ["kill", "c1", "KILL"], ["delete", "--force", "c1"], ["exec", "c1", "ls"]):
        assert bench.run(*words, env=path).returncode == 0
        assert bench.executed == words
    assert bench.create(env=path).returncode == 0
    bench.write(GPU)
    done = bench.create(env=path)
    assert (done.returncode, bench.executed) == (1, None)
    assert f"{file}:" in done.stderr
    assert said in done.stderr


def test_which_runtime(bench: Bench) -> None:
    bench.configure(runtimes=["nothing-like-this", str(bench.bin / "real")])
    assert bench.run("state", "x").returncode == 0
    # A link to ourselves would start itself for ever.
    (bench.bin / "runc").symlink_to(bench.bin / "nvc-runtime")
    bench.configure(runtimes=[str(bench.bin / "runc")])
    done = bench.run("state", "x")
    assert (done.returncode, bench.executed) == (1, None)
    assert "no OCI runtime found" in done.stderr
    assert "hint: install runc or crun" in done.stderr


def test_the_real_runtime_starts_as_if_the_engine_had_started_it(bench: Bench) -> None:
    import ast

    assert bench.run("--root", "/r", "kill", "c1", "9", env={"A": "b"}).returncode == 0
    argv, names, status = ast.literal_eval(bench.record.read_text())
    assert argv == ["--root", "/r", "kill", "c1", "9"]
    # LC_CTYPE: of the recorder's own interpreter.
    assert [name for name in names if name != "LC_CTYPE"] == ["A", "XDG_CONFIG_HOME"]
    assert "SigIgn" in status


def test_environment_is_passed_without_what_the_interpreter_adds() -> None:
    from hook.runtime.real import environment

    assert environment({"A": "1", "LC_CTYPE": "C.UTF-8"}, b"A=1\0") == {"A": "1"}
    assert environment({"LC_CTYPE": "x"}, b"B=1\0LC_CTYPE=x\0") == {"LC_CTYPE": "x"}


def test_signals_are_not_left_ignored(bench: Bench) -> None:
    bench._script("real", f"#!/bin/sh\ngrep SigIgn /proc/self/status > {bench.record}\n")

    bench.run("state", "x")

    ignored = int(bench.record.read_text().split()[1], 16)
    assert not ignored & (1 << 12 | 1 << 24)  # SIGPIPE 13, SIGXFSZ 25


def test_version_is_ours_and_then_the_real_one_s(bench: Bench) -> None:
    done = bench.run("--version")

    assert done.stdout.startswith("nvc-runtime (nvc-py) version ")
    assert bench.executed == ["--version"]


def test_csv_mode_leaves_tegras_lists_to_the_hook(bench: Bench) -> None:
    bench.configure('mode = "csv"')
    bench.write(GPU)

    assert "" == bench.create().stderr
    (hook,) = bench.content["hooks"]["prestart"]
    assert "NVC_MODE=legacy" in hook["env"]


def test_a_working_directory_that_is_gone_is_an_error(bench: Bench) -> None:
    gone = bench.path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && exec "$2" create c1'

    words = ["sh", "-c", script, "sh", str(gone), str(bench.bin / "nvc-runtime")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)

    expected = "nvc-runtime: input error: working directory: does not exist (hint: name the bundle with --bundle)\n"
    assert (1, expected) == (done.returncode, done.stderr.partition("nvc-runtime: hint")[0])


def test_interrupted(capfd: pytest.CaptureFixture[str]) -> None:
    from hook.runtime.__main__ import edit, main

    class Words(tuple[str, ...]):
        """A command line that is being read when the signal comes."""

        def __iter__(self) -> Iterator[str]:
            raise KeyboardInterrupt

    assert main(Words(("create",)), "nvc-runtime", "/bin/nvc-runtime") == 130
    assert edit(Words(("create",)), "nvc-runtime") == 130
    assert capfd.readouterr().err == "nvc-runtime: interrupted\n" * 2


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "/\0", "args": ["nvc-cdi-hook", "share"]},
        {"path": "/bin/nvc-cdi-hook", "args": ["nvc-cdi-hook", "share", "--config", "/\0"]},
        {"path": "/usr/bin/env", "args": ["env", "nvc-cdi-hook", "share"], "env": ["PATH=/\0"]},
    ],
)
def test_a_nul_character_in_a_hook_is_no_internal_error(bench: Bench, entry: dict[str, Any]) -> None:
    """No runtime can start such a hook."""
    bench.write(["NVIDIA_VISIBLE_DEVICES=all"], hooks={"createContainer": [entry], "prestart": [entry]})

    assert "internal error" not in bench.create().stderr


def test_a_container_with_a_gpu_has_no_annotation_that_directs_the_runtime(bench: Bench) -> None:
    """Podman 4.5.0 and older copy an image's annotations into config.json; crun opens this file as root."""
    own = {"prestart": [{"path": "/usr/bin/nvc-hook", "args": ["nvc-hook", "prestart"]}]}
    annotations = {"run.oci.hooks.stderr": "/etc/ld.so.preload"}
    for env, hooks in ((["NVIDIA_VISIBLE_DEVICES=0"], {}), ([], own)):
        bench.write(env, annotations=annotations, hooks=hooks)

        done = bench.create()

        assert (done.returncode, bench.executed) == (1, None)
        assert "annotation 'run.oci.hooks.stderr': a container with GPUs cannot have it" in done.stderr

    # It is nothing to nvc-py that another container has it.
    bench.write(annotations=annotations)
    assert bench.create().returncode == 0


def test_annotations_that_engines_write_do_no_harm(bench: Bench) -> None:
    annotations = {"run.oci.keep_original_groups": "1", "org.systemd.property.TimeoutStopUSec": "uint64 9"}
    bench.write(["NVIDIA_VISIBLE_DEVICES=0"], annotations=annotations)

    assert bench.create().returncode == 0


def test_a_pod_of_crio_gets_no_gpu_by_an_annotation_of_its_own(bench: Bench) -> None:
    """Attack: with compat32 the hook gives CDI devices, also where no specification has them."""
    path = bench.path / "etc/nvc/config.toml"
    path.write_text(f"accept-nvidia-visible-devices-envvar-when-unprivileged = false\n{path.read_text()}")
    annotations = {"cdi.k8s.io/x": "nvidia.com/gpu=all", "io.kubernetes.cri-o.Annotations": "{}"}
    bench.write(("NVIDIA_DRIVER_CAPABILITIES=compute,compat32",), annotations=annotations)

    done = bench.create()

    assert (done.returncode, done.stderr) == (0, "")
    assert "hooks" not in bench.content
    device = {"cdi.k8s.io/x": "nvidia.com/gpu=all", "io.kubernetes.cri.container-type": "container"}
    bench.write(("NVIDIA_DRIVER_CAPABILITIES=compute,compat32",), annotations=device)
    bench.create()
    assert "hooks" in bench.content, "of containerd's only the kubelet's are there"
