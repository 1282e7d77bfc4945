"""What nvc-runtime decides in C (native/client/runtime.c): never "no GPU" where Python says that one is asked for."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hook import bundle, config, environment, swarm
from hook.runtime import __main__ as runtime
from nvc.base.errors import InputError, NvcError
from nvc.request import hook_config
from tests.hook.runtime.test_entry32 import filters
from tests.support import launchers

DECIDES = Path(__file__).parents[3] / "build/native/client_decides"


class Decider:
    """The C functions, in a process that answers one text after another."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([DECIDES], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, kind: str, data: bytes) -> bool:
        return self.answer(kind, data) == b"1"

    def answer(self, kind: str, data: bytes) -> bytes:
        """As in native/test/client_decides.c."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(kind.encode() + struct.pack("=I", len(data)) + data)
        self.process.stdin.flush()
        return self.process.stdout.read(1)


@pytest.fixture(scope="module")
def decide() -> Iterator[Decider]:
    if not DECIDES.exists():
        pytest.skip("needs make -C native tests")
    decider = Decider()
    yield decider
    assert decider.process.stdin is not None and decider.process.stdout is not None
    decider.process.stdin.close()
    assert decider.process.wait(10) == 0
    decider.process.stdout.close()


def python_asks(data: bytes) -> bool:
    """As ``hook.runtime.__main__._edit`` decides with usual settings. Raises NvcError."""
    content = bundle.parse(data, "/b")
    found = bundle.look(content, "/b")
    prefixes = hook_config.HookConfig().annotation_prefixes
    annotated = any(key.startswith(prefixes) for key, _ in found.annotations)
    env = environment.parse(found.env)
    return annotated or swarm.asked(env, found.device_mounts, "/dev/null", {}) or runtime._may_share(content)


def spelled(value: Any, seed: int) -> bytes:
    """JSON with some characters written as escapes, and with some space."""
    chance = random.Random(seed)
    rate = chance.choice((0.0, 0.05, 0.5, 1.0))

    def text(word: str) -> str:
        parts = []
        for one in word:
            escaped = json.dumps(one)[1:-1]
            if len(escaped) == 1 and chance.random() < rate:
                escaped = "\\/" if one == "/" and chance.random() < 0.5 else f"\\u{ord(one):04{chance.choice('xX')}}"
            parts.append(escaped)
        return f'"{"".join(parts)}"'

    def write(node: Any) -> str:
        space = chance.choice(("", "", " ", "\n\t"))
        if isinstance(node, dict):
            return "{" + ",".join(f"{space}{text(key)}{space}:{write(item)}" for key, item in node.items()) + "}"
        if isinstance(node, list):
            return "[" + ",".join(space + write(item) for item in node) + "]"
        return text(node) if isinstance(node, str) else json.dumps(node)

    return write(value).encode("utf-8", "surrogatepass")


NAMES = st.sampled_from(
    [
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICESX", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VERSION"),
        *("NVIDIA_REQUIRE_CUDA", "PATH", "nvidia_visible_devices", "NVC_DEVICES", "cdi.k8s.io/a", "cdi.k8s.ioXa"),
        *("nvc.share", "share", "shared", "rshared", "-share", "share-", "/usr/share", "apply-cuda-memory-limits"),
        *("nvc-cdi-hook", "hook", "then", "\u00e9", "\u2028share\u2028", "\x7f"),
    ]
)
VALUES = st.one_of(
    st.sampled_from(["all", "0", "void", "none", "", "nvidia.com/gpu=all", "a&b<c>"]), st.text(max_size=6)
)
WORDS = st.one_of(NAMES, st.builds("{}={}".format, NAMES, VALUES), st.builds("{} {};".format, VALUES, NAMES),
                  st.builds("'{}'\u00a0{}".format, NAMES, NAMES), st.builds("{}\n{}".format, NAMES, NAMES))  # fmt: skip
PLACES = st.sampled_from(
    ["/dev/null", "/run", "/var/run/nvidia-container-devices/all", "/var/run/nvidia-container-devices", "/usr/share"]
)
HOOK = st.fixed_dictionaries({"path": WORDS}, optional={"args": st.lists(WORDS, max_size=3), "env": st.lists(WORDS)})
CONFIGS = st.fixed_dictionaries(
    {
        "ociVersion": st.just("1.0.2"),
        "process": st.fixed_dictionaries(
            {"env": st.lists(st.builds("{}={}".format, NAMES, VALUES), max_size=3)},
            optional={"args": st.lists(WORDS, max_size=3), "capabilities": st.just({"bounding": ["CAP_SYS_ADMIN"]})},
        ),
        "root": st.just({"path": "rootfs"}),
    },
    optional={
        "annotations": st.dictionaries(WORDS, VALUES, max_size=3),
        "mounts": st.lists(st.fixed_dictionaries({"destination": PLACES, "source": PLACES}), max_size=2),
        "hooks": st.dictionaries(st.sampled_from(["prestart", "createContainer", "x"]), st.lists(HOOK), max_size=2),
        "linux": st.dictionaries(WORDS, WORDS, max_size=2),
    },
)


@settings(max_examples=1500, deadline=None)
@given(CONFIGS, st.integers(0, 1 << 30))
def test_c_sees_every_request_that_python_sees(decide: Decider, content: dict[str, Any], seed: int) -> None:
    data = spelled(content, seed)
    try:
        asked = python_asks(data)
    except NvcError:
        return
    assert not asked or decide("J", data)


@pytest.mark.parametrize(
    "word",
    ["é", "a\u2028b", "/usr/share/x", "rshared", "a\tb", '"quoted"', "\\", "NVIDIA", "VISIBLE_DEVICES=all"],
)
def test_usual_containers_need_no_python(decide: Decider, word: str) -> None:
    content = {"ociVersion": "1.0.2", "process": {"env": [f"A={word}"]}, "annotations": {"a": word}, "root": {}}
    for data in (json.dumps(content), json.dumps(content, ensure_ascii=False), json.dumps(content, indent=1)):
        assert not decide("J", data.encode())


@pytest.mark.parametrize(
    "data", [b"\0", b'{"a": "\\x41"}', b'{"a": "\\u00"}', b'"\\', b'{"a": "\x01"}', "{}".encode("utf-16")]
)
def test_what_is_no_json_is_pythons(decide: Decider, data: bytes) -> None:
    assert decide("J", data)


def test_a_real_config(decide: Decider, tmp_path: Path) -> None:
    if shutil.which("runc") is None:
        pytest.skip("needs runc")
    subprocess.run(["runc", "spec", "-b", str(tmp_path)], check=True, timeout=20)
    data = (tmp_path / "config.json").read_bytes()
    assert not decide("J", data)
    assert not decide("G", data)
    assert decide("J", data.replace(b'"PATH=', b'"NVIDIA_VISIBLE_DEVICES=all", "PATH=', 1))


#: As nvidia-ctk writes it.
TOOLKIT = """
#accept-nvidia-visible-devices-as-volume-mounts = false
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
ldconfig = "@/sbin/ldconfig"
load-kmods = true

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]
"""
LINES = st.one_of(
    st.sampled_from(TOOLKIT.splitlines()),
    st.sampled_from(
        [
            *('swarm-resource = "A"', ' swarm-resource="A"', '"swarm-resource" = "A"', "[[x]]", "]", "\t"),
            *("swarm\\u002dresource = 'A'", 'debug = "/x"', "[ nvidia-container-runtime ]", "root = '/x' ; y"),
            *('["nvidia-container-runtime"]', "nvidia-container-runtime.debug = '/x'", 'runtimes = ["runc"]'),
            *('runtimes = ["runc", "crun"] # usual', "runtimes = [", '"crun"', 'annotation-prefixes = ["a"]'),
            *('nvidia-container-runtime = { runtimes = ["a"] }', 'path = """', "path = \'\'\'", 'path = "#"'),
            *('x = ["#"', "[nvidia-container-runtime] # x", "path = 'a' # \"\"\""),
            *('runtimes = ["crun", "runc"]', "[x]", "[nvidia-container-runtime]"),
            *("[nvidia-container-runtime.runtimes]", "nvidia-container-runtime = 'x'"),
        ]
    ),
    st.text(alphabet="ab =[]\"'#\\.\n\r\t{}", max_size=12),
)  # fmt: skip


