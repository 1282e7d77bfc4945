"""Every reader of /etc/nvc/config.toml refuses the same files: no rule of the node is lost by a typing mistake."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hook import config as hook_config
from nvc.agent import settings
from nvc.base.errors import InputError
from nvc.base.log import Log
from nvc.cdi import hooks
from nvc.doctor import runner
from nvc.request import injection
from nvc.request.injection import ShareRequest
from nvc.share import policyfile
from tests.support.doctor_tree import CHECKS, Tree

RULE = 'default = "mem=25%"\n'
#: text of the file, line of the mistake, what is named, what is proposed
MISTAKES = [
    pytest.param(f"[shares]\n{RULE}", 1, "section [shares] is unknown", "[share]", id="section, plural"),
    pytest.param(f"[shre]\n{RULE}", 1, "section [shre] is unknown", "[share]", id="section, a letter less"),
    pytest.param(f"[Share]\n{RULE}", 1, "section [Share] is unknown", "[share]", id="section, upper case"),
    pytest.param(f"# ours\n\n[sahre]\n{RULE}", 3, "section [sahre] is unknown", "[share]", id="section, later line"),
    pytest.param("[agents]\nslots = 4\n", 1, "section [agents] is unknown", "[agent]", id="the agent's section"),
    pytest.param('[metrics]\naddress = "1"\n', 1, "section [metrics] is unknown", "[agent]", id="a key's name"),
    pytest.param(f"[share]\n[share.guard]\n{RULE}", 2, "share.guard is not a string", "", id="section below a key"),
    pytest.param(f"[share.rules]\n{RULE}", 1, "section [share.rules] is unknown", "", id="section below a section"),
    pytest.param("[shares]\n", 1, "section [shares] is unknown", "[share]", id="empty section"),
    pytest.param('["sh\\u0061res"]\n', 0, "section [shares] is unknown", "[share]", id="escaped section"),
    pytest.param(f"shares.{RULE}", 1, "section [shares] is unknown", "[share]", id="dotted section"),
    pytest.param('guard = "require"\n', 1, "key guard is unknown", "[share]", id="key above its section"),
    pytest.param('defaults = "mem=25%"\n', 1, "key defaults is unknown", "share.default", id="key of no section"),
    pytest.param('[agent]\nguard = "require"\n', 2, "agent.guard is unknown", "[share]", id="key of another section"),
    pytest.param('[share]\ndefualt = "mem=25%"\n', 2, "share.defualt is unknown", "share.default", id="key"),
    pytest.param("[share]\nallow-of = true\n", 2, "share.allow-of is unknown", "share.allow-off", id="switch"),
    pytest.param('[agent]\ndirectroy = "/x"\n', 2, "agent.directroy is unknown", "agent.directory", id="agent's key"),
    pytest.param(
        "[nvidia-container-cli]\nno-cgroup = true\n",
        2,
        "nvidia-container-cli.no-cgroup is unknown",
        "nvidia-container-cli.no-cgroups",
        id="toolkit's key",
    ),
    pytest.param(
        '[nvidia-container-runtime.moods.cdi]\nspec-dirs = ["/x"]\n',
        1,
        "section [nvidia-container-runtime.moods] is unknown",
        "[nvidia-container-runtime.modes]",
        id="inner section",
    ),
    pytest.param(
        "[nvidia-container-runtime.mode.cdi]\n", 1, "nvidia-container-runtime.mode is not a string", "", id="key's name"
    ),
    pytest.param("share = 1\n", 1, "share is not a table", "", id="no section"),
    pytest.param(f"[[share]]\n{RULE}", 1, "share is not a table", "", id="list of sections"),
    pytest.param("[share]\ndefault = true\n", 2, "share.default is not a string", "", id="boolean for text"),
    pytest.param('[share]\nclamp = "yes"\n', 2, "share.clamp is not a boolean", "", id="text for boolean"),
    pytest.param("[share]\nguard = 1\n", 2, "share.guard is not a string", "", id="number for text"),
    pytest.param('[agent]\nslots = "8"\n', 2, "agent.slots is not an integer", "", id="text for number"),
    pytest.param("[agent]\nslots = true\n", 2, "agent.slots is not an integer", "", id="boolean for number"),
    pytest.param("[agent]\npolicy = []\n", 2, "agent.policy is not a string or an integer", "", id="list for name"),
    pytest.param(
        "allow_off = true\n[share]\n", 1, "key allow_off is unknown", "[share]", id="a switch above its section"
    ),
    # Attack: accepted, and not in force.
    pytest.param('[".share"]\nguard = "require"\n', 0, '".share" is unknown', "[a.b]", id="quoted: dot, section"),
    pytest.param('["".share]\nguard = "require"\n', 0, '"" is unknown', "[a.b]", id="quoted: nothing"),
    pytest.param('["..agent"]\nslots = 4\n', 0, '"..agent" is unknown', "[a.b]", id="quoted: two dots"),
    pytest.param('"" = 1\n', 0, '"" is unknown', "[a.b]", id="quoted: no key"),
    pytest.param('[share]\n"" = 1\n', 0, 'share."" is unknown', "[a.b]", id="quoted: no key of a section"),
    pytest.param('[share]\n".guard" = "require"\n', 0, 'share.".guard" is unknown', "[a.b]", id="quoted: dot, key"),
    pytest.param('"share.guard" = "require"\n', 0, '"share.guard" is unknown', "[a.b]", id="quoted: section and key"),
    pytest.param(
        '["nvidia-container-runtime.modes.cdi"]\nspec-dirs = ["/x"]\n',
        0,
        '"nvidia-container-runtime.modes.cdi" is unknown',
        "[a.b]",
        id="quoted: inner section",
    ),
    pytest.param(
        '["nvidia-container-runtime".".share"]\nguard = "require"\n',
        0,
        'nvidia-container-runtime.".share" is unknown',
        "[a.b]",
        id="quoted: below a section",
    ),
    pytest.param(
        "[share]\nallow-off = false\nallow_off = true\n", 3, "share.allow_off", "allow-off", id="one key, two ways"
    ),
]
READERS: dict[str, Callable[[str], Any]] = {
    "hook": lambda path: hook_config.load(path, {}),
    "share": policyfile.load,
    "agent": settings.load,
    "gate": lambda path: ShareRequest(config=path).may_matter(),
}


def told(read: Callable[[str], Any], path: str) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(f"input error: {path}:")
    return f"{caught.value.message}\n{caught.value.hint}"


@pytest.mark.parametrize(("text", "line", "named", "proposed"), MISTAKES)
def test_all_readers_refuse_it_in_the_same_words(
    tmp_path: Path, text: str, line: int, named: str, proposed: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    place = f"{path}:{line}: " if line else f"{path}: "

    said = {name: told(read, str(path)) for name, read in READERS.items()}

    assert len(set(said.values())) == 1, said
    message, _, hint = said["hook"].partition("\n")
    assert message.startswith(place + named), message
    assert proposed in hint, hint


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(str(tmp_path_factory.mktemp("host") / "machine"), "h200")


@pytest.mark.parametrize(("text", "line", "named", "proposed"), MISTAKES)
def test_the_doctor_finds_it(tree: Tree, text: str, line: int, named: str, proposed: str) -> None:
    tree.write("etc/nvc/config.toml", text)

    (found,) = [one for one in runner.examine(CHECKS["host-settings"], tree.probe()) if one.level == "error"]

    assert named in found.what
    assert proposed in found.why


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"[share]\n{RULE}allow_off = true\n[agent]\npolicy = 4\nslots = 4\nmetrics_hami = false\n",
        '"share" = { default = "mem=25%" }\n[features]\n',
        '["nvidia-container-runtime".modes."cdi"]\n"spec-dirs" = ["/x"]\n["share"]\n"default" = "mem=25%"\n',
        f"share.{RULE}",
        '[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["/x"]\n',
    ],
)
def test_a_good_file_is_good_for_all(tmp_path: Path, tree: Tree, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    for read in READERS.values():
        read(str(path))
    tree.write("etc/nvc/config.toml", text)

    assert [one.level for one in runner.examine(CHECKS["host-settings"], tree.probe())] == ["ok"]


@pytest.mark.parametrize("text", [f'["sh\\u0061re"]\n{RULE}', f"share = {{{RULE.strip()}}}\n", f"[share]\n{RULE}"])
def test_rules_are_found_however_they_are_spelt(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)

    assert ShareRequest(config=str(path)).may_matter()
    assert policyfile.load(str(path)).default.memory_part == 250_000


def test_a_link_to_nothing_is_no_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration management has put it there, and its rules are somewhere else."""
    path = str(tmp_path / "config.toml")
    monkeypatch.setattr(policyfile, "CONFIG", path)
    assert policyfile.load().is_empty
    os.symlink("gone", path)
    for read in (policyfile.load, settings.load, lambda: ShareRequest(config=path).may_matter()):
        with pytest.raises(InputError, match="link"):
            read()


