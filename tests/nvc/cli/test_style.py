"""One command-line style: the same options, help and errors of every command, walked through click's tree."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from nvc.base.nearest import nearest
from nvc.cli import groups, options
from nvc.cli.settings import SIMULATED
from tests.support import commandtree
from tests.support.library import FakeLibrary

Command = Callable[..., tuple[int, str, str]]
EVERY = commandtree.every()
CLICKS = commandtree.clicks()
OURS = [path for path in EVERY if path != "cdi-hook"]  # which becomes nvc-cdi-hook
GROUPS = [path for path, command in CLICKS.items() if isinstance(command, click.Group)]


@pytest.fixture(autouse=True)
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SIMULATED, raising=False)


@pytest.fixture
def ours(command: Command) -> Command:
    return lambda *words, **settings: command(*words, program="nvc-py", **settings)


# Help, version and completion.


@pytest.mark.parametrize("path", ["", *OURS])
def test_help_is_asked_for_in_one_way(path: str, ours: Command) -> None:
    words = path.split()
    code, out, err = ours(*words, "-h")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: nvc-py {path}".strip())
    assert ours(*words, "--help") == (0, out, "")
    assert ours("help", *words) == (0, out, "")


def test_help_does_not_depend_on_who_asked_before(ours: Command) -> None:
    """A context without settings came first, as for the manual: click kept --help alone for that command."""
    command = click.Command("fresh", help="Fresh.")
    command.get_help(click.Context(command))
    groups._adapt(command, "version")
    assert command.main(["-h"], "fresh", standalone_mode=False) == 0


def test_dash_h_stays_an_error_of_nvidia_container_cli(command: Command) -> None:
    assert command("-h").code == 1  # type: ignore[attr-defined]


def test_version_and_completion_are_commands_too(ours: Command) -> None:
    assert ours("version") == ours("--version")
    assert json.loads(ours("version", "--json")[1])["build revision"].startswith("nvc-py ")
    for shell in options.SHELLS:
        assert ours("completion", shell) == ours("--completion", shell)


@pytest.mark.parametrize("words", [["shar"], ["share", "sett"], ["share", "set", "x"], ["info", "x"], ["top", "x"]])
def test_help_of_no_command(words: list[str], ours: Command) -> None:
    code, out, err = ours("help", *words)
    assert (code, out) == (1, "")
    assert err.startswith("nvc-py help: ")


# Global options.


@pytest.mark.parametrize("path", [path for path in commandtree.leaves() if path not in groups.NO_MACHINE])
def test_the_machine_may_be_named_after_every_command(path: str) -> None:
    if path in CLICKS:
        assert any("--sim" in param.opts for param in CLICKS[path].params)
    else:
        assert any(row.long == "sim" for row in options.rows(path))


def test_exceptions_are_commands() -> None:
    assert not {*groups.NO_MACHINE, *groups.NO_JSON} - {*EVERY}


@pytest.mark.parametrize(
    "words",
    [
        ["--sim=/m", "info"],
        ["info", "--sim=/m"],
        ["list", "--sim", "/m", "--json"],
        ["configure", "--sim=/m", "--dry-run", "/r"],
        ["kube", "inventory", "--sim=/m"],
        ["kube", "--sim=/m", "inventory"],
    ],
)
def test_the_machine_is_used(
    words: list[str], ours: Command, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    if words[0] == "kube" or words[1] == "kube":
        monkeypatch.setattr("nvc.cli.settings.Settings.open", lambda self, *_: seen.append(self.sim))
        monkeypatch.setattr("nvc.kube.look.write", lambda make: make())
        ours(*words)
    else:
        ours(*words, on=library)
        seen = [config.sim for config in library.configs]
    assert seen == ["/m"]


def test_what_is_listed_does_not_depend_on_where_the_machine_is_named(ours: Command) -> None:
    assert ours("list", "--sim", "/m") == ours("--sim=/m", "list") == ours("list", "--sim=/m")
    assert len(ours("list", "--sim=/m")[1].splitlines()) > 10
    assert ours("list", "--json") == ours("--json", "list")
    assert ours("info", "--json") == ours("--json", "info")


def test_the_machine_may_come_from_the_environment(
    ours: Command, command: Command, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIMULATED, "/from/environment")
    ours("info")
    ours("--sim=/named", "info")
    ours("info", "--sim=/named")
    ours("--root=/driver", "info")
    assert [config.sim for config in library.configs] == ["/from/environment", "/named", "/named", ""]


def test_an_environment_chooses_no_machine_for_nvidia_container_cli(
    command: Command, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: LXC sets lxc.environment, a container owner's, before it starts nvidia-container-cli as root; a simulated
    machine names the files of the host that the container gets."""
    monkeypatch.setenv(SIMULATED, "/home/mallory/machine")
    command("info", program="nvidia-container-cli")
    assert [config.sim for config in library.configs] == [""]


