"""docs/reference/metrics.md, docs/user/metrics.md and the dashboards have the agent's metrics, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.metrics.hami import HAMI
from nvc.agent.metrics.rows import ROWS
from nvc.agent.settings import AgentSettings, decode

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reference/metrics.md").read_text()
PAGE = (ROOT / "docs/user/metrics.md").read_text()
DASHBOARDS: list[dict[str, Any]] = [
    json.loads((ROOT / f"packaging/grafana/{name}.json").read_text()) for name in ("nvc-py", "nvc-py-kubernetes")
]
#: Name of a dashboard -> its variables.
VARIABLES = {
    "nvc-py-shares": {"datasource", "instance", "gpu", "container"},
    "nvc-py-pods": {"datasource", "instance", "namespace", "pod"},
}
each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one["uid"])
KUBERNETES = (ROOT / "docs/user/kubernetes/operation.md").read_text()
LABELS = {row.name: {*row.labels, "instance", "job"} for row in ROWS}
#: Words of PromQL that look like names of metrics or labels.
FUNCTIONS = {"sum", "by", "on", "rate", "increase", "clamp_min", "group_left", "topk", "avg_over_time", "label_values"}


def cells(name: str) -> list[str]:
    """The row of the page's table that begins with this name."""
    found = re.findall(rf"^\| `{re.escape(name)}` \|(.*)\|$", TEXT, re.MULTILINE)
    assert 1 == len(found), name
    return [cell.strip() for cell in found[0].split(" | ")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_metric_is_described_as_it_is(row: Any) -> None:
    labels = ", ".join(f"`{label}`" for label in row.labels) or "-"
    assert [row.kind, row.unit or "-", labels, row.help.rstrip(".")] == cells(row.name)


@pytest.mark.parametrize("row", HAMI, ids=lambda row: row.name)
def test_each_of_hamis_metrics_is_described_as_it_is(row: Any) -> None:
    assert [", ".join(f"`{label}`" for label in row.labels), row.help.rstrip(".")] == cells(row.name)


def test_no_other_metric_is_named() -> None:
    assert {row.name for row in ROWS} >= set(re.findall(r"\bnvc_[a-z_]+", TEXT + PAGE))
    without = TEXT.partition("What has no counterpart:")[2]
    told = set(re.findall(r"`((?:hami_\w+|[A-Z]\w+|vGPU\w+))`", without.replace("`hami_vgpu_memory_limit_bytes`", "")))
    assert {row.name for row in HAMI} & told <= {"hami_container_device_memory_bytes"}


def test_hamis_whole_list_is_there() -> None:
    """Every name of HAMi's monitor and scheduler, by its current name or as having no counterpart."""
    names = """hami_host_gpu_memory_used_bytes hami_host_gpu_utilization_ratio hami_vgpu_memory_used_bytes
    hami_host_gpu_memory_controller_utilization_ratio hami_vgpu_memory_limit_bytes hami_container_device_memory_bytes
    hami_container_device_utilization_ratio hami_container_last_kernel_elapsed_seconds hami_mig_device_info
    hami_vgpu_memory_context_bytes hami_vgpu_memory_module_bytes hami_vgpu_memory_buffer_bytes HostGPUMemoryUsage
    HostCoreUtilization vGPU_device_memory_usage_in_bytes vGPU_device_memory_limit_in_bytes
    Device_memory_desc_of_container Device_utilization_desc_of_container Device_last_kernel_of_container MigInfo
    hami_gpu_memory_limit_bytes hami_gpu_core_limit_ratio hami_gpu_memory_allocated_bytes hami_gpu_shared_count
    hami_gpu_core_allocated_ratio hami_node_gpu_overview hami_node_gpu_memory_allocated_ratio
    hami_node_gpu_mig_instance_info hami_resource_quota_used hami_resource_quota_limit hami_vgpu_memory_allocated_bytes
    hami_vgpu_core_allocated_ratio GPUDeviceMemoryLimit""".split()  # noqa: SIM905
    assert [] == [name for name in names if f"`{name}`" not in TEXT]


def test_its_settings_are_settings() -> None:
    import tomllib

    block = re.search(r"    \[agent\]\n((?:    .*\n)+)", PAGE)
    assert block is not None
    found = decode(tomllib.loads(re.sub("^    ", "", block.group(1), flags=re.MULTILINE)), "docs")
    assert AgentSettings(metrics="127.0.0.1:9400") == found


def expressions(of: object) -> Iterator[str]:
    """Every PromQL text in the dashboard."""
    if isinstance(of, dict):
        for key, value in of.items():
            if key in ("expr", "query", "definition") and isinstance(value, str) and "nvc" in value:
                yield value
            else:
                yield from expressions(value)
    elif isinstance(of, list):
        for item in of:
            yield from expressions(item)


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize(
    "expression", sorted(set(expressions(DASHBOARDS)) | set(re.findall(r"^    (.*nvc_.*)$", PAGE + KUBERNETES, re.M)))
)
def test_expressions_use_our_metrics_and_their_labels(expression: str) -> None:
    metrics = re.findall(r"\bnvc_[a-z_]+", expression)
    assert metrics
    for metric in metrics:
        assert metric in LABELS
    for metric, selector in re.findall(r"\b(nvc_[a-z_]+)\{([^}]*)\}", expression):
        assert set(re.findall(r'(\w+)(?:=|!=|=~|!~)"', selector)) <= LABELS[metric], metric
    copied = {label for of in re.findall(r"group_left \(([^)]*)\)", expression) for label in of.split(", ")}
    assert copied <= LABELS[metrics[-1]]
    for grouped in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        for label in grouped.split(", "):
            assert label in copied or all(label in LABELS[metric] for metric in metrics), (label, metrics)
    plain = re.sub(r'\{[^}]*\}|\[[^\]]*\]|"[^"]*"|(?:by|on|group_left) \([^)]*\)', "", expression)
    assert set(re.findall(r"[a-z_]{2,}", plain)) - set(metrics) <= FUNCTIONS | {
        "instance",
        "gpu",
        "container",
        "namespace",
        "pod",
    }
    assert all(expression.count(left) == expression.count(right) for left, right in ("()", "{}", "[]"))


def test_names_are_joined_one_for_each_tenant() -> None:
    """A group has a row of nvc_tenant_info for each container, and Prometheus refuses to join with several."""
    joined = [one for one in (*expressions(DASHBOARDS), PAGE, KUBERNETES) if "group_left" in one]
    for one in joined:
        for right in re.findall(r"group_left \([^)]*\) (.*)", one):
            assert right.startswith(
                ("topk by (container) (1, nvc_tenant_info", "topk by (instance, container) (1, nvc_")
            )
    assert len(joined) > 10


@each_dashboard
def test_every_counter_is_rated_and_no_gauge(dashboard: dict[str, Any]) -> None:
    kinds = {row.name: row.kind for row in ROWS}
    for expression in expressions(dashboard["panels"]):
        rated = set(re.findall(r"(?:rate|increase)\((nvc_[a-z_]+)", expression))
        counters = {name for name in re.findall(r"\bnvc_[a-z_]+", expression) if kinds[name] == "counter"}
        assert counters == rated


@each_dashboard
def test_the_dashboard_is_what_grafana_imports(dashboard: dict[str, Any]) -> None:
    assert {"title", "uid", "panels", "templating", "time", "schemaVersion"} <= set(dashboard)
    assert dashboard["id"] is None and dashboard["schemaVersion"] >= 39
    assert VARIABLES[dashboard["uid"]] == {one["name"] for one in dashboard["templating"]["list"]}
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(numbers) == len(set(numbers))
    for panel in panels(dashboard):
        assert panel["title"] and panel["description"] and panel["targets"]
        assert "${datasource}" == panel["datasource"]["uid"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))
        assert panel["fieldConfig"]["defaults"]["unit"]
    assert {panel["type"] for panel in panels(dashboard)} <= {one["id"] for one in dashboard["__requires"]}


@each_dashboard
def test_panels_do_not_lie_upon_each_other(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        covered = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not covered & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= covered
