"""``nvidia-ctk runtime configure``: which files it writes, and with which of NVIDIA's options."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.nvc.cli.ctk.conftest import Ctk

CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
PROGRAM = "/usr/bin/nvidia-container-runtime"


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A runtime that exists, as --set-as-default wants it."""
    path = tmp_path / "bin/nvidia-container-runtime"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_docker(ctk: Ctk, tmp_path: Path, program: str) -> None:
    file = tmp_path / "daemon.json"
    file.write_text('{"debug": true, "features": {"buildkit": true}}')
    words = ("runtime", "configure", f"--config={file}", f"--nvidia-runtime-path={program}", "--cdi.enabled")
    ran = ctk(*words, "--nvidia-set-as-default")

    assert (ran.code, ran.out) == (0, "")
    assert f"Wrote updated config to {file}" in ran.err
    assert "It is recommended that docker daemon be restarted" in ran.err
    assert json.loads(file.read_text()) == {
        "debug": True,
        "default-runtime": "nvidia",
        "features": {"buildkit": True, "cdi": True},
        "runtimes": {"nvidia": {"path": program}},
    }
    assert "Nothing to change" in ctk(*words, "--set-as-default").err


@pytest.mark.parametrize("version", [2, 3])
def test_containerd_gets_a_file_beside_the_main_one(ctk: Ctk, tmp_path: Path, version: int) -> None:
    main, beside = tmp_path / "config.toml", tmp_path / "conf.d/99-nvidia.toml"
    runc = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    plugin = f'[plugins."{CRI[version]}"'
    main.write_text(
        f"version = {version}\n{plugin}]\nsandbox_image = 'x'\n{plugin}.containerd.runtimes.runc]\n"
        f"runtime_type = '{runc['runtime_type']}'\n{plugin}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
    )
    where = (f"--config={main}", f"--drop-in-config={beside}")
    assert ctk("runtime", "configure", "--runtime=containerd", *where, "--nvidia-runtime-path=/n").code == 0

    there = tomllib.loads(beside.read_text())
    entry = {**runc, "options": {"SystemdCgroup": True, "BinaryName": "/n"}}
    assert there["plugins"][CRI[version]]["containerd"]["runtimes"] == {"runc": runc, "nvidia": entry}
    assert there["plugins"][CRI[version]]["sandbox_image"] == "x"
    assert tomllib.loads(main.read_text())["imports"] == [f"{tmp_path}/conf.d/*.toml"]


def test_a_containerd_file_of_version_1_takes_the_entry_itself(ctk: Ctk, tmp_path: Path) -> None:
    main = tmp_path / "config.toml"
    main.write_text("[plugins.cri]\nsandbox_image = 'x'\n")

    assert ctk("runtime", "configure", "--runtime=containerd", f"--config={main}", "--runtime-path=/n").code == 0
    assert tomllib.loads(main.read_text())["plugins"]["cri"]["containerd"]["runtimes"]["nvidia"]["options"] == {
        "BinaryName": "/n",
        "Runtime": "/n",
    }


