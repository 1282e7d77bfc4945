"""Which containers are refused NVIDIA's drivers, and what their processes by ``exec`` get."""

from __future__ import annotations

import ast
import errno
import json
from pathlib import Path
from typing import Any

import pytest

from hook import files
from hook.bundle import Bundle
from hook.config import HookConfig
from hook.runtime import refused
from hook.runtime.command import Command
from hook.runtime.journal import Journal
from nvc.base.errors import InputError, NvcError
from nvc.linux import rights, syscalls
from nvc.linux.syscalls import SyscallError
from tests.hook.runtime.conftest import Bench
from tests.hook.runtime.test_entry32 import filters

root = pytest.mark.root
DENY = {"allow": False, "access": "rwm"}
REQUIRE = '[share]\nguard = "require"\n'


def gained(bench: Bench) -> int:
    """How many filters the real runtime has that this process has not."""
    _, _, status = ast.literal_eval(bench.record.read_text())
    return filters(status) - filters(Path("/proc/self/status").read_text())


def rules(*allowed: dict[str, Any]) -> dict[str, Any]:
    return {"resources": {"devices": [DENY, *({"allow": True, "access": "rw", **rule} for rule in allowed)]}}


def node(minor: int) -> dict[str, Any]:
    return {"path": "/dev/x", "type": "c", "major": 195, "minor": minor}


def bind(source: str) -> dict[str, Any]:
    return {"destination": "/dev/x", "source": source, "type": "bind", "options": ["bind"]}


@root
@pytest.mark.parametrize(
    ("guard", "agent", "more"),
    [("auto", True, 1), ("auto", False, 0), ("require", False, 1), ("off", True, 0), ("a mistake", False, 1)],
)
def test_where_containers_may_be_guarded(bench: Bench, guard: str, agent: bool, more: int) -> None:
    place = bench.path / "agent"
    if agent:
        place.mkdir()
    bench.configure(more=f'[share]\nguard = "{guard}"\n[agent]\ndirectory = "{place}"\n')
    assert bench.create().returncode == 0
    assert gained(bench) == more


