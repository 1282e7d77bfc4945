"""The chart's texts: names, values and versions agree with the code. tests/kubernetes/test_chart.py has Helm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import nvc
from nvc.kube import check_cluster, names

CHART = Path(__file__).parents[2] / "packaging/chart"
TEMPLATES = sorted(CHART.glob("templates/*"))
TEXT = "\n".join(path.read_text() for path in TEMPLATES)


def test_versions_are_those_of_nvc() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert {chart["version"], chart["appVersion"]} == {nvc.__version__}


def test_names_are_those_of_the_driver() -> None:
    assert set(re.findall(r'define "nvc.driver" -}}(.*?){{', TEXT)) == {names.DRIVER}
    assert set(re.findall(r"^  name: (nvc-gpu\S*)$", TEXT, re.MULTILINE)) == {names.CLASS_ANY, names.CLASS_GUARDED}
    assert re.findall(r"kind: RuntimeClass\nmetadata:\n  name: (\S+)", TEXT) == [names.RUNTIME_CLASS]
    assert re.findall(r'runtimeClassName\.orValue\(""\) == "(\w+)"', TEXT) == [names.RUNTIME_CLASS]
    assert re.findall(r"apiVersion: (nvc.dev/\S+)\n +kind: (\S+)", TEXT) == [
        (names.PARAMETERS_VERSION, names.PARAMETERS_KIND)
    ]


def test_kube_check_knows_the_conditions_of_the_policies() -> None:
    assert {name for name, _ in check_cluster.NEWER.values()} == set(re.findall(r"- name: ((?:is|may)-\S+)", TEXT))


def test_no_name_of_the_driver_is_written_twice() -> None:
    """Templates take it from the one definition."""
    assert TEXT.count(names.DRIVER) == 1


def test_directories_are_those_of_the_driver() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert values["node"]["cdiDirectory"] == names.CDI_DIRECTORY
    assert values["node"]["kubeletDirectory"] == names.KUBELET_DIRECTORY
    for directory in (names.REGISTRY, names.PLUGINS):
        assert f"/{directory}}}" in TEXT


def test_every_value_is_used_and_every_use_has_a_value() -> None:
    def leaves(value: object, path: str) -> set[str]:
        if isinstance(value, dict) and value:
            return set().union(*(leaves(inner, f"{path}.{key}") for key, inner in value.items()))
        return {path}

    known = leaves(yaml.safe_load((CHART / "values.yaml").read_text()), "")
    used = set(re.findall(r"\.Values((?:\.\w+)+)", TEXT))
    missing = {path for path in used if not any(f"{leaf}.".startswith(f"{path}.") for leaf in known)}
    idle = {leaf for leaf in known if not any(f"{leaf}.".startswith(f"{path}.") for path in used)}

    assert (missing, idle) == (set(), set())


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_close_what_they_open(path: Path) -> None:
    text = path.read_text()
    opened = re.findall(r"{{-? *(?:if|with|range|define)\b", text)

    assert len(opened) == len(re.findall(r"{{-? *end\b", text))
