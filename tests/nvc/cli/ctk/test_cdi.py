"""``nvidia-ctk cdi``: the specs of ``nvc.cdi`` by NVIDIA's options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from nvc.cdi.files import load
from nvc.cdi.spec import CdiDevice, CdiDeviceNode, CdiEdits, CdiHook, CdiMount, CdiSpec
from nvc.cdi.transform import transform_root
from nvc.cli.main import main as nvc_py
from nvc.model import CSV_DIRECTORY
from nvc.sim.create import create
from tests.nvc.cli.ctk.conftest import Ctk
from tests.support.native import build


@pytest.fixture(scope="module")
def sims(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Simulated machines: a whole GPU, and one of two GPUs divided by MIG."""
    build()
    places = {name: tmp_path_factory.mktemp("sim") / name for name in ("h200", "a100-mig-dev")}
    for name, place in places.items():
        create(str(place), name)
    return {name: str(place) for name, place in places.items()}


def test_the_spec_is_that_of_nvc_py(ctk: Ctk, sims: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    hook = "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook"
    ran = ctk(f"--sim={sims['h200']}", "cdi", "generate", hook)
    assert ran.code == 0, ran.err
    assert "Generated CDI spec with version 0.5.0" in ran.err

    words = [f"--sim={sims['h200']}", "cdi", "generate", "--nvc-hook-path=/usr/bin/nvidia-cdi-hook"]
    assert nvc_py(words, "nvc-py") == 0
    assert capfd.readouterr().out == ran.out


@pytest.mark.parametrize(
    ("machine", "words", "names"),
    [
        ("h200", ["--device-id=0"], ["0", "GPU-", "all"]),
        ("h200", ["--devices=all", "--no-all-device", "--device-name-strategy=type-index"], ["gpu0"]),
        ("a100-mig-dev", ["--device=0:0", "--device-name-strategy=index"], ["0:0", "all"]),
        ("a100-mig-dev", ["--device-ids=0:0,1:0", "--device-name-strategy=index"], ["0:0", "1:0", "all"]),
    ],
)
def test_devices(ctk: Ctk, sims: dict[str, str], machine: str, words: list[str], names: list[str]) -> None:
    ran = ctk(f"--sim={sims[machine]}", "cdi", "generate", *words)

    assert ran.code == 0, ran.err
    found = [device["name"] for device in yaml.safe_load(ran.out)["devices"]]
    assert [name[:4] if name.startswith("GPU-") else name for name in found] == names


def test_other_options(ctk: Ctk, sims: dict[str, str]) -> None:
    words = [
        "--vendor=example.com",
        "--cdi-class=x",
        "--format=JSON",
        "--disable-hook=all",
        "--enable-hooks=update-ldcache",
    ]
    ran = ctk(
        f"--sim={sims['h200']}", "cdi", "generate", *words, "--ldconfig-path=/l", "--nvidia-ctk-path=/b/nvidia-ctk"
    )
    spec = json.loads(ran.out)

    assert spec["kind"] == "example.com/x"
    (hook,) = spec["containerEdits"]["hooks"]
    assert hook["path"] == "/b/nvidia-ctk"
    assert hook["args"][:4] == ["nvidia-ctk", "hook", "update-ldcache", "--ldconfig-path=/l"]


def test_libraries_are_searched_below_the_driver_root_only(ctk: Ctk, sims: dict[str, str]) -> None:
    ran = ctk(f"--sim={sims['h200']}", "cdi", "generate", "--library-search-path=/x", "--csv.file=/x")

    assert ran.code == 1
    assert "not below the driver root" in ran.err


def test_mount_lists_of_a_tegra_can_be_named(ctk: Ctk, tmp_path: Path) -> None:
    machine = tmp_path / "orin"
    create(str(machine), "tegra-orin")
    directory = machine / CSV_DIRECTORY[1:]

    def parts(*words: str) -> tuple[set[str], list[str]]:
        ran = ctk(f"--sim={machine}", "cdi", "generate", "--mode=csv", *words)
        assert ran.code == 0, ran.err
        edits = yaml.safe_load(ran.out)["containerEdits"]
        links = [word for hook in edits["hooks"] for word in hook["args"] if "::" in word]
        return {Path(mount["containerPath"]).name for mount in edits["mounts"]}, links

    base, links = parts()
    every = [f"--csv.file={directory}/{name}.csv" for name in ("devices", "drivers", "l4t", "cudnn")]

    assert "libcudnn.so.8.6.0" not in base
    assert "libcudnn.so.8.6.0" in parts(*every)[0] > base
    assert parts(*every[:2])[0] == base - {"nv_tegra_release"}
    assert any("libcuda.so" in link for link in links)
    assert not any("libcuda.so" in link for link in parts("--csv.ignore-pattern=**/libcuda.so*")[1])
    assert parts("--csv.ignore-pattern=**/libcuda.so*")[0] == base


ON_AN_ORIN, ELSEWHERE = "--cuda-compat-container-root=/usr/local/cuda/compat_orin", "--cuda-compat-container-root=/x"


@pytest.mark.parametrize(
    ("nvml", "chip", "words", "expected"),
    [
        (False, "tegra234", ["--csv.compat-container-root=/x"], None),
        (True, "tegra234", [], ["--host-cuda-version=11.4", ON_AN_ORIN]),
        (True, "tegra234", ["--csv.compat-container-root=/x"], ["--host-cuda-version=11.4", ELSEWHERE]),
        (True, "tegra264", [], ["--host-cuda-version=11.4"]),
    ],
)
def test_compat_libraries_of_a_tegra(
    ctk: Ctk, tmp_path: Path, nvml: bool, chip: str, words: list[str], expected: list[str] | None
) -> None:
    """As there: with NVML alone, which releases before JetPack 7 do not have."""
    machine = tmp_path / "tegra"
    create(str(machine), "tegra-orin")
    (machine / "proc/device-tree/compatible").write_text(f"nvidia,board\0nvidia,{chip}\0")
    if nvml:
        (machine / "usr/lib/libnvidia-ml.so.1").touch()
        with open(machine / CSV_DIRECTORY[1:] / "drivers.csv", "a") as rows:
            rows.write("lib, /usr/lib/libnvidia-ml.so.1\n")
    ran = ctk(
        f"--sim={machine}", "cdi", "generate", "--mode=csv", "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook", *words
    )
    assert ran.code == 0, ran.err
    hooks = [hook["args"][1:] for hook in yaml.safe_load(ran.out)["containerEdits"]["hooks"]]
    found = [arguments for name, *arguments in hooks if name == "enable-cuda-compat"]
    assert found == ([] if expected is None else [expected])


def test_sockets_can_be_left_out(ctk: Ctk, sims: dict[str, str]) -> None:
    def targets(*words: str) -> set[str]:
        out = ctk(f"--sim={sims['h200']}", "cdi", "generate", *words).out
        return {mount["containerPath"] for mount in yaml.safe_load(out)["containerEdits"]["mounts"]}

    assert not [path for path in targets("--feature-flag=disable-ipc-discoverer") if "persistenced/socket" in path]
    assert "Ignoring unknown feature flag: x" in ctk(f"--sim={sims['h200']}", "cdi", "generate", "--feature-flag=x").err


@pytest.mark.parametrize(
    ("words", "name", "form"),
    [
        (["--output", "{}/a.yaml"], "a.yaml", "yaml"),
        (["--output", "{}/a.json"], "a.json", "json"),
        (["--output", "{}/a.yml"], "a.yml.yaml", "yaml"),
        (["--output", "{}/a", "--format=json"], "a.json", "json"),
    ],
)
def test_files(ctk: Ctk, sims: dict[str, str], tmp_path: Path, words: list[str], name: str, form: str) -> None:
    out = tmp_path / "cdi"
    ran = ctk(f"--sim={sims['h200']}", "cdi", "generate", *(word.format(out) for word in words))

    assert (ran.code, ran.out) == (0, "")
    assert [path.name for path in out.iterdir()] == [name]
    assert load(str(out / name), form=form).problems == ()
    listed = ctk("cdi", "list", f"--spec-dir={out}")
    assert listed.out.splitlines()[0] == "nvidia.com/gpu=0"
    assert "Found 3 CDI devices" in listed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format=x"], "invalid output format: x"),
        (["--vendor=9"], "invalid CDI vendor name: "),
        (["--class=a b"], "invalid CDI class name: "),
        (["--device-name-strategy=x"], "invalid device name strategy: x"),
        (["--enable-hook=all"], "enabling all hooks is not supported"),
        (["--enable-hook=chmod"], "no specification of ours has this hook"),
        (["--feature-flag=enable-coherent-annotations"], "specifications of ours have no annotations"),
        (["--csv.compat-container-root=x"], "x is not an absolute path"),
        (["--mode=x"], "unknown mode 'x'"),
        (["--ldconfig-path=sbin/ldconfig"], "sbin/ldconfig is not an absolute path"),
        (["--device-id=none"], "names no device"),
        (["--device-id=9"], "9: unknown device"),
        (["--device-id=all", "--device-id=9"], "9: unknown device"),
        (["--mode=csv", "--csv.file=/x"], "--csv.file /x is not below the driver root"),
        (["--mode=csv", "--csv.file="], "--csv.file '' is not an absolute path"),
        (["--device-id=GPU-x"], "unknown device"),
    ],
)
def test_refused(ctk: Ctk, sims: dict[str, str], words: list[str], said: str) -> None:
    ran = ctk(f"--sim={sims['h200']}", "cdi", "generate", *words)

    assert (ran.code, ran.out) == (1, "")
    assert said in ran.err


