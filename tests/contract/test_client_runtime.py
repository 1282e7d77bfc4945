"""The lists of nvc-runtime's C part are those of its Python part, which decides what C does not."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from hook import bundle, environment, process, swarm
from hook.runtime import __main__ as runtime
from hook.runtime import command, entry32, refused
from nvc.base.config_file import KEYS
from nvc.guard import refusal
from nvc.model import NVIDIA_MAJOR
from nvc.request.hook_config import HookConfig
from nvc.share import policyfile
from tests.support import launchers

CLIENT = Path(__file__).parents[2] / "native/client"
SOURCE = (CLIENT / "runtime.c").read_text()
#: Fields of HookConfig on which depends what a request is, which runtime is the real one, and what is written for a
#: container without a request. The rest is for containers with one.
DECIDE = {"swarm_resources", "annotation_prefixes", "runtimes", "runtime_debug"}
DEFAULTS = HookConfig()


def words(name: str) -> set[str]:
    body = re.search(rf"\b{name}\[\] = {{(.*?)}};", SOURCE, re.DOTALL)
    assert body is not None, name
    return set(re.findall(r'"((?:\\.|[^"\\])*)"', body[1]))


def test_the_commands_but_exec_which_gets_a_filter() -> None:
    assert words("COMMANDS") == command._COMMANDS - {command.EXECUTE}
    assert words("VALUED") == command._VALUED


def test_the_places_of_settings_and_runtimes() -> None:
    assert words("CONFIGS") == set(swarm.FILES)
    assert words("RUNTIMES") == words("CRUN_FIRST") == set(DEFAULTS.runtimes)
    assert f'#define DEFAULT_PATH "{process.DEFAULT_PATH}"' in SOURCE
    assert words("NAMES") == {name for name, module in launchers._MODULES.items() if module == "hook.runtime.__main__"}


def test_the_words_that_a_request_has() -> None:
    assert words("WORDS") == {
        environment.VISIBLE_DEVICES,
        "CUDA_VERSION",
        bundle._DEVICES,
        swarm.DEVICES,
        bundle.MEMORY_HOOK,
        *DEFAULTS.annotation_prefixes,
        "run.oci.hooks",
        "org.criu.",
    }
    assert f'#define WHOLE_WORD "{bundle.SHARE_HOOK}"' in SOURCE
    assert environment.is_legacy_image({"CUDA_VERSION": "1"})


def test_the_keys_that_change_a_decision() -> None:
    assert {field for _, _, _, field in KEYS} > DECIDE
    # A key with the name of the table of runtimes takes its place.
    table = next(section for section, _, _, field in KEYS if field == "runtimes")
    assert words("KEYS") == {key for _, key, _, field in KEYS if field in DECIDE} | {"guard", "directory", table}
    assert f'#define RUNTIME_TABLE "[{table}]"' in SOURCE
    assert words("USUAL") == {
        'runtimes=[\\"runc\\",\\"crun\\"]',
        'annotation-prefixes=[\\"cdi.k8s.io/\\"]',
        'guard=\\"auto\\"',
        f'directory=\\"{policyfile.AGENT}\\"',
    }
    assert re.findall(r'#define \w+ "guard=\\"(\w+)\\""', SOURCE) == ["require", "off"]


def test_the_filters_are_those_of_python() -> None:
    rows = re.findall(r"\{ (0x\w+), (\d+), (\d+), (0x\w+) \}", (CLIENT / "refusal.c").read_text())
    values = [(int(code, 16), int(true), int(false), int(constant, 16)) for code, true, false, constant in rows]
    assert values == list(struct.iter_unpack("=HBBI", refusal.program() + entry32.program()))
    assert f'#define DEVICE_MAJOR "{NVIDIA_MAJOR}"' in SOURCE
    assert f"EDIT_SKIPPED = {runtime.SKIPPED}," in (CLIENT / "client.h").read_text()
    assert policyfile.AGENT == refused.AGENT
    assert f'#define AGENT_DIRECTORY "{policyfile.AGENT}"' in (CLIENT / "client.h").read_text()
