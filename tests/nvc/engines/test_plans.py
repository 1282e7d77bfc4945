"""Which files each engine's edits go to, and what the user reads."""

from __future__ import annotations

import json
import tomllib

import pytest

from nvc.base.errors import InputError
from nvc.engines import containerd, crio, docker, hooksd, podman
from nvc.engines.config import EngineConfig, Plan
from nvc.engines.edit import HEADER
from tests.nvc.engines.samples import Memory

MAIN = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
CRI = 'plugins."io.containerd.grpc.v1.cri"'
V2 = f'version = 2\n[{CRI}]\nsandbox_image = "p"\n[{CRI}.containerd.runtimes.runc.options]\nSystemdCgroup = true\n'
CONTAINERD = EngineConfig(main_file=MAIN)
CRIO = EngineConfig(
    main_file="/etc/crio/crio.conf",
    drop_in="/etc/crio/crio.conf.d/99-nvidia.toml",
    hooks_dir="/etc/containers/oci/hooks.d",
)
PODMAN = EngineConfig(
    main_file="/etc/containers/containers.conf",
    drop_in="/etc/containers/containers.conf.d/99-nvidia.conf",
    hooks_dir="/etc/containers/oci/hooks.d",
    hooks=True,
)


def written(plan: Plan) -> list[str]:
    return [edit.path for edit in plan.edits]


# containerd


def test_a_drop_in_of_version_2_carries_the_settings_that_it_would_replace() -> None:
    memory = Memory(**{MAIN: V2})
    plan = memory.carry_out(containerd.plan(CONTAINERD.replace(drop_in=DROP_IN), memory))

    table = tomllib.loads(memory.texts[DROP_IN])["plugins"]["io.containerd.grpc.v1.cri"]
    assert table["sandbox_image"] == "p"
    assert table["containerd"]["runtimes"]["nvidia"]["options"] == {
        "SystemdCgroup": True,
        "BinaryName": "/usr/bin/nvc-runtime",
    }
    assert tomllib.loads(memory.texts[MAIN])["imports"] == ["/etc/containerd/conf.d/*.toml"]
    assert "does not merge them" in plan.notes[0]


def test_a_drop_in_is_made_anew_when_the_settings_changed() -> None:
    memory = Memory(**{MAIN: V2})
    asked = CONTAINERD.replace(drop_in=DROP_IN)
    memory.carry_out(containerd.plan(asked, memory))
    assert containerd.plan(asked, memory).edits == ()
    memory.texts[MAIN] = memory.texts[MAIN].replace('"p"', '"q"')
    memory.carry_out(containerd.plan(asked, memory))

    assert 'sandbox_image = "q"' in memory.texts[DROP_IN]


def test_a_drop_in_goes_with_its_import() -> None:
    memory = Memory(**{MAIN: V2})
    memory.carry_out(containerd.plan(CONTAINERD.replace(drop_in=DROP_IN), memory))
    memory.carry_out(containerd.plan(CONTAINERD.replace(remove=True), memory))

    assert memory.texts == {MAIN: V2}


def test_a_drop_in_goes_and_an_import_that_others_use_stays() -> None:
    memory = Memory(**{MAIN: V2})
    memory.carry_out(containerd.plan(CONTAINERD.replace(drop_in=DROP_IN), memory))
    memory.texts["/etc/containerd/conf.d/10-mine.toml"] = "version = 2\n"
    memory.carry_out(containerd.plan(CONTAINERD.replace(remove=True), memory))

    assert DROP_IN not in memory.texts
    assert tomllib.loads(memory.texts[MAIN])["imports"] == ["/etc/containerd/conf.d/*.toml"]


def test_a_drop_in_keeps_our_runtimes_of_other_names() -> None:
    memory = Memory(**{MAIN: V2})
    for name in ("nvidia", "nvidia-cdi"):
        memory.carry_out(containerd.plan(CONTAINERD.replace(drop_in=DROP_IN, name=name), memory))
    memory.carry_out(containerd.plan(CONTAINERD.replace(remove=True), memory))

    assert "nvidia-cdi" in memory.texts[DROP_IN]
    assert "runtimes.nvidia." not in memory.texts[DROP_IN]


