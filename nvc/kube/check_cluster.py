"""Checks of the cluster: versions and gates, classes, policies, slices, other programs that offer the same GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nvc.base.errors import NvcError
from nvc.doctor.finding import Finding, error, note, ok, warning
from nvc.kube.check import RUNTIME_CLASSES, as_object, as_text, at
from nvc.kube.names import CLASS_ANY, CLASS_GUARDED, DRIVER, RUNTIME_CLASS
from nvc.kube.plugin_config import GPU
from nvc.kube.versions import CONSUMABLE, DRA, FEATURES, SEVERAL_A_REQUEST, minor

if TYPE_CHECKING:
    from nvc.kube.check import Cluster, Seen

#: The chart's policies: name -> what is not refused without it.
POLICIES = {
    "nvc-parameters": "parameters of claims with mistakes: the pod fails later, on its node",
    "nvc-confinement": "pods that could get around a share, in namespaces with the label nvc.dev/confined",
    "nvc-driver-own-node": "a driver that changes the slices of other nodes",
}
#: Of those the condition that an older chart's have not: name -> condition, what these do not refuse.
NEWER = {
    "nvc-confinement": ("may-have-gpu", "pods that get a GPU by an extended resource"),
    "nvc-parameters": ("is-changed", "priority: high in a claim, which takes what other claims reserved"),
}
#: The same on clusters before versions.SEVERAL_A_REQUEST.
OLDER_POLICIES = {"nvc-one-device": "a request of several GPUs, which ends the scheduler of this version"}
_CHART = "helm upgrade --install nvc-py packaging/chart --namespace nvc-system --create-namespace"
_PLUGIN = "nvc-py kube device-plugin  # gives whole GPUs and equal shares without DRA"
_OTHER_DRIVERS = ("gpu.nvidia.com", "hami-core-gpu.project-hami.io")
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_NODES = "/api/v1/nodes"


def version(seen: Seen) -> Iterator[Finding]:
    """What the cluster's version can do."""
    cluster = seen.cluster
    text, number = as_text(at(cluster.get("/version"), "gitVersion")), cluster.minor
    if number < 0:
        yield error(f"the API server says version {text or 'nothing'}: it is no Kubernetes", "# see --kubeconfig")
        return
    has = [feature.what for feature in FEATURES if number >= feature.on]
    gated = [f"{feature.gate} ({feature.what})" for feature in FEATURES if feature.since <= number < feature.on]
    yield ok(f"Kubernetes {text} has by default: {'; '.join(has) or 'nothing of DRA'}")
    if number < DRA.on:
        yield warning(f"Kubernetes {text} has no claims of devices by default: 1.{DRA.on} and newer have", _PLUGIN)
    elif gated:
        yield note(f"off by default in {text}, behind gates: {', '.join(gated)}")


def api(seen: Seen) -> Iterator[Finding]:
    """Which versions of the API of claims are served."""
    group = seen.cluster.get("/apis/resource.k8s.io")
    served = [as_text(at(entry, "version")) for entry in as_object(group).get("versions") or []]
    if not served:
        yield error("the API server serves no resource.k8s.io: claims do not exist", _PLUGIN)
    elif "v1" not in served:
        hint = f"# upgrade to 1.{DRA.on} or newer; {_PLUGIN}"
        yield error(f"resource.k8s.io is served as {', '.join(served)}, and the driver needs v1", hint)
    else:
        yield ok(f"resource.k8s.io is served as {', '.join(served)}")


def gate(seen: Seen) -> Iterator[Finding]:
    """Whether the API server keeps the fields of consumable capacity: by our slices, else by its metrics."""
    cluster = seen.cluster
    if cluster.minor < CONSUMABLE.since:
        yield note(f"{CONSUMABLE.gate} comes with 1.{CONSUMABLE.since}", _PLUGIN)
        return
    fix = f"# --feature-gates={CONSUMABLE.gate}=true for kube-apiserver, kube-scheduler and every kubelet"
    devices = [device for one in _ours(cluster) for device in at(one, "spec", "devices") or []]
    shared = [device for device in devices if as_object(device).get("allowMultipleAllocations")]
    # A MIG device is never shared.
    if shared:
        yield ok(f"{CONSUMABLE.gate} is on: the API server keeps what it brought")
        return
    state = _gate_by_metrics(cluster)
    if state is None:
        yield note(
            f"whether {CONSUMABLE.gate} is on cannot be seen: no GPU is offered yet, nor may /metrics be read", fix
        )
    elif state:
        yield ok(f"{CONSUMABLE.gate} is on, as the API server's metrics say")
    else:
        yield error(f"{CONSUMABLE.gate} is off: a claim of a part of a GPU takes the whole one", fix)


