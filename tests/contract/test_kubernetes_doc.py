"""The pages about Kubernetes and the programs of a node say the same; its examples are what they claim to be."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from nvc.cli.kube import kube
from nvc.kube import names
from nvc.kube.check import AREAS
from nvc.kube.check_rows import ROWS
from nvc.kube.plugin_config import KEYS, NO_EFFECT, parse
from nvc.kube.versions import FEATURES

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs/user/kubernetes").glob("*.md")), ROOT / "docs/user/tutorials/pod-with-a-fraction.md"]
PLUGIN = (ROOT / "docs/reference/kube-device-plugin.md").read_text()


def blocks(kind: str) -> list[Any]:
    return [
        pytest.param(text, id=f"{page.stem}-{place}")
        for page in PAGES
        for place, text in enumerate(re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.M | re.S))
    ]


def keys() -> set[str]:
    """Every key of the configuration that has a meaning of its own."""
    found = {f"{table}.{key}" if table else key for table, row in KEYS.items() for key in row} | set(NO_EFFECT)
    tables = {table.removesuffix("[]") for table in KEYS}
    return found - tables - {"sharing.timeSlicing.strategy"}


def test_the_table_of_the_plugins_keys() -> None:
    rows = re.findall(r"^\| (`(?:version|flags|resources|imex|sharing)[^|]*) \|(.*)", PLUGIN, re.M)
    named = [name for cell, _ in rows for name in re.findall(r"`([^`]+)`", cell)]
    assert len(named) == len(set(named))
    assert keys() == {*named, *(name for _, text in rows for name in re.findall(r"`(imex\.required)`", text))}


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml(text: str) -> None:
    for data in yaml.safe_load_all(text):
        if "sharing" in data:
            assert parse(text.encode(), "docs").replicated
            continue
        assert {"apiVersion", "kind"} <= set(data)
        check(data)


def check(data: dict[str, Any]) -> None:
    """Names of ours in an object are the names that the programs know."""
    for one in walk(data):
        for key, known in KNOWN.items():
            if key in one:
                assert one[key] in known, (key, one[key])


#: Key of an object -> values that it may have in an example, where it names something of ours.
KNOWN = {
    "deviceClassName": (names.CLASS_ANY, names.CLASS_GUARDED),
    "runtimeClassName": (names.RUNTIME_CLASS,),
    "driver": (names.DRIVER,),
}


def walk(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        yield data
    for one in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from walk(one)


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml(text: str) -> None:
    found = tomllib.loads(text)
    directories = [one["cdi_spec_dirs"] for one in walk(found) if "cdi_spec_dirs" in one]
    assert all(names.CDI_DIRECTORY in one for one in directories)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options_exist(page: Path) -> None:
    commands = kube.commands
    for line in re.findall(r"^ {4}(.*nvc-py kube .*)$", page.read_text(), re.M) + re.findall(
        r"`(nvc-py kube [^`]*)`", page.read_text()
    ):
        words = line.partition("kube ")[2].split()
        assert words[0] in commands, line
        options = {name for parameter in commands[words[0]].params for name in parameter.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options | {"--help"}, line


@pytest.mark.parametrize("area", AREAS)
def test_the_checks_of_an_area(area: str) -> None:
    text = (ROOT / "docs/reference/kube-checks.md").read_text()
    section = re.split(r"\n#+ ", text.split(f" {area}: {AREAS[area]}\n", 1)[1])[0]
    wanted = [f"| `{row.name}` | {row.sees} | {row.why} |" for row, _ in ROWS if row.area == area]
    assert wanted == [line for line in section.splitlines() if line.startswith("| `")]


def test_the_table_of_versions() -> None:
    text = (ROOT / "docs/reference/kube-checks.md").read_text()
    for one in FEATURES:
        assert f"| {one.what} | `{one.gate}` | 1.{one.since} | 1.{one.on} |" in text


@pytest.mark.parametrize("name", sorted(kube.commands))
def test_every_option_of_a_command_is_in_its_help(name: str) -> None:
    command = kube.commands[name]
    with click.Context(command) as context:
        shown = command.get_help(context)
    listed = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    assert all(name in shown for parameter in listed for name in parameter.opts)