def test_the_edit_goes_where_the_settings_are() -> None:
    """A table in an imported file replaces the main file's in containerd before 2.1: an edit there has no effect."""
    toolkit = (
        f'version = 2\n[{CRI}.containerd.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
    )
    start = {MAIN: 'imports = ["conf.d/*.toml"]\n' + V2, DROP_IN: toolkit}
    memory = Memory(**start)
    plan = memory.carry_out(containerd.plan(CONTAINERD, memory))

    assert written(plan) == [DROP_IN]
    assert "/usr/bin/nvc-runtime" in memory.texts[DROP_IN]
    assert plan.notes == (f"{DROP_IN} is imported and has the CRI settings, so the edit is there",)
    memory.carry_out(containerd.plan(CONTAINERD.replace(remove=True), memory))
    assert memory.texts == start


def test_version_1_has_no_drop_in() -> None:
    with pytest.raises(InputError, match="of version 1") as caught:
        containerd.plan(CONTAINERD.replace(drop_in=DROP_IN), Memory(**{MAIN: "root = '/x'\n"}))
    assert "containerd config migrate" in caught.value.hint


@pytest.mark.parametrize("version", ["4", "'2'", "true", "0"])
def test_a_version_that_containerd_does_not_have(version: str) -> None:
    with pytest.raises(InputError, match="has version"):
        containerd.plan(CONTAINERD, Memory(**{MAIN: f"version = {version}\n"}))


def test_a_disabled_cri_plugin_is_told() -> None:
    plan = containerd.plan(CONTAINERD, Memory(**{MAIN: 'disabled_plugins = ["cri"]\n'}))

    assert "cri in disabled_plugins" in plan.notes[0]


def test_a_broken_import_is_named() -> None:
    with pytest.raises(InputError, match=r"conf.d/a.toml is not valid TOML: line 2"):
        containerd.plan(
            CONTAINERD,
            Memory(**{MAIN: "imports = ['/etc/containerd/conf.d/*']\n", "/etc/containerd/conf.d/a.toml": "\nx"}),
        )


# CRI-O


def test_crio_starts_from_the_default_runtime_of_any_file() -> None:
    """CRI-O's packages set crun up, with its monitor, in a drop-in."""
    memory = Memory(
        **{
            "/etc/crio/crio.conf": '[crio.runtime]\ndefault_runtime = "runc"\n',
            "/etc/crio/crio.conf.d/10-crun.conf": (
                '[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\nmonitor_path = "/m"\n'
            ),
        }
    )
    plan = memory.carry_out(crio.plan(CRIO.replace(cdi=True), memory))

    assert written(plan) == [CRIO.drop_in]
    runtimes = tomllib.loads(memory.texts[CRIO.drop_in])["crio"]["runtime"]["runtimes"]
    assert runtimes == {"nvidia": {"monitor_path": "/m", "runtime_path": "/usr/bin/nvc-runtime", "runtime_type": "oci"}}
    assert plan.notes == ("CRI-O supports CDI without configuration: --cdi changes nothing",)


def test_crio_with_the_hook() -> None:
    memory = Memory()
    asked = CRIO.replace(hooks=True)
    plan = memory.carry_out(crio.plan(asked, memory))

    assert written(plan) == [hooksd.path(asked), CRIO.drop_in]
    assert tomllib.loads(memory.texts[CRIO.drop_in])["crio"]["runtime"] == {
        "hooks_dir": ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"]
    }
    memory.carry_out(crio.plan(asked.replace(remove=True), memory))
    assert memory.texts == {}


# Podman


