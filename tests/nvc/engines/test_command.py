"""``nvc-py runtime configure`` as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from nvc.cli import runtime
from nvc.cli.main import main
from nvc.engines.table import ENGINES, places

START = {
    "docker": '{\n  "debug": true\n}\n',
    "containerd": "# mine\nversion = 3\n",
    "crio": "# mine\n[crio]\nlog_dir = '/l'\n",
    "podman": "# mine\n[engine]\nevents_logger = 'file'\n",
}


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Bench:
    """A directory with an engine's file and our programs in it."""

    def __init__(self, directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.directory, self.capfd = directory, capfd
        self.file = directory / "engine.conf"
        for name in ("nvc-runtime", "nvc-hook"):
            (directory / name).write_text("#!/bin/sh\n")
            (directory / name).chmod(0o755)

    def run(self, engine: str, *words: str) -> Ran:
        where = [f"--config={self.file}", f"--runtime-path={self.directory}/nvc-runtime"]
        where += [f"--hook-path={self.directory}/nvc-hook", f"--hooks-dir={self.directory}/hooks.d"]
        code = main(["runtime", "configure", f"--runtime={engine}", *where, *words], "nvc-py")
        out, err = self.capfd.readouterr()
        return Ran(code, out, err)

    def files(self) -> dict[str, str]:
        paths = [path for path in self.directory.rglob("*") if path.is_file() and not path.name.startswith("nvc-")]
        return {str(path.relative_to(self.directory)): path.read_text() for path in paths if path.suffix != ".sh"}


@pytest.fixture
def bench(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path, capfd)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_life(engine: str, bench: Bench) -> None:
    """Dry run, configure, again, remove, again."""
    bench.file.write_text(START[engine])
    start = bench.files()
    tried = bench.run(engine, "--set-as-default", "--dry-run")
    assert tried.code == 0
    assert "nothing was written" in tried.err
    assert bench.files() == start

    checked = bench.run(engine, "--set-as-default", "--check")
    assert (checked.code, checked.out) == (2, tried.out)
    assert bench.files() == start
    told = json.loads(bench.run(engine, "--set-as-default", "--json", "--dry-run").out)
    assert (told["written"], bool(told["edits"])) == (False, True)

    done = bench.run(engine, "--set-as-default")
    assert (done.code, done.out) == (0, tried.out)
    assert bench.run(engine, "--set-as-default", "--check").code == 0
    assert f"wrote {bench.file}; as it was: {bench.file}.nvc-backup" in done.err
    assert ("now run: systemctl" in done.err) == (engine != "podman")
    assert Path(f"{bench.file}.nvc-backup").read_text() == START[engine]

    again = bench.run(engine, "--set-as-default")
    assert again.code == 0
    assert again.out.startswith("nothing to change: ")

    assert bench.run(engine, "--remove").code == 0
    assert bench.files() == start
    assert bench.run(engine, "--remove").out.startswith("nothing to change: ")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_file_is_made_and_goes_again(engine: str, bench: Bench) -> None:
    assert bench.run(engine).code == 0
    assert bench.file.exists()
    assert bench.run(engine, "--remove").code == 0
    assert bench.files() == {}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_difference_is_a_patch(engine: str, bench: Bench) -> None:
    bench.file.write_text(START[engine].rstrip("\n"))
    copy = bench.directory / "copy"
    copy.write_text(START[engine].rstrip("\n"))
    shown = bench.run(engine, "--dry-run").out
    part = shown[shown.index(f"--- {bench.file}") :]
    bench.run(engine)
    subprocess.run(["patch", "-s", str(copy)], input=part, text=True, check=True)

    assert bench.file.read_text() == copy.read_text()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("words", [(), ("--remove",), ("--dry-run",)], ids=["configure", "remove", "dry-run"])
def test_a_broken_file_is_left_alone(engine: str, words: tuple[str, ...], bench: Bench) -> None:
    bench.file.write_text(START[engine] + "\n]")
    start = bench.files()
    code, out, err = bench.run(engine, *words)

    assert (code, out) == (1, "")
    assert err.startswith(
        f"nvc-py: input error: {bench.file} is not valid {'JSON' if engine == 'docker' else 'TOML'}: line"
    )
    assert "nvc-py: hint: the file was not changed; correct it" in err
    assert bench.files() == start


def test_full_shows_the_whole_file(bench: Bench) -> None:
    bench.file.write_text(START["docker"])
    shown = bench.run("docker", "--dry-run", "--full").out

    bench.run("docker")
    assert shown == f"# {bench.file}\n{bench.file.read_text()}"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--nvidia-set-as-default", "--enable-cdi"), id="long"),
        pytest.param(("--set-as-default", "--cdi.enabled"), id="dotted"),
        pytest.param(("--set-as-default", "--cdi.enable", "--nvidia-runtime-name=nvidia"), id="name"),
    ],
)
def test_the_toolkits_words(words: tuple[str, ...], bench: Bench) -> None:
    ours = bench.run("docker", "--set-as-default", "--cdi", "--dry-run").out

    assert bench.run("docker", *words, "--dry-run").out == ours