@settings(max_examples=1500, deadline=None)
@given(st.lists(LINES, max_size=8))
def test_c_takes_no_setting_for_usual_that_is_not(
    decide: Decider, tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    data = "\n".join(lines).encode()
    answer = decide.answer("T", data)
    if answer == b"1":
        return
    file = tmp_path_factory.getbasetemp() / "config.toml"
    file.write_bytes(data)
    try:
        found = hook_config.decode(data, "config.toml", lenient=True)
    except InputError:
        found = config.rescue(str(file), {})
    usual = hook_config.HookConfig()
    assert found.runtimes == (usual.runtimes if answer == b"0" else usual.runtimes[::-1])
    assert found.annotation_prefixes == usual.annotation_prefixes
    assert (found.swarm_resources, found.runtime_debug) == ((), "")
    assert not swarm.may_ask({"A": "1", "DOCKER_RESOURCE_GPU": "1"}, str(file), {})


def test_the_toolkits_own_file_is_usual(decide: Decider) -> None:
    assert not decide("T", TOOLKIT.encode())
    assert decide("T", TOOLKIT.replace("#swarm", "swarm").encode())


USUAL, CRUN_FIRST = 'runtimes = ["runc", "crun"]', 'runtimes = ["crun", "runc"]'


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (TOOLKIT.replace(USUAL, CRUN_FIRST), b"2"),
        (TOOLKIT, b"0"),
        (f"[x]\n{CRUN_FIRST}", b"1"),
        (f"[nvidia-container-runtime]\n{CRUN_FIRST}\n{USUAL}", b"1"),
        ('[nvidia-container-runtime]\nruntimes = ["/opt/crun"]', b"1"),
        (f"nvidia-container-runtime = 1\n[nvidia-container-runtime]\n{CRUN_FIRST}", b"1"),
    ],
)
def test_crun_first_needs_no_python(decide: Decider, text: str, answer: bytes) -> None:
    assert decide.answer("T", text.encode()) == answer


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation whose Python program and real runtime say which of them was started."""
    monkeypatch.setattr(launchers, "PREFIX", "")
    client = Path(__file__).parents[3] / "build/native/nvc-client"
    if not client.exists():
        pytest.skip("needs make native")
    status = "while read name value; do case $name in Seccomp_filters:) echo $value >filters;; esac; done"
    for name, who in (("lib/nvc-py/bin/nvc-runtime", "python"), ("real/runc", "real")):
        text = f'echo {who} "$@"; {status} </proc/self/status'
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bin", "bundle", "etc/nvc"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy2(client, tmp_path / "bin/nvc-runtime")
    (tmp_path / "bundle/config.json").write_text(
        '{"ociVersion": "1", "process": {"env": ["A=b"]}, "root": {"path": "r"}}'
    )
    return tmp_path


def started(place: Path, *words: str, **variables: str) -> str:
    env = {"PATH": f"relative:{place}/real:/bin", "XDG_CONFIG_HOME": f"{place}/etc", **variables}
    done = subprocess.run(
        [place / "bin/nvc-runtime", *words], env=env, cwd=place, capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stderr) == (0, "")
    who, *rest = done.stdout.split()
    assert rest == list(words)
    return who


@pytest.mark.parametrize(
    ("words", "who"),
    [
        (("create", "--bundle", "bundle", "c1"), "real"),
        (("--root", "/r", "--log=/l", "--debug", "create", "-b=bundle", "c1"), "real"),
        (("run", "-b", "nothing", "-b", "bundle", "c1"), "real"),
        (("state", "c1"), "real"),
        (("restore", "--image-path", "/i", "-b", "bundle", "c1"), "real"),
        (("restore", "--image-path", "/i", "-b", "nothing", "c1"), "python"),
        (("checkpoint", "--image-path", "/i", "c1"), "python"),  # it asks the runtime for the bundle
        (("--root", "create", "delete", "--force", "c1"), "real"),
        (("create", "c1"), "python"),  # no config.json in the working directory
        (("create", "c1", "--bundle"), "python"),
        (("exec", "c1", "true"), "python"),
        (("--new", "value", "create", "-b", "bundle", "c1"), "python"),
        (("--version",), "python"),
        ((), "python"),
    ],
)
def test_which_program_is_started(place: Path, words: tuple[str, ...], who: str) -> None:
    assert started(place, *words) == who


@pytest.mark.parametrize(("runtimes", "who"), [(CRUN_FIRST, "crun"), (USUAL, "real")])
def test_the_first_runtime_is_started(place: Path, runtimes: str, who: str) -> None:
    (place / "etc/nvc/config.toml").write_text(f"[nvidia-container-runtime]\n{runtimes}\n")
    (place / "real/crun").write_text('#!/bin/sh\necho crun "$@"\n')
    (place / "real/crun").chmod(0o755)
    assert started(place, "state", "c1") == who


GPU = {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}


@pytest.mark.root
@pytest.mark.parametrize(
    ("guard", "words", "linux", "who", "more"),
    [
        pytest.param("require", ("create",), {}, "real", 1, id="required"),
        pytest.param("require", ("run",), {}, "real", 1, id="run"),
        pytest.param("require", ("restore",), {}, "real", 1, id="restore"),
        pytest.param("require", ("state",), {}, "real", 0, id="another command"),
        pytest.param("off", ("create",), GPU, "real", 0, id="off"),
        pytest.param("require", ("create",), GPU, "python", 0, id="a GPU"),
        pytest.param("require # x", ("create",), {}, "python", 0, id="a line that is not understood"),
    ],
)
def test_a_container_without_a_gpu_is_refused_the_drivers(
    place: Path, guard: str, words: tuple[str, ...], linux: dict[str, Any], who: str, more: int
) -> None:
    value, _, comment = guard.partition(" ")
    (place / "etc/nvc/config.toml").write_text(f'[share]\nguard = "{value}" {comment}\n')
    content = {"ociVersion": "1", "process": {"env": ["A=b"]}, "root": {"path": "r"}, "linux": linux}
    (place / "bundle/config.json").write_text(json.dumps(content))
    assert started(place, *words, "-b", "bundle", "c1") == who
    assert int((place / "filters").read_text()) - filters(Path("/proc/self/status").read_text()) == more


@pytest.mark.parametrize(
    "linux",
    [
        GPU,
        {"resources": {"devices": [{"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}]}},
        {"resources": {"devices": [{"allow": True, "type": "a", "major": -1, "minor": -1, "access": "rwm"}]}},
        {"mounts": [{"destination": "/dev"}, {"destination": "/x", "source": "/dev"}]},
        {"mounts": [{"destination": "/dev", "type": "devtmpfs"}]},
        {"capabilities": ["CAP_SYS_ADMIN"]},
    ],
)
def test_what_may_give_a_gpu_unasked_is_pythons(decide: Decider, linux: dict[str, Any]) -> None:
    for indent in (None, 1):
        data = json.dumps({"ociVersion": "1.0.2", "linux": linux}, indent=indent).encode()
        assert decide("G", data)
        assert not decide("J", data)


def test_a_request_is_pythons(place: Path) -> None:
    (place / "bundle/config.json").write_text('{"process": {"env": ["NVIDIA_VISIBLE_DEVICE\\u0053=all"]}}')
    assert started(place, "create", "-b", "bundle", "c1") == "python"


def test_what_cannot_be_read_is_pythons(place: Path) -> None:
    (place / "bundle/config.json").write_text(" " * (1 << 20))
    assert started(place, "create", "-b", "bundle", "c1") == "python"
    (place / "bundle/config.json").unlink()
    (place / "bundle/config.json").mkdir()
    assert started(place, "create", "-b", "bundle", "c1") == "python"


def test_settings_are_looked_for_as_python_does(place: Path) -> None:
    other = place / "etc/nvidia-container-runtime/config.toml"
    other.parent.mkdir()
    other.write_text('swarm-resource = "A"\n')
    assert started(place, "state", "c1") == "python"
    (place / "etc/nvc/config.toml").write_text(TOOLKIT)
    assert started(place, "state", "c1") == "real"
    assert started(place, "state", "c1", NVIDIA_CTK_CONFIG_FILE_PATH=str(other)) == "python"
    assert started(place, "state", "c1", NVC_DEVICES="0") == "python"
    (place / "etc/nvc/config.toml").unlink()
    (place / "etc/nvc/config.toml").symlink_to("nowhere")
    assert started(place, "state", "c1") == "python"


def test_a_runtime_that_is_this_program_is_pythons(place: Path) -> None:
    (place / "real/runc").unlink()
    (place / "real/runc").symlink_to(place / "bin/nvc-runtime")
    assert started(place, "state", "c1") == "python"