def test_podman_gets_the_hook_with_an_environment() -> None:
    memory = Memory()
    plan = memory.carry_out(podman.plan(PODMAN, memory))
    hook = json.loads(memory.texts["/etc/containers/oci/hooks.d/nvc.json"])

    assert hook == {
        "version": "1.0.0",
        "hook": {
            "path": "/usr/bin/nvc-hook",
            "args": ["nvc-hook", "prestart"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "timeout": 60,
        },
        "when": {"always": True},
        "stages": ["prestart"],
    }
    assert memory.texts[PODMAN.drop_in].startswith(HEADER)
    assert plan.reload == ""


def test_podman_gets_a_runtime_by_its_own_name_beside_the_hook() -> None:
    """The guard of a share is the runtime's work: `podman run --runtime nvc-runtime`, as the documents have it."""
    memory = Memory()
    memory.carry_out(podman.plan(PODMAN, memory))
    engine = tomllib.loads(memory.texts[PODMAN.drop_in])["engine"]

    assert engine["runtimes"] == {"nvc-runtime": ["/usr/bin/nvc-runtime"]}
    assert "runtime" not in engine
    assert podman.plan(PODMAN, memory).edits == ()
    moved = PODMAN.replace(path="/opt/bin/nvc-runtime")
    memory.carry_out(podman.plan(moved, memory))
    assert tomllib.loads(memory.texts[PODMAN.drop_in])["engine"]["runtimes"] == {"nvc-runtime": [moved.path]}
    memory.carry_out(podman.plan(moved.replace(remove=True), memory))
    assert (memory.texts, memory.backups) == ({}, {})


def test_a_runtime_that_has_the_name_already_stays() -> None:
    mine = '[engine.runtimes]\nnvc-runtime = ["/opt/wrapper"]\n'
    memory = Memory(**{PODMAN.drop_in: mine})
    plan = memory.carry_out(podman.plan(PODMAN, memory))

    assert tomllib.loads(memory.texts[PODMAN.drop_in])["engine"]["runtimes"] == {"nvc-runtime": ["/opt/wrapper"]}
    assert f"the runtime nvc-runtime in {PODMAN.drop_in} is /opt/wrapper, not ours: it stays" in plan.notes
    memory.carry_out(podman.plan(PODMAN.replace(remove=True), memory))
    assert memory.texts == {PODMAN.drop_in: mine}


def test_crio_has_no_runtime_beside_the_hook() -> None:
    memory = Memory()
    memory.carry_out(crio.plan(CRIO.replace(hooks=True), memory))

    assert "runtimes" not in memory.texts[CRIO.drop_in]


def test_a_hooks_file_without_environment_gets_one_and_keeps_the_rest() -> None:
    """CVE-2025-23266: without ``env`` the hook would start with the container's."""
    path = "/etc/containers/oci/hooks.d/nvc.json"
    mine = {
        "version": "1.0.0",
        "hook": {"path": "/usr/local/bin/nvc-hook", "args": ["nvc-hook", "--debug", "/l", "prestart"], "env": []},
        "when": {"annotations": {"gpu": "yes"}},
        "stages": ["prestart"],
    }
    memory = Memory(**{path: json.dumps(mine)})
    memory.carry_out(podman.plan(PODMAN, memory))
    hook = json.loads(memory.texts[path])

    assert hook["hook"]["env"] == hooksd.ENVIRONMENT
    assert hook["hook"]["path"] == "/usr/bin/nvc-hook"
    assert hook["hook"]["args"] == mine["hook"]["args"]  # type: ignore[index]
    assert hook["when"] == mine["when"]


def test_another_programs_hook_is_not_overwritten() -> None:
    memory = Memory(**{"/etc/containers/oci/hooks.d/nvc.json": '{"hook": {"path": "/bin/other"}}'})

    with pytest.raises(InputError, match="starts /bin/other"):
        podman.plan(PODMAN, memory)
    assert podman.plan(PODMAN.replace(remove=True), memory).edits == ()


def test_a_second_nvidia_hook_is_told() -> None:
    memory = Memory(**{"/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json": "{}"})

    assert "starts another NVIDIA hook" in podman.plan(PODMAN, memory).notes[0]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        pytest.param({}, ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"], id="built-in"),
        pytest.param(
            {"/usr/share/containers/containers.conf": '[engine]\nhooks_dir = ["/a"]\n'},
            ["/a", "/etc/containers/oci/hooks.d"],
            id="distribution",
        ),
        pytest.param(
            {
                "/etc/containers/containers.conf": '[engine]\nhooks_dir = ["/a"]\n',
                "/etc/containers/containers.conf.d/50.conf": '[engine]\nhooks_dir = ["/b", {append=true}]\n',
            },
            ["/a", "/b", "/etc/containers/oci/hooks.d"],
            id="appended",
        ),
    ],
)
def test_podman_goes_on_reading_the_hooks_it_read(layers: dict[str, str], expected: list[str]) -> None:
    memory = Memory(**layers)
    memory.carry_out(podman.plan(PODMAN, memory))

    assert tomllib.loads(memory.texts[PODMAN.drop_in])["engine"]["hooks_dir"] == expected
    memory.carry_out(podman.plan(PODMAN.replace(remove=True), memory))
    assert memory.texts == layers


