"""``nvc-py doctor`` as a whole, on simulated machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.base.record import Record
from nvc.cli.main import main
from nvc.doctor import kernel, report, table
from nvc.doctor.finding import error, note, ok, skipped, warning, worst
from tests.support import fuse
from tests.support.doctor_tree import Tree
from tests.support.native import build
from tests.support.readable import search_path

Ran = tuple[int, str, str]
KEYS = {"schema", "program", "simulated", "level", "counts", "findings"}
FINDING = {"level", "area", "check", "what", "why", "fix"}
ROOT = Path(__file__).parents[3]


@pytest.fixture
def doctor(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(tree: Tree | None, *words: str, program: str = "nvc-py") -> Ran:
        before = [f"--sim={tree.root}"] if tree else []
        code = main([*before, "doctor", *words], program)
        return code, *capfd.readouterr()

    return run


def test_json_of_a_machine(doctor: Callable[..., Ran], make_tree: Callable[[str], Tree]) -> None:
    tree = make_tree("h200")
    code, out, err = doctor(tree, "--json", "--only", "driver", "--only", "libraries")
    data = json.loads(out)

    assert set(data) == KEYS
    assert (data["schema"], data["simulated"]) == (1, "h200")
    assert {frozenset(finding) for finding in data["findings"]} == {frozenset(FINDING)}
    assert all(isinstance(value, str) for finding in data["findings"] for value in finding.values())
    assert sum(data["counts"].values()) == len(data["findings"])
    assert {finding["area"] for finding in data["findings"]} == {"driver", "libraries"}
    assert (code, data["level"], err) == (0, "note", "")


@pytest.mark.parametrize("machine", ["h200", "h100x8", "a100-mig-dev", "a100-mig-proc", "imex", "v100-legacy"])
def test_machines_that_are_well(machine: str, doctor: Callable[..., Ran], make_tree: Callable[[str], Tree]) -> None:
    words = [word for area in ("driver", "libraries", "nodes", "mig", "cdi", "hooks") for word in ("--only", area)]
    code, out, _ = doctor(make_tree(machine), *words)

    assert code == 0, out
    assert "NVML answers" in out


def test_a_machine_that_is_not(doctor: Callable[..., Ran], make_tree: Callable[[str], Tree]) -> None:
    code, out, err = doctor(make_tree("broken"), "--only", "libraries", "--problems")

    assert code == 2
    assert err == "SIMULATED machine broken; kernel and cgroups are this computer's\n"
    assert "  warning  ldcache-stale: the loader cache names files that do not exist" in out
    assert "           fix:  sudo ldconfig -r " in out
    assert "  ok  " not in out


@pytest.mark.root
def test_an_error(doctor: Callable[..., Ran], make_tree: Callable[[str], Tree]) -> None:
    tree = make_tree("h200").remove("dev/nvidia-uvm")
    code, out, _ = doctor(tree, "--only", "nodes")

    assert code == 3
    assert "error    nodes-present: /dev/nvidia-uvm is missing" in out


@pytest.mark.root
@pytest.mark.parametrize(
    ("word", "level", "words"),
    [
        ("off", "ok", "moves no pageable system memory"),
        ("hmm", "note", "uvm_disable_hmm=1"),
        ("ats", "note", "NVreg_CoherentGPUMemoryMode=driver"),
    ],
)
def test_the_driver_is_asked_about_ordinary_memory(
    make_tree: Callable[[str], Tree], word: str, level: str, words: str
) -> None:
    fuse.needed()
    tree = make_tree("h200").replace("etc/nvc-sim/machine", "\nnodes=", f"\npageable={word}\nnodes=")
    nvc, root = [sys.executable, "-m", "nvc"], str(tree.root)
    command = [*nvc, "sim", "run", root, "--", *nvc, f"--sim={root}", "doctor", "--json", "--only=driver"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    findings = json.loads(ran.stdout)["findings"]
    (found,) = [finding for finding in findings if finding["check"] == "driver-memory"]

    assert ran.returncode == report.EXIT_CODES[level]
    assert found["level"] == level
    assert words in found["what"] + found["fix"]


@pytest.mark.root
def test_the_node_of_a_machine_that_nobody_serves_is_not_opened(
    doctor: Callable[..., Ran], make_tree: Callable[[str], Tree]
) -> None:
    """It could be a real driver's."""
    code, out, _ = doctor(make_tree("h200"), "--only", "driver")

    assert code == 0
    assert "skipped  driver-memory: nothing to check here" in out


