"""Our Debian package in place of NVIDIA's: its configuration, specifications and engine settings go on being right, and
after our removal no engine names a program that is gone."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.support.overlaid import Machine

pytestmark = pytest.mark.root

#: What NVIDIA's package and commands (1.20.0) leave on a node, as they write it.
_HOOK = {
    "version": "1.0.0",
    "hook": {
        "path": "/usr/bin/nvidia-container-runtime-hook",
        "args": ["nvidia-container-runtime-hook", "prestart"],
        "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    },
    "when": {"always": True, "commands": [".*"]},
    "stages": ["prestart"],
}
_CRI = 'plugins."io.containerd.grpc.v1.cri"'
_SPEC = """\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/null
containerEdits:
    env:
        - NVIDIA_VISIBLE_DEVICES=void
    hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args:
            - nvidia-cdi-hook
            - create-symlinks
            - --link
            - libcuda.so.1::/usr/lib/libcuda.so
          env:
            - NVIDIA_CTK_DEBUG=false
        - hookName: createContainer
          path: /usr/bin/nvidia-ctk
          args:
            - nvidia-ctk
            - hook
            - update-ldcache
            - --folder
            - /usr/lib
          env:
            - NVIDIA_CTK_DEBUG=false
"""
_FILES = {
    "etc/nvidia-container-runtime/config.toml": (
        'disable-require = false\n#swarm-resource = "DOCKER_RESOURCE_GPU"\n\n[nvidia-container-cli]\n'
        'environment = []\nldconfig = "@/sbin/ldconfig"\nload-kmods = true\n\n[nvidia-container-runtime]\n'
        'log-level = "info"\nmode = "auto"\nruntimes = ["runc", "crun"]\n\n[nvidia-ctk]\npath = "nvidia-ctk"\n'
    ),
    "etc/docker/daemon.json": json.dumps(
        {
            "debug": True,
            "default-runtime": "nvidia",
            "features": {"cdi": True},
            "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}},
        }
    ),
    "etc/containerd/config.toml": 'imports = ["/etc/containerd/conf.d/*.toml"]\nversion = 2\n',
    "etc/containerd/conf.d/99-nvidia.toml": (
        f'version = 2\n[{_CRI}]\nsandbox_image = "x"\n[{_CRI}.containerd]\ndefault_runtime_name = "nvidia"\n'
        f'[{_CRI}.containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
        f'[{_CRI}.containerd.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
        f'[{_CRI}.containerd.runtimes.nvidia-cdi]\nruntime_type = "io.containerd.runc.v2"\n'
        f'[{_CRI}.containerd.runtimes.nvidia-cdi.options]\nBinaryName = "/usr/bin/nvidia-container-runtime.cdi"\n'
    ),
    "etc/crio/crio.conf.d/99-nvidia.toml": (
        '[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\n'
        'runtime_path = "/usr/bin/nvidia-container-runtime"\nruntime_type = "oci"\n'
    ),
    "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json": json.dumps(_HOOK),
    "etc/cdi/nvidia.yaml": _SPEC,
}
_NAMED = re.compile(r"/usr/bin/(?:nv[a-z.-]+[a-z])")


def named(machine: Machine) -> dict[str, set[str]]:
    """File that an engine reads -> our programs that it names; Docker's program without a directory too."""
    found: dict[str, set[str]] = {}
    for top in (
        "etc/docker",
        "etc/containerd",
        "etc/crio",
        "etc/containers",
        "etc/cdi",
        "run/cdi",
        "usr/share/containers",
    ):
        for path in Path(machine.root, top).rglob("*"):
            if path.is_file() and path.suffix in (".json", ".toml", ".conf", ".yaml"):
                text = path.read_text().replace('"nvidia-container-runtime"', '"/usr/bin/nvidia-container-runtime"')
                programs = {program for program in _NAMED.findall(text) if "/bin/" in program}
                if programs:
                    found[str(path.relative_to(machine.root))] = programs
    return found