def _gate_by_metrics(cluster: Cluster) -> bool | None:
    try:
        text = as_text(cluster.get("/metrics"))
    except NvcError:
        return None
    found = re.search(rf'^kubernetes_feature_enabled\{{name="{CONSUMABLE.gate}"[^}}]*\}} (\d)', text, re.M)
    return found[1] == "1" if found else None


def classes(seen: Seen) -> Iterator[Finding]:
    """The device classes that pods name."""
    if not seen.cluster.uses_claims():
        return
    found = seen.cluster.classes()
    for name in (CLASS_ANY, CLASS_GUARDED):
        if name not in found:
            yield error(f"device class {name} does not exist: no claim can name it", _CHART)
        elif not _selects(found[name], DRIVER):
            yield warning(f"device class {name} does not select {DRIVER}", _CHART)
        else:
            yield ok(f"device class {name} is there")


def runtime_class(seen: Seen) -> Iterator[Finding]:
    """The RuntimeClass by which pods get nvc-runtime."""
    found = seen.cluster.named(RUNTIME_CLASSES).get(RUNTIME_CLASS)
    if found is None:
        yield note(
            f"there is no RuntimeClass {RUNTIME_CLASS}: nvc-runtime has to be every GPU node's default runtime", _CHART
        )
    else:
        yield ok(f"RuntimeClass {RUNTIME_CLASS} is there, with the handler {as_text(found.get('handler'))}")


def policies(seen: Seen) -> Iterator[Finding]:
    """The admission policies of the chart, and their bindings."""
    if not seen.cluster.uses_claims():
        return
    found = seen.cluster.named(f"{_ADMISSION}/validatingadmissionpolicies")
    bound = {
        as_text(at(one, "spec", "policyName"))
        for one in seen.cluster.items(f"{_ADMISSION}/validatingadmissionpolicybindings")
    }
    older = OLDER_POLICIES if seen.cluster.minor < SEVERAL_A_REQUEST else {}
    for name, without in {**POLICIES, **older}.items():
        if name not in found or name not in bound:
            what = "does not exist" if name not in found else "has no binding"
            finding = error if name in older else warning
            yield finding(f"admission policy {name} {what}; not refused: {without}", _CHART)
            continue
        condition, passes = NEWER.get(name, ("", ""))
        if condition and condition not in _conditions(found[name]):
            yield warning(f"admission policy {name} is an older chart's; not refused: {passes}", _CHART)
        else:
            yield ok(f"admission policy {name} is there and bound")


def slices(seen: Seen) -> Iterator[Finding]:
    """Whether GPUs are offered: by each node, and wholly."""
    cluster = seen.cluster
    if not cluster.uses_claims():
        return
    pools: dict[str, list[dict[str, Any]]] = {}
    for one in _ours(cluster):
        pools.setdefault(as_text(at(one, "spec", "nodeName")), []).append(one)
    for node, of in sorted(pools.items()):
        newest = max(_number(at(one, "spec", "pool", "generation")) for one in of)
        current = [one for one in of if _number(at(one, "spec", "pool", "generation")) == newest]
        wanted = max(_number(at(one, "spec", "pool", "resourceSliceCount")) for one in current)
        devices = sum(len(at(one, "spec", "devices") or []) for one in current)
        tainted = [
            as_text(at(device, "name"))
            for one in current
            for device in at(one, "spec", "devices") or []
            if as_object(device).get("taints")
        ]
        if len(current) < wanted:
            yield warning(
                f"node {node} has {len(current)} of {wanted} slices: the scheduler uses none of its pool",
                "# see the driver's log on that node; it publishes what is missing within seconds",
            )
        elif tainted:
            yield warning(
                f"node {node}: {', '.join(tainted)} has a fault and gets no new pods", "nvc-py doctor --only driver"
            )
        else:
            yield ok(f"node {node} offers {devices} {'GPU' if devices == 1 else 'GPUs'} or MIG devices")
    if cluster.node and cluster.node not in pools:
        yield error(
            f"node {cluster.node} offers no GPU: there is no slice of {DRIVER}",
            f"nvc-py kube driver --node {cluster.node}  # is the driver running there? kubectl -n nvc-system get pods",
        )
    elif not pools:
        yield note(f"no node offers GPUs by {DRIVER}", _CHART)


