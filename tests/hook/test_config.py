"""config.toml of the NVIDIA container toolkit (nvidia-container-toolkit.md 1.2 and 2)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hook.config import HookConfig, decode, load
from hook.swarm import CONFIG_LIMIT, FILES
from nvc.base.config_file import KEYS
from nvc.base.errors import InputError
from nvc.request.capabilities import WORDS

SAMPLE = """
#accept-nvidia-visible-devices-as-volume-mounts = false
disable-require = true
supported-driver-capabilities = "compute,utility"
[nvidia-container-cli]
environment = []
root = "/run/nvidia/driver"
ldcache = "/etc/other.cache"
ldconfig = "@/sbin/ldconfig.real"
load-kmods = false
no-cgroups = true
user = "root:video"
debug = "/var/log/x.log"
[nvidia-container-runtime]
log-level = "info"
[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "mount"
[features]
disable-imex-channel-creation = true
"""


def test_defaults() -> None:
    assert HookConfig() == decode(b"", "c")
    assert HookConfig().supported_capabilities == WORDS


def test_reads_every_key() -> None:
    assert decode(SAMPLE.encode(), "c") == HookConfig(
        root="/run/nvidia/driver",
        ldcache="/etc/other.cache",
        ldconfig="@/sbin/ldconfig.real",
        user="root:video",
        debug="/var/log/x.log",
        load_kmods=False,
        no_cgroups=True,
        create_imex=False,
        compat_mode="mount",
        disable_require=True,
        supported_capabilities=("compute", "utility"),
    )


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        pytest.param('supported-driver-capabilities = "all"', "supported_capabilities", WORDS, id="all"),
        pytest.param('supported-driver-capabilities = "video , "', "supported_capabilities", ("video",), id="trimmed"),
        pytest.param('[nvidia-container-cli]\nroot = ""', "root", "/", id="empty root is /"),
        pytest.param("[nvidia-container-cli]\nno-pivot = true", "no_pivot", True, id="no-pivot"),
        pytest.param("[features]\nignore-imex-channel-requests = true", "ignore_imex", True, id="ignore IMEX"),
        pytest.param('swarm-resource = "A, B,,A"', "swarm_resources", ("A", "B"), id="swarm"),
        pytest.param("accept-nvidia-visible-devices-as-volume-mounts = true", "accept_mounts", True, id="mounts"),
        pytest.param('[nvidia-container-runtime]\nmode = "cdi"', "mode", "cdi", id="mode"),
        pytest.param(
            '[nvidia-container-runtime.modes.csv]\nmount-spec-path = "/opt/lists"',
            "csv_directory",
            "/opt/lists",
            id="csv",
        ),
        pytest.param('[nvidia-container-runtime.modes.csv]\nmount-spec-path = ""', "csv_directory", "", id="no csv"),
        pytest.param('[nvidia-container-runtime]\nruntimes = ["/x", "y"]', "runtimes", ("/x", "y"), id="runtimes"),
        pytest.param("[agent]\nslots = 1\n[share]\nclamp = true", "unknown", (), id="tables of our other programs"),
        pytest.param(
            "[features]\nallow-cuda-compat-libs-from-container = true\n"
            '[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = ""',
            "compat_mode",
            "mount",
            id="compat libraries allowed, no mode",
        ),
        *(
            pytest.param(
                f'[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = "{word}"', "compat_mode", mode, id=word
            )
            for word, mode in [
                ("ldconfig", "ldconfig"),
                ("mount", "mount"),
                ("hook", "disabled"),
                ("disabled", "disabled"),
                ("", "disabled"),
                ("bogus", "disabled"),
            ]
        ),
    ],
)
def test_values(text: str, field: str, expected: object) -> None:
    assert expected == getattr(decode(text.encode(), "c"), field)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("x", "c: not TOML", id="not TOML"),
        pytest.param("a = 1\na = 2", "c: not TOML", id="key twice"),
        pytest.param("a = " + "[" * 5000, "c: not TOML", id="deep"),
        pytest.param(
            '[nvidia-container-runtime.modes.csv]\nmount-spec-path = "lists"',
            "is not an absolute path",
            id="relative csv",
        ),
        pytest.param('disable-require = "yes"', "disable-require is not a boolean", id="text for a boolean"),
        pytest.param("[nvidia-container-cli]\nroot = 1", r"nvidia-container-cli\.root is not a string", id="number"),
        pytest.param(
            '[nvidia-container-cli]\nroot = "run"', "root = 'run' is not an absolute path", id="relative root"
        ),
        pytest.param(
            '[nvidia-container-cli]\ndebug = "x.log"', "debug = 'x.log' is not an absolute", id="relative log"
        ),
        pytest.param('[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"', "ldconfig", id="the container's ldconfig"),
        pytest.param('[nvidia-container-cli]\nldconfig = ""', "ldconfig", id="no ldconfig"),
        pytest.param('[nvidia-container-cli]\nldconfig = "@ldconfig"', "ldconfig", id="relative ldconfig"),
        pytest.param('[nvidia-container-cli]\nuser = "a\\u0000"', "NUL", id="NUL"),
        pytest.param('[nvidia-container-cli]\npath = "a\\u0000"', "NUL", id="NUL in what has no effect"),
        pytest.param('[nvidia-container-runtime]\nmode = "fast"', "invalid mode 'fast'", id="unknown mode"),
        pytest.param('[nvidia-container-runtime]\nruntimes = "runc"', "runtimes is not a list of strings", id="list"),
        pytest.param("[nvidia-container-runtime]\nruntimes = [1]", "runtimes is not a list of strings", id="numbers"),
        pytest.param("[nvidia-ctk]\npath = 7", r"nvidia-ctk\.path is not a string", id="key without effect"),
        pytest.param('[nvidia-container-runtime]\ndebug = "x"', "debug = 'x' is not an absolute", id="runtime's log"),
        pytest.param("nvidia-container-cli = 1", "nvidia-container-cli is not a table", id="no table"),
        pytest.param("[nvidia-container-runtime]\nmodes = 1", "modes is not a table", id="no inner table"),
        pytest.param('supported-driver-capabilities = "compute,x"', "unknown capability 'x'", id="unknown capability"),
    ],
)
def test_refuses_with_the_key(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        decode(text.encode(), "c")


def test_quoted_names_with_dots_are_unknown_in_the_toolkits_file() -> None:
    """The toolkit does not find them either. One below a section ended in a KeyError."""
    text = b'["nvidia-container-runtime.modes.cdi"]\n"" = 1\n["nvidia-container-runtime".".share"]\n["".share]\n'
    unknown = decode(text, "x", lenient=True).unknown
    assert unknown == ('"nvidia-container-runtime.modes.cdi"', 'nvidia-container-runtime.".share"', '""')


def test_unknown_keys_of_the_toolkits_file_are_named() -> None:
    text = b"x = 1\n[unknown]\ny = 1\n[nvidia-ctk]\nz = 7\n[nvidia-container-runtime.modes.new]\na = 1"

    found = decode(text, "c", lenient=True)

    assert found.unknown == ("x", "unknown", "nvidia-ctk.z", "nvidia-container-runtime.modes.new")


def test_not_utf8() -> None:
    with pytest.raises(InputError, match="c: not TOML"):
        decode(b"\xff", "c")


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_the_named_file_comes_before_the_environments(tmp_path: Path) -> None:
    named = write(tmp_path / "a.toml", "disable-require = true")
    other = write(tmp_path / "b.toml", "[nvidia-container-cli]\nno-cgroups = true")

    assert HookConfig(disable_require=True) == load(named, {"NVIDIA_CTK_CONFIG_FILE_PATH": other})
    assert HookConfig(no_cgroups=True) == load("", {"NVIDIA_CTK_CONFIG_FILE_PATH": other, "XDG_CONFIG_HOME": "/x"})


def test_xdg_directory_comes_last_and_may_lack_the_file(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert HookConfig() == load("", environment)

    write(tmp_path / FILES[1], "disable-require = true")
    assert HookConfig(disable_require=True) == load("", environment)

    write(tmp_path / FILES[0], "[nvidia-container-cli]\nno-cgroups = true")
    assert HookConfig(no_cgroups=True) == load("", environment)


@pytest.mark.parametrize("by_environment", [True, False])
def test_a_named_file_must_exist(tmp_path: Path, by_environment: bool) -> None:
    name = str(tmp_path / "none.toml")
    with pytest.raises(InputError, match="there is no such file"):
        load("" if by_environment else name, {"NVIDIA_CTK_CONFIG_FILE_PATH": name} if by_environment else {})


def test_what_is_no_readable_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(CONFIG_LIMIT + 1)

    for name, words in ((".", "not a regular file"), ("fifo", "not a regular file"), ("huge", "larger than 1 MiB")):
        with pytest.raises(InputError, match=words):
            load(str(tmp_path / name), {})


def test_every_field_of_the_table_exists() -> None:
    fields = set(HookConfig().as_data())

    assert {field for _, _, _, field in KEYS if field} <= fields
    assert len({(section, key) for section, key, _, _ in KEYS}) == len(KEYS)


def test_a_host_may_support_no_capability() -> None:
    """Then containers that ask for none get none; this is no mistake in the file."""
    config = decode(b'supported-driver-capabilities = ""\n', "/etc/nvidia-container-runtime/config.toml")

    assert config.supported_capabilities == ()