@root
@pytest.mark.parametrize(
    ("env", "linux", "more"),
    [
        pytest.param([], {}, 1, id="nothing"),
        pytest.param([], rules(), 1, id="no device"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES=void"], rules(), 1, id="void"),
        pytest.param(["NVIDIA_VISIBLE_DEVICES=all"], rules(), 0, id="all"),
        pytest.param([], {**rules(), "devices": [node(0)]}, 0, id="a GPU's node"),
        pytest.param([], {**rules(), "devices": [node(255)]}, 1, id="nvidiactl alone"),
        pytest.param([], rules({"type": "c", "major": 195, "minor": 3}), 0, id="a GPU's rule"),
        pytest.param([], rules({"type": "c", "major": 195, "minor": 255}), 1, id="nvidiactl's rule"),
        pytest.param([], rules({"type": "c", "major": 226}), 1, id="another driver's"),
        pytest.param([], rules({}), 0, id="privileged"),
    ],
)
def test_a_container_with_a_gpu_is_not(bench: Bench, env: list[str], linux: dict[str, Any], more: int) -> None:
    bench.configure(more=REQUIRE)
    bench.write(env, linux=linux)
    result = bench.create()
    assert result.returncode == 0, result.stderr
    assert gained(bench) == more
    assert "seccomp" not in bench.content.get("linux", {})


@root
def test_a_mounted_node_counts_only_where_no_rule_closes_it(bench: Bench, tmp_path: Path) -> None:
    bench.configure(more=REQUIRE)
    for linux, more in ((rules(), 1), ({}, 0)):
        bench.write(linux=linux, mounts=[bind("/dev")])
        assert bench.create().returncode == 0
        assert gained(bench) == more


@root
def test_the_driver_alone_is_refused_by_the_profile_since_its_hook_asks_the_driver(bench: Bench) -> None:
    """Attack: NVIDIA_VISIBLE_DEVICES=none, which every user may write, would keep a container out."""
    bench.configure(more=REQUIRE)
    bench.write(["NVIDIA_VISIBLE_DEVICES=none"], linux=rules())
    result = bench.create()
    assert result.returncode == 0, result.stderr
    assert gained(bench) == 0
    answers = {(rule["action"], rule.get("errnoRet")) for rule in bench.content["linux"]["seccomp"]["syscalls"]}
    assert answers == {("SCMP_ACT_ERRNO", errno.EACCES)}


@root
def test_a_runtime_of_a_user_namespace_closes_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rootless engine's rules are there, and have no effect."""
    content = {"linux": rules(), "mounts": [bind("/dev")]}
    found = Bundle("/nonexistent", (), "", False)
    for inside in (False, True):
        monkeypatch.setattr(rights, "in_user_namespace", lambda inside=inside: inside)
        assert refused.has_gpu(content, found, {}, HookConfig()) is inside


@root
def test_an_annotation_that_replaces_the_profile_starts_nothing(bench: Bench) -> None:
    bench.configure(more=REQUIRE)
    bench.write(
        ["NVIDIA_VISIBLE_DEVICES=none"], linux=rules(), annotations={"run.oci.seccomp_bpf_data": "BgAAAAAA/38="}
    )
    result = bench.create()
    assert result.returncode == 1
    assert "run.oci.seccomp_bpf_data" in result.stderr
    assert bench.executed is None


@root
def test_nor_does_a_profile_in_a_spelling_that_only_the_runtime_would_take(bench: Bench) -> None:
    """Attack: runc took the last of "seccomp" and "Seccomp", and the profile refused nothing."""
    bench.configure(more=REQUIRE)
    theirs = {"seccomp": None, "Seccomp": {"defaultAction": "SCMP_ACT_ALLOW"}}
    bench.write(["NVIDIA_VISIBLE_DEVICES=none"], linux={**rules(), **theirs})
    result = bench.create()
    assert result.returncode == 1
    assert "linux.seccomp is there in another spelling, 'Seccomp'" in result.stderr
    assert bench.executed is None


def state(bench: Bench, name: str, *, file: str, text: object) -> None:
    (bench.path / "state" / name).mkdir(parents=True)
    (bench.path / "state" / name / file).write_text(json.dumps(text))


@root
@pytest.mark.parametrize("runtime", ["runc", "crun"])
@pytest.mark.parametrize(("linux", "more"), [(rules(), 2), ({**rules(), "devices": [node(0)]}, 1)])
def test_exec_joins_a_container_as_it_was_made(bench: Bench, runtime: str, linux: dict[str, Any], more: int) -> None:
    """One more is the filter of the 32-bit entry."""
    bench.configure(more=REQUIRE)
    bench.write(linux=linux)
    if runtime == "runc":
        # Attack: an annotation called "bundle" comes before the label.
        labels = ["bundle=/nonexistent", f"bundle={bench.bundle}"]
        state(bench, "c1", file="state.json", text={"config": {"labels": labels}})
    else:
        state(bench, "c1", file="status", text={"bundle": str(bench.bundle)})
    words = ("exec", "--cwd", "/", "--env=A=b", "-u", "0", "-d", "c1", "program", "-b", "word")
    result = bench.run("--root", str(bench.path / "state"), *words)
    assert (result.returncode, result.stderr) == (0, "")
    assert gained(bench) == more


@root
@pytest.mark.parametrize("name", ["c1", "../c1", ""])
def test_exec_in_a_container_that_is_not_found_is_refused_the_drivers(bench: Bench, name: str) -> None:
    bench.configure(more=REQUIRE)
    log = bench.path / "log"
    words = ("--root", str(bench.path / "state"), "--log", str(log), "exec", *([name] if name else []))
    assert bench.run(*words).returncode == 0
    assert gained(bench) == 2
    assert "NVIDIA's drivers are refused" in log.read_text()


RUNC, CRUN = "runc/c1/state.json", "crun/c1/status"


@pytest.mark.parametrize(
    ("below", "states", "found"),
    [
        ("/user", [f"/run/{RUNC}", f"/user/{RUNC}"], f"/run/{RUNC}"),
        ("/user", [f"/run/{CRUN}", f"/user/{CRUN}"], f"/run/{CRUN}"),
        ("/user", [f"/run/{CRUN}", f"/user/{RUNC}"], f"/run/{CRUN}"),
        ("/user", [f"/user/{RUNC}"], f"/user/{RUNC}"),
        ("/user", [f"/user/{CRUN}"], f"/user/{CRUN}"),
        ("", [f"/{RUNC}", f"/{CRUN}", RUNC, CRUN], None),
        (None, [f"/{RUNC}", f"/{CRUN}", RUNC, CRUN, f"None/{RUNC}"], None),
    ],
)
def test_no_state_that_a_user_can_write_comes_before_one_of_root(
    monkeypatch: pytest.MonkeyPatch, below: str | None, states: list[str], found: str | None
) -> None:
    """Attack: XDG_RUNTIME_DIR has a state of the same name, whose bundle has a GPU."""

    def read(path: str, _: int) -> bytes:
        if path not in states:
            raise InputError(path)
        bundle = f"/of{path}"
        return json.dumps({"config": {"labels": [f"bundle={bundle}"]}, "bundle": bundle}).encode()

    monkeypatch.setattr(files, "read", read)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if below is not None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", below)
    command = Command("exec", container="c1")
    if found is None:
        with pytest.raises(InputError, match="there is no state of c1"):
            refused._bundle(command)
    else:
        assert refused._bundle(command) == f"/of{found}"


@pytest.mark.parametrize(("number", "fails"), [(errno.EACCES, False), (errno.EINVAL, False), (errno.ENOMEM, True)])
def test_a_filter_that_should_be_there_and_is_not(monkeypatch: pytest.MonkeyPatch, number: int, fails: bool) -> None:
    def refuse(program: bytes, flags: int) -> None:
        raise SyscallError(number, "seccomp", len(program))

    monkeypatch.setattr(syscalls, "seccomp_filter", refuse)
    if fails:
        with pytest.raises(NvcError, match="cannot refuse NVIDIA's drivers to the container: Cannot allocate memory"):
            refused.close(Journal())
    else:
        refused.close(Journal())
