"""What a container, or its image, may ask for: by annotations outside of Kubernetes, and of which kinds."""

from __future__ import annotations

import json

import pytest

from tests.hook.runtime.conftest import Bench

ALL, NOT_ASKED = (
    {"cdi.k8s.io/x": "nvidia.com/gpu=all"},
    "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n",
)
PODMAN = {"io.container.manager": "libpod", "io.kubernetes.cri.container-type": "container"}


def given(bench: Bench) -> str:
    """The devices that the hook is to give in place of what variables ask for, "" without such a hook."""
    hooks = bench.content.get("hooks", {}).get("prestart", [])
    words = [word for hook in hooks for word in hook["env"] if word.startswith("NVC_DEVICES=")]
    return "".join(words).removeprefix("NVC_DEVICES=")


@pytest.mark.parametrize("manager", [{}, PODMAN])
def test_an_annotation_counts_as_a_variable_does_where_it_may_be_an_images(
    bench: Bench, manager: dict[str, str]
) -> None:
    """Attack: Podman 4.5.0 and older copy an image's annotations, of any name, into config.json."""
    path = bench.path / "etc/nvc/config.toml"
    settings = path.read_text()
    lib = "NVIDIA_DRIVER_CAPABILITIES=compute,compat32"  # the hook gives CDI devices, whatever specifications there are
    for text, asked, devices in (
        (NOT_ASKED + settings, (), ""),
        (settings, (), "all"),
        (settings, ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0",), "0"),
        (settings, ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all",), "all"),
        (settings, ("NVIDIA_VISIBLE_DEVICES=void",), ""),
    ):
        path.write_text(text)
        bench.write((lib, *asked), annotations={**ALL, **manager})
        assert (bench.create().returncode, given(bench)) == (0, devices)

    # An image's ENV gives no more than root's annotation, and two that differ nothing.
    bench.write((lib, "NVIDIA_VISIBLE_DEVICES=all"), annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0", **manager})
    assert (bench.create().returncode, given(bench)) == (0, "0")
    bench.write((lib, "NVIDIA_VISIBLE_DEVICES=1"), annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0", **manager})
    done = bench.create()
    assert done.returncode == 1
    assert r"annotations ask for 'nvidia.com\x2fgpu=0', mounts or variables for 'nvidia.com\x2fgpu=1'" in done.stderr


@pytest.mark.parametrize("way", ["variable", "annotation"])
def test_a_container_names_no_device_of_another_vendor(bench: Bench, way: str) -> None:
    """Attack: an image's ENV names a device that is a directory of the host, and a hook."""
    (bench.path / "cdi").mkdir()
    edits = {"mounts": [{"hostPath": "/var/backups", "containerPath": "/backups"}]}
    spec = {"cdiVersion": "0.6.0", "kind": "acme.com/backup", "devices": [{"name": "disk", "containerEdits": edits}]}
    (bench.path / "cdi/acme.json").write_text(json.dumps(spec))
    name = "acme.com/backup=disk"
    env, annotations = ([f"NVIDIA_VISIBLE_DEVICES={name}"], {}) if way == "variable" else ([], {"cdi.k8s.io/x": name})
    table = f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{bench.path}/cdi"]\n'

    bench.configure(more=table)
    bench.write(env, annotations=annotations)
    done = bench.create()
    assert (done.returncode, bench.executed) == (1, None)
    assert r"asks for 'acme.com\x2fbackup=disk', a CDI device that is not NVIDIA's" in done.stderr

    bench.configure(more=f'{table}container-kinds = ["acme.com/backup"]\n')
    assert bench.create().returncode == 0
    assert [mount["destination"] for mount in bench.content["mounts"]] == ["/backups"]