def test_a_place_that_cannot_be_looked_at_is_no_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user where /etc/nvc is root's alone; a file in place of the directory keeps root out too."""
    from nvc.request import injection

    (tmp_path / "nvc").write_text("")
    path = str(tmp_path / "nvc/config.toml")
    monkeypatch.setattr(injection, "NODE_CONFIG", path)
    monkeypatch.setattr(policyfile, "CONFIG", path)
    for read in (policyfile.load, settings.load, ShareRequest().may_matter):
        with pytest.raises(InputError, match="not a directory"):
            read()


def test_a_cdi_hook_refuses_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nvc.request import injection

    path = tmp_path / "config.toml"
    path.write_text(f"[shres]\n{RULE}")
    monkeypatch.setattr(injection, "NODE_CONFIG", str(path))
    monkeypatch.setattr(policyfile, "CONFIG", str(path))
    with pytest.raises(InputError, match=r"section \[shres\] is unknown"):
        hooks.share(hooks.HookTarget(str(tmp_path)), "", "", "", "", Log.none())


# The toolkit's own file.


@pytest.mark.parametrize("by_environment", [True, False])
def test_the_toolkits_file_may_be_newer_than_we_are(tmp_path: Path, by_environment: bool) -> None:
    directory = tmp_path / ("toolkit" if by_environment else "nvidia-container-runtime")
    directory.mkdir()
    path = directory / "config.toml"
    path.write_text("next = 1\n[next]\n" if False else "[next]\na = 1\n[features]\nnext = true\n")

    if by_environment:
        found = hook_config.load("", {"NVIDIA_CTK_CONFIG_FILE_PATH": str(path)})
    else:
        found = hook_config.load(str(path), {})

    assert found.unknown == ("next", "features.next")