def test_podman_that_reads_the_directory_needs_no_setting() -> None:
    memory = Memory(**{"/etc/containers/containers.conf": '[engine]\nhooks_dir = ["/etc/containers/oci/hooks.d"]\n'})

    memory.carry_out(podman.plan(PODMAN, memory))
    assert "hooks_dir" not in memory.texts[PODMAN.drop_in]


def test_a_directory_with_other_hooks_is_read_on() -> None:
    memory = Memory()
    memory.carry_out(podman.plan(PODMAN, memory))
    memory.texts["/etc/containers/oci/hooks.d/mine.json"] = "{}"
    plan = memory.carry_out(podman.plan(PODMAN.replace(remove=True), memory))

    assert written(plan) == ["/etc/containers/oci/hooks.d/nvc.json", PODMAN.drop_in]
    assert list(tomllib.loads(memory.texts[PODMAN.drop_in])["engine"]) == ["hooks_dir"]
    assert "goes on reading it" in plan.notes[0]


def test_podman_with_a_runtime_beside_the_hook_is_told() -> None:
    memory = Memory()
    memory.carry_out(podman.plan(PODMAN, memory))
    plan = memory.carry_out(podman.plan(PODMAN.replace(hooks=False, default=True), memory))

    assert "for every container already" in plan.notes[0]
    engine = tomllib.loads(memory.texts[PODMAN.drop_in])["engine"]
    assert engine["runtime"] == "nvidia"
    assert engine["runtimes"] == {name: ["/usr/bin/nvc-runtime"] for name in ("nvc-runtime", "nvidia")}


# Docker


@pytest.mark.parametrize(
    ("text", "cdi", "command"),
    [
        pytest.param("{}", False, "systemctl reload docker", id="runtime-only"),
        pytest.param("{}", True, "systemctl restart docker", id="cdi-is-read-at-the-start"),
        pytest.param('{"features": {"cdi": true}}', True, "systemctl reload docker", id="cdi-is-on"),
    ],
)
def test_docker_reload(text: str, cdi: bool, command: str) -> None:
    assert docker.plan(EngineConfig(main_file="/d", cdi=cdi), Memory(**{"/d": text})).reload == command


@pytest.mark.parametrize(
    ("plan", "text", "message"),
    [
        pytest.param(docker.plan, '{"runtimes": []}', "runtimes is not a table", id="docker"),
        pytest.param(docker.plan, '{"runtimes": {"nvidia": 1}}', "runtimes.nvidia is not a table", id="docker-entry"),
        pytest.param(containerd.plan, "version = 2\nplugins = 1\n", "plugins is not a table", id="containerd"),
        pytest.param(crio.plan, "[crio]\nruntime = 'x'\n", "crio.runtime is not a table", id="crio"),
        pytest.param(podman.plan, "engine = []\n", "engine is not a table", id="podman"),
        pytest.param(crio.plan, "[crio.runtime]\nruntimes.nvidia = 1\n", "nvidia is not a table", id="crio-entry"),
    ],
)
def test_a_value_where_a_table_should_be(plan: object, text: str, message: str) -> None:
    assert callable(plan)
    with pytest.raises(InputError, match=message):
        plan(EngineConfig(main_file="/c", hooks_dir="/h"), Memory(**{"/c": text}))


def test_an_entry_that_podman_could_not_read_is_put_right() -> None:
    memory = Memory(**{PODMAN.main_file: "[engine.runtimes.nvidia]\npath = '/x'\n"})
    memory.carry_out(podman.plan(PODMAN.replace(hooks=False, drop_in=""), memory))

    assert tomllib.loads(memory.texts[PODMAN.main_file])["engine"]["runtimes"] == {"nvidia": ["/usr/bin/nvc-runtime"]}


@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("asked", [CRIO, PODMAN], ids=["crio", "podman"])
def test_one_removal_takes_hook_and_runtime(asked: EngineConfig, hooks: bool) -> None:
    plan = crio.plan if asked is CRIO else podman.plan
    memory = Memory()
    for mode in (True, False):
        memory.carry_out(plan(asked.replace(hooks=mode, default=True), memory))
    memory.carry_out(plan(asked.replace(hooks=hooks, remove=True), memory))

    assert (memory.texts, memory.backups) == ({}, {})