@pytest.fixture
def node(machine: Machine, deb: Path) -> Machine:
    """A node that NVIDIA's toolkit has set up, with our package."""
    for name, text in _FILES.items():
        path = machine.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    machine.run("dpkg", "-i", "--force-confold", machine.put(deb))
    return machine


def test_everything_that_is_named_starts(node: Machine) -> None:
    there = named(node)
    assert set(there) == {name for name in _FILES if "config.toml" not in name}, there
    programs = set().union(*there.values())

    assert programs == {
        "/usr/bin/nvidia-container-runtime",
        "/usr/bin/nvidia-container-runtime.cdi",
        "/usr/bin/nvidia-container-runtime-hook",
        "/usr/bin/nvidia-cdi-hook",
        "/usr/bin/nvidia-ctk",
    }
    for program in programs:
        assert os.access(f"{node.root}{program}", os.X_OK), program
    # A container that asks for nothing, through the hook, with the toolkit's configuration.
    state = '{"ociVersion":"1.0","id":"x","status":"creating","pid":1,"bundle":"/tmp/b"}'
    config = '{"ociVersion":"1.0","process":{"env":[]},"root":{"path":"rootfs"}}'
    steps = [
        f"mkdir -p /tmp/b/rootfs/usr/lib; printf '{config}' >/tmp/b/config.json; printf '{state}' >/tmp/b/state",
        "nvidia-container-runtime-hook prestart </tmp/b/state",
        "unshare -m nvidia-cdi-hook create-symlinks --link a::/usr/lib/b </tmp/b/state",
        "unshare -m nvidia-ctk hook chmod --mode 755 --path /usr/lib </tmp/b/state",
        "readlink /tmp/b/rootfs/usr/lib/b",
    ]
    assert node.run("sh", "-euc", "; ".join(steps)) == "a\n"
    assert node.run("nvidia-ctk", "cdi", "list").splitlines()[0].endswith('msg="Found 1 CDI devices"')
    assert 'mode = "cdi"' in node.run("nvidia-ctk", "config", "--set=nvidia-container-runtime.mode=cdi")


def test_an_engine_that_is_set_up_again_stays_right(node: Machine) -> None:
    """By NVIDIA's command and by ours, and taken back by ours."""
    before = {name: Path(node.root, name).read_text() for name in _FILES}
    for engine in ("docker", "containerd", "crio"):
        node.run("nvidia-ctk", "runtime", "configure", f"--runtime={engine}")
    node.run("nvc-py", "runtime", "configure", "--runtime=docker")
    assert (
        json.loads(Path(node.root, "etc/docker/daemon.json").read_text())["runtimes"]["nvidia"]["path"]
        == "/usr/bin/nvc-runtime"
    )
    node.run("nvc-py", "runtime", "configure", "--runtime=docker", "--remove")

    docker = json.loads(Path(node.root, "etc/docker/daemon.json").read_text())
    assert docker["default-runtime"] == "nvidia"
    assert docker["runtimes"]["nvidia"]["path"].endswith("nvidia-container-runtime")
    crio = tomllib.loads(Path(node.root, "etc/crio/crio.conf.d/99-nvidia.toml").read_text())
    assert crio == tomllib.loads(before["etc/crio/crio.conf.d/99-nvidia.toml"])


