"""``runtime configure --remove --all``: when the programs go, no engine names one, also in entries of others."""

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


@pytest.mark.parametrize("edited", ["", "# of the owner\n"])
def test_two_engines_read_one_directory_of_hooks(edited: str) -> None:
    """N4: CRI-O's removal took the hook, and Podman's left the file that names its directory."""
    directory = "/e/99-nvidia"
    places = {
        name: EngineConfig(drop_in=f"{directory}.{name}", hooks_dir="/h", hooks=True) for name in ("crio", "podman")
    }
    memory = Memory()
    for name, asked in places.items():
        memory.carry_out(ENGINES[name].plan(asked, memory))
        memory.texts[asked.drop_in] = edited + memory.texts[asked.drop_in]
    for name, asked in places.items():
        memory.carry_out(removal.plan(ENGINES[name].plan, ENGINES[name].names, asked, memory))

    left = {
        path: [line for line in text.splitlines() if not line.startswith("#")] for path, text in memory.texts.items()
    }
    assert left == ({asked.drop_in: [] for asked in places.values()} if edited else {})


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


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # A name without a path may be that of another installation on this machine.
    monkeypatch.setattr("nvc.engines.files._SEARCHED", (str(tmp_path),))
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


@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("name", ENGINES)
def test_what_a_note_says_stays_does_stay(name: str, hooks: bool) -> None:
    """N11: for CRI-O it said "it stays" of a runtime, and took it away."""
    row = ENGINES[name]
    if hooks and not row.hooks_dir:
        pytest.skip("it has no hooks of its own")
    memory = Memory(**{PATH: ""})
    base = EngineConfig(main_file=PATH, hooks_dir="/h")
    memory.carry_out(row.plan(base.replace(path="/opt/wrapper"), memory))
    there = memory.texts[PATH]
    assert "/opt/wrapper" in there
    plan = row.plan(base.replace(remove=True, hooks=hooks), memory)
    memory.carry_out(plan)
    assert any("/opt/wrapper, not ours: it stays" in note for note in plan.notes), plan.notes
    assert memory.texts[PATH] == there


@pytest.mark.parametrize("name", ENGINES)
def test_another_installations_entry_stays(name: str) -> None:
    """Attack (B): ``nvc-runtime`` of /opt went with the package of /usr, and the engine's containers with it."""
    base = EngineConfig(main_file=PATH, hooks_dir="/h")
    other = base.replace(path="/opt/nvc/bin/nvc-runtime", hook="/opt/nvc/bin/nvc-hook", default=True)
    memory = Memory()
    memory.carry_out(ENGINES[name].plan(other, memory))
    if ENGINES[name].hooks_dir:
        memory.carry_out(ENGINES[name].plan(other.replace(hooks=True, default=False), memory))
    start = dict(memory.texts)
    memory.carry_out(ENGINES[name].plan(base.replace(name="ours"), memory))
    memory.carry_out(removal.plan(ENGINES[name].plan, ENGINES[name].names, base, memory))

    assert parsed(name, memory.texts.pop(PATH)) == parsed(name, start.pop(PATH))
    assert memory.texts == start, "its hook"


@pytest.mark.parametrize("name", ENGINES)
def test_an_entry_that_reaches_ours_by_another_path_goes(name: str) -> None:
    """/bin is /usr/bin on most machines; a link of the administrator's own leads to our program, too."""

    def resolve(path: str) -> str:
        return {"/bin/nvc-runtime": "/usr/bin/nvc-runtime", "/opt/gpu": "/usr/bin/nvc-runtime"}.get(path, path)

    base = EngineConfig(main_file=PATH, hooks_dir="/h", resolve=resolve)
    memory = Memory()
    for number, program in enumerate(("/bin/nvc-runtime", "/opt/gpu", "/opt/other/nvc-runtime")):
        memory.carry_out(ENGINES[name].plan(base.replace(name=f"n{number}", path=program), memory))
    memory.carry_out(removal.plan(ENGINES[name].plan, ENGINES[name].names, base, memory))

    assert ENGINES[name].names(base, memory) == ["n2"]


@pytest.mark.parametrize("name", ["podman", "crio"])
@pytest.mark.parametrize("place", ["/e/main.conf", "/e/main.conf.d/50-mine.conf"])
def test_a_default_in_another_file_goes_with_its_runtime(name: str, place: str) -> None:
    """Attack: the engine did not start, or started no container: its default runtime was not there any more."""
    section, key = {"podman": ("engine", "runtime"), "crio": ("crio.runtime", "default_runtime")}[name]
    base = EngineConfig(main_file="/e/main.conf", drop_in="/e/main.conf.d/99-nvidia.conf", hooks_dir="/h")
    memory = Memory(**{"/e/main.conf": "[other]\nkey = 1\n"})
    memory.texts[place] = f'{memory.texts.get(place, "")}[{section}]\n{key} = "nvidia" # ours\nkept = 2\n'
    memory.carry_out(ENGINES[name].plan(base, memory))
    memory.carry_out(removal.plan(ENGINES[name].plan, ENGINES[name].names, base, memory))

    assert key not in parsed(name, memory.texts[place]).get(section.split(".")[0], {}).get("runtime", {})
    assert f'{key} = "nvidia"' not in memory.texts[place]
    assert "kept = 2" in memory.texts[place]