def test_a_gpu_that_is_divided_is_not_given_whole(ctk: Ctk, sims: dict[str, str]) -> None:
    assert "GPU 0 is divided by MIG" in ctk(f"--sim={sims['a100-mig-dev']}", "cdi", "generate", "--device-id=0").err


def test_the_driver_root_of_the_configuration_counts(ctk: Ctk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[nvidia-container-cli]\nroot = "/nonexistent/driver"\n')

    assert "/nonexistent/driver" in ctk(f"--config={file}", "cdi", "generate").err
    monkeypatch.setenv("NVIDIA_CTK_DRIVER_ROOT", "/nonexistent/other")
    assert "/nonexistent/other" in ctk(f"--config={file}", "cdi", "generate").err


def _spec(node: CdiDeviceNode, mount: CdiMount, *hooks: CdiHook) -> CdiSpec:
    edits = CdiEdits(device_nodes=(node,), mounts=(mount,), hooks=hooks)
    return CdiSpec("0.5.0", "a.com/b", (CdiDevice("x", edits),), edits)


START = "startContainer"
BEFORE = _spec(
    CdiDeviceNode("/r/dev/a"),
    CdiMount("/r/lib/x", "/r/lib/x"),
    CdiHook("createContainer", "/r/bin/h", ("h", "--link", "/r/t::/r/l", "/ra")),
    CdiHook("prestart", "/r/bin/h", ("h", "/r/y", "/r")),
    CdiHook(START, "/r/bin/h", ("/r/z",)),
)


def test_the_root_on_the_host_is_replaced() -> None:
    after = transform_root(BEFORE, "/r", "/new", "host")

    assert after.edits == after.devices[0].edits
    assert after.edits.device_nodes == (CdiDeviceNode("/r/dev/a", "/new/dev/a"),)
    assert after.edits.mounts == (CdiMount("/new/lib/x", "/r/lib/x"),)
    assert after.edits.hooks == (
        CdiHook("createContainer", "/new/bin/h", ("h", "--link", "/r/t::/r/l", "/ra")),
        CdiHook("prestart", "/new/bin/h", ("h", "/new/y", "/new")),
        CdiHook(START, "/r/bin/h", ("/r/z",)),
    )


def test_the_root_in_the_container_is_replaced() -> None:
    after = transform_root(BEFORE, "/r/", "/", "container")

    assert after.edits.device_nodes == (CdiDeviceNode("/dev/a", "/r/dev/a"),)
    assert after.edits.mounts == (CdiMount("/r/lib/x", "/lib/x"),)
    assert after.edits.hooks == (
        CdiHook("createContainer", "/r/bin/h", ("h", "--link", "/t::/l", "/ra")),
        CdiHook("prestart", "/r/bin/h", ("h", "/r/y", "/r")),
        CdiHook(START, "/bin/h", ("/z",)),
    )


def test_the_same_root_changes_nothing() -> None:
    assert transform_root(BEFORE, "/r", "/r", "host") is BEFORE


def test_transform_root(ctk: Ctk, sims: dict[str, str], tmp_path: Path) -> None:
    file, new = tmp_path / "a.yaml", tmp_path / "b.json"
    sim = sims["h200"]
    assert ctk(f"--sim={sim}", "cdi", "generate", f"--output={file}").code == 0
    words = ("cdi", "transform", "root", f"--from={sim}", "--to=/host", f"--input={file}")

    assert ctk(*words, f"--output={new}").code == 0
    text = new.read_text()
    assert f'"hostPath": "{sim}' not in text
    assert '"hostPath": "/host/dev/nvidia0"' in text
    assert yaml.safe_load(ctk(*words).out) == json.loads(text)
    assert ctk(*words, "--relative-to=x").code == 1
    assert "No such file" in ctk("cdi", "transform", "root", "--input=/nonexistent").err.replace("no such", "No such")