@pytest.mark.parametrize("words", [["--root=/r", "top", "--sim=/m"], ["--root=/r", "info", "--sim=/m"]])
def test_a_machine_and_a_driver_root_exclude_each_other(words: list[str], ours: Command) -> None:
    code, out, err = ours(*words)
    assert (code, out) == (1, "")
    assert err.startswith("nvc-py: input error: --sim and --root exclude each other\nnvc-py: hint: ")


@pytest.mark.parametrize("path", commandtree.leaves())
def test_every_command_prints_json_or_says_why_not(path: str, ours: Command) -> None:
    if path in groups.NO_JSON:
        if path != "cdi-hook":
            code, out, err = ours(*path.split(), "--json")
            assert (code, out) == (1, "")
            assert (
                err.startswith(f"nvc-py {path}: --json: it prints none ({groups.NO_JSON[path]})\n") or "issing" in err
            )
    elif path == "configure":
        assert "--dry-run=json" in ours("--json", "configure", "/r")[2]
    elif path in CLICKS:
        assert commandtree.json_options(CLICKS[path])
    else:
        assert any(row.long == "json" for row in options.rows(path))


@pytest.mark.parametrize("words", [["--json", "sim", "list"], ["sim", "--json", "list"], ["sim", "list", "--json"]])
def test_json_may_be_asked_for_before_or_after(words: list[str], ours: Command) -> None:
    code, out, _ = ours(*words)
    assert code == 0
    assert "h200" in [row["name"] for row in json.loads(out)]


# Mistakes.


def mistyped(word: str) -> str:
    """The word with two letters exchanged, or one too many."""
    return f"{word[:-2]}{word[-1]}{word[-2]}" if len(word) > 3 and word[-1] != word[-2] else f"{word}x"


@pytest.mark.parametrize("path", ["", *GROUPS])
def test_a_mistyped_command_is_recognized(path: str, ours: Command) -> None:
    names = list(CLICKS[path].commands) if path else list(options.SUMMARIES)  # type: ignore[attr-defined]
    for name in names:
        code, out, err = ours(*path.split(), mistyped(name))
        assert (code, out) == (1, "")
        assert err.startswith(f"nvc-py {path}".strip() + f": unknown command '{mistyped(name)}'")
        assert f"\nnvc-py: hint: did you mean {nearest(mistyped(name), names)}?\nUsage: nvc-py" in err
        assert len(name) < 4 or nearest(mistyped(name), names) == name