@pytest.mark.parametrize(
    ("engine", "words", "message"),
    [
        pytest.param("docker", ("--runtime-name=runc",), "'runc' cannot be the name", id="name-taken"),
        pytest.param("docker", ("--runtime-name=a b",), "'a b' cannot be the name", id="name-with-space"),
        pytest.param("docker", ("--runtime-path=nvc-runtime",), "not an absolute path", id="relative-program"),
        pytest.param("docker", ("--set-as-default", "--runtime-path=/no/where"), "no container would start", id="none"),
        pytest.param("docker", ("--drop-in-config=/x",), "docker has one file only", id="docker-drop-in"),
        pytest.param("containerd", ("--config-mode=hook",), "has no OCI hooks", id="containerd-hook"),
        pytest.param("lxc", (), "'lxc' is not one of 'docker', 'containerd', 'crio', 'podman'", id="engine"),
        pytest.param("docker", ("extra",), "unexpected extra argument", id="extra"),
    ],
)
def test_what_cannot_be_meant(engine: str, words: tuple[str, ...], message: str, bench: Bench) -> None:
    code, out, err = bench.run(engine, *words)

    assert (code, out) == (1, "")
    assert message in err
    assert bench.files() == {}


def test_an_engine_must_be_named(bench: Bench) -> None:
    code = main(["runtime", "configure"], "nvc-py")

    assert code == 1
    assert "missing option '--runtime'" in bench.capfd.readouterr().err


def test_a_program_that_is_not_there_yet_is_told(bench: Bench) -> None:
    assert "note: there is no program /no/where yet" in bench.run("docker", "--runtime-path=/no/where").err


def test_crio_and_podman_take_either_way(bench: Bench) -> None:
    assert "hooks_dir" in bench.run("crio", "--config-mode=oci-hook", "--dry-run").out
    assert "nvc-runtime" in bench.run("podman", "--config-mode=config-file", "--dry-run").out


@pytest.mark.parametrize(
    ("engine", "uid", "environment", "expected"),
    [
        pytest.param("docker", 0, {}, ("/etc/docker/daemon.json", "", ""), id="docker"),
        pytest.param("docker", 1, {"HOME": "/h"}, ("/h/.config/docker/daemon.json", "", ""), id="docker-rootless"),
        pytest.param(
            "containerd", 1, {"HOME": "/h"}, ("/etc/containerd/config.toml", "", ""), id="containerd-has-no-own"
        ),
        pytest.param(
            "podman",
            1,
            {"XDG_CONFIG_HOME": "/x"},
            (
                "/x/containers/containers.conf",
                "/x/containers/containers.conf.d/99-nvidia.conf",
                "/x/containers/oci/hooks.d",
            ),
            id="podman-rootless",
        ),
        pytest.param(
            "podman", 0, {"CONTAINERS_CONF": "/c"}, ("/c", "", "/etc/containers/oci/hooks.d"), id="podman-told-its-file"
        ),
        pytest.param(
            "crio",
            0,
            {"CONTAINERS_CONF": "/c"},
            ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/99-nvidia.toml", "/etc/containers/oci/hooks.d"),
            id="crio",
        ),
    ],
)
def test_places(engine: str, uid: int, environment: dict[str, str], expected: tuple[str, str, str]) -> None:
    assert expected == places(ENGINES[engine], uid, environment)


def test_our_programs_are_looked_for_beside_this_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runtime.sys, "argv", [f"{tmp_path}/nvc-py"])
    assert runtime.program("nvc-runtime") == f"{tmp_path}/nvc-runtime"
    monkeypatch.setattr(runtime.sys, "argv", ["/elsewhere/nvc-py"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert runtime.program("nvc-runtime") == f"{tmp_path}/nvc-runtime"
    monkeypatch.setenv("PATH", os.devnull)
    assert runtime.program("nvc-runtime") == "/usr/bin/nvc-runtime"