@pytest.mark.parametrize("section", ["share", "agent"])
def test_our_sections_are_not_looked_for_in_the_toolkits_file(
    tmp_path: Path, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-container-runtime").mkdir()
    path = tmp_path / "nvidia-container-runtime/config.toml"
    path.write_text(f"disable-require = true\n[{section}]\n")

    said = told(lambda name: hook_config.load(name, {}), str(path))

    assert f":2: section [{section}] is not read here" in said
    assert "/etc/nvc/config.toml" in said
    assert "/etc/nvc/config.toml" in told(
        lambda name: hook_config.load("", {"NVIDIA_CTK_CONFIG_FILE_PATH": name}), str(path)
    )


def test_the_nodes_rules_hold_for_a_hook_that_is_told_the_toolkits_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-container-runtime").mkdir()
    theirs, ours = tmp_path / "nvidia-container-runtime/config.toml", tmp_path / "ours.toml"
    theirs.write_text("disable-require = true\n")
    ours.write_text(f"[share]\n{RULE}")

    monkeypatch.setattr(policyfile, "CONFIG", str(ours))
    monkeypatch.setattr(injection, "NODE_CONFIG", str(ours))

    assert ShareRequest(config=str(theirs)).may_matter()
    assert policyfile.load(str(theirs)).default.memory_part == 250_000


def test_json_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(json.dumps({"share": {"default": "mem=25%"}}))
    for read in READERS.values():
        assert "not TOML" in told(read, str(path))


def test_the_doctor_says_how_many_more_there_are(tree: Tree) -> None:
    tree.write("etc/nvc/config.toml", "[shares]\n[agent]\nslots = 0\n[share]\nguard = 1\n")

    (found,) = [one for one in runner.examine(CHECKS["host-settings"], tree.probe()) if one.level == "error"]

    assert "section [shares] is unknown" in found.what
    assert f"; 2 more: nvc-py config validate {tree.root}/etc/nvc/config.toml" in found.why