@pytest.mark.parametrize("path", ["", *(path for path in OURS if path != "sim run")])  # its words are a program's
def test_a_mistyped_option_is_recognized(path: str, ours: Command) -> None:
    names = (
        [name for param in CLICKS[path].params for name in param.opts if name.startswith("--")]
        if path in CLICKS
        else [f"--{row.long}" for row in options.rows(path)]
    )
    for name in names:
        code, out, err = ours(*path.split(), f"{name}x")
        assert (code, out) == (1, "")
        assert f"nvc-py: hint: did you mean {name}" in err
        assert re.match(rf"nvc-py {path}".strip() + ": (no such|unrecognized) option", err)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["doctor", "--only", "drivr"], "driver"),
        (["runtime", "configure", "--runtime=dokcer"], "docker"),
        (["completion", "bahs"], "bash"),
        (["share", "policy", "wieghted"], "weighted"),
        (["sim", "describe", "h20"], "h200"),
        (["cdi", "generate", "--mode", "managment"], "management"),
        (["cdi", "generate", "--capabilities", "compute,utlity"], "utility"),
        (["share", "set", "x", "wieght=30"], "weight="),
        (["share", "set", "x", "priority=hihg"], "high"),
    ],
)
def test_a_mistyped_value_is_recognized(words: list[str], meant: str, ours: Command) -> None:
    code, out, err = ours(*words)
    assert (code, out) == (1, "")
    assert f"nvc-py: hint: did you mean {meant}?" in err


def test_a_mistyped_device_is_recognized(ours: Command, library: FakeLibrary) -> None:
    uuid = library.found.gpus[0].uuid
    code, out, err = ours("list", f"--device={uuid[:-2]}{uuid[-1]}")
    assert (code, out) == (1, "")
    assert f"nvc-py: hint: did you mean {uuid}?" in err


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("shar", ["share", "sim"], "share"),
        ("hsare", ["share", "sim"], "share"),
        ("frobnicate", ["share", "sim"], ""),
        ("", ["share"], ""),
        ("s", ["share", "sim"], ""),
        ("x" * 10_000, ["x" * 9_999], ""),
        ("con", ["configure", "config"], ""),
        ("confi", ["configure", "list"], "configure"),
    ],
)
def test_nearest(word: str, known: list[str], found: str) -> None:
    assert nearest(word, known) == found


# The configuration file.


def test_the_sample_has_every_key_and_means_the_defaults(ours: Command, tmp_path: Path) -> None:
    code, out, err = ours("config", "default")
    assert (code, err) == (0, "")
    path = tmp_path / "config.toml"
    path.write_text(re.sub(r"^#(?! )", "", out, flags=re.MULTILINE))
    assert ours("config", "validate", str(path)) == (0, "", "1 file, 0 with mistakes\n")
    shown = json.loads(ours("config", "show", "--json", f"--config={path}")[1])["settings"]
    path.write_text("")
    usual = json.loads(ours("config", "show", "--json", f"--config={path}")[1])["settings"]
    assert {key: row["value"] for key, row in shown.items()} == {key: row["value"] for key, row in usual.items()}
    assert {row["origin"] for row in usual.values()} == {"default"}
    assert not [row for row in shown.values() if not re.fullmatch(rf"{re.escape(str(path))}:\d+", row["origin"])]


