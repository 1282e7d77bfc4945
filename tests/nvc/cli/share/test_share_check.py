"""``nvc-py share check``: what a container would get, without one; tests/system/test_enforcement.py starts them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.inject import api
from nvc.sim import create

RULES = 'default = "cap=50%,mem=20Gi"\nmaximum = "mem=40Gi,weight=100"\n'
Check = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("machine") / "h100x8"
    create.create(str(place), "h100x8")
    return place


@pytest.fixture
def check(command: Callable[..., Any], machine: Path, tmp_path: Path) -> Check:
    config = tmp_path / "config.toml"
    config.write_text(f'[agent]\ndirectory = "{tmp_path}/none"\n[share]\n{RULES}')

    def run(*words: str, more: str = "") -> tuple[int, str, str]:
        if more:
            config.write_text(f"{config.read_text()}{more}\n")
        head = (f"--sim={machine}", "share", "check", f"--config={config}", "--device=0")
        ran: tuple[int, str, str] = command(*head, *words, program="nvc-py", on=api)
        return ran

    return run


def rules(check: Check, *words: str, more: str = "") -> dict[str, str]:
    code, out, err = check("--json", *words, more=more)
    assert code == 0, err
    (gpu,) = json.loads(out)["gpus"]
    return {name: f"{setting['value']} {setting['rule']}".strip() for name, setting in gpu["settings"].items()}


def test_each_setting_has_its_value_and_its_rule(check: Check) -> None:
    told = rules(check, "--annotation=nvc.share=mem=10Gi,weight=3", "--env=NVC_SHARE=mem=1Gi")
    assert told == {
        "mem": "1Gi NVC_SHARE",
        "cap": "50% default",
        "weight": "3 nvc.share",
        "priority": "normal",
        "oversubscribe": "off",
    }
    assert rules(check, "--fixed=mem=10Gi", "--share=mem=9Gi")["mem"] == "10Gi --share-fixed"
    assert rules(check, "--share=cap=3%", "--annotation=nvc.share=cap=4%")["cap"] == "3% --share"
    assert rules(check, "--env=CUDA_MEM_LIMIT_0=2g")["mem"] == "2Gi CUDA_MEM_LIMIT_0"
    assert rules(check)["mem"] == "20Gi default"


def test_what_is_cut_says_by_which_rule(check: Check) -> None:
    told = rules(check, "--annotation=nvc.share=mem=50Gi,weight=300,cap=20%", more="clamp = true")
    assert (told["mem"], told["weight"], told["cap"]) == ("40Gi maximum", "100 maximum", "20% nvc.share")
    assert rules(check, "--annotation=nvc.share=off")["mem"] == "20Gi default"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--annotation=nvc.share=off"], "off is not allowed on this node"),
        (["--annotation=nvc.share=mem=1Gi,group=a"], "group=a is not accepted"),
        (["--fixed=mem=50Gi"], "--share-fixed: mem=50Gi is more than this node gives"),
        (["--env=GPU_MEMORY_LIMIT=1g"], "GPU_MEMORY_LIMIT is named like a limit"),
        (["--fixed=mem=1Gi", "--fixed=mem=2Gi"], "all GPUs have"),
    ],
)
def test_a_container_that_would_not_start_is_an_error_with_its_reason(
    check: Check, words: list[str], message: str
) -> None:
    code, _, err = check(*words)
    assert (code, message in err) == (1, True), err
    code, out, _ = check("--json", *words)
    told = json.loads(out)
    assert (code, told["outcome"], message in told["message"], bool(told["hint"])) == (1, "refused", True, True)


def test_the_enforcer_is_said_for_both_kinds_of_runtime(check: Check) -> None:
    enforcer = json.loads(check("--json")[1])["enforcer"]
    assert (enforcer["nvc-runtime"], enforcer["other runtimes"]) == ("guard", "library")
    assert "none at" in enforcer["agent"]
    off = "--annotation=nvc.guard=off"
    assert json.loads(check("--json", off, more="allow-guard-off = true")[1])["enforcer"]["nvc-runtime"] == "library"
    fixed = json.loads(check("--json", off, "--fixed=mem=1Gi")[1])["enforcer"]
    assert fixed["nvc-runtime"] == "guard", "an annotation does not change what is fixed"
    required = json.loads(check("--json", "--fixed=mem=1Gi", more='guard = "require"')[1])["enforcer"]
    assert (required["nvc-runtime"], required["other runtimes"]) == ("guard", "refused")


@pytest.mark.timeout(60)
def test_an_agent_that_does_not_answer_lets_no_container_start(check: Check, tmp_path: Path) -> None:
    """It said that the guard enforces the share, and 0 where guard = "require" left nothing that starts."""
    (tmp_path / "none").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(f"{tmp_path}/none/control")
        silent.listen()
        code, out, _ = check("--json")
        enforcer = json.loads(out)["enforcer"]
        assert (code, enforcer["nvc-runtime"], enforcer["other runtimes"]) == (0, "refused", "library")
        assert "does not answer" in enforcer["agent"]
    code, out, _ = check(more='guard = "require"')  # it was killed, and its socket is there
    assert (code, "with nvc-runtime: does not start (agent: agent error: " in out) == (1, True), out


def test_people_read_it_in_lines(check: Check) -> None:
    code, out, _ = check("--fixed=mem=10Gi,group=claim-0", "--annotation=nvc.share=cap=1%")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "share by --share-fixed, in group claim-0: mem=10Gi,cap=50%"
    assert [line.split() for line in lines[2:4]] == [["mem", "10Gi", "--share-fixed"], ["cap", "50%", "default"]]
    assert lines[-1] == "with other runtimes: does not start", "a group needs the guard"
    assert check()[1].splitlines()[-1] == "with other runtimes: enforced by the preloaded library"


@pytest.mark.parametrize("words", [["--annotation=x"], ["--env==1"], ["--config=rules.toml"], ["--device=99"]])
def test_wrong_words_get_a_message(check: Check, words: list[str]) -> None:
    code, out, err = check(*words)
    assert (code, out) == (1, "")
    assert err.startswith("nvc-py: ")
    assert ("'=' has no name" in err) == (words == ["--env==1"]), err


def test_a_range_is_shown_and_needs_the_guard(check: Check) -> None:
    """Without the guard no limit moves, and what is guaranteed would be taken by others."""
    words = "--annotation=nvc.share=mem=2Gi..10%"
    assert rules(check, words)["mem"] == "2Gi..8155Mi nvc.share"
    enforcer = json.loads(check("--json", words)[1])["enforcer"]
    assert (enforcer["nvc-runtime"], enforcer["other runtimes"]) == ("guard", "refused")
    code, _, err = check("--annotation=nvc.share=mem=2Gi..50Gi")
    assert (code, "mem=2Gi..50Gi is more than this node gives" in err) == (1, True)


def test_a_node_that_admits_by_requests_leaves_no_container_without_a_share(check: Check) -> None:
    told = rules(check, "--annotation=nvc.share=mem=100%,cap=100%", more='admission = "requests"\nclamp = true')
    assert told["mem"] == "40Gi maximum"
    assert rules(check)["mem"] == "20Gi default"
    code, _, err = check(more="allow-off = true")
    assert (code, "allow-off cannot be true" in err) == (1, True)
