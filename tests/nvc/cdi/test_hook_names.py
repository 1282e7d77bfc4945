"""nvc-cdi-hook under NVIDIA's names: its words are read as nvidia-cdi-hook 1.20 reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hook.cdi import serve
from hook.cdi_words import CDI_HOOK, CTK, DEBUG_VARIABLES, PROGRAM, THEIRS, read, switches
from tests.support import injection

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("program", THEIRS)
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 0, "unknown hook ''"),
        (["from-the-future", "--x"], 0, "unknown hook 'from-the-future'"),
        (["create-symlink"], 0, "unknown hook 'create-symlink' is left out (did you mean create-symlinks?)"),
        (["--bogus", "update-ldcache"], 0, "unknown hook '--bogus'"),
        (["update-ldcache", "--bogus"], 1, "unexpected '--bogus'"),
        (["--debug=perhaps", "noop"], 1, 'invalid value "perhaps" for flag -debug'),
        (["chmod", "--mode=x", "--path=/y"], 1, "is not octal"),
        (["apply-foo"], 1, "would be without what it applies"),
        (["--quiet", "apply-foo"], 1, "would be without what it applies"),
        (["noop"], 0, ""),
        (["-d", "noop", "--quiet"], 0, ""),
    ],
)
def test_exit_codes(program: str, words: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert serve(words, -1, program=program) == code
    shown = capfd.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert said or not shown.err


def test_help_and_version_name_the_program(capfd: pytest.CaptureFixture[str]) -> None:
    assert serve(["--help"], program=CDI_HOOK) == 0
    assert capfd.readouterr().out.startswith("Usage: nvidia-cdi-hook NAME")
    assert serve(["help"], program=CTK) == 0
    assert capfd.readouterr().out.startswith("Usage: nvidia-ctk hook NAME")
    assert serve(["-version"], program=CDI_HOOK) == 0
    assert capfd.readouterr().out.startswith("nvidia-cdi-hook (nvc-py) version ")


@pytest.mark.parametrize(
    ("words", "rest", "debug"),
    [
        (["--debug", "x"], ["x"], "/dev/stderr"),
        (["x", "-debug=true", "--link", "a"], ["x", "--link", "a"], "/dev/stderr"),
        (["--debug", "--debug=F", "x"], ["x"], ""),
        (["--quiet", "x", "-d"], ["x"], "/dev/stderr"),
    ],
)
def test_switches(words: list[str], rest: list[str], debug: str) -> None:
    assert switches(words) == (rest, debug)


def test_values_of_an_option() -> None:
    name, values = read(
        ["update-ldcache", "--folder=/a,/b", "-folder", "/c", "--ldconfig-path=x", "--ldconfig-path=y"], theirs=True
    )

    assert name == "update-ldcache"
    assert values["folder"] == ["/a", "/b", "/c"]
    assert values["ldconfig-path"][-1] == "y"
    assert read(["update-ldcache", "--folder=/a,/b"])[1]["folder"] == ["/a,/b"]


@pytest.mark.root
@pytest.mark.parametrize("program", [CDI_HOOK, CTK, PROGRAM])
def test_an_entry_of_a_spec_of_nvidia_s(program: str, tmp_path: Path) -> None:
    """By its name, with the variables and words that NVIDIA's specs have, and the state in a file or on stdin."""
    rootfs = injection.make_rootfs(tmp_path / "rootfs")
    config = {"ociVersion": "1.0.2", "process": {"env": []}, "root": {"path": "rootfs"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    state = json.dumps({"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 1, "bundle": str(tmp_path)})
    (tmp_path / "state.json").write_text(state)
    module = "hook.ctk" if program == CTK else "hook.cdi"
    launcher = tmp_path / program
    launcher.write_text(f"import sys\nsys.path[:0] = [{str(ROOT)!r}]\nfrom {module} import run\nrun()\n")
    words = [*(["hook"] if program == CTK else []), "create-symlinks", "--link", "a::/x/b"]
    if program in THEIRS:
        words += ["--link=c::/x/d,e::/x/f", f"--container-spec={tmp_path}/state.json"]
    environment = {"PATH": "/usr/bin:/bin", DEBUG_VARIABLES[0]: "true"}
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-I", "-S", str(launcher), *words],
        input=b"" if program in THEIRS else state.encode(),
        capture_output=True,
        env=environment,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert os.readlink(rootfs / "x/b") == "a"
    if program in THEIRS:
        assert os.readlink(rootfs / "x/f") == "e"
    assert (b"create-symlinks: " in done.stderr) == (program in THEIRS)