def others(seen: Seen) -> Iterator[Finding]:
    """Programs that offer the same GPUs: the scheduler would give them twice."""
    cluster = seen.cluster
    ours = {as_text(at(one, "spec", "nodeName")) for one in _ours(cluster)}
    twice = sorted(
        {
            (as_text(at(one, "spec", "nodeName")), as_text(at(one, "spec", "driver")))
            for one in cluster.slices()
            if at(one, "spec", "driver") in _OTHER_DRIVERS and at(one, "spec", "nodeName") in ours
        }
    )
    for node, driver in twice:
        yield error(
            f"node {node}: {driver} offers the same GPUs as {DRIVER}",
            "# keep one of them on a node: label nodes, and give each DaemonSet a nodeSelector",
        )
    provided = {
        as_text(at(one, "spec", "extendedResourceName")): name
        for name, one in cluster.classes().items()
        if at(one, "spec", "extendedResourceName")
    }
    counted = False
    for name, one in cluster.named(_NODES).items():
        for resource, amount in as_object(at(one, "status", "allocatable")).items():
            if amount in ("0", 0) or name not in ours:
                continue
            if resource in provided:
                yield error(
                    f"node {name}: a device plugin serves {resource}, and so does class {provided[resource]}",
                    "# take the device plugin off nodes with slices: only one may serve a name on a node",
                )
                counted = True
            elif resource == GPU or resource.startswith(("nvidia.com/mig-", f"{GPU}.")):
                yield error(
                    f"node {name}: a device plugin gives its GPUs as {resource}, beside {DRIVER}",
                    "# take the device plugin off nodes with slices: the same GPU is given twice",
                )
                counted = True
    if not twice and not counted:
        yield ok("no other program offers the GPUs of our nodes")


def nodes(seen: Seen) -> Iterator[Finding]:
    """Versions of the kubelets with our GPUs (or of the one that is named), and of their engines."""
    cluster = seen.cluster
    ours = {as_text(at(one, "spec", "nodeName")) for one in _ours(cluster)} | (
        {cluster.node} if cluster.node else set()
    )
    found = cluster.named(_NODES)
    for name in sorted(ours):
        info = at(found.get(name), "status", "nodeInfo")
        if not isinstance(info, dict):
            yield error(f"there is no node {name}", "kubectl get nodes  # then --node NAME")
            continue
        kubelet, engine = as_text(info.get("kubeletVersion")), as_text(info.get("containerRuntimeVersion"))
        # A node's gates are its own: the API server's say nothing of it.
        if cluster.uses_claims() and minor(kubelet) < CONSUMABLE.since:
            yield error(
                f"node {name}: kubelet {kubelet} cannot prepare fractions, 1.{CONSUMABLE.since} can",
                f"# upgrade the kubelet, or {_PLUGIN}",
            )
        elif not _engine_can(engine):
            yield error(
                f"node {name}: {engine} knows no CDI for pods", "# containerd 1.7, CRI-O 1.28 and newer do: upgrade it"
            )
        else:
            yield ok(f"node {name}: kubelet {kubelet}, {engine}")


def kubelet_gate(seen: Seen) -> Iterator[Finding]:
    """The gate on the kubelet of the node that is named."""
    cluster = seen.cluster
    if not cluster.node or not cluster.uses_claims():
        return
    kubelet = minor(as_text(at(cluster.node_object(), "status", "nodeInfo", "kubeletVersion")))
    try:
        gates = at(cluster.get(f"{_NODES}/{cluster.node}/proxy/configz"), "kubeletconfig", "featureGates")
    except NvcError:
        gates = None
        if kubelet < CONSUMABLE.on:
            yield note(f"whether {CONSUMABLE.gate} is on in the kubelet cannot be seen: nodes/proxy may not be read")
            return
    said = as_object(gates).get(CONSUMABLE.gate)
    if said is True or (said is None and kubelet >= CONSUMABLE.on):
        yield ok(f"{CONSUMABLE.gate} is on in the kubelet of {cluster.node}")
    else:
        yield error(
            f"{CONSUMABLE.gate} is off in the kubelet of {cluster.node}: two claims of one GPU are mixed up",
            f"# featureGates: {{{CONSUMABLE.gate}: true}} in the kubelet's configuration; systemctl restart kubelet",
        )


def _ours(cluster: Cluster) -> list[dict[str, Any]]:
    return [one for one in cluster.slices() if at(one, "spec", "driver") == DRIVER]


def _selects(of: dict[str, Any], driver: str) -> bool:
    selectors = at(of, "spec", "selectors")
    return any(driver in as_text(at(one, "cel", "expression")) for one in selectors or [])


def _conditions(policy: dict[str, Any]) -> set[str]:
    return {as_text(at(one, "name")) for one in at(policy, "spec", "matchConditions") or []}


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _engine_can(text: str) -> bool:
    """containerd://1.7.24, cri-o://1.30.1. Others are not known, and not blamed."""
    name, _, number = text.partition("://")
    found = re.match(r"v?(\d+)\.(\d+)", number)
    least = {"containerd": (1, 7), "cri-o": (1, 28)}.get(name)
    return least is None or found is None or (int(found[1]), int(found[2])) >= least