def test_show_says_where_a_value_comes_from(ours: Command, tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    own = machine / "etc/nvc/config.toml"
    theirs = machine / "etc/nvidia-container-runtime/config.toml"
    for path in (own, theirs):
        path.parent.mkdir(parents=True)
    theirs.write_text('disable-require = true\n[nvidia-container-cli]\nroot = "/driver"\n')
    out = ours("config", "show", f"--sim={machine}")[1]
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert lines["disable-require"] == ["true", f"{theirs}:1"]
    assert lines["nvidia-container-cli.root"] == ['"/driver"', f"{theirs}:3"]
    assert lines["share.guard"] == ['"auto"', "default"]

    own.write_text("[share]\n\nallow_off = true\n")
    lines = {
        line.split()[0]: line.split()[1:] for line in ours("--sim", str(machine), "config", "show")[1].splitlines()
    }
    assert lines["share.allow-off"] == ["true", f"{own}:3"]
    assert lines["disable-require"] == ["false", "default"]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[shre]\n", 1, "section [shre] is unknown"),
        ("\n[share]\ndefualt = ''\n", 3, "share.defualt is unknown"),
        ('[share]\nclamp = true\nmaximum = "mme=1Gi"\n', 3, "share.maximum: share: unknown setting 'mme=1Gi'"),
        ("[agent]\nslots = 0\n", 2, "agent.slots is not a number"),
        ('[agent]\n\nmetrics = "9400"\n', 3, "agent.metrics: '9400' is no address and port"),
        ('[nvidia-container-runtime]\nmode = "x"\n', 2, "nvidia-container-runtime.mode: invalid mode"),
    ],
)
def test_validate_names_the_line(text: str, line: int, said: str, ours: Command, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    code, out, err = ours("config", "validate", str(path))
    assert code == 1
    assert out.startswith(f"{path}:{line}: {said}")
    assert err.endswith("1 file, 1 with mistakes\n")
    (row,) = json.loads(ours("config", "validate", "--json", str(path))[1])
    assert row["problem"] == out.rstrip("\n")


#: Line, what is said, what is to be done: of every kind of reader, and of two keys that contradict each other.
MANY = """disable-require = "yes"
[agent]
periods = 47
period = 5000
metrics = "9400"
[shre]
default = "mem=1Gi"
[share]
guard = "maybe"
admission = "requests"
allow-off = true
default = "mme=3"
[nvidia-container-cli]
ldconfig = "/sbin/ldconfig"
"""
SAID = (
    (1, "disable-require is not a boolean", "write true or false, without quotes"),
    (3, "agent.periods is unknown", "did you mean agent.period?"),
    (4, "agent.period is not a number from 10 to 200", ""),
    (5, "agent.metrics: '9400' is no address and port", 'write metrics = "127.0.0.1:9400", or "" for none'),
    (6, "section [shre] is unknown", "did you mean [share]?"),
    (9, "share.guard is none of auto, require, off", ""),
    (11, "share.allow-off cannot be true", "a container without a share may take what others were promised"),
    (12, "share.default: share: unknown setting 'mme=3'", "did you mean mem=?"),
    (14, "nvidia-container-cli.ldconfig = '/sbin/ldconfig' does not name", "write @ and its absolute path"),
)


def test_validate_names_every_mistake(ours: Command, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(MANY)
    right = tmp_path / "right.toml"
    right.write_text("")

    code, out, err = ours("config", "validate", str(path), str(right))

    assert code == 1
    lines = out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{path}:{line}" for line, _, _ in SAID]
    for line, (_, said, _) in zip(lines, SAID, strict=True):
        assert line.partition(": ")[2].startswith(said)
    *hints, total = err.splitlines()
    for hint, said in zip(hints, [hint for _, _, hint in SAID if hint], strict=True):
        assert hint.startswith(f"hint: {said}")
    assert total == "2 files, 1 with mistakes"
    rows = json.loads(ours("config", "validate", "--json", str(path), str(right))[1])
    assert [row["problem"] for row in rows] == [*lines, ""]


def test_validate_names_every_mistake_of_the_toolkits_file(ours: Command, tmp_path: Path) -> None:
    path = tmp_path / "nvidia-container-runtime/config.toml"
    path.parent.mkdir()
    path.write_text('newer = 1\ndisable-require = 1\n[share]\nguard = 1\n[nvidia-container-runtime]\nmode = "x"\n')

    code, out, _ = ours("config", "validate", str(path))

    assert code == 1
    assert [line.partition(": ")[2] for line in out.splitlines()] == [
        "disable-require is not a boolean",
        "section [share] is not read here",
        "nvidia-container-runtime.mode: invalid mode 'x'",
    ]


def test_validate_of_what_is_no_file(ours: Command, tmp_path: Path) -> None:
    code, out, _ = ours("config", "validate", f"{tmp_path}/none", str(tmp_path))
    assert code == 1
    assert out == f"{tmp_path}/none: there is no such file\n{tmp_path}: not a regular file\n"
