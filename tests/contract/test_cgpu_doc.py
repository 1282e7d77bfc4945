"""docs/reference/cgpu.md has every node, policy, variable and script of cGPU, and its commands are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from nvc.cli import groups, options
from nvc.guard.scheduling import POLICIES, parse_policy
from nvc.share import dialects, spec

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reference/cgpu.md").read_text()
MEANINGS = (ROOT / "docs/reference/share-variables.md").read_text()
#: gpu-sharing-kernel.md 1.3.
NODES = """version major default_memsize inst_ctl 0 N/policy N/max_inst N/free_weight N/<id>/id N/<id>/memsize
N/<id>/meminfo N/<id>/weight""".split()  # noqa: SIM905
#: 1.2, the last five are eGPU's.
VARIABLES = """ALIYUN_COM_GPU_MEM_CONTAINER ALIYUN_COM_GPU_MEM_DEV ALIYUN_COM_GPU_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES
CGPU_DISABLE ALIYUN_COM_GPU_SCHD_WEIGHT ALIYUN_COM_GPU_HIGH_PRIO ALIYUN_COM_GPU_MEM_UNIT AMP_VGPU_ENABLE
GPU_MEM_PER_DEVICE GPU_UTIL_PER_DEVICE AMP_USE_HOST_DAEMON AMP_VGPU_DEV_COUNT""".split()  # noqa: SIM905
#: 1.1, 1.5, 1.6, 1.7.
SCRIPTS = """install.sh uninstall.sh upgrade.sh living_upgrade.sh cgpu-container-wrapper cgpu-smi conflict.sh
check_conflict cgpu_mig uuid.conf cgpu.conf /var/log/cgpu-container.log cgpu-installer ack.node.gpu.schedule
ack.node.gpu.placement""".split()  # noqa: SIM905
#: 1.4.
NUMBERED = ("fair", "preemptive", "weighted", "fixed", "soft", "native")


def rows(heading: str) -> list[list[str]]:
    """The cells of the tables in a section."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("node", NODES)
def test_every_node_is_in_the_table(node: str) -> None:
    found = [row for row in rows("/proc/cgpu_km") if row[0].startswith(f"`{node}`")]
    assert 1 == len(found)
    assert re.search(r"`.+`|no counterpart", found[0][1])


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_variable_is_said_to_be_what_it_is(variable: str) -> None:
    """In the table of variables, or by the page where it says nothing of a share."""
    found = re.findall(rf"^\| [^|]*`{variable}`[^|]* \| (.+) \|$", MEANINGS, re.MULTILINE)
    assert len(found) == (variable in dialects.VARIABLES or variable in dialects.IGNORED)
    if found:
        assert (variable in dialects.IGNORED) == found[0].startswith("no effect")
    else:
        assert f"`{variable}`" in TEXT.partition("## Variables\n")[2].partition("\n## ")[0]


def test_no_variable_that_is_read_is_missing() -> None:
    assert set(dialects.CGPU) <= set(VARIABLES)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_and_file_is_in_the_table(script: str) -> None:
    assert 1 == sum(f"`{script}`" in row[0] for row in rows("Scripts and files"))


@pytest.mark.parametrize(("number", "name"), list(enumerate(NUMBERED)))
def test_every_policy_has_its_number_and_name(number: int, name: str) -> None:
    assert name == POLICIES[number] == parse_policy(str(number))
    found = [row for row in rows("Policies") if row[0] == str(number)]
    assert 1 == len(found)
    assert found[0][2].startswith(f"`{name}`")


COMMANDS = sorted(set(re.findall(r"`(nvc-py [^`]+)`", TEXT)))


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_that_is_named_is_there(line: str) -> None:
    program, *arguments = shlex.split(line)
    first = [word for word in arguments if not word.startswith("-")]
    general = {f"--{option.long}" for option in options.GLOBAL}
    if not first:
        assert {word.partition("=")[0] for word in arguments} <= general | {"--version"}
        return
    name = first[0]
    if name in options.COMMANDS:
        assert [name] == arguments
        return
    command = groups.load(name)
    rest = arguments[arguments.index(name) + 1 :]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        child = command.commands.get(rest[0])
        assert child is not None, f"{program} {name}: no {rest[0]}"
        command, rest = child, rest[1:]
    assert not isinstance(command, click.Group)
    given = {word.partition("=")[0] for word in rest if word.startswith("-")}
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    assert given <= known
    for word in rest:
        if re.match(r"(mem|cap|weight|priority)=", word):
            assert spec.parse_gpu(word)


@pytest.mark.parametrize("share", re.findall(r"NVC_SHARE=([^\s`]+)", TEXT))
def test_its_examples_are_shares(share: str) -> None:
    assert spec.parse(share)