def test_what_the_engine_prints_is_what_a_file_is_made_from(ctk: Ctk, tmp_path: Path) -> None:
    """Without a file of its own, containerd's built-in settings come from ``containerd config dump``."""
    dump = tmp_path / "dump"
    plugin = f'[plugins."{CRI[3]}"'
    text = f"version = 3\n{plugin}]\nenable_selinux = true\n{plugin}.containerd.runtimes.runc]\nruntime_type = 'r'\n"
    dump.write_text(f"#!/bin/sh\n[ \"$*\" = 'config dump' ] || exit 9\ncat <<X\n{text}X\n")
    dump.chmod(0o755)
    main, beside = tmp_path / "config.toml", tmp_path / "conf.d/99-nvidia.toml"
    words = ("runtime", "configure", "--runtime=containerd", f"--config={main}", f"--drop-in-config={beside}")
    ran = ctk(*words, "--config-source=command", f"--executable-path={dump}")

    assert ran.code == 0, ran.err
    plugins = tomllib.loads(beside.read_text())["plugins"][CRI[3]]
    assert plugins["enable_selinux"] is True
    assert plugins["containerd"]["runtimes"]["nvidia"]["runtime_type"] == "r"
    assert tomllib.loads(main.read_text()) == {"version": 3, "imports": [f"{tmp_path}/conf.d/*.toml"]}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo no >&2; exit 3", "ended with 3: no"),
        ("exec sleep 0.1; exit 1", "ended with"),
        ("echo 'x = ['", "not valid"),
    ],
)
def test_an_engine_that_does_not_print_its_settings(ctk: Ctk, tmp_path: Path, body: str, said: str) -> None:
    program = tmp_path / "containerd"
    program.write_text(f"#!/bin/sh\n{body}\n" if "sleep" not in body else "#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    main = tmp_path / "config.toml"
    words = ("--config-source=command", f"--executable-path={program}", f"--config={main}", "--drop-in-config=")
    ran = ctk("runtime", "configure", "--runtime=containerd", *words)

    assert ran.code == 1
    assert said in ran.err
    assert not main.exists()


def test_crio_takes_the_default_runtimes_settings_from_crio(ctk: Ctk, tmp_path: Path) -> None:
    crio = tmp_path / "crio"
    crio.write_text(
        '#!/bin/sh\n[ "$1" = status ] || exit 1\nprintf \'[crio.runtime.runtimes.runc]\\nruntime_root = "/r"\\n\'\n'
    )
    crio.chmod(0o755)
    beside = tmp_path / "crio.conf.d/99-nvidia.toml"
    words = ("--runtime=crio", f"--config={tmp_path}/crio.conf", f"--drop-in-config={beside}", "--cdi.enabled")
    ran = ctk(
        "runtime", "configure", *words, "--config-source=command", f"--executable-path={crio}", "--runtime-path=/n"
    )

    assert ran.code == 0, ran.err
    assert "Ignoring cdi.enabled flag for crio" in ran.err
    entry = {"runtime_root": "/r", "runtime_path": "/n", "runtime_type": "oci"}
    assert tomllib.loads(beside.read_text())["crio"]["runtime"]["runtimes"]["nvidia"] == entry


def test_a_dry_run_prints_whole_files_and_writes_none(ctk: Ctk, tmp_path: Path) -> None:
    file = tmp_path / "daemon.json"
    words = ("runtime", "configure", "--dry-run", f"--config={file}", "--set-as-default")

    assert json.loads(ctk(*words).out)["default-runtime"] == "nvidia"
    assert list(tmp_path.iterdir()) == []


def test_the_oci_hook(ctk: Ctk, tmp_path: Path) -> None:
    file = tmp_path / "hooks.d/nvidia.json"
    words = ("runtime", "configure", "--config-mode=oci-hook", "--nvidia-runtime-hook-path=/h/hook")
    ran = ctk(*words)
    made = json.loads(ran.out)

    assert 'The \\"oci-hook\\" config-mode is deprecated' in ran.err
    assert made["hook"]["path"] == "/h/hook"
    assert made["hook"]["args"] == ["hook", "prestart"]
    assert made["hook"]["env"]
    assert (made["version"], made["stages"], made["when"]["always"]) == ("1.0.0", ["prestart"], True)
    assert json.loads(ctk(*words, "--dry-run", f"--oci-hook-path={file}").out) == made
    assert not file.exists()
    assert ctk(*words, f"--oci-hook-path={file}").out == ""
    assert json.loads(file.read_text()) == made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runtime=x"], "unrecognized runtime 'x'"),
        (["--runtime=docker", "--drop-in-config=/x"], "runtime docker does not support drop-in configs"),
        (["--runtime=crio", "--drop-in-config=x"], 'the drop-in-config path \\"x\\" is not an absolute path'),
        (["--runtime=crio", "--runtime-path=x"], 'the NVIDIA runtime path \\"x\\" is not an absolute path'),
        (["--config-source=x"], "unrecognized Config Source: x"),
        (["--config-mode=hook", "--nvidia-runtime-hook-path=x"], "is not an absolute path"),
        (["--nvidia-runtime-name=runc"], "cannot be the name of a runtime"),
    ],
)
def test_refused(ctk: Ctk, tmp_path: Path, words: list[str], said: str) -> None:
    ran = ctk("runtime", "configure", f"--config={tmp_path}/file", *words)

    assert (ran.code, ran.out) == (1, "")
    assert said in ran.err
    assert list(tmp_path.iterdir()) == []
