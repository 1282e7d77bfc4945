"""``nvc-py cdi``: what people type, and what they are told when it is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.cdi.spec import decode
from nvc.cli.cdi import find_hook
from nvc.cli.main import main
from tests.nvc.cdi.conftest import Machine
from tests.nvc.cdi.test_files import spec

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = main(words, "nvc-py")
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def sim(machine: Callable[[str], Machine]) -> str:
    return f"--sim={machine('h200').host.root}"


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_generate_writes_what_it_prints_and_validate_likes_it(run: Run, sim: str, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"nvidia.{form}"
    code, out, err = run(sim, "cdi", "generate", "--output", str(path), "--nvc-hook-path=/opt/nvc-cdi-hook")
    assert (code, out) == (0, "")
    assert "SIMULATED" in err
    assert f"{path}: CDI 0.5.0, nvidia.com/gpu=0, nvidia.com/gpu=GPU-" in err
    assert run(sim, "cdi", "generate", "--format", form, "--nvc-hook-path=/opt/nvc-cdi-hook")[1] == path.read_text()
    assert run("cdi", "validate", str(path)) == (0, "", "1 file, 0 with mistakes\n")
    names = run("cdi", "list", "--spec-dir", str(tmp_path))[1].splitlines()
    assert names[0] == "nvidia.com/gpu=0"
    assert len(names) == 3


def test_check_compares_with_the_file(run: Run, sim: str, tmp_path: Path) -> None:
    path = tmp_path / "nvidia.yaml"
    words = (sim, "cdi", "generate", "--output", str(path), "--nvc-hook-path=/opt/nvc-cdi-hook")
    assert run(*words, "--check")[:2] == (2, f"{path}: would be made\n")
    assert not path.exists()
    assert run(*words)[0] == 0
    assert run(*words, "--check")[:2] == (0, f"{path}: nothing to change\n")
    path.write_text("old")
    assert run(*words, "--check")[:2] == (2, f"{path}: would change\n")
    assert path.read_text() == "old"
    assert run(sim, "cdi", "generate", "--check")[0] == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["-o", "x.yml"], "engines read files ending in .yaml or .json, not .yml", id="ending"),
        pytest.param(["-o", "x.yaml", "--format=json"], "--format json does not fit its ending", id="other-format"),
        pytest.param(["--mode=gds"], "mode gds: this host has no /dev/nvidia-fs*", id="mode-without-devices"),
        pytest.param(["--mode=imex"], "has no /dev/nvidia-caps-imex-channels/channel*", id="imex-without-channels"),
        pytest.param(["--mode=imex", "--device-id=0"], "mode imex has no device of one", id="imex-of-a-gpu"),
        pytest.param(["--mode=management", "--share-fixed=mem=1Gi"], "mode management has no", id="share-of-all"),
        pytest.param(["--mode=gds", "--share"], "shares are of GPUs, and mode gds has no", id="share-of-none"),
        pytest.param(["--mode=management", "--device-id=0"], "mode management has no", id="management-of-a-gpu"),
        pytest.param(["--mode=x"], "--mode takes auto, nvml, wsl, csv, management, gds", id="mode-hint"),
        pytest.param(["--library-search-path=/opt"], "/opt is not below the driver root", id="outside-of-the-root"),
        pytest.param(["--config-search-path=x"], "--config-search-path 'x' is not an absolute path", id="relative"),
        pytest.param(["--mode=x"], "unknown mode 'x'", id="mode-unknown"),
        pytest.param(["--capabilities=x"], "unknown driver capability: x", id="capability"),
        pytest.param(["--vendor=9"], "the vendor '9' does not start with a letter", id="vendor"),
        pytest.param(["--class=a b"], "the class 'a b' contains ' '", id="class"),
        pytest.param(["--nvc-hook-path=x"], "--nvc-hook-path 'x' is not an absolute path", id="hook-path"),
        pytest.param(["--cdi-hook-path=x"], "is not an absolute path", id="hook-path-by-its-other-name"),
        pytest.param(["--device-name-strategy=x"], "is not one of 'index', 'uuid', 'type-index'", id="strategy"),
        pytest.param(["--disable-hook=x"], "'x' is not one of", id="hook"),
        pytest.param(["-o", "/proc/x/a.yaml"], "/proc/x/a.yaml could not be written", id="place"),
    ],
)
def test_mistakes_are_told(run: Run, sim: str, words: list[str], expected: str) -> None:
    code, out, err = run(sim, "cdi", "generate", *words)
    assert (code, out) == (1, "")
    assert expected in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("mode", "names", "kind", "nodes"),
    [
        ("gds", ["nvidia-fs0", "nvidia-fs1"], "nvidia.com/gds", {"all": ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]}),
        ("gdrcopy", ["gdrdrv", "gdrdrv2"], "nvidia.com/gdrcopy", {"all": ["/dev/gdrdrv"]}),
        (
            "imex",
            ["nvidia-caps-imex-channels/channel10", "nvidia-caps-imex-channels/channel2"],
            "nvidia.com/imex-channel",
            {
                name: [f"/dev/nvidia-caps-imex-channels/channel{number}" for number in numbers]
                for name, numbers in (("2", (2,)), ("10", (10,)), ("all", (2, 10)))
            },
        ),
    ],
)
def test_modes_of_other_drivers_have_kinds_of_their_own(
    run: Run, tmp_path: Path, mode: str, names: list[str], kind: str, nodes: dict[str, list[str]]
) -> None:
    for name in names:
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / "dev" / name)
    code, out, err = run(f"--root={tmp_path}", "cdi", "generate", f"--mode={mode}", "--format=json")
    assert code == 0, err
    made = json.loads(out)
    assert made["kind"] == kind
    assert made["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    found = {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]] for device in made["devices"]
    }
    assert found == nodes
    assert not tuple(decode(made)[1])
    (tmp_path / "driver").mkdir()
    words = f"--root={tmp_path}/driver", "cdi", "generate", f"--mode={mode}", f"--dev-root={tmp_path}", "--format=json"
    code, out, err = run(*words)
    assert code == 0, err
    assert json.loads(out) == made


def test_management_has_a_kind_of_its_own(run: Run, machine: Callable[[str], Machine]) -> None:
    host = machine("imex").host
    code, out, _ = run(f"--sim={host.root}", "cdi", "generate", "--mode=management", "--format=json")
    made = json.loads(out)
    assert code == 0
    assert made["kind"] == "management.nvidia.com/gpu"
    paths = [node["path"] for node in made["devices"][0]["containerEdits"]["deviceNodes"]]
    assert [path for path in paths if "imex" in path] != []


def test_the_hook_program_is_that_beside_this_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nvc-cdi-hook").write_text("#!/bin/sh\n")
    (tmp_path / "nvc-cdi-hook").chmod(0o755)
    (tmp_path / "link").symlink_to("nvc-py")
    assert find_hook(str(tmp_path / "link")) == str(tmp_path / "nvc-cdi-hook")


def test_a_missing_hook_program_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_hook(str(tmp_path / "nvc-py")) == "/usr/local/bin/nvc-cdi-hook"
    assert "containers cannot start with this spec" in capfd.readouterr().err


def test_validate_names_file_field_and_reason(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(spec("0"))
    (tmp_path / "bad.yaml").write_text(spec("0", version="0.3.0") + "kind2: x\n")
    (tmp_path / "ugly.json").write_text("[")
    code, out, err = run("cdi", "validate", "--spec-dir", str(tmp_path))
    assert code == 1
    assert out.splitlines() == [
        f"{tmp_path}/bad.yaml: kind2: unknown key: every engine refuses the whole file",
        f"{tmp_path}/ugly.json: (file): line 1: not JSON: Expecting value",
    ]
    assert err == "3 files, 2 with mistakes\n"


def test_validate_finds_what_a_driver_upgrade_took_away(run: Run, sim: str, tmp_path: Path) -> None:
    """The file is a good one: engines take it, and fail every container for the first path that is gone."""
    path = str(tmp_path / "nvidia.json")
    hook = tmp_path / "nvc-cdi-hook"
    hook.touch(mode=0o755)
    assert run(sim, "cdi", "generate", "-o", path, f"--nvc-hook-path={hook}")[0] == 0
    assert run("cdi", "validate", "--paths", path) == (0, "", "1 file, 0 with mistakes\n")
    edits = json.loads(Path(path).read_text())["containerEdits"]
    at, library = next((i, m["hostPath"]) for i, m in enumerate(edits["mounts"]) if "libcuda.so" in m["hostPath"])
    other, node = next((i, n["hostPath"]) for i, n in enumerate(edits["deviceNodes"]) if "nvidiactl" in n["hostPath"])
    content = Path(library).read_bytes()
    node_is = os.stat(node)
    try:
        for gone in (library, node, hook):
            os.unlink(gone)
        code, out, err = run("cdi", "validate", "--paths", path)
    finally:
        Path(library).write_bytes(content)
        os.mknod(node, node_is.st_mode, node_is.st_rdev)

    assert code == 1
    assert out.splitlines() == [
        f"{path}: containerEdits.deviceNodes[{other}].hostPath: {node} does not exist",
        f"{path}: containerEdits.hooks[0].path: {hook} is no program",
        f"{path}: containerEdits.mounts[{at}].hostPath: {library} does not exist",
    ]
    assert err.endswith(f"hint: make it anew: nvc-py cdi generate --output {path}\n1 file, 1 with mistakes\n")
    assert run("cdi", "validate", path)[0] == 0


def test_validate_of_a_missing_file(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("cdi", "validate", str(tmp_path / "x.yaml"))
    assert (code, out) == (1, f"{tmp_path}/x.yaml: (file): no such file or directory\n")
    code, out, _ = run("cdi", "validate", str(tmp_path))
    assert (code, out) == (1, f"{tmp_path}: (file): not a regular file\n"), "it was: invalid argument"


def test_validate_takes_files_or_directories(run: Run, tmp_path: Path) -> None:
    code, _, err = run("cdi", "validate", "x.yaml", "--spec-dir", str(tmp_path))
    assert code == 1
    assert "exclude each other" in err


def test_list_tells_what_engines_do_not_take(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("kind: 3")
    code, out, err = run("cdi", "list", "--spec-dir", str(tmp_path))
    assert (code, out) == (0, "")
    assert f"warning: {tmp_path}/bad.yaml: " in err
    assert f"no CDI device in {tmp_path}; make some: nvc-py cdi generate" in err
    answer = json.loads(run("cdi", "list", "--spec-dir", str(tmp_path), "--json")[1])
    assert answer["devices"] == []
    assert len(answer["warnings"]) == 3


def test_cdi_hook_without_its_program_says_so(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [str(tmp_path / "nvc-py")])
    code, _, err = run("cdi-hook", "create-symlinks", "--link", "a::b")
    assert code == 1
    assert "nvc-cdi-hook is not installed beside" in err


def test_cdi_hook_becomes_its_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvc-cdi-hook"
    program.write_text('#!/bin/sh\necho "$0 $@"; exit 7\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(tmp_path / "nvc-py")])
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        os._exit(main(["cdi-hook", "noop", "--help", "--link", "a::b"], "nvc-py"))
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == f"{program} noop --help --link a::b\n"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
