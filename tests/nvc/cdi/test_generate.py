"""From inventories to specs: the whole text for every simulated machine, and what options change."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base.errors import DeviceError, InputError
from nvc.cdi import text
from nvc.cdi.gather import Surroundings, every_node, groups, library_links
from nvc.cdi.generate import HOOKS, THEN, GenerateOptions, generate
from nvc.cdi.spec import CdiDevice, CdiHook, CdiSpec, decode
from nvc.model import DeviceNode, DrmNode, Host
from nvc.sim.description import names
from tests.nvc.cdi.conftest import Machine
from tests.support.inventories import GPU_A, GPU_B, MIG_7, MIG_9, two_gpus, without_gpus

GOLDEN = Path(__file__).with_name("golden")
HOST = Host()
NOWHERE = Surroundings()


def made(**options: object) -> CdiSpec:
    return generate(two_gpus(), NOWHERE, HOST, GenerateOptions(**options))


def device(spec: CdiSpec, name: str) -> CdiDevice:
    return next(device for device in spec.devices if device.name == name)


def nodes(spec: CdiSpec, name: str) -> list[str]:
    return [node.path for node in device(spec, name).edits.device_nodes]


def steps(hooks: tuple[CdiHook, ...]) -> list[list[str]]:
    """The hooks that one entry starts, with their words."""
    words = " ".join(hook for one in hooks for hook in one.args[1:])
    return [part.split() for part in words.split(f" {THEN} ")]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the golden files have the library directories of x86-64")
@pytest.mark.parametrize("name", names())
def test_every_machine_has_the_spec_that_is_written_down(machine: Callable[[str], Machine], name: str) -> None:
    content = text.write(machine(name).spec(), "yaml")
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("GOLDEN") == "write":
        file.write_text(content)
    assert file.read_text() == content


@pytest.mark.parametrize("name", names())
def test_both_formats_say_the_same_and_every_time(machine: Callable[[str], Machine], name: str) -> None:
    spec = machine(name).spec(strategies=("index", "uuid", "type-index"))
    for form in text.FORMATS:
        written = text.write(spec, form)
        assert written == text.write(machine(name).spec(strategies=("index", "uuid", "type-index")), form)
        assert decode(text.read(written.encode(), form)) == (spec, ())


@pytest.mark.parametrize("name", names())
def test_podman_4_3_takes_the_spec_of_every_machine(machine: Callable[[str], Machine], name: str) -> None:
    assert machine(name).spec(additional_gids=False).version == "0.5.0"


def test_names_by_strategy() -> None:
    assert [device.name for device in made(strategies=("index",)).devices] == ["0", "1:0", "1:1", "all"]
    assert [device.name for device in made(strategies=("uuid",)).devices] == [GPU_A, MIG_7, MIG_9, "all"]
    assert [device.name for device in made(strategies=("type-index",)).devices] == ["all", "gpu0", "mig1:0", "mig1:1"]


def test_several_strategies_repeat_the_device() -> None:
    spec = made(strategies=("index", "uuid", "index"))
    assert device(spec, "0").edits == device(spec, GPU_A).edits
    assert len(spec.devices) == 7


def test_a_divided_gpu_is_only_given_in_parts() -> None:
    assert GPU_B not in [device.name for device in made(strategies=("uuid", "index")).devices]


def test_a_mig_device_has_its_parent_and_its_two_capabilities() -> None:
    assert nodes(made(), "1:1") == ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap219", "/dev/nvidia-caps/nvidia-cap220"]


def test_all_is_the_union() -> None:
    spec = made()
    every = {node for device in spec.devices if device.name != "all" for node in device.edits.device_nodes}
    assert set(device(spec, "all").edits.device_nodes) == every
    assert "all" not in [device.name for device in made(all_device=False).devices]


def test_only_what_is_needed_raises_the_version() -> None:
    assert made(strategies=("uuid",)).version == "0.3.0"
    assert made(strategies=("index",)).version == "0.5.0"
    assert made(strategies=("uuid",), device_class="gpu.x").version == "0.6.0"


def test_no_number_is_baked_in() -> None:
    for one in (made(), made(management=False)):
        for edits in (one.edits, *(device.edits for device in one.devices)):
            assert [(node.major, node.minor, node.file_mode) for node in edits.device_nodes] == [(0, 0, 0)] * len(
                edits.device_nodes
            )


def test_capabilities_choose_files_nodes_and_hooks() -> None:
    spec = made(capabilities=("utility",))
    assert [mount.container_path.rpartition("/")[2] for mount in spec.edits.mounts] == [
        "socket",
        "nvidia-smi",
        "gsp_ga10x.bin",
    ]
    assert [node.path for node in spec.edits.device_nodes] == ["/dev/nvidiactl"]
    assert [words[0] for words in steps(spec.edits.hooks)] == ["disable-device-node-modification"]
    assert spec.edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)


def test_compat32_brings_the_32_bit_libraries_and_their_folder() -> None:
    spec = made(capabilities=("compute", "compat32"))
    assert "/usr/lib/i386-linux-gnu" in next(words for words in steps(spec.edits.hooks) if words[0] == "update-ldcache")
    assert not any("i386" in mount.host_path for mount in made(capabilities=("compute",)).edits.mounts)


def test_hooks_are_one_start_of_our_program_and_in_order() -> None:
    hooks = made().edits.hooks
    assert len(hooks) == 1
    assert hooks[0].env != ()
    order = [words[0] for words in steps(hooks)]
    assert order == [name for name in HOOKS if name in order]


def test_another_program_gets_one_entry_each() -> None:
    hooks = made(hook_path="/usr/bin/nvidia-cdi-hook").edits.hooks
    assert [hook.args[:2] for hook in hooks] == [
        ("nvidia-cdi-hook", name) for name in HOOKS if name not in ("create-symlinks", "share")
    ]
    assert all(hook.env for hook in hooks)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        pytest.param(None, [], id="not asked for"),
        pytest.param("", [["share"]], id="as the container says"),
        pytest.param("mem=2Gi", [["share", "--share=mem=2Gi"]], id="with words"),
    ],
)
def test_shares_are_the_last_hook_of_a_spec_that_has_them(share: str | None, words: list[list[str]]) -> None:
    found = steps(made(share=share).edits.hooks)

    assert [step for step in found if step[0] == "share"] == words
    assert words == [] or found[-1:] == words


def test_fixed_settings_are_in_the_hook_that_gives_shares() -> None:
    found = steps(made(share_fixed="mem=2Gi,group=a").edits.hooks)
    assert [step for step in found if step[0] == "share"] == [["share", "--share-fixed=mem=2Gi,group=a"]]
    with pytest.raises(InputError, match="nvidia-cdi-hook knows no shares"):
        made(share_fixed="mem=2Gi", hook_path="/usr/bin/nvidia-cdi-hook")


def test_another_program_cannot_give_shares() -> None:
    with pytest.raises(InputError, match="nvidia-cdi-hook knows no shares"):
        made(share="", hook_path="/usr/bin/nvidia-cdi-hook")


@pytest.mark.parametrize(
    ("path", "first"),
    [("/opt/nvc-py", ("nvc-py", "cdi-hook")), ("/usr/bin/nvidia-ctk", ("nvidia-ctk", "hook"))],
)
def test_programs_with_a_command_before_the_hook(path: str, first: tuple[str, ...]) -> None:
    assert made(hook_path=path).edits.hooks[0].args[:2] == first


def test_hooks_can_be_left_out() -> None:
    left = [words[0] for words in steps(made(disabled_hooks=("update-ldcache",)).edits.hooks)]
    assert "update-ldcache" not in left
    assert "enable-cuda-compat" in left
    assert made(disabled_hooks=("all",)).edits.hooks == ()


def test_links_are_made_only_to_what_is_mounted() -> None:
    cuda = two_gpus().driver.libraries[0].path
    directory, _, name = cuda.rpartition("/")
    around = Surroundings(
        library_links=(
            (f"{directory}/libcuda.so", "libcuda.so.1"),
            (f"{directory}/libcuda.so.1", name),
            (f"{directory}/libother.so.1", "libother.so.9"),
            (f"{directory}/circle", "circle"),
        )
    )
    spec = generate(two_gpus(), around, HOST, GenerateOptions())
    words = steps(spec.edits.hooks)[0]
    assert words[2::2] == [f"libcuda.so.1::{directory}/libcuda.so", f"{name}::{directory}/libcuda.so.1"]


@pytest.mark.parametrize("share", [{"share": ""}, {"share": "mem=2Gi"}, {"share_fixed": "mem=2Gi"}])
@pytest.mark.parametrize("disabled", ["all", "share"])
def test_shares_without_the_hook_that_gives_them_are_refused(share: dict[str, str], disabled: str) -> None:
    with pytest.raises(InputError, match="containers would have whole GPUs"):
        made(disabled_hooks=(disabled,), **share)


def test_drm_nodes_come_with_their_gpu_for_graphics() -> None:
    link = "/dev/dri/by-path/pci-0000:3d:00.0-card"
    drm = (DrmNode(DeviceNode("/dev/dri/card1", 226, 1), link), DrmNode(DeviceNode("/dev/dri/renderD128", 226, 128)))
    first, divided = two_gpus().gpus
    inventory = two_gpus().replace(gpus=(first.replace(drm=drm), divided.replace(drm=drm)))
    spec = generate(inventory, NOWHERE, HOST, GenerateOptions(strategies=("index",)))
    assert nodes(spec, "0") == ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"]
    assert steps(device(spec, "0").edits.hooks) == [["create-symlinks", "--link", f"../card1::{link}"]]
    assert not any("dri" in path for path in nodes(spec, "1:0"))
    plain = generate(inventory, NOWHERE, HOST, GenerateOptions(strategies=("index",), capabilities=("compute",)))
    assert nodes(plain, "0") == ["/dev/nvidia0"]
    modeset = DeviceNode("/dev/nvidia-modeset", 195, 254)
    inventory = inventory.replace(driver=inventory.driver.replace(nodes=(*inventory.driver.nodes, modeset)))
    for share, asked in (
        ({"share": "mem=2Gi"}, False),
        ({"share_fixed": "mem=2Gi"}, False),
        ({"share": ""}, True),
    ):
        spec = generate(inventory, NOWHERE, HOST, GenerateOptions(strategies=("index",), **share))
        assert any("dri" in path for path in nodes(spec, "0")) == asked
        assert (modeset.path in [node.path for node in spec.edits.device_nodes]) == asked


def test_management_is_every_node_and_may_change_them(machine: Callable[[str], Machine]) -> None:
    spec = machine("a100-mig-dev").spec(management=True, vendor="management.nvidia.com")
    assert [device.name for device in spec.devices] == ["all"]
    paths = nodes(spec, "all")
    assert {"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"} <= set(paths)
    assert len(paths) == len(set(paths))
    assert "disable-device-node-modification" not in [words[0] for words in steps(spec.edits.hooks)]


def test_nothing_to_offer_is_an_error() -> None:
    with pytest.raises(DeviceError, match="no GPU"):
        generate(without_gpus(), NOWHERE, HOST, GenerateOptions())
    with pytest.raises(DeviceError, match="no device node"):
        generate(two_gpus(), NOWHERE, HOST, GenerateOptions(management=True))


@pytest.mark.parametrize("options", [{"vendor": "9nvidia"}, {"vendor": ""}, {"device_class": "a/b"}])
def test_names_that_cdi_forbids(options: dict[str, str]) -> None:
    with pytest.raises(InputError):
        made(**options)


def test_links_beside_libraries_are_found(tmp_path: Path) -> None:
    libraries = tmp_path / "usr/lib"
    libraries.mkdir(parents=True)
    (libraries / "libcuda.so.9").touch()
    for name, to in (("libcuda.so.1", "libcuda.so.9"), ("libcuda.so", "libcuda.so.1"), ("libm.so", "libm.so.6")):
        (libraries / name).symlink_to(to)
    (libraries / "loop.so").symlink_to("loop.so")
    host = Host(root=str(tmp_path), system=str(tmp_path))
    assert library_links(host, ("/usr/lib/libcuda.so.9", "/missing/libx.so.1")) == (
        ("/usr/lib/libcuda.so", "libcuda.so.1"),
        ("/usr/lib/libcuda.so.1", "libcuda.so.9"),
    )


@pytest.mark.root
def test_management_nodes_are_those_that_exist(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-fs0", "nvidia-nvswitch1"):
        os.mknod(tmp_path / "dev" / name, 0o020666, os.makedev(1, 3))
    (tmp_path / "dev/nvidia-plain").touch()
    host = Host(root=str(tmp_path), system=str(tmp_path))
    assert every_node(host) == ("/dev/nvidia0", "/dev/nvidiactl")


@pytest.mark.root
def test_groups_are_those_of_nodes_that_not_everybody_may_use(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name, mode, group in (("a", 0o660, 44), ("b", 0o666, 44), ("c", 0o660, 0), ("d", 0o664, 45)):
        os.mknod(tmp_path / "dev" / name, 0o020666, os.makedev(1, 3))
        os.chown(tmp_path / "dev" / name, 0, group)
        os.chmod(tmp_path / "dev" / name, mode)
    found = groups(Host(root=str(tmp_path)), [f"/dev/{name}" for name in "abcde"])
    assert found == {"/dev/a": 44, "/dev/d": 45}


def test_json_is_plain_json() -> None:
    assert json.loads(text.write(made(), "json"))["kind"] == "nvidia.com/gpu"
