"""``nvidia-ctk config``: the files that NVIDIA's program writes (1.20.0, noted there), byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.config import decode
from nvc.cli.ctk.config import _KINDS
from nvc.model import CSV_DIRECTORY
from tests.nvc.cli.ctk.conftest import Ctk

DEFAULT = Path(__file__).with_name("default.toml").read_text()
RUNTIME = "nvidia-container-runtime"


def test_a_machine_without_a_file_has_the_defaults(ctk: Ctk) -> None:
    assert ctk("config") == (0, DEFAULT, "")
    assert ctk("config", "create-default").out == DEFAULT


def test_the_defaults_are_what_the_hook_does_without_a_file() -> None:
    written = decode(DEFAULT.encode(), f"/etc/{RUNTIME}/config.toml")
    assert written.csv_directory == CSV_DIRECTORY  # what "" means
    assert written.replace(hook_path="", csv_directory="", supported_capabilities=()) == decode(
        b"", f"/etc/{RUNTIME}/config.toml"
    ).replace(supported_capabilities=())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["disable-require"], "disable-require = true"),
        (["disable-require=1", "disable-require=F"], "disable-require = false"),
        ([f"{RUNTIME}.runtimes=a:b"], 'runtimes = ["a", "b"]'),
        ([f"{RUNTIME}.runtimes=a"], 'runtimes = ["a"]'),
        (["swarm-resource=X"], 'swarm-resource = "X"'),
        ([f"{RUNTIME}.debug=/dev/null"], 'debug = "/dev/null"'),
        (["nvidia-container-cli.no-pivot=true"], "no-pivot = true"),
        (["features.ignore-imex-channel-requests"], "[features]\nignore-imex-channel-requests = true"),
        ([f"{RUNTIME}.modes.csv.compat-container-root=/x"], 'compat-container-root = "/x"'),
        ([f'{RUNTIME}.log-level=a"b'], 'log-level = "a\\"b"'),
    ],
)
def test_set(ctk: Ctk, words: list[str], line: str) -> None:
    ran = ctk("config", *(f"--set={word}" for word in words))

    assert (ran.code, ran.err) == (0, "")
    assert f"{line}\n" in ran.out
    # Everything else stays.
    gone = set(DEFAULT.splitlines()) - set(ran.out.splitlines())
    assert len(gone) <= 1


@pytest.mark.parametrize("text", ["nvidia-container-cli = 5\n", "[[nvidia-container-cli]]\n"])
def test_a_section_that_is_no_table_is_an_input_error(ctk: Ctk, tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    ran = ctk("config", "-c", str(file), "-i", "--set=nvidia-container-cli.root=/x")

    assert ran.code == 1
    assert "nvidia-container-cli is not a table" in ran.err
    assert "internal error" not in ran.err
    assert file.read_text() == text


def test_nil_takes_a_feature_out(ctk: Ctk, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[features]\nignore-imex-channel-requests = true\n")

    assert "ignore" not in ctk("config", "-c", str(file), "--set=features.ignore-imex-channel-requests=nil").out


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (f"{RUNTIME}.foo=1", 'invalid config option: undefined field: "foo"'),
        ("foo.bar", 'invalid config option: undefined field: "foo"'),
        ("disable-require=x", "invalid format: "),
        ("swarm-resource", "invalid format: expected key=value; got swarm-resource"),
        ("nvidia-container-cli=x", "undefined field"),
        # Commas separate options of a list, as there.
        (f"{RUNTIME}.runtimes=a,b", 'undefined field: \\"b\\"'),
        ("mps.user=x", "undefined field"),
    ],
)
def test_what_cannot_be_set(ctk: Ctk, word: str, said: str) -> None:
    ran = ctk("config", f"--set={word}")

    assert (ran.code, ran.out) == (1, "")
    assert said.replace('"', '\\"').replace('\\\\"', '\\"') in ran.err


def test_a_file_keeps_what_it_has(ctk: Ctk, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '# mine\nfoo = 3\n[a.b]\nc = [1, 2]\n[nvidia-container-cli]\ndebug = "/d"\n[nvidia-container-runtime]\n'
    )
    expected = (
        "#accept-nvidia-visible-devices-as-volume-mounts = false\n"
        "#accept-nvidia-visible-devices-envvar-when-unprivileged = true\n"
        'foo = 3\n#swarm-resource = "DOCKER_RESOURCE_GPU"\n\n[a]\n\n[a.b]\nc = [1, 2]\n\n[nvidia-container-cli]\n'
        'debug = "/d"\n#ldcache = "/etc/ld.so.cache"\n#no-cgroups = false\n#path = "/usr/bin/nvidia-container-cli"\n'
        '#root = "/run/nvidia/driver"\n#user = "root:video"\n\n[nvidia-container-runtime]\n'
        '#debug = "/var/log/nvidia-container-runtime.log"\n'
    )

    assert ctk("config", "--config-file", str(file)).out == expected


def test_in_place(ctk: Ctk, tmp_path: Path) -> None:
    """A file that was not there is made; a second run changes nothing and does not touch it."""
    file = tmp_path / "etc" / RUNTIME / "config.toml"
    words = ("config", "--in-place", f"--set={RUNTIME}.mode=cdi")

    assert ctk(*words) == (0, "", "")
    assert file.read_text() == DEFAULT.replace('mode = "auto"', 'mode = "cdi"')
    before = file.stat()
    assert ctk(*words).code == 0
    assert file.stat().st_ino == before.st_ino


def test_the_output_goes_to_a_file(ctk: Ctk, tmp_path: Path) -> None:
    file = tmp_path / "deep/er/c.toml"

    assert ctk("config", "-o", str(file)).out == ""
    assert file.read_text() == DEFAULT


@pytest.mark.parametrize("text", ["x = [\n", "a = 1\na = 2\n", "\x00"])
def test_a_broken_file_stays(ctk: Ctk, tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    ran = ctk("config", "-i", "-c", str(file), "--set=disable-require")

    assert ran.code == 1
    assert str(file) in ran.err
    assert file.read_text() == text


def test_a_file_that_nvc_py_reads_first_is_said(ctk: Ctk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tmp_path / "ours.toml"
    ours.write_text("")
    monkeypatch.setattr("nvc.base.config_file.CONFIG", str(ours))

    assert f"{ours} exists and counts before" in ctk("config", "-i", "--set=disable-require").err


def test_every_key_of_the_toolkit_can_be_set() -> None:
    assert "nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags" in _KINDS
    assert len(_KINDS) == 37