def test_a_removal_leaves_no_name_of_ours(node: Machine) -> None:
    node.run("nvidia-ctk", "runtime", "configure", "--runtime=docker", "--set-as-default", "--cdi.enabled")
    node.run("nvc-py", "runtime", "configure", "--runtime=podman")
    node.run("nvc-py", "runtime", "configure", "--runtime=crio", "--set-as-default")
    said = node.run("dpkg", "-r", "nvc-py")

    assert named(node) == {}
    assert "by hand" not in said
    assert "/etc/cdi/nvidia.yaml: names hooks that are removed" in said
    assert Path(node.root, "etc/cdi/nvidia.yaml.nvc-removed").read_text() == _SPEC
    docker = json.loads(Path(node.root, "etc/docker/daemon.json").read_text())
    assert docker["debug"] is True
    assert "default-runtime" not in docker
    beside = tomllib.loads(Path(node.root, "etc/containerd/conf.d/99-nvidia.toml").read_text())
    cri = beside["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == "x"
    assert "default_runtime_name" not in cri.get("containerd", {})


def test_a_removal_after_the_administrators_edits_leaves_every_engine_working(node: Machine) -> None:
    """N4: in files that we wrote, and in tables of ours, another program has written since."""
    for name in _FILES:
        if name.startswith(("etc/docker", "etc/containerd", "etc/crio", "usr/share")):
            Path(node.root, name).unlink()
    for engine in ("docker", "containerd", "crio", "podman"):
        node.run("nvc-py", "runtime", "configure", f"--runtime={engine}", "--set-as-default", "--cdi.enabled")

    docker = Path(node.root, "etc/docker/daemon.json")
    changed = json.loads(docker.read_text())
    changed["runtimes"]["mine"] = {"path": "/usr/bin/crun"}
    docker.write_text(json.dumps({"log-level": "warn", **changed}, indent="\t"))
    mine = {
        "containerd": f'# mine\n[{_CRI}.containerd.runtimes.mine]\nruntime_type = "io.containerd.runc.v2"\n',
        "crio": '# mine\n[crio.runtime.runtimes.mine]\nruntime_path = "/usr/bin/crun"\n',
        "podman": "# mine\n[containers]\npids_limit = 100\n",
    }
    inside = {
        "containerd": ("[.]options]\n", "SystemdCgroup = true\n"),
        "crio": ("[.]runtimes[.]nvidia]\n", 'monitor_path = "/usr/bin/conmon"\n'),
        "podman": ("\\[engine]\n", 'cgroup_manager = "cgroupfs"\n'),
    }
    files = {
        "containerd": Path(node.root, "etc/containerd/config.toml"),
        "crio": Path(node.root, "etc/crio/crio.conf.d/99-nvidia.toml"),
        "podman": Path(node.root, "etc/containers/containers.conf.d/99-nvidia.conf"),
    }
    for engine, path in files.items():
        table, line = inside[engine]
        text, count = re.subn(f"(?m)({table})", lambda found, line=line: found[1] + line, path.read_text())
        assert count, (engine, path.read_text())
        path.write_text(f"{text}\n{mine[engine]}")
    said = node.run("dpkg", "-r", "nvc-py")

    assert named(node) == {}, said
    left = json.loads(docker.read_text())
    assert left.pop("log-level") == "warn"
    assert left.pop("runtimes") == {"mine": {"path": "/usr/bin/crun"}}
    assert "default-runtime" not in left
    after = {engine: path.read_text() for engine, path in files.items()}
    parsed = {engine: tomllib.loads(text) for engine, text in after.items()}
    containerd = parsed["containerd"]["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert containerd["runtimes"]["mine"] == {"runtime_type": "io.containerd.runc.v2"}
    assert "default_runtime_name" not in containerd
    assert parsed["crio"]["crio"]["runtime"]["runtimes"]["mine"] == {"runtime_path": "/usr/bin/crun"}
    assert "default_runtime" not in parsed["crio"]["crio"]["runtime"]
    assert parsed["podman"]["containers"] == {"pids_limit": 100}
    assert "runtime" not in parsed["podman"].get("engine", {})
    for engine, text in after.items():
        assert "# mine" in text
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert not re.search("nvidia|nvc-", "\n".join(lines)), (engine, text)
    # The engine's own word; Docker 20.10 has no --validate, and Podman none without a store.
    if shutil.which("containerd"):
        assert "nvidia" not in node.run("containerd", "--config", "/etc/containerd/config.toml", "config", "dump")
