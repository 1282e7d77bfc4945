"""``runtime configure --remove --all``: when the programs go, no engine names one, whoever wrote the entry."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nvc.cli.main import main
from nvc.engines import removal
from nvc.engines.config import EngineConfig
from nvc.engines.table import ENGINES
from tests.nvc.engines.samples import CASES, Memory, before, config, engine
from tests.nvc.engines.test_remove import PATH, parsed

TOOLKIT = [case for case in CASES if case.endswith("toolkit")]


def gone(case: str, memory: Memory, **changes: object) -> None:
    row = ENGINES[case.partition("-")[0]]
    memory.carry_out(removal.plan(row.plan, row.names, config(case).replace(**changes), memory))


@pytest.mark.parametrize("configured", [True, False])
@pytest.mark.parametrize("case", TOOLKIT)
def test_the_toolkits_entry_goes_too(case: str, configured: bool) -> None:
    """Its program is ours where it is beside ours; ``--remove`` alone restores it."""
    memory = Memory(**{PATH: before(case)})
    if configured:
        memory.carry_out(engine(case).plan(config(case), memory))
    gone(case, memory)

    text = memory.texts.get(PATH, "")
    assert "nvidia-container-runtime" not in text
    assert "nvc-runtime" not in text
    assert memory.backups == {}


@pytest.mark.parametrize("case", TOOLKIT)
def test_programs_of_another_directory_stay(case: str) -> None:
    memory = Memory(**{PATH: before(case)})
    gone(case, memory, path="/opt/nvc/bin/nvc-runtime", hook="/opt/nvc/bin/nvc-hook")

    assert memory.texts == {PATH: before(case)}


@pytest.mark.parametrize("name", ENGINES)
def test_every_name_goes_and_the_file_is_as_before(name: str) -> None:
    start = {
        "docker": '{"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}\n',
        "podman": '[engine]\nruntime = "crun"\n',
        "crio": '[crio.runtime]\ndefault_runtime = "crun"\n',
    }.get(name, '[plugins.cri.containerd]\ndefault_runtime_name = "crun"\n')
    memory = Memory(**{PATH: start})
    base = EngineConfig(main_file=PATH, hooks_dir="/h")
    programs = ("nvc-runtime", "nvidia-container-runtime", "nvidia-container-runtime.cdi")
    for number, program in enumerate(programs):
        asked = base.replace(name=f"n{number}", path=f"/usr/bin/{program}", default=number == 1)
        memory.carry_out(ENGINES[name].plan(asked, memory))
    memory.carry_out(removal.plan(ENGINES[name].plan, ENGINES[name].names, base, memory))

    assert parsed(name, memory.texts[PATH]) == parsed(name, start)
    assert memory.backups == {}


@pytest.mark.parametrize("name", ["podman", "crio"])
def test_entries_beside_the_file_of_ours_go_too(name: str) -> None:
    """Written with another --drop-in-config, into the main file, or by NVIDIA's command: the engine reads them all."""
    base = EngineConfig(main_file="/e/main.conf", drop_in="/e/main.conf.d/99-nvidia.conf", hooks_dir="/h")
    memory = Memory(**{"/e/main.conf": "[other]\nkey = 1\n"})
    for number, place in enumerate(("", "/e/main.conf.d/50-mine.conf", base.drop_in)):
        program = ("nvc-runtime", "nvidia-container-runtime", "nvc-runtime")[number]
        asked = base.replace(name=f"n{number}", path=f"/usr/bin/{program}", drop_in=place, default=number == 1)
        memory.carry_out(ENGINES[name].plan(asked, memory))
    memory.carry_out(removal.plan(ENGINES[name].plan, ENGINES[name].names, base, memory))

    left = {path: parsed(name, text) for path, text in memory.texts.items()}
    assert left == {"/e/main.conf": {"other": {"key": 1}}}
    assert memory.backups == {}


def test_hooks_with_nvidias_name_go_from_both_directories() -> None:
    def hook(program: str) -> str:
        return json.dumps(
            {"version": "1.0.0", "hook": {"path": program}, "when": {"always": True}, "stages": ["prestart"]}
        )

    built_in = "/usr/share/containers/oci/hooks.d"
    files = {
        f"{built_in}/oci-nvidia-hook.json": hook("/usr/bin/nvidia-container-runtime-hook"),
        "/h/mine.json": hook("/usr/bin/nvidia-container-toolkit"),
        "/h/nvc.json": hook("/usr/bin/nvc-hook"),
        "/h/other.json": hook("/usr/bin/other-hook"),
        "/h/elsewhere.json": hook("/opt/nvidia-container-runtime-hook"),
        "/h/broken.json": "{",
    }
    memory = Memory(**files)
    for name in ("podman", "crio"):
        base = EngineConfig(main_file=PATH, hooks_dir="/h")
        memory.carry_out(removal.plan(ENGINES[name].plan, ENGINES[name].names, base, memory))

    assert set(memory.texts) == {"/h/other.json", "/h/elsewhere.json", "/h/broken.json"}


def test_dockers_cdi_goes_where_the_file_was_ours_from_the_beginning() -> None:
    """N4: the owner's change in between kept ``features.cdi`` in it."""
    memory = Memory()
    base = EngineConfig(main_file=PATH, cdi=True)
    memory.carry_out(ENGINES["docker"].plan(base, memory))
    memory.texts[PATH] = memory.texts[PATH].replace("{", '{"debug": true,', 1)
    plan = memory.carry_out(ENGINES["docker"].plan(base.replace(remove=True), memory))

    assert json.loads(memory.texts[PATH]) == {"debug": True}
    assert [note for note in plan.notes if "features.cdi is taken out too" in note]


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "daemon.json"
    text = '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}\n'
    file.write_text(text)
    words = [
        "runtime",
        "configure",
        "--runtime=docker",
        f"--config={file}",
        "--runtime-path=/usr/bin/nvc-runtime",
        "--remove",
    ]

    assert main(words, "nvc-py") == 0
    assert "not ours: it stays" in capfd.readouterr().err
    assert main([*words, "--all", "--dry-run"], "nvc-py") == 0
    assert file.read_text() == text
    assert main([*words, "--all"], "nvc-py") == 0
    assert not file.exists(), "nothing was left in it"
    assert main([*words[:-1], "--all"], "nvc-py") == 1
    assert "--all goes with --remove" in capfd.readouterr().err


def test_a_working_directory_that_is_gone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """N11: an internal error."""
    here = Path.cwd()
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    try:
        (tmp_path / "gone").rmdir()
        assert main(["runtime", "configure", "--runtime=docker", "--dry-run", f"--config={tmp_path}/d"], "nvc-py") == 0
        assert main(["runtime", "configure", "--runtime=docker", "--dry-run", "--config=d"], "nvc-py") == 1
    finally:
        os.chdir(here)
    assert "d: the working directory does not exist" in capfd.readouterr().err