@pytest.mark.parametrize("name", ["podman", "crio"])
def test_a_default_of_another_programs_runtime_stays(name: str) -> None:
    """Attack: a drop-in of another program's has the runtime ``nvidia``, and the main file makes it the default."""
    section, key, program = {
        "podman": ("engine", "runtime", '[engine.runtimes]\nnvidia = ["/opt/nvidia-container-runtime"]\n'),
        "crio": (
            "crio.runtime",
            "default_runtime",
            '[crio.runtime.runtimes.nvidia]\nruntime_path = "/opt/nvidia-container-runtime"\n',
        ),
    }[name]
    base = EngineConfig(main_file="/e/main.conf", drop_in="/e/main.conf.d/99-nvidia.conf", hooks_dir="/h")
    memory = Memory(
        **{
            "/e/main.conf": f'# nvidia-container-runtime\n[{section}]\n{key} = "nvidia"\n',
            "/e/main.conf.d/50-other.conf": program,
        }
    )
    start = dict(memory.texts)
    memory.carry_out(ENGINES[name].plan(base.replace(name="ours"), memory))
    memory.carry_out(removal.plan(ENGINES[name].plan, ENGINES[name].names, base, memory))

    assert memory.texts == start


def test_containerds_default_of_another_programs_runtime_stays() -> None:
    main = (
        'version = 2\nimports = ["/e/conf.d/*.toml"]\n[plugins."io.containerd.grpc.v1.cri".containerd]\n'
        'default_runtime_name = "nvidia"\n'
    )
    other = (
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
        'BinaryName = "/opt/nvidia-container-runtime"\n'
    )
    memory = Memory(**{PATH: main, "/e/conf.d/50.toml": other})
    row = ENGINES["containerd"]
    plan = removal.plan(row.plan, row.names, EngineConfig(main_file=PATH), memory)

    assert plan.edits == ()


def test_docker_keeps_a_default_that_is_given_on_its_command_line() -> None:
    """``dockerd --add-runtime nvidia=/opt/...``: the file has the default only."""
    memory = Memory(**{PATH: '{"default-runtime": "nvidia"}\n'})
    row = ENGINES["docker"]

    assert removal.plan(row.plan, row.names, EngineConfig(main_file=PATH), memory).edits == ()


def test_podmans_default_that_is_our_path_goes() -> None:
    """containers.conf(5): runtime may be a path."""
    memory = Memory(**{PATH: '[engine]\nruntime = "/usr/bin/nvc-runtime"\nevents_logger = "file"\n'})
    row = ENGINES["podman"]
    memory.carry_out(removal.plan(row.plan, row.names, EngineConfig(main_file=PATH, hooks_dir="/h"), memory))

    assert parsed("podman", memory.texts[PATH]) == {"engine": {"events_logger": "file"}}


@pytest.mark.parametrize("name", ["podman", "crio"])
def test_hooks_in_a_directory_of_the_administrators_go(name: str) -> None:
    """Attack: hooks_dir has a third directory, and every container failed at the hook that is gone."""
    section = {"podman": "engine", "crio": "crio.runtime"}[name]
    hook = {"version": "1.0.0", "hook": {"path": "/usr/bin/nvc-hook"}, "when": {"always": True}, "stages": ["prestart"]}
    other = {**hook, "hook": {"path": "/opt/nvc/bin/nvc-hook"}}
    memory = Memory(**{PATH: f'[{section}]\nhooks_dir = ["/srv/hooks", "/h"]\n', "/srv/hooks/a.json": json.dumps(hook)})
    memory.texts["/srv/hooks/b.json"] = json.dumps(other)
    row = ENGINES[name]
    memory.carry_out(removal.plan(row.plan, row.names, EngineConfig(main_file=PATH, hooks_dir="/h"), memory))

    assert set(memory.texts) == {PATH, "/srv/hooks/b.json"}


def test_the_command_knows_its_programs_by_every_path(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for directory in (own, other):
        directory.mkdir()
        (directory / "nvc-runtime").touch(mode=0o755)
    (own / "nvidia-container-runtime").touch(mode=0o755)
    (tmp_path / "bin").symlink_to("own")
    (tmp_path / "gpu").symlink_to("bin/nvc-runtime")
    (tmp_path / "nvc-runtime").symlink_to("other/nvc-runtime")
    paths = {
        "plain": "own/nvc-runtime",
        "linked": "bin/nvidia-container-runtime",
        "dots": "other/../own//nvc-runtime",
        "gpu": "gpu",
        "other": "other/nvc-runtime",
        "other's link": "nvc-runtime",
    }
    file = tmp_path / "daemon.json"
    runtimes = {name: {"path": f"{tmp_path}/{path}"} for name, path in paths.items()}
    odd = {"nul": {"path": f"{own}/nvc-runtime\0"}, "number": {"path": 3}}
    file.write_text(json.dumps({"runtimes": {**runtimes, **odd}}))
    words = ["--runtime=docker", f"--config={file}", f"--runtime-path={own}/nvc-runtime", "--remove", "--all"]

    assert main(["runtime", "configure", *words], "nvc-py") == 0
    assert set(json.loads(file.read_text())["runtimes"]) == {"other", "other's link", *odd}
    capfd.readouterr()