def test_nodes_that_a_simulated_driver_serves_are_not_to_be_removed(
    doctor: Callable[..., Ran], make_tree: Callable[[str], Tree]
) -> None:
    """It said `sudo rm -r .../dev/nvidiactl` of a machine whose driver was started: its nodes are files."""
    tree = make_tree("h200")
    for node in tree.path("dev").glob("nvidia*"):
        if not node.is_dir():
            node.unlink()
            node.write_bytes(b"")
    code, out, _ = doctor(tree, "--only", "nodes")
    assert "sudo rm" not in out and "is not a character device" not in out
    assert "nodes-numbers: the nodes are files that a simulated driver serves" in out
    assert code == 0, out


def test_the_remedy_for_lxc_links_to_a_program_that_is_there(make_tree: Callable[[str], Tree]) -> None:
    """It was a link to nvc-py beside itself in /usr/local/bin, wherever nvc-py was installed."""
    tree = make_tree("h200").program("lxc-start", "nvc-py").write("usr/share/lxc/hooks/nvidia", "#")
    (found,) = tree.examine("engine-lxc")
    assert found.fix == "sudo ln -s /usr/bin/nvc-py /usr/local/bin/nvidia-container-cli"

    # Below a prefix outside of PATH: /usr/bin/nvc-py was named all the same, and was not there.
    tree.remove("usr/bin/nvc-py")
    assert [one.fix for one in tree.examine("engine-lxc")] == ["sudo make install"]
    tree.own = "/opt/nvc-py/bin/nvc-py"
    (found,) = tree.examine("engine-lxc")
    assert found.fix == "sudo ln -s /opt/nvc-py/bin/nvc-py /usr/local/bin/nvidia-container-cli"


