"""The argument lists that engines start an OCI runtime with, and what is understood of them."""

from __future__ import annotations

import pytest

from hook.runtime.command import Command, parse
from nvc.base.errors import UsageError

CONTAINERD = "--root /run/containerd/runc/default --log /b/log.json --log-format json"


def id_of(line: str) -> str:
    return next((word for word in ("c2", "vm.root.6.0.0", "id") if word in line.split()), "create")


@pytest.mark.parametrize(
    ("line", "name", "bundle"),
    [
        pytest.param(f"{CONTAINERD} create --bundle /b --pid-file /b/init.pid c2", "create", "/b", id="containerd"),
        pytest.param(f"{CONTAINERD} start c2", "start", "", id="containerd start"),
        pytest.param(f"{CONTAINERD} delete --force create", "delete", "", id="a container called create"),
        pytest.param("--root=/r run vm.root.6.0.0 -b /slurm/6.0.0", "run", "/slurm/6.0.0", id="Slurm"),
        pytest.param(
            "--log-format=json --log=/l create -b /b --pid-file /p --console-socket /s id", "create", "/b", id="conmon"
        ),
        pytest.param("--systemd-cgroup create --bundle=/b id", "create", "/b", id="switch before"),
        pytest.param("create --bundle /a --bundle=/b id", "create", "/b", id="the last one counts"),
        pytest.param("create -bundle /b id", "create", "/b", id="one dash"),
        pytest.param("create id", "create", "", id="working directory"),
        pytest.param("--root create state id", "state", "", id="a value that is a command"),
        pytest.param("--root run kill create 9", "kill", "", id="kill"),
        pytest.param("--new-option value create -b /b id", "create", "/b", id="an option of tomorrow"),
        pytest.param("--new-option value start create", "create", "", id="which costs at most a look at a bundle"),
        pytest.param(f"{CONTAINERD} exec --process /p --detach c2", "exec", "", id="exec"),
        pytest.param("--new-option value exec c2 sh", "exec", "", id="exec behind an option of tomorrow"),
        pytest.param(f"{CONTAINERD} restore --image-path /i --detach -b /b c2", "restore", "/b", id="restore"),
        pytest.param(f"{CONTAINERD} checkpoint --work-path /w --image-path /i c2", "checkpoint", "", id="checkpoint"),
        pytest.param("features", "features", "", id="features"),
        pytest.param("--version", "", "", id="version"),
        pytest.param("", "", "", id="nothing"),
    ],
)
def test_command_and_bundle(line: str, name: str, bundle: str) -> None:
    found = parse(line.split())

    assert (found.name, found.bundle) == (name, bundle)
    assert found.edits is (name in ("create", "run", "restore"))
    named = found.edits or name == "checkpoint"
    assert found.container == ("c2" if name == "exec" else id_of(line) if named else "")
    assert found.executes is (name == "exec")


@pytest.mark.parametrize(
    "line",
    [
        "create --preserve-fds 3 --pid-file=/p --no-pivot X",
        "run -d --keep -b /b --console-socket /s X",
        "create --config /f X --no-new-keyring",
        "create -b /b -- X",
    ],
)
def test_the_container_is_the_word_that_is_no_options_value(line: str) -> None:
    assert parse(line.split()).container == "X"


def test_log_options() -> None:
    assert parse(f"--debug {CONTAINERD} create x".split()) == Command(
        name="create",
        container="x",
        root="/run/containerd/runc/default",
        log="/b/log.json",
        log_format="json",
        debug=True,
        options=tuple(f"--debug {CONTAINERD}".split()),
    )
    assert parse(["--log=/l", "--debug=false", "state"]) == Command(
        name="state", log="/l", options=("--log=/l", "--debug=false")
    )
    assert parse(["-v"]).version


@pytest.mark.parametrize("line", ["create --bundle", "run -b", "create id -bundle"])
def test_a_bundle_without_its_directory(line: str) -> None:
    with pytest.raises(UsageError, match="needs a value"):
        parse(line.split())