def test_nvml_that_hangs(
    doctor: Callable[..., Ran], make_tree: Callable[[str], Tree], capfd: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree("h200")
    tree.replace("etc/nvc-sim/machine", "\nnodes=", "\nfault=nvmlInit hang\nnodes=")
    code = main([f"--sim={tree.root}", "--timeout=4", "doctor", "--only", "driver"], "nvc-py")
    out = capfd.readouterr().out

    assert code == 3
    assert "driver-nvml: initialization error: driver rpc error: timed out" in out
    assert "driver-extras: " in out


def test_everything_on_this_computer_ends_with_a_summary(doctor: Callable[..., Ran]) -> None:
    code, out, err = doctor(None)

    assert code in (0, 2, 3)
    assert err == ""
    assert out.splitlines()[-1].endswith((" ok", " skipped"))
    for check in table.CHECKS:
        assert f"{check.name}: " in out
    assert "the check failed" not in out
    assert "\x1b" not in out


def test_one_engine(doctor: Callable[..., Ran]) -> None:
    _, out, _ = doctor(None, "--only", "engines", "--engine", "docker")

    assert "engine-docker" in out
    assert "engine-podman" not in out


@pytest.mark.parametrize("words", [["--only", "nonsense"], ["--engine", "nonsense"], ["more"]])
def test_wrong_words_are_one(words: list[str], doctor: Callable[..., Ran]) -> None:
    code, out, err = doctor(None, *words)

    assert (code, out) == (1, "")
    assert "nvc-py doctor" in err


def test_help_tells_the_exit_codes(doctor: Callable[..., Ran]) -> None:
    code, out, _ = doctor(None, "--help")

    assert code == 0
    assert "too 2 there are warnings 3 there are errors 130" in " ".join(out.split())
    assert set(report.EXIT_CODES.values()) == {0, 2, 3}


@pytest.fixture
def tmp_directory() -> Iterator[str]:
    """Not below pytest's directory, which only its owner may enter."""
    build()
    with tempfile.TemporaryDirectory(prefix="nvc-doctor-") as path:
        os.chmod(path, 0o755)
        yield path


@pytest.mark.root
def test_an_ordinary_user_is_told_what_he_cannot_see(tmp_directory: str) -> None:
    """In a process of its own, which gives up root; two of the machine's directories have no permissions."""
    tree = (
        Tree(f"{tmp_directory}/machine", "h200")
        .directory("etc/containers/oci/hooks.d", 0o700)
        .directory("run/cdi", 0o700)
    )
    program = Path(__file__).parent / "programs/check_as_ordinary_user.py"
    environment = {**os.environ, "PYTHONPATH": ":".join([*search_path(), str(ROOT)])}
    ran = subprocess.run(
        [sys.executable, program, str(tree.root)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.stderr == ""
    assert f"note hooks-files cannot see {tree.root}/etc/containers/oci/hooks.d: permission denied" in ran.stdout
    assert f"note cdi-files cannot see {tree.root}/run/cdi: permission denied" in ran.stdout
    assert "the check failed" not in ran.stdout
    assert "error" not in {line.split()[0] for line in ran.stdout.splitlines() if "nvml" not in line}


def test_names_of_files_cannot_write_to_the_terminal() -> None:
    text = report.as_text(
        [error("file \x1b[2J\n\u202e", "sudo rm x\n", "why\r").replace(check="c", area="a")], colour=False
    )

    assert "\x1b" not in text
    assert r"file \x1b[2J\n\u202e" in text
    assert len(text.splitlines()) == 6


def test_colour_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = os.openpty()
    try:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert report.wants_colour(terminal)
        monkeypatch.setenv("NO_COLOR", "1")
        assert not report.wants_colour(terminal)
    finally:
        os.close(controller)
        os.close(terminal)
    found = [ok("a").replace(area="x"), warning("b", "m").replace(area="x")]
    assert report.as_text(found, colour=True).count("\x1b[") == 4


def test_problems_alone_are_shown_and_everything_is_counted() -> None:
    found = [finding.replace(area="x") for finding in (ok("fine"), note("known"), warning("b", "m"))]
    text = report.as_text(found, colour=False, problems=True)
    data = json.loads(report.as_json(found, simulated="", problems=True))

    assert text.startswith("x\n  warning  : b\n")
    assert text.endswith("\n\n1 warning; 1 note, 1 ok\n")
    assert report.as_text(found[:2], colour=False, problems=True) == "nothing is wrong; 1 note, 1 ok\n"
    assert data["counts"] == {"skipped": 0, "ok": 1, "note": 1, "warning": 1, "error": 0}
    assert [finding["what"] for finding in data["findings"]] == ["b"]


def test_summary() -> None:
    assert report.summary([ok("a"), note("b")]) == "nothing is wrong; 1 note, 1 ok"
    assert report.summary([ok("a"), skipped("b"), skipped("c")]) == "nothing is wrong; 0 notes, 1 ok, 2 skipped"
    assert worst([skipped("a")]) == "ok", "nothing was checked, and nothing is wrong"
    assert report.summary([error("a", "m"), error("b", "m"), warning("c", "m")]) == "2 errors, 1 warning; 0 notes, 0 ok"


def test_the_kernels_calls_are_those_of_the_table() -> None:
    assert list(kernel.try_calls()) == list(kernel.FEATURES)


def test_findings_are_json_ready() -> None:
    assert isinstance(ok("a"), Record)
    assert type(ok("a")).from_data(json.loads(json.dumps(warning("b", "m").as_data()))) == warning("b", "m")
